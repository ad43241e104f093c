//! 11.1 and 11.2 where a queue's own limits leave no room: its jobs stay in the backend and are not read,
//! and their waits are told and counted all the same.

use super::prelude::*;
use super::rig::at_once;
use super::upstream::answering;
use crate::sidecar::listen::Heard;

const ONE: &str = "[[queue]]\nname = \"q\"\nconcurrency = 1\n";
const STREAM: &str = "/ojs/v1/events/stream?types=rate_limit.*&queue=q";

fn told(heard: &[Heard]) -> Vec<(String, Value)> {
    let each = heard.iter();
    each.map(|heard| (heard.event.clone(), heard.data["data"].clone()))
        .collect()
}

/// One `exceeded` for the queue's next job, however often it is asked for; `released` names the job when
/// it starts; the wait counts from when it was known. A queue that is empty tells nothing.
#[tokio::test(start_paused = true)]
async fn a_shut_queue_tells_of_its_next_job() {
    let rig = Rig::with(ONE).await;
    let client = &rig.client;
    let mut stream = Listener::open(client, STREAM, &[]).await;
    let jobs = client.enqueue_all(1, &plain("q")).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&jobs[0]]);
    for _ in 0..8 {
        assert!(client.fetch("q", 5).await.is_empty());
        sleep(Duration::from_millis(100)).await;
    }
    assert!(stream.so_far().await.is_empty(), "nothing waits");
    let more = client.enqueue_all(2, &plain("q")).await;
    for _ in 0..8 {
        assert!(client.fetch("q", 5).await.is_empty());
        sleep(Duration::from_millis(100)).await;
    }
    let heard = stream.so_far().await;
    let exceeded = json!({"key": "_queue:q", "strategy": "concurrency", "limit": 1, "current": 1});
    let exceeded = ("rate_limit.exceeded".into(), exceeded);
    assert_eq!(told(&heard), std::slice::from_ref(&exceeded));
    assert_eq!(heard[0].data["subject"], "_queue:q");
    assert_eq!(heard[0].data["queue"], "q");
    let claimed = rig.count(EventKind::Claimed);
    assert_eq!(claimed, 1, "it is not claimed to be told");
    client.ack(&jobs[0]).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&more[0]]);
    let released = json!({"key": "_queue:q", "strategy": "concurrency", "job_id": more[0]});
    let heard = told(&stream.so_far().await);
    assert_eq!(heard[0], ("rate_limit.released".into(), released));
    assert!(client.fetch("q", 5).await.is_empty());
    sleep(Duration::from_secs(1)).await;
    assert!(client.fetch("q", 5).await.is_empty());
    let next = told(&stream.so_far().await);
    let both = [&heard[1..], &next].concat();
    assert_eq!(both, [exceeded], "the next one waits");
    let series = "ojs_rate_limit_exceeded_total{key=\"_queue:q\",strategy=\"concurrency\"}";
    assert_eq!(rig.metric(series).await, Some(2.0));
    let waited = "ojs_rate_limit_wait_duration_seconds";
    let count = format!("{waited}_count{{key=\"_queue:q\"}}");
    assert_eq!(rig.metric(&count).await, Some(1.0));
    let sum = format!("{waited}_sum{{key=\"_queue:q\"}}");
    let sum = rig.metric(&sum).await.unwrap();
    assert!((3.0..5.0).contains(&sum), "{sum}");
}

/// A policy that covers a whole queue shuts it as well, and is told under its key; each strategy by its
/// name.
#[tokio::test(start_paused = true)]
async fn each_strategy_by_its_name_and_numbers() {
    for (limit, strategy, starts) in [
        ("rate = { limit = 3, period = \"1h\" }", "rate", 3),
        ("throttle = { limit = 2, period = \"1h\" }", "throttle", 1),
        ("concurrency = 2", "concurrency", 2),
    ] {
        let config = format!("[[policy]]\nname = \"k\"\nmatch = {{ queue = \"q\" }}\n{limit}\n");
        let (pair, client) = simulated(Lax::spec(), &config).await;
        let mut stream = Listener::open(&client, STREAM, &[]).await;
        client.enqueue_all(5, &plain("q")).await;
        assert_eq!(client.fetch("q", 5).await.len(), starts, "{strategy}");
        let limit = if strategy == "throttle" { 2 } else { starts };
        let data = json!({"key": "k", "strategy": strategy, "limit": limit, "current": limit});
        let heard = told(&stream.so_far().await);
        assert_eq!(heard, [("rate_limit.exceeded".into(), data)]);
        pair.stop().await;
    }
}

/// What waited and was cancelled is released by nobody, and forgotten.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_meanwhile_is_not_released() {
    let (_pair, client) = simulated(Lax::spec(), ONE).await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let jobs = client.enqueue_all(2, &plain("q")).await;
    assert_eq!(client.fetch("q", 2).await.len(), 1);
    assert_eq!(stream.so_far().await.len(), 1);
    client.cancel(&jobs[1]).await;
    client.ack(&jobs[0]).await;
    assert!(client.fetch("q", 2).await.is_empty());
    let later = client.enqueue_all(1, &plain("q")).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&later[0]]);
    assert!(stream.so_far().await.is_empty(), "it never waited");
}

/// Nobody asks the backend more than once a second, and nothing at all while the queue's job is known to
/// wait; a worker that gets all it wants asks for nothing.
#[tokio::test(start_paused = true)]
async fn it_costs_one_question_a_second_at_most() {
    let rig = Rig::with(ONE).await;
    let asked =
        "ojs_throttle_upstream_request_duration_seconds_count{op=\"queue_stats\",code=\"200\"}";
    rig.client.enqueue_all(400, &plain("q")).await;
    let before = rig.after_noon();
    let runs = work(&rig.client, &["q"], 8, 400, |_| Duration::from_millis(20)).await;
    let took = rig.after_noon() - before;
    assert_eq!(runs.len(), 400);
    let questions = rig.metric(asked).await.unwrap_or(0.0);
    assert!(questions <= took + 1.0, "{questions} in {took} s");
    let other = Rig::with(ONE).await;
    other.client.enqueue_all(5, &plain("q")).await;
    work(&other.client, &["q"], 1, 5, at_once).await;
    assert_eq!(other.metric(asked).await, None);
}

/// A backend that has no numbers leaves nothing to tell, and FETCH is as it was.
#[tokio::test(start_paused = true)]
async fn a_backend_without_statistics_is_asked_in_vain() {
    let config = "[[queue]]\nname = \"q\"\nconcurrency = 0\n";
    let (heard, _sidecar, client) = answering(404, "404 page not found", config).await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    for _ in 0..20 {
        assert!(client.fetch("q", 1).await.is_empty());
        sleep(Duration::from_millis(100)).await;
    }
    assert!(stream.so_far().await.is_empty());
    let asked = heard.requests().into_iter();
    let asked = asked.filter(|(head, _)| head.uri.path().contains("/queues/q"));
    assert!(asked.count() <= 7);
}
