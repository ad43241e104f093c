//! Held jobs that nobody asks for, more than there is room for, and others that need their places.

use super::prelude::*;
use crate::harness::world::Setup;
use crate::harness::{Lines, Sidecar};

/// Of each a worker takes a job, leaves another in the hold, and never comes again.
const FORSAKEN: [&str; 18] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r",
];

fn few(setup: Setup) -> Setup {
    setup
        .limits("[[policy]]\nname = 'p'\nkey = 'k:{meta.of}'\nconcurrency = 1")
        .settings("[hold]\nmax = 8\nidle = '1s'")
}

fn job(queue: &'static str) -> Job {
    let job = Job::new("a.b").queue(queue).label(&format!("k:{queue}"));
    job.meta("of", json!(queue))
}

/// What is out of the queues that nobody asks for any more: of each another is held.
async fn forsaken(w: &World, one: &Hands) -> Vec<String> {
    let mut out = Vec::new();
    for some in [&FORSAKEN[..8], &FORSAKEN[8..]] {
        for queue in some {
            w.enqueue_all(2, |_| job(queue)).await;
            let got = one.get(queue, 2).await;
            out.extend(got.into_iter().map(|delivery| delivery.job));
        }
        w.pass(1_800).await;
    }
    out
}

fn either(ctx: Ctx) -> Lax {
    match ctx.even() {
        true => Lax::spec(),
        false => Lax::redis(),
    }
}

/// A sidecar with what is forsaken, its sibling, and the worker with what is out.
async fn beside_a_sibling(ctx: Ctx, lax: Lax) -> (World, Sidecar, Hands, Vec<String>) {
    let setup = ctx.world().lax(lax).shared();
    let w = few(setup).start().await;
    let other = w.sibling().await;
    w.pass(3_000).await;
    let one = w.hands("one");
    let out = forsaken(&w, &one).await;
    (w, other, one, out)
}

async fn end(one: &Hands, out: &[String]) {
    for job in out {
        one.ack(job).await;
    }
}

/// What is out ends, and then all is well.
async fn ends_well(w: &World, one: &Hands, out: &[String]) -> Judge {
    end(one, out).await;
    all_well(w).await
}

/// All is done, no claim has lapsed, and each job ran once.
async fn all_well(w: &World) -> Judge {
    let mut judge = w.judge_when_done(60).await;
    judge.none_lapsed();
    judge.all_well()
}

/// A sibling has workers for them.
pub async fn crowding_is_offered(ctx: Ctx) -> Judge {
    let (w, other, one, out) = beside_a_sibling(ctx, either(ctx)).await;
    w.enqueue(job("slots")).await;
    w.worker(Worker::js(1).queues(&["slots"]).runs(50..100));
    w.pass(1_000 + ctx.seed * 300).await;
    w.worker_of(&other, Worker::js(4).queues(&FORSAKEN).runs(50..100));
    let mut judge = ends_well(&w, &one, &out).await;
    judge.that(out.len() == 18, format!("{} were out", out.len()));
    judge
}

/// The store misses the first offer.
pub async fn crowding_is_offered_again(ctx: Ctx) -> Judge {
    let (w, other, one, out) = beside_a_sibling(ctx, Lax::spec()).await;
    w.enqueue(job("slots")).await;
    w.worker(Worker::js(1).queues(&["slots"]).runs(50..100));
    // One look, and what comes with it.
    w.first_way(|way| way.cut(0));
    w.pass(ctx.seed * 100).await;
    w.first_way(Way::mend);
    w.worker_of(&other, Worker::js(4).queues(&FORSAKEN).runs(50..100));
    let mut judge = ends_well(&w, &one, &out).await;
    judge.that(out.len() == 18, format!("{} were out", out.len()));
    judge
}

/// A sibling takes them over, and the first sidecar does not hear of it: it warns of no claims that lapse, where none
/// do. They run still when it looks, or have ended.
pub async fn crowding_is_taken_unheard(ctx: Ctx) -> Judge {
    let (w, other, one, out) = beside_a_sibling(ctx, either(ctx)).await;
    w.first_way(Way::deafen);
    let (lines, _listening) = Lines::listen();
    w.enqueue(job("slots")).await;
    w.worker(Worker::js(1).queues(&["slots"]).runs(50..100));
    let (soon, runs) = pick(ctx.seed / 2, &[(false, 9_000..9_500), (true, 50..100)]);
    w.worker_of(&other, Worker::js(4).queues(&FORSAKEN).runs(runs));
    if !soon {
        w.pass(8_000).await;
    }
    end(&one, &out).await;
    if soon {
        w.pass(12_000).await;
    }
    let mut judge = all_well(&w).await;
    let warned = lines.with("lapse");
    judge.that(warned.is_empty(), format!("{warned:?}"));
    judge
}

/// Nobody has workers for them, and the backend takes them back, if slowly.
pub async fn crowding_goes_back(ctx: Ctx) -> Judge {
    let setup = ctx.world().lax(Lax::redis());
    let setup = setup.shared_if(ctx.even());
    let w = few(setup).start().await;
    if ctx.even() {
        w.sibling().await;
        w.pass(3_000).await;
    }
    let slow = Fault::Slow(Duration::from_millis(1_000 + ctx.seed * 200));
    w.backend.often(Op::Nack, 1.0, slow);
    let one = w.hands("one");
    let out = forsaken(&w, &one).await;
    w.enqueue(job("slots")).await;
    let begun = w.begun.elapsed();
    let mut got = Vec::new();
    while got.is_empty() && w.begun.elapsed() < begun + Duration::from_secs(20) {
        got = one.get("slots", 1).await;
    }
    w.backend.mend();
    let took = got.iter().map(|delivery| delivery.job.clone());
    let out: Vec<String> = out.into_iter().chain(took).collect();
    w.worker(Worker::js(4).queues(&FORSAKEN).runs(50..100));
    let mut judge = ends_well(&w, &one, &out).await;
    judge.that(got.len() == 1, "it found no place");
    judge
}

/// Nobody has workers for them, and the backend takes none back: some lapse, and each of them is counted.
pub async fn crowding_lapses(ctx: Ctx) -> Judge {
    let (w, _other, one, out) = beside_a_sibling(ctx, Lax::spec()).await;
    w.enqueue(job("slots")).await;
    let next = w.worker(Worker::js(1).queues(&["slots"]).runs(50..100));
    for job in &out {
        one.ack(job).await;
    }
    w.pass(10_000 + ctx.seed * 300).await;
    let counted = w.metric("ojs_throttle_hold_lost_total").await;
    next.stop();
    w.worker(Worker::js(4).queues(&FORSAKEN).runs(50..100));
    let mut judge = w.judge_when_done(90).await;
    let lapsed = judge.lapsed();
    judge.that(lapsed > 0, "none lapsed");
    judge.that(
        counted == lapsed as f64,
        format!("{lapsed} claims lapsed, and {counted} are counted"),
    );
    judge.all_well()
}
