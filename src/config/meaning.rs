//! What a file means, in one line for each policy, queue and tenant.

use super::Settings;
use crate::duration;
use crate::limit::{Limits, OnLimit, Rate, Throttle, WindowKind};
use crate::policy::{Match, Pattern, Policy};
use crate::pressure::Given;

/// One line for each entry of the file, in its order: who is limited, and how.
pub(super) fn meaning(settings: &Settings) -> Vec<String> {
    let policies = settings.policies.policies().iter().map(of_policy);
    let limited = settings.policies.queues().iter().map(|queue| {
        let limits = of_limits(&queue.limits).join(", ");
        format!("{}: {limits}", queue_name(&queue.name))
    });
    let bounded = settings.bounds.entries.iter();
    let bounded = bounded.filter_map(|(name, given)| {
        let bounds = of_bounds(given);
        (!bounds.is_empty()).then(|| format!("{}: {}", queue_name(name), bounds.join(", ")))
    });
    let tenants = settings
        .bounds
        .tenants
        .iter()
        .map(|(name, most)| match most {
            0 => format!("tenant {}: any number of jobs waits", name.as_str()),
            most => format!("tenant {}: at most {most} jobs wait", name.as_str()),
        });
    policies
        .chain(limited)
        .chain(bounded)
        .chain(tenants)
        .collect()
}

fn of_policy(policy: &Policy) -> String {
    let mut parts = of_limits(&policy.limits);
    parts.push(match policy.key.constant() {
        Some(key) => format!("key \"{key}\""),
        None => format!("a key for each {}", policy.key.as_str()),
    });
    parts.extend(match policy.on_limit {
        OnLimit::Wait => None,
        OnLimit::Reschedule => Some("the others are rescheduled".to_owned()),
        OnLimit::Drop => Some("the others are discarded".to_owned()),
    });
    let (name, who) = (&policy.name, of_match(&policy.matching));
    format!("{name}: {who}: {}", parts.join(", "))
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

fn of_limits(limits: &Limits) -> Vec<String> {
    let slots = limits.concurrency.map(|most| match most {
        0 => "paused".to_owned(),
        most => format!("{most} at once"),
    });
    let rates = limits.rates.iter().map(of_rate);
    let throttle = limits.throttle.as_ref().map(of_throttle);
    slots.into_iter().chain(rates).chain(throttle).collect()
}

fn of_rate(rate: &Rate) -> String {
    let (limit, period) = (rate.limit, duration::short(rate.period.get()));
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
    let depth = given.max_depth.filter(|most| *most > 0);
    let depth = depth.map(|most| format!("at most {most} jobs wait"));
    let bytes = given.max_bytes.filter(|most| *most > 0);
    let bytes = bytes.map(|most| format!("at most {most} bytes wait"));
    depth.into_iter().chain(bytes).collect()
}

fn queue_name(name: &Pattern) -> String {
    match name.is_glob() {
        true => format!("each queue {}", name.as_str()),
        false => format!("queue {}", name.as_str()),
    }
}
