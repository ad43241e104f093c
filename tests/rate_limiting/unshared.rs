//! Sidecars with stores of their own before one backend: each gives out the whole limit, and says so.

use ojs_throttle::store::Store;
use ojs_throttle::store::guard::{Guard, OnStoreError};

use super::around::{Stage, memory};
use super::prelude::*;

const ONE: &str = "[[policy]]\nname = \"a\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

impl Stage {
    async fn of_one(&self, seed: u64, store: impl Into<Store>) -> Sidecar {
        self.sidecar(seed, store, ONE).await
    }

    fn unshared(&self) -> usize {
        self.warned("unshared_sidecars")
    }
}

/// So many seconds in which workers hold on to these jobs.
async fn seconds(seconds: u64, running: &[(&Client, &str)]) {
    for _ in 0..seconds / 10 {
        for (client, job) in running {
            let beat =
                json!({"worker_id": "w", "active_jobs": [job], "visibility_timeout_ms": 30_000});
            let beat = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
            let reply = beat.await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        sleep(Duration::from_secs(10)).await;
    }
}

async fn gauge(sidecar: &Sidecar) -> Option<f64> {
    let admin = sidecar.admin();
    admin.metric("ojs_throttle_unshared_sidecars").await
}

#[tokio::test(start_paused = true)]
async fn two_with_memory_stores_warn_of_each_other() {
    let (fleet, _logged) = Stage::of(Lax::spec()).await;
    let a = fleet.of_one(1, memory()).await;
    let b = fleet.of_one(2, memory()).await;
    let (at_a, at_b) = (a.client(), b.client());
    sleep(Duration::from_secs(1)).await;
    at_a.enqueue_all(2, &plain("q")).await;
    let of_a = at_a.fetch("q", 1).await;
    let of_a = (&at_a, id(&of_a[0]));
    seconds(40, &[of_a]).await;
    let of_b = at_b.fetch("q", 1).await;
    let running = [of_a, (&at_b, id(&of_b[0]))];
    seconds(10, &running).await;
    assert_eq!((gauge(&b).await, fleet.unshared()), (Some(0.0), 0));
    seconds(60, &running).await;
    // What b has may still end with it, as in an update.
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(0.0), Some(1.0)));
    assert_eq!(fleet.unshared(), 1);
    let named = fleet.lines.with("ojs-throttle-0000000000000001");
    assert_eq!(named.len(), 1, "b names a");
    seconds(570, &running).await;
    assert_eq!(fleet.unshared(), 2, "each once in 10 minutes");
    seconds(80, &running).await;
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(1.0), Some(1.0)));
    assert_eq!(fleet.unshared(), 4);
    // Once only one of them has jobs, it is over.
    at_b.ack(id(&of_b[0])).await;
    seconds(600, &running[..1]).await;
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(0.0), Some(1.0)));
}

/// So many seconds in which a worker of each client runs one job after the other, for a second each.
async fn short_jobs(seconds: u64, clients: &[&Client]) {
    for _ in 0..seconds {
        let mut out = Vec::new();
        for client in clients {
            client.enqueue_all(1, &plain("q")).await;
            let got = client.fetch("q", 1).await;
            out.extend(got.iter().map(|job| (*client, id(job).to_owned())));
        }
        sleep(Duration::from_secs(1)).await;
        for (client, job) in out {
            client.ack(&job).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn short_jobs_show_two_with_memory_stores_to_each_other() {
    let (fleet, _logged) = Stage::of(Lax::spec()).await;
    let a = fleet.of_one(1, memory()).await;
    let b = fleet.of_one(2, memory()).await;
    let (at_a, at_b) = (a.client(), b.client());
    at_a.enqueue_all(20, &plain("q")).await;
    short_jobs(60, &[&at_a, &at_b]).await;
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(0.0), Some(0.0)));
    short_jobs(90, &[&at_a, &at_b]).await;
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(1.0), Some(1.0)));
    assert_eq!(fleet.unshared(), 2);
    for (sidecar, other) in [(&a, 2), (&b, 1)] {
        let state = sidecar.admin().state().await;
        let mut causes = state["causes"].as_array().unwrap().iter();
        assert!(causes.any(|cause| cause["name"] == "unshared"), "{state}");
        let named = fleet.lines.with(&format!("ojs-throttle-{other:016x}"));
        assert_eq!(named.len(), 1, "{named:?}");
    }
    // Alone again.
    b.task.abort();
    short_jobs(100, &[&at_a]).await;
    assert_eq!((gauge(&a).await, fleet.unshared()), (Some(0.0), 2));
}

/// A sidecar that is replaced again and again, by one that comes a little before it goes, and a worker that goes
/// around all of them.
#[tokio::test(start_paused = true)]
async fn one_that_is_updated_all_the_time_warns_of_nothing() {
    let (fleet, _logged) = Stage::of(Lax::spec()).await;
    let mut current = fleet.of_one(1, memory()).await;
    let around = Client::new(&fleet.net, fleet.behind.addr);
    around.enqueue_all(50, &plain("q")).await;
    for seed in 2..6 {
        short_jobs(100, &[&current.client(), &around]).await;
        let next = fleet.of_one(seed, memory()).await;
        short_jobs(40, &[&current.client(), &next.client(), &around]).await;
        current.task.abort();
        current = next;
    }
    short_jobs(100, &[&current.client(), &around]).await;
    assert_eq!((gauge(&current).await, fleet.unshared()), (Some(0.0), 0));
}

/// It finds what its predecessor left: a job that runs on, and jobs that were held and are nobody's. Under another
/// name, too.
#[tokio::test(start_paused = true)]
async fn one_that_was_killed_and_restarted_warns_of_nothing() {
    for seed in [1, 2] {
        let (fleet, _logged) = Stage::of(Lax::spec()).await;
        let killed = fleet.of_one(1, memory()).await;
        let client = killed.client();
        client.enqueue_all(3, &plain("q")).await;
        let out = client.fetch("q", 3).await;
        assert_eq!(out.len(), 1);
        sleep(Duration::from_secs(1)).await;
        killed.task.abort();
        let again = fleet.of_one(seed, memory()).await;
        let client = again.client();
        assert!(client.fetch("q", 1).await.is_empty(), "its slot is known");
        seconds(700, &[(&client, id(&out[0]))]).await;
        let told = (gauge(&again).await, fleet.unshared());
        assert_eq!(told, (Some(0.0), 0), "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_share_a_store_warn_of_nothing() {
    let (fleet, _logged) = Stage::of(Lax::spec()).await;
    let shared = memory();
    let store = || Store::shared(Arc::new(Guard::new(shared.clone(), OnStoreError::Share)));
    let a = fleet.of_one(1, store()).await;
    let b = fleet.of_one(2, store()).await;
    let (at_a, at_b) = (a.client(), b.client());
    sleep(Duration::from_secs(1)).await;
    at_a.enqueue_all(2, &plain("q")).await;
    let of_a = at_a.fetch("q", 1).await;
    assert!(at_b.fetch("q", 1).await.is_empty());
    seconds(700, &[(&at_a, id(&of_a[0]))]).await;
    assert_eq!((gauge(&a).await, gauge(&b).await), (Some(0.0), Some(0.0)));
    assert_eq!(fleet.unshared(), 0);
}
