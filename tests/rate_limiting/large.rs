//! Jobs and replies of many megabytes.

use super::prelude::*;
use super::upstream::answering;

/// Ten jobs of one MiB come in one FETCH, whether limits touch their queue or not.
#[tokio::test(start_paused = true)]
async fn ten_jobs_of_a_mebibyte_are_delivered_at_once() {
    // The backend reads no larger body.
    let args = json!(["x".repeat((1 << 20) - 200)]);
    for policy in [
        "",
        "[[queue]]\nname = \"q\"\nconcurrency = 100\n",
        "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nkey = \"k:{meta.k}\"\nconcurrency = 100\n",
    ] {
        let (_pair, client) = simulated(Lax::spec(), policy).await;
        let job = json!({"type": "t", "args": args, "options": {"queue": "q"}});
        let mut sent = client.enqueue_all(10, &job).await;
        let jobs = client.fetch("q", 10).await;
        let mut came: Vec<&str> = jobs.iter().map(id).collect();
        came.sort_unstable();
        sent.sort_unstable();
        assert_eq!(came, sent, "{policy}");
        let whole = |job: &Value| job["args"] == args;
        assert!(jobs.iter().all(whole), "{policy}");
        client.ack(came[0]).await;
    }
}

/// A backend echoes each job of a batch with more members than were sent.
#[tokio::test(start_paused = true)]
async fn the_echo_of_a_batch_may_be_larger_than_any_body() {
    let jobs = vec![json!({"id": "j", "args": ["x".repeat(1 << 20)]}); 9];
    let echo = json!({"jobs": jobs, "count": 9}).to_string();
    let (_backend, _sidecar, client) = answering(201, echo.clone(), "").await;
    let batch = json!({"jobs": [{"type": "t", "args": []}]}).to_string();
    let reply = client.post("/ojs/v1/jobs/batch", batch).await;
    assert_eq!(reply.status, 201);
    assert_eq!(reply.body, echo);
}
