//! Which workers poll: who was sent away empty and came back after a pause. A slot that ends in that pause is not used,
//! so such a worker may wait longer for one. Who never did that soon hears that nothing starts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::asked::Wanted;
use crate::proxy::control::named::Ages;

/// Who is not known to poll waits so long at most.
const NEWCOMER: Duration = Duration::from_millis(500);
/// Who comes back sooner than that asks again at once, and does not poll.
const PAUSE: Duration = Duration::from_millis(100);
/// Who comes back later than that is no poller any more.
const LATE: Duration = Duration::from_secs(10);
/// So many workers are remembered, and at most twice as many.
const WORKERS: usize = 10_000;

/// When workers were sent away empty last, and whether they polled then.
#[derive(Debug)]
pub(super) struct Pollers(Mutex<Ages<u64, (Instant, bool)>>, RandomState);

impl Default for Pollers {
    fn default() -> Pollers {
        Pollers(Mutex::new(Ages::new(WORKERS)), RandomState::new())
    }
}

impl Pollers {
    /// How long the worker that `came` with this FETCH may wait for a start.
    pub(super) fn patience(&self, wanted: &Wanted, came: Instant, max_wait: Duration) -> Duration {
        match max_wait > NEWCOMER && !self.polls(self.who(wanted), came) {
            true => NEWCOMER,
            false => max_wait,
        }
    }

    /// The worker that `came` with this FETCH got nothing.
    pub(super) fn sent_away(&self, wanted: &Wanted, came: Instant) {
        let who = self.who(wanted);
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

    /// A worker, by its credentials and its name. Those that say no name are told apart by their queues.
    fn who(&self, wanted: &Wanted) -> u64 {
        let name = wanted.asked.as_ref();
        let name = name.and_then(|asked| asked.worker_as_sent(&wanted.body));
        let queues = name.is_none().then(|| wanted.queues());
        self.1.hash_one((wanted.scope, name, queues))
    }
}
