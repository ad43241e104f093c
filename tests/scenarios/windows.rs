//! Groups that share a window, or what jobs cost, by weight, in a queue with subqueues. Each group has more jobs than it can
//! start, one group behind the other. Judged from when the backend was told that a job was done.

use std::collections::{BTreeMap, HashSet};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use super::deep::SPLIT;
use super::prelude::*;
use crate::harness::runner::said;
use ojs_throttle::policy::subqueue::Spread;

/// One key, and who shares it.
struct Window {
    limit: u32,
    /// In seconds.
    period: u64,
    /// The weight of each group, and from what to what its jobs cost.
    groups: Vec<(u32, [u32; 2])>,
    sidecars: usize,
    /// How far the part of the first group may be from its due, and how far that of any other, as a part of that.
    first: f64,
    each: f64,
}

const EVEN: [u32; 2] = [1, 1];
/// So long it is looked at.
const SECONDS: u64 = 40;

impl Window {
    fn of(limit: u32, period: u64, groups: impl IntoIterator<Item = (u32, [u32; 2])>) -> Window {
        Window {
            limit,
            period,
            groups: groups.into_iter().collect(),
            sidecars: 1,
            first: 0.03,
            each: 0.1,
        }
    }

    /// What the first group is due.
    fn due(&self, nth: usize) -> f64 {
        let all: u32 = self.groups.iter().map(|(weight, _)| weight).sum();
        f64::from(self.groups[nth].0) / f64::from(all)
    }

    fn policy(&self, names: &[String]) -> String {
        let weights = names.iter().zip(&self.groups);
        let weights: Vec<String> = weights
            .map(|(name, (weight, _))| format!("{name} = {weight}"))
            .collect();
        format!(
            "[[policy]]\nname = 'vendor'\nmatch = {{ queue = '*' }}\nkey = 'vendor'\n\
             rate = {{ limit = {}, period = '{}s' }}\ncost = {{ from = 'meta.tokens', max = {} }}\n\
             fair = {{ by = '{{meta.tenant}}', weights = {{ {} }} }}\n{SPLIT}",
            self.limit,
            self.period,
            self.limit,
            weights.join(", ")
        )
    }

    /// So many jobs of a group are more than it can start, if others get what they are due.
    fn jobs(&self, nth: usize) -> usize {
        let (_, [least, most]) = self.groups[nth];
        let windows = SECONDS / self.period + 1;
        let all = f64::from(self.limit) * windows as f64 * self.due(nth) * 1.3 + 100.0;
        (2.0 * all / f64::from(least + most)) as usize
    }
}

/// Names of groups that lie in subqueues of their own.
fn names(seed: u64, count: usize) -> Vec<String> {
    let mut taken = HashSet::new();
    let all = (0..).map(|nth| format!("g{seed}n{nth}"));
    let own =
        all.filter(|name| taken.insert(Spread::default().flow("vendor", Some(name)).subqueue));
    own.take(count).collect()
}

async fn shared(ctx: Ctx, window: Window) -> Judge {
    let names = names(ctx.seed, window.groups.len());
    let world = ctx.world().shared_if(window.sidecars > 1);
    let w = world.limits(&window.policy(&names)).start().await;
    let mut others = Vec::new();
    for _ in 1..window.sidecars {
        others.push(w.sibling().await);
    }
    w.pass(1_500).await;
    let mut rng = SmallRng::seed_from_u64(ctx.seed);
    let mut cost = BTreeMap::new();
    for (nth, name) in names.iter().enumerate() {
        let [least, most] = window.groups[nth].1;
        let jobs = window.jobs(nth);
        let costs: Vec<u32> = (0..jobs).map(|_| rng.random_range(least..=most)).collect();
        let job = |at: usize| {
            let job = Job::new("llm.call").queue("mail");
            job.meta("tenant", json!(name))
                .meta("tokens", json!(costs[at]))
        };
        let ids = w.enqueue_all(jobs, job).await;
        cost.extend(
            ids.into_iter()
                .zip(costs)
                .map(|(id, cost)| (id, (nth, cost))),
        );
    }
    let begun = Instant::now();
    let worker = || {
        Worker::js(if ctx.even() { 50 } else { 10 })
            .queues(&["mail"])
            .runs(20..60)
    };
    let many = if ctx.even() { 3 } else { 12 };
    w.workers(many, worker());
    for other in &others {
        (0..many).for_each(|_| drop(w.worker_of(other, worker())));
    }
    w.pass(1_000 * (SECONDS + 1)).await;
    let mut judge = w.judge().await;
    let done = judge.events.iter().filter(|(at, event)| {
        event.kind == EventKind::Acked && *at < begun + Duration::from_secs(SECONDS)
    });
    let mut got = vec![0_u64; names.len()];
    for (_, event) in done {
        let (nth, cost) = cost[&*event.job];
        got[nth] += u64::from(cost);
    }
    let all: u64 = got.iter().sum();
    let parts: Vec<f64> = got.iter().map(|got| *got as f64 / all as f64).collect();
    let windows = SECONDS / window.period;
    let used = all as f64 / (u64::from(window.limit) * windows) as f64;
    let short: Vec<String> = parts.iter().map(|part| format!("{part:.3}")).collect();
    println!(
        "SEED={}: {} in {} s, {} sidecars: {used:.3} used, first {:.3} due, {}",
        ctx.seed,
        window.limit,
        window.period,
        window.sidecars,
        window.due(0),
        short.join(" ")
    );
    judge.that(used >= 0.98, format!("{used:.3} of the limit is used"));
    let least = (parts[0] - window.due(0)).abs();
    judge.that(
        least <= window.first,
        format!("the first has {:.3} and not {:.3}", parts[0], window.due(0)),
    );
    for (nth, part) in parts.iter().enumerate() {
        let off = (part - window.due(nth)).abs() / window.due(nth);
        judge.that(
            off <= window.each,
            format!("{nth} has {part:.3} and not {:.3}", window.due(nth)),
        );
    }
    judge
}

fn by_weight(ctx: Ctx) -> Window {
    let one = |weight: u32| (weight, EVEN);
    let alike = (0..20).map(|_| one(1));
    match said("KIND").unwrap_or(ctx.seed) % 5 {
        1 => Window::of(600, 10, [3, 1, 1].map(one)),
        2 => Window::of(600, 10, alike),
        3 => Window {
            first: 0.02,
            each: 0.15,
            ..Window::of(600, 10, [one(3)].into_iter().chain(alike.take(19)))
        },
        4 => Window::of(40, 1, [5, 2, 1, 1].map(one)),
        _ => Window::of(450, 5, [7, 2].map(one)),
    }
}

fn by_cost(ctx: Ctx) -> Window {
    match said("KIND").unwrap_or(ctx.seed) % 4 {
        1 => Window::of(600, 10, [(1, EVEN), (1, [10, 10])]),
        2 => Window::of(600, 10, [(3, [1, 9]), (1, [1, 9]), (1, [1, 9])]),
        3 => Window::of(200, 2, [(1, EVEN), (1, [20, 20]), (2, [4, 6])]),
        _ => Window::of(1_000, 10, [(1, [50, 50]), (1, EVEN)]),
    }
}

pub async fn shared_by_weight(ctx: Ctx) -> Judge {
    shared(ctx, by_weight(ctx)).await
}

pub async fn shared_by_cost(ctx: Ctx) -> Judge {
    shared(ctx, by_cost(ctx)).await
}

pub async fn shared_by_weight_on_three(ctx: Ctx) -> Judge {
    let one = by_weight(ctx);
    let three = Window {
        sidecars: 3,
        // Of many groups one may get half as much again: the chapter says so.
        each: if one.groups.len() > 5 { 0.5 } else { one.each },
        ..one
    };
    shared(ctx, three).await
}

pub async fn shared_by_cost_on_three(ctx: Ctx) -> Judge {
    let three = Window {
        sidecars: 3,
        ..by_cost(ctx)
    };
    shared(ctx, three).await
}
