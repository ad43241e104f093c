//! Which workers poll: who was sent away empty and came back after a pause. A slot that ends in that pause is not used,
//! so such a worker may wait longer for one. Who never did that soon hears that nothing starts.

use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::named::Ages;

/// Who is not known to poll waits so long at most.
const NEWCOMER: Duration = Duration::from_millis(500);
/// Who comes back sooner than that asks again at once, and does not poll.
const PAUSE: Duration = Duration::from_millis(100);
/// Who comes back later than that is no poller any more.
const LATE: Duration = Duration::from_secs(10);
/// So many workers are remembered, and at most twice as many.
const WORKERS: usize = 10_000;

/// When workers were sent away empty last, and whether they polled then.
#[derive(Default, Debug)]
pub(crate) struct Pollers(Mutex<Ages<u64, (Instant, bool), WORKERS>>, RandomState);

impl Pollers {
    /// How long the worker that `came` with this FETCH may wait for a start.
    pub(crate) fn patience(
        &self,
        worker: impl Hash,
        came: Instant,
        max_wait: Duration,
    ) -> Duration {
        match max_wait > NEWCOMER && !self.polls(self.1.hash_one(worker), came) {
            true => NEWCOMER,
            false => max_wait,
        }
    }

    /// The worker that `came` with this FETCH got nothing.
    pub(crate) fn sent_away(&self, worker: impl Hash, came: Instant) {
        let who = self.1.hash_one(worker);
        let polls = self.polls(who, came);
        self.0.lock().put(who, (Instant::now(), polls));
    }

    fn polls(&self, who: u64, came: Instant) -> bool {
        let last = self.0.lock().get(&who).copied();
        last.is_some_and(|(at, polled)| {
            let pause = came.saturating_duration_since(at);
            pause < LATE && (polled || pause >= PAUSE)
        })
    }
}
