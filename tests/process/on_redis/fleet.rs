//! Several sidecars, one Redis, one budget; judged from what the workers did.

use crate::harness::assert_within;
use crate::process::hole::Hole;
use crate::process::ledger::Ledger;
use crate::process::prelude::*;
use crate::servers::port;

pub const TWO: &str =
    "[[policy]]\nname = \"two\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 2\n";

pub fn sidecar(backend: &Backend, store: &RedisServer, more: &str, policy: &str) -> Sidecar {
    patient(backend.addr, "5s", &store.url(), more, policy)
}

/// One whose FETCHes wait for so long.
pub fn patient(upstream: SocketAddr, wait: &str, url: &str, more: &str, policy: &str) -> Sidecar {
    let rest =
        format!("{policy}\n[fetch]\nmax_wait = \"{wait}\"\n[store]\nurl = \"{url}\"\n{more}");
    Sidecar::run(&config(upstream, "upstream_timeout = \"5s\"", &rest))
}

pub fn know_each_other(sidecars: &[Sidecar], others: f64) {
    let known = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > others - 0.5;
    wait("they know each other", || sidecars.iter().all(known));
}

#[test]
fn three_sidecars_have_one_budget() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let sidecars = [(); 3].map(|()| sidecar(&backend, &store, "", TWO));
    for _ in 0..60 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    ledger.all_work(&sidecars, 60, || ());
    assert_eq!(ledger.most.load(Ordering::SeqCst), 2);
    know_each_other(&sidecars, 2.0);
}

/// How many scripts the store has run.
fn calls(store: &RedisServer) -> u64 {
    let told = told(store, "INFO commandstats");
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Enqueues, fetches, extends and acknowledges jobs of a queue, and says how many scripts that took.
fn calls_for(jobs: usize, queue: &str, to: SocketAddr, store: &RedisServer) -> u64 {
    let before = calls(store);
    for _ in 0..jobs {
        enqueue(to, queue, json!({}));
        let job = fetch(to, queue, 1, "w").jobs().remove(0);
        assert_eq!(heartbeat(to, &[&job], "w").status, 200);
        assert_eq!(ack(to, &job, "w").status, 200);
    }
    calls(store) - before
}

#[test]
fn what_is_not_limited_costs_no_store_call() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let one = sidecar(&backend, &store, "", TWO);
    // The sidecar's own beat may fall among them; at first it does not know yet that it is alone.
    let calls = until("it knows that it is alone", || {
        let calls = calls_for(20, "free", one.data, &store);
        (calls < 10).then_some(calls)
    });
    eprintln!("20 jobs of an unlimited queue: {calls} scripts");
    let limited = calls_for(20, "q", one.data, &store);
    assert!(
        limited > 20,
        "20 jobs of a limited queue: {limited} scripts"
    );
    // Those of another sidecar may be settled here.
    let other = sidecar(&backend, &store, "", TWO);
    enqueue(other.data, "q", json!({}));
    enqueue(other.data, "q", json!({}));
    let jobs = fetch(other.data, "q", 2, "w").jobs();
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        assert_eq!(ack(one.data, job, "w").status, 200);
    }
    enqueue(other.data, "q", json!({}));
    assert_eq!(
        fetch(other.data, "q", 1, "w").jobs().len(),
        1,
        "their slots are free"
    );
}

#[test]
fn limits_change_and_starts_go_on() {
    let store = RedisServer::start();
    crate::process::fleet_reload::limits_change_and_starts_go_on(&store.url());
}

#[test]
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let store = RedisServer::start();
    woken_in_time(&store.url());
}

/// Of two sidecars on this store.
pub fn woken_in_time(url: &str) {
    let backend = Backend::start(Lax::redis());
    let one = TWO.replace("concurrency = 2", "concurrency = 1");
    // A store that stands for a moment is not lost for it.
    let waits = "timeout = \"5s\"\n";
    let [a, b] = [(); 2].map(|()| patient(backend.addr, "5s", url, waits, &one));
    const SOON: Duration = Duration::from_millis(20);
    // The best of some tries, of more where the machine is busy.
    let mut quickest = Duration::MAX;
    polls(b.data, "q", "wb");
    for nth in 0..25 {
        if nth >= 5 && quickest < SOON {
            break;
        }
        enqueue(backend.addr, "q", json!({}));
        enqueue(backend.addr, "q", json!({}));
        let first = fetch(a.data, "q", 1, "wa").jobs();
        assert_eq!(first.len(), 1);
        let (to, ended) = (b.data, Mutex::new(None));
        std::thread::scope(|threads| {
            let waiting = threads.spawn(move || (fetch(to, "q", 1, "wb").jobs(), Instant::now()));
            // Until it stands in line, and a while longer.
            std::thread::sleep(Duration::from_millis(400));
            assert!(!waiting.is_finished(), "the only slot is taken");
            *ended.lock().unwrap() = Some(Instant::now());
            assert_eq!(ack(a.data, &first[0], "wa").status, 200);
            let (second, at) = waiting.join().unwrap();
            assert_eq!(second.len(), 1);
            quickest = quickest.min(at - ended.lock().unwrap().unwrap());
            assert_eq!(ack(to, &second[0], "wb").status, 200);
        });
    }
    eprintln!("woken after {quickest:?}");
    assert!(quickest < SOON, "{quickest:?}");
}

/// A job that one sidecar holds, and the other that is to hand it out.
fn held_by_the_first() -> (Backend, RedisServer, [Sidecar; 2], String, String) {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let one = TWO.replace("concurrency = 2", "concurrency = 1");
    let more = "[hold]\nidle = \"1s\"\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "1s", &store.url(), more, &one));
    let (out, held) = hold_one(&backend, &sidecars);
    (backend, store, sidecars, out, held)
}

/// The second sidecar's worker has the only slot of the first job; the first sidecar holds the second.
fn hold_one(backend: &Backend, sidecars: &[Sidecar; 2]) -> (String, String) {
    know_each_other(sidecars, 1.0);
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    enqueue(backend.addr, "q", json!({}));
    let out = fetch(b, "q", 1, "wb").jobs().remove(0);
    let held = enqueue(backend.addr, "q", json!({}));
    // Short, so that somebody looks soon; long enough that a sibling does before the backend.
    let body =
        json!({"queues": ["q"], "count": 1, "worker_id": "wa", "visibility_timeout_ms": 18000});
    std::thread::scope(|threads| {
        let fetch = threads.spawn(|| {
            crate::process::http::Conn::open(a).try_ask(
                "POST",
                "/ojs/v1/workers/fetch",
                &body.to_string(),
            )
        });
        wait("the first one holds it", || {
            sidecars[0].metric("ojs_throttle_held_jobs") > 0.5
        });
        let reply = fetch.join().unwrap().unwrap();
        assert!(reply.jobs().is_empty());
    });
    (out, held)
}

#[test]
fn a_held_job_is_available_whoever_is_asked() {
    let (_backend, _store, sidecars, out, held) = held_by_the_first();
    for sidecar in &sidecars {
        let seen = |job: &str| {
            let reply =
                crate::process::http::get(sidecar.data, &format!("/ojs/v1/jobs/{job}")).json();
            let job = reply.get("job").unwrap_or(&reply);
            (job["state"].clone(), job["attempt"].clone())
        };
        assert_eq!(seen(&held), (json!("available"), json!(0)));
        assert_eq!(seen(&out).0, "active");
    }
}

/// Two sidecars, of which the second one's way to the backend can be cut.
fn second_cut_off() -> (Backend, RedisServer, Hole, [Sidecar; 2]) {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let hole = Hole::before(backend.addr);
    let policy = TWO.replace("concurrency = 2", "concurrency = 1");
    let more = "[settle]\nretry_for = \"1s\"\n";
    let url = store.url();
    let sidecars = [backend.addr, hole.addr].map(|to| patient(to, "5s", &url, more, &policy));
    (backend, store, hole, sidecars)
}

/// What the store answers to a command, as it stands on the wire.
pub fn told(store: &RedisServer, command: &str) -> String {
    let mut to = TcpStream::connect(("127.0.0.1", store.port)).unwrap();
    to.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())
        .unwrap();
    let mut told = String::new();
    to.read_to_string(&mut told).unwrap();
    told
}

#[test]
fn a_held_job_is_cancelled_through_a_sibling() {
    let (backend, _store, _hole, sidecars) = second_cut_off();
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let (out, held) = hold_one(&backend, &sidecars);
    let path = format!("/ojs/v1/jobs/{held}");
    assert_eq!(ask(b, "DELETE", &path, "").status, 200);
    sidecars[0].shows("ojs_throttle_held_jobs", 0.0);
    assert_eq!(ack(a, &out, "wb").status, 200);
    assert_eq!(backend.count(EventKind::Cancelled, &held), 1);
    assert!(fetch(a, "q", 1, "wa").jobs().is_empty());
}

#[test]
fn a_cancel_through_a_sibling_that_fails_keeps_the_job_from_nobody() {
    let (backend, _store, hole, mut sidecars) = second_cut_off();
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let (out, held) = hold_one(&backend, &sidecars);
    hole.swallow();
    let path = format!("/ojs/v1/jobs/{held}");
    let cancel = std::thread::spawn(move || {
        crate::process::http::Conn::open(b).try_ask("DELETE", &path, "")
    });
    let asked = "ojs_throttle_upstream_request_duration_seconds_count{op=\"get_job\",code=\"200\"}";
    wait("the holder asks about it", || {
        sidecars[0].metric(asked) > 0.5
    });
    sidecars[1].kill();
    drop(cancel.join());
    assert_eq!(ack(a, &out, "wb").status, 200);
    let got = until("it goes out", || fetch(a, "q", 1, "wa").jobs().pop());
    assert_eq!(got, held);
}

#[test]
fn a_pause_through_one_sidecar_keeps_what_another_holds() {
    let (backend, _store, sidecars, out, held) = held_by_the_first();
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let paused = ask(b, "POST", "/ojs/v1/queues/q/pause", "");
    assert_eq!(paused.status, 200, "{paused:?}");
    // Nothing shows that its sibling has heard of it.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ack(b, &out, "wb").status, 200);
    for to in [a, b] {
        assert!(fetch(to, "q", 1, "w").jobs().is_empty(), "it is paused");
    }
    assert_eq!(ask(a, "POST", "/ojs/v1/queues/q/resume", "").status, 200);
    let got = until("it goes on", || {
        [a, b]
            .iter()
            .find_map(|to| fetch(*to, "q", 1, "w").jobs().pop())
    });
    assert_eq!(got, held);
    assert_eq!(backend.count(EventKind::Claimed, &held), 1);
}

/// The sidecar that drains leaves it to the other, although the backend takes jobs back for nothing.
#[test]
fn a_held_job_of_a_draining_sidecar_goes_to_a_sibling() {
    let (backend, _store, mut sidecars, out, held) = held_by_the_first();
    sidecars[0].signal("TERM");
    taken_over(&sidecars[1], &out, &held);
    assert!(sidecars[0].ended().success());
    assert_eq!(backend.total(EventKind::Requeued), 0);
    assert_eq!(backend.count(EventKind::Claimed, &held), 1);
}

/// The second sidecar's worker gets the job that the first one held.
fn taken_over(second: &Sidecar, out: &str, held: &str) {
    assert_eq!(ack(second.data, out, "wb").status, 200);
    let got = until("it is taken over", || {
        fetch(second.data, "q", 1, "wb").jobs().pop()
    });
    assert_eq!(got, held);
    assert!(second.metric("ojs_throttle_hold_adopted_total") > 0.5);
    assert_eq!(ack(second.data, &got, "wb").status, 200);
}

/// The backend has it back as it has those of a dead worker.
#[test]
fn a_held_job_of_a_killed_sidecar_comes_back_after_its_visibility() {
    let (backend, _store, mut sidecars, out, held) = held_by_the_first();
    sidecars[0].kill();
    assert_eq!(ack(sidecars[1].data, &out, "wb").status, 200);
    let got = until("its claim is over", || {
        fetch(sidecars[1].data, "q", 1, "wb").jobs().pop()
    });
    assert_eq!(got, held);
    assert_eq!(ack(sidecars[1].data, &got, "wb").status, 200);
    assert_eq!(backend.count(EventKind::Acked, &held), 1);
}

#[test]
fn a_held_job_of_an_idle_sidecar_goes_to_a_sibling() {
    let (_backend, _store, sidecars, out, held) = held_by_the_first();
    taken_over(&sidecars[1], &out, &held);
    sidecars[0].shows("ojs_throttle_held_jobs", 0.0);
}

/// Each of three sidecars that hold 1,000 jobs together is replaced, and the slots of its jobs are free again.
#[test]
fn a_rolling_restart_leaves_no_slot_behind() {
    const KEYS: usize = 5;
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let policy = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"{meta.k}\"\nconcurrency = 1\n";
    let start = || patient(backend.addr, "100ms", &store.url(), "", policy);
    let mut sidecars = [(); 3].map(|()| start());
    know_each_other(&sidecars, 2.0);
    let job = |n| json!({"type": "t", "args": [], "meta": {"k": format!("k{}", n % KEYS)}, "options": {"queue": "q"}});
    for some in (0..1_300).collect::<Vec<_>>().chunks(100) {
        let jobs: Vec<_> = some.iter().map(|n| job(*n)).collect();
        let batch = json!({"jobs": jobs}).to_string();
        let stored = ask(backend.addr, "POST", "/ojs/v1/jobs/batch", &batch);
        assert_eq!(stored.status, 201, "{stored:?}");
    }
    let held = |sidecars: &[Sidecar]| -> f64 {
        let each = sidecars
            .iter()
            .map(|one| one.metric("ojs_throttle_held_jobs"));
        each.sum()
    };
    // The restarts may take longer than the usual 30 s.
    let take = |sidecar: &Sidecar, worker: usize| {
        let body = json!({"queues": ["q"], "count": 50, "worker_id": format!("w{worker}"),
            "visibility_timeout_ms": 600_000});
        ask(
            sidecar.data,
            "POST",
            "/ojs/v1/workers/fetch",
            &body.to_string(),
        )
        .jobs()
    };
    let mut out = Vec::new();
    until("1,000 are held", || {
        for (nth, sidecar) in sidecars.iter().enumerate() {
            let jobs = take(sidecar, nth);
            out.extend(jobs.into_iter().map(|job| (nth, job)));
        }
        (held(&sidecars) >= 1_000.0).then_some(())
    });
    assert_eq!(out.len(), KEYS, "one of each key");
    for nth in 0..sidecars.len() {
        sidecars[nth].signal("TERM");
        // Its workers end what they run.
        for (_, job) in out.extract_if(.., |(of, _)| *of == nth) {
            assert_eq!(
                ack(sidecars[nth].data, &job, &format!("w{nth}")).status,
                200
            );
        }
        assert!(sidecars[nth].ended().success(), "{}", sidecars[nth].log());
        sidecars[nth] = start();
        for (of, sidecar) in sidecars.iter().enumerate() {
            let jobs = take(sidecar, of);
            out.extend(jobs.into_iter().map(|job| (of, job)));
        }
    }
    for (of, job) in &out {
        assert_eq!(ack(sidecars[*of].data, job, &format!("w{of}")).status, 200);
    }
    let over = Instant::now();
    let active = |key: usize| {
        let path = format!("/ojs/v1/rate-limits/k{key}");
        ask(sidecars[0].data, "GET", &path, "").json()["concurrency"]["active"].clone()
    };
    wait("all slots are free", || {
        (0..KEYS).all(|key| active(key) == json!(0))
    });
    eprintln!("free after {:?}", over.elapsed());
    assert_within(over.elapsed(), Duration::from_secs(10), "");
}

/// Only its holder knows the key of a held job. A sibling says that it is held, and asks nobody to look for workers that go
/// around.
#[test]
fn a_sidecar_that_holds_nothing_says_that_others_do() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let one = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 1\n";
    let sidecars = [(); 2].map(|()| patient(backend.addr, "100ms", &store.url(), "", one));
    know_each_other(&sidecars, 1.0);
    let (a, b) = (&sidecars[0], &sidecars[1]);
    let jobs = [(); 3].map(|()| enqueue(a.data, "q", json!({})));
    assert_eq!(fetch(a.data, "q", 3, "w").jobs(), jobs[..1]);
    let why = |question: &str| get(b.admin, &format!("/throttle/v1/why?{question}")).json();
    wait("the sibling has heard of it", || {
        why("queue=q")["cause"] == "held elsewhere"
    });
    let told = why(&format!("job={}", jobs[1]));
    let members = ["cause", "limited_by"].map(|member| told[member].clone());
    assert_eq!(members, ["at the backend", "concurrency"], "{told}");
    assert_eq!(told["job"]["state"], "available", "{told}");
}

/// Each limits by its own file. While these differ both say so, and where a way out has another name or port they do not.
#[test]
fn sidecars_whose_files_differ_say_so_until_they_do_not() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let file = |slots: u32, port: SocketAddr| {
        let policy = format!(
            "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"q\" }}\nconcurrency = {slots}\n"
        );
        let out = "upstream = \"http://127.0.0.1:9\"\nrate = { limit = 5, period = \"1s\" }";
        let rest = format!(
            "{policy}[[egress]]\nname = \"out\"\nlisten = \"{port}\"\n{out}\n[store]\nurl = \"{}\"\n",
            store.url()
        );
        config(backend.addr, "", &rest)
    };
    let ports = [port::own(), port::own()];
    let [a, b] = [2, 5].map(|slots| {
        let (dir, command) = run_with(file(slots, ports[usize::from(slots == 5)]));
        let path = dir.path().join("throttle.toml");
        (Sidecar::spawn(command, dir), path)
    });
    let differ = |of: &Sidecar| of.metric("ojs_throttle_other_files") > 0.5;
    wait("both say so", || differ(&a.0) && differ(&b.0));
    let told = get(a.0.admin, "/throttle/v1/why?queue=q").json();
    let notes = told["notes"].to_string();
    assert!(
        notes.contains("other limits in their files") && notes.contains("(of jobs)"),
        "{told}"
    );
    std::fs::write(&b.1, file(2, ports[1])).unwrap();
    wait("they are the same", || !differ(&a.0) && !differ(&b.0));
}
