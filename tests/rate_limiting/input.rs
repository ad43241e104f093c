//! Bad input: each field of every body that the sidecar reads, with a wrong type, negative, zero, absurdly
//! large, unknown or missing: 400 with the field and what would be right, and nothing is changed.

use super::prelude::*;
use crate::harness::table;

/// What a field takes.
#[derive(Clone, Copy)]
enum Takes {
    /// A whole number from `from`.
    Number { from: i64 },
    /// A number from 0 to 1.
    Part,
    /// A duration, as text.
    Period,
    /// A time to come, as text.
    Time,
    /// One of some words or names.
    Word,
    /// The name of a key.
    Key,
    /// Any text.
    Text,
    /// An object.
    Object,
    /// An object, a list, or a number beside a `period`.
    Rate,
    /// An object, or a number.
    PerSecond,
    /// A number of bytes, or text with a unit.
    Size,
}

impl Takes {
    /// Values that it does not take.
    fn wrong(self) -> Vec<Value> {
        let mut all = vec![json!(true), json!([1, 2])];
        if !matches!(self, Takes::Object | Takes::Rate) {
            all.push(json!({"a": 1}));
        }
        match self {
            Takes::Number { from } => {
                all.extend([json!("5"), json!("five"), json!(""), json!(-1)]);
                all.extend([json!(1.5), json!(-1e300), json!(u64::MAX), json!(1e300)]);
                all.extend((from > 0).then(|| json!(0)));
            }
            Takes::Part => all.extend([json!("0.5"), json!(-0.1), json!(1.5), json!(1e300)]),
            Takes::Period => {
                all.extend([json!("soon"), json!(""), json!("PT0S"), json!("-PT1S")]);
                all.extend([json!("P9999999999D"), json!("100000000000000000000s")]);
                all.extend([json!("1e400s"), json!(-1), json!(0)]);
            }
            Takes::Time => {
                all.extend([json!("soon"), json!(""), json!("2020-01-01T00:00:00Z")]);
                all.extend([json!("2026-02-30T00:00:00Z"), json!(0), json!(-1)]);
                all.extend([json!(1e300), json!("2026-02-14T00:00:00")]);
            }
            Takes::Word => all.extend([json!("explode"), json!(""), json!(1), json!(-1)]),
            Takes::Text => all.extend([json!(1), json!(-1), json!(0.5)]),
            Takes::Object => all.extend([json!("fast"), json!(-1), json!(1e300)]),
            Takes::Rate => {
                all.extend([json!("fast"), json!(""), json!([]), json!([null])]);
                all.extend([json!(-1), json!(0), json!(1.5), json!(1e300)]);
            }
            Takes::Key => {
                all.extend([json!(1), json!(""), json!("a b"), json!("-a")]);
                all.extend([json!("a/b"), json!("k".repeat(300))]);
            }
            Takes::PerSecond => {
                all.extend([json!("fast"), json!(""), json!(-1), json!(0), json!(1.5)]);
                all.extend([json!({}), json!(1e300), json!(u64::MAX)]);
            }
            Takes::Size => all.extend([json!("much"), json!(-1), json!(1.5), json!(1e300)]),
        }
        all
    }

    /// Values that are too much of what it takes: a body may not set them, a signal is clamped.
    fn beyond(self) -> Vec<Value> {
        match self {
            // The day after the last one from noon on, and what is often written for never.
            Takes::Time => vec![json!("2027-02-15T12:00:00Z"), json!("9999-12-31T23:59:59Z")],
            Takes::Period => vec![json!("P367D"), json!("8785h")],
            _ => Vec::new(),
        }
    }
}

/// What is right, the fields in it, and those of them that it cannot do without.
struct Shape {
    right: Value,
    fields: &'static [(&'static str, Takes)],
    needed: &'static [&'static str],
}

fn shape(
    right: Value,
    fields: &'static [(&'static str, Takes)],
    needed: &'static [&'static str],
) -> Shape {
    Shape {
        right,
        fields,
        needed,
    }
}

/// A request, and the shape in its body.
struct Body {
    method: Method,
    path: &'static str,
    admin: bool,
    /// Puts the shape in its place.
    wrap: fn(Value) -> Value,
    /// The place, as it stands before the name of a field.
    at: &'static str,
    shape: Shape,
}

const NUMBER: Takes = Takes::Number { from: 1 };
const SLOTS: Takes = Takes::Number { from: 0 };

/// Windows and spacing, in each of their spellings.
fn shapes() -> Vec<Shape> {
    vec![
        shape(
            json!({
                "rate": {"limit": 100, "period": "PT1M"},
                "throttle": {"limit": 10, "period": "PT1S", "burst": 2},
            }),
            &[
                ("rate", Takes::Rate),
                ("rate.limit", NUMBER),
                ("rate.period", Takes::Period),
                ("rate.window", Takes::Word),
                ("rate.tz", Takes::Word),
                ("throttle", Takes::Object),
                ("throttle.limit", NUMBER),
                ("throttle.period", Takes::Period),
                ("throttle.burst", NUMBER),
                ("throttle.measure", Takes::Word),
            ],
            &[
                "rate.limit",
                "rate.period",
                "throttle.limit",
                "throttle.period",
            ],
        ),
        shape(
            json!({"rate": [
                {"limit": 9, "period": "1s", "window": "fixed"},
                {"limit": 99, "period": "P1D", "window": "calendar", "tz": "Europe/Oslo"},
            ]}),
            &[
                ("rate", Takes::Rate),
                ("rate[0].limit", NUMBER),
                ("rate[0].period", Takes::Period),
                ("rate[1]", Takes::Object),
                ("rate[1].limit", NUMBER),
                ("rate[1].period", Takes::Period),
                ("rate[1].window", Takes::Word),
                ("rate[1].tz", Takes::Word),
            ],
            &[
                "rate[0].limit",
                "rate[0].period",
                "rate[1].limit",
                "rate[1].period",
            ],
        ),
        shape(
            json!({"rate": 5, "period": "second"}),
            &[
                ("rate", Takes::Rate),
                ("period", Takes::Period),
                ("window", Takes::Word),
                ("tz", Takes::Word),
            ],
            &["rate", "period"],
        ),
        shape(
            json!({"limit": 5, "period": "day", "window": "calendar", "tz": "Europe/Oslo"}),
            &[
                ("limit", NUMBER),
                ("period", Takes::Period),
                ("window", Takes::Word),
                ("tz", Takes::Word),
            ],
            &["limit", "period"],
        ),
        shape(
            json!({"limit": 5, "period": "1m"}),
            &[("limit", NUMBER), ("period", Takes::Period)],
            &["limit", "period"],
        ),
        shape(
            json!({"throttle": {"interval": "PT0.1S", "burst": 2, "measure": "completion"}}),
            &[
                ("throttle", Takes::Object),
                ("throttle.interval", Takes::Period),
                ("throttle.burst", NUMBER),
                ("throttle.measure", Takes::Word),
            ],
            &["throttle.interval"],
        ),
        shape(
            json!({"max_per_second": 5}),
            &[("max_per_second", NUMBER)],
            &[],
        ),
    ]
}

/// What else an override has, or limits of a queue.
fn override_shape() -> Shape {
    let until = "2026-02-13T13:00:00Z";
    shape(
        json!({"concurrency": 5, "expires_at": until, "reason": "INC-42", "by": "eve"}),
        &[
            ("concurrency", SLOTS),
            ("expires_at", Takes::Time),
            ("reason", Takes::Text),
            ("by", Takes::Text),
        ],
        &["concurrency"],
    )
}

fn bodies() -> Vec<Body> {
    let put = |path, shape| Body {
        method: Method::PUT,
        path,
        admin: false,
        wrap: |shape| shape,
        at: "",
        shape,
    };
    let next_start = |shape| Body {
        admin: true,
        ..put("/throttle/v1/keys/k/next-start", shape)
    };
    let config = "/ojs/v1/admin/queues/q/config";
    let mut all = Vec::new();
    for path in [
        "/ojs/v1/rate-limits/k",
        "/ojs/v1/rate-limits/k/override",
        "/ojs/v1/admin/queues/q/rate-limit",
    ] {
        all.push(put(path, override_shape()));
        all.extend(shapes().into_iter().map(|shape| put(path, shape)));
    }
    all.extend(shapes().into_iter().map(|shape| Body {
        wrap: |shape| json!({"rate_limit": shape}),
        at: "rate_limit.",
        ..put(config, shape)
    }));
    all.push(put(
        config,
        shape(
            json!({"concurrency": 5, "rate_limit": 7}),
            &[("concurrency", SLOTS), ("rate_limit", Takes::PerSecond)],
            &[],
        ),
    ));
    let bounds = json!({"max_depth": 100, "max_size_bytes": 1_000_000, "strategy": "reject", "warning_threshold": 0.8});
    all.push(put(
        config,
        shape(
            json!({"backpressure": bounds}),
            &[
                ("backpressure", Takes::Object),
                ("backpressure.max_depth", SLOTS),
                ("backpressure.max_size_bytes", Takes::Size),
                ("backpressure.strategy", Takes::Word),
                ("backpressure.warning_threshold", Takes::Part),
            ],
            &[],
        ),
    ));
    let (after, at) = (
        json!({"after": "PT30S"}),
        json!({"at": "2026-02-13T13:00:00Z"}),
    );
    all.push(next_start(shape(
        after,
        &[("after", Takes::Period)],
        &["after"],
    )));
    all.push(next_start(shape(at, &[("at", Takes::Time)], &["at"])));
    all
}

/// `shape` with another value at a path such as `rate[1].limit`, or without it.
fn with(shape: &Value, path: &str, value: Option<Value>) -> Value {
    let mut shape = shape.clone();
    let path = path.replace('[', ".").replace(']', "");
    let (above, name) = path.rsplit_once('.').unwrap_or(("", &path));
    let names = above.split('.').filter(|name| !name.is_empty());
    let place = names.fold(&mut shape, |place, name| match name.parse::<usize>() {
        Ok(nth) => &mut place[nth],
        Err(_) => &mut place[name],
    });
    match (place, value) {
        (Value::Array(items), Some(value)) => items[name.parse::<usize>().unwrap()] = value,
        (place, Some(value)) => place[name] = value,
        (place, None) => drop(place.as_object_mut().unwrap().remove(name)),
    }
    shape
}

impl Body {
    /// Sends this shape in its place.
    async fn send(&self, rig: &Rig, shape: Value) -> Reply {
        let to = match self.admin {
            true => rig.admin.clone().controlling("s3cret"),
            false => rig.client.clone(),
        };
        let kind = [("content-type", "application/json")];
        let body = (self.wrap)(shape).to_string();
        to.send(self.method.clone(), self.path, &kind, body).await
    }

    /// Sends each wrong value of each field, and without each that it needs; how many were refused.
    async fn is_refused_when_wrong(&self, rig: &Rig) -> usize {
        let mut asked = 0;
        for (field, takes) in self.shape.fields {
            for wrong in takes.wrong().into_iter().chain(takes.beyond()) {
                let wrong = with(&self.shape.right, field, Some(wrong));
                self.is_refused(rig, wrong, field).await;
                asked += 1;
            }
        }
        for field in self.shape.needed {
            let without = with(&self.shape.right, field, None);
            let what = format!("{} {without}", self.path);
            let reply = self.send(rig, without).await;
            assert_eq!(reply.status, 400, "{what}: {}", reply.text());
            let named = reply.json()["error"]["details"]["field"].clone();
            assert!(named.is_string(), "{what}: {}", reply.text());
            asked += 1;
        }
        asked
    }

    /// Sends a shape that is wrong in `field`, and reads the refusal.
    async fn is_refused(&self, rig: &Rig, shape: Value, field: &str) {
        let field = format!("{}{field}", self.at);
        let what = format!("{} {shape}", self.path);
        let reply = self.send(rig, shape).await;
        let error = reply.refuses(400, "invalid_request", &what);
        assert_eq!(error["retryable"], false, "{what}");
        let named = error["details"]["field"].as_str().unwrap_or_default();
        let inside = named.strip_prefix(&*field);
        let is_it = inside.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        assert!(is_it, "{field} is wrong: {what}");
        let message = error["message"].as_str().unwrap();
        let right = message.split_once(named).map_or("", |(_, rest)| rest);
        assert!(right.len() > 10, "what would be right: {what}");
    }
}

/// What can be seen of all limits.
async fn seen(rig: &Rig) -> Vec<String> {
    let mut all = Vec::new();
    for path in [
        "/ojs/v1/rate-limits",
        "/ojs/v1/rate-limits/k",
        "/ojs/v1/admin/queues/q/rate-limit",
        "/ojs/v1/admin/queues/q/config",
        "/ojs/v1/queues/q/stats",
    ] {
        let text = rig.client.get(path).await.text();
        let mut shown: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        // Each answer has another.
        if let Some(error) = shown["error"].as_object_mut() {
            error.remove("request_id");
        }
        all.push(shown.to_string());
    }
    all
}

#[tokio::test(start_paused = true)]
async fn each_field_of_each_body() {
    let mut asked = 0;
    for body in bodies() {
        let rig = Rig::with("control_token = \"s3cret\"\n").await;
        let limit = json!({"key": "k", "concurrency": 3});
        let options = json!({"queue": "q", "rate_limit": limit});
        let job = json!({"type": "t", "args": [], "options": options});
        rig.client.enqueue_all(4, &job).await;
        let before = seen(&rig).await;
        asked += body.is_refused_when_wrong(&rig).await;
        for (field, _) in body.shape.fields {
            let (above, name) = field.rsplit_once('.').unwrap_or(("", field));
            // The body of a queue's config is the backend's as well: what is unknown in it is not ours.
            let theirs = body.path.ends_with("/config") && body.at.is_empty() && above.is_empty();
            if !theirs && !field.ends_with(']') {
                let unknown = format!("{above}.{name}_x").trim_matches('.').to_owned();
                let with = with(&body.shape.right, &unknown, Some(json!(1)));
                body.is_refused(&rig, with, &unknown).await;
                asked += 1;
            }
        }
        let right = body.shape.right.clone();
        assert_eq!(seen(&rig).await, before, "{} {right}", body.path);
        let started = rig.client.fetch("q", 9).await.len();
        assert_eq!(started, 3, "the limits are as before");
        let reply = body.send(&rig, right.clone()).await;
        assert_eq!(reply.status, 200, "{right}: {}", reply.text());
        assert_ne!(seen(&rig).await, before, "what is right changes something");
    }
    assert!(asked > 1_500, "{asked}");
}

/// Where a job's limits may stand: the path of a body, how messages name the place, and what puts limits there.
type Place = (&'static str, &'static str, fn(Value) -> Value);

/// A template with limits.
fn template(limits: &Value) -> Value {
    json!({"type": "t", "args": [], "options": {"rate_limit": limits}})
}

const PLACES: [Place; 6] = [
    ("/ojs/v1/jobs", "options.rate_limit.", |limits| {
        template(&limits)
    }),
    (
        "/ojs/v1/jobs",
        "rate_limit.",
        |limits| json!({"type": "t", "args": [], "rate_limit": limits}),
    ),
    (
        "/ojs/v1/jobs",
        "meta[\"ojs.rate_limit\"].",
        |limits| json!({"type": "t", "args": [], "meta": {"ojs.rate_limit": limits}}),
    ),
    (
        "/ojs/v1/jobs/batch",
        "jobs[0].options.rate_limit.",
        |limits| json!({"jobs": [template(&limits)]}),
    ),
    (
        "/ojs/v1/cron",
        "job_template.options.rate_limit.",
        |limits| json!({"name": "n", "cron": "* * * * *", "job_template": template(&limits)}),
    ),
    (
        "/ojs/v1/workflows",
        "steps[0].options.rate_limit.",
        |limits| json!({"type": "chain", "steps": [template(&limits)]}),
    ),
];

#[tokio::test(start_paused = true)]
async fn each_field_of_what_a_job_brings() {
    let mut shapes = shapes();
    for shape in &mut shapes {
        shape.right["key"] = json!("k");
    }
    shapes.push(shape(
        json!({"key": "k", "concurrency": 5, "on_limit": "wait"}),
        &[
            ("key", Takes::Key),
            ("concurrency", SLOTS),
            ("on_limit", Takes::Word),
        ],
        &["key"],
    ));
    let rig = Rig::with("").await;
    let mut asked = 0;
    for (path, at, wrap) in PLACES {
        for shape in &shapes {
            let body = Body {
                method: Method::POST,
                path,
                admin: false,
                wrap,
                at,
                shape: Shape {
                    right: shape.right.clone(),
                    ..*shape
                },
            };
            asked += body.is_refused_when_wrong(&rig).await;
        }
    }
    assert!(asked > 2_000, "{asked}");
    assert!(rig.behind.backend.ledger().is_empty(), "nothing is stored");
    assert_eq!(rig.client.get("/ojs/v1/rate-limits/k").await.status, 404);
    for (path, at, wrap) in PLACES {
        // The backend here has not the paths of templates.
        let right_is = if path.contains("/jobs") { 201 } else { 404 };
        for shape in &shapes {
            let body = wrap(shape.right.clone()).to_string();
            let status = rig.client.post(path, body.clone()).await.status;
            assert_eq!(status, right_is, "{at} {body}");
        }
    }
}

/// Each window is asked at every start, so there are few of them.
#[tokio::test(start_paused = true)]
async fn more_windows_than_can_be_kept() {
    let rig = Rig::with("").await;
    let windows = |n: u64| -> Vec<Value> {
        let each = (1..=n).map(|n| json!({"limit": 5, "period": format!("{n}s")}));
        each.collect()
    };
    let sent = async |n: u64| {
        let options = json!({"rate_limit": {"key": "k", "rate": windows(n)}});
        let body = json!({"type": "t", "args": [], "options": options}).to_string();
        rig.client.post("/ojs/v1/jobs", body).await
    };
    let reply = sent(9).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let named = reply.json()["error"]["details"]["field"].clone();
    assert_eq!(named, "options.rate_limit.rate");
    assert_eq!(sent(8).await.status, 201);
    let set = json!({"rate": windows(9)});
    let reply = rig.client.put("/ojs/v1/rate-limits/k", set).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
}

/// What a nack says of a vendor is the backend's to accept: a signal that is none shuts nothing, and one
/// for absurdly long is clamped to `max_pause`.
#[tokio::test(start_paused = true)]
async fn signals_that_are_none() {
    let wrong = [
        ("retry_after", Takes::Period.wrong()),
        ("rate_limit_until", Takes::Time.wrong()),
        ("details", Takes::Object.wrong()),
    ];
    for (field, values) in wrong {
        for value in values {
            let shut = nacked(json!({"type": "E", "message": "no", (field): value})).await;
            // A number is a time in seconds, so 0 is one that has passed.
            assert_eq!(shut, Value::Null, "{field}: {value}");
        }
    }
    for long in [
        json!({"retry_after": 1_000_000}),
        json!({"retry_after": 1e300}),
        json!({"retry_after": "P100D"}),
        json!({"rate_limit_until": "9999-12-30T00:00:00Z"}),
        json!({"details": {"Retry-After": "1000000"}}),
        json!({"details": {"headers": {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}}}),
        json!({"details": {"X-RateLimit-Reset": "99999999999"}}),
    ] {
        let mut error = json!({"type": "E", "message": "no"});
        let members = long.as_object().unwrap().clone();
        error.as_object_mut().unwrap().extend(members);
        let shut = nacked(error).await;
        let at = shut.as_str().unwrap_or_default();
        assert!(at.starts_with("2026-02-13T12:15:00"), "{long}: {shut}");
    }
}

/// A job of key `k` fails with this error: until when the key is shut.
async fn nacked(error: Value) -> Value {
    let rig = Rig::with("").await;
    let job = json!({"type": "t", "args": [], "rate_limit": {"key": "k", "concurrency": 3}});
    let job = rig.client.enqueue(job).await;
    rig.client.fetch("default", 1).await;
    rig.client.nack_with(&job, error).await;
    rig.inspect("k").await["shut_until"].clone()
}

/// Limits with a slip in them, and how the answer begins.
const SLIPS: &str = r#"
{"key":"k","concurency":1} => concurency: is not known here; did you mean `concurrency`?
{"key":"k","concurrency":1,"onLimit":"drop"} => onLimit: is not known here; did you mean `on_limit`?
{"key":"k","concurrency":1,"limti":5} => limti: is not known here; did you mean `limit`?
{"key":"k","interval":"1s"} => interval: is not known here; it belongs in `throttle`
{"key":"k","rate":{"limit":1,"period":"1s","windo":"fixed"}} => rate.windo: is not known here; did you mean `window`?
{"key":"k","rate":[{"limit":1,"period":"1s","concurrency":1}]} => rate[0].concurrency: is not known here; it belongs beside `key`
{"key":"k","throttle":{"interval":"1s","brust":3}} => throttle.brust: is not known here; did you mean `burst`?
{"key":"k","limit":1,"period":"1m","rate":{"limit":50,"period":"1m"}} => limit: says the same as rate
{"key":"k","period":"1m","rate":{"limit":50,"period":"1h"}} => period: needs a limit beside it
{"key":"k","period":"1m"} => period: needs a limit beside it
{"key":"k","concurrency":1,"rate":[]} => rate: is an empty list
{"key":"k","slots":1} => slots: is not known, and nothing beside it is a limit; known are key, 
{"key":"k","concurrency":1,"on_limit":"explode"} => on_limit: cannot be "explode"; write "wait" or "reschedule"
"#;

/// A job whose limits have a slip in them, in any of their places, is not stored; what another text may mean is
/// not looked at.
#[tokio::test(start_paused = true)]
async fn slips_in_what_a_job_brings() {
    let places = [
        ("options.rate_limit", r#""options":{"rate_limit":LIMITS}"#),
        ("rate_limit", r#""rate_limit":LIMITS"#),
        (
            "meta[\"ojs.rate_limit\"]",
            r#""meta":{"ojs.rate_limit":LIMITS}"#,
        ),
    ];
    let rig = Rig::with("").await;
    let send = async |member: &str, limits: &str| {
        let job = format!(r#"{{"type":"t","args":[],{member}}}"#);
        let body = job.replace("LIMITS", limits);
        rig.client.post("/ojs/v1/jobs", body).await
    };
    for (at, job) in places {
        for (limits, says) in table(SLIPS) {
            let reply = send(job, limits).await;
            assert_eq!(reply.status, 400, "{at} {limits}: {}", reply.text());
            let error = &reply.json()["error"];
            let (field, _) = says.split_once(": ").unwrap();
            assert_eq!(error["details"]["field"], format!("{at}.{field}"));
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("{at}.{says}")), "{message}");
        }
    }
    let stored = rig.client.fetch("default", 9).await;
    assert!(stored.is_empty(), "{stored:?}");
    for (at, job) in places {
        for passes in [
            r#"{"key":"k","concurrency":1,"slots":1,"tier":"gold"}"#,
            r#"{"key":"k","on_limit":"drop"}"#,
            r#"{"key":"k","conncurrency":null,"slots":null}"#,
            r#"{"key":"k","rate":{"limit":1,"period":"1s","cost":2}}"#,
        ] {
            let reply = send(job, passes).await;
            assert_eq!(reply.status, 201, "{at} {passes}: {}", reply.text());
        }
    }
}

/// Whoever looks for a key of a policy before a worker has asked for its jobs is not told that there are none.
#[tokio::test(start_paused = true)]
async fn a_key_that_only_enqueued_jobs_have() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    let config = "[[policy]]\nname = \"p\"\nkey = \"late:{type}\"\nconcurrency = 1\n";
    let rig = Rig::over(store.clone(), config).await;
    rig.enqueue(r#"{"type":"x","args":[]}"#, 3).await;
    let reply = rig.client.get("/ojs/v1/rate-limits/late:x").await;
    assert_eq!(reply.status, 404);
    let text = reply.text();
    for words in [
        "no job that was claimed here, or enqueued here with limits of its own",
        "once a worker has claimed a job with it",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("a sibling may know it"), "{text}");
    assert_eq!(rig.client.fetch("default", 1).await.len(), 1);
    assert_eq!(rig.inspect("late:x").await["key"], "late:x");
    // Each sidecar answers for itself.
    store.with_siblings(1);
    sleep(Duration::from_secs(2)).await;
    let other = rig.client.get("/ojs/v1/rate-limits/late:y").await;
    assert_eq!(other.status, 404);
    let text = other.text();
    assert!(text.contains("a sibling may know it: each"), "{text}");
}
