//! A number is chosen by what an entry in shadow tells: it is of the number in force, says which limit would have held
//! jobs back, and what really ran.

use super::prelude::*;
use crate::sidecar::settings;
use crate::sidecar::simulated::Start;

fn tried(numbers: &str) -> String {
    format!(
        "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"mail\" }}\nkey = \"k\"\nmode = \"shadow\"\n{numbers}\n"
    )
}

async fn row(sidecar: &Sidecar) -> Value {
    let state = sidecar.admin().get("/throttle/v1/state").await.json();
    state["shadow"][0].clone()
}

/// Five jobs that run at once, for a second.
async fn burst(client: &Client) {
    for _ in 0..5 {
        let job = json!({"type": "t", "args": [], "options": {"queue": "mail"}});
        client.enqueue(job).await;
    }
    let jobs = client.fetch("mail", 5).await;
    assert_eq!(jobs.len(), 5);
    sleep(Duration::from_secs(1)).await;
    for job in &jobs {
        client.ack(id(job)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_told_is_of_the_numbers_in_force() {
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::redis()).await;
    let slots = tried("concurrency = 1");
    let sidecar = Start::before(&net, &behind.base(), &slots).start().await;
    let client = sidecar.client();
    sleep(Duration::from_secs(1)).await;
    burst(&client).await;
    // Of four that would wait one has started, and three wait still.
    sleep(Duration::from_millis(500)).await;
    let one = row(&sidecar).await;
    assert_eq!(
        (&one["started"], &one["waiting"]),
        (&json!(1), &json!(3)),
        "{one}"
    );
    assert_eq!(one["peak_at_once"], 5, "{one}");
    let apply = |numbers: &str| {
        sidecar
            .reload
            .apply(settings(&behind.base(), &tried(numbers)))
    };
    apply("concurrency = 5\nrate = { limit = 6, period = \"1m\" }");
    // By a number under which nothing waits for a slot.
    sleep(Duration::from_secs(2)).await;
    let one = row(&sidecar).await;
    for (name, none) in [
        ("started", 0),
        ("waited", 0),
        ("waiting", 0),
        ("longest_ms", 0),
    ] {
        assert_eq!(one[name], none, "{name}: {one}");
    }
    burst(&client).await;
    burst(&client).await;
    sleep(Duration::from_secs(120)).await;
    let one = row(&sidecar).await;
    assert_eq!(one["waited_for"]["rate"], one["waited"], "{one}");
    assert!(one["waited"].as_u64().unwrap() >= 4, "{one}");
    assert_eq!(
        (&one["peak_at_once"], &one["peak_starts"]),
        (&json!(5), &json!(10)),
        "{one}"
    );
    let why = sidecar
        .admin()
        .get("/throttle/v1/why?queue=mail")
        .await
        .text();
    for words in [
        "for rate",
        "at most 5 of a key ran at once",
        "10 started in 1m",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    // By a number that would have held nothing back.
    apply("concurrency = 5\nrate = { limit = 10, period = \"1m\" }");
    sleep(Duration::from_secs(61)).await;
    burst(&client).await;
    burst(&client).await;
    sleep(Duration::from_secs(1)).await;
    let one = row(&sidecar).await;
    assert_eq!(
        (&one["started"], &one["waited"]),
        (&json!(10), &json!(0)),
        "{one}"
    );
    // Metrics never go back.
    let series = "ojs_throttle_shadow_jobs_total{policy=\"p\",verdict=\"started\"}";
    let ever = sidecar.admin().metric(series).await;
    assert!(ever.unwrap() > 10.0, "{ever:?}");
}
