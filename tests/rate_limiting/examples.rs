//! Every example of the rate-limiting text and of the website's page on it, sent as it stands there, and
//! what it says will happen.

use std::collections::BTreeSet;

use super::prelude::*;
use super::rig::{Run, at_once, no_interval_has_more, spaced};
use crate::servers::official;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// An example: where it stands, and its text.
pub type Example = (&'static str, &'static str);

const POLICY: Example = (
    "6.1",
    r#"{
  "rate_limit": {
    "key": "stripe-api",
    "concurrency": 5,
    "rate": {
      "limit": 100,
      "period": "PT1M"
    },
    "throttle": {
      "limit": 10,
      "period": "PT1S"
    },
    "on_limit": "wait"
  }
}"#,
);
const QUEUE: Example = (
    "7.2",
    r#"PUT /ojs/v1/admin/queues/email/rate-limit
Content-Type: application/json

{
  "concurrency": 20,
  "rate": {
    "limit": 1000,
    "period": "PT1H"
  }
}"#,
);
const FEEDBACK: Example = (
    "9.1",
    r#"{
  "error": {
    "type": "RateLimitExceeded",
    "message": "Stripe API rate limit exceeded",
    "rate_limit_until": "2026-02-13T12:05:00Z"
  }
}"#,
);
const INSPECT: Example = ("10.1", "GET /ojs/v1/rate-limits/{key}");
const INSPECTED: Example = (
    "10.1, answer",
    r#"{
  "key": "stripe-api",
  "concurrency": {
    "limit": 5,
    "active": 3,
    "available": 2
  },
  "rate": {
    "limit": 100,
    "period": "PT1M",
    "current_count": 47,
    "window_resets_at": "2026-02-13T12:01:00Z"
  },
  "throttle": {
    "limit": 10,
    "period": "PT1S",
    "next_allowed_at": "2026-02-13T12:00:00.100Z"
  },
  "waiting_count": 12
}"#,
);
const OVERRIDE: Example = ("10.2", "PUT /ojs/v1/rate-limits/{key}");
const OVERRIDDEN: Example = (
    "10.2, body",
    r#"{
  "concurrency": 0,
  "expires_at": "2026-02-13T13:00:00Z"
}"#,
);
const LIST: Example = ("10.3", "GET /ojs/v1/rate-limits");
const LISTED: Example = (
    "10.3, answer",
    r#"{
  "items": [
    {
      "key": "stripe-api",
      "concurrency": { "limit": 5, "active": 3 },
      "rate": { "limit": 100, "period": "PT1M", "current_count": 47 },
      "waiting_count": 12
    },
    {
      "key": "tenant:acme-corp",
      "concurrency": { "limit": 10, "active": 7 },
      "waiting_count": 3
    }
  ],
  "pagination": {
    "total": 42,
    "page": 1,
    "per_page": 20
  }
}"#,
);
pub const PAYMENT: Example = (
    "14.1",
    r#"{
  "type": "payment.process",
  "args": [{"order_id": "ord_123", "amount": 9999}],
  "rate_limit": {
    "key": "payment-api",
    "concurrency": 5
  }
}"#,
);
pub const EMAIL: Example = (
    "14.2",
    r#"{
  "type": "email.send",
  "args": [{"to": "user@example.com", "template": "welcome"}],
  "rate_limit": {
    "key": "email-provider",
    "rate": {
      "limit": 1000,
      "period": "PT1H"
    }
  }
}"#,
);
pub const REPORT: Example = (
    "14.3",
    r#"{
  "type": "report.generate",
  "args": [{"report_id": "rpt_456"}],
  "meta": {"tenant_id": "acme-corp"},
  "rate_limit": {
    "key": "tenant:acme-corp:reports",
    "concurrency": 3,
    "throttle": {
      "limit": 1,
      "period": "PT1S"
    }
  }
}"#,
);
const PUSH: Example = (
    "14.4",
    r#"{
  "type": "notification.push",
  "args": [{"user_id": "u_789", "message": "New follower!"}],
  "rate_limit": {
    "key": "push-notifications",
    "rate": {
      "limit": 10000,
      "period": "PT1M"
    },
    "on_limit": "drop"
  }
}"#,
);
pub const SYNC: Example = (
    "14.5",
    r#"{
  "type": "api.sync",
  "args": [{"endpoint": "/users", "page": 1}],
  "rate_limit": {
    "key": "api.partner.com",
    "concurrency": 10,
    "rate": {
      "limit": 500,
      "period": "PT1M"
    },
    "throttle": {
      "limit": 10,
      "period": "PT1S"
    },
    "on_limit": "wait"
  }
}"#,
);

/// The text's, in its order.
const TEXT: [Example; 14] = [
    POLICY, QUEUE, FEEDBACK, INSPECT, INSPECTED, OVERRIDE, OVERRIDDEN, LIST, LISTED, PAYMENT,
    EMAIL, REPORT, PUSH, SYNC,
];

const SITE_POLICY: Example = (
    "Rate Limit Policy",
    r#"{ "type": "api.call", "args": ["https://api.example.com/data"], "rate_limit": { "key": "api.example.com", "concurrency": 5, "rate": { "limit": 100, "period": "PT1M" }, "throttle": { "interval": "PT1S" }, "on_limit": "wait" }}"#,
);
const SITE_CONCURRENCY: Example = (
    "Concurrency Limiting",
    r#"{ "rate_limit": { "key": "stripe-api", "concurrency": 10 }}"#,
);
const SITE_WINDOW: Example = (
    "Window-Based Rate Limiting",
    r#"{ "rate_limit": { "key": "email-provider", "rate": { "limit": 1000, "period": "PT1H" } }}"#,
);
const SITE_THROTTLE: Example = (
    "Throttling",
    r#"{ "rate_limit": { "key": "webhook-delivery", "throttle": { "interval": "PT0.1S" } }}"#,
);
const SITE_DYNAMIC: Example = (
    "Dynamic Rate Limits",
    r#"{ "error": { "type": "rate_limited", "retry_after": 30 }}"#,
);
const SITE_TENANT: Example = (
    "Interaction with Other Extensions",
    "tenant_123:api.example.com",
);
const SITE_INSPECT: Example = (
    "HTTP Binding, inspect",
    "curl http://localhost:8080/ojs/v1/rate-limits/stripe-api",
);
const SITE_OVERRIDE: Example = (
    "HTTP Binding, override",
    r#"curl -X PUT http://localhost:8080/ojs/v1/rate-limits/stripe-api \ -H "Content-Type: application/json" \ -d '{"concurrency": 20}'"#,
);

/// The page's, in its order.
const SITE: [Example; 8] = [
    SITE_POLICY,
    SITE_CONCURRENCY,
    SITE_WINDOW,
    SITE_THROTTLE,
    SITE_DYNAMIC,
    SITE_TENANT,
    SITE_INSPECT,
    SITE_OVERRIDE,
];

/// The texts have no example that is not in here, and have each as it is in here.
#[test]
fn none_is_missing_on_official() {
    let read = |name: &str| std::fs::read_to_string(official(name)).unwrap();
    let text = read("spec/ojs-rate-limiting.md");
    let fenced: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
    // The word behind a fence is its language.
    let blocks: Vec<&str> = fenced
        .iter()
        .map(|block| block.split_once('\n').unwrap().1.trim_end())
        .collect();
    assert_eq!(blocks, TEXT.map(|(_, text)| text));
    let page = read("spec/ojs-website-rate-limiting.md");
    // Where the page has spaces and line ends depends on how it is read.
    let dense = |text: &str| text.replace(|c: char| c.is_whitespace() || c == '\\', "");
    for (at, text) in SITE {
        assert!(dense(&page).contains(&dense(text)), "{at}");
    }
    assert_eq!(page.matches("\"rate_limit\"").count(), 4);
    assert_eq!(page.matches("\"error\"").count(), 1);
    assert_eq!(page.matches("curl ").count(), 2);
}

/// Each example is named by a test below.
#[test]
fn a_test_sends_each() {
    let source = include_str!("examples.rs");
    let names = source
        .lines()
        .map(|line| line.strip_prefix("pub ").unwrap_or(line))
        .filter_map(|line| line.strip_prefix("const ")?.split_once(": Example"));
    let names: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    assert_eq!(names.len(), TEXT.len() + SITE.len());
    for name in names {
        let used = source.matches(&format!("{name}.1")).count();
        assert!(used > 0, "no test sends {name}");
    }
}

/// A fragment that begins with `rate_limit`, as the options of a job (section 6).
fn job(options: &str) -> String {
    format!(r#"{{"type":"t","args":[],"options":{options}}}"#)
}

/// The fragment's policy beside the type, where the page's first example and section 14 have it.
fn flat(fragment: &str) -> String {
    let (_, members) = fragment.split_once('{').unwrap();
    format!(r#"{{"type":"t","args":[],{members}"#)
}

impl Rig {
    /// Workers that are done at once run so many jobs.
    async fn run(&self, runs: usize) -> Vec<Run> {
        work(&self.client, &["default"], 3, runs, at_once).await
    }

    /// Acknowledges jobs.
    async fn ack_all(&self, jobs: &[Value]) {
        for job in jobs {
            self.client.ack(id(job)).await;
        }
    }

    /// So many are out with workers that never end, and no more come in a while.
    async fn only_so_many_go_out(&self, most: usize) -> Vec<Value> {
        let (mut out, began) = (Vec::new(), Instant::now());
        while began.elapsed() < Duration::from_secs(15) {
            out.extend(self.client.fetch("default", 50).await);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(out.len(), most);
        out
    }

    /// Fails a job with `error` as it stands in an example.
    async fn fail(&self, job: &Value, example: &str) {
        let (_, members) = example.split_once('{').unwrap();
        let body = format!(r#"{{"job_id":"{}","worker_id":"w",{members}"#, id(job));
        let reply = self.client.post("/ojs/v1/workers/nack", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_with_all_three_strategies() {
    for text in [job(POLICY.1), flat(POLICY.1)] {
        let rig = Rig::with("").await;
        rig.enqueue(&text, 120).await;
        let out = rig.only_so_many_go_out(5).await;
        for job in &out {
            let sent: Value = serde_json::from_str(POLICY.1).unwrap();
            assert_eq!(job["rate_limit"], sent["rate_limit"]);
            rig.client.ack(id(job)).await;
        }
        let runs = rig.run(110).await;
        spaced(&runs, Duration::from_millis(100));
        no_interval_has_more(&runs, 100, MINUTE);
        assert!(runs[90].from - runs[0].from < Duration::from_secs(30));
    }
}

/// An HTTP request as it is printed in the text.
async fn send(rig: &Rig, text: &str) -> Reply {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let headers: Vec<(&str, &str)> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let sent = rig.client.send(method, path, &headers, body.to_owned());
    let reply = sent.await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
}

/// "Queue-level limits apply to all jobs in a queue regardless of their individual `rate_limit`
/// settings": by the backend's own record, and a job cannot loosen them.
#[tokio::test(start_paused = true)]
async fn a_queue_as_a_whole() {
    let rig = Rig::with("").await;
    send(&rig, QUEUE.1).await;
    let plain = r#"{"type":"t","args":[],"options":{"queue":"email"}}"#;
    let loose = r#"{"type":"t","args":[],"options":{"queue":"email","rate_limit":{"key":"k","concurrency":500}}}"#;
    rig.enqueue(plain, 600).await;
    rig.enqueue(loose, 600).await;
    let out = rig.client.fetch("email", 100).await;
    assert_eq!(out.len(), 20);
    assert!(rig.client.fetch("email", 100).await.is_empty());
    rig.ack_all(&out).await;
    let began = Instant::now();
    let runs = work(&rig.client, &["email"], 1, 980, at_once).await;
    assert!(began.elapsed() < MINUTE, "the hour's budget at once");
    for _ in 0..28 {
        assert!(rig.client.fetch("email", 100).await.is_empty());
        sleep(2 * MINUTE).await;
    }
    let next = work(&rig.client, &["email"], 1, 10, at_once).await;
    assert!(next[0].from - began > HOUR - MINUTE, "and no more in it");
    assert!(next[0].from - began < HOUR + MINUTE);
    assert_eq!(rig.count(EventKind::Acked), 20 + runs.len() + next.len());
}

/// "the backend SHOULD NOT dispatch jobs with the same rate limit key until the specified time".
#[tokio::test(start_paused = true)]
async fn a_handler_that_met_a_429() {
    let rig = Rig::with("").await;
    rig.enqueue(&job(SITE_CONCURRENCY.1), 3).await;
    rig.enqueue(r#"{"type":"other","args":[]}"#, 1).await;
    let first = rig.client.fetch("default", 1).await;
    rig.fail(&first[0], FEEDBACK.1).await;
    let shut = rig.inspect("stripe-api").await;
    let wanted = json!("2026-02-13T12:05:00Z");
    assert_eq!(time(&shut["shut_until"]), time(&wanted));
    let others = rig.client.fetch("default", 9).await;
    assert_eq!(others.len(), 1);
    assert_eq!(others[0]["type"], "other", "only its key is shut");
    rig.client.ack(id(&others[0])).await;
    let next = rig.run(2).await;
    let at = rig.after_noon() - next[0].from.elapsed().as_secs_f64();
    assert!((299.99..303.0).contains(&at), "{at}");
}

fn time(text: &Value) -> jiff::Timestamp {
    let text = text.as_str().unwrap();
    text.parse().unwrap()
}

/// 47 starts of the policy of 6.1, 3 of them out, and 12 jobs that wait: what the answers of section 10
/// show.
async fn forty_seven() -> Rig {
    let rig = Rig::with("").await;
    rig.enqueue(&job(POLICY.1), 47 + 12).await;
    let mut started = 0;
    while started < 47 {
        for job in rig.client.fetch("default", 1).await {
            started += 1;
            if started <= 44 {
                rig.client.ack(id(&job)).await;
            }
        }
    }
    rig
}

/// The answer has every member of the text's, with its value; but the times are those of this world.
#[tokio::test(start_paused = true)]
async fn the_state_of_a_key() {
    let rig = forty_seven().await;
    let last = rig.after_noon();
    let seen = send(&rig, &INSPECT.1.replace("{key}", "stripe-api")).await;
    let seen = seen.json();
    let mut text: Value = serde_json::from_str(INSPECTED.1).unwrap();
    let resets = time(&seen["rate"]["window_resets_at"]);
    let oldest = time(&text["rate"]["window_resets_at"]);
    assert!((0..50).contains(&(resets.as_millisecond() - oldest.as_millisecond())));
    let next = time(&seen["throttle"]["next_allowed_at"]).as_millisecond();
    let noon = time(&json!("2026-02-13T12:00:00Z")).as_millisecond();
    let after = (next - noon) as f64 - last * 1_000.0;
    let is_soon = (80.0..=110.0).contains(&after);
    assert!(is_soon, "{after} ms after the last start");
    text["rate"]["window_resets_at"] = seen["rate"]["window_resets_at"].clone();
    text["throttle"]["next_allowed_at"] = seen["throttle"]["next_allowed_at"].clone();
    has(&seen, &text, "");
}

/// Every member of `text` is in `seen` with the same value.
fn has(seen: &Value, text: &Value, at: &str) {
    match text {
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| has(&seen[name], value, &format!("{at}.{name}"))),
        value => assert_eq!(seen, value, "{at}"),
    }
}

/// "Useful for incident response (e.g., reducing the limit to zero when an external API is down)":
/// nothing starts before the time in it, and then at once.
#[tokio::test(start_paused = true)]
async fn an_override_until_one_o_clock() {
    let rig = Rig::with("").await;
    rig.enqueue(&job(SITE_CONCURRENCY.1), 12).await;
    let request = OVERRIDE.1.replace("{key}", "stripe-api");
    let set = send(&rig, &format!("{request}\n\n{}", OVERRIDDEN.1)).await;
    let set = set.json();
    let sent: Value = serde_json::from_str(OVERRIDDEN.1).unwrap();
    assert_eq!(set["concurrency"]["limit"], sent["concurrency"]);
    let until = time(&set["override"]["expires_at"]);
    assert_eq!(until, time(&sent["expires_at"]));
    while rig.client.fetch("default", 50).await.is_empty() {
        // Often where it matters.
        let near = rig.after_noon() > 3_590.0;
        sleep(Duration::from_millis(if near { 100 } else { 5_000 })).await;
    }
    let at = rig.after_noon();
    assert!((3_600.0..3_601.0).contains(&at), "{at}");
    let left = rig.client.fetch("default", 50).await.len();
    assert_eq!(left, 0, "the job's own ten went out together");
    assert_eq!(rig.inspect("stripe-api").await["concurrency"]["active"], 10);
}

#[tokio::test(start_paused = true)]
async fn the_list_of_keys() {
    let rig = forty_seven().await;
    let tenant = r#"{"type":"t","args":[],"options":{"queue":"reports","rate_limit":{"key":"tenant:acme-corp","concurrency":10}}}"#;
    rig.enqueue(tenant, 10).await;
    assert_eq!(rig.client.fetch("reports", 7).await.len(), 7);
    for nth in 0..40 {
        rig.enqueue(
            &tenant
                .replace("tenant:acme-corp", &format!("z{nth}"))
                .replace("reports", "x"),
            1,
        )
        .await;
    }
    let list = send(&rig, LIST.1).await.json();
    let text: Value = serde_json::from_str(LISTED.1).unwrap();
    assert_eq!(list["pagination"], text["pagination"]);
    assert_eq!(list["items"].as_array().unwrap().len(), 20);
    for (nth, text) in text["items"].as_array().unwrap().iter().enumerate() {
        has(&list["items"][nth], text, "items");
    }
}

#[tokio::test(start_paused = true)]
async fn five_payments_at_once() {
    let rig = Rig::with("").await;
    rig.enqueue(PAYMENT.1, 12).await;
    let five = rig.only_so_many_go_out(5).await;
    for job in &five {
        rig.client.ack(id(job)).await;
        assert_eq!(rig.client.fetch("default", 50).await.len(), 1);
    }
}

/// The text's and the page's: the same key, the same limit.
#[tokio::test(start_paused = true)]
async fn a_thousand_mails_an_hour() {
    for text in [EMAIL.1.to_owned(), job(SITE_WINDOW.1), flat(SITE_WINDOW.1)] {
        let rig = Rig::with("").await;
        rig.enqueue(&text, 1_001).await;
        let (mut started, began) = (0, Instant::now());
        while started < 1_000 {
            for job in rig.client.fetch("default", 100).await {
                started += 1;
                rig.client.ack(id(&job)).await;
            }
            assert!(began.elapsed() < MINUTE, "{started} in a minute");
        }
        let shown = rig.inspect("email-provider").await;
        assert_eq!(shown["rate"]["current_count"], 1_000);
        for _ in 0..28 {
            assert!(rig.client.fetch("default", 9).await.is_empty());
            sleep(2 * MINUTE).await;
        }
        let last = rig.run(1).await;
        let span = last[0].from - began;
        assert!(span >= HOUR && span < HOUR + HOUR / 50, "{span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn three_reports_of_a_tenant_a_second_apart() {
    let rig = Rig::with("").await;
    rig.enqueue(REPORT.1, 12).await;
    // Another tenant's are none of their business.
    let others = REPORT.1.replace("acme-corp", "globex");
    rig.enqueue(&others, 3).await;
    let out = rig.only_so_many_go_out(3 + 3).await;
    let tenants = out.iter().map(|job| &job["meta"]["tenant_id"]);
    let acme = tenants.filter(|tenant| **tenant == "acme-corp");
    assert_eq!(acme.count(), 3);
    rig.ack_all(&out).await;
    let runs = rig.run(9).await;
    spaced(&runs, Duration::from_secs(1));
    assert!(runs[8].from - runs[0].from < Duration::from_secs(10));
}

/// "Drop excess notification jobs rather than queuing them".
#[tokio::test(start_paused = true)]
async fn the_ten_thousand_and_first_notification_is_dropped() {
    let rig = Rig::with("").await;
    rig.enqueue(PUSH.1, 10_003).await;
    let (mut started, began) = (0, Instant::now());
    while rig.count(EventKind::Discarded) < 3 {
        started += rig.client.fetch("default", 500).await.len();
        assert!(began.elapsed() < MINUTE, "it would wait for the window");
    }
    assert_eq!(started, 10_000);
    let of_all = "ojs_rate_limit_dropped_total{policy=\"job\"}";
    assert_eq!(rig.metric(of_all).await, Some(3.0));
}

/// The four things that the text says of it.
#[tokio::test(start_paused = true)]
async fn combined_limits() {
    let rig = Rig::with("").await;
    rig.enqueue(SYNC.1, 600).await;
    // 1. and 4.
    let out = rig.only_so_many_go_out(10).await;
    let waiting = rig.client.get("/ojs/v1/queues/default/stats").await.json();
    assert_eq!(waiting["queue"]["available"], 590, "{waiting}");
    rig.ack_all(&out).await;
    // 2. and 3.
    sleep(MINUTE).await;
    let runs = rig.run(510).await;
    spaced(&runs, Duration::from_millis(100));
    no_interval_has_more(&runs, 500, MINUTE);
    let span = runs[499].from - runs[0].from;
    assert!(span < Duration::from_secs(54), "500 take {span:?}");
}

#[tokio::test(start_paused = true)]
async fn the_page_s_policy() {
    let rig = Rig::with("").await;
    rig.enqueue(SITE_POLICY.1, 40).await;
    let out = rig.only_so_many_go_out(5).await;
    rig.ack_all(&out).await;
    let runs = rig.run(35).await;
    spaced(&runs, Duration::from_secs(1));
    assert!(runs[34].from - runs[0].from < Duration::from_secs(36));
}

/// "the job remains in the queue until a slot opens".
#[tokio::test(start_paused = true)]
async fn ten_at_once_of_the_page() {
    for text in [job(SITE_CONCURRENCY.1), flat(SITE_CONCURRENCY.1)] {
        let rig = Rig::with("").await;
        rig.enqueue(&text, 15).await;
        let out = rig.only_so_many_go_out(10).await;
        rig.client.ack(id(&out[3])).await;
        assert_eq!(rig.client.fetch("default", 9).await.len(), 1);
    }
}

/// "at most one job per 100ms for the webhook-delivery key, regardless of how many jobs are queued".
#[tokio::test(start_paused = true)]
async fn a_webhook_each_tenth_of_a_second() {
    for text in [job(SITE_THROTTLE.1), flat(SITE_THROTTLE.1)] {
        let rig = Rig::with("").await;
        rig.enqueue(&text, 60).await;
        let runs = rig.run(50).await;
        spaced(&runs, Duration::from_millis(100));
        assert!(runs[49].from - runs[0].from < Duration::from_millis(5_500));
    }
}

/// "The backend dynamically adjusts the limit", for the thirty seconds that it says, or that a vendor's header does.
#[tokio::test(start_paused = true)]
async fn the_page_s_429() {
    let header = r#"{"error": {"type": "E", "details": {"Retry-After": "30"}}}"#;
    for error in [SITE_DYNAMIC.1, header] {
        let rig = Rig::with("").await;
        rig.enqueue(&job(SITE_CONCURRENCY.1), 2).await;
        let first = rig.client.fetch("default", 1).await;
        rig.fail(&first[0], error).await;
        let began = Instant::now();
        let next = rig.run(1).await;
        let waited = next[0].from - began;
        let thirty = Duration::from_millis(29_995)..Duration::from_secs(33);
        assert!(thirty.contains(&waited), "{waited:?}");
    }
}

/// 7.1: each key of its table is a key of its own; and the page: "Rate limits can be partitioned by tenant using composite
/// keys".
#[tokio::test(start_paused = true)]
async fn the_patterns_of_keys() {
    let rig = Rig::with("").await;
    let keys = [
        "api.stripe.com",
        "tenant:acme-corp",
        "queue:email",
        "type:report.generate",
        "tenant:acme:api:stripe",
        SITE_TENANT.1,
        &SITE_TENANT.1.replace("123", "456"),
    ];
    for key in keys {
        rig.enqueue(&PAYMENT.1.replace('5', "1").replace("payment-api", key), 2)
            .await;
    }
    let out = rig.only_so_many_go_out(keys.len()).await;
    let of = out
        .iter()
        .map(|job| job["rate_limit"]["key"].as_str().unwrap());
    assert_eq!(of.collect::<BTreeSet<_>>(), BTreeSet::from(keys));
    let shown = rig.inspect(SITE_TENANT.1).await;
    assert_eq!(
        shown["concurrency"],
        json!({"limit": 1, "active": 1, "available": 0})
    );
}

/// The two commands of the page.
#[tokio::test(start_paused = true)]
async fn the_page_s_curls() {
    let rig = Rig::with("").await;
    rig.enqueue(&job(SITE_CONCURRENCY.1), 25).await;
    let path = |text: &str| {
        let (_, rest) = text.split_once("localhost:8080").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    };
    let seen = rig.client.get(&path(SITE_INSPECT.1)).await;
    assert_eq!(seen.status, 200);
    let slots = json!({"limit": 10, "active": 0, "available": 10});
    assert_eq!(seen.json()["concurrency"], slots);
    let body = SITE_OVERRIDE.1.split('\'').nth(1).unwrap();
    let headers = [("Content-Type", "application/json")];
    let path = path(SITE_OVERRIDE.1);
    let set = rig.client.send(Method::PUT, &path, &headers, body).await;
    assert_eq!(set.status, 200, "{}", set.text());
    rig.only_so_many_go_out(20).await;
}
