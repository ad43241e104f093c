//! The worst cases that the manual states for windows with edges and for spacing by completion: each is
//! reached, and never passed.

use std::num::{NonZeroU32, NonZeroU64};

use ojs_throttle::limit::{
    EARLY, KeyState, Limits, Measure, Rate, Strategy as Refused, Throttle, Timestamp, Undo, Unit,
    WindowKind, Zone,
};
use proptest::prelude::*;

use super::samples::{DAY, T, config, fixed, limits, throttle, wait};

const MINUTE: u64 = 60_000_000;

fn one(rate: Rate) -> Limits {
    Limits {
        rates: vec![rate],
        ..Limits::default()
    }
}

fn start(state: &mut KeyState, limits: &Limits, now: Timestamp) -> Option<Undo> {
    let at = state.ask(limits, 1, now).ok()?;
    Some(state.take(std::iter::once(limits), 1, at, now))
}

/// All that may start at once.
fn starts(state: &mut KeyState, limits: &Limits, now: Timestamp) -> usize {
    std::iter::from_fn(|| start(state, limits, now)).count()
}

fn at(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().unwrap();
    Timestamp(at.as_microsecond() as u64)
}

fn calendar(limit: u32, unit: Unit, zone: &str) -> Limits {
    one(Rate {
        limit: NonZeroU32::new(limit).unwrap(),
        period: NonZeroU64::new(unit.days() * DAY).unwrap(),
        window: WindowKind::Calendar(unit, Zone::new(zone).unwrap()),
    })
}

#[test]
fn a_fixed_window_starts_twice_its_limit_around_an_edge() {
    let (limits, mut state) = (one(fixed(100, MINUTE)), KeyState::default());
    let edge = Timestamp(T.0 / MINUTE * MINUTE + MINUTE);
    let before = Timestamp(edge.0 - EARLY - 1);
    assert_eq!(starts(&mut state, &limits, before), 100);
    let refusal = state.ask(&limits, 1, before).unwrap_err();
    assert_eq!(
        (refusal.limit, refusal.current, refusal.at),
        (100, 100, Some(edge.plus(EARLY)))
    );
    assert!(state.ask(&limits, 1, Timestamp(edge.0 - 1)).is_err());
    assert_eq!(starts(&mut state, &limits, edge), 100, "200 in about 5 ms");
    assert_eq!(starts(&mut state, &limits, edge.plus(MINUTE - 1)), 0);
}

#[test]
fn what_may_be_handed_out_on_either_side_of_an_edge_counts_on_both() {
    let (limits, mut state) = (one(fixed(10, MINUTE)), KeyState::default());
    let edge = Timestamp(T.0 / MINUTE * MINUTE + MINUTE);
    let last = Timestamp(edge.0 - EARLY);
    assert_eq!(starts(&mut state, &limits, last), 10);
    assert_eq!(starts(&mut state, &limits, edge), 0);
    let refusal = state.ask(&limits, 1, edge).unwrap_err();
    assert_eq!(refusal.at, Some(edge.plus(MINUTE + EARLY)));
}

#[test]
fn a_day_is_as_long_as_the_wall_says() {
    let limits = calendar(5, Unit::Day, "Europe/Oslo");
    for (noon, hours) in [
        ("2026-03-29T10:00:00Z", 23),
        ("2026-10-25T11:00:00Z", 25),
        ("2026-07-01T10:00:00Z", 24),
    ] {
        let mut state = KeyState::default();
        let midnight = limits.rates[0].window.edges(DAY, at(noon)).unwrap();
        assert_eq!(midnight.ends.since(midnight.starts), hours * 3_600_000_000);
        assert_eq!(starts(&mut state, &limits, midnight.starts), 5);
        let opens = state.ask(&limits, 1, at(noon)).unwrap_err().at;
        assert_eq!(opens, Some(midnight.ends.plus(EARLY)));
        assert_eq!(
            starts(&mut state, &limits, Timestamp(midnight.ends.0 - 1)),
            0
        );
        assert_eq!(starts(&mut state, &limits, midnight.ends), 5);
    }
}

#[test]
fn a_month_starts_twice_its_limit_around_its_first_day() {
    let (limits, mut state) = (
        calendar(1_000, Unit::Month, "America/New_York"),
        KeyState::default(),
    );
    assert_eq!(
        starts(&mut state, &limits, at("2027-03-01T04:59:59Z")),
        1_000
    );
    assert_eq!(
        starts(&mut state, &limits, at("2027-03-01T05:00:00Z")),
        1_000
    );
    let refusal = state
        .ask(&limits, 1, at("2027-03-15T00:00:00Z"))
        .unwrap_err();
    assert_eq!(refusal.at, Some(at("2027-04-01T04:00:00Z").plus(EARLY)));
    assert!(state.pack(T).len() < 400, "a number, however many starts");
}

/// Asked without a break after a pause, twice: all of the burst at once, and each of the even starts of a period.
#[test]
fn a_burst_and_the_even_starts_after_it_meet_in_one_period() {
    const STEP: u64 = 100_000;
    for (limit, burst) in [(10, 1), (10, 4), (3, 20), (1, 5)] {
        let period = u64::from(limit) * STEP;
        let spaced = limits(None, &[], Some((limit, period, burst)));
        let (mut state, mut begun) = (KeyState::default(), Vec::new());
        let pause = u64::from(burst) * STEP;
        for first in [T, T.plus(3 * period + pause)] {
            assert_eq!(starts(&mut state.clone(), &spaced, first), burst as usize);
            for nth in 0..3 * period / 1_000 {
                let now = first.plus(nth * 1_000);
                while let Ok(at) = state.ask(&spaced, 1, now) {
                    state.take(std::iter::once(&spaced), 1, at, now);
                    begun.push(at);
                }
            }
        }
        let in_a_period = |(nth, from): (usize, &Timestamp)| {
            let later = begun.iter().skip(nth);
            later.take_while(|at| at.since(*from) < period).count()
        };
        let most = begun.iter().enumerate().map(in_a_period).max();
        assert_eq!(most, Some((limit + burst - 1) as usize), "{limit} {burst}");
    }
}

/// P9: another number finds the starts that were; another kind of window or time zone does not.
#[test]
fn changed_numbers_find_the_same_count() {
    let mut state = KeyState::default();
    assert_eq!(starts(&mut state, &one(fixed(3, MINUTE)), T), 3);
    assert_eq!(starts(&mut state, &one(fixed(5, MINUTE)), T), 2);
    assert_eq!(starts(&mut state, &one(fixed(4, MINUTE)), T), 0);
    let refusal = state.ask(&one(fixed(2, MINUTE)), 1, T).unwrap_err();
    assert_eq!((refusal.strategy, refusal.current), (Refused::Rate, 5));
    assert_eq!(
        starts(&mut state, &limits(None, &[(3, MINUTE)], None), T),
        3,
        "sliding begins now"
    );
    assert_eq!(starts(&mut state, &calendar(2, Unit::Day, "UTC"), T), 2);
    assert_eq!(
        starts(&mut state, &calendar(2, Unit::Day, "Europe/Oslo"), T),
        2
    );
    assert_eq!(
        starts(&mut state, &calendar(3, Unit::Day, "utc"), T),
        1,
        "the same zone"
    );
}

/// One job after the other: from start to start it is the interval less the running time, or the
/// running time where that is longer.
#[test]
fn spacing_by_completion_takes_the_running_time_off() {
    let spaced = Limits {
        throttle: Some(Throttle {
            measure: Measure::Completion,
            ..throttle(1, 1_000_000, 1)
        }),
        ..Limits::default()
    };
    for (took, apart) in [
        (0, 1_000_000),
        (300_000, 700_000),
        (500_000, 500_000),
        (800_000, 800_000),
    ] {
        let (mut state, mut now) = (KeyState::default(), T);
        for _ in 0..5 {
            let undo = start(&mut state, &spaced, now).unwrap();
            let end = now.plus(took);
            state.completed(std::iter::once(&spaced), 1, &undo, end);
            let next = state
                .next_start(&spaced.throttle.unwrap(), end)
                .unwrap_or(end);
            assert_eq!(next.since(now), apart, "took {took}");
            now = next;
        }
    }
}

proptest! {
    #![proptest_config(config(500))]

    /// Whatever ends when: n + 1 starts span n intervals, less the running times of jobs that ended
    /// meanwhile.
    #[test]
    fn spacing_by_completion_gives_no_more_than_the_running_times(
        steps in prop::collection::vec((wait(), any::<bool>(), any::<prop::sample::Index>()), 1..150),
        burst in 1..4_u32,
    ) {
        const STEP: u64 = 100_000;
        let spacing = Throttle { measure: Measure::Completion, ..throttle(1, STEP, burst) };
        let spaced = Limits { throttle: Some(spacing), ..Limits::default() };
        let (mut state, mut now) = (KeyState::default(), T);
        let (mut out, mut record, mut taken) = (Vec::new(), Vec::new(), 0);
        for (wait, end, which) in steps {
            now = now.plus(wait.min(DAY / 10_000));
            if end && !out.is_empty() {
                let (at, undo): (Timestamp, Undo) = out.swap_remove(which.index(out.len()));
                state.completed(std::iter::once(&spaced), 1, &undo, now);
                taken += now.since(at);
            } else if let Ok(at) = state.ask(&spaced, 1, now) {
                out.push((at, state.take(std::iter::once(&spaced), 1, at, now)));
                record.push((at, taken));
            }
        }
        for n in burst as usize..record.len() {
            let least = (n + 1 - burst as usize) as u64 * STEP;
            for (first, later) in record.iter().zip(record.iter().skip(n)) {
                prop_assert!(later.0.since(first.0) + (later.1 - first.1) >= least);
            }
        }
    }
}
