//! Several sidecars on one Redis that is lost: to all of them, to one, or with all that it knew.

use crate::harness::assert_within;
use crate::process::hole::Hole;
use crate::process::ledger::Ledger;
use crate::process::on_redis::fleet::{TWO, know_each_other, patient, sidecar};
use crate::process::prelude::*;
use crate::process::trace::within;
use crate::servers::redises::cli;

#[test]
fn a_slot_freed_through_a_sibling_in_an_outage_is_free() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let holes = [(); 2].map(|()| Hole::before(SocketAddr::from(([127, 0, 0, 1], store.port))));
    let sidecars = holes.each_ref().map(|hole| {
        let one = "[[queue]]\nname = \"q\"\nconcurrency = 1\n[fetch]\nmax_wait = \"100ms\"\n";
        let rest = format!("{one}[store]\nurl = \"redis://{}\"\n", hole.addr);
        Sidecar::run(&config(backend.addr, "", &rest))
    });
    let up = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") > 0.5;
    know_each_other(&sidecars, 1.0);
    for _ in 0..2 {
        enqueue(backend.addr, "q", json!({}));
    }
    let [a, b] = sidecars.each_ref().map(|sidecar| sidecar.data);
    let out = fetch(a, "q", 1, "w").jobs().remove(0);
    holes.iter().for_each(Hole::swallow);
    wait("both have lost it", || !sidecars.iter().any(up));
    assert_eq!(ack(b, &out, "w").status, 200);
    // The one that knows of the end is the first to come back.
    for (hole, sidecar) in holes.iter().zip(&sidecars).rev() {
        hole.heal();
        until("it has it back", || up(sidecar).then_some(()));
    }
    let back = Instant::now();
    until("the next one starts", || fetch(a, "q", 1, "w").jobs().pop());
    // The visibility is 30 s.
    assert_within(back.elapsed(), Duration::from_secs(20), "");
}

#[test]
fn a_redis_that_is_killed_is_no_way_past_a_limit() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let more = "on_store_error = \"share\"\n";
    let sidecars = [(); 2].map(|()| sidecar(&backend, &store, more, TWO));
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    for _ in 0..12 {
        enqueue(backend.addr, "q", json!({}));
    }
    let first = fetch(a, "q", 1, "wa").jobs();
    let second = fetch(b, "q", 1, "wb").jobs();
    assert_eq!((first.len(), second.len()), (1, 1));
    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    wait("both know that it is lost", || sidecars.iter().all(lost));
    // Each had one slot, and has no more; what ends makes place for the next.
    assert_eq!(ack(a, &first[0], "wa").status, 200);
    let third = fetch(a, "q", 2, "wa").jobs();
    assert_eq!(third.len(), 1, "{}", sidecars[0].log());
    assert!(fetch(b, "q", 1, "wb").jobs().is_empty());
    store.restart(&[]);
    wait("both have it back", || !sidecars.iter().any(lost));
    // It came back empty, and knows what is out all the same.
    for to in [a, b] {
        assert!(fetch(to, "q", 1, "w").jobs().is_empty());
    }
    for (to, job, worker) in [(b, &third[0], "wa"), (a, &second[0], "wb")] {
        assert_eq!(ack(to, job, worker).status, 200, "through the other one");
    }
    let ledger = Ledger::default();
    ledger.all_work(&sidecars, 9, || ());
    assert!(ledger.most.load(Ordering::SeqCst) <= 2);
}

/// Of an offer the store has a row, and nobody else knows of it. One that was emptied says nothing of who has the job.
#[test]
fn jobs_that_are_offered_outlive_a_store_that_is_emptied() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let one = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 1\n[hold]\nidle = \"1s\"\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "100ms", &store.url(), "", one));
    know_each_other(&sidecars, 1.0);
    for _ in 0..6 {
        enqueue(backend.addr, "q", json!({"retry": {"max_attempts": 1}}));
    }
    let (a, b) = (&sidecars[0], &sidecars[1]);
    let out = fetch(a.data, "q", 6, "w").jobs();
    assert_eq!(out.len(), 1);
    let held = || a.metric("ojs_throttle_held_jobs");
    wait("the others are held", || {
        assert!(fetch(a.data, "q", 6, "w").jobs().is_empty());
        held() == 5.0
    });
    let rows = || {
        cli(store.port, &["--scan", "--pattern", "*r:0*"])
            .lines()
            .count()
    };
    wait("they are offered", || rows() == 6);
    // Until a sibling has them they wait here.
    a.shows("ojs_rate_limit_waiting{key=\"t\"}", 5.0);
    assert_eq!(cli(store.port, &["FLUSHALL"]), "OK");
    wait("they are offered again", || {
        assert_eq!(held(), 5.0, "{}", a.log());
        rows() == 6
    });
    assert_eq!(ack(a.data, &out[0], "w").status, 200);
    for _ in 0..5 {
        let next = until("the sibling has it", || {
            fetch(b.data, "q", 1, "w").jobs().pop()
        });
        assert_eq!(ack(b.data, &next, "w").status, 200);
    }
    assert_eq!(a.metric("ojs_throttle_hold_lost_total"), 0.0);
}

/// Only the store says which sidecar has the job, and that the backend's refusal does not count.
#[test]
fn an_ack_through_another_sidecar_may_come_again_while_the_store_is_lost() {
    let (backend, mut store) = (Backend::start(Lax::spec()), RedisServer::start());
    let one = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 5\n\
               [settle]\nretry_for = \"500ms\"\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "100ms", &store.url(), "", one));
    know_each_other(&sidecars, 1.0);
    enqueue(backend.addr, "q", json!({}));
    let (a, b) = (&sidecars[0], &sidecars[1]);
    let job = fetch(a.data, "q", 1, "w").jobs().remove(0);
    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    wait("both know that it is lost", || sidecars.iter().all(lost));
    let reply = ack(b.data, &job, "w");
    let error = &reply.json()["error"];
    assert_eq!(
        (reply.status, &error["code"], &error["retryable"]),
        (503, &json!("store_unavailable"), &json!(true))
    );
    assert!(
        reply.head.to_lowercase().contains("retry-after: "),
        "{}",
        reply.head
    );
    store.restart(&[]);
    wait("both have it back", || !sidecars.iter().any(lost));
    assert_eq!(ack(b.data, &job, "w").status, 200);
}

#[test]
fn a_key_that_is_shut_outlives_a_store_that_is_emptied() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let one = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 5\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "100ms", &store.url(), "", one));
    know_each_other(&sidecars, 1.0);
    for _ in 0..2 {
        enqueue(backend.addr, "q", json!({}));
    }
    let (a, b) = (&sidecars[0], &sidecars[1]);
    let job = fetch(a.data, "q", 1, "w").jobs().remove(0);
    let error = json!({"code": "busy", "message": "later", "retry_after": 300});
    let nack = json!({"job_id": job, "worker_id": "w", "error": error}).to_string();
    assert_eq!(
        ask(a.data, "POST", "/ojs/v1/workers/nack", &nack).status,
        200
    );
    let until = || get(b.data, "/ojs/v1/rate-limits/one").json()["shut_until"].clone();
    let told = until();
    assert!(told.is_string(), "{told}");
    assert_eq!(cli(store.port, &["FLUSHALL"]), "OK");
    wait("it has forgotten", || until().is_null());
    wait("it is told again", || until() == told);
    assert!(fetch(b.data, "q", 1, "w").jobs().is_empty());
}

#[test]
fn each_policy_goes_on_without_the_store_as_it_declares() {
    const MODES: [&str; 3] = ["share", "closed", "open"];
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let policies = MODES.map(|mode| {
        format!(
            "[[policy]]\nname = \"{mode}\"\nmatch = {{ queue = \"{mode}\" }}\nconcurrency = 1\n\
             on_store_error = \"{mode}\"\n"
        )
    });
    let sidecars = [(); 2].map(|()| sidecar(&backend, &store, "", &policies.concat()));
    know_each_other(&sidecars, 1.0);
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    for mode in [MODES; 3].concat() {
        enqueue(backend.addr, mode, json!({}));
    }
    // The first sidecar's workers have the only slot of each.
    let first = MODES.map(|mode| fetch(a, mode, 1, "w").jobs().remove(0));
    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    wait("both know that it is lost", || sidecars.iter().all(lost));
    let starts = |to, mode| fetch(to, mode, 3, "w").jobs().len();
    assert_eq!(starts(b, "open"), 2, "as if there were no limit");
    assert_eq!(starts(b, "share"), 0, "it had no slot");
    for job in &first {
        assert_eq!(ack(a, job, "w").status, 200);
    }
    assert_eq!((starts(a, "closed"), starts(b, "closed")), (0, 0));
    assert_eq!(starts(a, "share"), 1, "the slot that it had");
    store.restart(&[]);
    wait("both have it back", || !sidecars.iter().any(lost));
    let closed = until("what was closed starts again", || {
        fetch(b, "closed", 3, "w").jobs().pop()
    });
    assert_eq!(starts(a, "closed"), 0, "one at a time");
    assert_eq!(ack(a, &closed, "w").status, 200);
    assert_eq!(starts(a, "closed"), 1);
}

#[test]
fn a_store_behind_a_black_hole_is_cut_off_and_comes_back_without_a_burst() {
    let store = RedisServer::start();
    let hole = Hole::before(SocketAddr::from(([127, 0, 0, 1], store.port)));
    cut_off_and_back(&hole, &format!("redis://{}", hole.addr), "1s", 150);
}

/// Two sidecars work on this store, which lies behind the hole, until so many jobs are done: it swallows all
/// for a while.
pub fn cut_off_and_back(hole: &Hole, url: &str, timeout: &str, jobs: usize) {
    let backend = Backend::start(Lax::redis());
    let policy = format!("{TWO}rate = {{ limit = 20, period = \"1s\" }}\n");
    let sidecars = [(); 2].map(|()| {
        let rest = format!("{policy}\n[store]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n");
        Sidecar::run(&config(backend.addr, "", &rest))
    });
    know_each_other(&sidecars, 1.0);
    for _ in 0..jobs {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    let begun = Instant::now();
    let (cut, healed) = ledger.all_work(&sidecars, jobs, || {
        wait("a part is done", || ledger.done() >= 40);
        let cut = Instant::now();
        hole.swallow();
        wait("both know that it is lost", || sidecars.iter().all(lost));
        eprintln!("declared lost after {:?}", cut.elapsed());
        // As long as a network may be away; nothing is waited for.
        std::thread::sleep(Duration::from_secs(2));
        hole.heal();
        let open = Instant::now();
        wait("both have it back", || !sidecars.iter().any(lost));
        eprintln!("back {:?} after the hole was closed", open.elapsed());
        (cut, Instant::now())
    });
    let end = Instant::now();
    assert_eq!(
        ledger.most.load(Ordering::SeqCst).max(2),
        2,
        "P1, all the time"
    );
    let runs = ledger.runs.lock().unwrap();
    assert_eq!(runs.len(), jobs, "each once");
    eprintln!("slowest ACK {:?}", ledger.slowest.lock().unwrap());
    let period = Duration::from_secs(1);
    for (when, from, to) in [
        ("before", begun, cut),
        ("during", cut + period, healed),
        ("after", healed + period, end),
    ] {
        let mut inside = runs.clone();
        inside.retain(|run| from <= run.asked && run.got < to);
        for periods in [1, 2, 4] {
            let most = within(&inside, period * periods);
            let allowed = 20 * usize::try_from(periods).unwrap();
            eprintln!("{when}: at most {most} of {allowed} in {periods} s");
            assert!(most <= allowed, "P2 {when}: {most} in {periods} s");
        }
    }
    // An edge is no more than a window that starts empty.
    let most = within(&runs, period);
    assert!(most <= 40, "{most} in a second");
    for sidecar in &sidecars {
        for line in ["the store is lost", "the store is back"] {
            let lines = sidecar.lines();
            let said = lines.iter().filter(|text| text.contains(line)).count();
            assert_eq!(said, 1, "{line}: {}", sidecar.log());
        }
    }
}

/// Of two sidecars on a store the one that reaches it through the hole holds a job, and is cut off. Its sibling takes it
/// for dead, and does not get the job.
#[test]
fn a_held_job_goes_out_once_where_its_holder_is_cut_off() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let hole = Hole::before(SocketAddr::from(([127, 0, 0, 1], store.port)));
    let (through, url) = (format!("redis://{}", hole.addr), store.url());
    let policy = TWO.replace("concurrency = 2", "rate = { limit = 1, period = \"4s\" }");
    let [holder, sibling] =
        [through, url].map(|url| patient(backend.addr, "1s", &url, "", &policy));
    let sidecars = [holder, sibling];
    know_each_other(&sidecars, 1.0);
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    enqueue(backend.addr, "q", json!({}));
    let first = fetch(a, "q", 1, "wa").jobs().remove(0);
    assert_eq!(ack(a, &first, "wa").status, 200);
    let held = enqueue(backend.addr, "q", json!({}));
    assert!(fetch(a, "q", 1, "wa").jobs().is_empty());
    assert_eq!(sidecars[0].metric("ojs_throttle_held_jobs"), 1.0);
    hole.swallow();
    let got = until("its holder hands it out", || {
        let taken = fetch(b, "q", 1, "wb").jobs();
        assert!(taken.is_empty(), "it is its holder's alone: {taken:?}");
        fetch(a, "q", 1, "wa").jobs().pop()
    });
    assert_eq!(got, held);
    assert!(sidecars[0].metric("ojs_throttle_store_up") < 0.5);
    hole.heal();
    wait("the holder has the store again", || {
        sidecars[0].metric("ojs_throttle_store_up") > 0.5
    });
    for (to, worker) in [(a, "wa"), (b, "wb")] {
        assert!(fetch(to, "q", 1, worker).jobs().is_empty());
    }
    assert_eq!(ack(a, &held, "wa").status, 200);
    assert_eq!(backend.count(EventKind::Claimed, &held), 1);
    assert_eq!(backend.count(EventKind::Acked, &held), 1);
}

/// A store that is lost is seen to be, and what was set over HTTP outlasts one that comes back empty.
#[test]
fn a_lost_store_is_seen_and_what_was_set_is_put_back() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let sidecars = [(); 2].map(|()| sidecar(&backend, &store, "", TWO));
    know_each_other(&sidecars, 1.0);
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    for _ in 0..3 {
        enqueue(a, "q", json!({}));
    }
    let job = fetch(a, "q", 1, "w").jobs().remove(0);
    let shown = |to| ask(to, "GET", "/ojs/v1/rate-limits/t", "").json();
    let status = |to| {
        let health = ask(to, "GET", "/ojs/v1/health", "").json();
        health["throttle"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(shown(a)["available"], 1, "{}", shown(a));
    assert_eq!(status(a), "ok");
    let paused = r#"{"concurrency":0,"reason":"INC-42"}"#;
    let path = "/ojs/v1/rate-limits/stripe";
    assert_eq!(ask(a, "PUT", path, paused).status, 200);
    wait("both know of it", || ask(b, "GET", path, "").status == 200);

    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    wait("both know that it is lost", || sidecars.iter().all(lost));
    assert_eq!(status(a), "store_lost");
    // Of two slots this one has the one that it had.
    let key = shown(a);
    assert_eq!(
        (&key["store"], &key["available"]),
        (&json!("lost"), &json!(0)),
        "{key}"
    );
    assert!(fetch(a, "q", 1, "w").jobs().is_empty());
    let refused = ask(a, "PUT", path, paused);
    assert_eq!(refused.status, 503);
    assert!(
        refused.body.contains("nothing can be changed"),
        "{refused:?}"
    );
    let log = sidecars[0].log();
    assert!(
        log.contains("goes on with its part") && log.contains("slots=1"),
        "{log}"
    );

    store.restart(&[]);
    wait("both have it back", || !sidecars.iter().any(lost));
    for sidecar in &sidecars {
        let key = ask(sidecar.data, "GET", path, "").json();
        assert_eq!(key["concurrency"]["limit"], 0, "{key}");
        assert_eq!(key["override"]["reason"], "INC-42", "{key}");
        assert_eq!(sidecar.metric("ojs_throttle_store_wiped_total"), 1.0);
        let log = sidecar.log();
        assert!(
            log.contains("came back empty") && log.contains("set_over_http=1"),
            "{log}"
        );
    }
    let third = sidecar(&backend, &store, "", TWO);
    assert_eq!(
        ask(third.data, "GET", path, "").json()["override"]["reason"],
        "INC-42"
    );
    assert_eq!(status(a), "ok");
    assert!(shown(a).get("store").is_none());
    assert_eq!(ack(a, &job, "w").status, 200);
    wait("deletes are heeded again", || {
        ask(b, "DELETE", path, "").status < 300
    });
}

/// Whoever rolls out a wrong URL is stopped at the first sidecar.
#[test]
fn a_sidecar_whose_store_was_never_there_is_not_ready() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    store.kill();
    let rest = format!("{TWO}[store]\nurl = \"{}\"\n", store.url());
    let (dir, command) = run_with(config(backend.addr, "", &rest));
    let sidecar = Sidecar::begin(command, dir);
    sidecar.state("the store has not answered yet");
    until("it says so", || {
        let log = sidecar.log();
        log.contains("has not answered since the start")
            .then_some(())
    });
    let said = || sidecar.lines().iter().any(|line| line.ends_with(" ready"));
    assert!(!said(), "{}", sidecar.log());
    store.restart(&[]);
    sidecar.state("ready");
    until("it says that it is ready", || said().then_some(()));
    // One that was there does not make it unready.
    store.kill();
    sidecar.shows("ojs_throttle_store_up", 0.0);
    sidecar.state("ready");
}

/// A single sidecar that never had a sibling: what its tenants had at the loss is not all that they may have, and what
/// started before counts.
pub fn alone_it_goes_on_with_the_whole(url: &str, lose: impl FnOnce()) {
    let backend = Backend::start(Lax::redis());
    let policy = "[[policy]]\nname = \"slots\"\nmatch = { queue = \"s\" }\nkey = \"s:{meta.tenant}\"\nconcurrency = 2\n\
        [[policy]]\nname = \"rates\"\nmatch = { queue = \"r\" }\nkey = \"r:{meta.tenant}\"\n\
        rate = { limit = 3, period = \"1h\" }\n";
    let sidecar = patient(backend.addr, "0s", url, "", policy);
    let enqueue = |queue: &str, tenant: usize| {
        let job = json!({"type": "t", "args": [], "meta": {"tenant": tenant.to_string()}, "options": {"queue": queue}});
        let reply = ask(backend.addr, "POST", "/ojs/v1/jobs", &job.to_string());
        assert_eq!(reply.status, 201, "{reply:?}");
    };
    for tenant in [0, 1] {
        enqueue("s", tenant);
        enqueue("r", tenant);
    }
    let all = |queue: &str| {
        let mut got = Vec::new();
        // A FETCH may be answered by what its claim brought so far.
        for _ in 0..20 {
            got.extend(fetch(sidecar.data, queue, 50, "w").jobs());
        }
        got
    };
    assert_eq!((all("s").len(), all("r").len()), (2, 2));
    sidecar.shows("ojs_throttle_siblings", 0.0);
    std::thread::sleep(Duration::from_secs(2));
    lose();
    wait("it knows that it is lost", || {
        fetch(sidecar.data, "x", 1, "w");
        sidecar.metric("ojs_throttle_store_up") < 0.5
    });
    for tenant in 0..10 {
        for _ in 0..5 {
            enqueue("s", tenant);
            enqueue("r", tenant);
        }
    }
    assert_eq!(all("s").len(), 10 * 2 - 2, "{}", sidecar.log());
    assert_eq!(all("r").len(), 10 * 3 - 2, "two had started before");
    has(sidecar.log(), "this one goes on with all of each limit");
    for queue in ["s", "r"] {
        let said = get(sidecar.admin, &format!("/throttle/v1/why?queue={queue}")).body;
        assert!(!said.contains("its part"), "{said}");
    }
}

#[test]
fn a_single_sidecar_goes_on_with_the_whole() {
    let mut store = RedisServer::start();
    alone_it_goes_on_with_the_whole(&store.url(), || store.kill());
}

/// The claim of a held job lapses while its sidecar stands still, and a sibling claims the job. This backend accepts a
/// heartbeat from anybody, so both could keep it; without the store nobody would say which of them may start it.
#[test]
fn a_job_whose_claim_lapsed_is_held_by_one_sidecar() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    // A key that jobs make: the queue itself is never shut, and what waits is held.
    let one = "[[policy]]\nname = \"one\"\nkey = \"one:{type}\"\nconcurrency = 1\n\
        [hold]\nidle = \"1h\"\n";
    let open = "on_store_error = \"open\"\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "100ms", &store.url(), open, one));
    know_each_other(&sidecars, 1.0);
    let [a, b] = sidecars.each_ref().map(|sidecar| sidecar.data);
    let holds = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_held_jobs") > 0.5;
    let fetch_for = |at: SocketAddr, ms: u64| {
        let body = json!({"queues": ["q"], "worker_id": "w", "visibility_timeout_ms": ms});
        ask(at, "POST", "/ojs/v1/workers/fetch", &body.to_string()).jobs()
    };
    enqueue(backend.addr, "q", json!({}));
    assert_eq!(fetch_for(a, 600_000).len(), 1);
    let job = enqueue(backend.addr, "q", json!({}));
    wait("the first one holds it", || {
        fetch_for(a, 3_000);
        holds(&sidecars[0])
    });
    sidecars[0].signal("STOP");
    wait("its claim lapses, and the other one holds it", || {
        fetch_for(b, 3_000);
        holds(&sidecars[1])
    });
    sidecars[0].signal("CONT");
    let kept = || backend.count(EventKind::Extended, &job);
    let before = kept();
    wait("the claim is kept", || kept() >= before + 3);
    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    wait("both know that the store is lost", || {
        sidecars.iter().all(lost)
    });
    // Who holds it starts it now.
    let mut went: Vec<String> = Vec::new();
    wait("it starts", || {
        went.extend([a, b].into_iter().flat_map(|at| fetch_for(at, 3_000)));
        !went.is_empty()
    });
    assert_eq!(went, [job]);
}
