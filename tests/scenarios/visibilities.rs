//! Held jobs of one lane that go out for different visibilities: each has its own, and no other has it.

use tokio::join;

use super::prelude::*;

/// A backend where claims count attempts.
async fn world(ctx: Ctx) -> World {
    ctx.world().lax(Lax::spec()).limits(ONE).start().await
}

/// A job that the backend discards if its claim lapses.
fn once() -> Job {
    job().option("retry", json!({ "max_attempts": 1 }))
}

/// State and attempt of jobs, as the backend has them.
async fn states(w: &World, ids: &[String]) -> Vec<(String, i64)> {
    let mut states = Vec::new();
    for id in ids {
        let shown = w.backend.job(id).await;
        let state = shown["state"].as_str().unwrap_or_default().to_owned();
        states.push((state, shown["attempt"].as_i64().unwrap_or(-1)));
    }
    states
}

/// A job that goes out for a short visibility, its own or the worker's, leaves the others their claims.
pub async fn short_beside_others(ctx: Ctx) -> Judge {
    // Asked for all, more are proven for the short time than start.
    let (short, count) = pick(
        ctx.seed / 2,
        &[(600, 1), (1_000, 5), (3_000, 1), (8_000, 5)],
    );
    let w = world(ctx).await;
    w.enqueue(job()).await;
    let (second, two) = match ctx.even() {
        true => {
            let its_own = job().option("visibility_timeout_ms", json!(short));
            (its_own, w.hands("two"))
        }
        false => (job(), w.hands("two").visibility(short)),
    };
    w.enqueue(second).await;
    let others = w.enqueue_all(4, |_| once()).await;
    let one = w.hands("one");
    let out = one.get("mail", 6).await;
    w.pass(800 + ctx.seed * 90).await;
    one.ack_all(&out).await;
    let next = two.get("mail", count).await;
    two.ack_all(&next).await;
    w.pass(short + 1_500).await;
    let held = states(&w, &others).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let done = w.until_done(60).await;
    let ended = states(&w, &others).await;
    let mut judge = w.judge().await;
    judge.that(done, "not all were done");
    judge.that(out.len() == 1, format!("{} went first", out.len()));
    judge.that(next.len() == 1, format!("{} went then", next.len()));
    let is =
        |states: &[(String, i64)], state: &str| states.iter().all(|of| *of == (state.into(), 1));
    judge.that(is(&held, "active"), format!("held jobs were {held:?}"));
    judge.that(is(&ended, "completed"), format!("they ended as {ended:?}"));
    judge.all_well()
}

/// Where heartbeats extend by whole seconds, and by 30 for less than one, nothing that is held lapses.
pub async fn in_whole_seconds(ctx: Ctx) -> Judge {
    let mut lax = ctx.pick(&[Lax::redis(), Lax::spec()]);
    lax.beats_whole_seconds = true;
    let short = pick(ctx.seed / 2, &[600, 1_000, 2_000, 2_500]);
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nthrottle = { interval = '4s' }";
    let w = ctx.world().lax(lax).limits(limits).start().await;
    w.enqueue_all(8, |_| job()).await;
    let worker = Worker::js(5).queues(&["mail"]).runs(50..300);
    w.workers(2, worker.visibility(short));
    let mut judge = w.judge_when_done(120).await;
    judge.none_lapsed();
    judge.spacing("k:a", Duration::from_secs(4), 1);
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled()
}

/// A job goes out for a long visibility, and the sidecar dies: the backend has those that never ran back as soon as ever.
pub async fn long_beside_others(ctx: Ctx) -> Judge {
    let w = world(ctx).await;
    w.enqueue_all(2, |_| job()).await;
    let others = w.enqueue_all(4, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two").visibility(600_000));
    let out = one.get("mail", 6).await;
    w.pass(800 + ctx.seed * 90).await;
    one.ack_all(&out).await;
    // Asked for all, more are proven for the long time than start, and that is mended soon.
    let (count, pass) = ctx.pick(&[(1, 0), (5, 2_000)]);
    let next = two.get("mail", count).await;
    w.pass(pass + ctx.seed * 150).await;
    w.kill_sidecar();
    w.pass(31_000).await;
    let left = states(&w, &others).await;
    w.start_sidecar().await;
    two.ack_all(&next).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(next.len() == 1, format!("{} went out", next.len()));
    let are_back = left.iter().all(|(state, _)| state != "active");
    judge.that(are_back, format!("after the death they are {left:?}"));
    judge.all_well()
}

/// The heartbeat that shortens a held job's claim is carried out and not answered: the job does not go out, and keeps
/// its claim.
pub async fn short_and_unheard(ctx: Ctx) -> Judge {
    let w = world(ctx).await;
    w.enqueue(job()).await;
    let others = w.enqueue_all(2, |_| once()).await;
    let (one, two) = (w.hands("one"), w.hands("two").visibility(4_000));
    let out = one.get("mail", 3).await;
    w.pass(800 + ctx.seed * 90).await;
    one.ack_all(&out).await;
    w.backend.often(Op::Heartbeat, 1.0, Fault::ReplyLost);
    w.backend.often(Op::Job, 1.0, Fault::Status(503));
    let next = two.get("mail", 1).await;
    w.backend.mend();
    w.pass(5_500).await;
    let held = states(&w, &others).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(next.is_empty(), "one went out of which nobody had a word");
    let is_kept = |(state, attempt): &(String, i64)| state == "active" && *attempt == 1;
    judge.that(held.iter().all(is_kept), format!("held jobs were {held:?}"));
    judge.all_well()
}

/// A heartbeat for held jobs is carried out after one of them has gone out for longer than held jobs get: its worker
/// has it for as long as it asked for.
pub async fn long_beside_a_late_heartbeat(ctx: Ctx) -> Judge {
    const LATE: Fault = Fault::Slow(Duration::from_secs(1));
    let w = world(ctx).await;
    w.enqueue_all(4, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two").visibility(120_000));
    let kind = ctx.seed % 3;
    let claims = if kind == 0 { &one } else { &two };
    let out = claims.get("mail", 4).await;
    if kind == 0 {
        w.pass(2_000 + ctx.seed * 90).await;
    }
    w.backend.next(Op::Heartbeat, 1, LATE);
    if kind > 0 {
        // It keeps what was claimed for longer than it need be.
        let is_sent = async || {
            let seen = w.backend.seen();
            seen.iter().any(|sent| sent.path.ends_with("/heartbeat"))
        };
        w.until(5, is_sent).await;
    }
    if kind == 2 {
        // It is over while the job that will go out is in hand.
        let late = Fault::LateReply(Duration::from_secs(2));
        w.backend.next(Op::Heartbeat, 1, late);
    }
    claims.ack_all(&out).await;
    let next = async {
        w.pass(200).await;
        two.get("mail", 1).await
    };
    let next = match kind {
        // It is one FETCH's, and names the job that another one gets.
        0 => {
            let (first, next) = join!(one.fetch(&["mail"], 1), next);
            [first.unwrap_or_default(), next].concat()
        }
        _ => next.await,
    };
    w.pass(80_000 + ctx.seed * 300).await;
    for delivery in &next {
        let whose = if delivery.worker == "one" { &one } else { &two };
        whose.ack(&delivery.job).await;
    }
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(out.len() == 1, format!("{} went first", out.len()));
    judge.that(next.len() == 1, format!("{} went then", next.len()));
    judge.none_lapsed();
    judge.all_well()
}

/// More jobs are proven for a very short time than start: the others keep their claims, also where that time is over
/// before the next look at what is held.
pub async fn very_short_beside_others(ctx: Ctx) -> Judge {
    let w = world(ctx).await;
    let (one, two) = (w.hands("one"), w.hands("two").visibility(500));
    w.enqueue(job()).await;
    let others = w.enqueue_all(6, |_| once()).await;
    let mut out = one.get("mail", 7).await;
    for _ in 0..3 {
        for delivery in &out {
            let whose = if delivery.worker == "one" { &one } else { &two };
            whose.ack(&delivery.job).await;
        }
        w.pass(1_100 + ctx.seed * 41).await;
        out = two.get("mail", 5).await;
    }
    two.ack_all(&out).await;
    w.pass(3_000).await;
    let held = states(&w, &others).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    let first = |(state, attempt): &(String, i64)| state != "discarded" && *attempt == 1;
    judge.that(held.iter().all(first), format!("held jobs were {held:?}"));
    judge.none_lapsed();
    judge.all_well()
}
