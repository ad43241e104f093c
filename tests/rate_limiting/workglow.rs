//! Limiters of Workglow's job queue that the text does not have, said as policies, and what their methods become:
//! `canProceed` is FETCH, `recordJobStart` the hand-out, `recordJobCompletion` ACK and nack, `getNextAvailableTime`
//! the inspection, `setNextAvailableTime` and `clear` verbs of the admin port.

use super::prelude::*;
use crate::sidecar::BEGIN;
use crate::sidecar::simulated::{Pair, Served};

/// The queue of all jobs in here.
const Q: &str = "default";

/// A sidecar with one policy for all jobs of key `api`, a worker of it, and its admin port.
struct Rig {
    client: Client,
    admin: Client,
    _behind: Served,
}

impl Rig {
    async fn with(policy: &str) -> Rig {
        let config = format!("control_token = \"s3cret\"\n{policy}");
        let Pair { behind, sidecar } = Pair::over(Arc::new(MemoryStore::new(BEGIN)), &config).await;
        Rig {
            client: sidecar.client(),
            admin: sidecar.admin().controlling("s3cret"),
            _behind: behind,
        }
    }

    async fn enqueue(&self, count: usize) {
        let job = json!({"type": "work", "args": []});
        self.client.enqueue_all(count, &job).await;
    }

    /// How many of ten wanted jobs start now.
    async fn start_all(&self) -> usize {
        self.client.fetch(Q, 10).await.len()
    }

    /// The next job, asked for as workers do, and how many milliseconds it took to come.
    async fn next(&self) -> (String, u128) {
        let began = Instant::now();
        loop {
            if let Some(job) = self.client.fetch(Q, 1).await.first() {
                return (id(job).to_owned(), began.elapsed().as_millis());
            }
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(7_200), "nothing starts");
            // A FETCH waits by itself for a start that is half a second away.
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Fails a job as a stock SDK does whose handler met a vendor's 429.
    async fn refuse(&self, job: &str) {
        let error = json!({"code": "RateLimitError", "message": "429", "retryable": false});
        self.client.nack_with(job, error).await;
    }

    async fn verb(&self, method: Method, path: &str, body: &str) -> Reply {
        let path = format!("/throttle/v1/{path}");
        self.admin.send(method, &path, &[], body.to_owned()).await
    }

    async fn inspect(&self) -> Value {
        self.client.inspect("api").await
    }
}

fn policy(limits: &str) -> String {
    format!("[[policy]]\nname = \"api\"\n{limits}")
}

/// The same with Workglow's defaults, `initialBackoffDelay`, `backoffMultiplier` and `maxBackoffDelay`:
/// refused by its vendor again and again, a key waits d and up to d more, and d doubles. One success
/// and it starts anew.
#[tokio::test(start_paused = true)]
async fn exponential_backoff_with_full_jitter() {
    let backoff = "backoff = { initial = \"1s\", multiplier = 2, max = \"10s\" }";
    let feedback = format!("feedback = {{ codes = [\"RateLimitError\"], {backoff} }}");
    let limits = format!("rate = {{ limit = 100, period = \"60s\" }}\n{feedback}");
    let rig = Rig::with(&policy(&limits)).await;
    rig.enqueue(20).await;
    let mut job = rig.next().await.0;
    let (mut parts, mut done) = (Vec::new(), 0);
    for whole in [1_000_u128, 2_000, 4_000, 8_000, 10_000, 10_000] {
        rig.refuse(&job).await;
        let (next, waited) = rig.next().await;
        let is_within = waited >= whole && waited <= 2 * whole + 20;
        assert!(is_within, "{waited} ms of {whole}");
        parts.push(waited - whole);
        (job, done) = (next, done + 1);
    }
    parts.dedup();
    assert!(done == 6 && parts.len() > 3, "jitter: {parts:?}");
    rig.client.ack(&job).await;
    let (job, waited) = rig.next().await;
    assert!(waited < 20, "{waited}");
    rig.refuse(&job).await;
    let (_, waited) = rig.next().await;
    assert!((1_000..=2_020).contains(&waited), "anew: {waited} ms");
}

/// `new EvenlySpacedRateLimiter({ maxExecutions: 60, windowSizeInSeconds: 60 })`: a start a second,
/// less how long the jobs take.
#[tokio::test(start_paused = true)]
async fn even_spacing_less_the_running_time() {
    let spacing = "throttle = { limit = 60, period = \"60s\", measure = \"completion\" }";
    let rig = Rig::with(&policy(spacing)).await;
    rig.enqueue(8).await;
    let mut job = rig.next().await.0;
    for (runs, waits) in [(300, 400), (100, 800), (0, 1_000), (600, 0), (2_000, 0)] {
        sleep(Duration::from_millis(runs)).await;
        rig.client.ack(&job).await;
        let (next, waited) = rig.next().await;
        let close = waited + 10 >= waits && waited <= waits + 20;
        assert!(close, "after {runs} ms it waits {waited} ms, not {waits}");
        job = next;
    }
    assert_eq!(rig.inspect().await["throttle"]["measure"], "completion");
}

/// `setNextAvailableTime(date)` and `getNextAvailableTime()`.
#[tokio::test(start_paused = true)]
async fn next_available_time() {
    let rig = Rig::with(&policy("concurrency = 5")).await;
    rig.enqueue(5).await;
    let path = "keys/api/next-start";
    let set = rig.verb(Method::PUT, path, r#"{"after":"PT30S"}"#).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let shown = set.json();
    assert_eq!(shown["key"], "api");
    assert_eq!(shown["next_start"], rig.inspect().await["shut_until"]);
    let (_, waited) = rig.next().await;
    assert!((29_900..=30_100).contains(&waited), "{waited} ms");

    let later = r#"{"at":"2026-02-03T00:00:00Z"}"#;
    rig.verb(Method::PUT, path, later).await;
    let shut = &rig.inspect().await["shut_until"];
    assert_eq!(shut, "2026-02-03T00:00:00.000Z");
    rig.verb(Method::PUT, path, r#"{"after":"10s"}"#).await;
    let (_, waited) = rig.next().await;
    let is_it = (9_900..=10_100).contains(&waited);
    assert!(is_it, "an earlier one stands too: {waited} ms");

    rig.verb(Method::PUT, path, r#"{"after":"1h"}"#).await;
    assert_eq!(rig.start_all().await, 0);
    // One that nothing has named yet is known from then on.
    let fresh = rig.verb(Method::PUT, "keys/fresh/next-start", r#"{"after":"1h"}"#);
    assert_eq!(fresh.await.status, 200);
    let shown = rig.client.inspect("fresh").await;
    assert!(shown["shut_until"].is_string(), "{shown}");
    let list = rig.client.get("/ojs/v1/rate-limits").await.json();
    assert_eq!(list["items"][1]["key"], "fresh", "{list}");
    let opened = rig.verb(Method::DELETE, path, "").await;
    assert_eq!(opened.status, 200);
    assert!(opened.json()["next_start"].is_null());
    assert_eq!(rig.start_all().await, 3);
}

/// `clear()`: windows, spacing and pauses are as new. Jobs that are out keep their slots.
#[tokio::test(start_paused = true)]
async fn clear() {
    let limits = "concurrency = 5\nrate = { limit = 2, period = \"1h\" }";
    let rig = Rig::with(&policy(limits)).await;
    rig.enqueue(9).await;
    assert_eq!((rig.start_all().await, rig.start_all().await), (2, 0));
    let hour = r#"{"after":"1h"}"#;
    rig.verb(Method::PUT, "keys/api/next-start", hour).await;
    let cleared = rig.verb(Method::DELETE, "keys/api/usage", "").await;
    let told = json!({"key": "api", "cleared": true});
    assert_eq!((cleared.status, cleared.json()), (200, told));
    assert_eq!((rig.start_all().await, rig.start_all().await), (2, 0));
    rig.verb(Method::DELETE, "keys/api/usage", "").await;
    assert_eq!(rig.start_all().await, 1, "four of five slots were taken");
}

/// What is not understood is refused with the field, and changes nothing.
#[tokio::test(start_paused = true)]
async fn wrong_verbs_change_nothing() {
    let rig = Rig::with(&policy("concurrency = 5")).await;
    rig.enqueue(1).await;
    let bodies = [
        ("", "body"),
        ("[]", "body"),
        ("{}", "at"),
        (r#"{"after":30}"#, "after"),
        (r#"{"after":"-1s"}"#, "after"),
        (r#"{"after":"PT0S"}"#, "after"),
        (r#"{"after":"1000d"}"#, "after"),
        (r#"{"at":"yesterday"}"#, "at"),
        (r#"{"at":"2020-01-01T00:00:00Z"}"#, "at"),
        (r#"{"until":"PT1S"}"#, "until"),
    ];
    for (body, field) in bodies {
        let reply = rig.verb(Method::PUT, "keys/api/next-start", body).await;
        let text = reply.text();
        assert_eq!(reply.status, 400, "{body}: {text}");
        assert!(text.contains(field), "{body}: {text}");
    }
    let soon = r#"{"after":"1s"}"#;
    let reply = rig.verb(Method::PUT, "keys/-bad/next-start", soon).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["details"]["field"], "key");
    for (method, path, status) in [
        (Method::GET, "keys/api/next-start", 405),
        (Method::POST, "keys/api/usage", 405),
        // It is of no budget.
        (Method::PUT, "keys/api/usage", 400),
        (Method::DELETE, "keys/api/limits", 404),
        (Method::DELETE, "keys/api", 404),
        (Method::DELETE, "", 404),
    ] {
        let reply = rig.verb(method.clone(), path, "").await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        assert!(reply.json()["error"]["message"].is_string());
        let allow = reply.headers.get("allow");
        let allow = allow.map(|allow| allow.to_str().unwrap());
        let allowed = (status == 405).then_some("PUT, DELETE");
        assert_eq!(allow, allowed, "{method} {path}");
    }
    assert_eq!(rig.start_all().await, 1, "nothing was shut");
}

/// The name of a policy whose keys are others shuts nothing, and is refused; a key that it makes is shut.
#[tokio::test(start_paused = true)]
async fn next_start_of_a_policy_s_name() {
    let config = "[[policy]]\nname = \"stripe\"\nkey = \"s:{meta.t}\"\nconcurrency = 1\n";
    let rig = Rig::with(config).await;
    let after = r#"{"after":"1h"}"#;
    let reply = rig.verb(Method::PUT, "keys/stripe/next-start", after).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("s:{meta.t}"), "{}", reply.text());
    let shut = rig.verb(Method::PUT, "keys/s:acme/next-start", after).await;
    assert_eq!(shut.status, 200, "{}", shut.text());
    let open = rig.verb(Method::DELETE, "keys/stripe/next-start", "").await;
    assert_eq!(open.status, 200, "{}", open.text());
}
