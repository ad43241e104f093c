//! A window with edges over one key's starts: where it ends, and how many there were.

use super::calendar::Edges;
use super::limits::{Rate, WindowKind};
use super::packed::{PackedReader, Writer};
use super::time::{EARLY, Timestamp};

/// The starts of one key in one fixed or calendar window.
///
/// A start that counts in a window's last [`EARLY`], or after it, counts in the next one too: its hand-out
/// may come that much later, and so in either. No window, as workers see it, has more than its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) period: u64,
    pub(super) kind: WindowKind,
    edges: Edges,
    /// The starts of this window.
    count: u32,
    /// Those among them that count in the next one too.
    next: u32,
}

impl Block {
    /// Nothing counted yet in the window at `now`.
    pub(super) fn new(rate: &Rate, now: Timestamp) -> Block {
        let mut block = Block {
            period: rate.period.get(),
            kind: rate.window.clone(),
            edges: Edges::default(),
            count: 0,
            next: 0,
        };
        block.edges = block.edges(now);
        block
    }

    pub(super) fn is_of(&self, rate: &Rate) -> bool {
        self.period == rate.period.get() && self.kind == rate.window
    }

    /// Its body, without period and kind.
    pub(super) fn pack(&self, to: &mut Writer) {
        to.time(self.edges.starts);
        to.time(self.edges.ends);
        to.u32(self.count);
        to.u32(self.next);
    }

    pub(super) fn unpack(
        period: u64,
        kind: WindowKind,
        from: &mut PackedReader<'_>,
    ) -> Option<Block> {
        Some(Block {
            period,
            kind,
            edges: Edges {
                starts: from.time()?,
                ends: from.time()?,
            },
            count: from.u32()?,
            next: from.u32()?,
        })
    }

    /// From when on none of its starts counts, at the latest.
    pub(super) fn over(&self) -> Timestamp {
        match self.next {
            0 => self.edges.ends,
            _ => self.edges.ends.plus(self.kind.longest(self.period)),
        }
    }

    /// How many starts count at `now`.
    pub(super) fn count(&self, now: Timestamp) -> u32 {
        self.at(now).count
    }

    /// When a window of `limit` starts has a free place, if it has none at `now`.
    pub(super) fn opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        (self.count(now) >= limit).then(|| self.grows(limit, now))?
    }

    /// When more may start than the `limit` allows at `now`, if anything counts.
    pub(super) fn grows(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        let CurrentWindow { edges, count, next } = self.at(now);
        let room = |count: u32| limit.saturating_sub(count);
        match (count, room(next) > room(count)) {
            (0, _) => None,
            (_, true) => Some(edges.ends),
            (_, false) => Some(self.edges(edges.ends).ends),
        }
    }

    /// When those that count at `now` begin to leave, if there are any.
    pub(super) fn leaves(&self, now: Timestamp) -> Option<Timestamp> {
        let CurrentWindow { edges, count, .. } = self.at(now);
        (count > 0).then_some(edges.ends)
    }

    /// Counts a start of this cost at `start` that was decided at `now`.
    pub(super) fn add(&mut self, start: Timestamp, cost: u32, now: Timestamp) {
        let at = self.at(now);
        self.edges = at.edges;
        self.count = at.count.saturating_add(cost);
        self.next = match closes(&at.edges, start) {
            true => at.next.saturating_add(cost),
            false => at.next,
        };
    }

    /// Uncounts so much of a start at `start` that was decided at `then`, the newest or not.
    pub(super) fn remove(&mut self, start: Timestamp, cost: u32, then: Timestamp) {
        let Edges { starts, ends } = self.edges;
        if starts <= then && then < ends {
            self.count = self.count.saturating_sub(cost);
            if closes(&self.edges, start) {
                self.next = self.next.saturating_sub(cost);
            }
        } else if then < starts && start.plus(EARLY) >= starts {
            // Of the window before, and counted here too.
            self.count = self.count.saturating_sub(cost);
        }
    }

    /// The window of `now`. A time before the one that is known is that of a clock which went back;
    /// that frees nothing.
    fn at(&self, now: Timestamp) -> CurrentWindow {
        let Block {
            edges, count, next, ..
        } = *self;
        if now < edges.ends {
            return CurrentWindow { edges, count, next };
        }
        let new = self.edges(now);
        let follows = new.starts == edges.ends;
        CurrentWindow {
            edges: new,
            count: if follows { next } else { 0 },
            next: 0,
        }
    }

    fn edges(&self, now: Timestamp) -> Edges {
        self.kind.edges(self.period, now).unwrap_or_default()
    }
}

/// A window, and what counts in it.
struct CurrentWindow {
    edges: Edges,
    count: u32,
    next: u32,
}

/// Whether the hand-out of a start at `start` may come when the window is over.
fn closes(edges: &Edges, start: Timestamp) -> bool {
    start.plus(EARLY) >= edges.ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyState, Limits, Measure, Throttle};
    use std::num::{NonZeroU32, NonZeroU64};

    const T: Timestamp = Timestamp(1_800_000_000_000_000);
    const MINUTE: u64 = 60_000_000;

    fn block() -> Block {
        let rate = Rate {
            limit: NonZeroU32::MIN,
            period: NonZeroU64::new(MINUTE).unwrap(),
            window: WindowKind::Fixed,
        };
        Block::new(&rate, T)
    }

    #[test]
    fn it_counts_up_to_its_edge_and_then_anew() {
        let (mut block, end) = (block(), T.plus(MINUTE));
        assert_eq!(
            (block.count(T), block.opens(1, T), block.leaves(T)),
            (0, None, None)
        );
        block.add(T.plus(MINUTE - 5_001), 1, T.plus(MINUTE - 5_001));
        let late = T.plus(MINUTE - 1);
        assert_eq!(block.opens(2, late), None);
        assert_eq!(block.opens(1, late), Some(end));
        assert_eq!(block.leaves(late), Some(end));
        assert_eq!((block.count(end), block.opens(1, end)), (0, None));
        block.add(end, 1, end);
        assert_eq!(block.opens(1, end), Some(T.plus(2 * MINUTE)));
        assert_eq!(
            block.opens(1, T),
            Some(T.plus(2 * MINUTE)),
            "a clock that went back"
        );
    }

    #[test]
    fn a_start_at_the_edge_counts_on_both_sides() {
        let (mut block, end) = (block(), T.plus(MINUTE));
        let late = T.plus(MINUTE - 5_000);
        block.add(T, 1, T);
        block.add(late, 1, late);
        assert_eq!(block.opens(2, late), Some(end));
        assert_eq!(block.opens(1, late), Some(T.plus(2 * MINUTE)));
        assert_eq!(
            (block.count(end), block.opens(1, end)),
            (1, Some(T.plus(2 * MINUTE)))
        );
        assert_eq!(block.count(T.plus(2 * MINUTE)), 0);
        let mut undone = block.clone();
        undone.remove(late, 1, late);
        assert_eq!((undone.count(late), undone.count(end)), (1, 0));
        block.add(end, 1, end);
        block.remove(late, 1, late);
        assert_eq!(block.count(end), 1, "undone when its window was over");
    }

    #[test]
    fn a_start_is_taken_back_from_its_own_window_only() {
        let mut block = block();
        block.add(T, 1, T);
        block.add(T.plus(1), 1, T.plus(1));
        block.remove(T, 1, T);
        assert_eq!(block.count(T), 1, "the newest or not");
        block.add(T.plus(MINUTE), 1, T.plus(MINUTE));
        block.remove(T.plus(1), 1, T.plus(1));
        assert_eq!(block.count(T.plus(MINUTE)), 1);
        block.remove(T.plus(MINUTE), 1, T.plus(MINUTE));
        assert_eq!(
            (block.count(T.plus(MINUTE)), block.leaves(T.plus(MINUTE))),
            (0, None)
        );
    }

    #[test]
    fn a_start_counts_where_it_may_leave() {
        let (mut block, end) = (block(), T.plus(MINUTE));
        let (then, start) = (T.plus(MINUTE - 9_000), T.plus(MINUTE - 4_000));
        block.add(start, 1, then);
        assert_eq!(block.count(end), 1, "it may leave 1 ms after the edge");
        let mut undone = block.clone();
        undone.remove(start, 1, then);
        assert_eq!((undone.count(then), undone.count(end)), (0, 0));
        block.add(end, 1, end);
        block.remove(start, 1, then);
        assert_eq!(block.count(end), 1, "undone when its window was over");
    }

    #[test]
    fn a_spaced_start_counts_in_both_windows_that_it_may_leave_in() {
        let number = |n| NonZeroU32::new(n).unwrap();
        let limits = Limits {
            concurrency: None,
            rates: vec![Rate {
                limit: number(2),
                period: NonZeroU64::new(MINUTE).unwrap(),
                window: WindowKind::Fixed,
            }],
            throttle: Some(Throttle {
                limit: number(100),
                period: NonZeroU64::new(1_000_000).unwrap(),
                burst: NonZeroU32::MIN,
                measure: Measure::Start,
            }),
        };
        let (mut key, end) = (KeyState::default(), T.plus(MINUTE));
        for before in [14_000, 9_000] {
            let now = Timestamp(end.0 - before);
            let at = key.ask(&limits, 1, now).unwrap();
            key.take(std::iter::once(&limits), 1, at, now);
        }
        // The second one counts 4 ms before the edge, and may leave 1 ms after it.
        assert_eq!(key.room(&limits, end.plus(10_000)).starts, 1);
    }
}
