//! Sidecars that share a store, and some or all of which lose it: each claim goes to one worker, none is
//! lost, and the work goes on.

use ojs_throttle::store::guard::OnStoreError;

use super::prelude::*;
use crate::harness::Sidecar;

const RATE: &str =
    "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nrate = { limit = 3, period = '10s' }";

fn job() -> Job {
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0.1S" });
    crate::scenarios::job().option("retry", retry)
}

/// Jobs that run for long before sidecars that know each other; all of them hold some.
async fn at_work(
    ctx: Ctx,
    mode: OnStoreError,
    siblings: u64,
    limits: &str,
) -> (World, Vec<Sidecar>) {
    let backends = [Lax::redis(), Lax::postgres(), Lax::spec(), Lax::lite()];
    let world = ctx.world().lax(pick(ctx.seed, &backends)).shared_or(mode);
    let w = world.limits(limits).start().await;
    let mut others = Vec::new();
    for _ in 0..siblings {
        others.push(w.sibling().await);
    }
    w.pass(1_500).await;
    w.enqueue_all(20, |_| job()).await;
    let visibility = pick(ctx.seed / 4, &[30_000, 12_000]);
    let worker = Worker::js(4).queues(&["mail"]).runs(2_000..24_000);
    let worker = worker.visibility(visibility);
    w.worker(worker.clone());
    for other in &others {
        w.worker_of(other, worker.clone());
    }
    w.pass(3_000 + ctx.seed * 331).await;
    (w, others)
}

/// How long the store is away, in milliseconds.
fn away(ctx: Ctx) -> u64 {
    pick(ctx.seed / 2, &[2_000, 8_000, 20_000, 70_000])
}

fn started_between(judge: &Judge, from: Duration, to: Duration) -> usize {
    let within = |at| (judge.begun + from..judge.begun + to).contains(&at);
    judge
        .records
        .deliveries
        .iter()
        .filter(|one| within(one.at))
        .count()
}

async fn one_of_them(ctx: Ctx, mode: OnStoreError) -> Judge {
    let (w, _others) = at_work(ctx, mode, 1 + ctx.seed % 2, TWO).await;
    w.first_way(|way| way.cut((ctx.seed % 3) as usize));
    let cut = w.begun.elapsed();
    w.pass(away(ctx)).await;
    let mended = w.begun.elapsed();
    w.first_way(|way| way.mend());
    let mut judge = w.judge_when_done(900).await;
    let long = mended - cut > Duration::from_secs(60);
    judge.that(
        !long || started_between(&judge, cut, mended) > 0,
        "nothing went on meanwhile",
    );
    judge.all_well()
}

/// With `share`, one loses the store while it holds jobs, and its siblings take it for dead.
pub async fn one_is_cut_off(ctx: Ctx) -> Judge {
    let mut judge = one_of_them(ctx, OnStoreError::Share).await;
    judge.concurrency("k:a", 4);
    judge
}

/// The same with `open`, where only the fleet's other half has a limit.
pub async fn one_is_cut_off_and_open(ctx: Ctx) -> Judge {
    one_of_them(ctx, OnStoreError::Open).await
}

/// One is cut off, and has claimed again what lapsed, when the other gets its first worker: of what it finds in
/// the store it cannot know that it is over.
pub async fn a_worker_comes_late(ctx: Ctx) -> Judge {
    let backends = [Lax::redis(), Lax::postgres(), Lax::spec()];
    let world = ctx.world().lax(pick(ctx.seed, &backends));
    let world = world.shared().limits(TWO);
    let (w, other) = world.pair().await;
    w.enqueue_all(12, |_| job()).await;
    let visibility = pick(ctx.seed / 3, &[30_000, 12_000]);
    let worker = Worker::js(4).queues(&["mail"]).runs(8_000..24_000);
    let worker = worker.visibility(visibility);
    w.worker(worker.clone());
    w.pass(3_000 + ctx.seed * 331).await;
    w.first_way(|way| way.cut(0));
    w.pass(visibility + 2_000 + ctx.seed * 617).await;
    w.worker_of(&other, worker);
    w.pass(30_000).await;
    w.first_way(|way| way.mend());
    let mut judge = w.judge_when_done(900).await;
    judge.concurrency("k:a", 4);
    judge.all_well()
}

/// The store is gone for all. What was held goes out when its claims have lapsed.
pub async fn all_are_cut_off(ctx: Ctx) -> Judge {
    let slots = ctx.even();
    let limits = if slots { TWO } else { RATE };
    let (w, others) = at_work(ctx, OnStoreError::Share, 2, limits).await;
    let each = |with: &dyn Fn(&Way)| {
        w.first_way(with);
        let ways = others.iter().filter_map(|other| other.way.as_ref());
        ways.for_each(with);
    };
    each(&|way| way.cut((ctx.seed % 3) as usize));
    let lapsed = w.begun.elapsed() + Duration::from_secs(32);
    w.pass(away(ctx)).await;
    let mended = w.begun.elapsed();
    each(&|way| way.mend());
    let mut judge = w.judge_when_done(900).await;
    if slots {
        // Who has no slots keeps what it claims: there need be nobody who may start anything.
        judge.concurrency("k:a", 2);
    } else {
        judge.rate("k:a", 6, Duration::from_secs(10));
        let long = mended > lapsed + Duration::from_secs(30);
        let went_on = started_between(&judge, lapsed, mended) > 0;
        judge.that(went_on || !long, "nothing went on meanwhile");
    }
    judge.all_well()
}

/// The store is slow, now less, now more, so that what it says is often older than what happened since: a
/// slot that has ended is filled all the same.
pub async fn slow(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    let w = world.start().await;
    let other = w.sibling().await;
    for (nth, way) in [None, other.way.as_ref()].into_iter().enumerate() {
        let slow = |way: &Way| way.slow(ctx.seed * 2 + nth as u64, Duration::from_millis(80));
        way.map_or_else(|| w.first_way(slow), slow);
    }
    w.enqueue_all(30, |_| job()).await;
    let visibility = pick(ctx.seed, &[2_000, 3_000, 30_000]);
    let worker = Worker::js(2).queues(&["mail"]).runs(10..200);
    let worker = worker.visibility(visibility);
    w.workers(2, worker.clone());
    w.worker_of(&other, worker);
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k:a", 1);
    judge.all_well()
}

/// What is sent to the store is sent again now and then, and the answer is to the second: nothing of it is
/// stuck.
pub async fn done_twice(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(TWO);
    let w = world.start().await;
    let other = w.sibling().await;
    w.first_way(|way| way.twice(ctx.seed));
    w.enqueue_all(30, |_| job()).await;
    let worker = Worker::js(2).queues(&["mail"]).runs(100..600);
    w.workers(2, worker.clone().hangs_up(0.2));
    w.worker_of(&other, worker);
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k:a", 2);
    judge.settled()
}

/// What is done in the store is not heard of now and then: each slot that ends is filled all the same.
pub async fn done_unheard(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    let w = world.start().await;
    w.pass(1_000).await;
    w.first_way(|way| way.unheard(ctx.seed));
    w.enqueue_all(20, |_| job()).await;
    w.workers(2, Worker::js(2).queues(&["mail"]).runs(10..200));
    let done = w.until_done(60).await;
    // It is told of what ended a few at a time.
    w.pass(10_000).await;
    let mut judge = w.judge().await;
    judge.that(done, "not done within 60 s");
    judge.concurrency("k:a", 1);
    judge.all_well()
}

/// A sidecar that holds some of `n` jobs for a worker that left, and another one.
async fn left_behind(ctx: Ctx, n: usize) -> (World, Sidecar) {
    let world = ctx.world().shared().limits(TWO);
    let w = world.lax(Lax::spec()).start().await;
    let other = w.sibling().await;
    w.enqueue_all(n, |_| job()).await;
    let leaves = w.worker(Worker::js(4).queues(&["mail"]).runs(1_000..2_000));
    w.pass(1_500).await;
    leaves.stop();
    (w, other)
}

/// What a sidecar holds for workers that left is taken over by another, which hears of half of what it asks:
/// no claim lapses.
pub async fn taken_over_with_trouble(ctx: Ctx) -> Judge {
    let (w, other) = left_behind(ctx, 10).await;
    w.backend.often(Op::Job, 0.4, Fault::Status(503));
    other.way.iter().for_each(|way| way.unheard(ctx.seed));
    w.pass(8_000).await;
    w.worker_of(&other, Worker::js(2).queues(&["mail"]).runs(100..400));
    let mut judge = w.judge_when_done(60).await;
    judge.none_lapsed();
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// A worker hangs up while the store is told of what came for it: it is held for the next one.
pub async fn hang_up_while_slow(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let w = world.start().await;
    let own = json!({ "key": "own", "concurrency": 2 });
    let job = |_| {
        Job::new("a.b")
            .queue("mail")
            .option("rate_limit", own.clone())
    };
    w.enqueue_all(2, job).await;
    w.first_way(|way| way.slow(ctx.seed, Duration::from_millis(100)));
    let gone = Duration::from_millis(1 + ctx.seed * 17);
    let one = w.hands("one");
    let hung = timeout(gone, one.fetch(&["mail"], 2)).await;
    one.ack_all(hung.into_iter().flatten().flatten()).await;
    w.worker(Worker::js(2).queues(&["mail"]).runs(100..200));
    let judge = w.judge_when_done(15).await;
    judge.settled()
}

/// Jobs that run without limits are limited from now on, and end while the store is told so: they leave no
/// slot behind.
pub async fn slow_and_limited_from_now_on(ctx: Ctx) -> Judge {
    let w = ctx.world().shared().start().await;
    w.enqueue_all(30, |_| job()).await;
    w.workers(3, Worker::js(4).queues(&["mail"]).runs(500..1_500));
    w.pass(1_300).await;
    w.first_way(|way| way.slow(ctx.seed, Duration::from_millis(150)));
    w.reload(&TWO.replace('2', "3"));
    let mut judge = w.judge_when_done(60).await;
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled()
}

/// What stands before the backend does not let a job be looked up, with a 404 of its own: what another sidecar
/// holds stays held.
pub async fn looked_up_behind_a_gateway(ctx: Ctx) -> Judge {
    let (w, other) = left_behind(ctx, 8).await;
    w.backend.often(Op::Job, 1.0, Fault::Status(404));
    w.pass(8_000).await;
    w.worker_of(&other, Worker::js(2).queues(&["mail"]).runs(100..400));
    w.pass(8_000 + ctx.seed * 331).await;
    w.backend.mend();
    let mut judge = w.judge_when_done(60).await;
    judge.none_lapsed();
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// A worker settles its job through another sidecar, which cannot read the row just then: the backend's refusal of an
/// id that did not claim the job is not passed on.
pub async fn settled_elsewhere_without_the_row(ctx: Ctx) -> Judge {
    let backends = [Lax::redis(), Lax::postgres(), Lax::spec(), Lax::lite()];
    let world = ctx.world().lax(pick(ctx.seed, &backends));
    let world = world.shared().limits(TWO);
    let w = world.start().await;
    let other = w.sibling().await;
    w.pass(1_500 + ctx.seed * 97).await;
    w.enqueue_all(1, |_| job()).await;
    let (one, there) = (w.hands("one"), w.hands_of("one", &other));
    let got = one.get("mail", 1).await;
    let id = got.first().map(|one| one.job.clone()).unwrap_or_default();
    let way = |with: &dyn Fn(&Way)| other.way.iter().for_each(with);
    way(&|way| way.cut(0));
    let away = pick(ctx.seed / 4, &[100, 700, 4_000]);
    let back = async {
        w.pass(away).await;
        way(&|way| way.mend());
    };
    let (status, ()) = tokio::join!(there.ack(&id), back);
    w.pass(10_000).await;
    let mut judge = w.judge().await;
    judge.that(status == 200, format!("the ACK got {status}"));
    judge.all_well()
}

/// A worker's heartbeat goes through another sidecar, which cannot read the row of its job just then: the claim is
/// extended all the same, unless the store is lost, and the heartbeat does not fail.
pub async fn beaten_elsewhere_without_the_row(ctx: Ctx) -> Judge {
    let world = ctx.world().lax(Lax::spec());
    let world = world.shared().limits(TWO);
    let (w, other) = world.pair().await;
    w.enqueue_all(1, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let got = one.get("mail", 1).await;
    let ids: Vec<String> = got.iter().map(|one| one.job.clone()).collect();
    // One call fails, and none after it.
    w.pass(ctx.seed * 37).await;
    other.way.iter().for_each(|way| way.cut(0));
    let back = async {
        w.pass(40).await;
        let is_lost = other.way.iter().any(|way| way.store.is_lost());
        other.way.iter().for_each(|way| way.mend());
        is_lost
    };
    let beat = json!({ "worker_id": "one", "active_jobs": ids });
    let (beat, is_lost) = tokio::join!(two.client.post("/ojs/v1/workers/heartbeat", &beat), back);
    let (status, beat) = (beat.map(|reply| (reply.status, reply.json()))).unwrap_or_default();
    for id in &ids {
        one.ack(id).await;
    }
    let mut judge = w.judge().await;
    let extended = beat["jobs_extended"] == json!(ids);
    judge.that(
        status == 200 && (extended || is_lost),
        format!("the heartbeat got {status} {beat}"),
    );
    judge.settled()
}

/// A job is settled through another sidecar, which cannot tell the store of it just then: its slot goes to the next
/// one when the store is back, long before its visibility is over.
pub async fn ended_elsewhere_and_unheard(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    let (w, other) = world.pair().await;
    w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let got = one.get("mail", 1).await;
    let id = got.first().map(|one| one.job.clone()).unwrap_or_default();
    let slow = Fault::LateReply(Duration::from_millis(300));
    w.backend.next(Op::Ack, 1, slow);
    let cut = async {
        w.pass(100).await;
        other.way.iter().for_each(|way| way.cut(0));
        w.pass(400 + ctx.seed * 150).await;
        other.way.iter().for_each(|way| way.mend());
    };
    let (status, ()) = tokio::join!(two.ack(&id), cut);
    let next = w.worker(Worker::js(1).queues(&["mail"]).runs(10..20));
    let done = w.until_done(5).await;
    next.stop();
    let mut judge = w.judge().await;
    judge.that(done, "the slot was not free within 5 s");
    judge.that(status == 200, format!("the ACK got {status}"));
    judge.all_well()
}

/// The backend has no word for one of the held jobs that a sidecar takes over: it has the others.
pub async fn one_cannot_be_looked_up(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(TWO);
    let w = world.lax(Lax::spec()).start().await;
    let other = w.sibling().await;
    let mut ids = w.enqueue_all(8, |_| job()).await;
    let leaves = w.hands("leaves");
    let out = leaves.get("mail", 8).await;
    leaves.ack_all(&out).await;
    ids.retain(|id| out.iter().all(|delivery| delivery.job != *id));
    // It is looked up before the others, after them, or in between.
    ids.sort();
    let (last, nth) = (ids.len() - 1, ctx.seed as usize);
    let status = [500, 502, 503, 403][nth % 4];
    w.backend
        .at_job(&ids[(nth - 1).min(last)], Fault::Status(status));
    w.pass(22_000).await;
    w.worker_of(&other, Worker::js(2).queues(&["mail"]).runs(100..400));
    let most = w.until(15, async || w.backend.ended() == 7).await;
    w.backend.mend();
    let mut judge = w.judge_when_done(60).await;
    judge.that(last > 4, format!("{} were held", last + 1));
    judge.that(most, "the others wait for it");
    judge.concurrency("k:a", 2);
    judge.all_well()
}
