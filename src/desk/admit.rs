//! What enqueues and looks at bounded queues keep between requests, beside [`crate::bounds`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::backend_stats::BackendStats;
use super::discarded::Discarded;
use super::unbounded::Unbounded;
use crate::answers::load::Seldom;
use crate::bounds::Pressure;

/// The most looks that are on their way at once: each has a connection.
pub(crate) const LOOKS_AT_ONCE: usize = 16;
/// The longest `Retry-After`.
const LATEST: Duration = Duration::from_secs(30);

/// The part of the sidecar that admits enqueues.
#[derive(Debug)]
pub(crate) struct Admit {
    /// How much waits in bounded queues.
    pub(crate) pressure: Arc<Pressure>,
    /// What was learnt of the backend's statistics.
    pub(crate) stats: BackendStats,
    /// Queues without bounds.
    pub(crate) unbounded: Unbounded,
    /// Jobs for which there was no room.
    pub(crate) discarded: Discarded,
    /// Attempts to discard some to which the backend said no.
    pub(crate) refused_drops: Discarded,
    /// Tells of templates that bring limits.
    pub(crate) templates: Seldom,
    /// Looks at queues that may be on their way.
    pub(crate) looks: Semaphore,
    /// What siblings were told of how many jobs are held here, by queue, and when. Locked while the store is told, so
    /// that what it hears last is what was so last.
    pub(crate) told_holds: tokio::sync::Mutex<HashMap<Arc<str>, (u64, Instant)>>,
    /// Enqueues that were refused so far.
    refusals: AtomicU64,
}

impl Admit {
    pub(crate) fn new(pressure: Arc<Pressure>) -> Admit {
        Admit {
            pressure,
            stats: BackendStats::default(),
            unbounded: Unbounded::default(),
            discarded: Discarded::default(),
            refused_drops: Discarded::default(),
            templates: Seldom::default(),
            looks: Semaphore::new(LOOKS_AT_ONCE),
            told_holds: tokio::sync::Mutex::default(),
            refusals: AtomicU64::new(0),
        }
    }

    /// Whole seconds until it is worth trying again `after` this time: up to a quarter and a second more, so that
    /// those who were refused together do not come back together.
    pub(crate) fn retry_after(&self, after: Duration) -> u64 {
        let after = after.min(LATEST).as_secs_f64().max(1.0);
        // Steps of the golden ratio spread any number of them evenly.
        let nth = self.refusals.fetch_add(1, Ordering::Relaxed);
        let part = |nth: u64| (nth as f64 * 0.618_033_988_749_895).fract();
        let seconds = after * (1.0 + 0.25 * part(nth)) + part(nth.wrapping_mul(7).wrapping_add(3));
        (seconds as u64).clamp(1, LATEST.as_secs())
    }
}
