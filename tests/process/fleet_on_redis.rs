//! Several sidecars, one Redis, one budget; judged from what the workers did.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ojs_throttle::backend::{EventKind, Lax};
use serde_json::json;

use crate::hole::Hole;
use crate::http::{ack, ask, enqueue, fetch, heartbeat};
use crate::ledger::Ledger;
use crate::redis_server::RedisServer;
use crate::rig::{Backend, Sidecar, config, file, program, until};
use crate::trace::within;

const TWO: &str =
    "[[policy]]\nname = \"two\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 2\n";

fn sidecar(backend: &Backend, store: &RedisServer, more: &str, policy: &str) -> Sidecar {
    sidecar_at(backend.addr, store, more, policy)
}

fn sidecar_at(upstream: SocketAddr, store: &RedisServer, more: &str, policy: &str) -> Sidecar {
    sidecar_on(upstream, &store.url(), more, policy)
}

fn sidecar_on(upstream: SocketAddr, url: &str, more: &str, policy: &str) -> Sidecar {
    patient(upstream, "5s", url, more, policy)
}

/// One whose FETCHes wait for so long.
fn patient(upstream: SocketAddr, wait: &str, url: &str, more: &str, policy: &str) -> Sidecar {
    let rest =
        format!("{policy}\n[fetch]\nmax_wait = \"{wait}\"\n[store]\nurl = \"{url}\"\n{more}");
    Sidecar::run(&config(upstream, "upstream_timeout = \"5s\"", &rest))
}

fn know_each_other(sidecars: &[Sidecar], others: f64) {
    let known = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > others - 0.5;
    until("they know each other", || {
        sidecars.iter().all(known).then_some(())
    });
}

#[test]
fn three_sidecars_have_one_budget() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let sidecars = [(); 3].map(|()| sidecar(&backend, &store, "", TWO));
    for _ in 0..60 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    std::thread::scope(|threads| {
        for (nth, sidecar) in sidecars.iter().enumerate() {
            for worker in 0..2 {
                let (ledger, to) = (&ledger, sidecar.data);
                threads.spawn(move || ledger.work(to, &format!("w{nth}-{worker}"), 60));
            }
        }
    });
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
    eprintln!("20 jobs of a limited queue: {limited} scripts");
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
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let store = RedisServer::start();
    woken_in_time(&store.url());
}

/// Of two sidecars on this store.
pub fn woken_in_time(url: &str) {
    let backend = Backend::start(Lax::redis());
    let one = TWO.replace("concurrency = 2", "concurrency = 1");
    let [a, b] = [(); 2].map(|()| sidecar_on(backend.addr, url, "", &one));
    const SOON: Duration = Duration::from_millis(20);
    // The best of some tries, of more where the machine is busy.
    let mut quickest = Duration::MAX;
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
    until("both know that it is lost", || {
        sidecars.iter().all(lost).then_some(())
    });
    // Each had one slot, and has no more; what ends makes place for the next.
    assert_eq!(ack(a, &first[0], "wa").status, 200);
    let third = fetch(a, "q", 2, "wa").jobs();
    assert_eq!(third.len(), 1, "{}", sidecars[0].log());
    assert!(fetch(b, "q", 1, "wb").jobs().is_empty());
    store.restart(&[]);
    until("both have it back", || {
        (!sidecars.iter().any(lost)).then_some(())
    });
    // It came back empty, and knows what is out all the same.
    for to in [a, b] {
        assert!(fetch(to, "q", 1, "w").jobs().is_empty());
    }
    for (to, job) in [(b, &third[0]), (a, &second[0])] {
        assert_eq!(ack(to, job, "w").status, 200, "through the other one");
    }
    let ledger = Ledger::default();
    std::thread::scope(|threads| {
        for to in [a, b] {
            let ledger = &ledger;
            threads.spawn(move || ledger.work(to, &format!("w{to}"), 9));
        }
    });
    assert!(ledger.most.load(Ordering::SeqCst) <= 2);
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
    until("both know that it is lost", || {
        sidecars.iter().all(lost).then_some(())
    });
    let starts = |to, mode| fetch(to, mode, 3, "w").jobs().len();
    assert_eq!(starts(b, "open"), 2, "as if there were no limit");
    assert_eq!(starts(b, "share"), 0, "it had no slot");
    for job in &first {
        assert_eq!(ack(a, job, "w").status, 200);
    }
    assert_eq!((starts(a, "closed"), starts(b, "closed")), (0, 0));
    assert_eq!(starts(a, "share"), 1, "the slot that it had");
    store.restart(&[]);
    until("both have it back", || {
        (!sidecars.iter().any(lost)).then_some(())
    });
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
    let (begun, cut, healed) = std::thread::scope(|threads| {
        let begun = Instant::now();
        for sidecar in &sidecars {
            for worker in 0..2 {
                let (ledger, to) = (&ledger, sidecar.data);
                threads.spawn(move || ledger.work(to, &format!("w{to}-{worker}"), jobs));
            }
        }
        until("a part is done", || (ledger.done() >= 40).then_some(()));
        let cut = Instant::now();
        hole.swallow();
        until("both know that it is lost", || {
            sidecars.iter().all(lost).then_some(())
        });
        eprintln!("declared lost after {:?}", cut.elapsed());
        // As long as a network may be away; nothing is waited for.
        std::thread::sleep(Duration::from_secs(2));
        hole.heal();
        let open = Instant::now();
        until("both have it back", || {
            (!sidecars.iter().any(lost)).then_some(())
        });
        eprintln!("back {:?} after the hole was closed", open.elapsed());
        (begun, cut, Instant::now())
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

#[test]
fn a_held_job_goes_out_once_where_its_holder_is_cut_off() {
    let store = RedisServer::start();
    let hole = Hole::before(SocketAddr::from(([127, 0, 0, 1], store.port)));
    holder_cut_off(&hole, &format!("redis://{}", hole.addr), &store.url());
}

/// Of two sidecars on a store the one that reaches it through the hole holds a job, and is cut off: it has a
/// start to give, and its sibling takes it for dead.
pub fn holder_cut_off(hole: &Hole, through: &str, url: &str) {
    let backend = Backend::start(Lax::redis());
    let policy = TWO.replace("concurrency = 2", "rate = { limit = 1, period = \"4s\" }");
    let [holder, sibling] = [through, url].map(|url| patient(backend.addr, "1s", url, "", &policy));
    let sidecars = [holder, sibling];
    know_each_other(&sidecars, 1.0);
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    enqueue(backend.addr, "q", json!({}));
    let first = fetch(a, "q", 1, "wa").jobs().remove(0);
    assert_eq!(ack(a, &first, "wa").status, 200);
    let held = enqueue(backend.addr, "q", json!({}));
    // Short, so that its sibling looks soon; long enough that it does before the backend.
    let body =
        json!({"queues": ["q"], "count": 1, "worker_id": "wa", "visibility_timeout_ms": 18000});
    let reply = ask(a, "POST", "/ojs/v1/workers/fetch", &body.to_string());
    assert!(reply.jobs().is_empty());
    assert_eq!(sidecars[0].metric("ojs_throttle_held_jobs"), 1.0);
    hole.swallow();
    let got = until("its sibling takes it over", || {
        assert!(
            fetch(a, "q", 1, "wa").jobs().is_empty(),
            "a sibling may have it"
        );
        fetch(b, "q", 1, "wb").jobs().pop()
    });
    assert_eq!(got, held);
    assert!(sidecars[0].metric("ojs_throttle_store_up") < 0.5);
    assert!(sidecars[1].metric("ojs_throttle_hold_adopted_total") > 0.5);
    assert!(fetch(a, "q", 1, "wa").jobs().is_empty());
    hole.heal();
    until("the holder has let go", || {
        let [up, held] = ["store_up", "held_jobs"].map(|name| format!("ojs_throttle_{name}"));
        let has_it = fetch(a, "q", 1, "wa").jobs();
        assert!(has_it.is_empty(), "{has_it:?}");
        (sidecars[0].metric(&up) > 0.5 && sidecars[0].metric(&held) < 0.5).then_some(())
    });
    assert_eq!(ack(b, &held, "wb").status, 200);
    assert_eq!(backend.count(EventKind::Claimed, &held), 1);
    assert_eq!(backend.count(EventKind::Acked, &held), 1);
}

/// A job that one sidecar holds, and the other that is to hand it out.
fn held_by_the_first(more: &str) -> (Backend, RedisServer, [Sidecar; 2], String, String) {
    let store = RedisServer::start();
    let (backend, sidecars, out, held) = held_on(&store.url(), more);
    (backend, store, sidecars, out, held)
}

/// The same on this store.
pub fn held_on(url: &str, more: &str) -> (Backend, [Sidecar; 2], String, String) {
    let backend = Backend::start(Lax::redis());
    let one = TWO.replace("concurrency = 2", "concurrency = 1");
    let more = format!("{more}\n[hold]\nidle = \"1s\"\n");
    let sidecars = [(); 2].map(|()| patient(backend.addr, "1s", url, &more, &one));
    let (out, held) = hold_one(&backend, &sidecars);
    (backend, sidecars, out, held)
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
            crate::http::Conn::open(a).try_ask("POST", "/ojs/v1/workers/fetch", &body.to_string())
        });
        until("the first one holds it", || {
            (sidecars[0].metric("ojs_throttle_held_jobs") > 0.5).then_some(())
        });
        let reply = fetch.join().unwrap().unwrap();
        assert!(reply.jobs().is_empty());
    });
    (out, held)
}

#[test]
fn a_held_job_is_available_whoever_is_asked() {
    let (_backend, _store, sidecars, out, held) = held_by_the_first("");
    for sidecar in &sidecars {
        let seen = |job: &str| {
            let reply = crate::http::get(sidecar.data, &format!("/ojs/v1/jobs/{job}")).json();
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
    let sidecars = [backend.addr, hole.addr].map(|to| sidecar_at(to, &store, more, &policy));
    (backend, store, hole, sidecars)
}

/// Whether the row of a held job says that it must not go out.
fn hidden(store: &RedisServer, job: &str) -> bool {
    told(store, &format!("HGET {{ojs-throttle}}:r:{job} hidden")).starts_with("$1\r\n1\r\n")
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
fn a_held_job_is_cancelled_through_a_sibling_at_once() {
    let (backend, store, hole, sidecars) = second_cut_off();
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let (out, held) = hold_one(&backend, &sidecars);
    hole.swallow();
    std::thread::scope(|threads| {
        let path = format!("/ojs/v1/jobs/{held}");
        let cancel = threads.spawn(move || ask(b, "DELETE", &path, ""));
        // The cancel has hidden it and is on its way to the backend; its slot ends meanwhile.
        until("it is hidden", || hidden(&store, &held).then_some(()));
        assert_eq!(ack(a, &out, "wb").status, 200);
        assert!(fetch(a, "q", 1, "wa").jobs().is_empty(), "it is hidden");
        hole.heal();
        assert_eq!(cancel.join().unwrap().status, 200);
    });
    until("the holder has let go", || {
        (sidecars[0].metric("ojs_throttle_held_jobs") < 0.5).then_some(())
    });
    assert_eq!(backend.count(EventKind::Cancelled, &held), 1);
    assert!(fetch(a, "q", 1, "wa").jobs().is_empty());
}

#[test]
fn a_cancel_through_a_sibling_that_fails_lets_the_job_go_out_again() {
    let (backend, store, hole, mut sidecars) = second_cut_off();
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let (out, held) = hold_one(&backend, &sidecars);
    hole.swallow();
    let path = format!("/ojs/v1/jobs/{held}");
    let cancel =
        std::thread::spawn(move || crate::http::Conn::open(b).try_ask("DELETE", &path, ""));
    until("the cancel has hidden it", || {
        hidden(&store, &held).then_some(())
    });
    assert_eq!(ack(a, &out, "wb").status, 200);
    assert!(fetch(a, "q", 1, "wa").jobs().is_empty(), "it is hidden");
    sidecars[1].kill();
    drop(cancel.join());
    let got = until("it goes out again", || fetch(a, "q", 1, "wa").jobs().pop());
    assert_eq!(got, held);
}

#[test]
fn a_pause_through_one_sidecar_keeps_what_another_holds() {
    let store = RedisServer::start();
    paused_by_a_sibling(&store.url());
}

/// What one sidecar on this store holds, while it is paused through another.
pub fn paused_by_a_sibling(url: &str) {
    let (backend, sidecars, out, held) = held_on(url, "");
    let (a, b) = (sidecars[0].data, sidecars[1].data);
    let paused = ask(b, "POST", "/ojs/v1/queues/q/pause", "");
    assert_eq!(paused.status, 200, "{paused:?}");
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

/// The second sidecar's worker gets the job that the first one held, which drains: it leaves it to the
/// other, although the backend takes jobs back for nothing.
pub fn taken_over_from_one_that_drains(url: &str) {
    let (backend, mut sidecars, out, held) = held_on(url, "");
    sidecars[0].signal("TERM");
    taken_over(&sidecars[1], &out, &held);
    assert!(sidecars[0].ended().success());
    assert_eq!(backend.total(EventKind::Requeued), 0);
    assert_eq!(backend.count(EventKind::Claimed, &held), 1);
}

/// The second sidecar's worker gets the job that the first one held.
pub fn taken_over(second: &Sidecar, out: &str, held: &str) {
    assert_eq!(ack(second.data, out, "wb").status, 200);
    let got = until("it is taken over", || {
        fetch(second.data, "q", 1, "wb").jobs().pop()
    });
    assert_eq!(got, held);
    assert!(second.metric("ojs_throttle_hold_adopted_total") > 0.5);
    assert_eq!(ack(second.data, &got, "wb").status, 200);
}

#[test]
fn a_held_job_of_an_idle_sidecar_goes_to_a_sibling() {
    let (_backend, _store, sidecars, out, held) = held_by_the_first("");
    taken_over(&sidecars[1], &out, &held);
    until("the first one has let go", || {
        (sidecars[0].metric("ojs_throttle_held_jobs") < 0.5).then_some(())
    });
}

#[test]
fn a_held_job_of_a_draining_sidecar_goes_to_a_sibling() {
    let store = RedisServer::start();
    taken_over_from_one_that_drains(&store.url());
}

#[test]
fn a_held_job_of_a_killed_sidecar_goes_to_a_sibling() {
    let (_backend, _store, mut sidecars, out, held) = held_by_the_first("");
    sidecars[0].kill();
    taken_over(&sidecars[1], &out, &held);
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
    until("both know of it", || {
        (ask(b, "GET", path, "").status == 200).then_some(())
    });

    store.kill();
    let lost = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") < 0.5;
    until("both know that it is lost", || {
        sidecars.iter().all(lost).then_some(())
    });
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
    until("both have it back", || {
        (!sidecars.iter().any(lost)).then_some(())
    });
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
    until("deletes are heeded again", || {
        (ask(b, "DELETE", path, "").status < 300).then_some(())
    });
}

/// Whoever rolls out a wrong URL is stopped at the first sidecar.
#[test]
fn a_sidecar_whose_store_was_never_there_is_not_ready() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    store.kill();
    let rest = format!("{TWO}[store]\nurl = \"{}\"\n", store.url());
    let (dir, path) = file(config(backend.addr, "", &rest));
    let mut command = program();
    command.arg("run").arg("--config").arg(path);
    let sidecar = Sidecar::begin(command, dir);
    sidecar.state("the store has not answered yet");
    until("it says so", || {
        let log = sidecar.log();
        log.contains("has not answered since the start")
            .then_some(())
    });
    store.restart(&[]);
    sidecar.state("ready");
    // One that was there does not make it unready.
    store.kill();
    until("it is lost", || {
        (sidecar.metric("ojs_throttle_store_up") < 0.5).then_some(())
    });
    sidecar.state("ready");
}
