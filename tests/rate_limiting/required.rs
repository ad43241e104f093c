//! 12, RL-005 and RL-006: inspection and events, over many workers and jobs, against what those wrote down. What
//! limits do is judged so in `tests/scenarios`.

use std::collections::{BTreeMap, HashSet};

use super::prelude::*;
use super::rig::Run;

fn job(queue: &str, rate_limit: Value) -> String {
    json!({"type": "t", "args": [], "options": {"queue": queue, "rate_limit": rate_limit}})
        .to_string()
}

/// Between 20 and 200 ms, in an order that only the number decides.
fn various(nth: usize) -> Duration {
    Duration::from_millis(20 + (nth as u64 * 7_919) % 180)
}

/// Nothing is lost, run twice, or ended in any way but by its worker.
fn each_ran_once(rig: &Rig, runs: &[Run]) {
    let different: HashSet<&str> = runs.iter().map(|run| run.job.as_str()).collect();
    assert_eq!(different.len(), runs.len(), "a job ran twice");
    assert_eq!(rig.count(EventKind::Acked), runs.len());
    for kind in [
        EventKind::Expired,
        EventKind::Discarded,
        EventKind::Cancelled,
        EventKind::Nacked,
    ] {
        assert_eq!(rig.count(kind), 0, "{kind:?}");
    }
}

/// "`GET /ojs/v1/rate-limits/{key}` returns current state": at each of a hundred moments it is what the
/// workers know.
#[tokio::test(start_paused = true)]
async fn rl_005_inspection() {
    let rig = Rig::with("").await;
    let client = &rig.client;
    let policy = json!({"key": "k", "concurrency": 7, "rate": {"limit": 30, "period": "PT10S"}});
    rig.enqueue(&job("q", policy), 120).await;
    let (mut out, mut starts, mut ended) = (Vec::<String>::new(), Vec::<Instant>::new(), 0);
    for nth in 0..100_usize {
        for job in client.fetch("q", 1 + nth % 4).await {
            out.push(id(&job).to_owned());
            starts.push(Instant::now());
        }
        for _ in 0..nth % 3 {
            if let Some(job) = (!out.is_empty()).then(|| out.swap_remove(nth % out.len())) {
                client.ack(&job).await;
                ended += 1;
            }
        }
        let seen = rig.inspect("k").await;
        let active = out.len();
        assert_eq!(
            seen["concurrency"],
            json!({"limit": 7, "active": active, "available": 7 - active})
        );
        let counted = starts
            .iter()
            .filter(|at| at.elapsed() < Duration::from_secs(10));
        assert_eq!(seen["rate"]["current_count"], counted.count(), "step {nth}");
        assert_eq!(seen["waiting_count"], 120 - starts.len());
        assert_eq!(rig.count(EventKind::Acked), ended);
        sleep(Duration::from_millis(137)).await;
    }
    assert!(starts.len() > 30, "the window slid");
    assert_eq!(client.get("/ojs/v1/rate-limits/unknown").await.status, 404);
}

/// "emit `rate_limit.exceeded` and `rate_limit.released` events": every job that was not started by the
/// FETCH that claimed it has one of each, in that order, and before its worker had it; no other has any.
#[tokio::test(start_paused = true)]
async fn rl_006_events() {
    let rig = Rig::with("").await;
    let stream = "/ojs/v1/events/stream?types=rate_limit.*";
    let mut stream = Listener::open(&rig.client, stream, &[]).await;
    rig.enqueue(&job("q", json!({"key": "k", "concurrency": 2})), 60)
        .await;
    let runs = work(&rig.client, &["q"], 6, 60, various).await;
    each_ran_once(&rig, &runs);
    let mut told = BTreeMap::<String, Vec<String>>::new();
    for heard in stream.so_far().await {
        let data = &heard.data["data"];
        assert_eq!(
            (&data["key"], &data["strategy"]),
            (&json!("k"), &json!("concurrency"))
        );
        let job = heard.data["subject"].as_str().unwrap();
        told.entry(job.to_owned()).or_default().push(heard.event);
    }
    let both = ["rate_limit.exceeded", "rate_limit.released"];
    assert!(told.values().all(|events| *events == both), "{told:?}");
    let ran: HashSet<&str> = runs.iter().map(|run| run.job.as_str()).collect();
    assert!(told.keys().all(|job| ran.contains(job.as_str())));
    assert!(
        (50..=58).contains(&told.len()),
        "{} of 60 waited",
        told.len()
    );
    let series = "ojs_rate_limit_exceeded_total{key=\"k\",strategy=\"concurrency\"}";
    assert_eq!(rig.metric(series).await, Some(told.len() as f64));
}
