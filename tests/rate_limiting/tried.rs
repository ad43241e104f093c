//! A number is chosen by what an entry in shadow tells: it is of the number in force, says which limit would have held
//! jobs back, and what really ran.

use super::prelude::*;
use crate::sidecar::settings;
use crate::sidecar::simulated::Start;

fn tried(numbers: &str) -> String {
    format!(
        "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"mail\" }}\nmode = \"shadow\"\n{numbers}\n"
    )
}

async fn row(sidecar: &Sidecar) -> Value {
    let state = sidecar.admin().state().await;
    state["shadow"][0].clone()
}

/// These numbers of a row are so.
#[track_caller]
fn is<const N: usize>(row: &Value, names: [&str; N], numbers: [u64; N]) {
    let found = names.map(|name| &row[name]);
    assert_eq!(found, numbers, "{names:?}: {row}");
}

/// Five jobs that run at once, for a second.
async fn burst(client: &Client) {
    client.enqueue_all(5, &plain("mail")).await;
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
    is(&one, ["started", "waiting", "peak_at_once"], [1, 3, 5]);
    let next = |numbers: &str| settings(&behind.base(), &tried(numbers));
    let apply = |numbers: &str| sidecar.reload.apply(next(numbers));
    apply("concurrency = 5\nrate = { limit = 6, period = \"1m\" }");
    // By a number under which nothing waits for a slot.
    sleep(Duration::from_secs(2)).await;
    let one = row(&sidecar).await;
    is(&one, ["started", "waited", "waiting", "longest_ms"], [0; 4]);
    burst(&client).await;
    burst(&client).await;
    sleep(Duration::from_secs(120)).await;
    let one = row(&sidecar).await;
    assert_eq!(one["waited_for"]["rate"], one["waited"], "{one}");
    assert!(one["waited"].as_u64().unwrap() >= 4, "{one}");
    is(&one, ["peak_at_once", "peak_starts"], [5, 10]);
    let why = sidecar.admin().why("queue=mail").await.to_string();
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
    is(&one, ["started", "waited"], [10, 0]);
    // Metrics never go back.
    let series = "ojs_throttle_shadow_jobs_total{policy=\"p\",verdict=\"started\"}";
    let ever = sidecar.admin().metric(series).await;
    assert!(ever.unwrap() > 10.0, "{ever:?}");
}

/// Jobs of the queue that is tried, each with this metadata.
fn jobs(metas: impl Iterator<Item = Value>) -> Vec<String> {
    let job = |meta: Value| {
        let options = json!({"queue": "mail", "metadata": meta});
        json!({"type": "t", "args": [], "meta": meta, "options": options})
    };
    let jobs: Vec<Value> = metas.map(job).collect();
    let batches = jobs
        .chunks(1_000)
        .map(|jobs| json!({"jobs": jobs}).to_string());
    batches.collect()
}

/// Enqueues jobs, has workers take all of them, and says what is told then: the row, and `why`.
async fn ran(numbers: &str, metas: impl Iterator<Item = Value>) -> (Value, String) {
    let rig = Rig::with(&tried(numbers)).await;
    for batch in jobs(metas) {
        let reply = rig.client.post("/ojs/v1/jobs/batch", batch).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
    while !rig.client.fetch("mail", 1_000).await.is_empty() {}
    sleep(Duration::from_secs(1)).await;
    let state = rig.admin.state().await;
    let why = rig.admin.get("/throttle/v1/why?queue=mail").await.text();
    (state["shadow"][0].clone(), why)
}

#[tokio::test(start_paused = true)]
async fn what_really_ran_is_counted_to_its_end() {
    let numbers = "concurrency = 1\nrate = { limit = 1000000, period = \"1h\" }";
    let (one, why) = ran(numbers, (0..10_050).map(|_| json!({}))).await;
    assert_ne!(one["unknown"], 0, "{one}");
    is(&one, ["peak_at_once", "peak_starts"], [10_050; 2]);
    assert!(!why.contains("or more:"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn what_really_ran_is_counted_by_cost_and_of_so_many_keys() {
    let numbers = "rate = { limit = 1000000, period = \"1h\" }\ncost = { from = \"meta.n\" }";
    let numbers = numbers.to_owned() + "\nkey = \"k:{meta.k}\"";
    let metas = (0..10_003).map(|nth| json!({"k": nth, "n": if nth == 0 { 20_000 } else { 1 }}));
    let (one, why) = ran(&numbers, metas).await;
    is(&one, ["peak_starts", "peak_unfollowed"], [20_000, 3]);
    let words = "20000 started in 1h, or more: 3 jobs were of keys beyond";
    assert!(why.contains(words), "{why}");
}
