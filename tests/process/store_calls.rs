//! What sidecars ask of a Redis that they share, counted by the server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::http::enqueue;
use crate::ledger::Ledger;
use crate::rig::{Backend, Sidecar, config, until};
use crate::server::Server;
use crate::trace::within;

/// Every command from now on, but not those that scripts run.
fn overhear(store: &Server) -> Arc<AtomicUsize> {
    let mut stream = TcpStream::connect(("127.0.0.1", store.port)).unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let by_script = line.contains(" lua] ");
            counted.fetch_add(usize::from(!by_script), Ordering::Relaxed);
        }
    });
    count
}

fn fleet<const N: usize>(backend: &Backend, store: &Server, policy: &str) -> [Sidecar; N] {
    let rest = format!("{policy}\n[store]\nurl = \"{}\"\n", store.url());
    let sidecars = [(); N].map(|()| Sidecar::run(&config(backend.addr, "", &rest)));
    let others = N as f64 - 1.5;
    let known = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > others;
    until("they know each other", || {
        sidecars.iter().all(known).then_some(())
    });
    sidecars
}

#[test]
fn an_idle_sidecar_makes_less_than_one_call_a_second() {
    let (backend, store) = (Backend::start(Lax::redis()), Server::start());
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 2\n";
    let sidecars = fleet::<2>(&backend, &store, policy);
    let count = overhear(&store);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    let (calls, seconds) = (count.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    let each = calls as f64 / seconds / sidecars.len() as f64;
    eprintln!("{calls} calls of two sidecars in {seconds:.1} s: {each:.2} a second each");
    assert!(calls > 0, "they say that they live");
    assert!(each < 1.0, "{each}");
}

#[test]
fn a_hot_key_is_reserved_ahead() {
    const JOBS: usize = 300;
    let (backend, store) = (Backend::start(Lax::redis()), Server::start());
    let policy = "[[policy]]\nname = \"hot\"\nmatch = { queue = \"q\" }\nsync = \"reserved\"\n\
        throttle = { limit = 100, period = \"1s\" }\n";
    let sidecars = fleet::<3>(&backend, &store, policy);
    for _ in 0..JOBS {
        enqueue(backend.addr, "q", json!({}));
    }
    let (ledger, count) = (Ledger::default(), overhear(&store));
    let began = Instant::now();
    std::thread::scope(|threads| {
        for (sidecar, workers) in sidecars.iter().zip([10, 2, 1]) {
            for worker in 0..workers {
                let (ledger, to) = (&ledger, sidecar.data);
                threads.spawn(move || ledger.work(to, &format!("{to}-{worker}"), JOBS));
            }
        }
    });
    let took = began.elapsed();
    let calls = count.load(Ordering::Relaxed);
    eprintln!("{JOBS} starts in {took:?}, {calls} calls");
    let runs = ledger.runs.lock().unwrap();
    assert_eq!(runs.len(), JOBS, "each once");
    for seconds in [1, 2] {
        let most = within(&runs, Duration::from_secs(seconds));
        let allowed = 100 * usize::try_from(seconds).unwrap() + 1;
        assert!(most <= allowed, "{most} of {allowed} in {seconds} s");
    }
    // A fleet that has the time makes a quarter of that; one that is late loses start times and asks more
    // often, and there are calls that each second costs. Asked for each by itself, a start costs five.
    let slower = took.as_secs_f64() / 3.0;
    let allowed = JOBS as f64 * 1.5 * slower.max(1.0);
    assert!(calls as f64 <= allowed, "{calls} calls for {JOBS} starts");
}
