//! What a refusal says is so: its message, its numbers and its headers.

use super::prelude::*;
use crate::sidecar::listen::Listener;

/// The `error` of a refusal.
fn refused(reply: &Reply) -> Value {
    assert_eq!(reply.status, 429, "{}", reply.text());
    reply.json()["error"].clone()
}

/// Enqueues `n` jobs in one batch into `queue`, whose argument is so many bytes long and which are `who`'s.
async fn offer(client: &Client, queue: &str, n: usize, long: usize, who: &str) -> Reply {
    let job = json!({"type": "t", "args": ["x".repeat(long)], "meta": {"tenant_id": who},
        "options": {"queue": queue}});
    let body = json!({"jobs": vec![job; n]}).to_string();
    client.post("/ojs/v1/jobs/batch", body).await
}

#[tokio::test(start_paused = true)]
async fn what_is_not_used_up_is_not_said_to_be() {
    let file = "[[queue]]\nname = \"rated\"\nenqueue_rate = { limit = 2, period = \"5s\" }\n\
        [[queue]]\nname = \"sized\"\nmax_size = 1000\n\
        [[queue]]\nname = \"keyed\"\nper_key = { by = \"{meta.tenant_id}\", max_depth = 2 }\n\
        [[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 2 }\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let said = async |queue: &str, n: usize, long: usize, who: &str| {
        refused(&offer(&client, queue, n, long, who).await)["message"].clone()
    };
    let never = "; so many jobs at once can never fit";
    let expected = format!(
        "Queue 'rated' has no room for so many jobs: 0 of the 2 that may be enqueued in its period are taken{never}"
    );
    assert_eq!(said("rated", 3, 1, "a").await, expected);
    client.fill("rated", 1).await;
    let expected = "Queue 'rated' has no room for so many jobs: 1 of the 2 that may be enqueued in its period are taken";
    assert_eq!(said("rated", 2, 1, "a").await, expected);

    let expected = format!(
        "Queue 'keyed' has no room for so many jobs: 0 jobs wait, and its depth bound for 'C' is 2{never}"
    );
    assert_eq!(said("keyed", 3, 1, "C").await, expected);
    let expected = format!(
        "Tenant 'acme' has no room for so many jobs: 0 jobs wait, and max_queue_depth is 2{never}"
    );
    assert_eq!(said("other", 3, 1, "acme").await, expected);

    let size = |error: &Value| error["depth"].as_u64().unwrap();
    assert_eq!(offer(&client, "sized", 1, 600, "a").await.status, 201);
    let error = refused(&offer(&client, "sized", 1, 600, "a").await);
    let (used, message) = (size(&error), error["message"].as_str().unwrap());
    assert!((600..700).contains(&used), "{error}");
    let expected = format!(
        "Queue 'sized' has no room for {used} bytes: {used} bytes wait, and its size bound is 1000 bytes"
    );
    assert_eq!(message, expected);
    let error = refused(&offer(&client, "sized", 1, 3_000, "a").await);
    let expected = format!(
        "Queue 'sized' has no room for {} bytes: {used} bytes wait, and its size bound is 1000 bytes; \
         so many bytes at once can never fit",
        used + 2_400
    );
    assert_eq!(
        (&error["message"], &error["retryable"]),
        (&json!(expected), &json!(false))
    );
}

/// `X-RateLimit-Reset` is when there is room, and for what can never fit, when the whole window is free.
#[tokio::test(start_paused = true)]
async fn a_window_is_reset_when_it_ends() {
    let file = "[[queue]]\nname = \"q\"\nenqueue_rate = { limit = 2, period = \"50s\" }\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let reset = async |n: usize| {
        let reply = offer(&client, "q", n, 1, "a").await;
        assert_eq!(reply.status, 429, "{}", reply.text());
        number(&reply, "x-ratelimit-reset")
    };
    // To the second; a place is taken a few milliseconds longer than the period.
    let after = |since: f64, reset: f64, seconds: f64| {
        let late = reset - since - seconds;
        assert!((0.0..=2.0).contains(&late), "{late} s off");
    };
    let begun = 1_770_000_000.0;
    after(begun, reset(3).await, 50.0);
    client.fill("q", 1).await;
    after(begun, reset(3).await, 50.0);
    sleep(Duration::from_secs(20)).await;
    client.fill("q", 1).await;
    after(begun, reset(1).await, 50.0);
    after(begun, reset(2).await, 70.0);
    after(begun, reset(3).await, 70.0);
}

/// Where the bound of bytes is the nearest, the numbers say what they count.
#[tokio::test(start_paused = true)]
async fn bytes_are_not_told_as_jobs() {
    let (_guard, log) = logged();
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let both = json!({"max_depth": 100, "max_size_bytes": 1000});
    client.bound("q", both).await;
    let types = "/ojs/v1/events/stream?types=backpressure.*";
    let mut stream = Listener::open(&client, types, &[]).await;
    let reply = offer(&client, "q", 1, 800, "a").await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let warning = stream.next().await;
    let data = &warning.data["data"];
    let bytes = data["depth"].as_u64().unwrap();
    assert!((800..1_000).contains(&bytes), "{data}");
    let expected = json!({"queue": "q", "depth": bytes, "bound": 1000, "unit": "bytes"});
    assert_eq!((&*warning.event, data), ("backpressure.warning", &expected));
    for (name, value) in [
        ("depth", 1.0),
        ("bound", 100.0),
        ("pressure", bytes as f64 / 1e3),
    ] {
        assert_eq!(number(&reply, &format!("x-ojs-queue-{name}")), value);
    }
    client.fetch("q", 1).await;
    let cleared = stream.next().await;
    let expected = json!({"queue": "q", "depth": 0, "bound": 1000, "unit": "bytes"});
    assert_eq!(
        (&*cleared.event, &cleared.data["data"]),
        ("backpressure.cleared", &expected)
    );
    for line in ["the queue is near its bound", "the queue has room again"] {
        let lines = log.with(line);
        assert!(
            lines.len() == 1 && lines[0].contains("unit=\"bytes\""),
            "{lines:?}"
        );
    }
}
