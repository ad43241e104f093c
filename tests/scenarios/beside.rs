//! Heartbeats that go to the backend in several calls: one call that hangs keeps none of the others back.

use super::prelude::*;

/// Each of these makes a heartbeat of its own, for each wants another time.
const VISIBILITIES: [u64; 4] = [31_000, 41_000, 51_000, 61_000];

/// How long one call hangs.
const HANGS: Duration = Duration::from_secs(6);

async fn four(ctx: Ctx, slots: u32) -> World {
    let limits =
        format!("[[policy]]\nname = 'p'\nkey = 'k:{{meta.tenant}}'\nconcurrency = {slots}");
    ctx.world().lax(Lax::spec()).limits(&limits).start().await
}

/// How many heartbeats the backend got within moments.
fn beats(w: &World, from: Instant) -> usize {
    let soon = from + Duration::from_millis(100);
    let seen = w.backend.seen().into_iter();
    let beats = seen.filter(|sent| sent.path.ends_with("/heartbeat") && sent.at >= from);
    beats.filter(|beat| beat.at <= soon).count()
}

/// A worker's heartbeat names jobs that were claimed for it.
pub async fn of_a_worker(ctx: Ctx) -> Judge {
    let w = four(ctx, 4).await;
    w.enqueue_all(VISIBILITIES.len(), |_| job()).await;
    let mut out = Vec::new();
    for visibility in VISIBILITIES {
        let one = w.hands("one").visibility(visibility);
        let got = one.get("mail", 1).await;
        out.extend(got.into_iter().map(|delivery| delivery.job));
    }
    w.pass(ctx.seed * 900).await;
    let (one, from) = (w.hands("one"), Instant::now());
    // The first is the worker's own.
    w.backend
        .next(Op::Heartbeat, 1, Fault::Slow(Duration::ZERO));
    w.backend.next(Op::Heartbeat, 1, Fault::Slow(HANGS));
    let status = one.beat(&out, true).await;
    let took = from.elapsed();
    let beats = beats(&w, from);
    for job in &out {
        one.ack(job).await;
    }
    let mut judge = w.judge().await;
    judge.that(out.len() == 4, format!("{} were out", out.len()));
    judge.that(status == 200, format!("the heartbeat got {status}"));
    judge.that(took >= HANGS, format!("none hung: {took:?}"));
    judge.that(beats == 5, format!("{beats} of 5 were sent at once"));
    judge.all_well()
}

/// Its own one, which names no job, hangs for longer than it waits: its jobs are kept.
pub async fn of_a_worker_whose_own_hangs(ctx: Ctx) -> Judge {
    let w = four(ctx, 4).await;
    w.enqueue_all(4, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 4).await;
    let out: Vec<String> = out.into_iter().map(|delivery| delivery.job).collect();
    w.pass(22_000 + ctx.seed * 900).await;
    let from = Instant::now();
    w.backend.next(Op::Heartbeat, 1, Fault::Slow(4 * HANGS));
    let status = one.beat(&out, true).await;
    let took = from.elapsed();
    w.pass(9_000).await;
    for job in &out {
        one.ack(job).await;
    }
    let mut judge = w.judge().await;
    judge.that(out.len() == 4, format!("{} were out", out.len()));
    judge.that(status == 200, format!("the heartbeat got {status}"));
    let waited = Duration::from_millis(10_500);
    judge.that(took > HANGS && took < waited, format!("it took {took:?}"));
    judge.none_lapsed();
    judge.all_well()
}

/// The same, and it names more kinds of jobs than heartbeats are sent at once, and hangs up: all of them are kept.
pub async fn of_a_worker_that_hangs_up(ctx: Ctx) -> Judge {
    let w = four(ctx, 20).await;
    w.enqueue_all(20, |_| job()).await;
    let mut out = Vec::new();
    for nth in 0..20 {
        let one = w.hands("one").visibility(31_000 + nth * 1_000);
        let got = one.get("mail", 1).await;
        out.extend(got.into_iter().map(|delivery| delivery.job));
    }
    w.pass(22_000).await;
    let (one, from) = (w.hands("one"), Instant::now());
    w.backend.next(Op::Heartbeat, 1, Fault::Slow(4 * HANGS));
    let patience = Duration::from_millis(50 + ctx.seed * 700);
    let given_up = timeout(patience, one.beat(&out, true)).await;
    // Without a heartbeat the claims of all of them are over by then.
    w.pass(29_500 - u64::try_from(from.elapsed().as_millis()).unwrap_or(0))
        .await;
    for job in &out {
        one.ack(job).await;
    }
    let mut judge = w.judge().await;
    judge.that(out.len() == 20, format!("{} were out", out.len()));
    judge.that(given_up.is_err(), "it was answered before that");
    judge.none_lapsed();
    judge.all_well()
}

/// Held jobs are asked about before they go out.
pub async fn of_held_jobs(ctx: Ctx) -> Judge {
    let w = four(ctx, 4).await;
    let one = w.hands("one");
    w.enqueue_all(4, |_| job()).await;
    let out = one.get("mail", 4).await;
    for visibility in VISIBILITIES {
        let own = job().option("visibility_timeout_ms", json!(visibility));
        let limit = json!({ "key": "own", "concurrency": 4 });
        w.enqueue(own.option("rate_limit", limit)).await;
    }
    let none = one.get("mail", 4).await;
    let held = w.rows().await.0;
    // What the backend said of them is old by then; none of them is due to be kept alive.
    w.pass(2_000 + ctx.seed * 130).await;
    one.ack_all(&out).await;
    w.backend.next(Op::Heartbeat, 1, Fault::Slow(HANGS));
    let from = Instant::now();
    let got = one.get("mail", 4).await;
    let took = from.elapsed();
    let beats = beats(&w, from);
    one.ack_all(&got).await;
    let mut judge = w.judge_when_done(30).await;
    judge.that(none.is_empty() && held == 4, format!("{held} were held"));
    judge.that(took >= HANGS, format!("none hung: {took:?}"));
    judge.that(beats == 4, format!("{beats} of 4 were sent at once"));
    judge.that(got.len() == 4, format!("{} started", got.len()));
    judge.all_well()
}
