//! Keys that share a subqueue. A setting may never be worse than none: without subqueues a job whose key has room starts
//! within a second where no more than some hundred jobs stand before it, and so it must with them.

use std::collections::{HashMap, HashSet};

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;
use ojs_throttle::policy::subqueue::{MOST, Spread, Subqueue};

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
    let place = |tenant: &str| {
        Spread::default()
            .flow(&format!("crm:{tenant}"), None)
            .subqueue
    };
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

/// A queue with so many subqueues, and a salt if there is one.
fn split_in(number: u16, salt: Option<&str>) -> String {
    let salt = salt.map(|salt| format!("subqueues_salt = '{salt}'\n"));
    let salt = salt.unwrap_or_default();
    format!("{SLOT}[[queue]]\nname = 'mail'\nsubqueues = {number}\n{salt}")
}

impl Judge {
    /// How many of the jobs with this label started within so many milliseconds after they were enqueued.
    fn in_time(&self, label: &str, ms: u64) -> usize {
        let came = (self.records.produced.iter()).filter(|p| self.is_labelled(&p.id, label));
        let came: HashMap<&str, Instant> = came.map(|p| (&*p.id, p.answered)).collect();
        let starts = self.records.deliveries.iter();
        let took = starts.filter_map(|d| Some(d.at.duration_since(*came.get(&*d.job)?)));
        took.filter(|took| *took <= Duration::from_millis(ms))
            .count()
    }
}

/// Ten tenants have a job out and 2,000 that wait. Of 300 others few wait for a second, and fewer where there are more
/// subqueues.
pub async fn few_wait_for_others(ctx: Ctx) -> Judge {
    const LIGHT: usize = 300;
    let (number, most) = if ctx.even() { (1_024, 3) } else { (256, 7) };
    let w = ctx.limits(&split_in(number, None)).start().await;
    let heavy: Vec<String> = (0..10).map(|nth| format!("h{}-{nth}", ctx.seed)).collect();
    w.enqueue_all(10, |nth| of(&heavy[nth])).await;
    take_slots(&w, &heavy).await;
    w.enqueue_all(20_000, |nth| of(&heavy[nth % 10])).await;
    look_on(&w);
    w.pass(6_000).await;
    for round in 0..10 {
        w.enqueue_all(LIGHT / 10, |nth| {
            of(&format!("l{}-{round}-{nth}", ctx.seed)).label("light")
        })
        .await;
        w.pass(500).await;
    }
    w.pass(3_000).await;
    let mut judge = w.judge().await;
    let late = LIGHT - judge.in_time("light", 1_000);
    println!("{number} subqueues: {late} of {LIGHT} are late");
    judge.that(
        100 * late <= most * LIGHT,
        format!("{late} of {LIGHT} are late"),
    );
    judge
}

/// Strangers choose 256 ids whose jobs would meet those of 50 victims by the hash that everybody knows. They stop them all
/// where there is no salt, and hardly one where there is.
pub async fn ids_that_are_chosen(ctx: Ctx) -> Judge {
    const IDS: usize = 256;
    const VICTIMS: usize = 50;
    let text = format!("a salt of seed {:05}", ctx.seed);
    let salt = ctx.even().then_some(&*text);
    let w = ctx.limits(&split_in(MOST, salt)).start().await;
    let known = Spread::new(MOST, None);
    let place = |tenant: &str| known.flow(&format!("crm:{tenant}"), None).subqueue;
    let victims: Vec<String> = (0..VICTIMS)
        .map(|nth| format!("v{}-{nth}", ctx.seed))
        .collect();
    let aims: Vec<Subqueue> = victims.iter().map(|victim| place(victim)).collect();
    let mut names = (0..).map(|nth| format!("x{}-{nth}", ctx.seed));
    let mut aimed: Vec<String> = Vec::new();
    for nth in 0..IDS {
        let aim = aims[nth % VICTIMS];
        aimed.extend(names.find(|name| place(name) == aim));
    }
    w.enqueue_all(IDS, |nth| of(&aimed[nth])).await;
    take_slots(&w, &aimed).await;
    w.enqueue_all(IDS * 10, |nth| of(&aimed[nth % IDS])).await;
    look_on(&w);
    w.pass(6_000).await;
    w.enqueue_all(VICTIMS, |nth| of(&victims[nth]).label("victim"))
        .await;
    w.pass(4_000).await;
    let mut judge = w.judge().await;
    let stopped = VICTIMS - judge.starts("victim").len();
    println!(
        "salt: {}, {stopped} of {VICTIMS} are stopped",
        salt.is_some()
    );
    match salt {
        Some(_) => judge.that(stopped <= 1, format!("{stopped} are stopped")),
        None => judge.that(
            stopped >= 40,
            format!("only {stopped} are stopped: do the ids aim?"),
        ),
    }
    judge
}

/// After a restart, with the store's memory lost or not, jobs of a tenant go where those went that were there.
pub async fn names_stay_over_a_restart(ctx: Ctx) -> Judge {
    const KEYS: usize = 200;
    let number = ctx.pick(&[256, 512, MOST]);
    let salt = ctx.even().then_some("0123456789abcdef");
    let world = ctx.limits(&split_in(number, salt)).shared_if(ctx.seed > 2);
    let w = world.start().await;
    for round in 0..2 {
        w.enqueue_all(KEYS, |nth| of(&format!("t{nth}"))).await;
        if round == 0 {
            w.restart().await;
        }
    }
    w.pass(2_000).await;
    let mut judge = w.judge().await;
    let places = judge.places();
    for nth in 0..KEYS {
        let label = format!("crm:t{nth}");
        let own = places
            .iter()
            .filter(|(job, _)| judge.is_labelled(job, &label));
        let own: HashSet<&str> = own.map(|(_, place)| &**place).collect();
        judge.equal(&label, own.len(), 1);
    }
    let names: HashSet<&String> = places.values().collect();
    let high = names
        .iter()
        .filter(|name| name.len() > "mail-ojst-00".len());
    judge.equal("three digits", high.count() > 0, number > 256);
    judge
}

/// The files of two sidecars differ in the number, or in the salt. Who does not go by the store's mark writes to the queue
/// itself, until the other has not written for a minute. What lies in any of the names is found.
pub async fn files_that_differ(ctx: Ctx) -> Judge {
    let [old, new] = match ctx.even() {
        true => [split_in(256, None), split_in(512, None)],
        false => [split_in(512, None), split_in(512, Some("0123456789abcdef"))],
    };
    let (w, other) = ctx.limits(&old).pair().await;
    let tenants: Vec<String> = (0..40).map(|nth| format!("t{nth}")).collect();
    let first = async |label: &str| {
        for tenant in &tenants {
            w.enqueue(of(tenant).label(label)).await;
        }
    };
    let others = async |label: &str| {
        for tenant in &tenants {
            w.enqueue_at(&other, of(tenant).label(label)).await;
        }
    };
    first("before").await;
    w.pass(500).await;
    w.reload_of(&other, &new);
    for _ in 0..80 {
        w.enqueue(of("t0").label("before")).await;
        w.pass(1_000).await;
    }
    others("refused").await;
    let listed = w.admin_of(&other, "/throttle/v1/subqueues").await;
    w.reload(&new);
    first("refused").await;
    w.pass(61_000).await;
    first("after").await;
    w.pass(1_000).await;
    others("after").await;
    w.workers(8, Worker::js(50).queues(&["mail"]).runs(1..5));
    w.worker_of(&other, Worker::js(50).queues(&["mail"]).runs(1..5));
    let begun = Instant::now();
    let mut judge = w.judge_when_done(30).await;
    let took = judge.records.deliveries.iter().map(|d| d.at).max();
    println!(
        "all were done {:?} after the first poll",
        took.map(|at| at - begun)
    );
    let places = judge.places();
    let apart = |label: &str| {
        let of = places
            .iter()
            .filter(|(job, _)| judge.is_labelled(job, label));
        let [mut base, mut apart] = [0, 0];
        of.for_each(|(_, place)| {
            *if place.contains("-ojst-") {
                &mut apart
            } else {
                &mut base
            } += 1
        });
        (base, apart)
    };
    let found = ["before", "refused", "after"].map(apart);
    judge.equal(
        "in the queue itself, and in subqueues",
        found,
        [(0, 120), (80, 0), (0, 80)],
    );
    judge.that(
        listed.to_string().contains("\"differs\":true"),
        listed.to_string(),
    );
    judge.equal("started", judge.records.deliveries.len(), 280);
    judge
}
