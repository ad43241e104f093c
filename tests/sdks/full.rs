//! A full queue behind the sidecar: each client's own retries against our 429.

use bytes::Bytes;
use http::Request;
use ojs_throttle::backend::{Backend, EventKind, Lax};
use ojs_throttle::net::sim::Network;

use super::prelude::*;
use crate::sidecar::simulated::Pair;

/// A queue in which one job may wait and does, and a client of this SDK.
async fn full(sdk: &'static Sdk) -> (Pair, Client, String) {
    let net = Net::Sim(Network::default());
    let bound = "[[queue]]\nname = \"q\"\nmax_depth = 1\n";
    let pair = Pair::start(net.clone(), Lax::redis(), bound).await;
    let to = Arc::new(Mutex::new(pair.sidecar.addr));
    let client = Client::new(sdk, (net, to), 7);
    let first = client.enqueue(&NewJob::new("t", "q", 1)).await.unwrap();
    (pair, client, first)
}

async fn cancelled(backend: &Backend, job: &str) {
    let request = Request::delete(format!("/ojs/v1/jobs/{job}"));
    let reply = backend.handle(request.body(Bytes::new()).unwrap()).await;
    assert!(reply.status().is_success());
}

fn stored(backend: &Backend) -> usize {
    let ledger = backend.ledger();
    ledger
        .iter()
        .filter(|e| e.kind == EventKind::Stored)
        .count()
}

/// Those that retry come back when they were told (5 to 7 s, while nobody knows how fast the queue empties),
/// give up after four tries, and never store a job twice.
#[tokio::test(start_paused = true)]
async fn nobody_hammers_a_full_queue() {
    for sdk in [&JAVASCRIPT, &PYTHON, &GO, &RUST] {
        let (pair, client, _) = full(sdk).await;
        let begun = Instant::now();
        let answer = client.enqueue(&NewJob::new("t", "q", 2)).await;
        assert_eq!(answer, Err(Failed::Status(429)), "{}", sdk.name);
        let waited = begun.elapsed().as_secs_f64();
        let expected = if sdk.name == "go" {
            0.0..0.1
        } else {
            15.0..22.0
        };
        assert!(expected.contains(&waited), "{}: {waited} s", sdk.name);
        assert_eq!(stored(&pair.behind.backend), 1);
        pair.stop().await;
    }
}

/// With room before they give up they succeed, and the job is stored once.
#[tokio::test(start_paused = true)]
async fn room_is_used_when_they_come_back() {
    for sdk in [&JAVASCRIPT, &PYTHON, &RUST] {
        let (pair, client, first) = full(sdk).await;
        let backend = pair.behind.backend.clone();
        let room = tokio::spawn(async move {
            sleep(Duration::from_secs(8)).await;
            cancelled(&backend, &first).await;
        });
        let begun = Instant::now();
        let job = client.enqueue(&NewJob::new("t", "q", 2)).await;
        assert!(job.is_ok(), "{}: {job:?}", sdk.name);
        assert!(begun.elapsed() < Duration::from_secs(15), "{}", sdk.name);
        room.await.unwrap();
        assert_eq!(stored(&pair.behind.backend), 2);
        pair.stop().await;
    }
}
