//! Sidecars on a cluster and behind a sentinel whose master is killed with what it had not passed on.

use crate::process::doctor::{doctor, finding};
use crate::process::prelude::*;
use crate::servers::redises::{RedisCluster, SILENCE, WATCHED, WatchedRedis};

/// Two jobs are out, and the new master knows of one; the sidecar that gave out the other tells it.
fn survives(url: &str, cut: impl FnOnce(), fail_over: impl FnOnce()) {
    let backend = Backend::start(Lax::redis());
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 2\n\
        [fetch]\nmax_wait = \"100ms\"\n";
    let rest = format!("{policy}[store]\nurl = \"{url}\"\non_store_error = \"closed\"\n");
    let (report, status) = doctor(&config(backend.addr, "", &rest), &[]);
    assert_eq!(status, Some(0), "{report}");
    for (what, says) in [
        ("version", ["Redis ", "Valkey "]),
        ("eviction", ["maxmemory-policy noeviction", "-"]),
        ("clock", ["the same", "this host"]),
    ] {
        let one = finding(&report, "store", what);
        let said = one["says"].as_str().unwrap();
        assert!(says.iter().any(|word| said.contains(word)), "{one}");
    }
    let [a, b] = [(); 2].map(|()| Sidecar::run(&config(backend.addr, "", &rest)));
    for _ in 0..6 {
        enqueue(backend.addr, "q", json!({}));
    }
    // On a loaded machine a failover may outlast the usual 30 s.
    let take = || {
        let body = json!({"queues": ["q"], "count": 1, "worker_id": "wa", "visibility_timeout_ms": 600_000});
        let taken = ask(a.data, "POST", "/ojs/v1/workers/fetch", &body.to_string());
        taken.jobs()
    };
    let first = take();
    cut();
    let second = take();
    assert_eq!((first.len(), second.len()), (1, 1));
    assert!(fetch(b.data, "q", 1, "wb").jobs().is_empty());
    let lost = Instant::now();
    fail_over();
    // A row that nobody has in the store is no slot: how long until the one in question is there again?
    let row = |sidecar: &Sidecar| {
        let seen = crate::process::http::get(sidecar.data, "/ojs/v1/rate-limits/p").json();
        seen["active"].as_u64()
    };
    wait("both jobs are known to the new master", || {
        row(&b) == Some(2)
    });
    eprintln!("announced {:?} after the kill", lost.elapsed());
    assert!(fetch(b.data, "q", 1, "wb").jobs().is_empty());
    // And all goes on, through either.
    assert_eq!(ack(b.data, &second[0], "wa").status, 200);
    let third = until("a slot is free", || {
        fetch(b.data, "q", 1, "wb").jobs().pop()
    });
    assert!(fetch(a.data, "q", 1, "wa").jobs().is_empty());
    for (job, worker) in [(&third, "wb"), (&first[0], "wa")] {
        assert_eq!(ack(a.data, job, worker).status, 200);
    }
}

#[test]
fn a_cluster_that_fails_over() {
    let cluster = std::cell::RefCell::new(RedisCluster::start(SILENCE));
    let url = cluster.borrow().url();
    survives(
        &url,
        || {
            let (ours, others) = cluster.borrow().keys();
            assert!(
                ours > 0 && others == 0,
                "all keys on one node: {ours}, {others}"
            );
            cluster.borrow().cut();
        },
        || cluster.borrow_mut().fail_over(),
    );
}

#[test]
fn a_sentinel_that_fails_over() {
    let watched = std::cell::RefCell::new(WatchedRedis::start(WATCHED, ""));
    let url = watched.borrow().url();
    survives(
        &url,
        || watched.borrow().cut(),
        || watched.borrow_mut().fail_over(),
    );
}
