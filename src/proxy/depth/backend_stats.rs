//! What was learnt of the backend's statistics of queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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
    pub(super) time: QuestionTime,
}

/// The time that the backend may spend on questions about subqueues: a tenth of all time. Some backends read a whole table
/// for each.
#[derive(Debug)]
pub(super) struct QuestionTime(Mutex<(Instant, Duration)>);

/// The most time that is saved up.
const MOST_TIME: Duration = Duration::from_millis(100);

impl Default for QuestionTime {
    fn default() -> QuestionTime {
        QuestionTime(Mutex::new((Instant::now(), MOST_TIME)))
    }
}

impl QuestionTime {
    /// Whether another question may be asked.
    pub(super) fn has_some(&self) -> bool {
        let mut state = self.0.lock();
        let (since, left) = &mut *state;
        let now = Instant::now();
        *left = (*left + now.saturating_duration_since(*since) / 10).min(MOST_TIME);
        *since = now;
        !left.is_zero()
    }

    /// A question took so long.
    pub(super) fn spend(&self, time: Duration) {
        let mut state = self.0.lock();
        state.1 = state.1.saturating_sub(time);
    }
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
