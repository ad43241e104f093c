//! Several sidecars on one host, one file. What they leave to each other is tested on Redis.

use super::ledger::Ledger;
use super::on_redis::fleet::{TWO, patient, woken_in_time};
use super::on_redis::outages::alone_it_goes_on_with_the_whole;
use super::on_redis::settled::{POLICY, what_was_used_is_counted};
use super::prelude::*;

fn sidecar(backend: &Backend, dir: &tempfile::TempDir, policy: &str) -> Sidecar {
    let patience = "timeout = \"2s\"\n";
    patient(backend.addr, "2s", &file(dir), patience, policy)
}

#[test]
fn three_processes_have_one_budget() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let sidecars = [(); 3].map(|()| sidecar(&backend, &dir, TWO));
    for _ in 0..40 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    ledger.all_work(&sidecars, 40, || ());
    assert_eq!(ledger.most.load(Ordering::SeqCst), 2);
    let known = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > 1.5;
    wait("they know each other", || sidecars.iter().all(known));
}

/// The file's folder goes, as where a disk is taken away.
#[test]
fn a_single_process_goes_on_with_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().with_extension("gone");
    let (from, to) = (dir.path().to_owned(), gone.clone());
    alone_it_goes_on_with_the_whole(&file(&dir), move || {
        std::fs::rename(&from, &to).unwrap();
    });
    std::fs::remove_dir_all(gone).unwrap();
}

#[test]
fn a_process_that_is_killed_has_used_what_it_used() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 3\n\
        rate = { limit = 3, period = \"1h\" }\n";
    for _ in 0..5 {
        enqueue(backend.addr, "q", json!({}));
    }
    let mut first = sidecar(&backend, &dir, policy);
    let jobs = fetch(first.data, "q", 2, "w").jobs();
    assert_eq!(jobs.len(), 2);
    assert_eq!(ack(first.data, &jobs[0], "w").status, 200);
    first.kill();
    let second = sidecar(&backend, &dir, policy);
    assert_eq!(
        fetch(second.data, "q", 5, "w").jobs().len(),
        1,
        "three in an hour"
    );
    assert_eq!(ack(second.data, &jobs[1], "w").status, 200);
    assert!(fetch(second.data, "q", 5, "w").jobs().is_empty());
}

/// What one sidecar knows of a key is shown by the others, and after its death.
#[test]
fn a_key_is_shown_whichever_sidecar_its_jobs_came_through() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let (mut first, second) = (sidecar(&backend, &dir, ""), sidecar(&backend, &dir, ""));
    let limits = json!({"key": "fleet", "concurrency": 1, "rate": {"limit": 10, "period": "PT1H"}});
    for _ in 0..3 {
        enqueue(first.data, "q", json!({"rate_limit": limits}));
    }
    assert_eq!(fetch(first.data, "q", 2, "w").jobs().len(), 1);
    let shown = |sidecar: &Sidecar| {
        let reply = get(sidecar.data, "/ojs/v1/rate-limits/fleet");
        assert_eq!(reply.status, 200, "{reply:?}");
        let key = reply.json();
        assert_eq!(
            key["concurrency"],
            json!({"limit": 1, "active": 1, "available": 0}),
            "{key}"
        );
        assert_eq!(key["rate"]["limit"], 10, "{key}");
        assert_eq!(key["rate"]["current_count"], 1, "{key}");
        let list = get(sidecar.data, "/ojs/v1/rate-limits").json();
        assert_eq!(list["pagination"]["total"], 1, "{list}");
        assert_eq!(list["items"][0]["key"], "fleet", "{list}");
        key["waiting_count"].as_u64().unwrap()
    };
    // What waits for a key is counted by who holds it.
    assert!(shown(&first) >= 1);
    shown(&second);
    first.kill();
    shown(&second);
    // One that starts takes what the dead one held for running, until its claims are over.
    let third = sidecar(&backend, &dir, "");
    let key = get(third.data, "/ojs/v1/rate-limits/fleet").json();
    assert_eq!(key["rate"]["current_count"], 1, "{key}");
    let unknown = get(second.data, "/ojs/v1/rate-limits/unknown");
    assert_eq!(unknown.status, 404, "{unknown:?}");
}

/// What starts through one sidecar ends through another, and of these keys nobody else says how many are out.
#[test]
fn the_keys_that_share_a_series_are_right_in_a_fleet() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nkey = \"{meta.who}\"\nconcurrency = 1\n\
        [metrics]\ntop_keys = 1\n";
    let [first, second] = [(); 2].map(|()| sidecar(&backend, &dir, policy));
    let keys = 1_050;
    let job = |n| {
        let options = json!({"queue": "q", "visibility_timeout_ms": 600_000});
        json!({"type": "t", "args": [], "meta": {"who": format!("k{n}")}, "options": options})
    };
    for some in (0..keys).collect::<Vec<_>>().chunks(50) {
        let jobs: Vec<_> = some.iter().map(job).collect();
        let batch = json!({"jobs": jobs}).to_string();
        let stored = ask(backend.addr, "POST", "/ojs/v1/jobs/batch", &batch);
        assert_eq!(stored.status, 201, "{stored:?}");
    }
    let mut out = Vec::new();
    until("all are out", || {
        out.extend(fetch(first.data, "q", 50, "w").jobs());
        (out.len() == keys).then_some(())
    });
    for job in &out {
        assert_eq!(ack(second.data, job, "w").status, 200);
    }
    for sidecar in [first, second] {
        assert_eq!(sidecar.metric("ojs_throttle_slots"), 0.0);
        assert_eq!(sidecar.metric("ojs_rate_limit_active{key=\"_other\"}"), 0.0);
    }
}

fn file(dir: &tempfile::TempDir) -> String {
    format!("sqlite:{}", dir.path().join("limits.db").display())
}

#[test]
fn limits_change_and_starts_go_on() {
    let dir = tempfile::tempdir().unwrap();
    super::fleet_reload::limits_change_and_starts_go_on(&file(&dir));
}

#[test]
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let dir = tempfile::tempdir().unwrap();
    woken_in_time(&file(&dir));
}

#[test]
fn what_was_used_beyond_the_cost_is_counted() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let sidecars = [(); 2].map(|()| sidecar(&backend, &dir, POLICY));
    what_was_used_is_counted(&backend, &sidecars);
}

#[test]
fn a_job_is_heard_of_at_another_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    super::fleet_subqueues::a_job_is_heard_of(&file(&dir));
}

#[test]
fn numbers_and_salts_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    super::fleet_subqueues::numbers_and_salts_come_and_go(&file(&dir));
    let known = std::fs::read(dir.path().join("limits.db")).unwrap();
    let salt = b"nobody-knows-this-salt";
    assert!(!known.windows(salt.len()).any(|bytes| bytes == salt));
}
