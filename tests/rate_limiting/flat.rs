//! Jobs that say a queue beside their `options`, as some SDKs send all of theirs: they are limited by the queue that
//! they are in, not by the one that backends show.

use super::prelude::*;

fn flat() -> Value {
    json!({"type": "t", "args": [], "queue": "mail"})
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
        let second = Start::before(&net, &behind.base(), config)
            .seed(8)
            .start()
            .await;
        let client = Client::new(&net, second.addr);
        assert_eq!(client.fetch("default", 4).await.len(), 0);
        client.ack(id(&out[0])).await;
        assert_eq!(client.fetch("default", 4).await.len(), 1);
        second.stop().await;
        behind.stop().await;
    }
}
