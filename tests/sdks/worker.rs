//! A worker process of an SDK: it polls, runs, settles, beats, and ends as that SDK does.

use std::collections::BTreeSet;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::client::TOKEN;
use super::prelude::*;
use super::sdk::{BEAT, GRACE};
use crate::harness::ledger::{Delivery, Fetched, Ledger, Settle};

/// What a handler does with a job: it runs for a time, and gives something back or throws.
pub type Handler = Arc<dyn Fn(&Value) -> (Duration, Result<Option<String>, Thrown>) + Send + Sync>;

/// A worker to be.
#[derive(Clone)]
pub struct Worker {
    pub client: Client,
    pub name: String,
    pub queues: Vec<String>,
    pub concurrency: usize,
    /// Another visibility than the SDK's own.
    pub visibility: Option<u64>,
    pub handler: Handler,
    pub ledger: Ledger,
}

impl Worker {
    /// Starts its process.
    pub fn start(self) -> Process {
        let life = Arc::new(Life {
            worker: self,
            active: Mutex::default(),
            quiet: CancellationToken::new(),
            stop: CancellationToken::new(),
            end: Mutex::new(OnSignal::Finishes),
            died: CancellationToken::new(),
        });
        let process = life.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = work(&process) => {}
                () = process.died.cancelled() => {}
            }
        });
        Process { life, task }
    }
}

/// A signal that a process gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    Term,
    Int,
}

/// A running worker.
pub struct Process {
    life: Arc<Life>,
    task: JoinHandle<()>,
}

impl Process {
    pub fn name(&self) -> &str {
        &self.life.worker.name
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let sdk = self.life.sdk();
        match (signal, sdk.on_sigterm, sdk.on_sigint) {
            (Signal::Term, OnSignal::Dies, _) => self.task.abort(),
            (Signal::Term, end, _) | (Signal::Int, _, end) => self.life.end(end),
        }
    }

    /// Whether it has ended, in order or not.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Whether it has ended because of what nobody caught.
    pub fn has_died(&self) -> bool {
        self.life.died.is_cancelled()
    }

    /// Jobs that run in it.
    pub fn running(&self) -> usize {
        self.life.active.lock().expect("no panic").len()
    }
}

/// A worker while it runs.
struct Life {
    worker: Worker,
    /// The jobs that heartbeats name.
    active: Mutex<BTreeSet<String>>,
    /// A heartbeat's reply said `quiet`.
    quiet: CancellationToken,
    /// A signal came, or a heartbeat's reply said `terminate`.
    stop: CancellationToken,
    /// What follows then.
    end: Mutex<OnSignal>,
    /// Something was thrown that nobody catches.
    died: CancellationToken,
}

/// From the first poll to the last job.
async fn work(life: &Arc<Life>) {
    let (sdk, worker) = (life.sdk(), &life.worker);
    let mut jobs = JoinSet::new();
    let mut beats = JoinSet::new();
    beats.spawn(beat(life.clone()));
    let mut failures = 0;
    while !life.stop.is_cancelled() {
        while jobs.try_join_next().is_some() {}
        let free = worker.concurrency.saturating_sub(jobs.len());
        if free == 0 && sdk.waits_for_a_slot {
            jobs.join_next().await;
        } else if free == 0 || life.quiet.is_cancelled() {
            life.pause(life.poll()).await;
        } else {
            match life.fetch_or_stop(free.min(sdk.most), &mut jobs).await {
                None => break,
                Some(Err(_)) => {
                    failures += 1;
                    life.pause((sdk.after_failures)(failures)).await;
                }
                Some(Ok(found)) => {
                    failures = 0;
                    let pause = found.is_empty();
                    life.take(found, &mut jobs).await;
                    if pause {
                        life.pause(life.poll()).await;
                    }
                }
            }
        }
    }
    let all = async { while jobs.join_next().await.is_some() {} };
    // Whoever has not finished by then is left to the backend.
    let _in_time = timeout(GRACE, all).await;
}

/// Heartbeats until the worker is told to stop.
async fn beat(life: Arc<Life>) {
    let sdk = life.sdk();
    let first = if sdk.beats_at_once {
        Duration::ZERO
    } else {
        BEAT
    };
    let mut ticks = interval_at(Instant::now() + first, BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = JoinSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = life.stop.cancelled() => return,
        }
        let life = life.clone();
        sent.spawn(async move { life.beat_once().await });
        if !sdk.beats_overlap {
            sent.join_next().await;
        }
    }
}

impl Life {
    fn sdk(&self) -> &'static Sdk {
        self.worker.client.sdk
    }

    fn end(&self, how: OnSignal) {
        *self.end.lock().expect("no panic") = how;
        self.stop.cancel();
    }

    /// Whether it was told to stop, and does so in this way.
    fn ends(&self, how: OnSignal) -> bool {
        self.stop.is_cancelled() && *self.end.lock().expect("no panic") == how
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.worker.client.random(self.sdk().polls.clone()))
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// A FETCH, or nothing where the SDK drops it because it was told to stop.
    async fn fetch_or_stop(
        &self,
        count: usize,
        jobs: &mut JoinSet<()>,
    ) -> Option<Result<Vec<Value>, Failed>> {
        let dropped = async {
            self.stop.cancelled().await;
            if self.ends(OnSignal::Finishes) {
                while jobs.join_next().await.is_some() {}
            } else if !self.ends(OnSignal::FallsSilent) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            fetched = self.fetch(count) => Some(fetched),
            () = dropped => None,
        }
    }

    async fn fetch(&self, count: usize) -> Result<Vec<Value>, Failed> {
        let worker = &self.worker;
        let body = (self.sdk().fetch)(&Fetch {
            queues: &worker.queues,
            count,
            worker: &worker.name,
            visibility: worker.visibility.or(self.sdk().visibility),
        });
        let sent = Instant::now();
        let reply = worker
            .client
            .request("POST", "/ojs/v1/workers/fetch", Some(body))
            .await?;
        let jobs = match reply["jobs"].as_array() {
            Some(jobs) => jobs.clone(),
            None if self.sdk().reads == Reads::Typed => return Err(Failed::Unread),
            None => Vec::new(),
        };
        let mut records = worker.ledger.open();
        records.fetches.push(Fetched {
            worker: worker.name.clone(),
            queues: worker.queues.clone(),
            count,
            sent,
            answered: Instant::now(),
            status: 200,
            got: jobs.len(),
        });
        let deliveries = jobs.iter().map(|job| self.delivery(job));
        records.deliveries.extend(deliveries);
        Ok(jobs)
    }

    fn delivery(&self, job: &Value) -> Delivery {
        let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
        Delivery {
            job: text("id"),
            worker: self.worker.name.clone(),
            queue: text("queue"),
            priority: job["priority"].as_i64().unwrap_or(0),
            attempt: job["attempt"].as_i64().unwrap_or(-1),
            at: Instant::now(),
            shown: job.clone(),
            credentials: [Some(format!("Bearer {TOKEN}")), None],
        }
    }

    /// Starts what a FETCH brought, or has it cancelled at once.
    async fn take(self: &Arc<Life>, found: Vec<Value>, jobs: &mut JoinSet<()>) {
        while jobs.try_join_next().is_some() {}
        let cancels = self.ends(OnSignal::Cancels) && jobs.is_empty();
        for job in found {
            let id = job["id"].as_str().unwrap_or_default().to_owned();
            if cancels {
                let thrown = Thrown {
                    code: "cancelled",
                    ..Thrown::new("Job execution was cancelled during worker shutdown")
                };
                self.fail(&id, &thrown).await;
                continue;
            }
            self.active.lock().expect("no panic").insert(id.clone());
            let life = self.clone();
            jobs.spawn(async move {
                life.run(&id, &job).await;
                life.active.lock().expect("no panic").remove(&id);
            });
        }
    }

    async fn run(&self, id: &str, job: &Value) {
        let (time, outcome) = (self.worker.handler)(job);
        sleep(time).await;
        let thrown = match outcome {
            Ok(result) => {
                let body = (self.sdk().ack)(id, result.as_deref());
                match self.settle("/ojs/v1/workers/ack", id, true, body).await {
                    Err(failed) if self.sdk().nacks_after_a_failed_ack => {
                        Thrown::new(&format!("the ACK failed: {failed:?}"))
                    }
                    _ => return,
                }
            }
            Err(thrown) => thrown,
        };
        self.fail(id, &thrown).await;
    }

    async fn fail(&self, id: &str, thrown: &Thrown) {
        let body = (self.sdk().nack)(id, thrown);
        let settled = self.settle("/ojs/v1/workers/nack", id, false, body).await;
        if settled.is_err() && self.sdk().dies_of_a_failed_nack {
            self.died.cancel();
        }
    }

    /// An ACK or a nack, as often as the SDK tries it.
    async fn settle(&self, path: &str, id: &str, ack: bool, body: String) -> Result<(), Failed> {
        let mut tries = 0;
        let settled = loop {
            if self.ends(OnSignal::FallsSilent) {
                return Err(Failed::Gone);
            }
            tries += 1;
            let sent = self.worker.client.request("POST", path, Some(body.clone()));
            let settled = sent.await.map(drop);
            if settled.is_ok() || tries == self.sdk().settles {
                break settled;
            }
            sleep(Duration::from_millis(500) * tries).await;
        };
        self.worker.ledger.open().settles.push(Settle {
            job: id.to_owned(),
            worker: self.worker.name.clone(),
            ack,
            answered: Instant::now(),
            status: status(settled),
            tries,
        });
        settled
    }

    async fn beat_once(&self) {
        let worker = &self.worker;
        let jobs: Vec<String> = (self.active.lock().expect("no panic").iter())
            .cloned()
            .collect();
        let body = (self.sdk().heartbeat)(&Beat {
            worker: &worker.name,
            jobs: &jobs,
            queues: &worker.queues,
            concurrency: worker.concurrency,
            visibility: worker.visibility.unwrap_or(30_000),
            labels: "[]",
            pid: 13_647,
        });
        let reply = worker
            .client
            .request("POST", "/ojs/v1/workers/heartbeat", Some(body))
            .await;
        let said = reply.as_ref().map(drop).map_err(|failed| *failed);
        worker.ledger.open().beats.push(status(said));
        match reply.as_ref().map(|reply| reply["state"].as_str()) {
            Ok(Some("quiet")) => self.quiet.cancel(),
            // Go stops to fetch, and stays.
            Ok(Some("terminate")) if self.sdk().on_sigterm == OnSignal::FallsSilent => {
                self.quiet.cancel();
            }
            Ok(Some("terminate")) => self.end(self.sdk().on_sigint),
            _ => {}
        }
    }
}

/// The status of what was answered; 0 for nothing, 1 for what could not be read.
fn status(settled: Result<(), Failed>) -> u16 {
    match settled {
        Ok(()) => 200,
        Err(Failed::Status(status)) => status,
        Err(Failed::Unread) => 1,
        Err(Failed::Gone) => 0,
    }
}
