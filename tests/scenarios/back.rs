//! A sidecar that was cut off from the store that it shares, and is back: what siblings have taken over meanwhile
//! is theirs, and what it held is counted and told as it was.

use std::time::Duration;

use ojs_throttle::backend::Lax;
use ojs_throttle::limit::Key;
use ojs_throttle::store::Change;
use ojs_throttle::store::guard::OnStoreError;

use crate::harness::{Ctx, Fault, Judge, Lines, Op, Sidecar, Way, Worker, World};
use crate::job;

const LOST: &str = "ojs_throttle_hold_lost_total";

fn slots(n: u32) -> String {
    format!("[[policy]]\nname = 'p'\nkey = 'k:{{meta.tenant}}'\nconcurrency = {n}")
}

/// Two sidecars that know each other.
async fn two(ctx: Ctx, lax: Lax, mode: OnStoreError, limits: &str) -> (World, Sidecar) {
    let w = (ctx.world().lax(lax).shared(mode).limits(limits))
        .start()
        .await;
    let other = w.sibling().await;
    w.pass(1_500).await;
    (w, other)
}

/// No job of the key starts for so long, in milliseconds.
async fn shut(other: &Sidecar, ms: u64) {
    let way = other.way.as_ref().expect("a shared store");
    let shut = Change::Shut {
        key: Key::new("k:a").expect("a key"),
        until: way.store.now().plus(ms * 1_000),
        at_least: false,
        probe: None,
    };
    assert_eq!(way.store.set(shut).await, Ok(true));
}

/// One holds jobs of a key that is shut, and is cut off for so long that its sibling takes them over and begins to
/// run them; then it is back, with workers that ask all the time.
pub async fn taken_over_meanwhile(ctx: Ctx) -> Judge {
    let modes = [OnStoreError::Share, OnStoreError::Closed];
    let mode = modes[(ctx.seed % 2) as usize];
    let backends = [Lax::redis(), Lax::postgres(), Lax::spec()];
    let lax = backends[(ctx.seed / 2 % 3) as usize].clone();
    let (w, other) = two(ctx, lax, mode, &slots(6)).await;
    shut(&other, 60_000).await;
    w.enqueue_all(20, |_| job()).await;
    w.workers(3, Worker::js(1).queues(&["mail"]).runs(10..30));
    w.pass(2_500).await;
    let held = w.rows().await.0;
    w.first_way(|way| way.cut(0));
    // Who has said nothing for that long is dead, and what it has not looked at since may be had.
    shut(&other, 10_200).await;
    w.worker_of(&other, Worker::js(6).queues(&["mail"]).runs(200..1_500));
    w.pass(10_900 + ctx.seed * 113).await;
    let ran = w.ledger.open().deliveries.len();
    w.first_way(Way::mend);
    w.until_done(60).await;
    let counted = w.metric(LOST).await;
    let mut judge = w.judge().await;
    judge.that(held > 15, format!("{held} were held"));
    judge.that(
        (1..18).contains(&ran),
        format!("{ran} had started when it was back"),
    );
    // Closed, it asks the backend about them while it cannot know of siblings.
    judge.that(
        counted == 0.0 || mode == OnStoreError::Closed,
        format!("{counted} are counted as lost"),
    );
    judge.concurrency("k:a", 6);
    judge.each_ran_once();
    judge.settled();
    judge
}

/// One holds jobs and loses the store twice, each time for a moment, and then for so long that their claims lapse, for
/// nobody takes them over: that they wait is said once for each loss, also where some come back late from a worker that
/// asks, and each that lapses is counted.
pub async fn told_once_for_each_loss(ctx: Ctx) -> Judge {
    let (w, _other) = two(ctx, Lax::spec(), OnStoreError::Share, &slots(2)).await;
    let (lines, _listening) = Lines::listen();
    w.enqueue_all(8, |_| job()).await;
    let one = w.hands("one");
    let out = one.fetch(&["mail"], 8).await.unwrap_or_default();
    let (mut said, mut started) = (Vec::new(), 0);
    for away in [4_000, 6_000, 40_000] {
        // What was heard of them is old by then, and the backend is asked.
        w.pass(9_000 + ctx.seed * 37).await;
        if let Some(next) = out.get(said.len()) {
            one.ack(&next.job).await;
        }
        let slow = Fault::Slow(Duration::from_secs(3));
        w.backend.next(Op::Heartbeat, 1, slow);
        let lost = async {
            w.pass(10).await;
            w.first_way(|way| way.cut(0));
            w.pass(away).await;
            w.first_way(Way::mend);
        };
        let (got, ()) = tokio::join!(one.fetch(&["mail"], 1), lost);
        started += got.map_or(0, |got| got.len());
        said.push(lines.with("held jobs wait for the store").len());
    }
    let counted = w.metric(LOST).await;
    w.worker(Worker::js(2).queues(&["mail"]).runs(100..200));
    let mut judge = w.judge_when_done(90).await;
    judge.that(started == 0, format!("{started} started without the store"));
    judge.that(said == [1, 2, 3], format!("it was said {said:?} times"));
    let lapsed = judge.lapsed();
    judge.that(lapsed > 3, format!("{lapsed} claims lapsed"));
    judge.that(
        counted == lapsed as f64,
        format!("{lapsed} claims lapsed, and {counted} are counted"),
    );
    judge.each_ran_once();
    judge.settled();
    judge
}

/// One holds jobs that it claimed while it was cut off, and the store that is back cannot keep them: no sibling is said
/// to have taken them over.
pub async fn not_kept(ctx: Ctx) -> Judge {
    let (w, _other) = two(ctx, Lax::spec(), OnStoreError::Share, &slots(1)).await;
    let (lines, _listening) = Lines::listen();
    let one = w.hands("one");
    w.enqueue(job()).await;
    let out = one.fetch(&["mail"], 1).await.unwrap_or_default();
    w.first_way(|way| {
        way.keeps(false);
        way.cut(0);
    });
    w.pass(2_000 + ctx.seed * 130).await;
    w.enqueue_all(3, |_| job()).await;
    let none = one.fetch(&["mail"], 3).await.unwrap_or_default();
    let health = w.get("/ojs/v1/health").await;
    w.first_way(Way::mend);
    w.pass(2_000).await;
    let by_siblings = lines.with("siblings took over").len();
    let said = lines.with("held jobs are not in the store").len();
    w.first_way(|way| way.keeps(true));
    for delivery in &out {
        one.ack(&delivery.job).await;
    }
    w.worker(Worker::js(2).queues(&["mail"]).runs(100..200));
    let mut judge = w.judge_when_done(90).await;
    let counts = (out.len(), none.len());
    judge.that(counts == (1, 0), format!("{counts:?} started"));
    let held = &health["throttle"]["held"];
    judge.that(held == 3, format!("{held} were held"));
    judge.that(
        (by_siblings, said) == (0, 1),
        format!("said of siblings: {by_siblings}, of the store: {said}"),
    );
    judge.each_ran_once();
    judge.settled();
    judge
}

/// A start is granted, and its answer comes when the store was away and is back: so it is undone, but a cancel through
/// the sibling has ended its row by then, and nothing is told of that. The job leaves the hold, and the next one starts.
pub async fn undone_when_its_row_has_ended(ctx: Ctx) -> Judge {
    let lax = [Lax::redis(), Lax::spec()][(ctx.seed % 2) as usize].clone();
    let (w, other) = two(ctx, lax, OnStoreError::Share, &slots(1)).await;
    let ids = w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let out = one.fetch(&["mail"], 2).await.unwrap_or_default();
    for delivery in &out {
        one.ack(&delivery.job).await;
    }
    let held = ids.iter().find(|id| out.iter().all(|one| one.job != **id));
    let path = format!("/ojs/v1/jobs/{}", held.cloned().unwrap_or_default());
    w.first_way(|way| way.late_and_cut(Duration::from_secs(5)));
    let meanwhile = async {
        w.pass(3_000 + ctx.seed * 100).await;
        w.first_way(|way| {
            way.mend();
            way.deafen();
        });
        w.pass(1_000).await;
        let cancelled = two.client.call("DELETE", &path, "".into()).await;
        cancelled.map_or(0, |reply| reply.status)
    };
    let begun = w.begun.elapsed();
    let (got, cancelled) = tokio::join!(one.fetch(&["mail"], 1), meanwhile);
    let took = w.begun.elapsed() - begun;
    w.pass(1_000).await;
    let health = w.get("/ojs/v1/health").await;
    w.enqueue(job()).await;
    let next = one.fetch(&["mail"], 1).await.unwrap_or_default();
    for delivery in &next {
        one.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    judge.that(
        got.is_ok_and(|got| got.is_empty()) && took.as_secs() >= 5,
        format!("the answer came after {took:?}"),
    );
    judge.that(cancelled == 200, format!("the cancel got {cancelled}"));
    judge.that(
        health["throttle"]["held"] == 0,
        format!("after that: {health}"),
    );
    judge.that(next.len() == 1, "the next one finds no slot");
    judge.each_ran_once();
    judge.settled();
    judge
}
