//! How long an empty FETCH waits: half a second, and longer for a worker that polls.

use super::prelude::*;

const ONE: &str = "[fetch]\nmax_wait = \"2s\"\n[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

/// How long a FETCH without a job takes, in milliseconds.
async fn waits(client: &Client, body: &Value) -> u64 {
    let began = Instant::now();
    assert!(client.fetch_as(body.clone()).await.is_empty(), "{body}");
    u64::try_from(began.elapsed().as_millis()).unwrap()
}

fn worker(name: &str) -> Value {
    json!({"queues": ["q"], "count": 1, "worker_id": name, "visibility_timeout_ms": 600_000})
}

/// A sidecar whose only slot is taken while jobs wait.
async fn busy() -> (Rig, Vec<Value>) {
    let rig = Rig::with(ONE).await;
    rig.client.enqueue_all(9, &plain("q")).await;
    let out = rig.client.fetch_as(worker("first")).await;
    assert_eq!(out.len(), 1);
    (rig, out)
}

const SHORT: std::ops::RangeInclusive<u64> = 450..=600;
const LONG: std::ops::RangeInclusive<u64> = 1_950..=2_100;

#[tokio::test(start_paused = true)]
async fn who_comes_back_after_a_pause_waits_longer() {
    let (rig, out) = busy().await;
    let client = &rig.client;
    let named = [worker("a"), worker("b")];
    let nameless = json!({"queues": ["q"], "visibility_timeout_ms": 600_000});
    for body in [&named[0], &named[1], &nameless] {
        assert!(SHORT.contains(&waits(client, body).await), "{body}");
        // Who asks again at once does not sleep, and loses nothing by coming back.
        assert!(SHORT.contains(&waits(client, body).await), "{body}");
        sleep(Duration::from_secs(1)).await;
        assert!(LONG.contains(&waits(client, body).await), "{body}");
        let again = waits(client, body).await;
        assert!(LONG.contains(&again), "it polls: {body}");
    }
    // What a job brings does not make a poller a stranger.
    sleep(Duration::from_secs(1)).await;
    let done = json!({"job_id": id(&out[0]), "worker_id": "first"});
    let acked = client.post("/ojs/v1/workers/ack", done.to_string()).await;
    assert_eq!(acked.status, 200);
    assert_eq!(client.fetch_as(nameless.clone()).await.len(), 1);
    assert!(LONG.contains(&waits(client, &nameless).await));
    // Credentials are a part of the name.
    let began = Instant::now();
    let other = client.with("authorization", "Bearer other");
    assert!(other.fetch_as(nameless.clone()).await.is_empty());
    assert!(began.elapsed() < Duration::from_millis(600));
    // Long ago.
    sleep(Duration::from_secs(60)).await;
    assert!(SHORT.contains(&waits(client, &nameless).await));
}

/// What is set shorter is so for all.
#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_is_set() {
    let rig = Rig::with(&ONE.replace("2s", "200ms")).await;
    rig.client.enqueue_all(2, &plain("q")).await;
    assert_eq!(rig.client.fetch("q", 1).await.len(), 1);
    for _ in 0..3 {
        let waited = waits(&rig.client, &worker("a")).await;
        assert!((150..300).contains(&waited), "{waited}");
        sleep(Duration::from_secs(1)).await;
    }
}
