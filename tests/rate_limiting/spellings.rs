//! Every form in which OJS documents, SDKs, command line and admin UI write one thing: all are read, and
//! what is sent has what each of them reads.

use super::prelude::*;

/// One form: of what, in whose words, how it is put in force, and what must be seen then.
struct Form {
    what: &'static str,
    whose: &'static str,
    how: How,
    shows: Value,
}

enum How {
    /// A job that brings it.
    Job(Value),
    /// A PUT to this path.
    Put(&'static str, Value),
}

const KEY: &str = "/ojs/v1/rate-limits/k";

fn form(what: &'static str, whose: &'static str, how: How, shows: Value) -> Form {
    Form {
        what,
        whose,
        how,
        shows,
    }
}

fn brings(policy: Value) -> How {
    How::Job(json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": policy}}))
}

fn throttles() -> Vec<Form> {
    let ten = json!({"throttle": {"limit": 10, "period": "PT1S"}});
    let tenth = json!({"throttle": {"limit": 1, "period": "PT0.1S"}});
    let throttle = |value: Value| brings(json!({"key": "k", "throttle": value}));
    let text = json!({"limit": 10, "period": "PT1S"});
    let set = How::Put(KEY, json!({"throttle": text}));
    vec![
        form("throttle", "text", throttle(text), ten.clone()),
        form(
            "throttle",
            "text, duration",
            throttle(json!({"limit": 10, "period": "1s"})),
            ten.clone(),
        ),
        form(
            "throttle",
            "website",
            throttle(json!({"interval": "PT0.1S"})),
            tenth.clone(),
        ),
        form(
            "throttle",
            "website, duration",
            throttle(json!({"interval": "100ms"})),
            tenth,
        ),
        form("throttle", "override", set, ten),
    ]
}

fn policies() -> Vec<Form> {
    let two = json!({"concurrency": {"limit": 2}});
    let three = json!({"throttle": {"limit": 3, "period": "PT1S"}});
    let one = json!({"rate": {"limit": 1, "period": "PT1S"}});
    let policy = || json!({"key": "k", "concurrency": 2});
    let job = |extra: Value| {
        let mut job = json!({"type": "t", "args": []});
        job.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        How::Job(job)
    };
    vec![
        form("job", "text", brings(policy()), two.clone()),
        form(
            "job",
            "L4-RL-001",
            brings(json!({"key": "k", "max_per_second": 3})),
            three,
        ),
        form(
            "job",
            "EXT-RL-004",
            brings(json!({"key": "k", "rate": 1, "period": "second"})),
            one.clone(),
        ),
        form(
            "job",
            "flat",
            brings(json!({"key": "k", "limit": 1, "period": "1s"})),
            one,
        ),
        form(
            "job",
            "several windows",
            brings(json!({"key": "k", "rate": [
                {"limit": 7, "period": "1s"}, {"limit": 8, "period": "1m"}]})),
            json!({"rate": {"limit": 7, "period": "PT1S"}, "rate_2": {"limit": 8, "period": "PT1M"}}),
        ),
        form(
            "job",
            "nothing said",
            brings(
                json!({"key": "k", "concurrency": 2, "rate": null, "throttle": null, "on_limit": "wait"}),
            ),
            two.clone(),
        ),
        form(
            "where",
            "SDKs, in their options",
            job(json!({"options": {"metadata": {"ojs.rate_limit": policy()}}})),
            two.clone(),
        ),
        form(
            "where",
            "conformance",
            job(json!({"options": {"rate_limit": policy()}})),
            two.clone(),
        ),
        form(
            "where",
            "text's examples",
            job(json!({"rate_limit": policy()})),
            two.clone(),
        ),
        form(
            "where",
            "SDKs without it",
            job(json!({"meta": {"ojs.rate_limit": policy()}})),
            two,
        ),
    ]
}

fn queues() -> Vec<Form> {
    let hour = json!({"rate": {"limit": 1000, "period": "PT1H"}});
    let slots = json!({"concurrency": {"limit": 20}});
    let at = |path, body| How::Put(path, body);
    let text = "/ojs/v1/admin/queues/q/rate-limit";
    let config = "/ojs/v1/admin/queues/q/config";
    let rate = json!({"limit": 1000, "period": "PT1H"});
    vec![
        form(
            "queue",
            "text",
            at(text, json!({"rate": rate})),
            hour.clone(),
        ),
        form(
            "queue",
            "text, slots",
            at(text, json!({"concurrency": 20})),
            slots.clone(),
        ),
        form(
            "queue",
            "admin API",
            at(config, json!({"rate_limit": rate})),
            hour,
        ),
        form(
            "queue",
            "admin API, slots",
            at(config, json!({"concurrency": 20})),
            slots,
        ),
    ]
}

fn overrides() -> Vec<Form> {
    let expires = "2026-02-13T13:00:00Z";
    let paused = json!({"concurrency": {"limit": 0}});
    let minute = json!({"rate": {"limit": 7, "period": "PT1M"}});
    let text = json!({"concurrency": 0, "expires_at": expires});
    let ui = json!({"limit": 7, "period": "PT1M", "expires_at": expires});
    let cli = "/ojs/v1/rate-limits/k/override";
    vec![
        form(
            "override",
            "text",
            How::Put(KEY, text.clone()),
            paused.clone(),
        ),
        form(
            "override",
            "admin UI",
            How::Put(KEY, ui.clone()),
            minute.clone(),
        ),
        form("override", "command line", How::Put(cli, text), paused),
        form("override", "admin UI, override", How::Put(cli, ui), minute),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_form_of_a_limit_is_read() {
    for form in [throttles(), policies(), queues(), overrides()].concat_all() {
        let rig = Rig::with("").await;
        let seen = match &form.how {
            How::Job(job) => {
                rig.client.enqueue(job.clone()).await;
                rig.inspect("k").await
            }
            How::Put(path, body) => {
                rig.client.set(path, body.clone()).await;
                match path.contains("/queues/") {
                    false => rig.inspect("k").await,
                    true => rig
                        .client
                        .get("/ojs/v1/admin/queues/q/rate-limit")
                        .await
                        .json(),
                }
            }
        };
        if let How::Job(job) = &form.how {
            let shown = ["concurrency", "rate", "rate_2", "throttle"];
            let shown = shown.into_iter().filter(|name| seen.get(name).is_some());
            let asked = form.shows.as_object().unwrap().keys();
            assert!(shown.eq(asked), "{job}: {seen}");
        }
        for (limit, members) in form.shows.as_object().unwrap() {
            for (member, value) in members.as_object().unwrap() {
                let shown = &seen[limit][member];
                assert_eq!(shown, value, "{} as in {}: {seen}", form.what, form.whose);
            }
        }
    }
}

/// All of several lists.
trait Concat {
    fn concat_all(self) -> Vec<Form>;
}

impl<const N: usize> Concat for [Vec<Form>; N] {
    fn concat_all(self) -> Vec<Form> {
        self.into_iter().flatten().collect()
    }
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
        rig.client
            .set("/ojs/v1/admin/queues/q/config", body.clone())
            .await;
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

/// `rate_limit_until` of the text, `retry_after` of the website, and headers in the details.
#[tokio::test(start_paused = true)]
async fn every_form_of_a_signal() {
    for (whose, error) in [
        ("text", json!({"rate_limit_until": "2026-02-13T12:00:30Z"})),
        ("website", json!({"retry_after": 30})),
        ("website, text", json!({"retry_after": "PT30S"})),
        ("header", json!({"details": {"Retry-After": "30"}})),
        ("header, number", json!({"details": {"retry-after": 30}})),
        (
            "date",
            json!({"details": {"Retry-After": "Fri, 13 Feb 2026 12:00:30 GMT"}}),
        ),
        (
            "headers",
            json!({"details": {"headers": {"Retry-After": "30"}}}),
        ),
        (
            "RateLimit",
            json!({"details": {"RateLimit": "\"a\";r=0;t=30"}}),
        ),
        (
            "RateLimit, older",
            json!({"details": {"RateLimit": "limit=9, remaining=0, reset=30"}}),
        ),
        (
            "X-RateLimit",
            json!({"details": {"X-RateLimit-Reset": "30"}}),
        ),
        (
            "X-RateLimit, Unix",
            json!({"details": {"X-RateLimit-Reset": "1770984030"}}),
        ),
    ] {
        let rig = Rig::with("").await;
        let job = json!({"type": "t", "args": [], "rate_limit": {"key": "k", "concurrency": 1}});
        let id = rig.client.enqueue(job).await;
        assert_eq!(rig.client.fetch("default", 1).await.len(), 1);
        let mut told = json!({"type": "E", "message": "429", "retryable": false});
        told.as_object_mut()
            .unwrap()
            .extend(error.as_object().unwrap().clone());
        let body = json!({"job_id": id, "worker_id": "w", "error": told}).to_string();
        assert_eq!(
            rig.client.post("/ojs/v1/workers/nack", body).await.status,
            200
        );
        let shut = rig.inspect("k").await["shut_until"].clone();
        let at = shut.as_str().unwrap_or_default();
        assert!(at.starts_with("2026-02-13T12:00:30."), "{whose}: {shut}");
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
        let mut job = json!({"type": "t", "args": [], "options": {"rate_limit": {"key": "k", "concurrency": 1}}});
        if let Some(own) = own {
            job["options"]["visibility_timeout_ms"] = json!(own);
        }
        rig.client.enqueue(job.clone()).await;
        rig.client.enqueue(job).await;
        let mut body = json!({"queues": ["default"], "count": 1, "worker_id": "w"});
        if let Some(asked) = asked {
            body["visibility_timeout_ms"] = json!(asked);
        }
        assert_eq!(rig.client.fetch_as(body.clone()).await.len(), 1);
        let began = rig.after_noon();
        while rig.client.fetch_as(body.clone()).await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        let took = rig.after_noon() - began;
        let least = f64::from(lasts);
        assert!(
            (least..least + 8.0).contains(&took),
            "{asked:?} {own:?}: {took}"
        );
    }
}

/// A worker that names no visibility gets a held job for as long as the job or the default says, whoever asked
/// for it first: its heartbeats come too seldom for less.
#[tokio::test(start_paused = true)]
async fn a_held_job_has_the_visibility_of_its_own_worker() {
    for (own, lasts) in [(None, 30), (Some(90_000), 90)] {
        let rig = Rig::with("").await;
        let mut job = json!({"type": "t", "args": [], "options": {"rate_limit": {"key": "k", "concurrency": 1}}});
        if let Some(own) = own {
            job["options"]["visibility_timeout_ms"] = json!(own);
        }
        let first = rig.client.enqueue(job.clone()).await;
        rig.client.enqueue(job).await;
        let short = json!({"queues": ["default"], "count": 2, "worker_id": "short",
                           "visibility_timeout_ms": 2000});
        let out = rig.client.fetch_as(short).await;
        assert_eq!(out.len(), 1, "the other one is held");
        let ack = json!({"job_id": first, "worker_id": "short"});
        let acked = rig
            .client
            .post("/ojs/v1/workers/ack", ack.to_string())
            .await;
        assert_eq!(acked.status, 200);
        let plain = json!({"queues": ["default"], "count": 1, "worker_id": "plain"});
        assert_eq!(rig.client.fetch_as(plain.clone()).await.len(), 1);
        let began = rig.after_noon();
        while rig.client.fetch_as(plain.clone()).await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        let (took, least) = (rig.after_noon() - began, f64::from(lasts));
        assert!((least..least + 8.0).contains(&took), "{own:?}: {took}");
    }
}
