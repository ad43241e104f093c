//! How long others take to answer, and what is done earlier or counts later for it: by as much as the store's word
//! takes to get here a start counts later, because one that leaves late is undone, and on a busy machine or before a
//! slow store nearly all would be; and as long as the backend takes to give a job out it is asked before the job may
//! start, because a limit of starts would lose that time at each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::proxy::job::micros;

/// What the few milliseconds of tolerance take in themselves, in microseconds; the rest of them is for the
/// way from here to the worker.
const SPARE: u64 = 3_000;
/// The most by which a start counts later: what takes longer is undone.
const MOST: u64 = 50_000;

/// The most by which a job is claimed before it may start: it waits here so long.
const MOST_BEFORE: u64 = 200_000;

/// The lead of now, in microseconds.
#[derive(Default, Debug)]
pub(in crate::proxy) struct Lead(AtomicU64);

impl Lead {
    /// A question of a start was answered after so long. Says what the lead is now, if that is another.
    pub(super) fn answered(&self, after: Duration) -> Option<u64> {
        self.follow(micros(after).saturating_sub(SPARE).min(MOST))
    }

    /// A job came from the backend after so long.
    pub(super) fn came(&self, after: Duration) {
        self.follow(micros(after).min(MOST_BEFORE));
    }

    /// The lead of now, in microseconds.
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// It follows at once where it is too short, and little by little where it is too long.
    fn follow(&self, needed: u64) -> Option<u64> {
        let before = self.0.load(Ordering::Relaxed);
        let lead = needed.max(before - before.div_ceil(32));
        self.0.store(lead, Ordering::Relaxed);
        (lead != before).then_some(lead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_led_at_once_and_a_quick_one_again_soon() {
        let lead = Lead::default();
        let answered = |millis| lead.answered(Duration::from_millis(millis));
        assert_eq!(answered(3), None, "quick enough");
        assert_eq!(answered(23), Some(20_000));
        assert_eq!(answered(5), Some(19_375));
        assert_eq!(answered(900), Some(50_000), "no more");
        for _ in 0..400 {
            answered(1);
        }
        assert_eq!(answered(1), None);
        assert_eq!(answered(4), Some(1_000));
    }
}
