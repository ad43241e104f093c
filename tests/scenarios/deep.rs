//! Queues with subqueues: a limited backlog of any depth holds up nobody else. Judged from what the backend handed out and
//! what workers got.

use std::collections::{HashMap, HashSet};

use super::prelude::*;
use crate::harness::dress::Dress;
use crate::harness::runner::said;

/// Each tenant's jobs of the type `crm.*` run one at a time. They wait in subqueues, all others do not.
pub(super) const SLOT: &str = "[[policy]]\nname = 'p'\nmatch = { type = 'crm.*' }\nkey = 'crm:{meta.tenant}'\nconcurrency = 1\n";
pub(super) const SPLIT: &str = "[[queue]]\nname = 'mail'\nsubqueues = true\n";

/// A job under the key of this tenant.
pub(super) fn of(tenant: &str) -> Job {
    let job = Job::new("crm.sync").queue("mail");
    job.meta("tenant", json!(tenant))
        .label(&format!("crm:{tenant}"))
}

impl Judge {
    /// In which of the backend's queues each job was stored.
    pub(super) fn places(&self) -> HashMap<String, String> {
        let stored = self.events.iter().map(|(_, event)| event);
        let stored = stored.filter(|event| event.kind == EventKind::Stored);
        stored
            .map(|event| (event.job.to_string(), event.queue.to_string()))
            .collect()
    }

    /// How many jobs of a key the backend ever handed out.
    fn handed_out(&self, label: &str) -> usize {
        let claims = self.claims.iter().map(|claim| claim.job.as_str());
        let claimed: HashSet<&str> = claims.filter(|job| self.is_labelled(job, label)).collect();
        claimed.len()
    }

    /// Workers see jobs in the queue that was said.
    fn shown_in(&mut self, queue: &str) {
        let strange = (self.records.deliveries.iter())
            .find(|d| d.queue != queue || d.shown.to_string().contains("-ojst-"));
        let strange = strange.map(|d| d.shown.to_string());
        self.that(strange.is_none(), format!("{strange:?} came"));
    }
}

/// In front a slot that is taken and 20,000 jobs that wait for it, enqueued in batches (`JOBS` says how many else). Of jobs
/// behind, with and without limits, all start within a second, and of those in front nothing is claimed but their head.
pub async fn one_shut_key(ctx: Ctx) -> Judge {
    let world = ctx.limits(&format!("{SLOT}{SPLIT}")).lax(Lax::spec());
    let w = world.start().await;
    let jobs = said("JOBS").unwrap_or(20_000) as usize;
    w.enqueue_all(jobs, |_| of("a")).await;
    let first = w.hands("first").visibility(600_000);
    let out = first.get("mail", 1).await;
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.pass(3_000).await;
    let before = w.metric("ojs_throttle_held_jobs").await;
    let begun = Instant::now();
    w.enqueue_all(20, |nth| match nth % 2 {
        0 => Job::new("free.one").queue("mail").label("free"),
        _ => of(&format!("b{nth}")).label("free"),
    })
    .await;
    w.pass(3_000).await;
    let after = w.metric("ojs_throttle_held_jobs").await;
    let mut judge = w.judge().await;
    judge.concurrency("crm:a", 1);
    let starts = judge.starts("free");
    judge.equal("free ones started", starts.len(), 20);
    let took = starts.last().map_or(Duration::MAX, |at| *at - begun);
    judge.soon_took("the free ones took", took, 1_000);
    judge.equal("came first", out.len(), 1);
    judge.equal("of the shut key were claimed", judge.handed_out("crm:a"), 2);
    judge.equal("held", (before, after), (1.0, 1.0));
    judge.shown_in("mail");
    judge
}

/// A backend that shows us no statistics, or shows them late: whether the queue is paused there is not known, and its jobs
/// start all the same.
pub async fn without_statistics(ctx: Ctx) -> Judge {
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let (late, refused) = (Fault::LateReply(Duration::from_secs(2)), Fault::Status(403));
    let fault = if ctx.even() { late } else { refused };
    w.backend.often(Op::Stats, 1.0, fault);
    let hands = w.hands("hand");
    // The first FETCH waits for the first word.
    hands.get("mail", 1).await;
    w.pass(3_000).await;
    w.enqueue_all(20, |nth| of(&format!("t{nth}"))).await;
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        w.pass(700).await;
        let begun = Instant::now();
        hands.get("mail", 1).await;
        longest = longest.max(begun.elapsed());
    }
    let mut judge = w.judge().await;
    judge.equal("went to who asked", judge.records.deliveries.len(), 20);
    judge.soon_took("a FETCH took", longest, 1_000);
    judge
}

/// Some heavy tenants whose slots are taken and whose jobs wait, and 500 with one job each, which start as if they were
/// alone, but for those that share a subqueue with a heavy one.
async fn beside(ctx: Ctx, heavy: usize, most: usize) -> Judge {
    const LIGHT: usize = 500;
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let jobs = said("JOBS").unwrap_or(300) as usize;
    let heavies: Vec<String> = (0..heavy)
        .map(|nth| format!("h{}-{nth}", ctx.seed))
        .collect();
    w.enqueue_all(heavy * jobs, |nth| of(&heavies[nth % heavy]).label("heavy"))
        .await;
    let first = w.hands("first").visibility(600_000);
    w.until(20, async || {
        first.get("mail", heavy).await;
        w.ledger.open().deliveries.len() >= heavy
    })
    .await;
    let out = w.ledger.open().deliveries.len();
    w.workers(8, Worker::js(50).queues(&["mail"]).runs(20..60));
    w.pass(2_000).await;
    w.enqueue_all(LIGHT, |nth| {
        of(&format!("l{}-{nth}", ctx.seed)).label("light")
    })
    .await;
    w.pass(10_000).await;
    let mut judge = w.judge().await;
    judge.equal("heavy ones are out", out, heavy);
    for tenant in &heavies {
        judge.concurrency(&format!("crm:{tenant}"), 1);
    }
    let places = judge.places();
    let of_heavy = |job: &&String| judge.is_labelled(job, "heavy");
    let shut: HashSet<String> = (places.keys().filter(of_heavy))
        .map(|job| places[job].clone())
        .collect();
    judge.equal("subqueues have heavy ones", shut.len() <= heavy, true);
    let started: HashSet<&str> = (judge.records.deliveries.iter())
        .map(|d| d.job.as_str())
        .collect();
    let hit = (judge.records.produced.iter())
        .filter(|p| judge.is_labelled(&p.id, "light") && !started.contains(p.id.as_str()));
    let hit: Vec<&String> = hit.map(|p| &places[&p.id]).collect();
    let alone = (hit.iter()).filter(|place| !shut.contains(**place));
    let alone: Vec<String> = alone.map(|place| place.to_string()).collect();
    let hit = hit.len();
    println!("{heavy} heavy: {hit} of {LIGHT} hit");
    judge.that(
        alone.is_empty(),
        format!("alone in {alone:?}, and did not start"),
    );
    judge.that(
        100 * hit <= most * LIGHT,
        format!("{hit} of {LIGHT} are hit"),
    );
    judge
}

pub async fn beside_three_shut_keys(ctx: Ctx) -> Judge {
    beside(ctx, 3, 2).await
}

pub async fn beside_ten_shut_keys(ctx: Ctx) -> Judge {
    beside(ctx, 10, 6).await
}

/// A sidecar ends with heads of 200 keys held that have no room for an hour, on a backend that counts attempts. The next
/// one finds 20 jobs of open keys among them within ten seconds.
pub async fn behind_heads_after_a_restart(ctx: Ctx) -> Judge {
    const SHUT: usize = 200;
    let limits =
        "[[policy]]\nname = 'p'\nkey = 'crm:{meta.tenant}'\nrate = { limit = 1, period = '1h' }\n";
    let world = ctx.world().shared().lax(Lax::spec());
    let w = world.limits(&format!("{limits}{SPLIT}")).start().await;
    w.enqueue_all(3 * SHUT, |nth| of(&format!("s{}", nth % SHUT)))
        .await;
    let workers = w.workers(4, Worker::js(50).queues(&["mail"]).runs(20..60));
    w.until(60, async || w.ledger.open().settles.len() >= SHUT)
        .await;
    w.pass(5_000).await;
    workers.iter().for_each(|worker| worker.stop());
    w.until(30, async || workers.iter().all(|worker| worker.is_over()))
        .await;
    let before = w.ledger.open().deliveries.len();
    w.enqueue_all(20, |nth| of(&format!("open{nth}")).label("open"))
        .await;
    w.restart().await;
    let begun = Instant::now();
    w.workers(2, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.pass(15_000).await;
    let mut judge = w.judge().await;
    judge.equal("of shut keys started", before, SHUT);
    let starts = judge.starts("open");
    judge.equal("open ones started", starts.len(), 20);
    let took = starts.last().map_or(Duration::MAX, |at| *at - begun);
    println!("the open ones took {took:?}");
    judge.soon_took("the open ones took", took, 10_000);
    judge
}

/// An operator pauses the queue at the backend itself: after two seconds none of its jobs starts. It goes on when that ends.
/// Half of the backends say it as the HTTP binding does.
pub async fn paused_at_the_backend(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'crm:{meta.tenant}'\nthrottle = { limit = 5, period = '1s' }\n";
    let is_bound = ctx.seed % 4 > 1;
    let lax = Lax {
        admin_queues: !is_bound,
        ..ctx.pick(&[Lax::redis(), Lax::spec()])
    };
    let world = ctx.limits(&format!("{limits}{SPLIT}")).lax(lax);
    let w = world.start().await;
    if is_bound {
        w.backend
            .often(Op::Stats, 1.0, Fault::Comes(Dress::Binding));
    }
    w.enqueue_all(600, |nth| of(&format!("t{}", nth % 6)).label("all"))
        .await;
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.pass(3_000 + ctx.seed * 77).await;
    let at = async |verb: &str| {
        let path = format!("/ojs/v1/queues/mail/{verb}");
        w.backend.direct("POST", &path, &json!({})).await
    };
    at("pause").await;
    let paused = Instant::now();
    w.pass(10_000).await;
    at("resume").await;
    let resumed = Instant::now();
    w.pass(5_000).await;
    let mut judge = w.judge().await;
    let starts = judge.starts("all");
    let since = paused + Duration::from_secs(2);
    let during = starts.iter().filter(|at| (since..resumed).contains(at));
    judge.equal("started while it was paused", during.count(), 0);
    let count =
        |all: &[Instant], from, to| all.iter().filter(|at| (from..to).contains(*at)).count();
    judge.that(
        count(&starts, judge.begun, paused) > 20,
        "few started before",
    );
    judge.that(
        count(&starts, resumed, judge.ended) > 20,
        "few started afterwards",
    );
    judge
}
