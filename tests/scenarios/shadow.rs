//! Entries that are only tried: they hold nothing back, and tell what would have been.

use std::collections::BTreeMap;
use std::sync::Arc;

use ojs_throttle::policy::Sample;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::prelude::*;

const JOBS: u64 = 60;

/// When each job started, in milliseconds since it was enqueued, and its id.
type Starts = BTreeMap<u64, (u128, String)>;

/// The same jobs come at the same times in each world, and each runs as long as it says. One worker asks again and again and
/// has room for all, so that a job waits for nothing but its limits: where two ask at once, a later job may go first.
async fn traffic(w: &World) -> Starts {
    let mut dice = SmallRng::seed_from_u64(w.ctx.seed);
    let hands = w.hands("w");
    let ask = Arc::<Notify>::default();
    let asks = Arc::clone(&ask);
    let worker = tokio::spawn(async move {
        let mut running = JoinSet::new();
        loop {
            let got = hands.get("mail", 1).await;
            if got.is_empty() {
                // Late starts would add up: each keeps its slot from those behind it.
                let _in_time = timeout(Duration::from_millis(15), asks.notified()).await;
            }
            for delivery in got {
                let (hands, asks) = (hands.clone(), Arc::clone(&asks));
                let runs = delivery.shown["args"][1].as_u64();
                running.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(runs.unwrap_or(0))).await;
                    hands.ack(&delivery.job).await;
                    asks.notify_one();
                });
            }
        }
    });
    let mut sent = BTreeMap::new();
    for nth in 0..JOBS {
        // Jobs that came together might start in either order.
        w.pass(dice.random_range(150..750)).await;
        let runs = dice.random_range(100..1_500);
        let tenant = ["a", "b"][dice.random_range(0..2)];
        let job = Job::new("email.send").queue("mail").label("k");
        let job = job.meta("tenant", json!(tenant));
        let job = job.meta("costs", json!(dice.random_range(1..3)));
        let id = w.enqueue(job.top("args", json!([nth, runs]))).await;
        sent.insert(id, (nth, Instant::now()));
        ask.notify_one();
    }
    w.until_done(300).await;
    worker.abort();
    let records = w.ledger.open();
    let starts = records.deliveries.iter().map(|delivery| {
        let (nth, at) = sent[&delivery.job];
        let waited = delivery.at.duration_since(at).as_millis();
        (nth, (waited, delivery.job.clone()))
    });
    starts.collect()
}

const KINDS: [&str; 7] = [
    "concurrency = 1",
    "rate = { limit = 8, period = '10s' }",
    "throttle = { limit = 1, period = '1100ms' }",
    "throttle = { limit = 1, period = '1900ms', burst = 2, measure = 'completion' }",
    "concurrency = 2\nrate = { limit = 6, period = '7s' }\ncost = { from = 'meta.costs', default = 1, max = 2 }",
    "concurrency = 1\nfair = { by = '{meta.tenant}', weights = { a = 3 } }",
    "rate = { limit = 8, period = '10s', window = 'fixed' }",
];

fn entry(kind: &str, mode: &str) -> String {
    let by = match kind.contains("fair") {
        true => "p",
        false => "k:{meta.tenant}",
    };
    format!("[[policy]]\nname = 'p'\nmatch.queue = 'mail'\nkey = '{by}'\n{kind}\n{mode}\n")
}

async fn settled(limits: &str, ctx: Ctx) -> (World, Starts) {
    let fetch = "[fetch]\nmax_wait = '0s'\n";
    let w = ctx.limits(limits).settings(fetch).start().await;
    let starts = traffic(&w).await;
    (w, starts)
}

/// What `why` says of each job, in milliseconds; `None`: it says nothing.
async fn told(w: &World, starts: &Starts) -> BTreeMap<u64, Option<u128>> {
    let mut told = BTreeMap::new();
    for (nth, (_, job)) in starts {
        let why = w.admin(&format!("/throttle/v1/why?job={job}")).await;
        let notes = why["notes"].as_array().cloned().unwrap_or_default();
        let notes = notes.iter().filter_map(Value::as_str);
        let note = notes.clone().find(|note| note.starts_with("shadow: p"));
        let waited = note.map(|note| match note.split_once("held it back for ") {
            None => 0,
            Some((_, rest)) => {
                let (time, _) = rest.split_once(',').unwrap();
                u128::from(ojs_throttle::duration::parse(time).unwrap() / 1_000)
            }
        });
        told.insert(*nth, waited);
    }
    told
}

/// Beside a sidecar without the entry and one that enforces it, on the same jobs: nothing is held back, and what is told
/// of each job is what it really waits where the entry is enforced, within a tenth.
pub async fn tells_what_would_have_been(ctx: Ctx) -> Judge {
    let kind = ctx.pick(&KINDS);
    let (_, without) = settled("", ctx).await;
    let (_, enforced) = settled(&entry(kind, ""), ctx).await;
    let (w, tried) = settled(&entry(kind, "mode = 'shadow'"), ctx).await;
    w.pass(60_000).await;
    let told = told(&w, &tried).await;
    let sum = w
        .metric("ojs_throttle_shadow_wait_seconds_sum{policy=\"p\"}")
        .await;
    let verdict =
        |word: &str| format!("ojs_throttle_shadow_jobs_total{{policy=\"p\",verdict=\"{word}\"}}");
    let waited = w.metric(&verdict("waited")).await;
    let counted = waited + w.metric(&verdict("started")).await;
    let waiting = w.metric("ojs_throttle_shadow_waiting{policy=\"p\"}").await;
    let mut judge = w.judge().await;
    judge.equal("jobs", tried.len() as u64, JOBS);
    judge.equal("jobs that were counted", counted, JOBS as f64);
    judge.equal("jobs that would wait still", waiting, 0.0);
    let (mut really, mut would) = (0, 0);
    for (nth, (start, _)) in &tried {
        let (alone, _) = without[nth];
        judge.that(
            start.abs_diff(alone) <= 50,
            format!("{nth} started after {start} ms, and {alone} ms without"),
        );
        let (waits, _) = enforced[nth];
        let waits = waits.saturating_sub(alone);
        let says = told[nth].unwrap_or(u128::MAX);
        judge.that(
            says.abs_diff(waits) <= 50.max(waits / 10),
            format!("{nth} waits {waits} ms, and {says} ms were told"),
        );
        (really, would) = (really + waits, would + says);
    }
    judge.that(
        really > 5_000,
        format!("the limit held back next to nothing: {really} ms"),
    );
    judge.that(
        (sum * 1e3 - would as f64).abs() < would as f64 / 10.0,
        format!("the sum is {sum} s, and {would} ms were told"),
    );
    judge.all_well()
}

/// Beside a stricter entry of the same key that is only tried, an enforced one decides as without it.
pub async fn changes_no_verdict(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'e'\nkey = 'k'\nmatch.queue = 'mail'\nconcurrency = 2\n";
    let beside = "[[policy]]\nname = 'p'\nkey = 'k'\nconcurrency = 1\non_limit = 'drop'\nmode = 'shadow'\n\
                  [[queue]]\nname = 'mail'\nconcurrency = 0\nmode = 'shadow'\n";
    let (_, alone) = settled(limits, ctx).await;
    let (w, both) = settled(&format!("{limits}{beside}"), ctx).await;
    let mut judge = w.judge().await;
    for (nth, (start, _)) in &both {
        let (alone, _) = alone[nth];
        judge.that(
            start.abs_diff(alone) <= 20,
            format!("{nth} started after {start} ms, and {alone} ms alone"),
        );
    }
    judge.equal("jobs", both.len(), alone.len());
    judge.concurrency("k", 2);
    judge.all_well()
}

/// A part of the jobs is under the entry, by their ids. The others start at once.
pub async fn enforced_in_part(ctx: Ctx) -> Judge {
    let of_policy = entry("concurrency = 1", "mode = 'shadow'\nenforce_percent = 40")
        .replace("k:{meta.tenant}", "k");
    let of_queue =
        "[[queue]]\nname = 'mail'\nconcurrency = 1\nmode = 'shadow'\nenforce_percent = 40\n";
    let limits = if ctx.even() { of_queue } else { &of_policy };
    let (w, starts) = settled(limits, ctx).await;
    let is_enforced = |job: &str| Sample::First(40).has(Some(job));
    let mut judge = w.judge().await;
    let under = starts.values().filter(|(_, job)| is_enforced(job)).count();
    judge.that(
        // Ids are random: that is five standard deviations.
        (6..43).contains(&under),
        format!("{under} of {JOBS} are under the entry"),
    );
    for (nth, (start, job)) in &starts {
        judge.that(
            is_enforced(job) || *start < 400,
            format!("{nth} started after {start} ms"),
        );
    }
    let mut edges = Vec::new();
    for claim in judge.claims.iter().filter(|claim| is_enforced(&claim.job)) {
        let start = judge.records.deliveries[claim.delivered[0]].at;
        edges.extend([(start, 1), (claim.end.unwrap().0, -1)]);
    }
    edges.sort();
    let mut out = 0;
    let most = edges.iter().map(|(_, step)| {
        out += step;
        out
    });
    judge.equal("most at once of those under the entry", most.max(), Some(1));
    judge.all_well()
}

/// A file that goes from shadow to all and back: jobs that start while the entry is enforced are limited, and no other.
pub async fn reloaded_to_all_and_back(ctx: Ctx) -> Judge {
    let tried = entry("concurrency = 1", "mode = 'shadow'").replace("k:{meta.tenant}", "k");
    let all = entry("concurrency = 1", "").replace("k:{meta.tenant}", "k");
    let w = ctx.limits(&tried).start().await;
    let hands = w.hands("one");
    let burst = async || {
        w.enqueue_all(6, |_| job().label("k")).await;
        let mut got = Vec::new();
        for _ in 0..6 {
            got.extend(hands.fetch(&["mail"], 6).await.unwrap_or_default());
        }
        got
    };
    let first = burst().await;
    hands.ack_all(&first).await;
    w.reload(&all);
    w.pass(100 + ctx.seed * 70).await;
    let second = burst().await;
    hands.ack_all(&second).await;
    w.reload(&tried);
    w.pass(100).await;
    let third = hands.get("mail", 6).await;
    hands.ack_all(&third).await;
    w.pass(30_000).await;
    let waiting = w.metric("ojs_throttle_shadow_waiting{policy=\"p\"}").await;
    let mut judge = w.judge_when_done(30).await;
    judge.equal(
        "started",
        [first.len(), second.len(), third.len()],
        [6, 1, 5],
    );
    judge.equal("jobs that would wait still", waiting, 0.0);
    judge.all_well()
}

/// Workers that die end no job: their virtual slots lapse, and those of who sends heartbeats do not.
pub async fn slots_lapse(ctx: Ctx) -> Judge {
    let limits = entry("concurrency = 1", "mode = 'shadow'").replace("k:{meta.tenant}", "k");
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(3, |_| job()).await;
    let hands = w.hands("one").visibility(20_000);
    let out = hands.get("mail", 3).await;
    let waiting = async || w.metric("ojs_throttle_shadow_waiting{policy=\"p\"}").await;
    w.pass(15_000).await;
    let ids: Vec<String> = out.iter().map(|delivery| delivery.job.clone()).collect();
    hands.beat(&ids[..1], true).await;
    w.pass(10_000).await;
    let kept = waiting().await;
    w.pass(15_000).await;
    let lapsed = waiting().await;
    w.pass(60_000).await;
    let at_last = waiting().await;
    hands.ack_all(&out).await;
    let mut judge = w.judge().await;
    judge.equal("waiting", [kept, lapsed, at_last], [2.0, 1.0, 0.0]);
    judge
}

/// A bound that is only tried refuses nothing, and what it would have refused is counted; beside a bound that counts too.
pub async fn bound_in_shadow(ctx: Ctx) -> Judge {
    let tried = "[[queue]]\nname = 'mail'\nmax_depth = 5\nmode = 'shadow'\n";
    let enforced = "[[queue]]\nname = 'mail'\nmax_depth = 8\n";
    let (limits, stored) = match ctx.even() {
        true => (format!("{tried}{enforced}"), 8),
        false => (tried.to_owned(), 12),
    };
    let w = ctx.limits(&limits).start().await;
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(w.enqueue(job()).await);
        w.pass(200).await;
    }
    let refused = w
        .metric("ojs_throttle_shadow_refused_total{queue=\"mail\"}")
        .await;
    w.worker(Worker::js(4).queues(&["mail"]));
    let mut judge = w.judge_when_done(30).await;
    let got = ids.iter().filter(|id| !id.is_empty()).count();
    judge.equal("stored", got, stored);
    judge.equal("would have been refused", refused, (stored - 5) as f64);
    judge.all_well()
}
