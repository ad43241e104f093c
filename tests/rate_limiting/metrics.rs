//! 11.2: each metric by its name, type and labels, and that it means what the text says. In the names of
//! Prometheus: dots are underscores, and a duration says its unit.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::client::id;
use crate::rig::Rig;

const JOB: &str = r#"{"type":"t","args":[],"options":{"queue":"q","rate_limit":{"key":"k","concurrency":2,"rate":{"limit":4,"period":"PT1M"}}}}"#;

/// The type of a metric, and the names of the labels of each of its series.
async fn declared(rig: &Rig, name: &str) -> (String, Vec<Vec<String>>) {
    let page = rig.admin.get("/metrics").await.text();
    let help = page
        .lines()
        .find(|line| line.starts_with(&format!("# HELP {name} ")));
    assert!(
        help.is_some_and(|help| help.len() > name.len() + 20),
        "{help:?}"
    );
    let kind = format!("# TYPE {name} ");
    let kind = page
        .lines()
        .find_map(|line| line.strip_prefix(&kind))
        .unwrap();
    let series = page
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("{name}{{")));
    let labels = series.map(|line| {
        let (labels, _) = line.split_once('}').unwrap();
        let names = labels
            .split(',')
            .map(|label| label.split('=').next().unwrap());
        names.map(str::to_owned).collect()
    });
    (kind.to_owned(), labels.collect())
}

/// `ojs.rate_limit.active`, gauge, `key`: "Current active count for concurrency."
#[tokio::test(start_paused = true)]
async fn active() {
    let rig = Rig::with("").await;
    let series = "ojs_rate_limit_active{key=\"k\"}";
    rig.enqueue(JOB, 5).await;
    let out = rig.client.fetch("q", 5).await;
    assert_eq!(rig.metric(series).await, Some(2.0));
    rig.client.ack(id(&out[0])).await;
    assert_eq!(rig.metric(series).await, Some(1.0));
    rig.client.nack(id(&out[1]), false).await;
    assert_eq!(rig.metric(series).await, Some(0.0));
    let declared = declared(&rig, "ojs_rate_limit_active").await;
    assert_eq!(declared, ("gauge".into(), vec![vec!["key".to_owned()]]));
}

/// `ojs.rate_limit.waiting`, gauge, `key`: "Jobs waiting due to rate limit."
#[tokio::test(start_paused = true)]
async fn waiting() {
    let rig = Rig::with("").await;
    let series = "ojs_rate_limit_waiting{key=\"k\"}";
    rig.enqueue(JOB, 5).await;
    let out = rig.client.fetch("q", 5).await;
    assert!(rig.client.fetch("q", 5).await.is_empty());
    assert_eq!(rig.metric(series).await, Some(3.0));
    rig.client.ack(id(&out[0])).await;
    assert_eq!(rig.client.fetch("q", 5).await.len(), 1);
    assert_eq!(rig.metric(series).await, Some(2.0));
    let declared = declared(&rig, "ojs_rate_limit_waiting").await;
    assert_eq!(declared, ("gauge".into(), vec![vec!["key".to_owned()]]));
}

/// `ojs.rate_limit.exceeded_total`, counter, `key` and `strategy`: "Total times rate limit was hit."
#[tokio::test(start_paused = true)]
async fn exceeded_total() {
    let rig = Rig::with("").await;
    rig.enqueue(JOB, 6).await;
    for _ in 0..2 {
        for job in rig.client.fetch("q", 6).await {
            rig.client.ack(id(&job)).await;
        }
    }
    for _ in 0..5 {
        assert!(rig.client.fetch("q", 6).await.is_empty());
    }
    let of = |strategy: &str| {
        format!("ojs_rate_limit_exceeded_total{{key=\"k\",strategy=\"{strategy}\"}}")
    };
    let hits = [
        rig.metric(&of("concurrency")).await,
        rig.metric(&of("rate")).await,
    ];
    assert_eq!(
        hits,
        [Some(4.0), None],
        "each job once, by what refused it first"
    );
    let other = json!({"type": "t", "args": [], "options": {"queue": "q",
        "rate_limit": {"key": "k", "rate": {"limit": 4, "period": "PT1M"}}}});
    rig.client.enqueue(other).await;
    assert!(rig.client.fetch("q", 6).await.is_empty());
    assert_eq!(rig.metric(&of("rate")).await, Some(1.0));
    let (kind, labels) = declared(&rig, "ojs_rate_limit_exceeded_total").await;
    assert_eq!(kind, "counter");
    assert!(
        labels.iter().all(|labels| *labels == ["key", "strategy"]),
        "{labels:?}"
    );
}

/// `ojs.rate_limit.wait_duration`, histogram, `key`: "Time jobs waited due to rate limits." A job that was
/// never refused did not wait.
#[tokio::test(start_paused = true)]
async fn wait_duration() {
    let rig = Rig::with("").await;
    rig.enqueue(JOB, 3).await;
    let out = rig.client.fetch("q", 3).await;
    let name = "ojs_rate_limit_wait_duration_seconds";
    assert_eq!(
        rig.metric(&format!("{name}_count{{key=\"k\"}}"))
            .await
            .unwrap_or(0.0),
        0.0
    );
    sleep(Duration::from_secs(12)).await;
    rig.client.ack(id(&out[0])).await;
    assert_eq!(rig.client.fetch("q", 3).await.len(), 1);
    assert_eq!(
        rig.metric(&format!("{name}_count{{key=\"k\"}}")).await,
        Some(1.0)
    );
    let sum = rig
        .metric(&format!("{name}_sum{{key=\"k\"}}"))
        .await
        .unwrap();
    assert!((12.0..12.5).contains(&sum), "{sum}");
    let (kind, _) = declared(&rig, name).await;
    assert_eq!(kind, "histogram");
    let page = rig.admin.get("/metrics").await.text();
    let buckets: Vec<f64> = page
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("{name}_bucket{{key=\"k\",le=\"")))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(buckets.len() > 5 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!((buckets[0], buckets[buckets.len() - 1]), (0.0, 1.0));
}
