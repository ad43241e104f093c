//! Where siblings have offered held jobs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::hold::Lane;
use crate::store::Gen;

/// How long a lane is looked into after the store has named it: one in which an offer stands is named again
/// by one of the next beats.
const STANDS: Duration = Duration::from_secs(60);

/// So long at most a store that fails again and again is waited for.
const UNSURE: Duration = Duration::from_secs(10);

/// So many tries have numbers of their own. Numbers of claims are times, in microseconds: that of the next claim of the job
/// is higher.
const TRIES: u64 = 1_000;

/// Lanes in which siblings have offered held jobs, with the time when that was heard of last.
#[derive(Default, Debug)]
pub(crate) struct Offered {
    any: AtomicBool,
    lanes: Mutex<HashMap<Lane, Instant>>,
    /// Since when the store may have forgotten who took some of them over.
    unsure: Mutex<Option<Instant>>,
    /// How often one was to be taken over.
    tries: AtomicU64,
}

impl Offered {
    pub(crate) fn put(&self, lane: Lane) {
        let mut lanes = self.lanes.lock();
        lanes.insert(lane, Instant::now());
        self.any.store(true, Ordering::Release);
    }

    /// The store knows who took them over.
    pub(crate) fn are_known(&self) {
        *self.unsure.lock() = None;
    }

    /// The store may have forgotten that: whether it is still waited for.
    pub(crate) fn wait_for_store(&self) -> bool {
        let mut unsure = self.unsure.lock();
        unsure.get_or_insert_with(Instant::now).elapsed() < UNSURE
    }

    /// The number under which an offered claim is taken over. No other try of this sidecar has it. A try that had no answer
    /// goes on beside the next one, and only one of them may get the job.
    pub(crate) fn claim_number(&self, offered: Gen) -> Gen {
        let nth = self.tries.fetch_add(1, Ordering::Relaxed) % TRIES;
        // The first after it is for who has offered it.
        Gen(offered.0 + 2 + nth)
    }

    /// Forgets what was named long ago and has found nobody who wants it.
    pub(crate) fn tidy(&self) {
        if self.any() {
            let mut lanes = self.lanes.lock();
            lanes.retain(|_, heard| heard.elapsed() < STANDS);
            self.any.store(!lanes.is_empty(), Ordering::Release);
        }
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self, lane: &Lane) -> bool {
        let mut lanes = self.lanes.lock();
        let found = lanes.remove(lane).is_some();
        self.any.store(!lanes.is_empty(), Ordering::Release);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lane_is_forgotten_that_is_named_no_more() {
        let offered = Offered::default();
        let lane = |queue: &str| Lane {
            scope: 1,
            queue: queue.into(),
        };
        offered.put(lane("left"));
        offered.put(lane("stands"));
        tokio::time::advance(STANDS / 2).await;
        offered.tidy();
        offered.put(lane("stands"));
        tokio::time::advance(STANDS / 2).await;
        offered.tidy();
        assert!(offered.any());
        assert!(!offered.take(&lane("left")));
        assert!(offered.take(&lane("stands")));
        assert!(!offered.any());
        offered.put(lane("alone"));
        tokio::time::advance(STANDS).await;
        offered.tidy();
        assert!(!offered.any(), "no FETCH asks for it any more");
    }
}
