//! `drop_oldest` (5.3): the new job is stored, the oldest available one goes.

use ojs_throttle::backend::{EventKind, Lax};
use serde_json::json;

use crate::client::{id, ids};
use crate::rig::{directly, full, job, simulated, waiting};

/// 13.3 and BP-R003, on backends with ways of their own.
#[tokio::test(start_paused = true)]
async fn the_oldest_available_job_goes() {
    for lax in [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), "").await;
        client
            .bound(
                "notifications",
                json!({"max_depth": 3, "strategy": "drop_oldest"}),
            )
            .await;
        let jobs = client.fill("notifications", 5).await;
        assert_eq!(
            waiting(&pair.behind.backend, "notifications").await,
            3,
            "{name}"
        );
        for (nth, job) in jobs.iter().enumerate() {
            let seen = client.get(&format!("/ojs/v1/jobs/{job}")).await.json();
            let state = seen["job"]["state"].as_str().unwrap();
            let gone = ["discarded", "cancelled"].contains(&state);
            assert_eq!(gone, nth < 2, "{name}: job {nth} is {state}");
        }
        let left = client.fetch("notifications", 5).await;
        // Postgres gives them in any order.
        let mut these = ids(&left);
        these.sort_by_key(|id| jobs.iter().position(|job| job == id));
        assert_eq!(these, [&jobs[2], &jobs[3], &jobs[4]], "{name}");
        // None of them is touched while a worker has it.
        client.fill("notifications", 4).await;
        for job in &left {
            client.ack(id(job)).await;
        }
        let ledger = pair.stop().await.ledger();
        let acked = ledger.iter().filter(|e| e.kind == EventKind::Acked);
        assert_eq!(acked.count(), 3, "{name}");
    }
}

/// Held jobs are available to others, and go first: they are the oldest.
#[tokio::test(start_paused = true)]
async fn held_jobs_go_first() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"drop_oldest\"\n\
        [[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 1\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    let jobs = client.fill("q", 3).await;
    assert_eq!(ids(&client.fetch("q", 3).await), [&jobs[0]], "two are held");
    let more = client.fill("q", 2).await;
    let state = async |job: &str| {
        let seen = client.get(&format!("/ojs/v1/jobs/{job}")).await.json();
        seen["job"]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(&jobs[1]).await, "discarded");
    assert_eq!(state(&jobs[0]).await, "active");
    client.ack(&jobs[0]).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&jobs[2]]);
    client.ack(&jobs[2]).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&more[0]]);
    pair.stop().await;
}

/// 9.3: a batch makes room for all of itself; with nothing to drop it is refused.
#[tokio::test(start_paused = true)]
async fn a_batch_makes_its_room_or_is_refused() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 2).await;
    assert_eq!(client.offer_all(&["q", "q", "q"]).await.status, 201);
    assert_eq!(waiting(&pair.behind.backend, "q").await, 3);
    assert_eq!(
        full(&client.offer_all(&["q"; 4]).await, "q", 3)["retryable"],
        false
    );
    client.fetch("q", 3).await;
    for _ in 0..3 {
        let later =
            json!({"type": "t", "args": [], "options": {"queue": "q", "delay_until": "+PT60S"}});
        client.enqueue(later).await;
    }
    let error = full(&client.offer("q").await, "q", 3);
    assert_eq!(error["strategy"], "drop_oldest", "what is scheduled stays");
    pair.stop().await;
}

/// What cannot be dropped because the queue is paused is not replaced.
#[tokio::test(start_paused = true)]
async fn a_paused_queue_gives_nothing_up() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 2).await;
    directly(&pair.behind.backend, "/ojs/v1/queues/q/pause", json!({})).await;
    assert_eq!(client.offer("q").await.status, 201, "nobody knew");
    for _ in 0..5 {
        assert_eq!(
            client
                .post("/ojs/v1/jobs", job("q").to_string())
                .await
                .status,
            429
        );
    }
    assert_eq!(waiting(&pair.behind.backend, "q").await, 3);
    pair.stop().await;
}
