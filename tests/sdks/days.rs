//! Days at work of each SDK: what its producers and workers go through, judged from ledgers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ojs_throttle::backend::EventKind;
use serde_json::Value;
use tokio::time::Instant;

use crate::backends::backend;
use crate::client::{Client, Failed};
use crate::go::GO;
use crate::harness::ledger::Produced;
use crate::harness::{Ctx, Fault, Judge, Op, World};
use crate::javascript::JAVASCRIPT;
use crate::python::PYTHON;
use crate::rust::RUST;
use crate::sdk::{NewJob, OnSignal, Reads, Sdk, Thrown};
use crate::worker::{Handler, Process, Signal, Worker};

/// Two at once of each tenant, ten mails a second, and one call of the vendor at a time.
const LIMITS: &str = "
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
const FREE: &str = "free-for.all";
const QUEUES: [&str; 4] = ["billing", "vendor", "mail", FREE];

/// One SDK in a world.
struct Office {
    sdk: &'static Sdk,
    world: World,
    client: Client,
    /// How long jobs run by their type, in milliseconds, and what has failed once.
    handler: Handler,
}

impl Office {
    /// The backend is that of the seed.
    async fn open(ctx: Ctx, sdk: &'static Sdk, limits: &str, settings: &str) -> Office {
        let (lax, needed) = backend(ctx.seed);
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
    fn worker(&self, nth: u64) -> Process {
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
    async fn enqueue(&self, job: NewJob, label: Option<&str>) -> Result<String, Failed> {
        let retry = "{\"max_attempts\":5,\"initial_interval\":\"PT0.5S\"}";
        let job = job.option("retry", retry);
        let stored = self.client.enqueue(&job).await;
        self.produced(&job, label, stored.as_deref().unwrap_or_default());
        stored
    }

    async fn enqueue_all(&self, n: usize, job: impl Fn(usize) -> (NewJob, &'static str)) {
        for nth in 0..n {
            let (job, label) = job(nth);
            // What is not stored is told when the day is judged.
            let _told = self.enqueue(job, Some(label)).await;
        }
    }

    fn produced(&self, job: &NewJob, label: Option<&str>, id: &str) {
        self.world.ledger.open().produced.push(Produced {
            id: id.to_owned(),
            queue: job.options[0].1.trim_matches('"').to_owned(),
            labels: label.into_iter().map(str::to_owned).collect(),
            answered: Instant::now(),
            status: if id.is_empty() { 0 } else { 201 },
        });
    }

    /// Of three jobs of a tenant, the one that waits while the other two are at work.
    async fn one_that_waits(&self) -> String {
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
    async fn close(self, secs: u64, workers: Vec<Process>) -> Judge {
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

/// A whole day: single jobs and a batch, jobs that are cancelled while they wait or are scheduled, a
/// paused queue, failures that are tried again, jobs that run longer than their visibility.
async fn day(ctx: Ctx, sdk: &'static Sdk, settings: &str) -> Judge {
    let office = Office::open(ctx, sdk, LIMITS, settings).await;
    let meta = |tenant: &str| format!("{{\"tenant\":\"{tenant}\"}}");
    let billing = |kind, tenant, n| NewJob::new(kind, "billing", n).meta(&meta(tenant));
    office
        .enqueue_all(2, |n| (billing("pay.long", "long", n), "tenant:long"))
        .await;
    office
        .enqueue_all(12, |n| match n % 2 {
            0 => (billing("pay.charge", "a", n), "tenant:a"),
            _ => (billing("pay.charge", "b", n), "tenant:b"),
        })
        .await;
    office
        .enqueue_all(2, |n| (billing("pay.flaky", "a", 90 + n), "tenant:a"))
        .await;
    office
        .enqueue_all(3, |n| (NewJob::new("vendor.call", "vendor", n), "vendor"))
        .await;
    let mails: Vec<NewJob> = (0..30)
        .map(|n| NewJob::new("mail.send", "mail", n))
        .collect();
    let stored = office.client.batch(&mails).await.unwrap_or_default();
    for (id, mail) in stored.iter().zip(&mails) {
        office.produced(mail, Some("mail"), id);
    }
    let scheduled = NewJob::new("later", FREE, 1).option("delay_until", "\"2099-01-01T00:00:00Z\"");
    let scheduled = office.enqueue(scheduled, None).await.unwrap_or_default();
    let cancelled = office.client.cancel(&scheduled).await;
    let paused = office.client.pause_queue(FREE, true).await;
    for n in 0..8 {
        // The first runs longer than its visibility, and no limit touches it.
        let kind = if n == 0 { "free.long" } else { "free.job" };
        let _told = office.enqueue(NewJob::new(kind, FREE, n), None).await;
    }
    let workers = vec![office.worker(1), office.worker(2)];
    let waiting = office.one_that_waits().await;
    let cancelled_waiting = office.client.cancel(&waiting).await;
    office.world.pass(2_500).await;
    let resumed_at = Instant::now();
    let resumed = office.client.pause_queue(FREE, false).await;
    let mut judge = office.close(300, workers).await;

    all_stored(&mut judge);
    judge.that(
        stored.len() == mails.len(),
        format!("{} of the batch were stored", stored.len()),
    );
    judge.that(
        paused.is_ok() && resumed.is_ok(),
        format!("pause {paused:?}, resume {resumed:?}"),
    );
    paths_are_plain(&mut judge);
    // Rust looks for the bare job in the reply, and finds none although the job is cancelled.
    let expected = match sdk.reads {
        Reads::Typed => Err(Failed::Unread),
        _ => Ok("cancelled".to_owned()),
    };
    judge.that(
        cancelled == expected,
        format!("the scheduled one: {cancelled:?}"),
    );
    judge.that(
        cancelled_waiting == expected,
        format!("the waiting one: {cancelled_waiting:?}"),
    );
    let early = (judge.records.deliveries.iter())
        .filter(|d| d.queue == FREE && d.at < resumed_at)
        .count();
    judge.that(
        early == 0,
        format!("{early} jobs of a paused queue were delivered"),
    );
    for tenant in ["tenant:a", "tenant:b", "tenant:c", "tenant:long"] {
        judge.concurrency(tenant, 2);
    }
    judge.spacing("mail", Duration::from_millis(100), 1);
    shut_after_the_429(&mut judge);
    let never = HashSet::from([scheduled, waiting]);
    ran_as_often_as_they_failed(&mut judge, &never);
    heartbeats_accepted(&mut judge);
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

/// Every enqueue succeeded, as the SDK sees it.
fn all_stored(judge: &mut Judge) {
    let produced = judge.records.produced.iter();
    let refused = produced.filter(|p| p.status != 201).count();
    judge.that(refused == 0, format!("enqueues: {refused} failed"));
}

/// What was said of a queue reached the backend under the path that it knows.
fn paths_are_plain(judge: &mut Judge) {
    for verb in ["pause", "resume"] {
        let path = format!("/ojs/v1/queues/{FREE}/{verb}");
        let plain = judge.seen.iter().any(|sent| sent.path == path);
        judge.that(plain, format!("paths: no {path} reached the backend"));
    }
}

/// Every heartbeat got 200.
fn heartbeats_accepted(judge: &mut Judge) {
    let bad = judge.records.beats.iter().filter(|status| **status != 200);
    let bad = bad.count();
    judge.that(bad == 0, format!("heartbeats: {bad} were refused"));
    judge.that(!judge.records.beats.is_empty(), "heartbeats: none was sent");
}

/// Every job ran once, and once more for each nack; those of `never` not at all.
fn ran_as_often_as_they_failed(judge: &mut Judge, never: &HashSet<String>) {
    let mut due: HashMap<&str, usize> = HashMap::new();
    for produced in judge.records.produced.iter().filter(|p| p.status == 201) {
        due.insert(&produced.id, usize::from(!never.contains(&produced.id)));
    }
    for nack in judge.records.settles.iter().filter(|settle| !settle.ack) {
        *due.entry(&nack.job).or_default() += 1;
    }
    let mut wrong = Vec::new();
    for (job, due) in due {
        let runs = judge.records.deliveries.iter().filter(|d| d.job == job);
        let runs = runs.count();
        if runs != due {
            wrong.push(format!("runs: {job} ran {runs} times instead of {due}"));
        }
    }
    wrong.into_iter().for_each(|problem| judge.wrong(problem));
}

/// After the nack that told of the vendor's 429, no call of it started for as long as the file says.
fn shut_after_the_429(judge: &mut Judge) {
    let starts = judge.starts("vendor");
    let told = judge
        .events
        .iter()
        .find(|(_, event)| event.kind == EventKind::Nacked && &*event.queue == "vendor");
    let Some((told, _)) = told else {
        return judge.wrong("vendor: nothing was nacked".into());
    };
    let next = starts.iter().find(|start| *start > told);
    match next.map(|next| *next - *told) {
        None => judge.wrong("vendor: nothing started after the 429".into()),
        Some(pause) if pause < Duration::from_millis(4_900) => {
            judge.breach(format!("vendor: called again {pause:?} after its 429"));
        }
        Some(pause) => judge.that(
            pause < Duration::from_millis(8_500),
            format!("vendor: called again only {pause:?} after its 429"),
        ),
    }
    judge.concurrency("vendor", 1);
}

/// One process is told to stop with jobs at work, another goes on. What the SDK itself leaves undone
/// runs again, and nothing else.
async fn stop(ctx: Ctx, sdk: &'static Sdk, signal: Signal) -> Judge {
    let office = Office::open(ctx, sdk, LIMITS, "").await;
    let job = |n: usize| {
        let (tenant, label) = [("a", "tenant:a"), ("b", "tenant:b")][n % 2];
        let job = NewJob::new("pay.slow", "billing", n);
        let job = job.meta(&format!("{{\"tenant\":\"{tenant}\"}}"));
        (job.option("visibility_timeout_ms", "7000"), label)
    };
    office.enqueue_all(8, job).await;
    let first = office.worker(1);
    let at_work = office.world.until(20, async || first.running() >= 2);
    at_work.await;
    office.world.pass(ctx.seed * 90 % 2_900).await;
    let second = office.worker(2);
    let (running, told) = (first.running(), Instant::now());
    first.signal(signal);
    let over = office.world.until(60, async || first.is_over()).await;
    let took = told.elapsed();
    let name = first.name().to_owned();
    let mut judge = office.close(200, vec![second]).await;

    all_stored(&mut judge);
    judge.that(over, "the first worker does not end");
    judge.that(
        took < Duration::from_secs(10),
        format!("it ended after {took:?}"),
    );
    judge.that(running > 0, "nothing ran when the signal came");
    for tenant in ["tenant:a", "tenant:b"] {
        judge.concurrency(tenant, 2);
    }
    // Jobs that the first worker got and never told the end of.
    let records = &judge.records;
    let left: Vec<&str> = (records.deliveries.iter())
        .filter(|d| d.worker == name)
        .map(|d| d.job.as_str())
        .filter(|job| {
            !records
                .settles
                .iter()
                .any(|s| s.job == *job && s.worker == name)
        })
        .collect();
    let end = if signal == Signal::Term {
        sdk.on_sigterm
    } else {
        sdk.on_sigint
    };
    let may_leave = match end {
        OnSignal::FallsSilent | OnSignal::Dies => running,
        OnSignal::Finishes | OnSignal::Cancels | OnSignal::Awaits => 0,
    };
    let mut wrong = Vec::new();
    if left.len() > may_leave {
        wrong.push(format!("{} jobs were left, {may_leave} may be", left.len()));
    }
    for produced in &records.produced {
        let count = |is: bool| usize::from(is);
        let runs = records.deliveries.iter().filter(|d| d.job == produced.id);
        let nacks = records
            .settles
            .iter()
            .filter(|s| !s.ack && s.job == produced.id);
        let due = 1 + nacks.count() + count(left.contains(&produced.id.as_str()));
        let runs = runs.count();
        if runs != due {
            wrong.push(format!("{} ran {runs} times instead of {due}", produced.id));
        }
    }
    wrong.into_iter().for_each(|problem| judge.wrong(problem));
    judge.settled();
    judge
}

/// The backend loses requests and answers and is overloaded for a moment: workers see none of it, so none
/// of them turns a job that is done into a failure, and none dies.
async fn trouble(ctx: Ctx, sdk: &'static Sdk) -> Judge {
    let office = Office::open(ctx, sdk, LIMITS, "").await;
    let job = |n| {
        let job = NewJob::new("pay.slow", "billing", n).meta("{\"tenant\":\"a\"}");
        (job, "tenant:a")
    };
    office.enqueue_all(12, job).await;
    let backend = &office.world.backend;
    backend.next(Op::Ack, 3, Fault::ReplyLost);
    backend.next(Op::Ack, 2, Fault::Refused);
    backend.next(Op::Ack, 2, Fault::ReplyCut);
    backend.next(Op::Heartbeat, 2, Fault::Status(503));
    let workers = vec![office.worker(1), office.worker(2)];
    let mut judge = office.close(120, workers).await;
    judge.concurrency("tenant:a", 2);
    ran_as_often_as_they_failed(&mut judge, &HashSet::new());
    heartbeats_accepted(&mut judge);
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

/// The sidecar is killed with jobs at work, and another one starts. No worker dies of it, and a job runs
/// again only where its SDK gave up on the ACK.
async fn restart(ctx: Ctx, sdk: &'static Sdk) -> Judge {
    let office = Office::open(ctx, sdk, LIMITS, "").await;
    let job = |n| {
        let job = NewJob::new("pay.slow", "billing", n).meta("{\"tenant\":\"a\"}");
        (job, "tenant:a")
    };
    office.enqueue_all(8, job).await;
    let workers = vec![office.worker(1), office.worker(2)];
    office.world.pass(4_000 + ctx.seed * 130 % 2_900).await;
    office.world.kill_sidecar();
    office.world.pass(300).await;
    office.world.start_sidecar().await;
    let mut judge = office.close(300, workers).await;
    let mut due: HashMap<&str, usize> = HashMap::new();
    for settle in judge.records.settles.iter().filter(|s| s.status != 200) {
        *due.entry(&settle.job).or_default() += 1;
    }
    let given_up = due.values().sum::<usize>();
    let mut wrong = Vec::new();
    for produced in &judge.records.produced {
        let runs = judge.records.deliveries.iter();
        let runs = runs.filter(|d| d.job == produced.id).count();
        let most = 1 + due.get(produced.id.as_str()).copied().unwrap_or(0);
        if runs == 0 || runs > most {
            wrong.push(format!("{} ran {runs} times, at most {most}", produced.id));
        }
    }
    wrong.into_iter().for_each(|problem| judge.wrong(problem));
    let patient = sdk.settles > 1;
    judge.that(!patient || given_up == 0, format!("{given_up} ACKs failed"));
    judge.concurrency("tenant:a", 2);
    judge.no_claim_lost();
    judge
}

/// One job, longer than its visibility, without any limits, in a queue that was paused before.
async fn alone(ctx: Ctx, sdk: &'static Sdk, settings: &str) -> Judge {
    let office = Office::open(ctx, sdk, "", settings).await;
    let _paused = office.client.pause_queue(FREE, true).await;
    let _told = office
        .enqueue(NewJob::new("free.long", FREE, 1), None)
        .await;
    let _resumed = office.client.pause_queue(FREE, false).await;
    let worker = office.worker(1);
    office.world.pass(46_000).await;
    let mut judge = office.close(100, vec![worker]).await;
    all_stored(&mut judge);
    paths_are_plain(&mut judge);
    ran_as_often_as_they_failed(&mut judge, &HashSet::new());
    heartbeats_accepted(&mut judge);
    judge.settled();
    judge
}

/// What the judges say without repairs, before the redis backend; with them they are content.
async fn unrepaired(ctx: Ctx, sdk: &'static Sdk, expected: &[&str]) -> Judge {
    let off = "[repairs]\nheartbeat_active_jobs = false\nqueue_paths = false\nmedia_type = \"off\"";
    let broken = alone(ctx, sdk, off).await;
    let mut judge = alone(ctx, sdk, "").await;
    for expected in expected {
        let seen = broken.problems.iter().any(|p| p.contains(expected));
        let said = &broken.problems;
        judge.that(seen, format!("no judge said {expected:?}, but {said:#?}"));
    }
    judge
}

/// The scenarios of one SDK, by their names.
macro_rules! days_of {
    ($sdk:expr; $day:ident $sigterm:ident $sigint:ident $trouble:ident $restart:ident $unrepaired:ident: $seen:expr) => {
        pub async fn $day(ctx: Ctx) -> Judge {
            day(ctx, &$sdk, "").await
        }

        pub async fn $sigterm(ctx: Ctx) -> Judge {
            stop(ctx, &$sdk, Signal::Term).await
        }

        pub async fn $sigint(ctx: Ctx) -> Judge {
            stop(ctx, &$sdk, Signal::Int).await
        }

        pub async fn $trouble(ctx: Ctx) -> Judge {
            trouble(ctx, &$sdk).await
        }

        pub async fn $restart(ctx: Ctx) -> Judge {
            restart(ctx, &$sdk).await
        }

        pub async fn $unrepaired(ctx: Ctx) -> Judge {
            unrepaired(ctx, &$sdk, &$seen).await
        }
    };
}

days_of!(JAVASCRIPT; javascript_day javascript_sigterm javascript_sigint javascript_trouble
    javascript_restart javascript_unrepaired: ["heartbeats: ", "runs: "]);
days_of!(PYTHON; python_day python_sigterm python_sigint python_trouble
    python_restart python_unrepaired: ["enqueues: "]);
days_of!(GO; go_day go_sigterm go_sigint go_trouble
    go_restart go_unrepaired: ["heartbeats: ", "runs: "]);
days_of!(RUST; rust_day rust_sigterm rust_sigint rust_trouble
    rust_restart rust_unrepaired: ["paths: no /ojs/v1/queues/free-for.all/pause reached"]);
