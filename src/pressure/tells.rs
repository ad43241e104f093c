//! Whether a backend tells how many jobs wait for a time. Some say 0 however many do, and only what passed through
//! here shows it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Jobs in one state that are known here to wait for a time, or to have waited for one that has come just now.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Waits {
    /// All of them: a backend may make them available a little later.
    pub(super) all: u64,
    /// Those whose time has not come.
    pub(super) early: u64,
    /// Those whose time is so far away that no clock is off by it.
    pub(super) sure: u64,
}

/// What was seen of a backend's numbers of one state.
#[derive(Default, Debug)]
pub(super) struct Tells {
    /// It told of some.
    told: AtomicBool,
    /// It told of none while some waited.
    missed: AtomicBool,
}

impl Tells {
    /// Whether it was seen to tell of any.
    pub(super) fn are_seen(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// How many of these jobs are in none of the backend's numbers, of which this one is `told`. Where it was never
    /// seen to leave any out, those whose time has come are taken to be available. `newer` jobs came
    /// after the question.
    pub(super) fn hides(&self, told: Option<u64>, waits: Waits, newer: u64) -> u64 {
        match told {
            // An answer without it tells nothing of them, whatever others told.
            None => return waits.all,
            Some(0) if newer == 0 && waits.early > 0 => self.missed.store(true, Ordering::Relaxed),
            Some(0) => {}
            Some(_) => self.told.store(true, Ordering::Relaxed),
        }
        match self.missed.load(Ordering::Relaxed) {
            _ if self.are_seen() => 0,
            true => waits.all,
            false => waits.early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_are_counted_twice_where_none_were_missed() {
        let waits = |all, early| Waits {
            all,
            early,
            sure: early,
        };
        let tells = Tells::default();
        let hides = |told, waits| tells.hides(told, waits, 0);
        assert_eq!(hides(None, waits(2, 0)), 2, "no number at all");
        assert_eq!(hides(Some(0), waits(2, 0)), 0, "available by now");
        let asked_before = tells.hides(Some(0), waits(2, 1), 1);
        assert_eq!(asked_before, 1);
        assert_eq!(hides(Some(0), waits(2, 0)), 0, "that showed nothing");
        assert_eq!(hides(Some(0), waits(2, 1)), 2);
        assert_eq!(hides(Some(0), waits(2, 0)), 2, "not before they are");
        assert_eq!(hides(Some(1), waits(2, 2)), 0);
        assert_eq!(hides(Some(0), waits(1, 1)), 0, "of somebody else");
        assert!(tells.are_seen());
    }
}
