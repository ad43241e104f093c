//! Held jobs that go back to the backend because nobody asks for them.

use std::time::Duration;

use ojs_throttle::backend::{EventKind, Lax};
use serde_json::json;

use crate::harness::{Ctx, Fault, Job, Judge, Op, Worker};

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
    let out = first.fetch(&["mail"], 40).await.unwrap_or_default();
    let held = w.active("mail").await;
    for delivery in &out {
        first.ack(&delivery.job).await;
    }
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
    w.until_done(400).await;
    let mut judge = w.judge().await;
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
    judge.that(
        with_a_worker == 0,
        format!("{with_a_worker} jobs were given back while a worker had them"),
    );
    judge.that(
        lapsed == 0 || hung,
        format!("the claims of {lapsed} held jobs lapsed"),
    );
    for key in keys {
        judge.concurrency(&key, 3);
    }
    judge.each_ran_once();
    judge.settled();
    judge
}
