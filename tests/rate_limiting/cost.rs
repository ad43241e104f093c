//! What a start pays, by what its job says, and what its ACK says of it afterwards. Both come from strangers.

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sdks::sdk;

const FROM: &str = "
    [[policy]]
    name = 'meta'
    match = { queue = 'q' }
    rate = { limit = 1000000, period = '1h' }
    cost = { from = 'meta.use.tokens', default = 7, max = 500 }
    [[policy]]
    name = 'args'
    match = { queue = 'q' }
    rate = { limit = 1000000, period = '1h' }
    cost = { from = 'args.1.n' }
    [[queue]]
    name = 'q'
    rate = { limit = 1000000, period = '1h' }
    cost = 3
";

const SETTLED: &str = "
    [[policy]]
    name = 'tokens'
    match = { queue = 'q' }
    rate = { limit = 1000000, period = '1h' }
    cost = { default = 100, settle = 'result.usage.total_tokens' }
    [[policy]]
    name = 'calls'
    match = { queue = 'q' }
    rate = { limit = 1000000, period = '1h' }
";

/// What counts in the hour of a key.
async fn counted(rig: &Rig, key: &str) -> u64 {
    let shown = rig.inspect(key).await;
    shown["rate"]["current_count"].as_u64().unwrap()
}

/// A job with this metadata, where each kind of backend keeps it.
fn with_meta(meta: &str) -> String {
    format!(r#"{{"type":"t","args":[],"meta":{meta},"options":{{"queue":"q","metadata":{meta}}}}}"#)
}

/// Each of these is there in the members of a job.
const NUMBERS: [(&str, u64); 18] = [
    ("5", 5),
    ("1", 1),
    ("1.0", 1),
    ("5.2", 6),
    ("2e2", 200),
    ("500", 500),
    ("500.01", 500),
    ("1e300", 500),
    ("99999999999999999999999999", 500),
    ("0.99", 7),
    ("0", 7),
    ("-3", 7),
    ("-1e300", 7),
    ("\"5\"", 7),
    ("null", 7),
    ("true", 7),
    ("[5]", 7),
    ("{\"tokens\":5}", 7),
];

#[tokio::test(start_paused = true)]
async fn a_start_pays_what_its_job_says_or_the_default() {
    let rig = Rig::with(FROM).await;
    let mut paid = 0;
    for (tokens, cost) in NUMBERS {
        let job = with_meta(&format!(r#"{{"use":{{"tokens":{tokens}}}}}"#));
        let job = job.replace("[]", r#"[0,{"n":2}]"#);
        rig.enqueue(&job, 1).await;
        assert_eq!(rig.client.fetch("q", 1).await.len(), 1, "{tokens}");
        paid += cost;
        assert_eq!(counted(&rig, "meta").await, paid, "{tokens}");
    }
    for job in [
        r#"{"type":"t","args":[],"options":{"queue":"q"}}"#,
        r#"{"type":"t","args":[0,3],"meta":{"use":9},"options":{"queue":"q","metadata":{"use":9}}}"#,
    ] {
        rig.enqueue(job, 1).await;
        assert_eq!(rig.client.fetch("q", 1).await.len(), 1);
        paid += 7;
        assert_eq!(counted(&rig, "meta").await, paid, "{job}");
    }
    let starts = NUMBERS.len() as u64 + 2;
    assert_eq!(counted(&rig, "args").await, 2 * NUMBERS.len() as u64 + 2);
    let replaced = |by: &str| format!("ojs_throttle_costs_replaced_total{{by=\"{by}\"}}");
    assert_eq!(rig.metric(&replaced("max")).await, Some(3.0));
    // Nine numbers and two jobs without one, and the two that have no list of two.
    assert_eq!(rig.metric(&replaced("default")).await, Some(13.0));
    for (policy, cost) in [("meta", paid), ("queue", 3 * starts)] {
        let charged = format!("ojs_throttle_cost_charged_total{{policy=\"{policy}\"}}");
        assert_eq!(rig.metric(&charged).await, Some(cost as f64), "{policy}");
    }
}

/// A path that leads nowhere is not silent.
#[tokio::test(start_paused = true)]
async fn a_cost_that_is_not_said_is_told() {
    let (lines, _logged) = Lines::listen();
    let told = |path: &str| {
        let lines = lines.with("id=cost_untold").into_iter();
        lines.filter(|line| line.contains(path)).count()
    };
    let said =
        r#"{"type":"t","args":[0,{"n":2}],"meta":{"use":{"tokens":5}},"options":{"queue":"q"}}"#;
    let rig = Rig::with(FROM).await;
    // A default of 7 is for jobs that say nothing.
    let nothing = said.replace("tokens", "token");
    let a_text = said.replace(":5", r#":"5""#);
    for (job, times) in [(said, 0), (&*nothing, 0), (&*a_text, 1)] {
        rig.enqueue(job, 1).await;
        assert_eq!(rig.client.fetch("q", 1).await.len(), 1, "{job}");
        let found = "policy=\"meta\" path=\"meta.use.tokens\" counts=7";
        assert_eq!(told(found), times);
    }
    let rig = Rig::with(SETTLED).await;
    let found = "policy=\"tokens\" path=\"result.usage.total_tokens\" counts=100";
    let says = r#"{"usage":{"total_tokens":30}}"#;
    for (result, times) in [(says, 0), ("{}", 1), ("{}", 1)] {
        let reply = acked(&rig, &started(&rig).await, Some(result)).await;
        assert_eq!((reply.status, told(found)), (200, times), "{result}");
    }
}

/// What an ACK says of the use, and what counts in the end of the 100 that were paid.
const RESULTS: [(&str, u64); 20] = [
    // As the SDKs for JavaScript, Python, Go and Rust write numbers.
    (r#"{"usage":{"total_tokens":30}}"#, 30),
    (r#"{"usage": {"total_tokens": 30.0}, "text": "x"}"#, 30),
    (r#"{"usage":{"prompt_tokens":1,"total_tokens":3e+02}}"#, 300),
    (r#"{"usage":{"total_tokens":30.5}}"#, 31),
    (r#"{"usage":{"total_tokens":0}}"#, 0),
    (r#"{"usage":{"total_tokens":-0.0}}"#, 0),
    (r#"{"usage":{"total_tokens":0.1}}"#, 1),
    (r#"{"usage":{"total_tokens":100}}"#, 100),
    (r#"{"usage":{"total_tokens":250}}"#, 250),
    (r#"{"usage.total_tokens":40}"#, 40),
    (r#"{"usage":{"total_tokens":-1}}"#, 100),
    (r#"{"usage":{"total_tokens":-0.5}}"#, 100),
    (r#"{"usage":{"total_tokens":"30"}}"#, 100),
    (r#"{"usage":{"total_tokens":null}}"#, 100),
    (r#"{"usage":{"total_tokens":[30]}}"#, 100),
    (r#"{"usage":30}"#, 100),
    (r#"[{"usage":{"total_tokens":30}}]"#, 100),
    (r#""30""#, 100),
    ("30", 100),
    ("null", 100),
];

/// Acknowledges a job with this result.
async fn acked(rig: &Rig, job: &str, result: Option<&str>) -> Reply {
    let ack = sdk::ack(job, result);
    rig.client.post("/ojs/v1/workers/ack", ack).await
}

/// A job that has started, by its id.
async fn started(rig: &Rig) -> String {
    rig.client.enqueue(plain("q")).await;
    let jobs = rig.client.fetch("q", 1).await;
    id(&jobs[0]).to_owned()
}

/// What was charged or refunded under a policy, by the page of metrics.
async fn cost_total(rig: &Rig, what: &str, policy: &str) -> Option<f64> {
    let series = format!("ojs_throttle_cost_{what}_total{{policy=\"{policy}\"}}");
    rig.metric(&series).await
}

#[tokio::test(start_paused = true)]
async fn a_window_counts_what_the_ack_says_that_was_used() {
    let rig = Rig::with(SETTLED).await;
    let (mut sum, mut more, mut less) = (0, 0, 0);
    for (result, used) in RESULTS {
        let job = started(&rig).await;
        assert_eq!(counted(&rig, "tokens").await, sum + 100, "{result}");
        // The second one is of a job that has ended.
        for _ in 0..2 {
            acked(&rig, &job, Some(result)).await;
            assert_eq!(counted(&rig, "tokens").await, sum + used, "{result}");
        }
        sum += used;
        more += used.saturating_sub(100);
        less += 100_u64.saturating_sub(used);
    }
    acked(&rig, &started(&rig).await, None).await;
    let job = started(&rig).await;
    let nack = r#","result":{"usage":{"total_tokens":1}},"error":{"code":"x","message":"y","retryable":false}}"#;
    let nack = format!("{{\"job_id\":\"{job}\"{nack}");
    let nacked = rig.client.post("/ojs/v1/workers/nack", nack).await;
    assert_eq!(nacked.status, 200);
    assert_eq!(counted(&rig, "tokens").await, sum + 200);
    let starts = RESULTS.len() as u64 + 2;
    assert_eq!(counted(&rig, "calls").await, starts);
    let total = async |what: &str| cost_total(&rig, what, "tokens").await;
    assert_eq!(total("charged").await, Some((100 * starts + more) as f64));
    assert_eq!(total("refunded").await, Some(less as f64));
    // One ACK adds no more than all of the limit, and that is over with the window.
    let before = counted(&rig, "tokens").await;
    let result = Some(r#"{"usage":{"total_tokens":1e300}}"#);
    acked(&rig, &started(&rig).await, result).await;
    assert_eq!(counted(&rig, "tokens").await, before + 100 + 1_000_000);
    let more = (100 * (starts + 1) + more + 1_000_000) as f64;
    assert_eq!(total("charged").await, Some(more));
    let limit = "ojs_throttle_costs_replaced_total{by=\"limit\"}";
    assert_eq!(rig.metric(limit).await, Some(1.0));
    sleep(Duration::from_secs(3_640)).await;
    started(&rig).await;
}

/// A key is paid once, however many policies name it: what is charged and what is refunded is told of one of them.
#[tokio::test(start_paused = true)]
async fn what_two_policies_of_a_key_charge_is_told_of_one() {
    let policy = |name: &str, period: &str| {
        format!(
            "[[policy]]\nname = '{name}'\nmatch = {{ queue = 'q' }}\nkey = 'k'\n\
             rate = {{ limit = 1000, period = '{period}' }}\n\
             cost = {{ default = 100, settle = 'result.usage.total_tokens' }}\n"
        )
    };
    let rig = Rig::with(&[policy("a", "1h"), policy("b", "2h")].concat()).await;
    let result = Some(r#"{"usage":{"total_tokens":30}}"#);
    let reply = acked(&rig, &started(&rig).await, result).await;
    assert_eq!(reply.status, 200);
    for (what, amount) in [("charged", 100.0), ("refunded", 70.0)] {
        let of_a = cost_total(&rig, what, "a").await;
        let of_both = [of_a, cost_total(&rig, what, "b").await];
        assert_eq!(of_both, [Some(amount), None], "{what}");
    }
}

const WITHOUT_MAX: &str = "
    [[policy]]
    name = 'p'
    match = { queue = 'q' }
    rate = [{ limit = 100, period = '20s' }, { limit = 5000, period = '1h' }]
    throttle = { limit = 200, period = '20s', burst = 100 }
    cost = { from = 'meta.tokens' }
";

/// Of what a job says no more counts than the smallest limit of its key, so that one wrong number closes it for one
/// period.
#[tokio::test(start_paused = true)]
async fn without_max_a_job_pays_no_more_than_the_smallest_limit() {
    let rig = Rig::with(WITHOUT_MAX).await;
    let mut listener = Listener::open(&rig.client, "/ojs/v1/events/stream", &[]).await;
    let job = |tokens: &str| with_meta(&format!("{{\"tokens\":{tokens}}}"));
    rig.enqueue(&job("1000000000"), 1).await;
    let huge = rig.client.fetch("q", 1).await;
    assert_eq!(huge.len(), 1);
    assert_eq!(counted(&rig, "p").await, 100);
    let max = "ojs_throttle_costs_replaced_total{by=\"max\"}";
    assert_eq!(rig.metric(max).await, Some(1.0));
    let heard = loop {
        let heard = listener.next().await;
        if heard.event == "rate_limit.cost_capped" {
            break heard;
        }
    };
    let told = json!({"key": "p", "job_id": id(&huge[0])});
    assert_eq!(heard.data["data"], told);
    rig.enqueue(&job("1"), 1).await;
    let began = Instant::now();
    while rig.client.fetch("q", 1).await.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(21), "{took:?}");
}

/// The backend gets an ACK as it was sent, whatever is read in it.
#[tokio::test(start_paused = true)]
async fn an_ack_that_settles_goes_up_as_it_came() {
    let job = r#"{"jobs":[{"id":"a","type":"t","queue":"q","state":"active","args":[]}]}"#;
    let says = move |head: &http::request::Parts| match head.uri.path() {
        "/ojs/v1/workers/fetch" => (200, Bytes::from(job)),
        _ => (200, Bytes::from("{}")),
    };
    let (answering, _sidecar, client) =
        crate::sidecar::answering::answering_by(Duration::ZERO, SETTLED, says).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    answering.clear();
    let ack = " {\"result\" : {\"usage\":{\"total_tokens\" : 3.0e1,\"é\":\"\\u00e9\"}}, \"job_id\":\"a\"}\n";
    assert_eq!(client.post("/ojs/v1/workers/ack", ack).await.status, 200);
    assert!(answering.bodies().iter().any(|body| body == ack.as_bytes()));
}

/// A limit that is set over HTTP counts as the file says of its queue.
#[tokio::test(start_paused = true)]
async fn a_queue_has_one_price_however_its_limits_are_set() {
    let rig = Rig::with(FROM).await;
    rig.client.enqueue_all(3, &plain("q")).await;
    let set = "/ojs/v1/admin/queues/q/rate-limit";
    rig.client.set(set, json!({"concurrency": 7})).await;
    // Each takes three.
    assert_eq!(rig.client.fetch("q", 3).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn starts_are_counted_by_group_for_the_first_of_them() {
    let fair = "[metrics]\ntop_keys = 2\n[[policy]]\nname = 'p'\nconcurrency = 9\nfair = { by = '{meta.t}' }\n";
    let rig = Rig::with(fair).await;
    for tenant in ["a", "b", "c", "d", "a"] {
        let job = with_meta(&format!(r#"{{"t":"{tenant}"}}"#));
        rig.enqueue(&job, 1).await;
        assert_eq!(rig.client.fetch("q", 1).await.len(), 1);
    }
    for (labels, starts) in [
        (r#"key="p",group="a""#, Some(2.0)),
        (r#"key="p",group="b""#, Some(1.0)),
        (r#"key="_other",group="_other""#, Some(2.0)),
        (r#"key="p",group="c""#, None),
    ] {
        let series = format!("ojs_throttle_group_starts_total{{{labels}}}");
        assert_eq!(rig.metric(&series).await, starts, "{labels}");
    }
}
