//! A sidecar that was cut off from the store that it shares, and is back.

use super::prelude::*;

/// One holds jobs that it claimed while it was cut off, and the store that is back cannot keep them: they are left to the
/// ends of their claims.
pub async fn not_kept(ctx: Ctx) -> Judge {
    let world = ctx.world().lax(Lax::spec()).shared();
    let (w, _other) = world.limits(ONE).pair().await;
    let one = w.hands("one");
    w.enqueue(job()).await;
    let out = one.get("mail", 1).await;
    w.first_way(|way| {
        way.keeps(false);
        way.cut(0);
    });
    w.pass(2_000 + ctx.seed * 130).await;
    w.enqueue_all(3, |_| job()).await;
    let none = one.get("mail", 3).await;
    let health = w.get("/ojs/v1/health").await;
    w.first_way(Way::mend);
    w.pass(2_000).await;
    w.first_way(|way| way.keeps(true));
    one.ack_all(&out).await;
    w.worker(Worker::js(2).queues(&["mail"]).runs(100..200));
    let mut judge = w.judge_when_done(90).await;
    let counts = (out.len(), none.len());
    judge.that(counts == (1, 0), format!("{counts:?} started"));
    let held = &health["throttle"]["held"];
    judge.that(held == 3, format!("{held} were held"));
    judge.all_well()
}
