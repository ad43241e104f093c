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

/// Jobs that are discarded are lost: the log, the key, the queue and the job itself say so.
#[tokio::test(start_paused = true)]
async fn jobs_that_a_limit_discards_are_told_of() {
    let (_guard, log) = crate::backpressure::depth::logged();
    let file = "[[policy]]\nname = \"push\"\nmatch = { queue = \"p\" }\non_limit = \"drop\"\n\
        rate = { limit = 1, period = \"1m\" }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        let job = json!({"type": "t", "args": [], "options": {"queue": "p"}});
        jobs.push(client.enqueue(job).await);
    }
    assert_eq!(client.fetch("p", 4).await.len(), 1);
    sleep(Duration::from_millis(100)).await;
    let lines = log.with("id=jobs_dropped");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("WARN") && lines[0].contains("policy=push key=push jobs=1"),
        "{lines:?}"
    );
    let admin = pair.sidecar.admin();
    for asked in ["key=push", "queue=p", "type=t&queue=p"] {
        let why = admin.get(&format!("/throttle/v1/why?{asked}")).await.json();
        assert_eq!(why["cause"], "drops jobs", "{why}");
        let words = why["why"].as_str().unwrap();
        assert!(
            words.contains("are discarded") && words.contains("its window allows"),
            "{why}"
        );
    }
    let state = admin.get("/throttle/v1/state").await.json();
    assert_eq!(
        state["keys"]["rows"][0]["cause"]["name"], "drops jobs",
        "{state}"
    );
    let gone = admin
        .get(&format!("/throttle/v1/why?job={}", jobs[3]))
        .await
        .json();
    assert_eq!(
        (&gone["cause"], &gone["next_start"]),
        (&json!("dropped"), &json!(null)),
        "{gone}"
    );
    pair.stop().await;
}
