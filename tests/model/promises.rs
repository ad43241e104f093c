//! P1 to P4 on one key, judged from a plain record of what was granted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use governor::clock::{Clock, FakeRelativeClock};
use governor::{Quota, RateLimiter};
use ojs_throttle::limit::{
    EARLY, KeyState, Limits, Measure, Pace, Rate, Timestamp, Undo, WindowKind,
};
use proptest::prelude::*;

use super::samples::{T, any_limits, config, limits, rate, throttle, wait};

/// A granted start: when it was granted, and the time at which it counts.
#[derive(Clone, Copy, Debug)]
struct Granted {
    real: Timestamp,
    at: Timestamp,
}

/// Grants what `state` grants at `now`.
fn start(state: &mut KeyState, limits: &Limits, now: Timestamp) -> Option<(Granted, Undo)> {
    let at = state.ask(limits, 1, now).ok()?;
    let undo = state.take(std::iter::once(limits), 1, at, now);
    Some((Granted { real: now, at }, undo))
}

/// Breaks of P2 and P3 in a record, in order of decision.
fn check(record: &[Granted], limits: &Limits) {
    for granted in record {
        assert!(granted.at >= granted.real && granted.at.since(granted.real) <= EARLY);
    }
    let mut at: Vec<Timestamp> = record.iter().map(|granted| granted.at).collect();
    at.sort_unstable();
    for rate in &limits.rates {
        let limit = rate.limit.get() as usize;
        if rate.window != WindowKind::Sliding {
            check_edged(record, rate);
            continue;
        }
        for (first, later) in at.iter().zip(at.iter().skip(limit)) {
            assert!(
                later.since(*first) >= rate.period.get(),
                "counted times: {rate:?}"
            );
        }
        for (first, later) in record.iter().zip(record.iter().skip(limit)) {
            // The earlier hand-out may come 5 ms after its decision.
            assert!(
                later.real.since(first.real.plus(EARLY)) >= rate.period.get(),
                "real times: {rate:?}"
            );
        }
    }
    if let Some(spaced) = limits
        .throttle
        .as_ref()
        .filter(|t| t.measure == Measure::Start)
    {
        let (limit, burst) = (u64::from(spaced.limit.get()), spaced.burst.get() as usize);
        for n in burst..record.len() {
            let least = ((n + 1 - burst) as u64 * spaced.period.get()).div_ceil(limit);
            for (first, later) in record.iter().zip(record.iter().skip(n)) {
                assert!(
                    later.at.since(first.at) >= least,
                    "counted times: {spaced:?}"
                );
                assert!(
                    later.real.since(first.real) + EARLY >= least,
                    "real times: {spaced:?}"
                );
            }
        }
    }
}

/// Breaks of what a window with edges promises, whether hand-outs come at once or 5 ms late.
fn check_edged(record: &[Granted], rate: &Rate) {
    let limit = rate.limit.get() as usize;
    let window = |at| rate.window.edges(rate.period.get(), at).unwrap().starts;
    let mut seen = BTreeMap::new();
    for granted in record {
        let (soonest, latest) = (window(granted.real), window(granted.real.plus(EARLY)));
        *seen.entry(soonest).or_insert(0) += 1;
        if latest != soonest {
            *seen.entry(latest).or_insert(0) += 1;
        }
    }
    assert!(
        seen.values().all(|count| *count <= limit),
        "{rate:?} {seen:?}"
    );
    for (first, later) in record.iter().zip(record.iter().skip(2 * limit)) {
        let apart = later.real.since(first.real);
        assert!(
            apart >= rate.period.get(),
            "more than twice in a period: {rate:?}"
        );
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    /// P1, P2, P3 with jobs that end, and hand-outs that are undone, the newest or not.
    #[test]
    fn one_key_keeps_its_promises(
        limits in any_limits(),
        steps in prop::collection::vec((wait(), 0..6_u8), 1..150),
    ) {
        let mut state = KeyState::default();
        let (mut now, mut out, mut record) = (T, 0_u32, Vec::new());
        for (wait, what) in steps {
            now = now.plus(wait);
            match what {
                0 if out > 0 => {
                    state.end(1);
                    out -= 1;
                }
                1 => {
                    let (first, second) = (
                        start(&mut state, &limits, now),
                        start(&mut state, &limits, now),
                    );
                    if let Some((_, undo)) = first {
                        state.back(std::iter::once(&limits), 1, &undo);
                    }
                    if let Some((granted, _)) = second {
                        record.push(granted);
                        out += 1;
                    }
                }
                _ => {
                    while let Some((granted, _)) = start(&mut state, &limits, now) {
                        record.push(granted);
                        out += 1;
                        assert!(limits.concurrency.is_none_or(|most| out <= most), "P1");
                        if record.len() > 400 {
                            break;
                        }
                    }
                }
            }
            assert_eq!(state.active(), out);
            if record.len() > 400 {
                break;
            }
        }
        check(&record, &limits);
    }

    /// A refusal names the very microsecond, and asking costs nothing (P4).
    #[test]
    fn a_refusal_names_the_time(
        warm in prop::collection::vec((any_limits(), wait()), 1..40), asked in any_limits(), shut in prop::option::of(wait()),
    ) {
        let mut state = KeyState::default();
        let mut now = T;
        for (limits, wait) in &warm {
            start(&mut state, limits, now);
            now = now.plus(*wait);
        }
        if let Some(time) = shut {
            state.shut(now.plus(time), now);
        }
        let before = state.clone();
        let Err(refusal) = state.ask(&asked, 1, now) else { return Ok(()) };
        assert_eq!(state, before);
        assert_eq!(refusal.slot, asked.concurrency.is_some_and(|most| state.active() >= most));
        if refusal.slot {
            prop_assume!(asked.concurrency != Some(0));
            while state.active() > 0 {
                state.end(1);
            }
        }
        let Some(at) = refusal.at else {
            assert!(refusal.slot && state.ask(&asked, 1, now).is_ok(), "more than a slot is missing");
            return Ok(());
        };
        assert!(at > now.plus(EARLY));
        assert!(state.ask(&asked, 1, Timestamp(at.0 - EARLY - 1)).is_err(), "allowed before {at:?}");
        assert!(state.ask(&asked, 1, Timestamp(at.0 - EARLY)).is_ok(), "not allowed 5 ms before {at:?}");
        assert!(state.ask(&asked, 1, at).is_ok(), "not allowed at {at:?}");
    }

    /// A window too full for a log never lets one start too many through, and is at most 1 % late.
    #[test]
    fn a_busy_window_is_never_over_and_hardly_late(
        limit in 129..400_u32,
        period in prop::sample::select(vec![40_000_u64, 1_000_000, 86_400_000_000]),
        gaps in prop::collection::vec(0..3_000_u64, 500..1_200),
    ) {
        let one = limits(None, &[(limit, period)], None);
        let mut state = KeyState::default();
        let (mut now, mut record): (Timestamp, Vec<Granted>) = (T, Vec::new());
        for gap in gaps {
            now = now.plus(gap * period / 400_000);
            match start(&mut state, &one, now) {
                Some((granted, _)) => record.push(granted),
                None => {
                    let named = state.ask(&one, 1, now).unwrap_err().at.unwrap();
                    let oldest = record[record.len() - limit as usize].at;
                    let exact = oldest.plus(period + 2 * EARLY);
                    assert!(named >= exact && named.since(exact) <= period / 100);
                    assert!(state.ask(&one, 1, Timestamp(named.0 - EARLY - 1)).is_err());
                    assert!(state.ask(&one, 1, Timestamp(named.0 - EARLY)).is_ok());
                }
            }
        }
        check(&record, &one);
    }

    /// Limits that are lowered, raised and added while jobs are out: P2 and P3 hold for the starts
    /// since the change, windows that were there before know the starts before it, and a throttle the last of them.
    #[test]
    fn a_changed_limit_holds_from_the_change_on(
        first in any_limits(), second in any_limits(), waits in prop::collection::vec(wait(), 2..80),
    ) {
        let mut state = KeyState::default();
        let mut now = T;
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for (n, wait) in waits.iter().enumerate() {
            now = now.plus(*wait);
            let late = n >= waits.len() / 2;
            let granted = start(&mut state, if late { &second } else { &first }, now);
            let record = if late { &mut new } else { &mut old };
            record.extend(granted.map(|(granted, _)| granted));
            assert!(second.concurrency.is_none_or(|most| granted.is_none() || !late || state.active() <= most));
            if n % 3 == 0 {
                state.end(1);
            }
        }
        check(&old, &first);
        check(&new, &second);
        // The first start after the change keeps the new distance from the last one before it.
        if let (Some(before), Some(after)) = (old.last(), new.first())
            && let Some(slower) = second.throttle.filter(|to| to.measure == Measure::Start && to.burst.get() == 1)
            && first.throttle.is_some()
        {
            check(&[*before, *after], &Limits { throttle: Some(slower), ..Limits::default() });
        }
        let same = |one: &Rate, other: &Rate| one.period == other.period && one.window == other.window;
        let kept = |limits: &Limits, one: &Rate| limits.rates.iter().any(|rate| same(rate, one));
        let both: Vec<Granted> = old.into_iter().chain(new).collect();
        for one in second.rates.iter().filter(|one| kept(&first, one)) {
            let most = first.rates.iter().chain([one]).filter(|r| same(r, one)).map(|r| r.limit).max().unwrap();
            let most = Rate { limit: most, ..one.clone() };
            check(&both, &Limits { rates: vec![most], ..Limits::default() });
        }
    }

    /// Our spacing without the early rule is `governor`'s own.
    #[test]
    fn spacing_is_governors(
        limit in 1..2_000_u32, period in 1_000..100_000_000_u64, burst in 1..20_u32,
        waits in prop::collection::vec(prop_oneof![0..1_000_u64, 0..100_000_000_u64], 1..200),
    ) {
        let spaced = throttle(limit, period, burst);
        let step = Duration::from_nanos((period * 1000).div_ceil(u64::from(limit)));
        let clock = FakeRelativeClock::default();
        let plain = RateLimiter::direct_with_clock(Quota::with_period(step).unwrap().allow_burst(spaced.burst), clock.clone());
        let (mut pace, mut now) = (Pace::default(), Timestamp(0));
        for wait in waits {
            clock.advance(Duration::from_micros(wait));
            now = now.plus(wait);
            let next = pace.next(&spaced, 1, now);
            match plain.check() {
                Ok(()) => {
                    assert_eq!(next, now);
                    pace = pace.after(&spaced, 1, now);
                }
                Err(until) => {
                    let wait = until.wait_time_from(clock.now()).as_nanos() as u64;
                    assert_eq!(next, now.plus(wait.div_ceil(1000)));
                }
            }
        }
    }

    /// P1 to P3 where starts cost something: the sum of min(cost, limit) in place of their number.
    #[test]
    fn costs_keep_the_promises(
        limits in any_limits(),
        steps in prop::collection::vec((wait(), 0..5_u8, prop::sample::select(vec![1_u32, 1, 2, 3, 7, 60])), 1..100),
    ) {
        let mut state = KeyState::default();
        let (mut now, mut out, mut record): (_, Vec<u32>, Vec<(Timestamp, u32)>) = (T, Vec::new(), Vec::new());
        for (wait, what, pays) in steps {
            now = now.plus(wait);
            if what == 0 && let Some(paid) = out.pop() {
                state.end(paid);
            }
            let at = match state.ask(&limits, pays, now) {
                Ok(at) => at,
                Err(refusal) => {
                    // It names the very microsecond, if no slot is missing.
                    let opens = refusal.at.filter(|_| !refusal.slot);
                    if let Some(opens) = opens {
                        assert!(state.ask(&limits, pays, Timestamp(opens.0 - EARLY - 1)).is_err(), "before {opens:?}");
                        assert!(state.ask(&limits, pays, Timestamp(opens.0 - EARLY)).is_ok(), "from {opens:?} on");
                    }
                    continue;
                }
            };
            let undo = state.take(std::iter::once(&limits), pays, at, now);
            if what == 1 {
                state.back(std::iter::once(&limits), pays, &undo);
                continue;
            }
            out.push(pays);
            record.push((at, pays));
            if let Some(most) = limits.concurrency {
                assert!(out.iter().map(|pays| (*pays).min(most)).sum::<u32>() <= most, "P1");
            }
        }
        assert_eq!(state.active(), out.iter().sum::<u32>());
        record.sort_unstable();
        for (nth, (first, _)) in record.iter().enumerate() {
            for rate in limits.rates.iter().filter(|rate| rate.window == WindowKind::Sliding) {
                let within = record[nth..].iter().take_while(|(at, _)| at.since(*first) < rate.period.get());
                let sum: u32 = within.map(|(_, pays)| (*pays).min(rate.limit.get())).sum();
                assert!(sum <= rate.limit.get(), "P2: {sum} of {rate:?}");
            }
            let Some(spaced) = limits.throttle else { continue };
            let mut paid = 0;
            for (at, pays) in &record[nth..] {
                let (burst, cost) = (spaced.burst.get(), (*pays).min(spaced.burst.get()));
                let cells = u64::from((paid + cost).saturating_sub(burst));
                let least = cells * spaced.period.get() / u64::from(spaced.limit.get());
                assert!(at.since(*first) >= least, "P3: {cells} cells of {spaced:?}");
                paid += pays;
            }
        }
    }

    /// A clock that steps back, as often as it likes, panics nothing and frees nothing.
    #[test]
    fn a_clock_that_steps_back_frees_nothing(
        limits in any_limits(), times in prop::collection::vec(0..2_000_000_u64, 1..100),
    ) {
        let mut state = KeyState::default();
        let latest = Cell::new(0);
        for time in times {
            let held = state.ask(&limits, 1, T.plus(latest.get())).is_err();
            let back = time < latest.get();
            assert!(!(held && back) || state.ask(&limits, 1, T.plus(time)).is_err(), "stepping back opened it");
            if !back {
                start(&mut state, &limits, T.plus(time));
            } else if let Some((_, undo)) = start(&mut state.clone(), &limits, T.plus(time)) {
                state.clone().back(std::iter::once(&limits), 1, &undo);
            }
            latest.set(latest.get().max(time));
        }
    }
}

/// A million starts in a day, in one window: all counted, and the key stays small.
#[test]
fn a_million_starts_a_day_fit_into_a_kilobyte() {
    const DAY: u64 = 86_400_000_000;
    let million = limits(Some(1), &[(1_000_000, DAY)], None);
    let mut state = KeyState::default();
    let mut now = T;
    for n in 0..1_000_000 {
        now = T.plus(n * (DAY / 1_000_000));
        assert!(start(&mut state, &million, now).is_some());
        state.end(1);
        assert!(state.pack(now).len() < 1_300);
    }
    let refusal = state.ask(&million, 1, now).unwrap_err();
    assert_eq!(refusal.current, 1_000_000);
    let at = refusal.at.unwrap();
    assert!(at >= T.plus(DAY) && at <= T.plus(DAY + DAY / 100 + 2 * EARLY));
}

/// Early grants do not add up: a limit of 1,000/s asked every 4 ms gives 1,000 a second, no more.
#[test]
fn starts_that_leave_early_are_not_more() {
    let spaced = limits(None, &[], Some((1_000, 1_000_000, 1)));
    let mut state = KeyState::default();
    let mut record = Vec::new();
    for n in 0..1_000 {
        while let Some((granted, _)) = start(&mut state, &spaced, T.plus(n * 4_000)) {
            record.push(granted);
        }
    }
    check(&record, &spaced);
    assert!(
        record.len() > 3_990 && record.len() <= 4_006,
        "{}",
        record.len()
    );
}

/// Periods beyond those that a key has a place for: idle windows make place, and those that count never do.
#[test]
fn no_live_window_is_forgotten() {
    let mut state = KeyState::default();
    let one = |period: u64| limits(None, &[(1, period)], None);
    let mut started = Vec::new();
    for period in (1..=20).map(|n| n * 1_000_000) {
        if start(&mut state, &one(period), T).is_some() {
            state.end(1);
            started.push(period);
        }
    }
    assert_eq!(started.len(), 8);
    for period in started {
        assert!(state.ask(&one(period), 1, T.plus(period)).is_err());
    }
    let later = T.plus(60_000_000);
    assert!(state.idle(later));
    for period in (1..=20).map(|n| n * 1_000_000 + 1) {
        start(&mut state, &one(period), later);
    }
    assert!(state.pack(later).len() <= 16 * 100);
    let counted = |period| state.counted(&rate(1, period), later).0;
    assert!(counted(1_000_001) == 1 && counted(20_000_001) == 0);
}
