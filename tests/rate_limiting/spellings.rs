//! Every form in which OJS documents, SDKs, command line and admin UI write one thing: all are read, and
//! what is sent has what each of them reads.

use super::prelude::*;
use crate::harness::table;

/// Where a limit is said: in the options of a job, as a job that says no more, or in a PUT to a path.
const BRINGS: &str = "brings";
const JOB: &str = "job";
const KEY: &str = "/ojs/v1/rate-limits/k";
const OVERRIDE: &str = "/ojs/v1/rate-limits/k/override";
const QUEUE: &str = "/ojs/v1/admin/queues/q/rate-limit";
const CONFIG: &str = "/ojs/v1/admin/queues/q/config";

/// By where it is said: each form, what must be seen then, and in whose words it is.
const FORMS: [(&str, &str); 6] = [
    (
        BRINGS,
        r#"
        // throttle: text; text, duration; website; website, duration
        {"key":"k","throttle":{"limit":10,"period":"PT1S"}} => {"throttle":{"limit":10,"period":"PT1S"}}
        {"key":"k","throttle":{"limit":10,"period":"1s"}} => {"throttle":{"limit":10,"period":"PT1S"}}
        {"key":"k","throttle":{"interval":"PT0.1S"}} => {"throttle":{"limit":1,"period":"PT0.1S"}}
        {"key":"k","throttle":{"interval":"100ms"}} => {"throttle":{"limit":1,"period":"PT0.1S"}}
        // text; L4-RL-001; EXT-RL-004; flat; several windows; nothing said
        {"key":"k","concurrency":2} => {"concurrency":{"limit":2}}
        {"key":"k","max_per_second":3} => {"throttle":{"limit":3,"period":"PT1S"}}
        {"key":"k","rate":1,"period":"second"} => {"rate":{"limit":1,"period":"PT1S"}}
        {"key":"k","limit":1,"period":"1s"} => {"rate":{"limit":1,"period":"PT1S"}}
        {"key":"k","rate":[{"limit":7,"period":"1s"},{"limit":8,"period":"1m"}]} => {"rate":{"limit":7,"period":"PT1S"},"rate_2":{"limit":8,"period":"PT1M"}}
        {"key":"k","concurrency":2,"rate":null,"throttle":null,"on_limit":"wait"} => {"concurrency":{"limit":2}}
    "#,
    ),
    (
        JOB,
        r#"
        // SDKs, in their options; conformance; the text's examples; SDKs without it
        {"options":{"metadata":{"ojs.rate_limit":{"key":"k","concurrency":2}}}} => {"concurrency":{"limit":2}}
        {"options":{"rate_limit":{"key":"k","concurrency":2}}} => {"concurrency":{"limit":2}}
        {"rate_limit":{"key":"k","concurrency":2}} => {"concurrency":{"limit":2}}
        {"meta":{"ojs.rate_limit":{"key":"k","concurrency":2}}} => {"concurrency":{"limit":2}}
    "#,
    ),
    (
        KEY,
        r#"
        // text; admin UI
        {"throttle":{"limit":10,"period":"PT1S"}} => {"throttle":{"limit":10,"period":"PT1S"}}
        {"concurrency":0,"expires_at":"2026-02-13T13:00:00Z"} => {"concurrency":{"limit":0}}
        {"limit":7,"period":"PT1M","expires_at":"2026-02-13T13:00:00Z"} => {"rate":{"limit":7,"period":"PT1M"}}
    "#,
    ),
    (
        OVERRIDE,
        r#"
        // command line; admin UI
        {"concurrency":0,"expires_at":"2026-02-13T13:00:00Z"} => {"concurrency":{"limit":0}}
        {"limit":7,"period":"PT1M","expires_at":"2026-02-13T13:00:00Z"} => {"rate":{"limit":7,"period":"PT1M"}}
    "#,
    ),
    (
        QUEUE,
        r#"
        // text
        {"rate":{"limit":1000,"period":"PT1H"}} => {"rate":{"limit":1000,"period":"PT1H"}}
        {"concurrency":20} => {"concurrency":{"limit":20}}
    "#,
    ),
    (
        CONFIG,
        r#"
        // admin API
        {"rate_limit":{"limit":1000,"period":"PT1H"}} => {"rate":{"limit":1000,"period":"PT1H"}}
        {"concurrency":20} => {"concurrency":{"limit":20}}
    "#,
    ),
];

/// The members of both objects.
fn with(mut object: Value, more: &Value) -> Value {
    let members = more.as_object().unwrap().clone();
    object.as_object_mut().unwrap().extend(members);
    object
}

#[tokio::test(start_paused = true)]
async fn every_form_of_a_limit_is_read() {
    let mut forms = 0;
    for (place, rows) in FORMS {
        for (form, shows) in table(rows) {
            let rig = Rig::with("").await;
            let said: Value = serde_json::from_str(form).unwrap();
            let shows: Value = serde_json::from_str(shows).unwrap();
            let job = json!({"type": "t", "args": []});
            match place {
                JOB => drop(rig.client.enqueue(with(job, &said)).await),
                BRINGS => {
                    let options = json!({"options": {"queue": "q", "rate_limit": said}});
                    rig.client.enqueue(with(job, &options)).await;
                }
                path => drop(rig.client.set(path, said).await),
            }
            let seen = match place {
                QUEUE | CONFIG => rig.client.get(QUEUE).await.json(),
                _ => rig.inspect("k").await,
            };
            let wanted = shows.as_object().unwrap();
            if [JOB, BRINGS].contains(&place) {
                let shown = ["concurrency", "rate", "rate_2", "throttle"];
                let shown = shown.into_iter().filter(|name| seen.get(name).is_some());
                assert!(shown.eq(wanted.keys()), "{form}: {seen}");
            }
            for (limit, members) in wanted {
                for (member, value) in members.as_object().unwrap() {
                    assert_eq!(&seen[limit][member], value, "{place} {form}: {seen}");
                }
            }
            forms += 1;
        }
    }
    assert_eq!(forms, 23);
}

/// The three ways in which a queue's bound is written, and the refusal with the headers of the text and
/// the one of the website.
#[tokio::test(start_paused = true)]
async fn every_form_of_a_bound() {
    for body in [
        json!({"backpressure": {"max_depth": 2, "max_size_bytes": 1_000_000, "strategy": "reject", "warning_threshold": 0.5}}),
        json!({"capacity": {"max_depth": 2, "max_size_bytes": 1_000_000, "on_overflow": "reject"}}),
        json!({"max_size": 2, "max_size_bytes": 1_000_000, "overflow_policy": "reject"}),
    ] {
        let rig = Rig::with("").await;
        rig.client.set(CONFIG, body.clone()).await;
        let job = r#"{"type":"t","args":[],"options":{"queue":"q"}}"#;
        let mut last = rig.client.post("/ojs/v1/jobs", job).await;
        for _ in 0..2 {
            assert_eq!(last.status, 201, "{body}");
            last = rig.client.post("/ojs/v1/jobs", job).await;
        }
        assert_eq!(last.status, 429, "{body}");
        assert_eq!(last.json()["error"]["code"], "QUEUE_FULL", "{body}");
        let header = |name: &str| last.headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("x-ojs-queue-depth"), "2");
        assert_eq!(header("x-ojs-queue-bound"), "2");
        assert_eq!(header("x-ojs-queue-max-depth"), "2");
        let seconds: u32 = header("retry-after").parse().unwrap();
        assert!((1..=40).contains(&seconds));
        let batch = format!("{{\"jobs\":[{job},{job}]}}");
        let refused = rig.client.post("/ojs/v1/jobs/batch", batch).await;
        assert_eq!(refused.status, 429, "all or nothing");
    }
}

/// Whether a worker asks for 30 s, 1800 s or nothing: what it asked for or the job says is what it gets.
#[tokio::test(start_paused = true)]
async fn every_form_of_visibility() {
    for (asked, own, lasts) in [
        (None, None, 30),
        (Some(1_800_000), None, 1_800),
        (None, Some(90_000), 90),
        (Some(45_000), Some(90_000), 45),
    ] {
        let rig = Rig::with("").await;
        rig.client.enqueue_all(2, &one_at_a_time(own)).await;
        let mut body = json!({"queues": ["default"], "count": 1, "worker_id": "w"});
        if let Some(asked) = asked {
            body["visibility_timeout_ms"] = json!(asked);
        }
        assert_eq!(rig.client.fetch_as(body.clone()).await.len(), 1);
        comes_after(&rig, body, lasts, &format!("{asked:?} {own:?}")).await;
    }
}

/// A job of a key with one slot, with this visibility of its own.
fn one_at_a_time(own: Option<u64>) -> Value {
    let mut options = json!({"rate_limit": {"key": "k", "concurrency": 1}});
    if let Some(own) = own {
        options["visibility_timeout_ms"] = json!(own);
    }
    json!({"type": "t", "args": [], "options": options})
}

/// Who asks so gets the next job so many seconds later, or a little more.
async fn comes_after(rig: &Rig, asks: Value, seconds: u32, what: &str) {
    let began = rig.after_noon();
    while rig.client.fetch_as(asks.clone()).await.is_empty() {
        sleep(Duration::from_millis(500)).await;
    }
    let (took, least) = (rig.after_noon() - began, f64::from(seconds));
    assert!((least..least + 8.0).contains(&took), "{what}: {took}");
}

/// A worker that names no visibility gets a held job for as long as the job or the default says, whoever asked
/// for it first: its heartbeats come too seldom for less.
#[tokio::test(start_paused = true)]
async fn a_held_job_has_the_visibility_of_its_own_worker() {
    for (own, lasts) in [(None, 30), (Some(90_000), 90)] {
        let rig = Rig::with("").await;
        let jobs = rig.client.enqueue_all(2, &one_at_a_time(own)).await;
        let short = json!({"queues": ["default"], "count": 2, "worker_id": "short",
                           "visibility_timeout_ms": 2000});
        let out = rig.client.fetch_as(short).await;
        assert_eq!(out.len(), 1, "the other one is held");
        let ack = json!({"job_id": jobs[0], "worker_id": "short"}).to_string();
        let acked = rig.client.post("/ojs/v1/workers/ack", ack).await;
        assert_eq!(acked.status, 200);
        let plain = json!({"queues": ["default"], "count": 1, "worker_id": "plain"});
        assert_eq!(rig.client.fetch_as(plain.clone()).await.len(), 1);
        comes_after(&rig, plain, lasts, &format!("{own:?}")).await;
    }
}
