//! The scrape: gauges that are read when they are asked for, rather than counted.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::limits::{self, KeyFacts};
use super::policies;
use crate::answers::load::Urgency;
use crate::desk::Sidecar;
use crate::desk::snapshot::{SHARED, Snapshot};
use crate::duration;
use crate::inquiry::in_force::{set_for_queue, with_set};
use crate::inquiry::lookahead::FullLookahead;
use crate::limit::{Key, Limited, Limits, Space, Strategy};
use crate::policy::{numbers, strictest};
use crate::store::LedgerExt;
use crate::subqueues::SpreadOfQueue;
use crate::told::metrics::Labels;

/// Of so many keys without series of their own a shared store is asked in one call.
const AT_ONCE: usize = 1_000;
/// Of so many keys it is told when those that wait for them have started.
const FORETOLD: usize = 100;
/// Of more than so many it is not asked at all.
const MAX_ASKED: usize = 20_000;

/// How long a scrape waits for what only the store knows.
const ASKING: Duration = Duration::from_secs(2);

/// Sets the gauges that are read rather than counted, and makes the page; called at each scrape. While the store is slow
/// to answer, what only it knows stays as it was.
pub(crate) async fn measured(sidecar: &Sidecar, page: impl FnOnce() -> String) -> String {
    let _late = tokio::time::timeout(ASKING, measure_out(sidecar)).await;
    let now = Snapshot::of(sidecar, SHARED).await;
    let _late = tokio::time::timeout(ASKING, foretell(sidecar, &now)).await;
    // Another scrape would show one half of its numbers and one of these.
    let _alone = sidecar.snapshot.page.lock();
    measure_here(sidecar, &now);
    page()
}

/// How many jobs are out is read too: a claim that lapsed and was made again ends its slots inside the
/// store, where nothing counts it.
async fn measure_out(sidecar: &Sidecar) {
    if let Ok(out) = sidecar.jobs_out().await {
        sidecar.metrics.set("ojs_throttle_slots", &[], out);
    }
    let calling = &sidecar.calling;
    (sidecar.metrics).set("ojs_throttle_calls_out", &[], calling.out());
    let waiting = calling.lines.all_waiting();
    (sidecar.metrics).set("ojs_throttle_calls_waiting", &[], waiting);
    let (own, shared) = sidecar.metrics.named();
    // Of a budget the store sums what its calls have paid: tokens or money, and no number of jobs.
    let live = sidecar.live();
    let is_of_jobs = |key: &Key| live.settings.budget_of(key).is_none();
    if !own.is_empty()
        && let Ok(active) = sidecar.store.active(&own).await
    {
        for (of, active) in own.iter().zip(active) {
            let is_told = of.0 != Space::Job || is_of_jobs(&of.1);
            let jobs = if is_told { active.into() } else { f64::NAN };
            sidecar.metrics.active(of, jobs);
        }
    }
    if !shared {
        return;
    }
    let own: HashSet<(Space, Key)> = own.into_iter().collect();
    let named = sidecar.control.named.keys().into_iter().filter(is_of_jobs);
    let all = named.map(|key| (Space::Job, key));
    let others: Vec<_> = all.filter(|key| !own.contains(key)).collect();
    if let Some(out) = out_of(sidecar, &others).await {
        sidecar.metrics.others_active(out);
    }
}

/// When the last of those has started that wait for each key now. The store is asked about keys for which some wait.
async fn foretell(sidecar: &Sidecar, now: &Arc<Snapshot>) {
    let (own, _) = sidecar.metrics.named();
    let each = own.iter();
    let each = each.map(|(space, key)| (waiting_for(sidecar, now, *space, key), (*space, key)));
    let mut keys: Vec<_> = each.filter(|(waiting, _)| *waiting > 0).collect();
    keys.sort_unstable_by_key(|(waiting, _)| Reverse(*waiting));
    keys.truncate(FORETOLD);
    let keys: Vec<_> = keys.into_iter().map(|(_, of)| of).collect();
    let facts = KeyFacts::here(sidecar, Arc::clone(now));
    let views = match keys.is_empty() {
        true => Ok(Vec::new()),
        false => limits::views(sidecar, &keys, &facts).await,
    };
    let views = views.unwrap_or_default();
    let ends = keys.iter().zip(&views).filter_map(|((space, key), view)| {
        let view = view.as_ref()?;
        let left = view.done?.at.since(view.now);
        let labels = vec![("key", space.name_of(key).into_owned())];
        Some((labels, left as f64 / 1e6))
    });
    (sidecar.metrics).set_all("ojs_throttle_waiting_done_seconds", ends);
}

/// How many jobs and calls wait for a key. No series is of all keys of a policy.
fn waiting_for(sidecar: &Sidecar, now: &Snapshot, space: Space, key: &Key) -> u64 {
    match space {
        Space::Queue => now.queue(&limits::queue_of(now, key)).waiting(),
        Space::Job => now.waiting_for(key) + sidecar.calling.lines.waiting(key) as u64,
        Space::Policy => 0,
    }
}

/// How many jobs of these keys are out in all: not a number where they are too many to ask for; `None` where the
/// store does not say, or there are none. They cannot be counted here: what starts through one sidecar may end
/// through another.
async fn out_of(sidecar: &Sidecar, keys: &[(Space, Key)]) -> Option<f64> {
    if sidecar.store.is_shared() && keys.len() > MAX_ASKED {
        return Some(f64::NAN);
    }
    let mut out = None;
    for some in keys.chunks(AT_ONCE) {
        let active = sidecar.store.active(some).await.ok()?;
        // In memory nothing is waited for, and there may be very many.
        tokio::task::yield_now().await;
        *out.get_or_insert(0.0) += active.into_iter().map(f64::from).sum::<f64>();
    }
    out
}

/// The gauges that no store is asked for.
fn measure_here(sidecar: &Sidecar, now: &Snapshot) {
    let metrics = &sidecar.metrics;
    metrics.set_time("ojs_throttle_snapshot_timestamp_seconds", now.at);
    let (own, shared) = metrics.named();
    let waiting = |space: Space, key: &Key| waiting_for(sidecar, now, space, key);
    if shared {
        let mut others: HashSet<Key> = sidecar.calling.lines.keys().into_iter().collect();
        others.extend(now.waited_for().cloned());
        for (_, key) in own.iter().filter(|(space, _)| *space == Space::Job) {
            others.remove(key);
        }
        metrics.others_waiting(others.iter().map(|key| waiting(Space::Job, key)).sum());
    }
    metrics.waiting(&waiting);
    measure_limits(sidecar, now);
    for (policy, tally) in &now.shadow {
        let policy = ("policy", &**policy);
        let verdicts = ["started", "waited", "dropped", "unknown"];
        for (verdict, jobs) in verdicts.into_iter().zip(tally.ever()) {
            let labels = [policy, ("verdict", verdict)];
            metrics.count_to("ojs_throttle_shadow_jobs_total", &labels, jobs);
        }
    }
    let waiting = now.shadow.iter().map(|(policy, tally)| {
        let labels = vec![("policy", policy.to_string())];
        (labels, tally.waiting as f64)
    });
    metrics.set_all("ojs_throttle_shadow_waiting", waiting);
    let levels = now.queues.iter();
    let levels = levels
        .filter_map(|(queue, here)| Some((Arc::clone(queue), here.level.as_ref()?.pressure())));
    metrics.pressure(&levels.collect::<Vec<_>>());
    measure_load(sidecar);
    measure_whole(sidecar, now);
}

/// The series without labels.
fn measure_whole(sidecar: &Sidecar, now: &Snapshot) {
    let held = now.queues.iter().filter(|(_, here)| here.held > 0);
    let full = held.filter_map(|(queue, _)| FullLookahead::that_hides_others(sidecar, now, queue));
    let mut spread = SpreadOfQueue::default();
    let queues = now.queues.values();
    for shown in queues.filter_map(|here| here.subqueues.as_deref()) {
        let here = SpreadOfQueue::of(shown);
        spread.shared += here.shared;
        spread.out_of_reach += here.out_of_reach;
    }
    let store = &sidecar.store;
    let overrides = store.overrides().len();
    let paused = policies::paused(sidecar, &now.live);
    let blocked = sidecar.admit.pressure.blocked();
    let connections = sidecar.tasks.threads.sum(|load| &load.connections);
    let gauges = [
        ("ojs_throttle_held_jobs", now.held.jobs),
        ("ojs_throttle_held_bytes", now.held.bytes),
        ("ojs_throttle_hold_capacity", now.most.jobs),
        ("ojs_throttle_lookahead_full_queues", full.count()),
        ("ojs_throttle_subqueues_shared", spread.shared),
        ("ojs_throttle_subqueues_out_of_reach", spread.out_of_reach),
        ("ojs_throttle_store_up", now.store_up.into()),
        ("ojs_throttle_siblings", now.siblings),
        ("ojs_throttle_overrides_active", overrides),
        ("ojs_throttle_paused_keys", paused),
        ("ojs_throttle_blocked_enqueues", blocked),
        ("ojs_throttle_connections", connections),
        ("ojs_throttle_backend_up", now.backend_up.into()),
    ];
    for (name, now) in gauges {
        sidecar.metrics.set(name, &[], now);
    }
    let (granted, unused) = store.turns();
    for (name, ever) in [
        ("ojs_throttle_store_wiped_total", store.facts().times_wiped),
        ("ojs_throttle_store_errors_total", now.store_errors),
        ("ojs_throttle_reserved_turns_total", granted),
        ("ojs_throttle_reserved_turns_unused_total", unused),
    ] {
        sidecar.metrics.count_to(name, &[], ever);
    }
}

/// The numbers of the config that are in force. An override counts where it is set for the policy, or the policy has one
/// key only: those of single keys are too many to show.
fn measure_limits(sidecar: &Sidecar, now: &Snapshot) {
    let live = &now.live;
    let (set, now) = (sidecar.store.overrides(), sidecar.store.now());
    let policies = live.policies.policies().iter();
    let policies = policies.map(|policy| (&policy.name, &policy.key, &policy.limits));
    // Budgets limit what calls use, and not how many start.
    let ways = live.settings.egress.iter();
    let ways = ways.filter_map(|way| Some((&way.name, &way.key, way.own_limits()?)));
    let by_policy = policies.chain(ways).flat_map(|(name, key, limits)| {
        let now_in_force = match key.constant() {
            Some(key) => {
                let one = Limited::new(Space::Job, key.clone(), limits.clone(), Arc::clone(name));
                with_set(set, &one, now)
            }
            None => set.of_policy(name, now).map(|set| set.over(limits)),
        };
        let limits = now_in_force.as_ref().unwrap_or(limits);
        numbers_of(&[("policy", name)], limits)
    });
    let by_queue = live.policies.queues().iter().flat_map(|queue| {
        let labels = [("policy", "queue"), ("queue", queue.name.as_str())];
        let by_hand = set_for_queue(sidecar, queue.name.as_str());
        // By hand a [[queue]] of the file is only made stricter.
        let by_hand = by_hand.map(|set| strictest(set.limits.clone(), queue.limits.clone()));
        numbers_of(&labels, by_hand.as_ref().unwrap_or(&queue.limits))
    });
    sidecar.metrics.limits(by_policy.chain(by_queue));
}

/// The gauges of the way in and of the way out.
fn measure_load(sidecar: &Sidecar) {
    let threads = &sidecar.tasks.threads;
    // Those whose clients hung up keep their places.
    let ordinary = threads.sum(|load| &load.ordinary) + sidecar.left_behind(Urgency::Ordinary);
    let urgent = threads.sum(|load| &load.urgent) + sidecar.left_behind(Urgency::Urgent);
    for (kind, requests) in [("ordinary", ordinary), ("urgent", urgent)] {
        let labels = [("kind", kind)];
        (sidecar.metrics).set("ojs_throttle_requests_in_flight", &labels, requests);
    }
    for (egress, code, ever, _) in sidecar.metrics.service_answers() {
        let labels = [("egress", &*egress), ("code", &*code)];
        (sidecar.metrics).count_to("ojs_throttle_egress_answers_total", &labels, ever);
    }
    for (egress, is_away) in sidecar.calling.away() {
        let up = usize::from(!is_away);
        (sidecar.metrics).set("ojs_throttle_service_up", &[("egress", &*egress)], up);
    }
}

/// Each number of some limits, with its labels beside those `of` whose they are; of starts it has a strategy.
fn numbers_of(of: &[(&'static str, &str)], limits: &Limits) -> Vec<(Labels, u32)> {
    let whose = of.iter().map(|(name, value)| (*name, (*value).to_owned()));
    let of = |strategy: Strategy| -> Labels {
        let said = ("strategy", strategy.as_str().to_owned());
        whose.clone().chain([said]).collect()
    };
    let slots = limits
        .concurrency
        .map(|slots| (whose.clone().collect(), slots));
    let rates = limits.rates.iter().map(|rate| {
        let mut labels = of(Strategy::Rate);
        labels.push(("period", numbers::period(rate).into_owned()));
        labels.push(("window", rate.window.as_str().to_owned()));
        (labels, rate.limit.get())
    });
    let spacing = limits.throttle.map(|throttle| {
        let mut labels = of(Strategy::Throttle);
        labels.push(("period", duration::iso(throttle.period.get())));
        (labels, throttle.limit.get())
    });
    slots.into_iter().chain(rates).chain(spacing).collect()
}
