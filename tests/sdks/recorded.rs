//! What these clients send is what was recorded of the official SDKs: each recorded request of theirs is
//! taken apart, forgotten in its order, and written again by our client from its values. Head and body
//! must be the same, but for host, token and request id.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::prelude::*;
use crate::traffic::recording::recorded;

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Members by their names, values as they stand.
fn members(text: &str) -> Members<'_> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A value of the type that is asked for.
fn value<T: serde::de::DeserializeOwned>(members: &Members, name: &str) -> T {
    serde_json::from_str(members[name].get()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn new_job(text: &str) -> NewJob {
    let job = members(text);
    let options = job.get("options").map(|options| members(options.get()));
    let options = options.into_iter().flatten();
    NewJob {
        kind: value(&job, "type"),
        args: job["args"].get().to_owned(),
        meta: job.get("meta").map(|meta| meta.get().to_owned()),
        options: options
            .map(|(name, value)| (name, value.get().to_owned()))
            .collect(),
    }
}

/// The body of a recorded request, as our client writes it.
fn rewritten(sdk: &Sdk, operation: &str, text: &str) -> String {
    let body = members(text);
    let id = |name: &str| value::<String>(&body, name);
    match operation {
        "jobs" => (sdk.enqueue)(&new_job(text)),
        "jobs/batch" => {
            let jobs: Vec<&RawValue> = serde_json::from_str(body["jobs"].get()).unwrap();
            let jobs: Vec<NewJob> = jobs.iter().map(|job| new_job(job.get())).collect();
            (sdk.batch)(&jobs)
        }
        "workers/fetch" => (sdk.fetch)(&Fetch {
            queues: &value::<Vec<String>>(&body, "queues"),
            count: value(&body, "count"),
            worker: &id("worker_id"),
            visibility: sdk.visibility,
        }),
        "workers/ack" => (sdk.ack)(&id("job_id"), body.get("result").map(|result| result.get())),
        "workers/nack" => {
            let error = members(body["error"].get());
            let code: String = value(&error, "code");
            let details: Option<Value> = error.get("details").map(|_| value(&error, "details"));
            let trace = details.map(|details| {
                let trace = details.get("stack").or(details.get("traceback"));
                trace.and_then(Value::as_str).unwrap().to_owned()
            });
            let known = ["handler_error", "handler_not_found", "cancelled"];
            let code = known.into_iter().find(|known| **known == code);
            (sdk.nack)(
                &id("job_id"),
                &Thrown {
                    code: code.unwrap(),
                    message: value(&error, "message"),
                    retryable: value(&error, "retryable"),
                    trace,
                },
            )
        }
        "workers/heartbeat" => {
            // A list of ids beside a number, or instead of one.
            let ids = body.get("active_job_ids").map(|_| "active_job_ids");
            let or = |name, other: &str| match body.get(name) {
                Some(value) => value.get().to_owned(),
                None => other.to_owned(),
            };
            (sdk.heartbeat)(&Beat {
                worker: &id("worker_id"),
                jobs: &value::<Vec<String>>(&body, ids.unwrap_or("active_jobs")),
                queues: &serde_json::from_str::<Vec<String>>(&or("queues", "[]")).unwrap(),
                concurrency: or("concurrency", "0").parse().unwrap(),
                visibility: 30_000,
                labels: &or("labels", "[]"),
                pid: or("pid", "0").parse().unwrap(),
            })
        }
        _ => panic!("{operation}"),
    }
}

/// The headers of a recorded request, as our client writes them.
fn headers(
    sdk: &Sdk,
    method: &str,
    recorded: &[(String, String)],
    body: &str,
) -> Vec<(String, String)> {
    let of = |name: &str| {
        let named = recorded.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map_or("", |(_, value)| value.as_str())
    };
    let head = (sdk.head)(&Call {
        host: of("host"),
        token: of("authorization").trim_start_matches("Bearer "),
        id: of("x-request-id"),
        method,
        body: (!body.is_empty()).then_some(body),
    });
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    head.into_iter().map(owned).collect()
}

/// Compares a recording; how many requests of each operation there were.
fn compare(sdk: &Sdk, recording: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (nth, exchange) in recorded(recording).into_iter().enumerate() {
        let request = exchange.request;
        let about = format!("{recording} {nth}: {}", request.start);
        let mut start = request.start.split(' ');
        let (method, path) = (start.next().unwrap(), start.next().unwrap());
        let sent = request.headers;
        // What the recorder's programs added through the SDK's own settings.
        let sent: Vec<_> = sent
            .into_iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("x-custom"))
            .collect();
        let body = std::str::from_utf8(&request.body).unwrap();
        assert_eq!(headers(sdk, method, &sent, body), sent, "{about}");
        let operation = path.trim_start_matches("/ojs/v1/");
        let what = match operation.split('/').collect::<Vec<_>>()[..] {
            ["queues", queue, verb @ ("pause" | "resume" | "stats")] => {
                let plain = queue.replace("%2D", "-");
                assert_eq!((sdk.in_path)(&plain), queue, "{about}");
                verb
            }
            _ if body.is_empty() => method,
            _ => {
                assert_eq!(rewritten(sdk, operation, body), body, "{about}");
                operation
            }
        };
        *counts.entry(what.to_owned()).or_default() += 1;
    }
    counts
}

/// All of what workers and producers do is in a recording.
fn all_compared(sdk: &Sdk, recording: &str) {
    let counts = compare(sdk, recording);
    let operations = [
        "jobs",
        "jobs/batch",
        "pause",
        "resume",
        "stats",
        "GET",
        "workers/ack",
        "workers/fetch",
        "workers/heartbeat",
        "workers/nack",
    ];
    for operation in operations {
        assert!(
            counts.contains_key(operation),
            "{}: no {operation} in {counts:?}",
            sdk.name
        );
    }
}

#[test]
fn javascript_as_recorded() {
    all_compared(&JAVASCRIPT, "javascript");
}

#[test]
fn python_as_recorded() {
    all_compared(&PYTHON, "python");
}

#[test]
fn go_as_recorded() {
    all_compared(&GO, "go");
}

#[test]
fn rust_as_recorded() {
    all_compared(&RUST, "rust");
}
