//! Producers, workers, the probe and the vendor. All but the vendor know one URL, and do what SDKs do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use super::records::{ProbeTrip, Received, Records};
use super::scene::{JobStream, Workers, tokens, used};
use crate::client::JsonClient;
use crate::net::Listener;

/// How often a worker says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How many of the jobs that are there at first are sent in one call.
const BATCH: usize = 1_000;
/// How long a caller pauses after a call that failed.
const AFTER_FAILED_CALL: Duration = Duration::from_millis(100);
/// How often the probe goes.
pub(super) const PROBE: Duration = Duration::from_millis(10);

/// The state that all of them share.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    /// Calls the sidecar.
    pub(super) client: Arc<JsonClient>,
    /// Calls the vendor, through the sidecar or not.
    pub(super) vendor: Arc<JsonClient>,
    /// Where they write what they see.
    pub(super) records: Records,
    /// Ends producers and the probe at once, and workers when they have finished their jobs.
    pub(super) stop: CancellationToken,
}

impl Traffic {
    /// Enqueues the jobs of a stream that are there before all else.
    pub(super) async fn fill(&self, stream: usize, of: &JobStream) -> anyhow::Result<()> {
        for _ in 0..of.first / BATCH {
            let jobs = vec![of.job(0); BATCH];
            let sent = self.enqueue(stream, jobs).await;
            sent.context("the jobs in front")?;
        }
        Ok(())
    }

    /// Enqueues jobs of one stream faster than its limit.
    pub(super) async fn produce(self, stream: usize, of: &JobStream) {
        let mut tick = interval(of.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut nth = 0;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let (_, waiting) = self.records.pages().enqueued_and_waiting(stream);
            if waiting >= of.backlog {
                continue;
            }
            let jobs: Vec<Value> = (nth..nth + of.batch).map(|n| of.job(n)).collect();
            nth += of.batch;
            self.records.heed(self.enqueue(stream, jobs).await);
        }
    }

    async fn enqueue(&self, stream: usize, jobs: Vec<Value>) -> anyhow::Result<()> {
        let (path, body) = ("/ojs/v1/jobs/batch", json!({ "jobs": jobs }));
        let answer = self.client.exchange(Method::POST, path, Some(&body)).await;
        let (status, reply) = answer.context("an enqueue")?;
        let at = self.records.now();
        let mut pages = self.records.pages();
        if status == StatusCode::TOO_MANY_REQUESTS {
            pages.refused += 1;
            return Ok(());
        }
        anyhow::ensure!(status.is_success(), "an enqueue is answered {status}");
        for job in jobs_of(&serde_json::from_slice(&reply)?)? {
            let id = job["id"].as_str().context("a job without an id")?;
            pages.enqueue(stream, id.into(), at);
        }
        Ok(())
    }

    /// A worker: it asks for as many jobs as it has free slots, runs and acknowledges them. The workers of a queue begin
    /// one after the other, so that they do not poll in step.
    pub(super) async fn work(self, streams: &'static [JobStream], of: &Workers, worker: u32) {
        let name = format!("worker-{}", worker + 1);
        sleep(of.poll * worker / of.workers).await;
        let slots = Arc::new(Semaphore::new(of.slots));
        let mut jobs = JoinSet::new();
        let beating = tokio::spawn(self.clone().beat(name.clone()));
        while !self.stop.is_cancelled() {
            // Nobody closes the semaphore; if it were closed, that could only mean the end.
            let Ok(first) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            drop(first);
            while jobs.try_join_next().is_some() {}
            let count = slots.available_permits();
            let body = json!({ "queues": [of.queue], "count": count, "worker_id": name });
            let received = self.records.heed(self.fetch(streams, &body).await);
            let received = received.unwrap_or_default();
            if received.is_empty() {
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = sleep(of.poll) => {}
                }
            }
            for (index, stream) in received {
                // There is one: no more jobs come than were asked for.
                let slot = Arc::clone(&slots).try_acquire_owned();
                let work = self.clone();
                jobs.spawn(async move {
                    work.run(index, stream).await;
                    drop(slot);
                });
            }
        }
        while jobs.join_next().await.is_some() {}
        beating.abort();
    }

    /// Fetches jobs: where each stands in the records, and its stream.
    async fn fetch(
        &self,
        streams: &'static [JobStream],
        body: &Value,
    ) -> anyhow::Result<Vec<(usize, &'static JobStream)>> {
        let reply = self.client.post("/ojs/v1/workers/fetch", body).await?;
        let at = self.records.now();
        let mut pages = self.records.pages();
        let mut received = Vec::new();
        for job in jobs_of(&reply)? {
            let name = job.pointer("/meta/tenant_id").and_then(Value::as_str);
            let mut all = streams.iter().enumerate();
            let found = all.find(|(_, stream)| Some(stream.name) == name);
            let (stream, of) = found.with_context(|| format!("a job of nobody: {job}"))?;
            let nth = job.pointer("/args/0").and_then(Value::as_u64);
            received.push((pages.received.len(), of));
            pages.receive(Received {
                stream,
                job: job["id"].as_str().unwrap_or_default().into(),
                nth: nth.unwrap_or_default(),
                at,
                ..Received::default()
            });
        }
        Ok(received)
    }

    /// Runs a received job: it sleeps, as jobs that call someone do, makes its calls, and is acknowledged.
    async fn run(&self, index: usize, stream: &JobStream) {
        let Some(job) = self.records.pages().received.get(index).cloned() else {
            return;
        };
        sleep(stream.run_time(job.nth)).await;
        for _ in 0..stream.calls {
            let call = self.vendor.post("/v1/charges", &Value::Null);
            self.records.heed(call.await);
        }
        self.note(index, |job, now| job.done = Some(now));
        let result = json!({ "usage": { "total_tokens": used(job.nth) } });
        let body = json!({ "job_id": job.job, "result": result });
        let ack = self.client.post("/ojs/v1/workers/ack", &body);
        if self.records.heed(ack.await).is_some() {
            self.note(index, |job, _| job.acked = true);
        }
    }

    /// A program that calls a model again and again, each time with another bound on what the answer may cost.
    pub(super) async fn call_model(self, caller: u64) {
        let mut nth = caller;
        while !self.stop.is_cancelled() {
            let body = json!({ "model": "demo", "max_tokens": 10 * tokens(nth), "messages": [] });
            nth += 1;
            let call = self.vendor.post("/v1/chat/completions", &body);
            if self.records.heed(call.await).is_none() {
                sleep(AFTER_FAILED_CALL).await;
            }
        }
    }

    fn note(&self, index: usize, note: impl FnOnce(&mut Received, Duration)) {
        let now = self.records.now();
        if let Some(job) = self.records.pages().received.get_mut(index) {
            note(job, now);
        }
    }

    async fn beat(self, name: String) {
        let mut tick = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        loop {
            tick.tick().await;
            // No job runs for as long as a heartbeat, so there is none to name.
            let body = json!({ "worker_id": name, "active_jobs": [] });
            let beat = self.client.post("/ojs/v1/workers/heartbeat", &body);
            self.records.heed(beat.await);
        }
    }

    /// Calls the backend through the sidecar all the time, to bound how long other calls may have taken meanwhile.
    pub(super) async fn probe(self) {
        let mut tick = interval(PROBE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let sent = self.records.now();
            let trip = self.client.get("/ojs/v1/health");
            if self.records.heed(trip.await).is_some() {
                let back = self.records.now();
                self.records.pages().probes.push(ProbeTrip { sent, back });
            }
        }
    }
}

/// Answers all that come to the vendor, until it is dropped.
pub(super) async fn vendor(mut listener: Listener, records: Records) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let records = records.clone();
        let answers = service_fn(move |request| answer(request, records.clone()));
        connections.spawn(Builder::new().serve_connection(TokioIo::new(stream), answers));
    }
}

/// The vendor's answer to one call. A call of a model takes as long as its answer is, and uses half of what it may.
async fn answer(
    request: Request<Incoming>,
    records: Records,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let counts = match body.get("max_tokens").and_then(Value::as_u64) {
        Some(most) => {
            sleep(Duration::from_millis(most / 4)).await;
            most / 2
        }
        None => 1,
    };
    let status = records.pages().vendor.call(records.now(), counts);
    let usage = json!({ "usage": { "total_tokens": counts } });
    let mut reply = Response::new(Full::from(usage.to_string()));
    *reply.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    Ok(reply)
}

fn jobs_of(reply: &Value) -> anyhow::Result<&Vec<Value>> {
    reply
        .get("jobs")
        .and_then(Value::as_array)
        .context("no jobs in the reply")
}
