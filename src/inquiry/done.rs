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
    // The others go on at the slowest pace of those that they meet: a window may have room for all of them.
    let windows = limits.rates.iter().map(|rate| {
        let (limit, (counted, leaves)) = (rate.limit.get(), state.counted(rate, at));
        let beyond = rest.saturating_sub(limit.saturating_sub(counted).into());
        match beyond.div_ceil(limit.into()) {
            0 => at,
            turns => {
                let first = leaves.unwrap_or(at.plus(rate.period.get()));
                first.plus((turns - 1).saturating_mul(rate.period.get()))
            }
        }
    });
    let spaced = (limits.throttle).map(|of| of.period.get() / u64::from(of.limit.get()));
    let spaced = spaced.map(|space| at.plus(rest.saturating_mul(space)));
    windows.chain(spaced).max().or(Some(at))
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

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;
    use crate::limit::{Rate, WindowKind};

    /// A short pace beside a long window with room: the window is none until it is full.
    #[test]
    fn the_slowest_of_several_limits_is_the_one_that_they_meet() {
        const SECOND: u64 = 1_000_000;
        const HOUR: u64 = 3_600 * SECOND;
        let rate = |limit, period| Rate {
            limit: NonZeroU32::new(limit).unwrap(),
            period: NonZeroU64::new(period).unwrap(),
            window: WindowKind::Sliding,
        };
        for (waiting, rates, seconds) in [
            (5_000, vec![rate(10, SECOND), rate(10_000, 24 * HOUR)], 500),
            (5_000, vec![rate(10, SECOND), rate(10_000, HOUR)], 500),
            (
                1_000,
                vec![rate(1, SECOND / 10), rate(10_000, 24 * HOUR)],
                100,
            ),
            (
                30_000,
                vec![rate(10, SECOND), rate(20_000, 24 * HOUR)],
                87_400,
            ),
            (50_000, vec![rate(10, SECOND)], 5_000),
            (100, vec![rate(10_000, HOUR)], 0),
        ] {
            let now = Timestamp(1_800_000_000 * SECOND);
            let limits = Limits {
                rates,
                ..Limits::default()
            };
            let done = Done::of(&KeyState::default(), &limits, waiting, &[], now).unwrap();
            let (said, truth) = (done.at.since(now) / SECOND, seconds as f64);
            let is_near = (said as f64 - truth).abs() <= truth * 0.2 + 1.0;
            assert!(
                is_near,
                "{waiting} under {limits:?}: {said} s, and it is {truth}"
            );
        }
    }
}
