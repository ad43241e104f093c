//! A sidecar that was cut off from the store that it shares, and is back.

use ojs_throttle::backend::Lax;
use ojs_throttle::store::guard::OnStoreError;

use super::job;
use crate::harness::{Ctx, Judge, Way, Worker};

/// One holds jobs that it claimed while it was cut off, and the store that is back cannot keep them: they are left to the
/// ends of their claims.
pub async fn not_kept(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 1";
    let world = ctx.world().lax(Lax::spec()).shared(OnStoreError::Share);
    let w = world.limits(limits).start().await;
    let _other = w.sibling().await;
    w.pass(1_500).await;
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
    judge.each_ran_once();
    judge.settled();
    judge
}
