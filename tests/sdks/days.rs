//! Days at work of each SDK: what its producers and workers go through, judged from ledgers.

use std::collections::{HashMap, HashSet};

use ojs_throttle::backend::EventKind;

use super::office::{FREE, LIMITS, Office};
use super::prelude::*;
use crate::harness::{Ctx, Fault, Judge, Op};

/// What is enqueued one by one in the morning, each with the key that limits it.
async fn morning(office: &Office) {
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
}

/// What producers saw of a day.
struct Seen {
    /// How many of a batch of 30 were stored.
    stored: usize,
    /// The jobs that were cancelled, one scheduled and one waiting, and what the SDK said of it.
    cancelled: [(String, Result<String, Failed>); 2],
    /// When the paused queue went on, and what the SDK said of pausing and resuming.
    resumed_at: Instant,
    paused: [Result<(), Failed>; 2],
}

/// A whole day: single jobs and a batch, jobs that are cancelled while they wait or are scheduled, a
/// paused queue, failures that are tried again, jobs that run longer than their visibility.
async fn day(ctx: Ctx, sdk: &'static Sdk) -> Judge {
    let office = Office::open(ctx, sdk, LIMITS, "").await;
    morning(&office).await;
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
    let seen = Seen {
        stored: stored.len(),
        cancelled: [(scheduled, cancelled), (waiting, cancelled_waiting)],
        resumed_at,
        paused: [paused, resumed],
    };
    let mut judge = office.close(300, workers).await;
    as_producers_expect(&mut judge, sdk, &seen);
    for tenant in ["tenant:a", "tenant:b", "tenant:c", "tenant:long"] {
        judge.concurrency(tenant, 2);
    }
    judge.spacing("mail", Duration::from_millis(100), 1);
    shut_after_the_429(&mut judge);
    let never = seen.cancelled.map(|(job, _)| job).into();
    ran_as_often_as_they_failed(&mut judge, &never);
    heartbeats_accepted(&mut judge);
    judge.all_settles_ok(false);
    judge.settled()
}

/// What producers asked for was done, and they were told so as far as their SDK can read it.
fn as_producers_expect(judge: &mut Judge, sdk: &'static Sdk, seen: &Seen) {
    all_stored(judge);
    let stored = seen.stored;
    judge.that(stored == 30, format!("{stored} of the batch were stored"));
    let paused = seen.paused;
    judge.that(
        paused == [Ok(()), Ok(())],
        format!("pause and resume: {paused:?}"),
    );
    paths_are_plain(judge);
    // Rust looks for the bare job in the reply, and finds none although the job is cancelled.
    let expected = match sdk.reads {
        Reads::Typed => Err(Failed::Unread),
        _ => Ok("cancelled".to_owned()),
    };
    for (job, said) in &seen.cancelled {
        judge.that(*said == expected, format!("cancel of {job}: {said:?}"));
    }
    let early = (judge.records.deliveries.iter())
        .filter(|d| d.queue == FREE && d.at < seen.resumed_at)
        .count();
    judge.equal("jobs of a paused queue were delivered", early, 0);
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
    judge.took("it ended after", took, 10_000);
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
        let settles = records.settles.iter();
        let nacks = settles.filter(|s| !s.ack && s.job == produced.id);
        let due = 1 + nacks.count() + count(left.contains(&produced.id.as_str()));
        let runs = runs.count();
        if runs != due {
            wrong.push(format!("{} ran {runs} times instead of {due}", produced.id));
        }
    }
    wrong.into_iter().for_each(|problem| judge.wrong(problem));
    judge.settled()
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
    judge.settled()
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

/// Of Python's ACK at the end of its process only the head was sent: it is no ACK, and the job runs again.
pub async fn python_half_an_ack(ctx: Ctx) -> Judge {
    let office = Office::open(ctx, &PYTHON, LIMITS, "").await;
    let job = NewJob::new("pay.charge", "billing", 1).meta("{\"tenant\":\"a\"}");
    let job = office.enqueue(job, Some("tenant:a")).await;
    let fetch =
        "{\"queues\":[\"billing\"],\"count\":1,\"visibility_timeout_ms\":7000,\"worker_id\":\"w\"}";
    let path = "/ojs/v1/workers/fetch";
    let got = office
        .client
        .request("POST", path, Some(fetch.to_owned()))
        .await;
    let got = got.unwrap_or_default()["jobs"][0]["id"].clone();
    let ack = (PYTHON.ack)(got.as_str().unwrap_or_default(), Some("{\"paid\":true}"));
    office
        .client
        .only_the_head("/ojs/v1/workers/ack", &ack)
        .await;
    let worker = office.worker(1);
    let mut judge = office.close(60, vec![worker]).await;
    judge.that(job.is_ok_and(|job| got == job), "the job was not fetched");
    let acks = judge.seen.iter().filter(|sent| sent.path.ends_with("/ack"));
    let acks = acks.count();
    judge.that(acks == 1, format!("{acks} ACKs reached the backend"));
    let ran = judge.records.deliveries.len();
    judge.that(ran == 1, format!("the worker got it {ran} times"));
    // The first delivery was not written down.
    judge
        .problems
        .retain(|problem| !problem.contains("a job was delivered that nobody"));
    judge.settled()
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
    judge.settled()
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
            day(ctx, &$sdk).await
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
    javascript_restart javascript_unrepaired: ["heartbeats: ", "a worker died of a failed nack"]);
days_of!(PYTHON; python_day python_sigterm python_sigint python_trouble
    python_restart python_unrepaired: ["enqueues: "]);
days_of!(GO; go_day go_sigterm go_sigint go_trouble
    go_restart go_unrepaired: ["heartbeats: ", "runs: "]);
days_of!(RUST; rust_day rust_sigterm rust_sigint rust_trouble
    rust_restart rust_unrepaired: ["paths: no /ojs/v1/queues/free-for.all/pause reached"]);
