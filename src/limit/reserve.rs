//! Starts of a key that are granted ahead of their time, so that one question serves many.

use super::limits::Limits;
use super::refusal::Refusal;
use super::state::KeyState;
use super::time::{EARLY, Timestamp};

/// A start that was granted ahead. It is counted already; one that is not used is given back
/// ([`KeyState::release`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Turn {
    /// It may leave from then on, and not sooner.
    pub from: Timestamp,
    /// It counts then, and leaves at most [`EARLY`] later.
    pub at: Timestamp,
}

impl Turn {
    /// The last moment at which it may leave.
    pub fn last(&self) -> Timestamp {
        self.at.plus(EARLY)
    }
}

/// What was granted, and why no more than that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// In the order of their times.
    pub turns: Vec<Turn>,
    /// The refusal that ended it; `None`: as many as were wanted.
    pub refused: Option<Refusal>,
}

impl KeyState {
    /// Grants up to `want` starts, each as soon as the limits allow, as far as that is not after `until`:
    /// what [`KeyState::ask`] and [`KeyState::take`] would do at those times, if nothing else started. A
    /// start that is granted ahead counts from now on, so whoever asks later comes after it.
    ///
    /// Windows must be sliding ones: those with edges know only the window of now. No slots are taken, so
    /// a limit on them refuses what is over it and counts nothing. A shut key grants what it would grant
    /// now, and so does one that has no place for a window.
    pub fn reserve(
        &mut self,
        limits: &Limits,
        want: usize,
        until: Timestamp,
        now: Timestamp,
    ) -> Reserved {
        let mut reserved = Reserved::default();
        let lacks_place = |rate| self.windows.has_place_at(rate, now).is_some();
        // What is kept for the first in line is kept now.
        let only_now = self.shut_until(now).is_some()
            || limits.rates.iter().any(lacks_place)
            || self.has_line(now);
        let mut from = now;
        while reserved.turns.len() < want {
            match self.ask_for("", limits, (1, u64::MAX), from) {
                Ok(at) => {
                    self.take(std::iter::once(limits), 1, at, now);
                    self.end(1);
                    reserved.turns.push(Turn { from, at });
                }
                Err(refusal) => {
                    let next = refusal.at.map(|at| at.minus(EARLY));
                    let soon = next.filter(|next| *next > from && *next <= until);
                    match soon.filter(|_| !refusal.slot && !only_now) {
                        Some(next) => from = next,
                        None => {
                            reserved.refused = Some(refusal);
                            break;
                        }
                    }
                }
            }
        }
        reserved
    }

    /// Gives starts back that were granted ahead with these limits and not used: windows do not count them
    /// any more. Spacing is not made up for, for its time has passed.
    pub fn release(&mut self, limits: &Limits, unused: &[Timestamp]) {
        for rate in &limits.rates {
            for at in unused {
                self.windows.release(rate, *at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng};

    use super::*;
    use crate::{Rate, Strategy, Throttle};

    const T: Timestamp = Timestamp(1_800_000_000_000_000);
    const SECOND: u64 = 1_000_000;

    fn limits(rate: Option<(u32, u64)>, spaced: Option<(u32, u32)>) -> Limits {
        let number = |n| NonZeroU32::new(n).unwrap();
        let period = |micros| NonZeroU64::new(micros).unwrap();
        Limits {
            concurrency: None,
            rates: rate
                .map(|(limit, micros)| Rate {
                    limit: number(limit),
                    period: period(micros),
                    window: Default::default(),
                })
                .into_iter()
                .collect(),
            throttle: spaced.map(|(limit, burst)| Throttle {
                limit: number(limit),
                period: period(SECOND),
                burst: number(burst),
                measure: Default::default(),
            }),
        }
    }

    fn times(reserved: &Reserved) -> Vec<u64> {
        reserved.turns.iter().map(|turn| turn.at.since(T)).collect()
    }

    #[test]
    fn spaced_starts_are_granted_one_interval_after_the_other() {
        let ten = limits(None, Some((10, 1)));
        let mut key = KeyState::default();
        let first = key.reserve(&ten, 3, T.plus(SECOND), T);
        assert_eq!(
            (times(&first), first.refused),
            (vec![0, 100_000, 200_000], None)
        );
        // Whoever comes next comes after them, and no further than was asked.
        let second = key.reserve(&ten, 9, T.plus(SECOND / 2), T);
        assert_eq!(times(&second), [300_000, 400_000, 500_000]);
        let why = second.refused.unwrap();
        assert_eq!(
            (why.strategy, why.at),
            (Strategy::Throttle, Some(T.plus(600_000)))
        );
        assert!(key.ask(&ten, 1, T.plus(500_000)).is_err());
        assert_eq!(key.active(), 0, "no slots");
    }

    #[test]
    fn a_start_may_leave_as_early_as_if_it_was_asked_for_then() {
        let ten = limits(None, Some((10, 1)));
        let mut key = KeyState::default();
        let turns = key.reserve(&ten, 2, T.plus(SECOND), T).turns;
        assert_eq!((turns[0].from, turns[0].last()), (T, T.plus(EARLY)));
        assert_eq!(turns[1].from, T.plus(100_000 - EARLY));
        // Not so in a window: there nothing may come early.
        let one = limits(Some((1, SECOND)), None);
        let turns = KeyState::default()
            .reserve(&one, 2, T.plus(2 * SECOND), T)
            .turns;
        assert_eq!(turns[1].from, turns[1].at);
        assert_eq!(turns[1].at, T.plus(SECOND + EARLY));
    }

    #[test]
    fn what_was_not_used_is_given_back_to_windows() {
        for limit in [5, 300] {
            let window = limits(Some((limit, SECOND)), None);
            let mut key = KeyState::default();
            let all = key.reserve(&window, limit as usize + 1, T, T);
            assert_eq!(all.turns.len(), limit as usize);
            key.release(&window, &[T, T]);
            let again = key.reserve(&window, 5, T, T);
            assert_eq!(again.turns.len(), 2, "of {limit}");
            key.release(&window, &[T.plus(900_000), Timestamp(5)]);
            assert!(key.reserve(&window, 5, T, T).turns.is_empty());
        }
    }

    #[test]
    fn a_shut_key_grants_nothing_ahead() {
        let ten = limits(None, Some((10, 1)));
        let mut key = KeyState::default();
        key.shut(T.plus(100_000), T);
        let reserved = key.reserve(&ten, 3, T.plus(SECOND), T);
        assert!(reserved.turns.is_empty());
        assert_eq!(reserved.refused.unwrap().strategy, Strategy::Shut);
    }

    /// Every start at the worst moment that it may leave at, or any other.
    #[test]
    fn whenever_they_leave_they_are_never_too_many() {
        for seed in 0..200 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let limit = [1, 2, 5, 40, 140, 200][rng.random_range(0..6)];
            let period = [20_000, 100_000, SECOND][rng.random_range(0..3)];
            let spaced = rng.random_bool(0.3).then_some((1_000, 3));
            let both = limits(Some((limit, period)), spaced);
            let other = limits(Some((limit, period)), None);
            let (mut key, mut now) = (KeyState::default(), T);
            let (mut left, mut unused): (Vec<u64>, Vec<Timestamp>) = (Vec::new(), Vec::new());
            for _ in 0..400 {
                now = now.plus(rng.random_range(0..period / 8));
                if rng.random_bool(0.3) {
                    // Asked for by itself, under the same window.
                    if let Ok(at) = key.ask(&other, 1, now) {
                        key.take(std::iter::once(&other), 1, at, now);
                        key.end(1);
                        left.push(now.0 + rng.random_range(0..=EARLY));
                    }
                    continue;
                }
                key.release(&both, &std::mem::take(&mut unused));
                let until = now.plus(rng.random_range(0..period));
                for turn in key
                    .reserve(&both, rng.random_range(1..20), until, now)
                    .turns
                {
                    match rng.random_range(0..4) {
                        0 => unused.push(turn.at),
                        1 => left.push(turn.from.0),
                        2 => left.push(turn.last().0),
                        _ => left.push(rng.random_range(turn.from.0..=turn.last().0)),
                    }
                }
            }
            left.sort_unstable();
            for pair in left.windows(limit as usize + 1) {
                let span = pair[limit as usize] - pair[0];
                assert!(span >= period, "seed {seed}: {limit} in {period}, {span}");
            }
        }
    }
}
