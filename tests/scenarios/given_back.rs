//! Held jobs that go back to the backend because nobody asks for them.

use super::prelude::*;

/// So many jobs that the backend takes much longer to take all of them back than their claims last: the others
/// stay under heartbeats, and what a worker that comes meanwhile has is not given back.
pub async fn slowly(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .lax(Lax::redis())
        .limits("[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 3")
        .settings("[hold]\nidle = '1s'")
        .start()
        .await;
    let keys: Vec<String> = (0..7).map(|n| format!("k:{n}")).collect();
    let job = |n| {
        let job = Job::new("a.b").queue("mail").label(&format!("k:{}", n % 7));
        job.meta("tenant", json!(format!("{}", n % 7)))
    };
    w.enqueue_all(300, job).await;
    let first = w.hands("first").visibility(5_000);
    // It looks far past those that may not start.
    let out = first.get("mail", 40).await;
    let held = w.active("mail").await;
    first.ack_all(&out).await;
    let slow = match ctx.seed % 4 {
        // As good as hung.
        0 => Fault::Slow(Duration::from_secs(20)),
        _ => Fault::Slow(Duration::from_millis(50)),
    };
    w.backend.often(Op::Nack, 1.0, slow);
    w.pass(4_000 + ctx.seed * 700).await;
    w.worker(
        Worker::js(20)
            .queues(&["mail"])
            .runs(5_000..12_000)
            .visibility(30_000),
    );
    let mut judge = w.judge_when_done(400).await;
    judge.that(held > 250, format!("only {held} jobs were claimed"));
    let ended = |kind| {
        let all = judge.claims.iter();
        all.filter(move |claim| claim.end.is_some_and(|(_, end)| end == kind))
    };
    let back = ended(EventKind::Requeued).count();
    let unstarted = ended(EventKind::Requeued).filter(|claim| claim.delivered.is_empty());
    let with_a_worker = back - unstarted.count();
    let lapsed = ended(EventKind::Expired).count();
    let hung = ctx.seed.is_multiple_of(4);
    judge.that(back > 0 || hung, "nothing was given back");
    judge.equal(
        "jobs were given back while a worker had them",
        with_a_worker,
        0,
    );
    judge.that(
        lapsed == 0 || hung,
        format!("the claims of {lapsed} held jobs lapsed"),
    );
    for key in keys {
        judge.concurrency(&key, 3);
    }
    judge.all_well()
}

fn job() -> Job {
    let job = Job::new("a.b").queue("mail").label("k:a");
    job.meta("tenant", json!("a"))
}

/// The backend takes a job back, nobody hears of it, and another claims it in the same attempt: it is not handed
/// out here as well.
pub async fn unheard(ctx: Ctx) -> Judge {
    let lax = match ctx.even() {
        true => Lax::redis(),
        false => Lax::postgres(),
    };
    let world = ctx.world().lax(lax).limits(ONE);
    let w = world.settings("[hold]\nidle = '1s'").start().await;
    let ids = w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 2).await;
    let held = ids.iter().find(|id| out.iter().all(|one| one.job != **id));
    let held = held.cloned().unwrap_or_default();
    let lost = match ctx.seed / 2 % 2 {
        0 => Fault::ReplyLost,
        _ => Fault::ReplyCut,
    };
    w.backend.next(Op::Nack, 1, lost);
    let mut elsewhere = Vec::new();
    while elsewhere.is_empty() && w.begun.elapsed() < Duration::from_secs(5) {
        w.pass(10).await;
        elsewhere = w.backend.fetch("direct", 1).await;
    }
    one.ack_all(&out).await;
    let mut twice = 0;
    for _ in 0..5 {
        twice += one.get("mail", 2).await.len();
        w.pass(700).await;
    }
    let done = json!({ "job_id": held, "worker_id": "direct" });
    let path = "/ojs/v1/workers/ack";
    w.backend.direct("POST", path, &done).await;
    let mut judge = w.judge().await;
    judge.equal("claimed elsewhere", elsewhere, [held]);
    judge.that(twice == 0, "it went out a second time");
    judge.no_slot_left();
    judge
}

/// A backend that takes jobs back and does not say so: one is let go at a time, and the others are held on.
pub async fn in_doubt(ctx: Ctx) -> Judge {
    let world = ctx.world().lax(Lax::redis()).limits(ONE);
    let w = world.settings("[hold]\nidle = '1s'").start().await;
    w.enqueue_all(5, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 5).await;
    w.backend.often(Op::Nack, 1.0, Fault::ReplyLost);
    w.pass(3_000 + ctx.seed * 200).await;
    let left = w.active("mail").await;
    w.backend.mend();
    one.ack_all(&out).await;
    w.worker(Worker::js(2).queues(&["mail"]).runs(50..100));
    let mut judge = w.judge_when_done(60).await;
    judge.that(left == 4, format!("{left} are claimed still"));
    judge.concurrency("k:a", 1);
    judge.settled()
}

/// Giving back fails while a sidecar is alone; then comes another, with the only worker: it has what is held.
pub async fn in_vain(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    let w = world.settings("[hold]\nidle = '1s'").start().await;
    w.enqueue_all(4, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 4).await;
    w.backend.often(Op::Nack, 1.0, Fault::Status(503));
    w.pass(2_000 + ctx.seed * 131).await;
    let other = w.sibling().await;
    w.pass(3_000).await;
    w.backend.mend();
    one.ack_all(&out).await;
    w.worker_of(&other, Worker::js(2).queues(&["mail"]).runs(50..100));
    let mut judge = w.judge_when_done(20).await;
    judge.concurrency("k:a", 1);
    judge.all_well()
}
