//! What a file means, in one line for each policy, queue and tenant.

use std::fmt;

use super::budget::Budget;
use super::choices::StoreUrl;
use super::egress::EgressSettings;
use super::settings::Settings;
use ojs_bounds::{Given, OverflowStrategy};
use ojs_duration as duration;
use ojs_limit::{Limits, OnLimit, Rate, Throttle, WindowKind};
use ojs_policy::subqueue::Spread;
use ojs_policy::{Match, Pattern, Policy, PolicySet, Prices, Sample, Template};
use ojs_reader::{EGRESS, POLICIES, QUEUES, TENANTS};

/// What a store in memory means where queues have subqueues.
pub const FORGETS_SUBQUEUES: &str = "the memory store forgets that with the process: a sidecar that starts without the setting looks once, and leaves what comes there later";

/// What an entry of the file means.
pub(super) struct Meaning<'a> {
    /// The list in which it stands.
    pub(super) list: &'static str,
    /// Its name, which may be a glob.
    pub(super) name: &'a str,
    /// Who is limited, and how.
    pub(super) text: String,
}

/// One line.
impl fmt::Display for Meaning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Meaning { list, name, text } = self;
        match *list {
            QUEUES if name.contains(['*', '?']) => write!(f, "each queue {name}: {text}"),
            QUEUES => write!(f, "queue {name}: {text}"),
            TENANTS => write!(f, "tenant {name}: {text}"),
            _ => write!(f, "{name}: {text}"),
        }
    }
}

/// What the entries of the file mean, in its order. Limits and bounds of a queue are two. Of some bounds nothing is said.
pub(super) fn meaning(settings: &Settings) -> Vec<Meaning<'_>> {
    let entry = |list, name, text| Meaning { list, name, text };
    let reach = of_reach(settings);
    let tried = settings.policies.shadow();
    let policies = with_tried(settings.policies.policies(), tried.map(PolicySet::policies));
    let policies = policies.map(|(policy, shadow)| {
        let text = of_policy(policy, settings, &reach);
        let text = of_sample(policy.matching.sample, shadow, &text);
        entry(POLICIES, &policy.name, text)
    });
    let limited = with_tried(settings.policies.queues(), tried.map(PolicySet::queues));
    let limited = limited.map(|(queue, shadow)| {
        let mut limits = of_limits(&queue.limits);
        limits.extend(of_prices(&queue.prices, &reach));
        let text = of_sample(queue.sample, shadow, &limits.join(", "));
        entry(QUEUES, queue.name.as_str(), text)
    });
    let bounded = with_tried(&settings.bounds.entries, Some(&settings.bounds.tried));
    let bounded = bounded.map(|((name, given), shadow)| {
        let bounds = of_bounds(given).join(", ");
        let shadow = if bounds.is_empty() { "" } else { shadow };
        entry(QUEUES, name.as_str(), format!("{shadow}{bounds}"))
    });
    let tenants = settings.bounds.tenants.iter();
    let tenants = tenants.map(|(name, most)| {
        let text = match most {
            0 => "any number of jobs waits".to_owned(),
            most => format!("at most {most} jobs wait"),
        };
        entry(TENANTS, name.as_str(), text)
    });
    let mut split: Vec<_> = settings.policies.subqueues().iter().collect();
    split.sort_unstable_by_key(|(name, _)| *name);
    let split = split.into_iter();
    let split = split.map(|(name, spread)| entry(QUEUES, name, of_subqueues(*spread, settings)));
    let queues = limited.chain(bounded).chain(split);
    let egress = settings.egress.iter();
    let egress = egress.map(|of| entry(EGRESS, &*of.name, of_egress(of)));
    policies
        .chain(queues)
        .chain(tenants)
        .chain(egress)
        .collect()
}

/// Entries, each with the word before what it means: that of the ones that are only tried says so.
fn with_tried<'a, T>(
    entries: &'a [T],
    tried: Option<&'a [T]>,
) -> impl Iterator<Item = (&'a T, &'static str)> {
    let tried = tried.unwrap_or_default().iter();
    let entries = entries.iter().map(|one| (one, ""));
    entries.chain(tried.map(|one| (one, "in shadow: ")))
}

/// For which jobs of those that an entry names it is so.
fn of_sample(sample: Sample, shadow: &str, text: &str) -> String {
    match sample {
        Sample::All => format!("{shadow}{text}"),
        Sample::First(percent) => format!("{shadow}{percent} in 100 of {text}"),
        Sample::AllBut(_) => format!("{shadow}the others of {text}"),
    }
}

/// `reach`: how many jobs of one key a FETCH looks past where they do not wait in subqueues.
fn of_policy(policy: &Policy, settings: &Settings, reach: &str) -> String {
    let queues = &policy.matching.queue;
    let subqueues = settings.policies.subqueues();
    let has_subqueues = |queue: &Pattern| subqueues.contains_key(queue.as_str());
    let is_split = !queues.is_empty() && queues.iter().all(has_subqueues);
    let mut parts = of_limits(&policy.limits);
    parts.extend(of_prices(&policy.prices, reach));
    if policy.prices.by_calls {
        parts.push("only their calls count".to_owned());
    }
    parts.push(of_key(&policy.key));
    // FETCH sees no further than what is held, and jobs that are dropped are not held.
    if policy.key.constant().is_none() && policy.on_limit != OnLimit::Drop {
        parts.push(match is_split {
            true => "others wait for no key but their own, by subqueues".to_owned(),
            false => format!("behind {reach} of one key all others wait"),
        });
    }
    parts.extend(match policy.on_limit {
        OnLimit::Wait => None,
        OnLimit::Reschedule => Some("the others are rescheduled".to_owned()),
        OnLimit::Drop => Some("the others are discarded".to_owned()),
    });
    format!("{}: {}", of_match(&policy.matching), parts.join(", "))
}

fn of_key(key: &Template) -> String {
    match key.constant() {
        Some(key) => format!("key \"{key}\""),
        None => format!("a key for each {}", key.as_str()),
    }
}

/// Which way calls go, and what limits them.
pub fn of_egress(of: &EgressSettings) -> String {
    let limits = of
        .limits
        .iter()
        .map(|(policy, limits, sample)| match sample {
            _ if *policy == of.name => of_limits(limits).join(", "),
            Sample::First(percent) => {
                format!("the limits of policy {policy} for {percent} of 100 calls")
            }
            _ => format!("the limits of policy {policy}"),
        });
    let fair = of.fair.as_ref();
    let fair = fair.map(|fair| format!("in turn by {}", fair.by.as_str()));
    let mut parts: Vec<String> = limits.chain(fair).chain([of_key(&of.key)]).collect();
    if of.limits.is_empty() {
        parts = vec!["no limit".to_owned()];
    }
    parts.extend(of.budgets.iter().map(|budget| of_budget(budget)));
    let to = match (&of.upstream, &of.hosts) {
        (None, Some(hosts)) => format!("the host that each names, one of {hosts}"),
        (Some(upstream), _) => upstream.to_string(),
        (None, None) => String::new(),
    };
    let vendor = of.vendor.map_or("none", |vendor| vendor.name);
    let parts = parts.join(", ");
    format!(
        "calls to {} go to {to}, vendor {vendor}: {parts}",
        of.listen
    )
}

fn of_budget(of: &Budget) -> String {
    let units = |units: u32| match &of.currency {
        Some(currency) => currency.show(units.into()),
        None => units.to_string(),
    };
    let rates = of.limits.rates.iter();
    let windows: Vec<String> = rates
        .map(|rate| of_window(rate, &units(rate.limit.get())))
        .collect();
    format!(
        "budget {:?} of {} with at most {} for a call, {}",
        of.name,
        windows.join(" and "),
        units(of.max.get()),
        of_key(&of.key)
    )
}

/// Which jobs are meant.
fn of_match(matching: &Match) -> String {
    let any = |patterns: &[Pattern]| {
        let texts = patterns.iter().map(Pattern::as_str);
        texts.collect::<Vec<_>>().join(" or ")
    };
    let mut of = Vec::new();
    if !matching.queue.is_empty() {
        of.push(format!("of queue {}", any(&matching.queue)));
    }
    if !matching.kind.is_empty() {
        of.push(format!("of type {}", any(&matching.kind)));
    }
    for (path, patterns) in &matching.meta {
        of.push(format!("with meta.{path} {}", any(patterns)));
    }
    match of.as_slice() {
        [] => "all jobs of every queue".to_owned(),
        _ => format!("jobs {}", of.join(" ")),
    }
}

fn of_subqueues(spread: Spread, settings: &Settings) -> String {
    let whose = match spread.is_salted() {
        true => "by a salt, so that nobody can reckon who shares one",
        false => {
            "and who chooses ids can reckon who shares one: if strangers do, set `subqueues_salt`, and `per_key` to 32"
        }
    };
    let text = format!(
        "jobs with a key of their own wait in {} subqueues, {whose}; with another key, fair, salt or number later jobs of \
         a tenant may start before earlier ones, and an enqueue that is sent again may be stored twice",
        spread.count
    );
    match settings.store.url {
        StoreUrl::Memory => format!("{text}; {FORGETS_SUBQUEUES}"),
        _ => text,
    }
}

fn of_limits(limits: &Limits) -> Vec<String> {
    let slots = limits.concurrency.map(|most| match most {
        0 => "paused".to_owned(),
        most => format!("{most} at once"),
    });
    let rates = limits.rates.iter();
    let rates = rates.map(|rate| of_window(rate, &rate.limit.to_string()));
    let throttle = limits.throttle.as_ref().map(of_throttle);
    slots.into_iter().chain(rates).chain(throttle).collect()
}

/// How many jobs of a queue a FETCH sees: nobody knows of jobs that are not held.
fn of_reach(settings: &Settings) -> String {
    let of = |claims_count| settings.hold.of_one_queue(claims_count);
    let (few, many) = (of(true), of(false));
    match settings.upstream.claims_count {
        None if few < many => {
            format!("{many} held jobs ({few} where a FETCH counts as an attempt)")
        }
        known => format!("{} held jobs", of(known == Some(true))),
    }
}

fn of_prices(prices: &Prices, reach: &str) -> Vec<String> {
    let cost = prices.cost.as_ref().map(|cost| match &cost.from {
        Some(from) => format!("each counts its {from}"),
        None => format!("each counts {}", cost.default),
    });
    let fair = prices.fair.as_ref();
    let fair = fair.map(|fair| format!("in turn by {} among {reach}", fair.by.as_str()));
    cost.into_iter().chain(fair).collect()
}

/// So much of whatever is limited.
fn of_window(rate: &Rate, limit: &str) -> String {
    let period = duration::short(rate.period.get());
    match &rate.window {
        WindowKind::Sliding => format!("{limit} in any {period}"),
        WindowKind::Fixed => format!("{limit} in each {period} by the clock"),
        WindowKind::Calendar(unit, zone) => {
            format!("{limit} in each {} of {}", unit.name(), zone.name())
        }
    }
}

fn of_throttle(throttle: &Throttle) -> String {
    let apart = throttle.period.get() / u64::from(throttle.limit.get());
    let apart = format!("at least {} apart", duration::short(apart));
    match throttle.burst.get() {
        1 => apart,
        burst => format!("{apart}, but {burst} may come at once"),
    }
}

fn of_bounds(given: &Given) -> Vec<String> {
    let waits = [(given.max_depth, "jobs"), (given.max_bytes, "bytes")].into_iter();
    let waits = waits.filter_map(|(most, of)| Some((most?, of)));
    let waits = waits.map(|(most, of)| match most {
        0 => format!("any number of {of} waits"),
        most => format!("at most {most} {of} wait"),
    });
    let keys = given.per_key.as_ref().filter(|keys| keys.max_depth > 0);
    let keys = keys.map(|keys| (keys.max_depth, keys.by.as_str()));
    let keys = keys.map(|(most, by)| format!("at most {most} jobs of each {by} wait"));
    let rate = given.enqueue_rate.as_ref();
    let rate = rate.map(|rate| of_window(rate, &format!("at most {} jobs come", rate.limit)));
    let beyond = match given.strategy {
        Some(OverflowStrategy::DropOldest) => Some("the oldest is discarded for a new one"),
        Some(OverflowStrategy::Block) => Some("producers wait for room"),
        _ => None,
    };
    let bounds = waits.chain(keys).chain(rate);
    bounds.chain(beyond.map(str::to_owned)).collect()
}
