//! What was learnt of the backend's statistics of queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answers::load::Seldom;
use crate::bounds::{Away, StatsAnswer};

/// What was learnt of the backend's statistics.
#[derive(Debug, Default)]
pub(crate) struct BackendStats {
    /// It told the numbers of some queue: one that it does not know is empty.
    pub(crate) told: AtomicBool,
    /// There are none under `/ojs/v1/admin`.
    pub(crate) plain_only: AtomicBool,
    /// The last 401 or 403 to a question of ours, else 0.
    pub(crate) refused: AtomicU16,
    /// What was warned of.
    pub(crate) warned: AtomicBool,
    pub(crate) warned_of_states: AtomicBool,
    pub(crate) failing: Failing,
    pub(crate) time: QuestionTime,
}

/// The time that the backend may spend on questions about subqueues, in nanoseconds: a tenth of all time, less what it
/// spends on those about queues; and how long the last one took. Some backends read a whole table for each.
#[derive(Debug)]
pub(crate) struct QuestionTime(Mutex<(Instant, i64, Duration)>);

/// The most time that is saved up, and the most that is paid back.
const MOST_TIME: i64 = 100_000_000;
const MOST_DEBT: i64 = 3_000_000_000;
/// A queue is left alone for so many times the time that a question about it took.
const RESTS: u32 = 30;
/// As much of that time may be the way there and back.
const WAY: Duration = Duration::from_millis(20);

/// How long a queue is left alone after a question that took so long.
pub(crate) fn rest_after(took: Duration) -> Duration {
    RESTS * took.saturating_sub(WAY)
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl Default for QuestionTime {
    fn default() -> QuestionTime {
        QuestionTime(Mutex::new((Instant::now(), MOST_TIME, Duration::ZERO)))
    }
}

impl QuestionTime {
    /// Whether another question may be asked beside so many. What those take is known too late, so that none is where
    /// the last one took long.
    pub(crate) fn has_some(&self, beside: usize) -> bool {
        let mut state = self.0.lock();
        let (since, left, last) = &mut *state;
        let now = Instant::now();
        let more = nanos(now.saturating_duration_since(*since)) / 10;
        *left = left.saturating_add(more).min(MOST_TIME);
        *since = now;
        *left > 0 && (beside == 0 || *last <= WAY)
    }

    /// The backend answered questions for so long.
    pub(crate) fn spend(&self, time: Duration) {
        let mut state = self.0.lock();
        state.1 = state.1.saturating_sub(nanos(time)).max(-MOST_DEBT);
        state.2 = time;
    }
}

/// The queue whose numbers the backend fails to tell, as the log has it. Its other answers may be good, so nothing
/// else says why enqueues get 502.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    queue: Mutex<Option<Arc<str>>>,
    told: Seldom,
}

impl Failing {
    /// Logs what came of a question about a bounded queue: a line when it fails, one each minute while that goes on,
    /// and one when it is over.
    pub(crate) fn note(&self, queue: &str, answer: &StatsAnswer) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_questions_took_is_paid_back() {
        let time = QuestionTime::default();
        assert!(time.has_some(7));
        (0..8).for_each(|_| time.spend(Duration::from_millis(125)));
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(
            !time.has_some(0),
            "0.9 s were spent too much, and 0.8 s paid back"
        );
        tokio::time::advance(Duration::from_millis(1_001)).await;
        assert!(time.has_some(0) && !time.has_some(1));
        let long = Duration::from_millis(100);
        assert!(rest_after(long) > 20 * long && rest_after(WAY).is_zero());
    }
}
