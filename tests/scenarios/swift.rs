//! Queues with subqueues: what they cost. Each runs without them too, and is compared.

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;
use crate::harness::ledger::Sent;

/// How much of a slot is used by jobs of 10 ms behind a backend of 20 ms: starts of a minute.
async fn short_jobs(ctx: Ctx, split: &str) -> (usize, Judge) {
    let w = ctx.limits(&format!("{SLOT}{split}")).start().await;
    w.enqueue_all(2_500, |_| of("a")).await;
    let slow = Fault::Slow(Duration::from_millis(20));
    w.backend.often(Op::Any, 1.0, slow);
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(10..11));
    w.pass(3_000).await;
    let before = w.ledger.open().deliveries.len();
    w.pass(30_000).await;
    let after = w.ledger.open().deliveries.len();
    w.backend.mend();
    let mut judge = w.judge().await;
    judge.concurrency("crm:a", 1);
    (after - before, judge)
}

pub async fn short_jobs_of_one_tenant(ctx: Ctx) -> Judge {
    let (without, _) = short_jobs(ctx, "").await;
    let (with, mut judge) = short_jobs(ctx, SPLIT).await;
    println!("{with} starts, {without} without subqueues");
    judge.that(
        with as f64 >= 0.95 * without as f64,
        format!("{with} starts, {without} without subqueues"),
    );
    judge
}

/// A tenant's throttle of ten a second is used to 2 %.
pub async fn throttle_of_one_tenant(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'crm:{meta.tenant}'\nthrottle = { limit = 10, period = '1s' }\n";
    let w = ctx.limits(&format!("{limits}{SPLIT}")).start().await;
    w.enqueue_all(400, |_| of("a")).await;
    let slow = Fault::Slow(Duration::from_millis(20));
    w.backend.often(Op::Any, 1.0, slow);
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(10..11));
    w.pass(35_000).await;
    w.backend.mend();
    let mut judge = w.judge().await;
    judge.spacing("crm:a", Duration::from_millis(100), 1);
    judge.utilisation("crm:a", 10.0, 3, 33, 0.98);
    judge
}

/// How long 600 tenants of one job each take behind a backend of 20 ms, and how many FETCHes that takes.
async fn one_job_each(ctx: Ctx, split: &str) -> (Duration, usize, Judge) {
    let w = ctx.limits(&format!("{SLOT}{split}")).start().await;
    w.enqueue_all(600, |nth| of(&format!("t{nth}")).label("all"))
        .await;
    let slow = Fault::Slow(Duration::from_millis(20));
    w.backend.often(Op::Any, 1.0, slow);
    let begun = Instant::now();
    w.workers(40, Worker::js(10).queues(&["mail"]).runs(10..11));
    w.until_done(60).await;
    w.backend.mend();
    let mut judge = w.judge().await;
    judge.each_ran_once();
    let fetches = (judge.seen.iter()).filter(|sent| sent.path.ends_with("fetch"));
    let (fetches, starts) = (fetches.count(), judge.starts("all"));
    judge.equal("started", starts.len(), 600);
    let took = starts.last().map_or(Duration::MAX, |at| *at - begun);
    (took, fetches, judge)
}

pub async fn many_tenants_of_one_job(ctx: Ctx) -> Judge {
    let (without, few, _) = one_job_each(ctx, "").await;
    let (with, more, mut judge) = one_job_each(ctx, SPLIT).await;
    let found = format!("{with:?}, {more} FETCHes; without subqueues {without:?}, {few}");
    println!("{found}");
    judge.that(with <= without.mul_f64(1.4), found.clone());
    judge.that(more <= 3 * few, found);
    judge
}

/// How many FETCHes and calls in all the backend gets for the work of 1,000 tenants whose limits do not bind, once they
/// are known.
async fn calls_of_work(ctx: Ctx, split: &str) -> (usize, usize, Judge) {
    const KNOWN_AFTER: usize = 40;
    let limits = SLOT.replace("concurrency = 1", "concurrency = 100");
    let w = ctx.limits(&format!("{limits}{split}")).start().await;
    w.workers(4, Worker::js(60).queues(&["mail"]).runs(20..60));
    let mut before = 0;
    for batch in 0..KNOWN_AFTER + 15 {
        if batch == KNOWN_AFTER {
            before = w.backend.seen().len();
        }
        let tenant = |nth| format!("t{}", (batch * 100 + nth * 7) % 1_000);
        w.enqueue_all(100, |nth| of(&tenant(nth))).await;
        w.pass(100).await;
    }
    let mut judge = w.judge_when_done(60).await;
    judge.each_ran_once();
    let calls = judge.seen.iter().skip(before);
    let fetches = calls.clone().filter(|sent| sent.path.ends_with("fetch"));
    (fetches.count(), calls.count(), judge)
}

pub async fn limits_that_do_not_bind(ctx: Ctx) -> Judge {
    let (fetches, without, _) = calls_of_work(ctx, "").await;
    let (more, with, mut judge) = calls_of_work(ctx, SPLIT).await;
    let found = format!("{with} calls, {more} FETCHes; without subqueues {without}, {fetches}");
    println!("{found}");
    judge.that(with as f64 <= 1.2 * without as f64, found);
    judge
}

/// How many calls a second the backend gets from ten workers without work.
async fn idle_calls(ctx: Ctx, split: &str) -> (f64, Judge) {
    let w = ctx.limits(&format!("{SLOT}{split}")).start().await;
    w.enqueue_all(500, |nth| of(&format!("t{nth}"))).await;
    w.workers(10, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.until_done(60).await;
    w.pass(20_000).await;
    let before = w.backend.seen().len();
    w.pass(20_000).await;
    let after = w.backend.seen().len();
    ((after - before) as f64 / 20.0, w.judge().await)
}

pub async fn workers_without_work(ctx: Ctx) -> Judge {
    let (without, _) = idle_calls(ctx, "").await;
    let (with, mut judge) = idle_calls(ctx, SPLIT).await;
    let found = format!("{with} calls a second, {without} without subqueues");
    println!("{found}");
    judge.that(with <= without + 5.0, found);
    judge
}

/// A backend that reads a whole table for each number, 100 ms long. A queue of many tenants is full, producers come again
/// and again, and three readers look on: what the sidecar itself asks takes a tenth of the time at most.
pub async fn numbers_that_take_long(ctx: Ctx) -> Judge {
    const SECONDS: usize = 60;
    let bound = format!("{SPLIT}max_depth = 100\n");
    let plain = Lax {
        admin_queues: false,
        ..Lax::redis()
    };
    let world = ctx.limits(&format!("{SLOT}{bound}")).lax(plain);
    let w = world.start().await;
    w.enqueue_all(100, |nth| of(&format!("t{nth}"))).await;
    let long = Fault::Slow(Duration::from_millis(100));
    w.backend.often(Op::Stats, 1.0, long);
    w.workers(2, Worker::js(1).queues(&["mail"]).runs(30_000..30_001));
    let work = async |seconds: usize| {
        for nth in 0..5 * seconds {
            w.enqueue(of(&format!("n{nth}"))).await;
            if nth % 5 == 0 {
                let one = || w.get("/ojs/v1/queues/mail/stats");
                tokio::join!(one(), one(), one());
            }
            w.pass(100).await;
        }
    };
    work(20).await;
    let before = w.backend.seen().len();
    let begun = Instant::now();
    work(SECONDS).await;
    let took = begun.elapsed();
    let seen = w.backend.seen();
    let asked = |sent: &&Sent| sent.path.ends_with("/stats");
    let all = seen.iter().skip(before).filter(asked).count();
    let ours = all - 3 * SECONDS;
    let mut judge = w.judge().await;
    let found = format!("{ours} questions in {took:?}");
    println!("{found}");
    // One may have begun before, one is paid by what was saved, and one is paid later.
    judge.that(ours as f64 * 0.1 <= 0.1 * took.as_secs_f64() + 0.3, found);
    judge.that(ours > 0, "nothing was asked");
    judge
}
