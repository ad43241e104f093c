//! 11.2: each metric by its name, type and labels, and that it means what the text says. In the names of
//! Prometheus: dots are underscores, and a duration says its unit.

use ojs_throttle::store::Store;
use ojs_throttle::store::guard::{Guard, OnStoreError};

use super::prelude::*;

const JOB: &str = r#"{"type":"t","args":[],"options":{"queue":"q","rate_limit":{"key":"k","concurrency":2,"rate":{"limit":4,"period":"PT1M"}}}}"#;

/// The type of a metric, and the names of the labels of each of its series.
async fn declared(rig: &Rig, name: &str) -> (String, Vec<Vec<String>>) {
    let page = rig.admin.get("/metrics").await.text();
    let mut lines = page.lines();
    let help = lines.find(|line| line.starts_with(&format!("# HELP {name} ")));
    let helps = help.is_some_and(|help| help.len() > name.len() + 20);
    assert!(helps, "{help:?}");
    let kind = format!("# TYPE {name} ");
    let kind = page
        .lines()
        .find_map(|line| line.strip_prefix(&kind))
        .unwrap();
    let begin = format!("{name}{{");
    let series = page.lines().filter_map(|line| line.strip_prefix(&begin));
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

/// Jobs of a queue that is out of room wait in the backend, and count all the same, also where they wait for a key without a
/// series of its own.
#[tokio::test(start_paused = true)]
async fn waiting_in_a_queue_out_of_room() {
    let slots = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 1\n";
    let spaced = "[[queue]]\nname = \"slow\"\nthrottle = { limit = 1, period = \"20s\" }\n";
    let shared = format!("[metrics]\ntop_keys = 0\n{slots}");
    for (config, queue, key) in [
        (slots, "billing", "stripe"),
        (spaced, "slow", "_queue:slow"),
        (&shared, "billing", "_other"),
    ] {
        let rig = Rig::with(config).await;
        rig.client.enqueue_all(3, &plain(queue)).await;
        assert_eq!(rig.client.fetch(queue, 3).await.len(), 1, "{key}");
        assert!(rig.client.fetch(queue, 3).await.is_empty(), "{key}");
        let series = format!("ojs_rate_limit_waiting{{key=\"{key}\"}}");
        assert_eq!(rig.metric(&series).await, Some(2.0), "{key}");
    }
}

/// A nack that finds its key shut for longer shuts nothing.
#[tokio::test(start_paused = true)]
async fn only_nacks_that_shut_a_key_are_counted() {
    let rig = Rig::with("").await;
    rig.enqueue(JOB, 2).await;
    let out = rig.client.fetch("q", 2).await;
    for (job, seconds) in out.iter().zip([60, 20]) {
        let error = json!({"type": "rate_limited", "message": "no", "retry_after": seconds});
        rig.client.nack_with(id(job), error).await;
    }
    let series = "ojs_throttle_downstream_rate_limited_total{policy=\"job\"}";
    assert_eq!(rig.metric(series).await, Some(1.0));
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
    let as_said = labels.iter().all(|labels| *labels == ["key", "strategy"]);
    assert!(as_said, "{labels:?}");
}

/// `ojs.rate_limit.wait_duration`, histogram, `key`: "Time jobs waited due to rate limits." A job that was
/// never refused did not wait.
#[tokio::test(start_paused = true)]
async fn wait_duration() {
    let rig = Rig::with("").await;
    rig.enqueue(JOB, 3).await;
    let out = rig.client.fetch("q", 3).await;
    let name = "ojs_rate_limit_wait_duration_seconds";
    let (count, sum) = (
        format!("{name}_count{{key=\"k\"}}"),
        format!("{name}_sum{{key=\"k\"}}"),
    );
    assert_eq!(rig.metric(&count).await.unwrap_or(0.0), 0.0);
    sleep(Duration::from_secs(12)).await;
    rig.client.ack(id(&out[0])).await;
    assert_eq!(rig.client.fetch("q", 3).await.len(), 1);
    assert_eq!(rig.metric(&count).await, Some(1.0));
    let sum = rig.metric(&sum).await.unwrap();
    assert!((12.0..12.5).contains(&sum), "{sum}");
    let (kind, _) = declared(&rig, name).await;
    assert_eq!(kind, "histogram");
    let page = rig.admin.get("/metrics").await.text();
    let bucket = format!("{name}_bucket{{key=\"k\",le=\"");
    let lines = page.lines().filter(|line| line.starts_with(&bucket));
    let numbers = lines.map(|line| line.rsplit_once(' ').unwrap().1);
    let buckets: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
    assert!(buckets.len() > 5 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!((buckets[0], buckets[buckets.len() - 1]), (0.0, 1.0));
}

/// What may be, beside what is used: the numbers of the file, and an override of the one key of a policy.
#[tokio::test(start_paused = true)]
async fn limits_in_force() {
    let rig = Rig::with(
        "[[policy]]\nname = \"one\"\nkey = \"k\"\nmatch = { queue = \"q\" }\nconcurrency = 5\n\
         rate = [{ limit = 100, period = \"60s\" }, { limit = 900, period = \"P1M\", window = \"calendar\" }]\n\
         throttle = { interval = \"250ms\" }\n\
         [[policy]]\nname = \"joins\"\nkey = \"k\"\nmatch = { queue = \"r\" }\n\
         [[policy]]\nname = \"each\"\nkey = \"e:{meta.a}\"\nmatch = { queue = \"q\" }\nconcurrency = 7\n\
         [[queue]]\nname = \"mail-*\"\nconcurrency = 20\n",
    )
    .await;
    let limit = async |labels: &str| {
        let of = match labels.contains("strategy") {
            true => "starts",
            false => "slots",
        };
        let series = format!("ojs_throttle_{of}_limit{{{labels}}}");
        rig.metric(&series).await
    };
    let slots = "policy=\"one\"";
    for (labels, number) in [
        (slots, 5.0),
        (
            r#"policy="one",strategy="rate",period="PT1M",window="sliding""#,
            100.0,
        ),
        (
            r#"policy="one",strategy="rate",period="P1M",window="calendar""#,
            900.0,
        ),
        (r#"policy="one",strategy="throttle",period="PT0.25S""#, 1.0),
        (r#"policy="joins""#, 5.0),
        (r#"policy="each""#, 7.0),
        (r#"policy="queue",queue="mail-*""#, 20.0),
    ] {
        assert_eq!(limit(labels).await, Some(number), "{labels}");
    }
    rig.client.limit("k", json!({"concurrency": 2})).await;
    assert_eq!(limit(slots).await, Some(2.0));
    rig.client.delete("/ojs/v1/rate-limits/k").await;
    assert_eq!(limit(slots).await, Some(5.0));
}

/// Somebody paused a key and forgot it.
#[tokio::test(start_paused = true)]
async fn paused_keys() {
    let rig = Rig::with("").await;
    let numbers = async || {
        let set = rig.metric("ojs_throttle_overrides_active").await.unwrap();
        (set, rig.metric("ojs_throttle_paused_keys").await.unwrap())
    };
    assert_eq!(numbers().await, (0.0, 0.0));
    rig.enqueue(JOB, 1).await;
    rig.client.limit("k", json!({"concurrency": 0})).await;
    rig.client.limit("b", json!({"concurrency": 1})).await;
    let queue = "/ojs/v1/admin/queues/q/rate-limit";
    rig.client.set(queue, json!({"concurrency": 0})).await;
    assert_eq!(numbers().await, (3.0, 2.0));
    rig.client.delete(queue).await;
    assert_eq!(numbers().await, (2.0, 1.0));
}

/// A store that fails now and then is up, and still something is wrong with it.
#[tokio::test(start_paused = true)]
async fn store_errors() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    let guarded = Guard::new(store.clone(), OnStoreError::Share);
    let rig = Rig::over(Store::shared(Arc::new(guarded)), "").await;
    let numbers = async || {
        let failed = rig.metric("ojs_throttle_store_errors_total").await.unwrap();
        (rig.metric("ojs_throttle_store_up").await.unwrap(), failed)
    };
    rig.enqueue(JOB, 2).await;
    assert_eq!(rig.client.fetch("q", 1).await.len(), 1);
    assert_eq!(numbers().await, (1.0, 0.0));
    for n in [1.0, 2.0] {
        store.script([Fault::gone()]);
        sleep(Duration::from_secs(2)).await;
        rig.client.fetch("q", 1).await;
        assert_eq!(numbers().await, (1.0, n));
    }
}

/// What a single sidecar started before it lost its store, and without it, is never more than its limits allow.
#[tokio::test(start_paused = true)]
async fn alone_without_the_store_limits_hold_over_the_loss() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    store.seems_alone();
    let guarded = Guard::new(store.clone(), OnStoreError::Share);
    let limits = "[[policy]]\nname = \"r\"\nmatch = { queue = \"q\" }\nrate = { limit = 5, period = \"10s\" }\n";
    let rig = Rig::over(Store::shared(Arc::new(guarded)), limits).await;
    let job = r#"{"type":"t","args":[],"options":{"queue":"q"}}"#;
    rig.enqueue(job, 60).await;
    let mut starts = Vec::new();
    for step in 0..90 {
        if step == 30 {
            store.standing(Some(Fault::gone()));
        }
        let came = rig.client.fetch("q", 1).await;
        starts.extend(came.iter().map(|_| Instant::now()));
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(rig.metric("ojs_throttle_store_up").await, Some(0.0));
    assert!(starts.len() > 10, "{}", starts.len());
    let period = Duration::from_millis(9_990);
    assert!(starts.windows(6).all(|six| six[5] - six[0] >= period));
}
