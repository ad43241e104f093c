use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use crate::WindowKind;

const T: Timestamp = Timestamp(1_800_000_000_000_000);
const SECOND: u64 = 1_000_000;

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn rate(limit: u32, seconds: u64) -> Rate {
    Rate {
        limit: number(limit),
        period: NonZeroU64::new(seconds * SECOND).unwrap(),
        window: WindowKind::Sliding,
    }
}

fn windows_of(rates: &[Rate]) -> Limits {
    Limits {
        rates: rates.to_vec(),
        ..Limits::default()
    }
}

/// So many a second, one after the other.
fn spaced(limit: u32, measure: Measure) -> Limits {
    Limits {
        throttle: Some(Throttle {
            limit: number(limit),
            period: NonZeroU64::new(SECOND).unwrap(),
            burst: NonZeroU32::MIN,
            measure,
        }),
        ..Limits::default()
    }
}

fn start(key: &mut KeyState, limits: &Limits, now: Timestamp) -> Undo {
    let at = key.ask(limits, 1, now).unwrap();
    key.take(std::iter::once(limits), 1, at, now)
}

#[test]
fn an_undone_start_gives_its_spacing_back_unless_another_came() {
    let ten = spaced(10, Measure::Start);
    let mut key = KeyState::default();
    let first = start(&mut key, &ten, T);
    key.back(std::iter::once(&ten), 1, &first);
    assert_eq!(key.ask(&ten, 1, T), Ok(T));
    let first = start(&mut key, &ten, T);
    start(&mut key, &ten, T.plus(100_000));
    key.back(std::iter::once(&ten), 1, &first);
    let next = key.next_start(&ten.throttle.unwrap(), T);
    assert_eq!(next, Some(T.plus(200_000)));
}

#[test]
fn a_start_counts_once_in_a_window_that_two_policies_name() {
    let (few, many) = (windows_of(&[rate(3, 60)]), windows_of(&[rate(9, 60)]));
    let fixed = windows_of(&[Rate {
        window: WindowKind::Fixed,
        ..rate(9, 60)
    }]);
    let all = || [&few, &many, &fixed].into_iter();
    let mut key = KeyState::default();
    let undo = key.take(all(), 1, T, T);
    let counts = |key: &KeyState| [&few, &fixed].map(|of| key.counted(&of.rates[0], T).0);
    assert_eq!(counts(&key), [1, 1]);
    key.take(all(), 1, T, T);
    key.back(all(), 1, &undo);
    assert_eq!((counts(&key), key.active()), ([1, 1], 1));
}

#[test]
fn a_running_time_counts_only_where_every_spacing_says_so() {
    let (from_start, from_end) = (spaced(1, Measure::Start), spaced(1, Measure::Completion));
    for (limits, next) in [
        (vec![&from_end], 700_000),
        (vec![&from_end, &from_end], 700_000),
        (vec![&from_end, &from_start], SECOND),
        (vec![&from_start], SECOND),
    ] {
        let mut key = KeyState::default();
        let undo = key.take(limits.iter().copied(), 1, T, T);
        key.completed(limits.iter().copied(), 1, &undo, T.plus(300_000));
        let next_start = key.next_start(&from_end.throttle.unwrap(), T);
        assert_eq!(next_start, Some(T.plus(next)), "{limits:?}");
    }
}

#[test]
fn the_refusal_is_that_of_the_limit_that_lets_go_last() {
    let (short, long) = (rate(1, 1), rate(1, 60));
    for rates in [[short.clone(), long.clone()], [long, short]] {
        let both = windows_of(&rates);
        let mut key = KeyState::default();
        start(&mut key, &both, T);
        let refusal = key.ask(&both, 1, T).unwrap_err();
        assert_eq!(refusal.at, Some(T.plus(60 * SECOND + 2 * EARLY)));
        // There is room again when the last of them has some.
        let room = key.room(&both, T);
        assert_eq!((room.starts, room.at), (0, refusal.at));
        // A slot outlasts any time, and the time must have come too.
        let slot = Limits {
            concurrency: Some(1),
            ..both
        };
        let slot = key.ask(&slot, 1, T).unwrap_err();
        assert_eq!((slot.strategy, slot.slot), (Strategy::Concurrency, true));
        assert_eq!(slot.at, refusal.at);
    }
}

#[test]
fn of_two_that_leave_no_room_the_last_to_let_go_is_named() {
    let full = |at: Option<u64>, slot| Room {
        starts: 0,
        at: at.map(Timestamp),
        slot,
        by: 0,
    };
    let by = |one, other| Room::of_all([one, other].into_iter()).by;
    assert_eq!(by(full(Some(5), false), full(Some(9), false)), 1);
    assert_eq!(by(full(Some(9), false), full(Some(5), false)), 0);
    assert_eq!(by(full(Some(9), false), full(Some(9), false)), 0);
    assert_eq!(by(full(Some(9), false), full(None, true)), 1);
}

#[test]
fn a_key_is_shut_until_its_time() {
    let mut key = KeyState::default();
    assert!(key.shut_until(T).is_none(), "it is open");
    key.shut(T.plus(9), T);
    assert_eq!(key.shut_until(T.plus(8)), Some(T.plus(9)));
    assert!(!key.idle(T.plus(8)) && key.idle(T.plus(9)));
    let (read, seen) = KeyState::unpack(&key.pack(T)).unwrap();
    assert_eq!((read, seen), (key.clone(), T));
    // What is over when it is said opens the key.
    key.shut(T.plus(5), T.plus(5));
    assert!(key.shut_until(T).is_none());
}

#[test]
fn a_ninth_window_starts_nothing_until_one_is_empty() {
    let mut key = KeyState::default();
    for seconds in 11..=18 {
        key.take(std::iter::once(&windows_of(&[rate(9, seconds)])), 1, T, T);
    }
    let (known, ninth) = (windows_of(&[rate(9, 18)]), windows_of(&[rate(9, 90)]));
    assert_eq!(key.room(&known, T).starts, 8);
    let until = Some(T.plus(11 * SECOND + 2 * EARLY));
    let room = key.room(&ninth, T);
    assert_eq!((room.starts, room.at), (0, until));
    let refused = key.ask(&ninth, 1, T).unwrap_err();
    assert_eq!((refused.strategy, refused.at), (Strategy::Rate, until));
    let ahead = key.reserve(&ninth, 1, T.plus(90 * SECOND), T);
    assert!(ahead.turns.is_empty());
    let later = T.plus(12 * SECOND);
    let few = key.pack(later).len();
    assert!(key.ask(&ninth, 1, later).is_ok());
    key.take(std::iter::once(&ninth), 1, later, later);
    assert_eq!(
        key.pack(later).len(),
        few,
        "it took the place of the empty one"
    );
}

#[test]
fn nothing_waits_for_a_window_that_only_counts() {
    let mut key = KeyState::default();
    for seconds in 11..=18 {
        key.take(std::iter::once(&windows_of(&[rate(9, seconds)])), 1, T, T);
    }
    let (mut own, ninth) = (windows_of(&[rate(9, 18)]), windows_of(&[rate(9, 90)]));
    let mut beside = crate::Beside::default();
    beside.see(std::iter::once(&ninth));
    let counted = beside.of(std::iter::once(&own)).unwrap();
    own.rates.extend(counted.rates);
    let undo = start(&mut key, &own, T);
    assert_eq!(key.room(&own, T).starts, 7);
    key.back(std::iter::once(&own), 1, &undo);
    assert!(key.ask(&ninth, 1, T).is_err());
    let later = T.plus(12 * SECOND);
    start(&mut key, &own, later);
    assert_eq!(key.counted(&ninth.rates[0], later).0, 1);
}

/// One key, five starts in about twelve seconds under each of seventeen periods.
#[test]
fn a_key_named_with_seventeen_periods_goes_on_at_its_pace() {
    let mut key = KeyState::default();
    let mut starts = 0;
    for tenth in 0..1_200 {
        let now = T.plus(tenth * SECOND / 10);
        for micros in (0..17).map(|n| 12 * SECOND + n) {
            let one = windows_of(&[Rate {
                period: NonZeroU64::new(micros).unwrap(),
                ..rate(5, 1)
            }]);
            if key.ask(&one, 1, now).is_ok() {
                start(&mut key, &one, now);
                key.end(1);
                starts += 1;
            }
        }
    }
    assert!(starts >= 8 * 5 * 9, "{starts} in two minutes");
}
