//! What happens when a limit is reached, and limits that move: 6.2 (`on_limit`), 9.1, and the example
//! of 14.4.

use std::time::Duration;

use ojs_throttle::backend::{EventKind, Lax};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::simulated;
use crate::sidecar::client::{Client, id, ids};

async fn state(client: &Client, job: &str) -> Value {
    let reply = client.get(&format!("/ojs/v1/jobs/{job}")).await;
    reply.json()["job"].clone()
}

/// 14.4, as it stands, but for a limit that a test reaches: "Drop excess notification jobs rather than
/// queuing them"; 6.2: the job is moved to `discarded`.
#[tokio::test(start_paused = true)]
async fn excess_notifications_are_dropped() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let mut jobs = Vec::new();
    for _ in 0..6 {
        let job = json!({
            "type": "notification.push",
            "args": [{"user_id": "u_789", "message": "New follower!"}],
            "rate_limit": {
                "key": "push-notifications",
                "rate": {"limit": 2, "period": "PT1M"},
                "on_limit": "drop"
            }
        });
        jobs.push(client.enqueue(job).await);
    }
    let started = client.fetch("default", 10).await;
    assert_eq!(ids(&started), [&jobs[0], &jobs[1]]);
    for job in &jobs[..2] {
        client.ack(job).await;
    }
    sleep(Duration::from_millis(100)).await;
    for job in &jobs[2..] {
        let shown = state(&client, job).await;
        assert_eq!(shown["state"], "discarded", "{shown}");
        assert_eq!(shown["errors"][0]["code"], "rate_limit_dropped", "{shown}");
    }
    let inspect = client.get("/ojs/v1/rate-limits/push-notifications").await;
    let counted = inspect.json();
    assert_eq!(counted["rate"]["current_count"], 2, "{counted}");
    assert_eq!(counted["waiting_count"], 0, "{counted}");
    sleep(Duration::from_secs(61)).await;
    assert!(
        client.fetch("default", 10).await.is_empty(),
        "what was dropped never runs"
    );
    let discarded = pair.behind.backend.ledger();
    let discarded = discarded
        .iter()
        .filter(|event| event.kind == EventKind::Discarded);
    assert_eq!(discarded.count(), 4);
    pair.stop().await;
}

/// 6.2: "moved to `scheduled` state with a `scheduled_at` time set to when the limit is expected to
/// allow execution", and non-lossy.
#[tokio::test(start_paused = true)]
async fn rescheduled_jobs_are_scheduled_until_they_may_start() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let job = |n: usize| {
        json!({"type": "t", "args": [n], "options": {"queue": "q",
               "rate_limit": {"key": "k", "rate": {"limit": 1, "period": "PT8S"}, "on_limit": "reschedule"}}})
    };
    let (first, second) = (client.enqueue(job(1)).await, client.enqueue(job(2)).await);
    assert_eq!(ids(&client.fetch("q", 2).await), [&first]);
    let shown = state(&client, &second).await;
    assert_eq!(shown["state"], "scheduled", "{shown}");
    assert!(shown["scheduled_at"].is_string(), "{shown}");
    assert!(shown.get("started_at").is_none(), "{shown}");
    client.ack(&first).await;
    let began = Instant::now();
    let got = loop {
        match client.fetch("q", 2).await.as_slice() {
            [] => sleep(Duration::from_millis(500)).await,
            [job] => break job.clone(),
            more => panic!("{} at once", more.len()),
        }
    };
    assert_eq!(id(&got), second);
    let after = began.elapsed();
    assert!(
        after > Duration::from_secs(7) && after < Duration::from_secs(9),
        "{after:?}"
    );
    assert_eq!(state(&client, &second).await["state"], "active");
    pair.stop().await;
}

/// 9.1: the error of the example; no job of the key is dispatched "until the specified time".
#[tokio::test(start_paused = true)]
async fn a_rate_limit_error_shuts_the_key() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let job = |key: &str| {
        json!({"type": "t", "args": [], "options": {"queue": "q", "retry": {"max_attempts": 1},
               "rate_limit": {"key": key, "concurrency": 5}}})
    };
    let first = client.enqueue(job("stripe")).await;
    let second = client.enqueue(job("stripe")).await;
    let other = client.enqueue(job("other")).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&first]);
    let usage = client.get("/ojs/v1/rate-limits/stripe").await.json();
    assert!(usage.get("shut_until").is_none(), "{usage}");
    // The sidecar's clock, as its answers show it.
    let spaced = json!({"type": "t", "args": [], "options": {"queue": "clock",
        "rate_limit": {"key": "clock", "throttle": {"limit": 1, "period": "PT1S"}}}});
    client.enqueue(spaced).await;
    let clock = client.get("/ojs/v1/rate-limits/clock").await.json();
    let now: jiff::Timestamp = clock["throttle"]["next_allowed_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let until = now + jiff::SignedDuration::from_secs(20);
    let error = json!({"type": "RateLimitExceeded", "message": "Stripe API rate limit exceeded",
                       "rate_limit_until": until.to_string()});
    let body = json!({"job_id": first, "worker_id": "w", "error": error}).to_string();
    let began = Instant::now();
    assert_eq!(client.post("/ojs/v1/workers/nack", body).await.status, 200);
    let usage = client.get("/ojs/v1/rate-limits/stripe").await.json();
    let shut: jiff::Timestamp = usage["shut_until"].as_str().unwrap().parse().unwrap();
    assert_eq!(shut.as_second(), until.as_second(), "{usage}");
    assert_eq!(
        ids(&client.fetch("q", 2).await),
        [&other],
        "another key is open"
    );
    let got = loop {
        match client.fetch("q", 2).await.as_slice() {
            [] => sleep(Duration::from_millis(250)).await,
            [job] => break job.clone(),
            more => panic!("{} at once", more.len()),
        }
    };
    assert_eq!(id(&got), second);
    let after = began.elapsed();
    assert!(
        after >= Duration::from_millis(19_990) && after < Duration::from_secs(21),
        "{after:?}"
    );
    pair.stop().await;
}
