//! What a job may bring along and what it may not, and what becomes of its bytes.

use super::prelude::*;
use super::upstream::storing;
use crate::harness::table;

/// Names in another case and names with escapes are read by some backends, so they are read here.
#[tokio::test(start_paused = true)]
async fn odd_names_are_no_way_round_a_limit() {
    for text in [
        r#"{"type":"t","args":[],"Options":{"Queue":"q","RATE_LIMIT":{"KEY":"k","Concurrency":1}}}"#,
        r#"{"type":"t","args":[],"options":{"queue":"q","rate\u005flimit":{"key":"k","concurrency":1}}}"#,
        r#"{"type":"t","args":[],"opt\u0069ons":{"queue":"q","rate_limit":{"k\u0065y":"k","concurrency":1}}}"#,
        r#"{"type":"t","args":[],"meta":{"a":1,"ojs.rate_\u006cimit":{"key":"k","concurrency":1}},"options":{"queue":"q"}}"#,
        r#"{"type":"t","args":[],"options":{"queue":"q","metadata":{"\u006fjs.r\u0061te_limi\u0074":{"key":"k","concurrency":1}}}}"#,
    ] {
        let (pair, client) = simulated(Lax::redis(), "").await;
        for _ in 0..2 {
            let stored = client.post("/ojs/v1/jobs", text).await;
            assert_eq!(stored.status, 201, "{text}");
        }
        assert_eq!(client.fetch("q", 2).await.len(), 1, "{text}");
        pair.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn null_is_no_policy() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let job = json!({"type": "t", "args": [], "rate_limit": null, "options": {"rate_limit": null}});
    client.enqueue_all(3, &job).await;
    assert_eq!(client.fetch("default", 3).await.len(), 3);
}

/// Values of `rate_limit` that are wrong as a whole, or beside each other, and the field that is: `input.rs` has each
/// field by itself.
const WRONG: &str = r#"
    5 => _
    "k" => _
    [] => _
    true => _
    {} => _.key
    {"concurrency": 1} => _.key
    {"key": null, "concurrency": 1} => _.key
    {"key": "k", "rate": {}} => _.rate.limit
    {"key": "k", "rate": 5} => _.period
    {"key": "k", "concurrency": 1, "rate": []} => _.rate
    {"key": "k", "rate": {"limit": 1, "period": "P1M"}} => _.rate.period
    {"key": "k", "rate": {"limit": 1, "period": 60}} => _.rate.period
    {"key": "k", "throttle": {"interval": "1s", "limit": 1}} => _.throttle.limit
    {"key": "k", "max_per_second": 2000000} => _.max_per_second
"#;

#[tokio::test(start_paused = true)]
async fn a_wrong_policy_is_refused_by_name_and_nothing_is_stored() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let good = r#"{"type":"t","args":[],"options":{"rate_limit":{"key":"good","concurrency":1}}}"#;
    for (policy, field) in table(WRONG) {
        let job = format!(r#"{{"type":"t","args":[],"options":{{"rate_limit":{policy}}}}}"#);
        let top = format!(r#"{{"type":"t","args":[],"rate_limit":{policy}}}"#);
        let meta = format!(r#"{{"type":"t","args":[],"meta":{{"ojs.rate_limit":{policy}}}}}"#);
        let batch = format!(r#"{{"jobs":[{good},{job}]}}"#);
        for (path, body, at) in [
            ("/ojs/v1/jobs", &job, "options.rate_limit"),
            ("/ojs/v1/jobs", &top, "rate_limit"),
            ("/ojs/v1/jobs", &meta, "meta[\"ojs.rate_limit\"]"),
            ("/ojs/v1/jobs/batch", &batch, "jobs[1].options.rate_limit"),
        ] {
            let field = field.replacen('_', at, 1);
            let reply = client.post(path, body.clone()).await;
            let error = reply.refuses(400, "invalid_request", body);
            assert_eq!(error["retryable"], false, "{body}");
            assert_eq!(error["details"]["field"], field, "{body}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(&field), "{body}: {message}");
            assert!(reply.headers.get("retry-after").is_none(), "{body}");
        }
    }
    assert!(pair.behind.backend.ledger().is_empty());
    let named = client.get("/ojs/v1/rate-limits/good").await;
    assert_eq!(named.status, 404, "a key of a refused batch is not named");
}

const BATCH: &str = "/ojs/v1/jobs/batch";
const LIMITED: &str = r#"{"type":"t","args":[],"rate_limit":{"key":"k","concurrency":1}}"#;

/// What the sidecar cannot read it does not judge, but for what it could not limit.
#[tokio::test(start_paused = true)]
async fn what_is_not_json_goes_on_as_it_came() {
    let (recording, _sidecar, client) = storing("").await;
    for text in [
        "",
        "{",
        "nonsense rate_limit",
        "[1,2",
        r#"{"rate_limit":{"key":"k","concurrency":1}"#,
        "\"rate_limit\"",
        "[]",
        "null",
        "{\"type\":\"t\u{0}\", \"rate_limit\":{}}",
    ] {
        recording.clear();
        let reply = client.post("/ojs/v1/jobs", text.as_bytes().to_vec()).await;
        assert_eq!(reply.status, 201, "{text:?}");
        assert_eq!(recording.bodies(), [text.as_bytes()], "{text:?}");
    }
    recording.clear();
    let deep = |n: usize| {
        let args = ["[".repeat(n), "]".repeat(n)].concat();
        LIMITED.replace("[]", &format!("[{args}]"))
    };
    let reply = client.post("/ojs/v1/jobs", deep(100)).await;
    reply.refuses(400, "invalid_request", "");
    assert!(recording.bodies().is_empty());
    assert_eq!(client.post("/ojs/v1/jobs", deep(50)).await.status, 201);
    assert_eq!(recording.bodies().len(), 1);
}

/// A backend that reads only the first value would store such a job past its limits, and past the bounds of its queue.
#[tokio::test(start_paused = true)]
async fn what_has_something_behind_it_is_refused_where_it_would_be_read() {
    let bounded = "[[queue]]\nname = \"bounded\"\nmax_depth = 1";
    let (recording, _sidecar, client) = storing(bounded).await;
    let limited = r#"{"type":"t","args":[],"options":{"queue":"q","rate_limit":{"key":"k","concurrency":1}}}"#;
    let free = r#"{"type":"t","args":[],"options":{"queue":"bounded"}}"#;
    for (path, body) in [
        ("/ojs/v1/jobs", format!("{limited} x")),
        ("/ojs/v1/jobs", format!("{limited}{limited}")),
        ("/ojs/v1/jobs", format!("{free}]")),
        (BATCH, format!(r#"{{"jobs":[{limited}]}} {{}}"#)),
        (BATCH, format!(r#"{{"jobs":[{free}]}}0"#)),
        ("/ojs/v1/workflows", format!(r#"{{"steps":[{limited}]}}}}"#)),
    ] {
        let reply = client.post(path, body.clone()).await;
        let error = reply.refuses(400, "invalid_request", body);
        let says = error["message"].as_str().unwrap();
        let words = "a JSON value with something behind it, at byte ";
        assert!(says.contains(words), "{says}");
    }
    assert!(recording.bodies().is_empty());
    let spaced = format!(" {limited} \r\n");
    assert_eq!(client.post("/ojs/v1/jobs", spaced).await.status, 201);
}

/// Apart from the mirror not a byte of a job changes on its way: args feed the fingerprint of unique
/// jobs, and numbers mean what they were written as.
#[tokio::test(start_paused = true)]
async fn every_byte_but_the_mirror_s_arrives() {
    let (recording, _sidecar, client) = storing("").await;
    let args = r#"[ 1.0 ,1e3,-0, 0.1000,12345678901234567890, {"b":1,"a":"\u003c<\/é","b":2} ]"#;
    let added = [
        r#" { "type" : "t", "args":ARGS , "x_b":1, "x_a":[ ], "options":{"queue":"q", "rate_limit" : {"key":"k","concurrency" : 1} } } "#,
        r#"{"meta":{ "z":1, "a":{} },"type":"t","args":ARGS,"rate_limit":{"concurrency":1,"key":"k"}}"#,
        r#"{"type":"t","meta":{},"args":ARGS,"options":{"visibility_timeout_ms":5000,"rate_limit":{"key":"k","concurrency":1}}}"#,
        r#"{"type":"t","args":ARGS,"options":{"metadata":{"m":1},"rate_limit":{"key":"k","concurrency":1}},"meta":{"n":1}}"#,
    ];
    let none = [
        r#"{"type":"t","args":ARGS,"meta":{"ojs.rate_limit":{"key":"k","concurrency":1}}}"#,
        r#"{"type":"t","args":ARGS,"options":{"visibility_timeout_ms":5000}}"#,
        r#"{"type":"t","args":ARGS,"note":"rate_limit"}"#,
    ];
    let all = added.map(|text| (text, true)).into_iter();
    for (text, added) in all.chain(none.map(|text| (text, false))) {
        let sent = text.replace("ARGS", args);
        recording.clear();
        assert_eq!(client.post("/ojs/v1/jobs", sent.clone()).await.status, 201);
        let got = String::from_utf8(recording.bodies().remove(0)).unwrap();
        assert_eq!(without_mirror(&got), sent, "{got}");
        assert_eq!(got != sent, added, "{got}");
        assert!(got.contains(args));
        if added {
            let job: Value = serde_json::from_str(&got).unwrap();
            let meta = match sent.contains("metadata") {
                true => &job["options"]["metadata"],
                false => &job["meta"],
            };
            let mirror = meta.get("ojs.rate_limit.mirror");
            assert!(mirror.is_some(), "where backends keep it: {got}");
        }
    }
}

/// The text without the mirror, and without the `meta` that was made for it.
fn without_mirror(text: &str) -> String {
    let Some(name) = text.find(r#""ojs.rate_limit.mirror":"#) else {
        return text.to_owned();
    };
    let value = name + text[name..].find(":{").unwrap() + 1;
    let mut depth = 0;
    let end = value
        + text[value..]
            .find(|c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0
            })
            .unwrap()
        + 1;
    let (mut head, mut tail) = (text[..name].to_owned(), text[end..].to_owned());
    if text[value..end].contains(r#""meta":"added""#) {
        head.truncate(head.rfind(r#""meta":{"#).unwrap());
        tail.remove(0);
    }
    if head.trim_end().ends_with(',') {
        head.truncate(head.rfind(',').unwrap());
    }
    head + &tail
}

/// Some backends would keep it for the queue for ever, and limit a second time.
#[tokio::test(start_paused = true)]
async fn max_per_second_is_not_forwarded() {
    let (recording, _sidecar, client) = storing("").await;
    let sent = r#"{"type":"t","args":[],"options":{"queue":"q","rate_limit":{"key":"k","max_per_second":1,"concurrency":4}}}"#;
    client.post("/ojs/v1/jobs", sent).await;
    let batch = format!(r#"{{"jobs":[{sent}]}}"#);
    client.post(BATCH, batch).await;
    for body in recording.bodies() {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let job = body.get("jobs").map_or(&body, |jobs| &jobs[0]);
        let kept = json!({"key": "k", "concurrency": 4});
        assert_eq!(job["options"]["rate_limit"], kept);
        let mirror = &job["meta"]["ojs.rate_limit.mirror"];
        assert_eq!(mirror["policy"]["max_per_second"], 1);
    }
}

/// A producer cannot write a mirror of its own.
#[tokio::test(start_paused = true)]
async fn a_forged_mirror_is_taken_out() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let forged = json!({"policy": {"key": "victim", "concurrency": 0}});
    let job = json!({"type": "t", "args": [], "meta": {"ojs.rate_limit.mirror": forged, "a": 1}});
    client.enqueue(job).await;
    let jobs = client.fetch("default", 1).await;
    assert_eq!(jobs.len(), 1, "it limits nothing");
    assert_eq!(jobs[0]["meta"], json!({"a": 1}));
    assert!(!id(&jobs[0]).is_empty());
}

/// Bodies that must be read and cannot be.
#[tokio::test(start_paused = true)]
async fn too_large_and_packed_bodies_are_refused() {
    let (recording, _sidecar, client) = storing("max_body = \"64KiB\"\n").await;
    let large = format!(r#"{{"type":"t","args":["{}"]}}"#, "x".repeat(65536));
    for path in ["/ojs/v1/jobs", BATCH, "/ojs/v1/workers/fetch"] {
        let reply = client.post(path, large.clone()).await;
        reply.refuses(413, "payload_too_large", path);
        let packed = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ];
        let reply = client.send(Method::POST, path, &packed, "x").await;
        let error = reply.refuses(415, "unsupported_media_type", path);
        assert_eq!(error["retryable"], false);
    }
    assert!(recording.bodies().is_empty());
}

/// Each job of a batch that is read takes far more room than its two bytes here.
#[tokio::test(start_paused = true)]
async fn a_batch_of_very_many_jobs_is_refused() {
    let (recording, _sidecar, client) = storing("").await;
    let batch = |jobs: usize| {
        let zeros = vec!["0"; jobs].join(",");
        format!(r#"{{"rate_limit":0,"jobs":[{zeros}]}}"#)
    };
    assert_eq!(client.post(BATCH, batch(100_000)).await.status, 201);
    let refused = client.post(BATCH, batch(100_001)).await;
    let error = refused.refuses(400, "invalid_request", "");
    assert_eq!(error["details"]["field"], "jobs");
    assert_eq!(recording.bodies().len(), 1, "the second went no further");
}

/// `job_policies.accept = "ignore"`: what a job brings is then the backend's own affair.
#[tokio::test(start_paused = true)]
async fn ignored_policies_are_neither_checked_nor_touched() {
    let config = "[job_policies]\naccept = \"ignore\"\n[[policy]]\nname = \"p\"\nkey = \"{meta.a}\"\nkey_missing = \"reject\"\nconcurrency = 9\n";
    let (recording, _sidecar, client) = storing(config).await;
    for sent in [
        r#"{"type":"t","args":[],"meta":{"a":"1"},"options":{"rate_limit":{"max_per_second":1}}}"#,
        r#"{"type":"t","args":[],"meta":{"a":"1"},"options":{"rate_limit":"nonsense"}}"#,
    ] {
        recording.clear();
        assert_eq!(client.post("/ojs/v1/jobs", sent).await.status, 201);
        assert_eq!(recording.bodies(), [sent.as_bytes()]);
    }
}

const ONE: &str = "[[queue]]\nname = \"full\"\nconcurrency = 1\nmax_depth = 1\n";

/// Backends written in Go take what is not UTF-8, and what is nested deeper than we read: neither goes round a
/// bound or a limit.
#[tokio::test(start_paused = true)]
async fn what_backends_read_is_read_here_too() {
    let (recording, sidecar, client) = storing(ONE).await;
    let odd = b"{\"type\":\"t\",\"args\":[\"\xff\"],\"options\":{\"queue\":\"full\"}}";
    assert_eq!(client.post("/ojs/v1/jobs", odd.to_vec()).await.status, 201);
    assert_eq!(recording.bodies(), [odd]);
    assert_eq!(client.post("/ojs/v1/jobs", odd.to_vec()).await.status, 429);
    sidecar.stop().await;

    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    for args in [b"[\"\xff\"]".as_slice(), deep.as_bytes()] {
        let job = |id: &str| [format!("{{\"id\":{id:?},\"args\":").as_bytes(), args, b"}"].concat();
        let reply = [b"{\"jobs\":[", &*job("a"), b",", &*job("b"), b"]}"].concat();
        let (_, sidecar, client) = crate::rate_limiting::upstream::answering(200, reply, ONE).await;
        let fetch = r#"{"queues":["full"],"count":2,"worker_id":"w"}"#;
        let got = client.post("/ojs/v1/workers/fetch", fetch).await.body;
        let ids = [b"\"id\":\"a\"".as_slice(), b"\"id\":\"b\""];
        let has = ids.map(|id| got.windows(id.len()).any(|part| part == id));
        assert_eq!(has, [true, false], "{:?}", String::from_utf8_lossy(&got));
        let stay = got.windows(args.len()).any(|part| part == args);
        assert!(stay, "bytes stay as they are");
        sidecar.stop().await;
    }
}

/// A body in UTF-16, of 2 bytes a character, or in UTF-32, of 4.
fn wide(text: &str, bytes: usize, big_endian: bool) -> Vec<u8> {
    let each = text.bytes().flat_map(|letter| {
        let mut room = vec![0; bytes];
        let at = if big_endian { bytes - 1 } else { 0 };
        room[at] = letter;
        room
    });
    each.collect()
}

/// Some backends read what is no JSON to us: it goes round no bound and no limit that its jobs bring.
#[tokio::test(start_paused = true)]
async fn what_only_backends_read_is_refused_where_it_would_be_read() {
    let plain = r#"{"type":"t","args":[],"options":{"queue":"full"}}"#;
    let spelled = |job: &str| {
        let with = |number: &str| job.replace("[]", &format!("[{number}]")).into_bytes();
        let marked = |mark: &[u8], body: Vec<u8>| [mark, &*body].concat();
        [
            marked(b"\xEF\xBB\xBF", job.as_bytes().to_vec()),
            marked(b"\xFF\xFE", wide(job, 2, false)),
            marked(b"\xFE\xFF", wide(job, 2, true)),
            wide(job, 2, false),
            wide(job, 2, true),
            wide(job, 4, false),
            wide(job, 4, true),
            with("NaN"),
            with("1,Infinity"),
            with("-Infinity"),
        ]
    };
    let is_refused = async |config: &str, path: &str, body: Vec<u8>| {
        let (recording, sidecar, client) = storing(config).await;
        let reply = client.post(path, body.clone()).await;
        let refused = reply.status == 400;
        if refused {
            assert_eq!(reply.json()["error"]["code"], "invalid_request");
            assert!(recording.bodies().is_empty());
        } else {
            assert_eq!((reply.status, recording.bodies()), (201, vec![body]));
        }
        sidecar.stop().await;
        refused
    };
    let batch = |job: &str| format!(r#"{{"jobs":[{job}]}}"#);
    let path = "/ojs/v1/jobs";
    for (nth, body) in spelled(plain).into_iter().enumerate() {
        assert!(is_refused(ONE, path, body.clone()).await, "bound, {nth}");
        assert!(!is_refused("", path, body).await, "nothing looks, {nth}");
    }
    for (nth, body) in spelled(LIMITED).into_iter().enumerate() {
        assert!(is_refused("", path, body).await, "limit, {nth}");
    }
    for (nth, body) in spelled(&batch(plain)).into_iter().enumerate() {
        let path = "/ojs/v1/jobs/batch";
        assert!(is_refused(ONE, path, body.clone()).await, "batch, {nth}");
        assert!(!is_refused("", path, body).await, "batch, {nth}");
    }
}

/// Some backends put several `options` together, others take the last.
#[tokio::test(start_paused = true)]
async fn a_job_with_several_options_is_refused_where_they_count() {
    let job = r#"{"type":"t","args":[],"options":{"queue":"full"},"options":{"priority":0}}"#;
    for (path, sent) in [
        ("/ojs/v1/jobs", job.to_owned()),
        ("/ojs/v1/jobs/batch", format!(r#"{{"jobs":[{job}]}}"#)),
    ] {
        let limit = "[[policy]]\nname = \"p\"\nmatch = { queue = \"full\" }\nconcurrency = 1\n";
        for config in [ONE, limit] {
            let (recording, sidecar, client) = storing(config).await;
            let reply = client.post(path, sent.clone()).await;
            let field = &reply.json()["error"]["details"]["field"];
            let field = field.as_str().unwrap_or_else(|| panic!("{}", reply.text()));
            assert!(field.ends_with("options"), "{field}");
            assert_eq!(reply.status, 400);
            assert!(recording.bodies().is_empty());
            sidecar.stop().await;
        }
        let (_, sidecar, client) = storing("").await;
        assert_eq!(client.post(path, sent).await.status, 201, "nothing counts");
        sidecar.stop().await;
    }
}

/// Some backends read a name in their own spelling only, others the last of those that differ in case.
#[tokio::test(start_paused = true)]
async fn what_counts_is_said_once_in_whatever_spelling() {
    let fetch = "/ojs/v1/workers/fetch";
    let job = r#"{"type":"t","args":[],"options":{"queue":"full"}}"#;
    let twice = |name: &str| job.replace("full", &format!(r#"full","{name}":"free"#));
    let batch = |job: &str, more: &str| format!(r#"{{"jobs":[{job}]{more}}}"#);
    let queues = r#"{"queues":["full"],"\u0051ueues":["free"],"count":5}"#;
    for (path, sent, field) in [
        ("/ojs/v1/jobs", twice("Queue"), "options"),
        (BATCH, batch(&twice("QUEUE"), ""), "jobs[0].options"),
        (BATCH, batch(job, r#","Jobs":[]"#), "jobs"),
        (fetch, queues.to_owned(), "queues"),
    ] {
        let (recording, sidecar, client) = storing(ONE).await;
        let reply = client.post(path, sent.clone()).await;
        assert_eq!(reply.status, 400, "{sent}");
        let told = &reply.json()["error"]["details"]["field"];
        assert_eq!(told, field, "{}", reply.text());
        assert!(recording.bodies().is_empty());
        sidecar.stop().await;
    }
}

/// Backends forget a job's own visibility timeout, however it was written.
#[tokio::test(start_paused = true)]
async fn a_visibility_timeout_in_words_is_kept_too() {
    let (recording, _sidecar, client) = storing("").await;
    let limit = json!({"key": "k", "concurrency": 1});
    for (options, kept) in [
        (json!({"visibility_timeout": "PT10M"}), json!(600_000)),
        (
            json!({"visibility_timeout": "PT10M", "visibility_timeout_ms": 5_000}),
            json!(5_000),
        ),
        (json!({"visibility_timeout": "soon"}), Value::Null),
    ] {
        let mut options = options;
        options["rate_limit"] = limit.clone();
        recording.clear();
        let job = json!({"type": "t", "args": [], "options": options});
        let stored = client.post("/ojs/v1/jobs", job.to_string()).await;
        assert_eq!(stored.status, 201);
        let got: Value = serde_json::from_slice(&recording.bodies().remove(0)).unwrap();
        let mirror = &got["meta"]["ojs.rate_limit.mirror"];
        assert_eq!(mirror["visibility_timeout_ms"], kept, "{got}");
    }
}
