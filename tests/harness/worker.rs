//! Workers: by hand, and as the official SDKs work (polling, heartbeats, shutdown).

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::http::Client;
use super::ledger::{Delivery, Fetched, Ledger, Settle};

/// When SDKs give up on a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often SDKs send heartbeats.
const BEAT: Duration = Duration::from_secs(5);
/// The most that a worker asks for at once.
const MOST: usize = 10;

/// A worker's means: every step is one request, written down.
#[derive(Clone)]
pub struct Hands {
    pub name: String,
    pub client: Client,
    pub ledger: Ledger,
    visibility: Option<u64>,
}

impl Hands {
    pub fn new(name: String, client: Client, ledger: Ledger) -> Hands {
        Hands {
            name,
            client,
            ledger,
            visibility: None,
        }
    }

    /// Its claims last so long, in milliseconds.
    pub fn visibility(mut self, ms: u64) -> Hands {
        self.visibility = Some(ms);
        self
    }

    /// One FETCH. `Err`: its status, 0 where no reply came.
    pub async fn fetch(&self, queues: &[&str], count: usize) -> Result<Vec<Delivery>, u16> {
        let mut body = json!({ "queues": queues, "count": count, "worker_id": self.name });
        if let Some(ms) = self.visibility {
            body["visibility_timeout_ms"] = json!(ms);
        }
        let mut record = Record {
            ledger: self.ledger.clone(),
            fetched: Some(Fetched {
                worker: self.name.clone(),
                queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
                count,
                sent: Instant::now(),
                answered: Instant::now(),
                status: 0,
                got: 0,
            }),
        };
        let reply = timeout(PATIENCE, self.client.post("/ojs/v1/workers/fetch", &body)).await;
        let Ok(Ok(reply)) = reply else { return Err(0) };
        let jobs = match reply.json()["jobs"].as_array() {
            Some(jobs) if reply.status == 200 => jobs.clone(),
            _ => {
                record.answer(reply.status, 0);
                return Err(reply.status);
            }
        };
        record.answer(200, jobs.len());
        let jobs: Vec<Delivery> = jobs.into_iter().map(|job| self.delivery(job)).collect();
        self.ledger.open().deliveries.extend(jobs.iter().cloned());
        Ok(jobs)
    }

    /// Jobs of one queue; none where the FETCH fails.
    pub async fn get(&self, queue: &str, count: usize) -> Vec<Delivery> {
        self.fetch(&[queue], count).await.unwrap_or_default()
    }

    fn delivery(&self, job: Value) -> Delivery {
        let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
        Delivery {
            job: text("id"),
            worker: self.name.clone(),
            queue: text("queue"),
            priority: job["priority"].as_i64().unwrap_or(0),
            attempt: job["attempt"].as_i64().unwrap_or(-1),
            at: Instant::now(),
            shown: job,
            credentials: self.client.credentials(),
        }
    }

    /// ACKs as SDKs do: again after 0.5 and 1 s where no good answer came. The last status.
    pub async fn ack(&self, job: &str) -> u16 {
        self.ack_with(job, json!({ "by": self.name })).await
    }

    /// ACKs with this result.
    pub async fn ack_with(&self, job: &str, result: Value) -> u16 {
        let body = json!({ "job_id": job, "result": result, "worker_id": self.name });
        self.settle("/ojs/v1/workers/ack", job, true, body).await
    }

    /// ACKs all of these, one after the other.
    pub async fn ack_all(&self, jobs: impl IntoIterator<Item: Borrow<Delivery>>) {
        for delivery in jobs {
            self.ack(&delivery.borrow().job).await;
        }
    }

    /// Nacks in the same way.
    pub async fn nack(&self, job: &str) -> u16 {
        let error = json!({ "code": "handler_error", "message": "it failed", "retryable": true });
        let body = json!({ "job_id": job, "error": error, "worker_id": self.name });
        self.settle("/ojs/v1/workers/nack", job, false, body).await
    }

    /// Nacks with this error, and with nothing else that SDKs do not send.
    pub async fn nack_with(&self, job: &str, error: Value) -> u16 {
        let body = json!({ "job_id": job, "error": error });
        self.settle("/ojs/v1/workers/nack", job, false, body).await
    }

    async fn settle(&self, path: &str, job: &str, ack: bool, body: Value) -> u16 {
        let mut tries = 0;
        let status = loop {
            tries += 1;
            let status = match timeout(PATIENCE, self.client.post(path, &body)).await {
                Ok(Ok(reply)) => reply.status,
                _ => 0,
            };
            if status == 200 || tries == 3 {
                break status;
            }
            sleep(Duration::from_millis(500) * tries).await;
        };
        self.ledger.open().settles.push(Settle {
            job: job.to_owned(),
            worker: self.name.clone(),
            ack,
            answered: Instant::now(),
            status,
            tries,
        });
        status
    }

    /// Cancels a job. The status.
    pub async fn cancel(&self, job: &str) -> u16 {
        let path = format!("/ojs/v1/jobs/{job}");
        let reply = self.client.call("DELETE", &path, "".into()).await;
        reply.map_or(0, |reply| reply.status)
    }

    /// Pauses a queue, or has it go on: `verb` is `pause` or `resume`. The status.
    pub async fn tell(&self, queue: &str, verb: &str) -> u16 {
        let path = format!("/ojs/v1/queues/{queue}/{verb}");
        let reply = self.client.post(&path, &json!({})).await;
        reply.map_or(0, |reply| reply.status)
    }

    /// A heartbeat as Go and JavaScript send it (`crooked`), or as Python does. The status.
    pub async fn beat(&self, jobs: &[String], crooked: bool) -> u16 {
        let mut body = match crooked {
            true => json!({ "worker_id": self.name, "state": "running",
                "active_jobs": jobs.len(), "active_job_ids": jobs }),
            false => json!({ "worker_id": self.name, "active_jobs": jobs }),
        };
        if let Some(ms) = self.visibility.or((!crooked).then_some(30_000)) {
            body["visibility_timeout_ms"] = json!(ms);
        }
        let reply = timeout(
            PATIENCE,
            self.client.post("/ojs/v1/workers/heartbeat", &body),
        )
        .await;
        let status = reply
            .ok()
            .and_then(Result::ok)
            .map_or(0, |reply| reply.status);
        self.ledger.open().beats.push(status);
        status
    }
}

/// Writes a FETCH down when it ends, also when its worker hangs up.
struct Record {
    ledger: Ledger,
    fetched: Option<Fetched>,
}

impl Record {
    fn answer(&mut self, status: u16, got: usize) {
        if let Some(fetched) = &mut self.fetched {
            (fetched.status, fetched.got) = (status, got);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(mut fetched) = self.fetched.take() {
            fetched.answered = Instant::now();
            self.ledger.open().fetches.push(fetched);
        }
    }
}

/// How an SDK polls.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Style {
    /// JavaScript, Go, Rust: asks for all free slots, again at once after jobs while one is free,
    /// else after 1 s.
    Js,
    /// Python: asks for one; again at once after a job while a slot is free, else after 2 s ± 20 %.
    Python,
}

/// A worker in the making.
#[derive(Clone, Debug)]
pub struct Worker {
    style: Style,
    slots: usize,
    queues: Vec<&'static str>,
    runs: Range<u64>,
    fails: f64,
    hangs_up: f64,
    beats: bool,
    visibility: Option<u64>,
    headers: Vec<(&'static str, &'static str)>,
}

impl Worker {
    fn new(style: Style, slots: usize) -> Worker {
        Worker {
            style,
            slots,
            queues: vec!["default"],
            runs: 50..150,
            fails: 0.0,
            hangs_up: 0.0,
            beats: true,
            visibility: None,
            headers: Vec::new(),
        }
    }

    pub fn js(slots: usize) -> Worker {
        Worker::new(Style::Js, slots)
    }

    pub fn python(slots: usize) -> Worker {
        Worker::new(Style::Python, slots)
    }

    pub fn queues(mut self, queues: &[&'static str]) -> Worker {
        self.queues = queues.to_vec();
        self
    }

    /// How long its jobs run, in milliseconds.
    pub fn runs(mut self, ms: Range<u64>) -> Worker {
        self.runs = ms;
        self
    }

    /// Which part of its jobs fails.
    pub fn fails(mut self, part: f64) -> Worker {
        self.fails = part;
        self
    }

    /// Which part of its FETCHes it drops while it waits for their replies.
    pub fn hangs_up(mut self, part: f64) -> Worker {
        self.hangs_up = part;
        self
    }

    pub fn without_heartbeats(mut self) -> Worker {
        self.beats = false;
        self
    }

    pub fn visibility(mut self, ms: u64) -> Worker {
        self.visibility = Some(ms);
        self
    }

    pub fn header(mut self, name: &'static str, value: &'static str) -> Worker {
        self.headers.push((name, value));
        self
    }

    /// Starts it; it takes up its work within its first poll interval.
    pub(super) fn start(self, name: String, client: Client, ledger: Ledger, seed: u64) -> Handle {
        let client = self
            .headers
            .iter()
            .fold(client, |c, (name, value)| c.with(name, value));
        let mut hands = Hands::new(name.clone(), client, ledger);
        hands.visibility = self.visibility;
        let stop = CancellationToken::new();
        let life = Life {
            worker: self,
            hands,
            active: Arc::default(),
            rng: SmallRng::seed_from_u64(seed),
            stop: stop.clone(),
        };
        let task = tokio::spawn(life.live());
        Handle {
            stop,
            task: task.abort_handle(),
        }
    }
}

/// A running worker.
#[derive(Clone)]
pub struct Handle {
    stop: CancellationToken,
    task: AbortHandle,
}

impl Handle {
    /// No more FETCHes; running jobs are finished.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// As kill -9: nothing more is sent, connections close.
    pub fn kill(&self) {
        self.task.abort();
    }

    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

struct Life {
    worker: Worker,
    hands: Hands,
    active: Arc<Mutex<BTreeSet<String>>>,
    rng: SmallRng,
    stop: CancellationToken,
}

impl Life {
    async fn live(mut self) {
        let mut running = JoinSet::new();
        let mut beating = JoinSet::new();
        if self.worker.beats {
            beating.spawn(beat(
                self.hands.clone(),
                self.active.clone(),
                self.worker.style,
            ));
        }
        let first = Duration::from_millis(self.rng.random_range(0..1000));
        self.pause(first).await;
        while !self.stop.is_cancelled() {
            while running.try_join_next().is_some() {}
            let free = self.worker.slots.saturating_sub(running.len());
            if free == 0 {
                match self.worker.style {
                    Style::Js => self.pause(Duration::from_secs(1)).await,
                    Style::Python => drop(running.join_next().await),
                }
                continue;
            }
            let count = if self.worker.style == Style::Js {
                free.min(MOST)
            } else {
                1
            };
            let jobs = self.fetch(count).await;
            let empty = jobs.is_empty();
            for job in jobs {
                self.active
                    .lock()
                    .expect("no panic")
                    .insert(job.job.clone());
                let run = Duration::from_millis(self.rng.random_range(self.worker.runs.clone()));
                let fails = self.rng.random_bool(self.worker.fails);
                running.spawn(execute(
                    self.hands.clone(),
                    self.active.clone(),
                    job.job,
                    run,
                    fails,
                ));
            }
            let pause = match self.worker.style {
                Style::Js if empty || running.len() >= self.worker.slots => 1000,
                Style::Python if empty => self.rng.random_range(1600..2400),
                _ => continue,
            };
            self.pause(Duration::from_millis(pause)).await;
        }
        while running.join_next().await.is_some() {}
    }

    /// One FETCH; one that is stopped ends at once, as SDKs close their sockets.
    async fn fetch(&mut self, count: usize) -> Vec<Delivery> {
        let hands = self.hands.clone();
        let queues = self.worker.queues.clone();
        let patience = match self.rng.random_bool(self.worker.hangs_up) {
            true => Duration::from_micros(self.rng.random_range(0..400_000)),
            false => PATIENCE,
        };
        timeout(patience, hands.fetch(&queues, count))
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or_default()
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

async fn execute(
    hands: Hands,
    active: Arc<Mutex<BTreeSet<String>>>,
    job: String,
    run: Duration,
    fails: bool,
) {
    sleep(run).await;
    if fails {
        hands.nack(&job).await;
    } else {
        hands.ack(&job).await;
    }
    active.lock().expect("no panic").remove(&job);
}

async fn beat(hands: Hands, active: Arc<Mutex<BTreeSet<String>>>, style: Style) {
    loop {
        if style == Style::Js {
            sleep(BEAT).await;
        }
        let jobs: Vec<String> = active.lock().expect("no panic").iter().cloned().collect();
        hands.beat(&jobs, style == Style::Js).await;
        if style == Style::Python {
            sleep(BEAT).await;
        }
    }
}
