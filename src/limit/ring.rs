//! The starts of a busy window, counted by sub-window.

use super::packed::{PackedReader, Writer};
use super::time::{EARLY, Timestamp};

/// How many sub-windows are kept. With 126 of them to a period and twice [`EARLY`] the oldest that
/// counts and the newest that can be written never meet.
const SLOTS: u64 = 128;

/// What starts cost by sub-window, each counted as at its sub-window's end: never too soon, and at most one
/// sub-window too late. A sub-window is under 1 % of any period from 40 ms on (below that the 5 ms
/// for which a window keeps a start anyway are more). Half a kilobyte, whatever the number of starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ring {
    /// A sub-window in microseconds.
    width: u64,
    /// How long a start is kept past its sub-window's end.
    keep: u64,
    /// The number of the oldest sub-window that has a slot; sub-window `n` begins at `n * width`.
    low: u64,
    /// The sum of `counts`.
    total: u32,
    counts: [u32; SLOTS as usize],
}

impl Ring {
    /// An empty ring for a window of `period` microseconds, whose first start is about `at`.
    pub(super) fn new(period: u64, at: Timestamp) -> Ring {
        let width = period.saturating_add(2 * EARLY).div_ceil(SLOTS - 2);
        let keep = period.saturating_add(EARLY);
        let low = at.0.saturating_sub(keep) / width;
        Ring {
            width,
            keep,
            low,
            total: 0,
            counts: [0; SLOTS as usize],
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.long(self.low);
        to.u32(self.total);
        self.counts.iter().for_each(|count| to.u32(*count));
    }

    pub(super) fn unpack(period: u64, from: &mut PackedReader<'_>) -> Option<Ring> {
        let mut ring = Ring::new(period, Timestamp::default());
        ring.low = from.long()?;
        ring.total = from.u32()?;
        for count in &mut ring.counts {
            *count = from.u32()?;
        }
        Some(ring)
    }

    /// Forgets what has left by `now`, and says how many starts count.
    pub(super) fn forget(&mut self, now: Timestamp) -> u32 {
        self.clear_below(self.gone(now));
        self.total
    }

    /// Counts a start of this cost.
    pub(super) fn add(&mut self, at: Timestamp, cost: u32) {
        let sub = (at.0 / self.width).max(self.low);
        // Never with times that stay near each other; if so, the oldest count a little longer.
        if sub - self.low >= SLOTS {
            self.fold(sub - (SLOTS - 1));
        }
        // No limit is above `u32::MAX`, so a count that has come so far need not go on.
        let cost = cost.min(u32::MAX - self.total);
        if let Some(count) = self.slot(sub) {
            *count += cost;
            self.total += cost;
        }
    }

    /// Uncounts so much of a start at `at`, if its sub-window is there still.
    pub(super) fn remove(&mut self, at: Timestamp, cost: u32) {
        let sub = at.0 / self.width;
        if sub < self.low || sub - self.low >= SLOTS {
            return;
        }
        if let Some(count) = self.slot(sub) {
            let cost = cost.min(*count);
            *count -= cost;
            self.total -= cost;
        }
    }

    /// How many starts count at `now`.
    pub(super) fn count(&self, now: Timestamp) -> u32 {
        let end = self.gone(now).min(self.low + SLOTS);
        self.total - (self.low..end).map(|sub| self.at(sub)).sum::<u32>()
    }

    /// When the start with `nth` older ones beside it at `now` leaves.
    pub(super) fn leaves(&self, nth: u32, now: Timestamp) -> Option<Timestamp> {
        let mut older = 0;
        for sub in self.gone(now).max(self.low)..self.low + SLOTS {
            older += self.at(sub);
            if older > nth {
                return Some(Timestamp((sub + 1).saturating_mul(self.width)).plus(self.keep));
            }
        }
        None
    }

    /// The first sub-window whose starts still count.
    fn gone(&self, now: Timestamp) -> u64 {
        now.0.saturating_sub(self.keep) / self.width
    }

    fn at(&self, sub: u64) -> u32 {
        self.counts
            .get((sub % SLOTS) as usize)
            .copied()
            .unwrap_or(0)
    }

    fn slot(&mut self, sub: u64) -> Option<&mut u32> {
        self.counts.get_mut((sub % SLOTS) as usize)
    }

    /// Drops what is older than sub-window `low`, and says how much that was.
    fn clear_below(&mut self, low: u64) -> u32 {
        let mut gone = 0;
        for sub in self.low..low.min(self.low + SLOTS) {
            if let Some(count) = self.slot(sub) {
                gone += std::mem::take(count);
            }
        }
        self.total -= gone;
        self.low = self.low.max(low);
        gone
    }

    /// Counts what is older than sub-window `low` as if it were of that one.
    fn fold(&mut self, low: u64) {
        let gone = self.clear_below(low);
        if let Some(count) = self.slot(low) {
            *count += gone;
            self.total += gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp(1_800_000_000_000_000);

    #[test]
    fn a_start_leaves_within_a_hundredth_of_the_period() {
        for period in [40_000, 1_000_000, 86_400_000_000, 365 * 86_400_000_000] {
            for offset in [0, 1, period / 127, period / 3, period - 1] {
                let at = T.plus(offset);
                let mut ring = Ring::new(period, at);
                ring.add(at, 1);
                let leaves = ring.leaves(0, at).unwrap();
                assert!(leaves >= at.plus(period + EARLY));
                assert!(
                    leaves <= at.plus(period + EARLY + period / 100),
                    "period {period}"
                );
                assert_eq!(ring.count(Timestamp(leaves.0 - 1)), 1);
                assert_eq!(ring.count(leaves), 0);
            }
        }
    }

    #[test]
    fn memory_is_fixed() {
        assert!(size_of::<Ring>() <= 1024);
    }

    #[test]
    fn times_that_leap_lose_no_start_that_counts() {
        let mut ring = Ring::new(1_000_000, T);
        ring.add(T, 1);
        // Far ahead of the clock: more than the ring spans.
        ring.add(T.plus(90_000_000), 1);
        assert_eq!(ring.count(T), 2);
        // And back.
        ring.add(T, 1);
        assert_eq!(ring.count(T), 3);
        assert_eq!(ring.count(T.plus(100_000_000)), 0);
    }

    #[test]
    fn however_far_two_starts_are_apart_neither_counts_as_the_other() {
        for apart in 0..3 * SLOTS {
            let mut ring = Ring::new(1_000_000, T);
            // The oldest that has a slot.
            let first = Timestamp(ring.low * ring.width);
            let second = first.plus(apart * ring.width);
            ring.add(first, 1);
            ring.add(second, 1);
            let leaves = ring.leaves(1, first).unwrap();
            assert!(leaves >= second.plus(1_000_000 + EARLY), "{apart} apart");
            assert_eq!(
                ring.count(Timestamp(leaves.0 - 1)),
                1 + u32::from(apart == 0)
            );
        }
    }

    #[test]
    fn the_oldest_that_counts_can_be_uncounted() {
        let mut ring = Ring::new(1_000_000, T);
        ring.add(T, 1);
        let leaves = ring.leaves(0, T).unwrap();
        let last = Timestamp(leaves.0 - 1);
        assert_eq!(ring.forget(last), 1);
        // A sub-window of another turn has the same slot.
        for turns in [SLOTS, 2 * SLOTS] {
            ring.remove(T.plus(turns * ring.width), 1);
            ring.remove(Timestamp(T.0 - turns * ring.width), 1);
        }
        assert_eq!(ring.count(last), 1);
        ring.remove(T, 1);
        assert_eq!(ring.count(last), 0);
    }

    #[test]
    fn a_leap_to_the_end_of_time_takes_none() {
        let mut ring = Ring::new(1_000_000, T);
        ring.add(T, 1);
        assert_eq!(ring.forget(Timestamp::NEVER), 0);
    }

    #[test]
    fn what_is_uncounted_is_the_newest_or_not_but_never_another() {
        let mut ring = Ring::new(1_000_000, T);
        ring.add(T, 1);
        ring.add(T.plus(500_000), 1);
        ring.remove(T, 1);
        assert_eq!(ring.count(T.plus(500_000)), 1);
        ring.remove(T, 1);
        ring.remove(T.plus(900_000), 1);
        assert_eq!(ring.count(T.plus(500_000)), 1, "none was there");
        ring.add(T.plus(2_000_000), 1);
        ring.forget(T.plus(2_000_000));
        // The first one's sub-window has another number's slot now.
        ring.remove(T.plus(500_000), 1);
        ring.remove(T.plus(90_000_000), 1);
        assert_eq!(ring.count(T.plus(2_000_000)), 1);
    }
}
