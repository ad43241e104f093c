//! What becomes of a job that a limit drops: 6.2 (`on_limit`), and the example of 14.4.

use super::prelude::*;

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
