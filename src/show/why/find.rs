//! Finds the causes that hold now: those of one limit, and of one queue. No job is claimed for
//! it, and nothing is changed.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::bounds::{BoundMet, Level, OverflowStrategy};
use crate::desk::Sidecar;
use crate::desk::snapshot::Snapshot;
use crate::desk::whole::store_error;
use crate::inquiry::in_force;
use crate::inquiry::lookahead::FullLookahead;
use crate::inquiry::shape::{LimitView, limits_in_log, rfc3339};
use crate::limit::{Limits, OnLimit, Refusal, Space, Strategy, Timestamp, WindowKind};
use crate::policy::{Currency, nearest, numbers};
use crate::show::policies;
use crate::store::Override;
use crate::store::guard::{LostMode, OnStoreError};
use crate::told::causes::{self, Cause, named, quoted};
use crate::wire::ojs::shell_word;

/// Workers that have asked for nothing for so long are told of.
const SILENT: Duration = Duration::from_secs(10);

/// So many keys without room are named.
const NAMED: usize = 5;

/// Why a limit lets this job not start, or the next one; and its refusal, where the limit itself refuses.
pub(in crate::show) async fn of_limit(
    sidecar: &Sidecar,
    view: &LimitView,
    job: &str,
) -> (Option<Refusal>, Option<Cause>) {
    let limited = &view.limited;
    if limited.space == Space::Policy {
        return (None, of_policy(sidecar, view));
    }
    if let Some(set) = view.set.as_ref().filter(|_| !view.binds) {
        let known: [(&str, &dyn Display); 3] = [
            ("what", &named(limited.space, &view.name)),
            ("name", &shell_word(&view.name)),
            ("set", &set_by_hand(set, None)),
        ];
        return (None, Some(Cause::new(&causes::BINDS_NOTHING, &known)));
    }
    let lost = sidecar.store.lost_mode(limited);
    let by_mode = match &lost {
        None | Some(LostMode::As(OnStoreError::Share)) => None,
        Some(LostMode::As(OnStoreError::Open)) => return (None, None),
        Some(LostMode::As(OnStoreError::Closed)) => Some(&causes::STORE_CLOSED),
        Some(LostMode::NeverThere) => Some(&causes::STORE_NEVER),
    };
    let what = named(limited.space, &view.name);
    let of_store = |kind| {
        let part = store_part(sidecar, view);
        let error = store_error(sidecar);
        Cause::new(kind, &[("what", &what), ("part", &part), ("error", &error)])
    };
    if let Some(kind) = by_mode {
        return (None, Some(of_store(kind)));
    }
    let pays = if job.is_empty() {
        1
    } else {
        limited.cost.pays.get()
    };
    if let Some(refusal) = view.refused(job, pays) {
        let cause = refused_by(sidecar, view, &refusal);
        return (Some(refusal), Some(cause));
    }
    if lost.is_none() {
        return (None, None);
    }
    let cause = match sidecar.store.room(std::slice::from_ref(limited)).await {
        Ok(room) if room.starts > 0 => None,
        Ok(room) => Some(of_store(&causes::STORE_SHARE).until(room.at.filter(|_| !room.slot))),
        Err(_) => Some(of_store(&causes::STORE_SHARE)),
    };
    (None, cause)
}

/// That a budget has less left than one of its calls may use.
pub(super) fn little_left(sidecar: &Sidecar, view: &LimitView) -> Option<Cause> {
    let live = sidecar.live();
    let budget = live.settings.budget_of(&view.limited.key)?;
    let refusal = view.refused("", budget.max.get())?;
    let left = refusal.limit.saturating_sub(refusal.current);
    let known: [(&str, &dyn Display); 3] = [
        ("left", &view.shown(left)),
        ("limit", &view.shown(refusal.limit)),
        ("what", &named(view.limited.space, &view.name)),
    ];
    Some(Cause::new(&causes::LITTLE_LEFT, &known))
}

/// That a policy limits each of its keys alone, and which of those that are known have no room.
pub(super) fn each_key(policy: &str, keys: usize, full: &[String]) -> Cause {
    let named_ones = full.iter().take(NAMED).map(|name| quoted(name));
    let mut names = named_ones.collect::<Vec<_>>().join(", ");
    if !names.is_empty() {
        names.insert_str(0, ": ");
    }
    let known: [(&str, &dyn Display); 4] = [
        ("policy", &quoted(policy)),
        ("full", &full.len()),
        ("keys", &keys),
        ("names", &names),
    ];
    Cause::new(&causes::EACH_KEY, &known)
}

/// What is said of all keys of a policy: that they are paused, or that nothing has its name.
fn of_policy(sidecar: &Sidecar, view: &LimitView) -> Option<Cause> {
    if policies::numbers(&sidecar.live(), &view.name).is_some() {
        return view
            .refused("", 1)
            .map(|refusal| refused_by(sidecar, view, &refusal));
    }
    let set = view.set.as_ref().map(|set| set_by_hand(set, None));
    let known: [(&str, &dyn Display); 3] = [
        ("policy", &quoted(&view.name)),
        ("of_policy", &shell_word(&view.name)),
        ("set", &set.unwrap_or_default()),
    ];
    Some(Cause::new(&causes::NOT_IN_FILE, &known))
}

/// How much of a limit is this sidecar's while the store does not answer.
fn store_part(sidecar: &Sidecar, view: &LimitView) -> String {
    let limited = &view.limited;
    let Some((part, parts)) = sidecar.store.part_of(limited) else {
        return String::new();
    };
    match (part.concurrency, limited.limits.concurrency) {
        (Some(slots), Some(all)) if view.usage.active >= slots => {
            format!(": {slots} of {all} slots, those that it had when the store went")
        }
        _ => format!(": one of {parts} parts"),
    }
}

/// What a limit that refuses has used up; and that its jobs are discarded, where that is so.
fn refused_by(sidecar: &Sidecar, view: &LimitView, refusal: &Refusal) -> Cause {
    let (cause, limited) = (of_refusal(view, refusal), &view.limited);
    let live = sidecar.live();
    let mut drops = live.policies.policies().iter();
    let drops = drops.any(|one| one.on_limit == OnLimit::Drop && one.name == limited.policy);
    if limited.on_limit != OnLimit::Drop && !drops {
        return cause;
    }
    let known: [(&str, &dyn Display); 3] = [
        ("what", &named(limited.space, &view.name)),
        ("rest", &cause.why),
        ("do", &cause.advice),
    ];
    Cause::new(&causes::DROPS, &known).until(cause.until)
}

/// What has slots, and until when what is dead has them.
const OF_JOBS: (&str, &str) = (
    "jobs below",
    "the slot of a dead worker is free after its visibility timeout",
);
const OF_CALLS: (&str, &str) = (
    "jobs and calls below",
    "a dead worker has its slot for its visibility timeout, and a dead sidecar has those of its calls for their `lease`",
);

/// What a limit that refuses has used up, and what helps.
fn of_refusal(view: &LimitView, refusal: &Refusal) -> Cause {
    let limited = &view.limited;
    let slots = limited.limits.concurrency.unwrap_or(0);
    let binds = |set: &&Arc<Override>| is_binding(set, refusal);
    let own = view.set.as_ref().filter(binds).map(|set| (None, set));
    let of_policies = view.of_policies.iter();
    let mut of_policies = of_policies.map(|(policy, set)| (Some(policy), set));
    let set = own.or_else(|| of_policies.find(|(_, set)| binds(set)));
    let (policy, set) = set.unzip();
    let kind = match refusal.strategy {
        Strategy::Concurrency if slots == 0 && set.is_some() => &causes::PAUSED,
        Strategy::Concurrency if slots == 0 => &causes::NO_SLOTS,
        Strategy::Concurrency => &causes::SLOTS,
        Strategy::Rate if refusal.current < refusal.limit || view.is_of_budget() => &causes::COST,
        Strategy::Rate => &causes::RATE,
        Strategy::Throttle => &causes::SPACING,
        Strategy::Shut => &causes::SHUT,
        Strategy::Line => &causes::LINE,
    };
    let name = match (limited.space, policy.flatten()) {
        (Space::Job, Some(policy)) => format!("--policy {policy}"),
        (Space::Job, None) => shell_word(&view.name),
        (Space::Queue, _) => shell_word(&format!("_queue:{}", view.name)),
        (Space::Policy, _) => format!("--policy {}", limited.key),
    };
    let pays = limited.cost.pays.get();
    let needs = match pays {
        1 => String::new(),
        _ => format!(", and the job costs {pays}"),
    };
    let (out, dead) = if view.calls.0 == 0 { OF_JOBS } else { OF_CALLS };
    let next = view.next_start(Some(refusal));
    let until = next.or(refusal.at).map(rfc3339).unwrap_or_default();
    let known: [(&str, &dyn Display); 12] = [
        ("what", &named(limited.space, &view.name)),
        ("name", &name),
        ("taken", &view.usage.active),
        ("slots", &slots),
        ("used", &view.shown(refusal.current)),
        ("limit", &view.shown(refusal.limit)),
        ("needs", &needs),
        ("out", &out),
        ("dead", &dead),
        ("until", &until),
        (
            "set",
            &set.map(|set| set_by_hand(set, policy.flatten()))
                .unwrap_or_default(),
        ),
        (
            "raise",
            &raise(view, set.map(AsRef::as_ref), refusal.strategy, &name),
        ),
    ];
    Cause::new(kind, &known).until(next)
}

/// Whether the number that refuses was set by hand.
fn is_binding(set: &Override, refusal: &Refusal) -> bool {
    match refusal.strategy {
        Strategy::Concurrency => set.limits.concurrency == Some(refusal.limit),
        Strategy::Rate | Strategy::Line => {
            let mut rates = set.limits.rates.iter();
            rates.any(|rate| rate.limit.get() == refusal.limit)
        }
        Strategy::Throttle => set.limits.throttle.is_some(),
        Strategy::Shut => false,
    }
}

/// Who set a limit, for all keys of which policy, why, and until when.
fn set_by_hand(set: &Override, policy: Option<&Arc<str>>) -> String {
    let of = policy.map_or_else(String::new, |policy| format!(" for policy {policy:?}"));
    let told = [("by", &set.by), ("because", &set.reason)].into_iter();
    let told = told.filter_map(|(word, text)| Some(format!(" {word} {:?}", text.as_ref()?)));
    let until = match set.expires_at {
        Some(at) => format!(" until {}", rfc3339(at)),
        None => " until somebody takes it away".to_owned(),
    };
    format!("; set by hand{of}{}{until}", told.collect::<String>())
}

/// How more may start under a limit.
fn raise(view: &LimitView, set: Option<&Override>, strategy: Strategy, name: &str) -> String {
    let limited = &view.limited;
    // By hand a [[queue]] of the file is only made stricter.
    if set.is_some() && limited.space == Space::Queue {
        return format!("take away what was set by hand: `ojs-throttle clear {name} --override`");
    }
    let place = match &*limited.policy {
        "job" => "raise the limit that the jobs bring",
        _ => "raise the limit in the file",
    };
    if limited.space == Space::Queue {
        return place.to_owned();
    }
    // The first in line waits for whatever the key has.
    let limits = &limited.limits;
    let strategy = match strategy {
        Strategy::Line if limits.rates.is_empty() && limits.throttle.is_some() => {
            Strategy::Throttle
        }
        Strategy::Line if limits.rates.is_empty() => Strategy::Concurrency,
        other => other,
    };
    // What has no end is not given one by the way.
    let is_endless = set.is_some_and(|set| set.expires_at.is_none());
    let lasts = if is_endless { "" } else { " --for 1h" };
    let blanks = |own: Limits| {
        let stands = set.or(view.set.as_deref());
        let text = with_blanks(&own, stands, view.currency.as_ref());
        format!("--override {}{lasts}", shell_word(&text))
    };
    let option = match strategy {
        Strategy::Concurrency => format!("--concurrency N{lasts}"),
        // The option would lose the burst.
        Strategy::Throttle if limits.throttle.is_some_and(|of| !of.is_plain()) => blanks(Limits {
            throttle: limits.throttle,
            ..Limits::default()
        }),
        Strategy::Throttle => format!("--throttle N/1s{lasts}"),
        Strategy::Rate | Strategy::Line | Strategy::Shut => {
            let code = view.currency.as_ref().map(Currency::code);
            let unit = code.map_or_else(String::new, |code| format!(" {code}"));
            match limited.limits.rates.as_slice() {
                [] => format!("--rate N/1m{lasts}"),
                // Another window would begin empty.
                [rate] if rate.window == WindowKind::Sliding => {
                    let text = format!("N{unit}/{}", numbers::period(rate));
                    format!("--rate {}{lasts}", shell_word(&text))
                }
                _ => blanks(Limits {
                    rates: limits.rates.clone(),
                    ..Limits::default()
                }),
            }
        }
    };
    match set {
        // It may be looser than the file.
        Some(_) => format!(
            "set a larger number by hand: `ojs-throttle limit {name} {option}`; the file's counts again after \
             `ojs-throttle clear {name} --override`"
        ),
        None => format!("{place}, or by hand: `ojs-throttle limit {name} {option}`"),
    }
}

/// These windows or this spacing as an override has them, with N in the place of each limit. What else is `set` stands
/// beside them, for an override replaces all.
fn with_blanks(own: &Limits, set: Option<&Override>, currency: Option<&Currency>) -> String {
    let members = |limits| -> Map<String, Value> {
        serde_json::from_str(&limits_in_log(limits, currency)).unwrap_or_default()
    };
    let mut own = members(own);
    let blank = currency.map_or_else(|| "N".to_owned(), |of| format!("N {}", of.code()));
    let each = own.values_mut().flat_map(|one| match one {
        Value::Array(several) => several.as_mut_slice(),
        one => std::slice::from_mut(one),
    });
    for one in each.filter_map(Value::as_object_mut) {
        one.insert("limit".to_owned(), blank.clone().into());
    }
    let mut all = set.map(|set| members(&set.limits)).unwrap_or_default();
    all.append(&mut own);
    let text = Value::Object(all).to_string();
    match currency {
        Some(_) => text,
        None => text.replace("\"N\"", "N"),
    }
}

/// Whether it is said before what limits a queue's jobs: nothing of the queue is asked for.
pub(crate) fn stands_before_limits(cause: &Cause) -> bool {
    [&causes::QUEUE_PAUSED, &causes::LOOKAHEAD].contains(&cause.kind)
}

/// The queue is paused at the backend.
pub(super) fn paused(queue: &str) -> Cause {
    Cause::new(&causes::QUEUE_PAUSED, &[("queue", &quoted(queue))])
}

/// What is known of a queue beside its limits, first what weighs most.
pub(crate) fn of_queue(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> Vec<Cause> {
    let mut found = Vec::new();
    let here = now.queue(queue);
    if here.is_paused {
        found.push(paused(queue));
    }
    found.extend(FullLookahead::that_hides_others(sidecar, now, queue).map(|full| full.cause()));
    found.extend(out_of_reach(now, queue));
    let name = quoted(queue);
    let lanes = now.held.lanes(queue);
    let is_silent = is_silent(sidecar, now, queue);
    if is_silent && !here.is_empty() && needs_worker_here(sidecar, now, queue) {
        let silence = lanes.iter().map(|lane| lane.fetched_at.elapsed()).min();
        let lately = match silence {
            Some(since) => format!(" for {} s", since.as_secs()),
            None => " lately".to_owned(),
        };
        let known: [(&str, &dyn Display); 2] = [("queue", &name), ("lately", &lately)];
        found.push(Cause::new(&causes::NOBODY_ASKS, &known));
    }
    let without_any = sidecar.scopes.of(&HeaderMap::new());
    for lane in lanes {
        let silence = lane.fetched_at.elapsed();
        // Who needs no credentials waits for any worker.
        let is_told = is_silent && lane.scope == without_any;
        if silence >= SILENT && lane.held > 0 && !is_told {
            let seconds = silence.as_secs();
            let known: [(&str, &dyn Display); 2] = [("jobs", &lane.held), ("seconds", &seconds)];
            found.push(Cause::new(&causes::CREDENTIALS, &known));
        }
    }
    let level = here.level.as_ref();
    if let Some(level) = level.filter(|level| level.pressure() >= 1.0) {
        found.push(full(sidecar, queue, level));
    }
    found.extend(refused_lately(sidecar, queue));
    found
}

/// No worker asks for a queue without limits, in which jobs wait. Only `why` says so: workers may take them
/// from the backend itself.
pub(super) fn nobody_asks(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> Option<Cause> {
    let here = now.queue(queue);
    let depth = here.level.as_ref().map_or(0, |level| level.depth);
    let is_silent = is_silent(sidecar, now, queue) && !needs_worker_here(sidecar, now, queue);
    let known: [(&str, &dyn Display); 2] = [("queue", &quoted(queue)), ("lately", &" lately")];
    let waits = here.waiting().max(depth) > 0;
    (waits && is_silent).then(|| Cause::new(&causes::NOBODY_ASKS, &known))
}

/// The queue takes no more jobs: what becomes of new ones, who says so, and what helps.
fn full(sidecar: &Sidecar, queue: &str, level: &Level) -> Cause {
    let pressure = &sidecar.admit.pressure;
    let strategy = pressure.bounds(queue).map(|bounds| bounds.strategy);
    let happens = match strategy.unwrap_or_default() {
        OverflowStrategy::Reject => "producers get 429",
        OverflowStrategy::Block => "producers wait for room, or get 429",
        OverflowStrategy::DropOldest if sidecar.fetching.paused.has(queue) => "producers get 429",
        OverflowStrategy::DropOldest => "its oldest jobs are discarded for new ones",
    };
    let given = pressure.table().set_for(queue).cloned().unwrap_or_default();
    let of_http = match level.most.map(|most| most.met) {
        Some(BoundMet::Bytes) => given.max_bytes,
        _ => given.max_depth,
    };
    let (set, larger) = by_http(of_http, &format!("_queue:{queue}"));
    let over = level.max_depth.filter(|most| level.depth > *most);
    let over = over.map_or_else(String::new, |most| {
        let depth = level.depth;
        format!(
            "; {depth} jobs wait where {most} may: some came around the sidecar or failed and \
             came back, or the bound was made smaller"
        )
    });
    let known: [(&str, &dyn Display); 5] = [
        ("queue", &quoted(queue)),
        ("happens", &happens),
        ("set", &set),
        ("over", &over),
        ("larger", &larger),
    ];
    Cause::new(&causes::QUEUE_FULL, &known)
}

/// The queue refuses enqueues although it is not full: by a bound of a tenant, of a key or of a time, or because they
/// need more than is left.
fn refused_lately(sidecar: &Sidecar, queue: &str) -> Option<Cause> {
    let (pressure, now) = (&sidecar.admit.pressure, Instant::now());
    let last = pressure.last_refusal(queue, now)?;
    let given = pressure.table().set_for(queue).cloned().unwrap_or_default();
    let key = format!("_queue:{queue}");
    let (set, larger) = match (last.met, &last.key) {
        (BoundMet::Tenant, Some(tenant)) => {
            let set = pressure.table().tenant_set_for(tenant);
            by_http(set, &format!("_tenant:{tenant}"))
        }
        (BoundMet::Rate, _) => by_http(given.enqueue_rate, &key),
        (BoundMet::Depth, _) => by_http(given.max_depth, &key),
        (BoundMet::Bytes, _) => by_http(given.max_bytes, &key),
        _ => by_http(given.per_key, &key),
    };
    let first = match last.met {
        _ if !last.may_ever_fit => "let producers send fewer or smaller jobs at once",
        BoundMet::Rate => "let producers be slower",
        _ => "start more workers",
    };
    let known: [(&str, &dyn Display); 5] = [
        ("queue", &quoted(queue)),
        ("ago", &now.saturating_duration_since(last.at).as_secs()),
        ("message", &[&*last.why, set].concat()),
        ("first", &first),
        ("larger", &larger),
    ];
    Some(Cause::new(&causes::REFUSED, &known))
}

/// Who set a bound, and how there is a larger one. `set`: what HTTP says of it. `key`: what is bounded, as the admin port
/// calls it.
fn by_http<T>(set: Option<T>, key: &str) -> (&'static str, String) {
    let in_file = "set a larger bound in the file (see \"Producers get 429\")";
    let key = shell_word(key);
    match set {
        None => ("", in_file.to_owned()),
        Some(_) => (
            "; a bound over HTTP is in force now, until somebody takes it away",
            format!(
                "set a larger one over HTTP: `ojs-throttle limit {key} --bounds JSON`; the file's counts again after \
                 `ojs-throttle clear {key} --bounds`"
            ),
        ),
    }
}

/// Jobs in subqueues of a queue wait behind those of other keys, and are not looked for.
pub(crate) fn out_of_reach(now: &Snapshot, queue: &str) -> Option<Cause> {
    let shown = now.queue(queue).subqueues.iter().flatten();
    let out: Vec<_> = shown.filter(|one| one.out_of_reach).collect();
    let jobs: u64 = out.iter().map(|one| one.waiting).sum();
    let (queue, names) = (quoted(queue), out.len());
    let known: [(&str, &dyn Display); 3] = [("queue", &queue), ("names", &names), ("jobs", &jobs)];
    (names > 0).then(|| Cause::new(&causes::OUT_OF_REACH, &known))
}

/// What keeps each of these queues, where something does.
pub(crate) fn of_all_queues(sidecar: &Sidecar, now: &Snapshot, queues: &[Arc<str>]) -> Vec<Cause> {
    let of_each = queues.iter().map(|queue| {
        let mut causes = of_queue(sidecar, now, queue).into_iter();
        causes.find(|one| !one.lets_start())
    });
    let of_each: Option<Vec<Cause>> = of_each.collect();
    of_each.unwrap_or_default()
}

/// The queue has no job that can be fetched, as far as the backend says, beside those that siblings hold; `None`: it has,
/// or nobody knows.
pub(super) fn no_jobs(now: &Snapshot, queue: &str, elsewhere: u64) -> Option<Cause> {
    let kind = match elsewhere {
        0 => &causes::NO_JOBS,
        _ => &causes::HELD_ELSEWHERE,
    };
    if !now.queue(queue).is_empty() {
        return None;
    }
    let others = now.queues.iter().filter(|(_, here)| here.is_shown());
    let near = nearest(queue, others.map(|(name, _)| &**name));
    let near = near.map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"));
    let known: [(&str, &dyn Display); 3] = [
        ("queue", &quoted(queue)),
        ("jobs", &elsewhere),
        ("near", &near),
    ];
    Some(Cause::new(kind, &known))
}

/// Whether FETCHes of the queue are looked at. Those of a queue without limits pass unread.
fn fetches_are_seen(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> bool {
    in_force::limits_queue(sidecar, queue, &now.live.policies)
        || sidecar.fetching.limited.has(queue)
}

/// Whether the jobs of the queue need a worker that asks here: they are limited or held here.
fn needs_worker_here(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> bool {
    fetches_are_seen(sidecar, now, queue) || now.queue(queue).held > 0
}

/// Whether no worker has asked for the queue lately.
fn is_silent(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> bool {
    let mut lanes = now.held.lanes(queue).iter();
    lanes.all(|lane| lane.fetched_at.elapsed() >= SILENT)
        && (fetches_are_seen(sidecar, now, queue) || sidecar.fetching.asks.is_silent(queue, SILENT))
}

/// Which of two causes lets go later: who waits for a slot, or for something else without a time, waits longest. Slots
/// that somebody has to open come free with no job.
pub(super) fn lets_go(cause: &Cause) -> (bool, bool, Option<Timestamp>) {
    let is_closed = cause.kind == &causes::PAUSED || cause.kind == &causes::NO_SLOTS;
    (is_closed, cause.until.is_none(), cause.until)
}
