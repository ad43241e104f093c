//! What queues with bounds are asked, and a backend that answers as a test says.

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use ojs_throttle::backend::Backend;

use super::prelude::*;
use crate::sidecar::answering::{Answering, answering_by};
use crate::sidecar::simulated::Sidecar;

/// The path of a queue's config.
pub fn config(queue: &str) -> String {
    format!("/ojs/v1/admin/queues/{queue}/config")
}

/// A job of a queue.
pub fn job(queue: &str) -> Value {
    json!({"type": "t.x", "args": [1], "options": {"queue": queue}})
}

impl Client {
    /// Bounds a queue.
    pub async fn bound(&self, queue: &str, backpressure: Value) -> Value {
        let body = json!({"backpressure": backpressure});
        self.set(&config(queue), body).await
    }

    /// Enqueues a job into a queue.
    pub async fn offer(&self, queue: &str) -> Reply {
        self.post("/ojs/v1/jobs", job(queue).to_string()).await
    }

    /// Enqueues a batch of jobs, by queue.
    pub async fn offer_all(&self, queues: &[&str]) -> Reply {
        let jobs: Vec<Value> = queues.iter().map(|queue| job(queue)).collect();
        let body = json!({"jobs": jobs}).to_string();
        self.post("/ojs/v1/jobs/batch", body).await
    }

    /// Enqueues, and would wait `seconds` for room.
    pub async fn offer_blocking(&self, queue: &str, seconds: &str) -> Reply {
        self.with("ojs-block-timeout", seconds).offer(queue).await
    }

    /// Enqueues `n` jobs, all of which must be accepted.
    pub async fn fill(&self, queue: &str, n: usize) -> Vec<String> {
        self.enqueue_all(n, &job(queue)).await
    }
}

/// A header as a number.
pub fn number(reply: &Reply, name: &str) -> f64 {
    let value = reply.headers.get(name);
    let value = value.unwrap_or_else(|| panic!("no {name} in {:?}", reply.headers));
    value.to_str().unwrap().parse().unwrap()
}

/// Asserts that a reply is a refusal by the depth bound as the text has it, and gives its `error`.
pub fn full(reply: &Reply, queue: &str, bound: u64) -> Value {
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert_eq!(reply.headers["content-type"], "application/json");
    let after = number(reply, "retry-after");
    assert!((1.0..=30.0).contains(&after) && after.fract() == 0.0);
    let error = reply.json()["error"].clone();
    assert_eq!(error["details"]["retry_after"], after as u64);
    assert_eq!(error["code"], "QUEUE_FULL");
    assert_eq!(error["queue"], queue);
    assert_eq!(error["bound"], bound);
    error
}

/// A backend that answers as it is told.
#[derive(Clone)]
pub struct Told(Answering);

impl Told {
    /// What it was asked whose path has `part` in it.
    pub fn asked(&self, method: Method, part: &str) -> usize {
        let all = self.0.requests().into_iter();
        let alike = all.filter(|(head, _)| head.method == method && head.uri.path().contains(part));
        alike.count()
    }

    /// The credentials with which it was asked for paths that have `part` in them.
    pub fn lent(&self, part: &str) -> Vec<String> {
        let all = self.0.requests().into_iter();
        let alike = all.filter(|(head, _)| head.uri.path().contains(part));
        let lent = alike.filter_map(|(head, _)| head.headers.get("authorization").cloned());
        lent.map(|token| token.to_str().unwrap().to_owned())
            .collect()
    }

    /// The bodies that came for this path, those of GETs left out.
    pub fn bodies(&self, path: &str) -> Vec<String> {
        let all = self.0.requests().into_iter();
        let alike = all.filter(|(head, _)| head.method != Method::GET && head.uri.path() == path);
        alike
            .map(|(_, body)| String::from_utf8(body.to_vec()).unwrap())
            .collect()
    }
}

/// One with a sidecar before it and a client of that. It takes `slow` for each answer.
pub async fn told(
    config: &str,
    slow: Duration,
    answers: impl Fn(&Method, &str) -> (u16, String) + Send + Sync + 'static,
) -> (Told, Sidecar, Client) {
    let answers = Arc::new(answers);
    let says = move |head: &Parts| {
        let (status, body) = answers(&head.method, head.uri.path());
        (status, body.into())
    };
    let (backend, sidecar, client) = answering_by(slow, config, says).await;
    (Told(backend), sidecar, client)
}

/// How many jobs wait in a queue, by the backend's own word.
pub async fn waiting(backend: &Backend, queue: &str) -> u64 {
    let request = Request::get(format!("/ojs/v1/queues/{queue}/stats"));
    let reply = backend.handle(request.body(Bytes::new()).unwrap()).await;
    let stats: Value = serde_json::from_slice(reply.body()).unwrap();
    stats["queue"]["available"].as_u64().unwrap()
}

/// POSTs to the backend directly, behind the sidecar's back.
pub async fn directly(backend: &Backend, path: &str, body: Value) -> Value {
    let request = Request::post(path)
        .body(Bytes::from(body.to_string()))
        .unwrap();
    let reply = backend.handle(request).await;
    serde_json::from_slice(reply.body()).unwrap_or(Value::Null)
}
