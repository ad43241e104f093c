//! `waiting_count` (10.1): what of it is known, and that it goes down again.

use super::prelude::*;

const BILLING: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = [\"billing\", \"refunds\"] }\nconcurrency = 2\n\
    [[policy]]\nname = \"by-type\"\nmatch = { type = \"x\" }\nkey = \"t:{meta.t}\"\nconcurrency = 1\n";

async fn waiting(client: &Client, key: &str) -> u64 {
    let seen = client.inspect(key).await;
    assert_eq!(seen["waiting"], seen["waiting_count"], "{seen}");
    seen["waiting_count"].as_u64().unwrap()
}

fn brought(priority: i32) -> Value {
    let limits = json!({"key": "k", "concurrency": 1});
    json!({"type": "t", "args": [], "options": {"queue": "q", "priority": priority, "rate_limit": limits}})
}

/// The key of a policy that covers whole queues: what waits in them waits for it.
#[tokio::test(start_paused = true)]
async fn of_a_key_that_covers_queues_all_their_jobs_wait() {
    for lax in [Lax::spec(), Lax::redis(), Lax::postgres(), Lax::lite()] {
        let name = lax.name;
        let (pair, client) = simulated(lax, BILLING).await;
        assert_eq!(waiting(&client, "stripe").await, 0, "{name}");
        client.enqueue_all(4, &plain("billing")).await;
        for queue in ["refunds", "refunds", "refunds", "other"] {
            client.enqueue(plain(queue)).await;
        }
        // The backend is asked once a second.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(waiting(&client, "stripe").await, 7, "{name}");
        let out = client.fetch("billing", 5).await;
        assert_eq!(out.len(), 2, "{name}");
        assert!(client.fetch("refunds", 5).await.is_empty(), "{name}");
        assert_eq!(waiting(&client, "stripe").await, 5, "{name}");
        let list = client.get("/ojs/v1/rate-limits").await.json();
        assert_eq!(list["items"][0]["waiting_count"], 5, "{name}: {list}");
        client.ack(id(&out[0])).await;
        assert_eq!(client.fetch("billing", 5).await.len(), 1, "{name}");
        assert_eq!(waiting(&client, "stripe").await, 4, "{name}");
        pair.stop().await;
    }
}

/// The same of a queue's own limits.
#[tokio::test(start_paused = true)]
async fn of_a_queue_with_limits_all_its_jobs_wait() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let path = "/ojs/v1/admin/queues/q/rate-limit";
    client.enqueue_all(5, &plain("q")).await;
    let shown = client.set(path, json!({"concurrency": 2})).await;
    assert_eq!(shown["waiting_count"], 5, "{shown}");
    assert_eq!(client.fetch("q", 9).await.len(), 2);
    let shown = client.get(path).await.json();
    assert_eq!(shown["waiting_count"], 3, "{shown}");
}

/// Of a key that a backend knows nothing of: those that are held, and those of which it is known that they
/// wait, until they are seen to leave.
#[tokio::test(start_paused = true)]
async fn jobs_that_left_wait_no_longer() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let first = client.enqueue(brought(10)).await;
    let second = client.enqueue(brought(0)).await;
    client.enqueue(brought(0)).await;
    assert_eq!(waiting(&client, "k").await, 3);
    client.cancel(&second).await;
    assert_eq!(waiting(&client, "k").await, 2, "one was cancelled");

    // One that fails waits again, and is the same one.
    client.enqueue(brought(0)).await;
    for _ in 0..2 {
        assert_eq!(ids(&client.fetch("q", 1).await), [&first]);
        assert_eq!(waiting(&client, "k").await, 2);
        client.nack(&first, true).await;
        assert_eq!(waiting(&client, "k").await, 2, "it waits for a time");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(waiting(&client, "k").await, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_counts_once_and_from_its_time_on() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let limits = json!({"key": "k", "concurrency": 1});
    let twice = json!({"type": "t", "args": [], "rate_limit": limits,
        "options": {"queue": "q", "rate_limit": limits}});
    client.enqueue(twice).await;
    assert_eq!(waiting(&client, "k").await, 1);
    let mut later = brought(0);
    later["options"]["delay_until"] = json!("2030-01-01T00:00:00Z");
    let batch = json!({"jobs": [brought(0), plain("q"), later, brought(0)]});
    let reply = client.post("/ojs/v1/jobs/batch", batch.to_string()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(waiting(&client, "k").await, 3);
}

/// Jobs that were held and went back wait in the backend, whose limits they were; and what leaves there
/// unseen is noticed when the queue has fewer.
#[tokio::test(start_paused = true)]
async fn jobs_that_were_given_back_wait_on() {
    let config = format!("{BILLING}[hold]\nidle = \"1s\"\n");
    let (pair, client) = simulated(Lax::postgres(), &config).await;
    let keyed = json!({"type": "x", "args": [], "meta": {"t": "a"}, "options": {"queue": "q"}});
    client.enqueue_all(4, &keyed).await;
    assert_eq!(client.fetch("q", 4).await.len(), 1);
    assert_eq!(waiting(&client, "t:a").await, 3, "they are held");
    sleep(Duration::from_secs(5)).await;
    let stats = client.get("/ojs/v1/queues/q/stats").await.json();
    assert_eq!(waiting(&client, "t:a").await, 3, "{stats}");
    // Around the sidecar.
    let direct = Client::new(&client.net, pair.behind.addr);
    assert_eq!(direct.fetch("q", 2).await.len(), 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(waiting(&client, "t:a").await, 1);
}
