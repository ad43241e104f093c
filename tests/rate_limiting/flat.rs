//! Jobs that say a queue beside their `options`, as some SDKs send all of theirs: they are limited by the queue that
//! they are in, not by the one that backends show.

use super::prelude::*;

fn flat() -> Value {
    json!({"type": "t", "args": [], "queue": "mail"})
}

/// A copy of a job that was: its `state` and `attempt` are no word of the backend's.
#[tokio::test(start_paused = true)]
async fn what_a_job_says_of_its_own_state_is_not_believed() {
    let config = "[[queue]]\nname = \"mail\"\nconcurrency = 2\n";
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::redis()).await;
    let first = Start::before(&net, &behind.base(), config).start().await;
    let client = Client::new(&net, first.addr);
    let copy = json!({"type": "t", "args": [], "state": "completed", "attempt": 7, "State": "NY",
        "expires_at": "2020-01-01T00:00:00Z", "options": {"queue": "mail"}});
    let jobs = json!({"jobs": [copy, copy]}).to_string();
    assert_eq!(client.post("/ojs/v1/jobs/batch", jobs).await.status, 201);
    client.enqueue_all(2, &copy).await;
    let out = client.fetch("mail", 4).await;
    assert_eq!(out.len(), 2);
    let shown = client.job(id(&out[0])).await;
    assert_eq!(
        [&shown["state"], &shown["attempt"], &shown["State"]],
        [&json!("active"), &json!(0), &json!("NY")]
    );
    first.stop().await;
    are_adopted(&net, &behind.base(), config, ("mail", &out)).await;
    behind.stop().await;
}

/// A sidecar that starts knows that these run, and have the two slots of their queue.
async fn are_adopted(net: &Net, upstream: &str, config: &str, (queue, out): (&str, &[Value])) {
    let sidecar = Start::before(net, upstream, config).seed(8).start().await;
    let client = Client::new(net, sidecar.addr);
    assert!(client.fetch(queue, 4).await.is_empty(), "two run");
    client.ack(id(&out[0])).await;
    assert_eq!(client.fetch(queue, 4).await.len(), 1);
    sidecar.stop().await;
}

/// Those that run when a sidecar starts have their slots.
#[tokio::test(start_paused = true)]
async fn they_are_adopted_where_they_are() {
    let config = "[[queue]]\nname = \"default\"\nconcurrency = 2\n";
    for batch in [false, true] {
        let net = Net::Sim(sim::Network::default());
        let behind = backend(&net, Lax::redis()).await;
        let first = Start::before(&net, &behind.base(), config).start().await;
        let client = Client::new(&net, first.addr);
        for _ in 0..4 {
            let (path, body) = match batch {
                true => ("/ojs/v1/jobs/batch", json!({"jobs": [flat()]})),
                false => ("/ojs/v1/jobs", flat()),
            };
            assert_eq!(client.post(path, body.to_string()).await.status, 201);
        }
        let out = client.fetch("default", 4).await;
        assert_eq!(out.len(), 2);
        assert!(out[0].get("meta").is_none(), "{}", out[0]);
        first.stop().await;
        are_adopted(&net, &behind.base(), config, ("default", &out)).await;
        behind.stop().await;
    }
}
