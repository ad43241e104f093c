//! When what waits now for a limit will have started, as far as that limit decides.

use std::iter;
use std::time::Duration;

use crate::duration;
use crate::limit::{KeyState, Limits, Measure, Timestamp};

/// So many starts are played through; each stands for some jobs where more wait.
const PLAYED: u64 = 256;
/// With fewer run times nobody knows how long slots are taken.
const LEAST_RUNS: usize = 20;
/// At a normal distribution four of five values are within so many deviations.
const DEVIATIONS: f64 = 1.28;

/// When the last of those that wait will have started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    /// The most likely time.
    pub(crate) at: Timestamp,
    /// In four of five cases it is within these.
    pub(crate) within: (Timestamp, Timestamp),
}

impl Done {
    /// What is known of `waiting` jobs that pay 1 each, before which nobody else starts, where this limit is what they wait
    /// for. `None`: a pause decides, how long jobs run shortens their spacing, or it is not known how long slots are taken.
    pub(crate) fn of(
        state: &KeyState,
        limits: &Limits,
        waiting: u64,
        runs: &[Duration],
        now: Timestamp,
    ) -> Option<Done> {
        let spacing = limits.throttle;
        if spacing.is_some_and(|spacing| spacing.measure == Measure::Completion) {
            return None;
        }
        let by_time = by_time(state, limits, waiting, now)?;
        let spread = by_time.since(now) / 10;
        // None before the first may start.
        let refused = state.ask(limits, 1, now).err();
        let first = refused.and_then(|refused| refused.at);
        let from = Timestamp(by_time.0 - spread).max(first.unwrap_or(now).min(by_time));
        let done = Done {
            at: by_time,
            within: (from, by_time.plus(spread)),
        };
        let Some(slots) = limits.concurrency else {
            return Some(done);
        };
        let by_slots = by_slots(state.active(), slots, waiting, runs, now)?;
        Some(if by_slots.at > done.at {
            by_slots
        } else {
            done
        })
    }

    /// As a member of a limit's state.
    pub(crate) fn to_json(self) -> String {
        let [at, from, to] =
            [self.at, self.within.0, self.within.1].map(|at| duration::rfc3339(at.0));
        format!(r#"{{"at":"{at}","from":"{from}","to":"{to}"}}"#)
    }
}

/// When the last one starts by windows, spacing and a shut key: the limiter itself plays it.
fn by_time(state: &KeyState, limits: &Limits, waiting: u64, now: Timestamp) -> Option<Timestamp> {
    let limits = Limits {
        concurrency: None,
        ..limits.clone()
    };
    let windows = limits.rates.iter().map(|rate| rate.limit.get());
    let most = windows.chain(limits.throttle.map(|throttle| throttle.limit.get()));
    let most = most.min().unwrap_or(u32::MAX);
    let each = u32::try_from(waiting.div_ceil(PLAYED))
        .unwrap_or(u32::MAX)
        .min(most);
    let played = (waiting / u64::from(each)).min(PLAYED);
    let (mut state, mut at) = (state.clone(), now);
    for _ in 0..played {
        let start = loop {
            match state.ask(&limits, each, at) {
                Ok(start) => break start,
                Err(refusal) => at = refusal.at.filter(|next| *next > at)?,
            }
        };
        state.take(iter::once(&limits), each, start, at);
        at = start;
    }
    let rest = waiting.saturating_sub(played * u64::from(each));
    let rates = limits.rates.iter();
    let paces = rates.map(|rate| rate.period.get() / u64::from(rate.limit.get()));
    let spaces = limits
        .throttle
        .map(|of| of.period.get() / u64::from(of.limit.get()));
    let pace = paces.chain(spaces).max().unwrap_or(0);
    Some(at.plus(rest.saturating_mul(pace)))
}

/// When the last one starts by slots, from how long the last jobs ran.
fn by_slots(
    active: u32,
    slots: u32,
    waiting: u64,
    runs: &[Duration],
    now: Timestamp,
) -> Option<Done> {
    let ends = waiting.saturating_sub(slots.saturating_sub(active).into());
    if slots == 0 || (ends > 0 && runs.len() < LEAST_RUNS) {
        return None;
    }
    let (ends, slots, known) = (ends as f64, f64::from(slots), runs.len().max(1) as f64);
    let runs = || runs.iter().map(Duration::as_secs_f64);
    let mean = runs().sum::<f64>() / known;
    let variance = runs().map(|run| (run - mean).powi(2)).sum::<f64>() / known;
    let spread = DEVIATIONS * (ends * variance).sqrt() / slots;
    // A float that is no whole number of microseconds is cut.
    let after = |seconds: f64| now.plus((seconds.max(0.0) * 1e6) as u64);
    let middle = ends * mean / slots;
    Some(Done {
        at: after(middle),
        within: (after(middle - spread), after(middle + spread)),
    })
}
