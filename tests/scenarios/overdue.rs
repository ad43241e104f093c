//! Slots whose deadline has passed while the backend cannot be asked about their jobs.

use super::prelude::*;

fn limit(concurrency: usize) -> String {
    format!("[[policy]]\nname = 'p'\nkey = 'k:{{meta.tenant}}'\nconcurrency = {concurrency}")
}

/// A worker dies with all slots, and the backend hangs when it is asked about them: what is held stays held.
pub async fn held_meanwhile(ctx: Ctx) -> Judge {
    let lax = if ctx.even() {
        Lax::redis()
    } else {
        Lax::spec()
    };
    let world = ctx.world().lax(lax).limits(&limit(20));
    let w = world.settings("[hold]\nidle = '10m'").start().await;
    w.enqueue_all(30, |_| job()).await;
    let one = w.hands("one").visibility(12_000);
    let out = one.get("mail", 30).await;
    let hangs = Fault::Slow(Duration::from_secs(20));
    w.backend.often(Op::Job, 1.0, hangs);
    w.pass(60_000).await;
    w.backend.mend();
    w.workers(3, Worker::js(10).queues(&["mail"]));
    let mut judge = w.judge_when_done(120).await;
    let lapsed = judge.lapsed();
    // Those that were out do, for nobody keeps them.
    judge.that(
        lapsed <= out.len(),
        format!("{lapsed} claims lapsed, and {} were out", out.len()),
    );
    judge.concurrency("k:a", 20);
    judge.settled()
}

/// The same in a fleet, whose sidecars come to one slot and another by turns: all end in time, however long each
/// look takes and whoever else looks.
pub async fn nobody_can_ask(ctx: Ctx) -> Judge {
    let slots = 1 + (ctx.seed % 6) as usize;
    let world = ctx.world().lax(Lax::redis()).shared();
    let w = world.limits(&limit(slots)).start().await;
    let (other, third) = (w.sibling().await, w.sibling().await);
    w.pass(1_500).await;
    w.enqueue_all(16, |_| job()).await;
    let visibility = pick(ctx.seed / 6, &[30_000, 12_000, 5_000]);
    let one = w.hands("one").visibility(visibility);
    let mut out = 0;
    for _ in 0..slots {
        out += one.get("mail", 1).await.len();
        w.pass(ctx.seed * 613 % 2_000).await;
    }
    let fault = match ctx.seed % 4 {
        3 => Fault::Status(403),
        _ => Fault::Slow(Duration::from_secs(20)),
    };
    w.backend.often(Op::Job, 1.0, fault);
    // Its slots may be its siblings' to see to.
    let gone = ctx.seed % 5 > 2;
    if gone {
        w.kill_sidecar();
    }
    // Each has one more visibility, a question before and after that, and waits for those of others.
    let by = 2 * visibility / 1_000 + 34;
    let begun = Instant::now();
    let ended = w.until(by, async || w.rows().await.1 == 0).await;
    println!("the slots ended after {:?} of {by} s", begun.elapsed());
    let worker = Worker::js(2).queues(&["mail"]).runs(100..400);
    w.worker_of(&other, worker.clone());
    w.worker_of(&third, worker);
    let mut judge = w.judge_when_done(40).await;
    judge.that(out == slots, format!("{out} were out"));
    judge.that(ended, "the slots of the dead worker did not end");
    judge.concurrency("k:a", slots as i64);
    judge
}

/// A worker lives, and only its heartbeats are answered, late: its slot is its own.
pub async fn heard_of_meanwhile(ctx: Ctx) -> Judge {
    let world = ctx.world().lax(Lax::redis()).shared();
    let (w, other) = world.limits(&limit(1)).pair().await;
    w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one").visibility(12_000);
    let out = one.get("mail", 1).await;
    let hangs = Fault::Slow(Duration::from_secs(20));
    w.backend.often(Op::Job, 1.0, hangs);
    let two = w.hands_of("two", &other);
    let jobs: Vec<String> = out.iter().map(|delivery| delivery.job.clone()).collect();
    let mut stolen = 0;
    // Each comes after its deadline, while the backend is being asked.
    for _ in 0..6 {
        for job in &jobs {
            let shown = w.backend.job(job).await;
            let kept = json!({ "worker_id": shown["worker_id"], "active_jobs": [job], "visibility_timeout_ms": 90_000 });
            let path = "/ojs/v1/workers/heartbeat";
            w.backend.direct("POST", path, &kept).await;
        }
        w.pass(12_500 + ctx.seed * 613 % 5_000).await;
        one.beat(&jobs, false).await;
        stolen += two.get("mail", 1).await.len();
    }
    let mut judge = w.judge().await;
    judge.that(out.len() == 1, format!("{} were out", out.len()));
    judge.that(stolen == 0, "the slot ended while its worker was heard of");
    judge
}
