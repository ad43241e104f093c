//! A Redis that loses one key: by eviction, or by hand. Slots neither leak for good nor are there twice.

use redis::Commands;

use crate::process::prelude::*;

const VISIBILITY: u64 = 6_000;

/// A sidecar with two slots, under a namespace and with a queue of its own; two jobs are out and three wait.
struct Lost {
    sidecar: Sidecar,
    queue: String,
    out: Vec<String>,
    /// What was deleted.
    key: String,
}

impl Lost {
    /// The one key that is lost is the `nth` that the sidecar has there; `None`: it has not so many.
    fn key(backend: &Backend, store: &RedisServer, queue: &str, nth: usize) -> Option<Lost> {
        let policy = format!(
            "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"{queue}\" }}\nconcurrency = 2\n"
        );
        let rest = format!(
            "{policy}[fetch]\nmax_wait = \"0s\"\n[store]\nurl = \"{}\"\nnamespace = \"{queue}\"\n",
            store.url()
        );
        let sidecar = Sidecar::run(&config(backend.addr, "", &rest));
        for _ in 0..5 {
            enqueue(backend.addr, queue, json!({}));
        }
        let out = until("two are out", || {
            let out = fetch_briefly(sidecar.data, queue, 2);
            (out.len() == 2).then_some(out)
        });
        let mut client = redis::Client::open(store.url()).unwrap();
        let mut keys: Vec<String> = client.keys(format!("{{{queue}}}:*")).unwrap();
        keys.sort();
        let key = keys.get(nth)?.clone();
        let gone: u32 = client.del(&key).unwrap();
        assert_eq!(gone, 1, "{key}");
        let queue = queue.to_owned();
        Some(Lost {
            sidecar,
            queue,
            out,
            key,
        })
    }

    /// The two are acknowledged, and others start: two at once, and not three.
    fn goes_on(&self) {
        for job in &self.out {
            assert_eq!(ack(self.sidecar.data, job, "w").status, 200, "{}", self.key);
        }
        // Its sidecar knows what it had. Where all began anew, starts go on after 2 s.
        let patience = Duration::from_secs(9);
        let (began, mut next) = (Instant::now(), Vec::new());
        wait(&self.key, || {
            beat(self.sidecar.data, &next);
            next.extend(fetch_briefly(self.sidecar.data, &self.queue, 3));
            next.len() >= 2
        });
        let took = began.elapsed();
        eprintln!("{}: both slots are free after {took:?}", self.key);
        assert!(took < patience, "{}: {took:?}", self.key);
        next.extend(fetch_briefly(self.sidecar.data, &self.queue, 3));
        assert_eq!(next.len(), 2, "{}", self.key);
    }
}

fn fetch_briefly(to: SocketAddr, queue: &str, count: usize) -> Vec<String> {
    let body = json!({"queues": [queue], "count": count, "worker_id": "w", "visibility_timeout_ms": VISIBILITY});
    ask(to, "POST", "/ojs/v1/workers/fetch", &body.to_string()).jobs()
}

fn beat(to: SocketAddr, jobs: &[String]) {
    let body = json!({"worker_id": "w", "active_jobs": jobs, "visibility_timeout_ms": VISIBILITY});
    assert_eq!(
        ask(to, "POST", "/ojs/v1/workers/heartbeat", &body.to_string()).status,
        200
    );
}

/// Each key that there is, in turn.
fn each_key(scenario: impl Fn(&Backend, &RedisServer, &str, usize) -> bool + Sync) {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let keys = std::thread::scope(|scope| {
        let scenario = &scenario;
        let (backend, store) = (&backend, &store);
        let all = (0..10)
            .map(|nth| scope.spawn(move || scenario(backend, store, &format!("q{nth}"), nth)));
        let all: Vec<_> = all.collect();
        all.into_iter()
            .map(|one| one.join().unwrap())
            .filter(|was| *was)
            .count()
    });
    assert!(keys >= 6, "{keys} keys");
}

#[test]
fn jobs_that_end_free_their_slots_whatever_was_lost() {
    each_key(|backend, store, queue, nth| {
        let lost = Lost::key(backend, store, queue, nth);
        lost.map(|lost| lost.goes_on()).is_some()
    });
}

#[test]
fn jobs_that_run_on_keep_their_slots_whatever_was_lost() {
    each_key(|backend, store, queue, nth| {
        let Some(lost) = Lost::key(backend, store, queue, nth) else {
            return false;
        };
        let end = Instant::now() + Duration::from_secs(13);
        while Instant::now() < end {
            beat(lost.sidecar.data, &lost.out);
            let more = fetch_briefly(lost.sidecar.data, queue, 1);
            assert!(more.is_empty(), "{}: three at once", lost.key);
            std::thread::sleep(Duration::from_millis(200));
        }
        lost.goes_on();
        true
    });
}

#[test]
fn a_redis_that_evicts_is_warned_of() {
    let backend = Backend::start(Lax::redis());
    for (policy, warns) in [("volatile-lru", true), ("noeviction", false)] {
        let store = RedisServer::with(&["--maxmemory-policy", policy]);
        let rest = format!("[store]\nurl = \"{}\"\n", store.url());
        let sidecar = Sidecar::run(&config(backend.addr, "", &rest));
        let log = sidecar.log();
        assert_eq!(log.contains("id=store_evicts"), warns, "{policy}: {log}");
    }
}
