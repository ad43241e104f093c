//! 12: what an implementation must support, RL-001 to RL-006, and what it should, RL-R001 to RL-R005; one
//! case each, judged from what workers and backend wrote down, over many workers and jobs. The official
//! cases accept any FETCH that answers 200.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use http::Method;
use ojs_throttle::backend::EventKind;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::rig::{Rig, Run, at_once, most_at_once, no_interval_has_more, spaced, work};
use crate::sidecar::client::{id, ids};
use crate::sidecar::listen::Listener;

const MINUTE: Duration = Duration::from_secs(60);

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

/// "enforce `concurrency` field atomically with job assignment": 16 workers at one key, never more than 3
/// at once and soon 3 at once; the same while every second worker dies and its jobs expire.
#[tokio::test(start_paused = true)]
async fn rl_001_concurrency() {
    let rig = Rig::with("").await;
    rig.enqueue(&job("q", json!({"key": "k", "concurrency": 3})), 200)
        .await;
    let runs = work(&rig.client, &["q"], 16, 200, various).await;
    assert_eq!(most_at_once(runs.iter()), 3);
    each_ran_once(&rig, &runs);
    let busy: Duration = runs.iter().map(|run| run.to - run.from).sum();
    let span = runs[199].to - runs[0].from;
    assert!(
        span < busy / 3 * 5 / 4,
        "{span:?} for {busy:?} of work: slots stood idle"
    );

    rig.enqueue(&job("dying", json!({"key": "d", "concurrency": 2})), 8)
        .await;
    let (mut out, mut seen) = (Vec::<Instant>::new(), HashSet::new());
    while rig.count(EventKind::Acked) < 200 + 8 {
        let asked = json!({"queues": ["dying"], "count": 4, "worker_id": "w",
                           "visibility_timeout_ms": 2000});
        let jobs = rig.client.fetch_as(asked).await;
        out.retain(|until| *until > Instant::now());
        assert!(out.len() + jobs.len() <= 2, "{out:?} {jobs:?}");
        for job in &jobs {
            // Every second one dies with its worker, once.
            if seen.insert(id(job).to_owned()) && seen.len() % 2 == 0 {
                // A claim may be a second old when a worker gets the job.
                out.push(Instant::now() + Duration::from_secs(1));
            } else {
                rig.client.ack(id(job)).await;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(rig.count(EventKind::Expired), 4);
}

/// "partition counters by the `key` field": each key has its own, and one key has one in all queues.
#[tokio::test(start_paused = true)]
async fn rl_002_keys() {
    let rig = Rig::with("").await;
    for nth in 0..40 {
        for key in ["a", "b", "c"] {
            let queue = ["q", "r"][nth % 2];
            rig.enqueue(&job(queue, json!({"key": key, "concurrency": 2})), 1)
                .await;
        }
    }
    let runs = work(&rig.client, &["q", "r"], 12, 120, various).await;
    for key in ["a", "b", "c"] {
        assert_eq!(
            most_at_once(runs.iter().filter(|run| run.key == key)),
            2,
            "{key}"
        );
    }
    assert_eq!(
        most_at_once(runs.iter()),
        6,
        "one key in the way of another"
    );
    each_ran_once(&rig, &runs);
}

/// "hold rate-limited jobs in `available` state when `on_limit` is `"wait"`": whoever asks for one, for ten
/// minutes and a dozen visibility timeouts, at no cost of an attempt; and in the end they run.
#[tokio::test(start_paused = true)]
async fn rl_003_wait() {
    let rig = Rig::with("").await;
    let client = &rig.client;
    for policy in [
        json!({"key": "k", "concurrency": 1}),
        json!({"key": "k", "concurrency": 1, "on_limit": "wait"}),
    ] {
        rig.enqueue(&job("q", policy), 2).await;
    }
    let first = client.fetch("q", 4).await;
    assert_eq!(first.len(), 1);
    for _ in 0..120 {
        assert!(client.fetch("q", 4).await.is_empty());
        let beat = json!({"worker_id": "w", "active_jobs": ids(&first)}).to_string();
        let beat = client.post("/ojs/v1/workers/heartbeat", beat).await;
        assert_eq!(beat.status, 200);
        let list = client.get("/ojs/v1/admin/jobs").await.json();
        let all = list["items"]
            .as_array()
            .or(list["jobs"].as_array())
            .unwrap();
        let waiting: Vec<&Value> = all.iter().filter(|job| id(job) != id(&first[0])).collect();
        assert_eq!(waiting.len(), 3, "{list}");
        for job in waiting {
            let job = client
                .get(&format!("/ojs/v1/jobs/{}", id(job)))
                .await
                .json();
            let job = job.get("job").unwrap_or(&job);
            assert_eq!(
                (&job["state"], &job["attempt"]),
                (&json!("available"), &json!(0))
            );
        }
        sleep(Duration::from_secs(5)).await;
    }
    client.ack(id(&first[0])).await;
    let rest = work(client, &["q"], 4, 3, various).await;
    assert_eq!(most_at_once(rest.iter()), 1);
    assert_eq!(rig.count(EventKind::Acked), 4);
    let ended = [EventKind::Expired, EventKind::Discarded, EventKind::Nacked];
    assert!(ended.iter().all(|kind| rig.count(*kind) == 0));
}

/// "skip rate-limited jobs during FETCH and assign the next eligible job": the first FETCH gets the one
/// job behind 300 limited ones; the next is "an empty response (same as an empty queue)".
#[tokio::test(start_paused = true)]
async fn rl_004_skip() {
    // This backend counts claims as attempts, so by default fewer are looked at.
    let rig = Rig::with("[hold]\nmax = 1024\n").await;
    let client = &rig.client;
    rig.enqueue(&job("q", json!({"key": "k", "concurrency": 1})), 301)
        .await;
    rig.enqueue(&job("q", json!({"key": "other", "concurrency": 1})), 1)
        .await;
    rig.enqueue(r#"{"type":"free","args":[],"options":{"queue":"q"}}"#, 1)
        .await;
    let empty = json!({"queues": ["nothing here"], "count": 1, "worker_id": "w"}).to_string();
    let empty = client.post("/ojs/v1/workers/fetch", empty).await;
    assert_eq!(client.fetch("q", 1).await[0]["rate_limit"]["key"], "k");
    let began = Instant::now();
    assert_eq!(client.fetch("q", 1).await[0]["rate_limit"]["key"], "other");
    assert_eq!(client.fetch("q", 1).await[0]["type"], "free");
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    let asked = json!({"queues": ["q"], "count": 1, "worker_id": "w"}).to_string();
    let limited = client.post("/ojs/v1/workers/fetch", asked).await;
    assert_eq!(
        (limited.status, limited.json()),
        (empty.status, empty.json())
    );
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

/// "Window-based rate limiting with `rate` field": no interval of the period, wherever it begins, has more
/// starts, and the budget is used up.
#[tokio::test(start_paused = true)]
async fn rl_r001_window() {
    for (limit, period, runs) in [(5, 10, 60), (200, 60, 700)] {
        let rig = Rig::with("").await;
        let policy =
            json!({"key": "k", "rate": {"limit": limit, "period": format!("PT{period}S")}});
        rig.enqueue(&job("q", policy), runs).await;
        let runs = work(&rig.client, &["q"], 5, runs, at_once).await;
        let period = Duration::from_secs(period);
        no_interval_has_more(&runs, limit, period);
        let span = runs[runs.len() - 1].from - runs[0].from;
        let least = period * u32::try_from((runs.len() - 1) / limit).unwrap();
        assert!(span < least + least / 8, "{span:?} for {least:?}");
        each_ran_once(&rig, &runs);
    }
}

/// "Throttling with `throttle` field and even spacing": no two starts nearer than an interval, and the
/// pace is kept.
#[tokio::test(start_paused = true)]
async fn rl_r002_throttle() {
    for (limit, interval) in [(4, 250), (50, 20)] {
        let rig = Rig::with("").await;
        let policy = json!({"key": "k", "throttle": {"limit": limit, "period": "PT1S"}});
        rig.enqueue(&job("q", policy), 101).await;
        let runs = work(&rig.client, &["q"], 5, 101, at_once).await;
        let interval = Duration::from_millis(interval);
        spaced(&runs, interval);
        let span = runs[100].from - runs[0].from;
        assert!(span < 100 * interval * 11 / 10, "{span:?}");
        each_ran_once(&rig, &runs);
    }
}

/// "Dynamic rate limiting via handler error response": jobs of the key that are out end as they like, none
/// starts before the time that the handler was told, all others go on.
#[tokio::test(start_paused = true)]
async fn rl_r003_feedback() {
    let rig = Rig::with("").await;
    let client = &rig.client;
    for key in ["vendor", "other"] {
        rig.enqueue(&job("q", json!({"key": key, "concurrency": 4})), 12)
            .await;
    }
    let out = client.fetch("q", 8).await;
    let vendor = out
        .iter()
        .filter(|job| job["rate_limit"]["key"] == "vendor");
    let vendor: Vec<&Value> = vendor.collect();
    let error = json!({"type": "RateLimitExceeded", "message": "429",
                       "rate_limit_until": "2026-02-13T12:03:00Z"});
    let nack = json!({"job_id": id(vendor[0]), "worker_id": "w", "error": error}).to_string();
    assert_eq!(client.post("/ojs/v1/workers/nack", nack).await.status, 200);
    for job in out.iter().filter(|job| id(job) != id(vendor[0])) {
        client.ack(id(job)).await;
    }
    // Eight of each are left, and the one that failed; it comes back by its own retry policy.
    let runs = work(client, &["q"], 4, 17, various).await;
    let noon = |at: Instant| rig.after_noon() - at.elapsed().as_secs_f64();
    let mut first = HashMap::<&str, f64>::new();
    for run in &runs {
        first.entry(&run.key).or_insert(noon(run.from));
    }
    assert!(first["other"] < 5.0, "{first:?}");
    assert!((179.99..183.0).contains(&first["vendor"]), "{first:?}");
}

/// "Rate limit override via `PUT /ojs/v1/rate-limits/{key}`": from the answer on until its end no start is
/// outside it, whatever the jobs bring.
#[tokio::test(start_paused = true)]
async fn rl_r004_override() {
    let rig = Rig::with("").await;
    let client = &rig.client;
    rig.enqueue(&job("q", json!({"key": "k", "concurrency": 9})), 300)
        .await;
    let set = async |body: Value| {
        let reply = client.send(Method::PUT, "/ojs/v1/rate-limits/k", &[], body.to_string());
        assert_eq!(reply.await.status, 200);
    };
    let before = work(client, &["q"], 12, 50, various).await;
    assert_eq!(most_at_once(before.iter()), 9);
    set(json!({"concurrency": 2})).await;
    let under = work(client, &["q"], 12, 50, various).await;
    assert_eq!(most_at_once(under.iter()), 2);
    set(json!({"concurrency": 12})).await;
    let looser = work(client, &["q"], 16, 50, various).await;
    assert_eq!(most_at_once(looser.iter()), 12);
    let expires = format!("2026-02-13T12:{:02}:00Z", 2 + rig.after_noon() as u64 / 60);
    set(json!({"concurrency": 0, "expires_at": expires})).await;
    let asked = rig.after_noon();
    let after = work(client, &["q"], 12, 50, various).await;
    let began = rig.after_noon() - after[0].from.elapsed().as_secs_f64();
    let ends = 60.0 * (2.0 + (asked / 60.0).floor());
    assert!((ends..ends + 3.0).contains(&began), "{began} for {ends}");
    assert_eq!(most_at_once(after.iter()), 9, "the jobs' own again");
}

/// "Queue-level rate limits via Admin API": by the backend's own record no more is out than may be, and no
/// job gets round it with limits of its own; another queue is not touched.
#[tokio::test(start_paused = true)]
async fn rl_r005_queue() {
    let rig = Rig::with("").await;
    let path = "/ojs/v1/admin/queues/q/rate-limit";
    let body = r#"{"concurrency": 3, "rate": {"limit": 40, "period": "PT1M"}}"#;
    let set = rig.client.send(Method::PUT, path, &[], body).await;
    assert_eq!(set.status, 200);
    let plain = r#"{"type":"t","args":[],"options":{"queue":"q"}}"#;
    rig.enqueue(plain, 60).await;
    let runs = work(&rig.client, &["q"], 10, 60, various).await;
    assert_eq!((most_at_once(runs.iter()), rig.most_claimed()), (3, 3));
    no_interval_has_more(&runs, 40, MINUTE);
    each_ran_once(&rig, &runs);
    sleep(MINUTE).await;
    rig.enqueue(&job("q", json!({"key": "k", "concurrency": 50})), 60)
        .await;
    let loose = work(&rig.client, &["q"], 10, 60, various).await;
    assert_eq!(most_at_once(loose.iter()), 3);
    no_interval_has_more(&loose, 40, MINUTE);
    rig.enqueue(r#"{"type":"t","args":[],"options":{"queue":"free"}}"#, 9)
        .await;
    assert_eq!(rig.client.fetch("free", 9).await.len(), 9);
}
