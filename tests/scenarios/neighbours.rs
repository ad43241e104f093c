//! Keys that share a subqueue. A setting may never be worse than none: without subqueues a job whose key has room starts
//! within a second where no more than some hundred jobs stand before it, and so it must with them.

use std::collections::HashSet;

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;
use ojs_throttle::policy::subqueue::Flow;

/// The workers that look for a start while nothing else may.
fn look_on(w: &World) {
    w.workers(16, Worker::js(10).queues(&["mail"]).runs(20..60));
}

/// Takes the slots of these tenants with jobs that never end.
async fn take_slots(w: &World, tenants: &[String]) {
    let first = w.hands("first").visibility(3_600_000);
    let taken = w
        .until(30, async || {
            first.get("mail", tenants.len()).await;
            w.ledger.open().deliveries.len() >= tenants.len()
        })
        .await;
    assert!(taken, "no slots");
}

/// A hundred tenants have a job out and two that wait. Of a hundred new ones each starts within a second, also after a
/// restart of the sidecar, which then knows nobody's jobs.
pub async fn many_beside_many(ctx: Ctx) -> Judge {
    const EACH: usize = 100;
    let w = ctx
        .limits(&format!("{SLOT}{SPLIT}"))
        .lax(Lax::spec())
        .start()
        .await;
    let shut: Vec<String> = (0..EACH)
        .map(|nth| format!("s{}-{nth}", ctx.seed))
        .collect();
    w.enqueue_all(EACH, |nth| of(&shut[nth])).await;
    take_slots(&w, &shut).await;
    w.enqueue_all(2 * EACH, |nth| of(&shut[nth % EACH])).await;
    let restarts = ctx.seed.is_multiple_of(2);
    if restarts {
        w.restart().await;
    }
    look_on(&w);
    w.pass(6_000).await;
    let begun = Instant::now();
    w.enqueue_all(EACH, |nth| of(&format!("n{}-{nth}", ctx.seed)).label("new"))
        .await;
    w.pass(4_000).await;
    let mut judge = w.judge().await;
    let starts = judge.starts("new");
    judge.equal("new ones started", starts.len(), EACH);
    let took = starts.last().map_or(Duration::MAX, |at| *at - begun);
    println!("restarts: {restarts}, the new ones took {took:?}");
    judge.soon_took("the new ones took", took, 1_000);
    for tenant in &shut {
        judge.concurrency(&format!("crm:{tenant}"), 1);
    }
    judge
}

/// One tenant has a job out, and 1, 10 or 31 that wait. Another one comes to the same subqueue, and starts at once.
pub async fn two_in_one(ctx: Ctx) -> Judge {
    let waiting = [1, 10, 31][ctx.seed as usize % 3];
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let shut = format!("s{}", ctx.seed);
    let place = |tenant: &str| Flow::of(&format!("crm:{tenant}"), None).subqueue;
    let mut names = (0..).map(|nth| format!("n{}-{nth}", ctx.seed));
    let new = names.find(|name| place(name) == place(&shut)).unwrap();
    w.enqueue(of(&shut)).await;
    take_slots(&w, std::slice::from_ref(&shut)).await;
    w.enqueue_all(waiting, |_| of(&shut)).await;
    let restarts = ctx.seed.is_multiple_of(2);
    if restarts {
        w.restart().await;
    }
    look_on(&w);
    w.pass(6_000).await;
    let begun = Instant::now();
    w.enqueue(of(&new).label("new")).await;
    w.pass(2_000).await;
    let mut judge = w.judge().await;
    let starts = judge.starts("new");
    let took = starts.first().map_or(Duration::MAX, |at| *at - begun);
    println!("{waiting} in front, restarts: {restarts}, took {took:?}");
    judge.soon_took("the new one took", took, 300);
    let places: HashSet<String> = judge.places().into_values().collect();
    judge.equal("subqueues", places.len(), 1);
    judge
}

/// Jobs are cancelled at the backend, around the sidecar. What is told of the queue is right within two seconds, and a
/// producer may fill their places.
pub async fn cancelled_at_the_backend(ctx: Ctx) -> Judge {
    const BOUND: usize = 20;
    let bound = format!("{SPLIT}max_depth = {BOUND}\n");
    let w = ctx.limits(&format!("{SLOT}{bound}")).start().await;
    let of_round = |round: usize, nth: usize| of(&format!("c{round}-{nth}")).label("all");
    let mut accepted = Vec::new();
    let mut told = Vec::new();
    for round in 0..4 {
        let mut ids = Vec::new();
        for nth in 0..15 {
            ids.push(w.enqueue(of_round(round, nth)).await);
        }
        ids.retain(|id| !id.is_empty());
        accepted.push(ids.len());
        for id in &ids {
            let path = format!("/ojs/v1/jobs/{id}");
            w.backend.direct("DELETE", &path, &json!({})).await;
        }
        w.pass(2_000).await;
        let stats = w.get("/ojs/v1/queues/mail/stats").await;
        told.push(stats.to_string());
    }
    let mut judge = w.judge().await;
    judge.equal("accepted", accepted, vec![15; 4]);
    let wrong = told.iter().find(|told| !told.contains("\"available\":0"));
    judge.that(wrong.is_none(), format!("told {wrong:?}"));
    judge
}

/// Jobs that wait for a time count once for the bound, and are told as scheduled.
pub async fn scheduled_ones_count_once(ctx: Ctx) -> Judge {
    let bound = format!("{SPLIT}max_depth = 20\n");
    let lax = if ctx.seed.is_multiple_of(2) {
        Lax::redis()
    } else {
        Lax::spec()
    };
    let w = ctx.limits(&format!("{SLOT}{bound}")).lax(lax).start().await;
    w.enqueue_all(15, |nth| {
        of(&format!("l{nth}")).option("delay_until", json!("+PT1H"))
    })
    .await;
    w.pass(1_000).await;
    let stats = w.get("/ojs/v1/queues/mail/stats").await.to_string();
    for nth in 0..10 {
        w.enqueue(of(&format!("n{nth}"))).await;
    }
    let mut judge = w.judge().await;
    judge.that(stats.contains("\"available\":0"), stats);
    let statuses = judge.records.produced.iter().map(|p| p.status);
    let accepted = statuses.filter(|status| *status == 201).count();
    judge.equal("accepted", accepted, 20);
    judge
}

/// Two sidecars, or three, each with producers of many tenants, and one bound for all: the backend never has many more
/// jobs than that.
pub async fn one_bound_for_a_fleet(ctx: Ctx) -> Judge {
    const BOUND: usize = 300;
    let sidecars = 2 + ctx.seed as usize % 2;
    let bound = format!("{SPLIT}max_depth = {BOUND}\n");
    let world = ctx.world().shared();
    let w = world.limits(&format!("{SLOT}{bound}")).start().await;
    let mut siblings = Vec::new();
    for _ in 1..sidecars {
        siblings.push(w.sibling().await);
    }
    w.workers(1, Worker::js(2).queues(&["mail"]).runs(100..300));
    w.pass(2_000).await;
    for round in 0..40 {
        for nth in 0..10 {
            let tenant = format!("t{}", (round * 10 + nth) % 200);
            w.enqueue(of(&tenant)).await;
            for (whose, sibling) in siblings.iter().enumerate() {
                w.enqueue_at(sibling, of(&format!("{tenant}-{whose}")))
                    .await;
            }
        }
        w.pass(100).await;
    }
    let mut judge = w.judge().await;
    let stored = judge.events.iter().map(|(at, event)| (*at, event));
    let stored = stored.filter(|(_, event)| event.kind == EventKind::Stored);
    let came = stored.map(|(at, _)| (at, 1));
    let left = judge.records.deliveries.iter().map(|d| (d.at, -1));
    let mut moves: Vec<(Instant, i64)> = came.chain(left).collect();
    moves.sort();
    let (mut depth, mut most) = (0, 0);
    for (_, by) in moves {
        depth += by;
        most = most.max(depth);
    }
    println!("{sidecars} sidecars: at most {most} of {BOUND}");
    let bound = BOUND as i64;
    judge.that(
        most <= bound + bound / 20,
        format!("{most} of {BOUND} waited"),
    );
    judge.that(
        most >= bound * 9 / 10,
        format!("only {most} of {BOUND} were let in"),
    );
    judge
}
