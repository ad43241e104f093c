//! Producers, workers and the probe. They know one URL, and do what SDKs do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::records::{ProbeTrip, Received, Records};
use super::streams::{BACKLOG, JobStream, QUEUE, STREAMS};
use crate::client::JsonClient;

/// Workers.
pub const WORKERS: u32 = 3;
/// Jobs that each of them runs at once.
pub const SLOTS: usize = 10;
/// How long a worker sleeps after an empty reply, as most SDKs do.
pub const POLL: Duration = Duration::from_secs(1);
/// How often a worker says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a producer enqueues a batch.
const BATCH: Duration = Duration::from_millis(100);
/// How often the probe goes.
pub const PROBE: Duration = Duration::from_millis(10);

/// The state that all of them share.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Calls the sidecar.
    pub client: Arc<JsonClient>,
    /// Where they write what they see.
    pub records: Records,
    /// Ends producers and the probe at once, and workers when they have finished their jobs.
    pub stop: CancellationToken,
}

impl Traffic {
    /// Enqueues jobs of one stream faster than its limit, in batches.
    pub async fn produce(self, stream: usize) {
        let Some(kind) = STREAMS.get(stream) else {
            return;
        };
        let batch = u64::from(kind.offered) * u64::from(BATCH.subsec_millis()) / 1_000;
        let mut tick = tokio::time::interval(BATCH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut nth = 0;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            if self.records.pages().waiting(stream) >= BACKLOG {
                continue;
            }
            let jobs: Vec<Value> = (nth..nth + batch).map(|n| kind.job(n)).collect();
            nth += batch;
            if let Err(error) = self.enqueue(stream, jobs).await {
                self.records.trouble(&error);
            }
        }
    }

    async fn enqueue(&self, stream: usize, jobs: Vec<Value>) -> anyhow::Result<()> {
        let body = json!({ "jobs": jobs });
        let reply = self.client.post("/ojs/v1/jobs/batch", &body).await?;
        let stored = jobs_of(&reply)?;
        let at = self.records.now();
        let mut pages = self.records.pages();
        for job in stored {
            let id = job["id"].as_str().context("a job without an id")?;
            pages.enqueued.insert(id.into(), (stream, at));
            if let Some(count) = pages.count.get_mut(stream) {
                count.0 += 1;
            }
        }
        Ok(())
    }

    /// A worker: it asks for as many jobs as it has free slots, runs and acknowledges them. It begins `after` a while,
    /// so that workers do not poll in step.
    pub async fn work(self, name: String, after: Duration) {
        tokio::time::sleep(after).await;
        let slots = Arc::new(Semaphore::new(SLOTS));
        let mut jobs = JoinSet::new();
        let beating = tokio::spawn(self.clone().beat(name.clone()));
        while !self.stop.is_cancelled() {
            // Nobody closes the semaphore; if it were closed, that could only mean the end.
            let Ok(first) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            drop(first);
            while jobs.try_join_next().is_some() {}
            let received = match self.fetch(&name, slots.available_permits()).await {
                Ok(received) => received,
                Err(error) => {
                    self.records.trouble(&error);
                    Vec::new()
                }
            };
            if received.is_empty() {
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = tokio::time::sleep(POLL) => {}
                }
            }
            for (index, runs) in received {
                // There is one: no more jobs come than were asked for.
                let slot = Arc::clone(&slots).try_acquire_owned();
                let work = self.clone();
                jobs.spawn(async move {
                    work.run(index, runs).await;
                    drop(slot);
                });
            }
        }
        while jobs.join_next().await.is_some() {}
        beating.abort();
    }

    /// Fetches up to `count` jobs: where each stands in the records, and how long it runs.
    async fn fetch(&self, worker: &str, count: usize) -> anyhow::Result<Vec<(usize, Duration)>> {
        let body = json!({ "queues": [QUEUE], "count": count, "worker_id": worker });
        let reply = self.client.post("/ojs/v1/workers/fetch", &body).await?;
        let at = self.records.now();
        let mut pages = self.records.pages();
        let mut received = Vec::new();
        for job in jobs_of(&reply)? {
            let kind = job["type"].as_str();
            let found = STREAMS.iter().position(|stream| Some(stream.kind) == kind);
            let stream = found.with_context(|| format!("a job of an unknown type: {job}"))?;
            let nth = job
                .pointer("/args/0")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let runs = STREAMS
                .get(stream)
                .map(|stream: &JobStream| stream.run_time(nth));
            received.push((pages.received.len(), runs.unwrap_or_default()));
            if let Some(count) = pages.count.get_mut(stream) {
                count.1 += 1;
            }
            pages.received.push(Received {
                stream,
                job: job["id"].as_str().unwrap_or_default().into(),
                at,
                done: None,
                acked: false,
            });
        }
        Ok(received)
    }

    /// Runs a received job: it sleeps, as jobs that call someone do, and is acknowledged.
    async fn run(&self, index: usize, runs: Duration) {
        tokio::time::sleep(runs).await;
        let now = self.records.now();
        let id = self.records.pages().received.get_mut(index).map(|job| {
            job.done = Some(now);
            job.job.clone()
        });
        let body = json!({ "job_id": id, "result": {} });
        match self.client.post("/ojs/v1/workers/ack", &body).await {
            Ok(_) => {
                if let Some(job) = self.records.pages().received.get_mut(index) {
                    job.acked = true;
                }
            }
            Err(error) => self.records.trouble(&error),
        }
    }

    async fn beat(self, name: String) {
        let mut tick = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        loop {
            tick.tick().await;
            // No job runs for as long as a heartbeat, so there is none to name.
            let body = json!({ "worker_id": name, "active_jobs": [] });
            let beat = self.client.post("/ojs/v1/workers/heartbeat", &body);
            if let Err(error) = beat.await {
                self.records.trouble(&error);
            }
        }
    }

    /// Calls the backend through the sidecar all the time, to bound how long other calls may have taken meanwhile.
    pub async fn probe(self) {
        let mut tick = tokio::time::interval(PROBE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let sent = self.records.now();
            match self.client.get("/ojs/v1/health").await {
                Ok(_) => {
                    let back = self.records.now();
                    self.records.pages().probes.push(ProbeTrip { sent, back });
                }
                Err(error) => self.records.trouble(&error),
            }
        }
    }
}

fn jobs_of(reply: &Value) -> anyhow::Result<&Vec<Value>> {
    reply
        .get("jobs")
        .and_then(Value::as_array)
        .context("no jobs in the reply")
}
