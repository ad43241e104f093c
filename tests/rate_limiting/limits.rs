//! What limits do: sections 5 to 8 and the examples of section 14.

use ojs_throttle::backend::Backend;

use super::prelude::*;
use crate::sidecar::simulated::Pair;

fn limited(queue: &str, n: usize, rate_limit: Value) -> Value {
    json!({"type": "test.limit", "args": [n],
           "options": {"queue": queue, "rate_limit": rate_limit}})
}

async fn enqueue_many(client: &Client, n: usize, job: impl Fn(usize) -> Value) -> Vec<String> {
    let mut ids = Vec::new();
    for nth in 0..n {
        ids.push(client.enqueue(job(nth)).await);
    }
    ids
}

/// 6.2: "All jobs with the same `key` value share the same rate limit counters", also those that name other windows, or
/// none: "the backend MUST track the number of job starts for this key".
#[tokio::test(start_paused = true)]
async fn jobs_of_one_key_share_its_counters_whatever_limits_they_bring() {
    let first = json!({"key": "k", "rate": {"limit": 3, "period": "PT10S"}});
    for other in [
        json!({"key": "k", "concurrency": 50}),
        json!({"key": "k"}),
        json!({"key": "k", "rate": {"limit": 50, "period": "PT1S"}}),
        json!({"key": "k", "rate": {"limit": 50, "period": "PT1S", "window": "fixed"}}),
        json!({"key": "k", "throttle": {"limit": 50, "period": "PT1S", "burst": 9}}),
    ] {
        let (_pair, client) = simulated(Lax::spec(), "").await;
        enqueue_many(&client, 8, |n| limited("a", n, first.clone())).await;
        enqueue_many(&client, 8, |n| limited("b", n, other.clone())).await;
        assert_eq!(client.fetch("a", 1).await.len(), 1, "{other}");
        assert_eq!(client.fetch("b", 4).await.len(), 4, "{other}");
        assert!(
            client.fetch("a", 1).await.is_empty(),
            "{other}: five of three"
        );
        assert_eq!(
            client.fetch("b", 1).await.len(),
            1,
            "{other}: it has its own limits"
        );
        let shown = client.get("/ojs/v1/rate-limits/k").await.json();
        assert_eq!(shown["rate"]["limit"], 3, "{other}: {shown}");
        assert_eq!(shown["rate"]["current_count"], 6, "{other}: {shown}");
        sleep(Duration::from_secs(11)).await;
        assert_eq!(client.fetch("b", 2).await.len(), 2, "{other}");
        assert_eq!(
            client.fetch("a", 4).await.len(),
            1,
            "{other}: one of three is left"
        );
    }
}

/// The same for spacing, and for limits of the file.
#[tokio::test(start_paused = true)]
async fn jobs_of_one_key_are_spaced_from_each_other_whatever_limits_they_bring() {
    let file = "[[policy]]\nname = 'p'\nmatch = { queue = 'b' }\nkey = 'k'\nconcurrency = 50\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let spaced = json!({"key": "k", "throttle": {"limit": 1, "period": "PT2S"}});
    enqueue_many(&client, 8, |n| limited("a", n, spaced.clone())).await;
    for n in 0..20 {
        let job = json!({"type": "t", "args": [n], "options": {"queue": "b"}});
        client.enqueue(job).await;
    }
    assert_eq!(client.fetch("a", 1).await.len(), 1);
    for _ in 0..3 {
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(client.fetch("b", 2).await.len(), 2);
        assert!(
            client.fetch("a", 1).await.is_empty(),
            "2 s from the last start"
        );
    }
    sleep(Duration::from_millis(2_100)).await;
    assert_eq!(client.fetch("a", 2).await.len(), 1);
}

/// Windows in which a job's start only counts are shown as limits of it neither in the list of keys nor in `why`.
#[tokio::test(start_paused = true)]
async fn windows_of_other_jobs_are_no_limits_of_a_job() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let windowed = json!({"key": "k", "rate": {"limit": 3, "period": "PT10S"}});
    let slots = json!({"key": "k", "concurrency": 1});
    enqueue_many(&client, 1, |n| limited("a", n, windowed.clone())).await;
    let jobs = enqueue_many(&client, 2, |n| limited("b", n, slots.clone())).await;
    assert_eq!(client.fetch("b", 2).await.len(), 1);
    let why = format!("/throttle/v1/why?job={}", jobs[1]);
    let why = pair.sidecar.admin().get(&why).await.json();
    let limits = why["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 1, "{why}");
    assert!(!why.to_string().contains("4294967295"), "{why}");
    assert!(!why.to_string().contains("1000000"), "{why}");
    let all = client.get("/ojs/v1/rate-limits").await.text();
    assert!(!all.contains("4294967295"), "{all}");
}

/// 5.1, RL-001: the job "MUST be assigned to a worker when the concurrency count decreases (via ACK,
/// FAIL, or visibility timeout expiry)", and not before.
#[tokio::test(start_paused = true)]
async fn one_at_a_time_until_ack_nack_or_expiry() {
    for lax in [Lax::spec(), Lax::redis(), Lax::lite()] {
        let name = lax.name;
        let (pair, client) = simulated(lax, "").await;
        let one = || json!({"key": "k", "concurrency": 1});
        let jobs = enqueue_many(&client, 4, |n| limited("q", n, one())).await;

        let first = client.fetch("q", 2).await;
        assert_eq!(ids(&first), [&jobs[0]], "{name}: exactly one of two");
        assert!(client.fetch("q", 2).await.is_empty(), "{name}");

        client.ack(&jobs[0]).await;
        let second = client.fetch("q", 4).await;
        assert_eq!(ids(&second), [&jobs[1]], "{name}: after ACK");

        client.nack(&jobs[1], false).await;
        let asked = json!({"queues": ["q"], "count": 4, "worker_id": "w",
                           "visibility_timeout_ms": 3000});
        let third = client.fetch_as(asked).await;
        assert_eq!(ids(&third), [&jobs[2]], "{name}: after nack");

        // Nobody settles it and nobody sends heartbeats.
        let began = Instant::now();
        sleep(Duration::from_millis(2000)).await;
        assert!(
            client.fetch("q", 1).await.is_empty(),
            "{name}: not before 3 s"
        );
        let fourth = loop {
            let jobs = client.fetch("q", 1).await;
            if let [job] = jobs.as_slice() {
                break job.clone();
            }
            assert!(
                began.elapsed() < Duration::from_secs(6),
                "{name}: no start after expiry"
            );
        };
        assert!(began.elapsed() >= Duration::from_secs(3), "{name}");
        assert!(
            [&jobs[2], &jobs[3]].contains(&&id(&fourth).to_owned()),
            "{name}"
        );
        assert!(
            client.fetch("q", 1).await.is_empty(),
            "{name}: one after expiry too"
        );
        pair.stop().await;
    }
}

/// Whether the backend has taken this one back from who had claimed it.
fn lapsed(backend: &Backend, job: &str) -> bool {
    let ledger = backend.ledger();
    (ledger.iter()).any(|event| event.kind == EventKind::Expired && *event.job == *job)
}

/// Where claims last from their start too: a heartbeat for a job that has run for long extends none by more than
/// it asks.
#[tokio::test(start_paused = true)]
async fn a_long_job_does_not_keep_a_short_one() {
    for lax in [Lax::spec(), Lax::lite()] {
        let name = lax.name;
        let (pair, client) = simulated(lax, "").await;
        let two = || json!({"key": "k", "concurrency": 2});
        let jobs = enqueue_many(&client, 2, |n| limited("q", n, two())).await;
        let asked = json!({"queues": ["q"], "count": 1, "worker_id": "w",
                           "visibility_timeout_ms": 3000});
        let beat = async |jobs: &[String]| {
            let beat =
                json!({"worker_id": "w", "active_jobs": jobs, "visibility_timeout_ms": 3000});
            let reply = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
            let extended = reply.await.json()["jobs_extended"].take();
            assert_eq!(extended.as_array().unwrap().len(), jobs.len(), "{name}");
        };
        assert_eq!(ids(&client.fetch_as(asked.clone()).await), [&jobs[0]]);
        for _ in 0..15 {
            sleep(Duration::from_secs(1)).await;
            beat(&jobs[..1]).await;
        }
        assert_eq!(ids(&client.fetch_as(asked).await), [&jobs[1]]);
        beat(&jobs).await;
        sleep(Duration::from_millis(4_600)).await;
        assert!(
            jobs.iter().all(|job| lapsed(&pair.behind.backend, job)),
            "{name}"
        );
        pair.stop().await;
    }
}

/// The same of held jobs, should the sidecar die.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_long_does_not_keep_what_is_not() {
    let none = "[[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 0\n";
    let (pair, client) = simulated(Lax::lite(), none).await;
    let one = || json!({"type": "t", "args": [], "options": {"queue": "q"}});
    let long = client.enqueue(one()).await;
    assert!(client.fetch("q", 2).await.is_empty());
    sleep(Duration::from_secs(60)).await;
    let short = client.enqueue(one()).await;
    assert!(client.fetch("q", 2).await.is_empty());
    // Both have had a heartbeat since.
    sleep(Duration::from_secs(15)).await;
    let Pair { behind, sidecar } = pair;
    sidecar.stop().await;
    sleep(Duration::from_secs(31)).await;
    assert!(lapsed(&behind.backend, &long));
    assert!(lapsed(&behind.backend, &short));
    behind.stop().await;
}

/// 6.2, RL-002: "All jobs with the same `key` value share the same rate limit counters", others do
/// not; also across queues.
#[tokio::test(start_paused = true)]
async fn counters_belong_to_the_key() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    for n in 0..2 {
        for key in ["a", "b"] {
            client
                .enqueue(limited("q", n, json!({"key": key, "concurrency": 1})))
                .await;
        }
    }
    let other = client
        .enqueue(limited("other", 0, json!({"key": "a", "concurrency": 1})))
        .await;
    let started = client.fetch("q", 4).await;
    let mut keys: Vec<&str> = started
        .iter()
        .map(|j| j["rate_limit"]["key"].as_str().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"], "one of each key");
    assert!(
        client.fetch("other", 1).await.is_empty(),
        "the key is taken in another queue"
    );
    let a = started
        .iter()
        .find(|job| job["rate_limit"]["key"] == "a")
        .unwrap();
    client.ack(id(a)).await;
    assert_eq!(ids(&client.fetch("other", 1).await), [&other]);
    pair.stop().await;
}

/// 8.1, RL-004: skip the limited job, assign the next eligible one in the same FETCH, and answer
/// empty as an empty queue does.
#[tokio::test(start_paused = true)]
async fn a_limited_job_is_skipped_in_the_same_fetch() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let one = |key: &str| json!({"key": key, "concurrency": 1});
    let a = enqueue_many(&client, 24, |n| limited("q", n, one("a"))).await;
    let free = client
        .enqueue(json!({"type": "test.free", "args": [], "options": {"queue": "q"}}))
        .await;
    let b = client.enqueue(limited("q", 1, one("b"))).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&a[0]]);
    assert_eq!(
        ids(&client.fetch("q", 1).await),
        [&free],
        "past 23 that may not start"
    );
    assert_eq!(ids(&client.fetch("q", 1).await), [&b]);
    let began = Instant::now();
    let body = json!({"queues": ["q"], "count": 3, "worker_id": "w"}).to_string();
    let empty = client.post("/ojs/v1/workers/fetch", body).await;
    assert_eq!(
        (empty.status, empty.text().as_str()),
        (200, r#"{"jobs":[]}"#)
    );
    assert!(began.elapsed() <= Duration::from_millis(600));
    pair.stop().await;
}

/// 8.3: waiting counts towards neither visibility nor retry delay, and a failed job follows its own
/// retry policy.
#[tokio::test(start_paused = true)]
async fn waiting_costs_no_attempt_and_no_time() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let job = |n: usize| {
        json!({"type": "t", "args": [n], "options": {"queue": "q", "visibility_timeout_ms": 5000,
               "retry": {"max_attempts": 2, "initial_interval": "PT1S"},
               "rate_limit": {"key": "k", "rate": {"limit": 1, "period": "PT2M"}}}})
    };
    let jobs = enqueue_many(&client, 2, job).await;
    assert_eq!(ids(&client.fetch("q", 2).await), [&jobs[0]]);
    client.ack(&jobs[0]).await;
    let began = Instant::now();
    let second = loop {
        match client.fetch("q", 2).await.as_slice() {
            [] => sleep(Duration::from_secs(1)).await,
            [job] => break job.clone(),
            more => panic!("{} at once", more.len()),
        }
    };
    assert_eq!(
        (id(&second), &second["attempt"]),
        (jobs[1].as_str(), &json!(1))
    );
    assert!(
        began.elapsed() > Duration::from_secs(115) && began.elapsed() < Duration::from_secs(123)
    );
    let kinds = [EventKind::Expired, EventKind::Discarded, EventKind::Nacked];
    let ledger = pair.behind.backend.ledger();
    assert!(
        !ledger.iter().any(|event| kinds.contains(&event.kind)),
        "{ledger:#?}"
    );
    // Its whole visibility is left.
    sleep(Duration::from_secs(4)).await;
    let nacked = client.nack(&jobs[1], true).await.json();
    assert_eq!(
        (&nacked["state"], &nacked["attempt"]),
        (&json!("retryable"), &json!(1))
    );
    pair.stop().await;
}

/// Windows with edges, of a policy in the file and of one that a job brings: what is left of one may start at its
/// end and all of the next at its beginning, each no more than its limit. In March Oslo has a day of 23 hours.
#[tokio::test(start_paused = true)]
async fn a_window_with_edges_begins_anew_at_each() {
    let fixed = r#"{"limit":3,"period":"PT1H","window":"fixed"}"#;
    let day = r#"{"limit":3,"period":"P1D","window":"calendar","tz":"Europe/Oslo"}"#;
    for (window, began, edges) in [
        (
            fixed,
            "2026-02-13T12:59:58Z",
            ["2026-02-13T13:00:00.000Z", "2026-02-13T14:00:00.000Z"],
        ),
        (
            day,
            "2026-02-13T22:59:58Z",
            ["2026-02-13T23:00:00.000Z", "2026-02-14T23:00:00.000Z"],
        ),
        (
            day,
            "2026-03-28T22:59:58Z",
            ["2026-03-28T23:00:00.000Z", "2026-03-29T22:00:00.000Z"],
        ),
    ] {
        let in_file = window.replace("\":", "\" = ");
        let policy = format!("[[policy]]\nname = \"k\"\nkey = \"k\"\nrate = {in_file}\n");
        let brought = format!(r#""rate_limit":{{"key":"k","rate":{window}}},"#);
        for (config, brought) in [(policy.as_str(), ""), ("", brought.as_str())] {
            let began: jiff::Timestamp = began.parse().unwrap();
            let began = u64::try_from(began.as_microsecond()).unwrap();
            let rig = Rig::over(Arc::new(MemoryStore::new(began)), config).await;
            rig.enqueue(&format!(r#"{{{brought}"type":"t","args":[]}}"#), 9)
                .await;
            let begun = Instant::now();
            for (nth, edge) in edges.into_iter().enumerate() {
                // The first edge is 2 s from the beginning.
                let from = Duration::from_secs(2) * u32::try_from(nth).unwrap();
                assert_eq!(next_starts(&rig.client).await, 3, "{window}");
                let late = begun.elapsed().checked_sub(from);
                let soon = late.is_some_and(|late| late < Duration::from_millis(600));
                assert!(soon, "{window}: {late:?} after {from:?}");
                let rate = rig.inspect("k").await["rate"].clone();
                let seen = (&rate["current_count"], &rate["window_resets_at"]);
                assert_eq!(seen, (&json!(3), &json!(edge)));
            }
            sleep(Duration::from_secs(60)).await;
            assert!(rig.client.fetch("default", 9).await.is_empty(), "{window}");
        }
    }
}

/// Asks until something starts, at most ten seconds, and until nothing more does; how many did.
async fn next_starts(client: &Client) -> usize {
    let (began, mut started) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(10) {
        let more = client.fetch("default", 9).await.len();
        if more == 0 && started > 0 {
            break;
        }
        started += more;
        sleep(Duration::from_millis(10)).await;
    }
    started
}

/// A window counts starts, not jobs: one that fails and is tried again takes from it each time, and one that is
/// used up lets a retry wait like any other job.
#[tokio::test(start_paused = true)]
async fn a_retry_is_counted_again_in_a_rate() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let policy = json!({"key": "k", "rate": {"limit": 2, "period": "PT30S"}});
    let retry = json!({"max_attempts": 9, "initial_interval": "PT1S", "max_interval": "PT1S"});
    let job = json!({"type": "t", "args": [],
        "options": {"queue": "q", "retry": retry, "rate_limit": policy}});
    let job = client.enqueue(job).await;
    let (began, mut starts) = (Instant::now(), Vec::new());
    while starts.len() < 5 {
        for started in client.fetch("q", 5).await {
            assert_eq!(id(&started), job);
            starts.push((
                began.elapsed().as_secs(),
                started["attempt"].as_u64().unwrap(),
            ));
            client.nack(&job, true).await;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{starts:?}");
        sleep(Duration::from_millis(100)).await;
    }
    let seconds: Vec<_> = starts.iter().map(|(seconds, _)| *seconds).collect();
    let attempts: Vec<_> = starts.iter().map(|(_, attempt)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5], "one job, started so often");
    for (nth, three) in seconds.windows(3).enumerate() {
        assert!(
            (30..32).contains(&(three[2] - three[0])),
            "{nth}: {seconds:?}"
        );
    }
    let seen = client.get("/ojs/v1/rate-limits/k").await.json();
    assert!(seconds[1] < 5, "{seconds:?}");
    assert_eq!(seen["rate"]["current_count"], 2, "{seconds:?}");
    pair.stop().await;
}

/// A worker that died with a job of a queue without limits, which it had asked for beside a limited one: whoever
/// gets the job next settles it under its own id.
#[tokio::test(start_paused = true)]
async fn a_job_without_limits_is_its_next_workers() {
    for (verb, body) in [
        ("ack", json!({"result": {}})),
        ("nack", json!({"error": {"code": "x", "message": "x"}})),
    ] {
        let (pair, client) =
            simulated(Lax::spec(), "[[queue]]\nname = 'lim'\nconcurrency = 2").await;
        let job = client
            .enqueue(json!({"type": "t", "args": [], "options": {"queue": "free"}}))
            .await;
        let asks = |queues: &[&str], worker: &str| json!({"queues": queues, "worker_id": worker, "visibility_timeout_ms": 2_000});
        sleep(Duration::from_millis(130)).await;
        let died = client.fetch_as(asks(&["lim", "free"], "A")).await;
        assert_eq!(ids(&died), [&job]);
        // Before its row is looked at.
        sleep(Duration::from_millis(2_010)).await;
        let next = client.fetch_as(asks(&["free"], "B")).await;
        assert_eq!(ids(&next), [&job]);
        let mut body = body.clone();
        body["worker_id"] = json!("B");
        body["job_id"] = json!(job);
        let path = format!("/ojs/v1/workers/{verb}");
        let reply = client.post(&path, body.to_string()).await;
        assert_eq!(reply.status, 200, "{verb}: {}", reply.text());
        pair.stop().await;
    }
}

/// A worker that comes too late speaks of a run that is over. It has never had the claim that waits here.
#[tokio::test(start_paused = true)]
async fn a_late_nack_ends_no_claim_that_is_held() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let job = |priority: i64| {
        json!({"type": "test.limit", "args": [], "options": {"queue": "q", "priority": priority,
               "retry": {"max_attempts": 2}, "rate_limit": {"key": "k", "concurrency": 1}}})
    };
    let late = client.enqueue(job(0)).await;
    let short =
        json!({"queues": ["q"], "count": 1, "worker_id": "late", "visibility_timeout_ms": 1000});
    assert_eq!(ids(&client.fetch_as(short).await), [&late]);
    let other = client.enqueue(job(9)).await;
    sleep(Duration::from_secs(5)).await;
    let long =
        json!({"queues": ["q"], "count": 2, "worker_id": "w", "visibility_timeout_ms": 600_000});
    assert_eq!(ids(&client.fetch_as(long).await), [&other]);
    let held = client.get(&format!("/ojs/v1/jobs/{late}")).await.json();
    let error = json!({"code": "handler_error", "message": "no", "retryable": true});
    let nack = json!({"job_id": late, "worker_id": "late", "error": error});
    let reply = client.post("/ojs/v1/workers/nack", nack.to_string()).await;
    assert_eq!(reply.status, 409, "{held}: {}", reply.text());
    client.ack(&other).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&late]);
    pair.stop().await;
}

/// With the store in memory it costs nothing to know them all.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_keeps_as_many_jobs_as_one_worker_has() {
    let policy = "[[policy]]\nname = 'p'\nmatch = { queue = 'q' }\nkey = 'k'\nconcurrency = 5000\n";
    let (pair, client) = simulated(Lax::spec(), policy).await;
    enqueue_many(
        &client,
        1_200,
        |n| json!({"type": "t", "args": [n], "options": {"queue": "q"}}),
    )
    .await;
    let mut jobs = Vec::new();
    while jobs.len() < 1_200 {
        let more = client.fetch("q", 400).await;
        assert!(!more.is_empty());
        jobs.extend(ids(&more).into_iter().map(str::to_owned));
    }
    let beat = json!({"worker_id": "w", "active_jobs": jobs});
    let reply = client
        .post("/ojs/v1/workers/heartbeat", beat.to_string())
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let kept = reply.json()["jobs_extended"].as_array().map(Vec::len);
    assert_eq!(kept, Some(1_200));
    pair.stop().await;
}
