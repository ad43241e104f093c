//! What was learnt of the backend's statistics of queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16};

use parking_lot::Mutex;

use crate::pressure::{Away, StatsAnswer};
use crate::proxy::load::Seldom;

/// What was learnt of the backend's statistics.
#[derive(Debug, Default)]
pub(in crate::proxy) struct BackendStats {
    /// There are none under `/ojs/v1/admin`.
    pub(super) plain_only: AtomicBool,
    /// The last 401 or 403 to a question of ours, else 0.
    pub(super) refused: AtomicU16,
    /// What was warned of.
    pub(super) warned: AtomicBool,
    pub(super) warned_of_states: AtomicBool,
    pub(super) failing: Failing,
}

/// The queue whose numbers the backend fails to tell, as the log has it. Its other answers may be good, so nothing
/// else says why enqueues get 502.
#[derive(Debug, Default)]
pub(super) struct Failing {
    queue: Mutex<Option<Arc<str>>>,
    told: Seldom,
}

impl Failing {
    /// Logs what came of a question about a bounded queue: a line when it fails, one each minute while that goes on,
    /// and one when it is over.
    pub(super) fn note(&self, queue: &str, answer: &StatsAnswer) {
        let mut failing = self.queue.lock();
        match answer {
            StatsAnswer::Away(Away::Failing(status)) if self.told.now() => {
                *failing = Some(Arc::from(queue));
                tracing::warn!(
                    id = %"depth_untold",
                    queue,
                    status,
                    "the backend does not tell how many jobs wait: enqueues into a bounded queue get 502 where it \
                     may be full"
                );
            }
            StatsAnswer::Away(_) => {}
            _ if failing.as_deref() == Some(queue) => {
                *failing = None;
                tracing::info!(queue, "the backend tells again how many jobs wait");
            }
            _ => {}
        }
    }
}
