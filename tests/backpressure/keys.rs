//! Bounds inside a shared queue (9.2): one tenant's burst is no other's trouble.

use super::prelude::*;

const FILE: &str = "[[queue]]\nname = \"q\"\nmax_depth = 20\n\
    per_key = { by = \"{meta.tenant_id}\", max_depth = 3 }\n";

fn job(tenant: &str) -> Value {
    json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": "q"}})
}

async fn offer(client: &Client, tenant: &str) -> Reply {
    client.post("/ojs/v1/jobs", job(tenant).to_string()).await
}

fn full(reply: &Reply, tenant: &str) {
    let error = reply.refuses(429, "QUEUE_FULL", tenant);
    assert_eq!(error["key"], tenant);
    assert_eq!([&error["depth"], &error["bound"]], [3, 3]);
}

#[tokio::test(start_paused = true)]
async fn each_tenant_has_its_share() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    let of_a = client.enqueue_all(3, &job("a")).await;
    full(&offer(&client, "a").await, "a");
    for tenant in ["b", "b", "b", "c"] {
        assert_eq!(offer(&client, tenant).await.status, 201);
    }
    // A batch is all or nothing over keys too.
    let batch = json!({"jobs": [job("c"), job("b")]}).to_string();
    full(&client.post("/ojs/v1/jobs/batch", batch).await, "b");
    assert_eq!(offer(&client, "c").await.status, 201);
    // Fetched, cancelled, and gone behind our back: each makes room for its tenant.
    let first = client.fetch("q", 1).await;
    assert_eq!(id(&first[0]), of_a[0]);
    assert_eq!(offer(&client, "a").await.status, 201);
    full(&offer(&client, "a").await, "a");
    client.cancel(&of_a[1]).await;
    assert_eq!(offer(&client, "a").await.status, 201);
    full(&offer(&client, "a").await, "a");
    let fetch = json!({"queues": ["q"], "count": 2, "worker_id": "around"});
    directly(&pair.behind.backend, "/ojs/v1/workers/fetch", fetch).await;
    sleep(std::time::Duration::from_millis(120)).await;
    assert_eq!(offer(&client, "a").await.status, 201);
}

/// Some backends answer an enqueue with the job itself.
#[tokio::test(start_paused = true)]
async fn a_reply_that_is_the_job_itself_counts() {
    let stored = AtomicU64::new(0);
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => {
            let id = stored.fetch_add(1, Ordering::SeqCst).to_string();
            (201, json!({"id": id, "queue": "q"}).to_string())
        }
        _ => {
            let available = stored.load(Ordering::SeqCst);
            (200, json!({"counts": {"available": available}}).to_string())
        }
    };
    let (_backend, _sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    for _ in 0..3 {
        assert_eq!(offer(&client, "a").await.status, 201);
    }
    full(&offer(&client, "a").await, "a");
    assert_eq!(offer(&client, "b").await.status, 201);
}

/// Held jobs are their tenant's until a worker has them.
#[tokio::test(start_paused = true)]
async fn held_jobs_are_their_tenant_s() {
    let limits = "[[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), &format!("{FILE}{limits}")).await;
    client.enqueue_all(3, &job("a")).await;
    let out = client.fetch("q", 3).await;
    assert_eq!(out.len(), 1, "two are held");
    assert_eq!(offer(&client, "a").await.status, 201);
    full(&offer(&client, "a").await, "a");
    client.ack(id(&out[0])).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    assert_eq!(offer(&client, "a").await.status, 201);
}

/// Where the oldest go to make room, a tenant that has its share gets no more: nobody's job is dropped
/// for it, and what is dropped is no longer its tenant's.
#[tokio::test(start_paused = true)]
async fn dropping_makes_no_room_for_a_full_tenant() {
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 4\nstrategy = \"drop_oldest\"\n\
        per_key = { by = \"{meta.tenant_id}\", max_depth = 3 }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    client.enqueue_all(3, &job("a")).await;
    full(&offer(&client, "a").await, "a");
    assert_eq!(offer(&client, "b").await.status, 201);
    full(&offer(&client, "a").await, "a");
    // The queue is full: the oldest goes, which is one of a's.
    assert_eq!(offer(&client, "b").await.status, 201);
    assert_eq!(offer(&client, "a").await.status, 201, "it has two");
    assert_eq!(offer(&client, "a").await.status, 201, "and two again");
    let waiting = crate::backpressure::rig::waiting(&pair.behind.backend, "q").await;
    assert_eq!(waiting, 4);
}
