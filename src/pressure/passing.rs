//! Jobs that come to queues and leave them without an enqueue: claimed, started, failed, dropped by others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::hidden::LaterState;
use super::queue::BoundedQueue;
use super::seen::{Mark, TakenTo};
use super::state::Pressure;
use super::want::Now;
use crate::limit::Timestamp;

impl Pressure {
    /// Changes a queue in a way that may make room, and gives the room to those who wait for it.
    pub(super) fn make_room(
        self: &Arc<Self>,
        name: &str,
        now: Now,
        what: impl FnOnce(&mut BoundedQueue),
    ) {
        let mut state = self.state.lock();
        if let Some(queue) = state.queues.get_mut(name) {
            what(queue);
            state.note_untold(name);
            self.serve(&mut state, now);
        }
    }

    /// Notes that jobs of a queue were given to us in answer to a FETCH that was sent at `sent`.
    pub fn left(self: &Arc<Self>, name: &str, jobs: u64, sent: Mark, to: TakenTo, now: Now) {
        self.make_room(name, now, |queue| queue.left(jobs, sent, to, now.at));
    }

    /// Notes that this job of a queue waits no longer, where it matters which jobs leave and not only how many.
    pub fn gone(self: &Arc<Self>, name: &str, id: &str, now: Now) {
        if self.bounds(name).is_some_and(|bounds| bounds.tells_apart()) {
            self.make_room(name, now, |queue| queue.members.left(id));
        }
    }

    /// Notes that a held job of a queue goes to a worker.
    pub fn started(self: &Arc<Self>, name: &str, id: &str, now: Now) {
        if self.any() {
            self.make_room(name, now, |queue| queue.started(id, now.at));
        }
    }

    /// A FETCH of this queue alone that was sent at `sent` got fewer jobs than it asked for.
    pub fn ran_dry(self: &Arc<Self>, name: &str, sent: Mark, now: Now) {
        self.make_room(name, now, |queue| queue.estimate.ran_dry(sent));
    }

    /// A job of a queue waits again.
    pub fn came(&self, name: &str) {
        let mark = self.mark();
        self.with(name, |queue| queue.estimate.came(1, mark));
    }

    /// A job of a queue failed, and waits again: it is tried again from `due` on.
    pub fn came_to_retry(&self, name: &str, job: &str, due: Timestamp) {
        self.any_later.store(true, Ordering::Relaxed);
        let mark = self.mark();
        self.with(name, |queue| {
            queue.estimate.came(1, mark);
            queue.later.add(job, LaterState::Retryable, due);
        });
    }

    /// Notes that a job of a queue waits for no time any more. Returns whether it did until now, as far as is known.
    pub fn waits_no_longer(&self, name: &str, job: &str, now: Timestamp) -> bool {
        // Mostly none was ever seen to wait for a time.
        let remove = |queue: &mut BoundedQueue| queue.later.remove(job, now);
        self.any_later.load(Ordering::Relaxed) && self.with(name, remove).unwrap_or(false)
    }
}
