//! Spacing of one key's starts: GCRA, done by `governor`.
//!
//! `governor` keeps its state in the limiter and takes what it grants. Here the state lies with
//! the key and must be asked before it is taken, so each decision builds a limiter (a few
//! instructions) over a copy of the state, at a time that is passed in, and the caller keeps the
//! copy or throws it away.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

use super::limits::{LONGEST, Throttle};
use super::packed::{PackedReader, Writer};
use super::refusal::Room;
use super::time::{EARLY, Timestamp};

/// The last time in nanoseconds since 1970 that is told apart, in the year 2116.
const LAST: u64 = 1 << 62;

/// So long the last start of a key is remembered, in microseconds: a throttle that is slower and comes later does not count
/// from it. The keys that jobs bring in that time take memory.
const KEPT: u64 = 3_600_000_000;

/// How far the starts of a key have run ahead of their spacing.
///
/// Only times are kept, no limits: a throttle that changes is applied to them at the next decision, and each start keeps
/// the distance of its own throttle from the key's last start. So a slower one binds the very next start, and one that
/// was raised does not wait for what the old one asked for. Where a throttle has bursts, the key's last start has taken
/// one of them, and of those before as many count as have not been earned back by the throttle that they came under. A
/// raised one has no bursts until that time has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace {
    /// When every start so far has been earned back: GCRA's theoretical arrival time, in
    /// nanoseconds since 1970.
    earned: u64,
    /// The latest spaced start; where it cost more than a burst, the time at which no more than a burst of that is left.
    last: Timestamp,
}

impl Pace {
    /// The earliest start of this cost from `now` on: when so much of a burst is there, or all of it.
    pub fn next(&self, throttle: &Throttle, pays: u32, now: Timestamp) -> Timestamp {
        let spacing = Spacing::of(throttle);
        match spacing.decide(self.earned_under(&spacing), spacing.cells(pays), now) {
            Ok(_) => now,
            Err(earliest) => micros(earliest),
        }
    }

    /// The pace after one more start of this cost at `at`, which is not before [`Pace::next`]. All of the cost is paid,
    /// also what is more than a burst.
    #[must_use]
    pub fn after(&self, throttle: &Throttle, pays: u32, at: Timestamp) -> Pace {
        let spacing = Spacing::of(throttle);
        let (before, cells) = (self.earned_under(&spacing), spacing.cells(pays));
        // A refusal here is a caller that did not ask; the start is counted all the same.
        let earned = spacing
            .decide(before, cells, at)
            .unwrap_or_else(|_| before.saturating_add(spacing.step * u64::from(cells)));
        let rest = spacing.rest(pays);
        // Where jobs bring different throttles to one key, a faster one does not shorten the wait
        // that a slower one has earned.
        Pace {
            earned: (earned + rest).max(self.earned),
            last: micros(nanos(at) + rest).max(self.last),
        }
    }

    /// This pace with the debt of whichever of the two has more.
    #[must_use]
    pub fn and(&self, other: Pace) -> Pace {
        Pace {
            earned: self.earned.max(other.earned),
            last: self.last.max(other.last),
        }
    }

    /// This pace when a job has ended that ran for `took` microseconds, where that counts towards the
    /// wait for the next start: as if all had started so much earlier.
    #[must_use]
    pub fn ended(&self, took: u64) -> Pace {
        Pace {
            earned: self.earned.saturating_sub(took.saturating_mul(1000)),
            last: self.last.minus(took),
        }
    }

    /// Whether nothing is left to be earned back.
    pub fn idle(&self, now: Timestamp) -> bool {
        self.earned <= nanos(now)
    }

    /// Whether it may be forgotten: nobody counts from its last start any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.idle(now) && (self.last == Timestamp(0) || self.last.plus(KEPT) <= now)
    }

    /// How many starts are allowed at `now`, and when one more is. Where a slower throttle has left
    /// a debt, bursts are not counted on.
    pub fn room(&self, throttle: &Throttle, now: Timestamp) -> Room {
        let spacing = Spacing::of(throttle);
        let (step, ahead) = (spacing.step, spacing.whole() - spacing.step);
        let earned = self.earned_under(&spacing).max(nanos(now));
        if ahead == 0 || self.earned > earned {
            return self.room_one_by_one(throttle, now);
        }
        let most = 1 + (EARLY * 1000 + ahead) / step;
        let starts = match (nanos(now) + EARLY * 1000 + ahead).checked_sub(earned) {
            Some(spare) => 1 + spare / step,
            None => 0,
        };
        let more = (starts < most).then(|| micros((earned + starts * step).saturating_sub(ahead)));
        Room {
            starts: u32::try_from(starts).unwrap_or(u32::MAX),
            at: more,
            ..Room::OPEN
        }
    }

    /// The room of a throttle that has no burst, or none yet because the debt of a slower one is
    /// still there: one start an interval. Starts are at whole microseconds, and each interval
    /// begins at the start before it.
    fn room_one_by_one(&self, throttle: &Throttle, now: Timestamp) -> Room {
        let step = Spacing::of(throttle).step.div_ceil(1000);
        let next = self.next(throttle, 1, now);
        let starts = match now.plus(EARLY).0.checked_sub(next.0) {
            Some(spare) => 1 + spare / step,
            None => 0,
        };
        let spaced = (starts <= EARLY / step).then(|| next.plus(starts * step));
        let bursts = (throttle.burst.get() > 1).then(|| micros(self.earned).plus(EARLY));
        let more = spaced.into_iter().chain(bursts).min();
        Room {
            starts: u32::try_from(starts).unwrap_or(u32::MAX),
            at: more,
            ..Room::OPEN
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.long(self.earned / 1000);
        // Below 1000.
        to.u16((self.earned % 1000) as u16);
        to.time(self.last);
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Pace> {
        let (micros, rest) = (from.long()?, u64::from(from.u16()?));
        Some(Pace {
            earned: micros.saturating_mul(1000).saturating_add(rest),
            last: from.time()?,
        })
    }

    /// The time at which all is earned back, as far as `spacing` can tell: the last start leaves one step of debt
    /// behind, or its cost, and no more than a whole burst, whatever throttle it came under.
    fn earned_under(&self, spacing: &Spacing) -> u64 {
        match nanos(self.last) {
            0 => self.earned,
            last => self
                .earned
                .clamp(last + spacing.step, last + spacing.whole()),
        }
    }
}

impl Throttle {
    /// What a start of this cost adds to one of 1, in nanoseconds: to what must be earned back before it, and to what
    /// must be after it.
    pub fn price(&self, pays: u32) -> (u64, u64) {
        let spacing = Spacing::of(self);
        let cells = spacing.cells(pays);
        (spacing.step * u64::from(cells - 1), spacing.rest(pays))
    }

    /// Nanoseconds between two starts, and those by which a burst may run ahead of that: what GCRA calls
    /// its emission interval and its tolerance.
    pub fn spacing(&self) -> (u64, u64) {
        let spacing = Spacing::of(self);
        (spacing.step, spacing.whole() - spacing.step)
    }
}

/// A throttle in the terms of GCRA, with numbers that cannot overflow.
struct Spacing {
    /// Nanoseconds between two starts, rounded up: P3 allows no start too many, ever.
    step: u64,
    burst: NonZeroU32,
}

impl Spacing {
    fn of(throttle: &Throttle) -> Spacing {
        let period = throttle.period.get().saturating_mul(1000).min(LONGEST);
        let step = period.div_ceil(u64::from(throttle.limit.get()));
        let fits = step
            .checked_mul(u64::from(throttle.burst.get()))
            .is_some_and(|whole| whole <= LONGEST);
        let burst = match fits {
            true => throttle.burst,
            // A throttle that was not checked. The quotient is not zero, for a step is at most LONGEST.
            false => u32::try_from(LONGEST / step)
                .ok()
                .and_then(NonZeroU32::new)
                .unwrap_or(NonZeroU32::MIN),
        };
        Spacing { step, burst }
    }

    /// The time in which a whole burst is earned back.
    fn whole(&self) -> u64 {
        self.step * u64::from(self.burst.get())
    }

    /// How many cells a start waits for that costs so much: all of a burst at most.
    fn cells(&self, pays: u32) -> u32 {
        pays.clamp(1, self.burst.get())
    }

    /// What is owed beside that once it has started.
    fn rest(&self, pays: u32) -> u64 {
        let rest = pays.saturating_sub(self.cells(pays));
        self.step.saturating_mul(u64::from(rest)).min(LONGEST)
    }

    /// One start of so many cells at `at`: `Ok` is the new time at which all is earned back, `Err` the earliest
    /// start. All but the last cell are added to what is owed: `governor` decides about the last.
    fn decide(&self, earned: u64, cells: u32, at: Timestamp) -> Result<u64, u64> {
        let earned = match cells {
            1 => earned,
            _ => earned.max(nanos(at)) + self.step * u64::from(cells - 1),
        };
        // `None` is only for an interval of zero, which no step is.
        let spaced = Quota::with_period(Duration::from_nanos(self.step))
            .unwrap_or(Quota::per_second(self.burst));
        let quota = spaced.allow_burst(self.burst);
        // Born at time zero, so that its state is time since 1970 and outlives the limiter.
        let limiter: RateLimiter<NotKeyed, Earned, GivenTime, NoOpMiddleware<Nanos>> =
            RateLimiter::new(quota, Earned(Cell::new(earned)), GivenTime(Cell::new(0)));
        limiter.clock().0.set(nanos(at));
        match limiter.check() {
            Ok(()) => Ok(limiter.into_state_store().0.get()),
            Err(until) => Err(until.earliest_possible().as_u64()),
        }
    }
}

/// `governor`'s state for the length of one decision.
struct Earned(Cell<u64>);

impl StateStore for Earned {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, next) = decide(Some(Nanos::new(self.0.get())))?;
        self.0.set(next.as_u64());
        Ok(outcome)
    }
}

/// `governor`'s clock: the time that was passed in.
struct GivenTime(Cell<u64>);

impl Clock for GivenTime {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.get())
    }
}

fn nanos(time: Timestamp) -> u64 {
    time.0.min(LAST / 1000) * 1000
}

/// Rounded up, so that a start counts no sooner than it may.
fn micros(nanos: u64) -> Timestamp {
    Timestamp(nanos.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::{NonZeroU32, NonZeroU64};

    const DAY: Timestamp = Timestamp(1_800_000_000_000_000);

    fn throttle(limit: u32, period: u64, burst: u32) -> Throttle {
        Throttle {
            limit: NonZeroU32::new(limit).unwrap(),
            period: NonZeroU64::new(period).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
            measure: Default::default(),
        }
    }

    #[test]
    fn starts_are_an_interval_apart() {
        let ten = throttle(10, 1_000_000, 1);
        let pace = Pace::default();
        assert_eq!(pace.next(&ten, 1, DAY), DAY);
        let pace = pace.after(&ten, 1, DAY);
        assert_eq!(pace.next(&ten, 1, DAY), DAY.plus(100_000));
        assert_eq!(pace.next(&ten, 1, DAY.plus(99_999)), DAY.plus(100_000));
        assert_eq!(pace.next(&ten, 1, DAY.plus(250_000)), DAY.plus(250_000));
    }

    #[test]
    fn a_raised_limit_does_not_wait_for_the_old_one() {
        let hourly = throttle(1, 3_600_000_000, 1);
        let ten = throttle(10, 1_000_000, 1);
        let pace = Pace::default().after(&hourly, 1, DAY);
        assert_eq!(pace.next(&ten, 1, DAY), DAY.plus(100_000));
        assert_eq!(pace.next(&hourly, 1, DAY.plus(1)), DAY.plus(3_600_000_000));
    }

    #[test]
    fn a_slower_job_keeps_its_distance_from_the_last_start_of_a_faster_one() {
        let hourly = throttle(1, 3_600_000_000, 1);
        let ten = throttle(10, 1_000_000, 3);
        let mut pace = Pace::default().after(&hourly, 1, DAY);
        let mut last = DAY;
        for n in 1..50 {
            let at = pace.next(&ten, 1, DAY);
            assert_eq!(at, DAY.plus(n * 100_000));
            (pace, last) = (pace.after(&ten, 1, at), at);
        }
        assert_eq!(pace.next(&hourly, 1, DAY), last.plus(3_600_000_000));
        // Three bursts, of which the last start has one, and those before are earned back.
        let bursts = throttle(1, 3_600_000_000, 3);
        let fast = Pace::default().after(&ten, 1, DAY).after(&ten, 1, DAY);
        let later = DAY.plus(1_000_000);
        let after = fast.after(&bursts, 1, later);
        assert_eq!(fast.next(&bursts, 1, later), later);
        assert_eq!(after.next(&bursts, 1, later), later);
        let third = after.after(&bursts, 1, later).next(&bursts, 1, later);
        assert_eq!(third, DAY.plus(3_600_000_000));
    }

    #[test]
    fn the_last_start_is_remembered_for_an_hour() {
        let pace = Pace::default().after(&throttle(10, 1_000_000, 1), 1, DAY);
        assert!(pace.idle(DAY.plus(100_000)));
        assert!(!pace.is_over(DAY.plus(KEPT - 1)) && pace.is_over(DAY.plus(KEPT)));
        assert!(Pace::default().is_over(Timestamp(1)));
    }

    #[test]
    fn a_third_of_a_second_is_never_undercut() {
        let three = throttle(3, 1_000_000, 1);
        let mut pace = Pace::default();
        let mut at = DAY;
        for _ in 0..3_000 {
            pace = pace.after(&three, 1, at);
            at = pace.next(&three, 1, at);
        }
        assert!(at.since(DAY) >= 1_000_000_000);
        assert!(at.since(DAY) < 1_000_003_001);
    }

    #[test]
    fn absurd_numbers_neither_overflow_nor_let_all_through() {
        let absurd = throttle(1, u64::MAX, u32::MAX);
        assert!(!absurd.fits());
        let pace = Pace::default().after(&absurd, 1, DAY);
        assert!(pace.next(&absurd, 1, DAY) > DAY.plus(1_000_000_000_000));
        let end = Timestamp(LAST / 1000);
        let pace = pace
            .after(&absurd, 1, end)
            .after(&absurd, 1, Timestamp::NEVER);
        assert!(pace.next(&absurd, 1, end) > end);
        assert_eq!(pace.room(&absurd, end).starts, 0);
        // One a day with a burst of 300,000 is 821 years of debt.
        assert!(!throttle(1, 86_400_000_000, 300_000).fits());
        assert!(throttle(1, 86_400_000_000, 10_000).fits());
    }

    #[test]
    fn room_is_what_can_be_taken() {
        for (limit, burst) in [
            (1_000, 1),
            (10, 5),
            (7, 3),
            (100, 1),
            (3_200, 1),
            (7_000, 1),
            (7_000, 2),
        ] {
            let some = throttle(limit, 1_000_000, burst);
            let mut pace = Pace::default();
            let mut now = DAY;
            for round in 0..200 {
                let room = pace.room(&some, now);
                let mut taken = 0;
                let mut trial = pace;
                while trial.next(&some, 1, now) <= now.plus(EARLY) {
                    trial = trial.after(&some, 1, trial.next(&some, 1, now).max(now));
                    taken += 1;
                }
                assert_eq!(room.starts, taken, "{some:?} round {round}");
                if let Some(more) = room.at {
                    let then = Timestamp(more.0 - EARLY);
                    assert!(pace.room(&some, then).starts > room.starts);
                    assert_eq!(pace.room(&some, Timestamp(then.0 - 1)).starts, room.starts);
                } else {
                    let later = now.plus(3_600_000_000);
                    assert_eq!(pace.room(&some, later).starts, room.starts);
                }
                if round % 3 == 0 {
                    pace = trial;
                }
                now = now.plus(37_000);
            }
        }
    }
}
