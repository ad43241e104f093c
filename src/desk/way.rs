//! How long the store takes to answer: a start is asked for that much earlier.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::desk::micros;

/// How long the way to the store and back takes, in microseconds: a moving mean.
#[derive(Default, Debug)]
pub(crate) struct Way(AtomicU64);

impl Way {
    /// A question of a start was answered after so long.
    pub(crate) fn took(&self, time: Duration) {
        let before = self.0.load(Ordering::Relaxed);
        let after = (7 * before + micros(time).min(100_000)) / 8;
        self.0.store(after, Ordering::Relaxed);
    }

    /// How much earlier a start is asked for, so that the store decides in time.
    pub(crate) fn lead(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / 2
    }
}
