//! One SDK in a world: its producer, its workers, and the handlers of their jobs.

use std::collections::HashSet;

use super::backends::backend;
use super::prelude::*;
use super::worker::{Handler, Process, Worker};
use crate::harness::ledger::Produced;
use crate::harness::{Ctx, Judge, World};

/// Two at once of each tenant, ten mails a second, and one call of the vendor at a time.
pub const LIMITS: &str = "
[[policy]]
name = 'tenant'
match = { queue = 'billing' }
key = 'tenant:{meta.tenant}'
concurrency = 2

[[policy]]
name = 'mail'
match = { queue = 'mail' }
throttle = { limit = 10, period = '1s' }

[[policy]]
name = 'vendor'
match = { queue = 'vendor' }
concurrency = 1
[policy.feedback]
codes = ['RateLimitError', '*429 Too Many Requests*']
default_pause = '5s'
jitter = 0.0
";

/// A queue without limits, whose name Rust writes otherwise in paths.
pub const FREE: &str = "free-for.all";
const QUEUES: [&str; 4] = ["billing", "vendor", "mail", FREE];

/// One SDK in a world.
pub struct Office {
    sdk: &'static Sdk,
    pub world: World,
    pub client: Client,
    /// How long jobs run by their type, in milliseconds, and what has failed once.
    handler: Handler,
}

impl Office {
    /// The backend is that of the seed.
    pub async fn open(ctx: Ctx, sdk: &'static Sdk, limits: &str, settings: &str) -> Office {
        let (lax, needed) = backend(ctx.seed, sdk.name);
        let settings = format!("{needed}\n{settings}");
        let setup = ctx.world().lax(lax).limits(limits).settings(&settings);
        let world = setup.start().await;
        let client = Client::new(sdk, world.road(), ctx.seed);
        let long = if ctx.real { 8_000 } else { 36_000 };
        Office {
            sdk,
            world,
            client,
            handler: handler(sdk, long),
        }
    }

    /// Starts a worker process; over real sockets it asks for a visibility that is soon over, where it
    /// can.
    pub fn worker(&self, nth: u64) -> Process {
        let ctx = self.world.ctx;
        let worker = Worker {
            client: Client::new(self.sdk, self.world.road(), ctx.seed * 100 + nth),
            name: (self.sdk.worker_id)(nth),
            queues: QUEUES.map(str::to_owned).to_vec(),
            concurrency: 6,
            visibility: (ctx.real && self.sdk.visibility.is_some()).then_some(7_000),
            handler: self.handler.clone(),
            ledger: self.world.ledger.clone(),
        };
        worker.start()
    }

    /// Enqueues a job with a retry policy; `label` is the key that limits it.
    pub async fn enqueue(&self, job: NewJob, label: Option<&str>) -> Result<String, Failed> {
        let retry = "{\"max_attempts\":5,\"initial_interval\":\"PT0.5S\"}";
        let job = job.option("retry", retry);
        let stored = self.client.enqueue(&job).await;
        self.produced(&job, label, stored.as_deref().unwrap_or_default());
        stored
    }

    pub async fn enqueue_all(&self, n: usize, job: impl Fn(usize) -> (NewJob, &'static str)) {
        for nth in 0..n {
            let (job, label) = job(nth);
            // What is not stored is told when the day is judged.
            let _told = self.enqueue(job, Some(label)).await;
        }
    }

    pub fn produced(&self, job: &NewJob, label: Option<&str>, id: &str) {
        self.world.ledger.open().produced.push(Produced {
            id: id.to_owned(),
            queue: job.options[0].1.trim_matches('"').to_owned(),
            labels: label.into_iter().map(str::to_owned).collect(),
            answered: Instant::now(),
            status: if id.is_empty() { 0 } else { 201 },
        });
    }

    /// Of three jobs of a tenant, the one that waits while the other two are at work.
    pub async fn one_that_waits(&self) -> String {
        let mut ids = Vec::new();
        for n in 0..3 {
            let job = NewJob::new("pay.slow", "billing", n).meta("{\"tenant\":\"c\"}");
            let stored = self.enqueue(job, Some("tenant:c")).await;
            ids.push(stored.unwrap_or_default());
        }
        let waiting = || {
            let records = self.world.ledger.open();
            let got = |id: &&String| records.deliveries.iter().any(|d| d.job == **id);
            ids.iter()
                .filter(|id| !got(id))
                .cloned()
                .collect::<Vec<String>>()
        };
        self.world.until(20, async || waiting().len() <= 1).await;
        waiting().pop().unwrap_or_default()
    }

    /// Waits until all is done, ends these processes in order, and collects the ledgers.
    pub async fn close(self, secs: u64, workers: Vec<Process>) -> Judge {
        self.world.until_done(secs).await;
        for worker in &workers {
            worker.signal(Signal::Int);
        }
        let over = self
            .world
            .until(60, async || workers.iter().all(Process::is_over));
        let over = over.await;
        let mut judge = self.world.judge().await;
        judge.that(over, "a worker does not end");
        let died = workers.iter().any(Process::has_died);
        judge.that(!died, "a worker died of a failed nack");
        judge
    }
}

/// Handlers by the type of the job.
fn handler(sdk: &'static Sdk, long: u64) -> Handler {
    let failed: Mutex<HashSet<String>> = Mutex::default();
    Arc::new(move |job: &Value| {
        let id = job["id"].as_str().unwrap_or_default().to_owned();
        let kind = job["type"].as_str().unwrap_or_default();
        let first = || {
            failed
                .lock()
                .expect("no panic")
                .insert(kind.to_owned() + &id)
        };
        let any_first = |name: &str| failed.lock().expect("no panic").insert(name.to_owned());
        let (time, outcome) = match kind {
            "pay.charge" => (300, Ok(Some("{\"paid\":true}".to_owned()))),
            "pay.slow" => (3_000, Ok(None)),
            "pay.long" | "free.long" => (long, Ok(Some("{\"done\":1}".to_owned()))),
            "pay.flaky" if first() => (100, Err(thrown(sdk, "Error", "flaky boom"))),
            // The vendor limits whoever calls first, whichever job that is.
            "vendor.call" if any_first("vendor") => (50, Err(limited(sdk))),
            _ => (20, Ok(None)),
        };
        (Duration::from_millis(time), outcome)
    })
}

/// A handler's error as the SDK tells of it: JavaScript and Python with a trace, which names the class;
/// Go and Rust in a message only.
fn thrown(sdk: &'static Sdk, class: &str, message: &str) -> Thrown {
    let trace = match sdk.reads {
        Reads::Json => Some(format!(
            "{class}: {message}\n    at send (file:///app/worker.mjs:12:11)\n    at process.processTicksAndRejections (node:internal/process/task_queues:105:5)"
        )),
        Reads::OnlyApplicationJson => Some(format!(
            "Traceback (most recent call last):\n  File \"/app/worker.py\", line 12, in send\n    raise {class}(\"{message}\")\nvendor.{class}: {message}\n"
        )),
        Reads::Whatever | Reads::Typed => None,
    };
    Thrown {
        trace,
        ..Thrown::new(message)
    }
}

/// What a handler reports when its vendor answered 429.
fn limited(sdk: &'static Sdk) -> Thrown {
    match sdk.reads {
        Reads::Json | Reads::OnlyApplicationJson => thrown(sdk, "RateLimitError", "slow down"),
        Reads::Whatever | Reads::Typed => thrown(sdk, "", "vendor: 429 Too Many Requests"),
    }
}
