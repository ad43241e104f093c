//! Dropping the oldest job of a full queue for a new one (`drop_oldest`): first the old job goes, then the new one is
//! asked about again, as any other. Who drops has the queue closed, as by a look: all others wait for the end of it.
//! So one drops after the other.

use std::sync::Arc;

use tokio::time::Instant;

use super::admit::Admission;
use super::queue::BoundedQueue;
use super::seen::Dropped;
use super::state::{Pressure, PressureState};
use super::want::{Now, Want};

/// An enqueue that drops a job of a full queue. Nobody else is let into the queue until this ends: with the next
/// question of that enqueue, or when this value goes.
#[derive(Debug)]
pub struct Dropping {
    pressure: Arc<Pressure>,
    /// `None`: it has ended.
    queue: Option<Arc<str>>,
    now: Now,
}

impl Dropping {
    /// Begins to drop a job. `None`: another enqueue does, or the queue is being looked at; who asks again waits for
    /// the end of that.
    pub fn begin(pressure: &Arc<Pressure>, queue: &Arc<str>, now: Now) -> Option<Dropping> {
        let begin = |queue: &mut BoundedQueue| {
            queue.close();
            queue.estimate.begin()
        };
        let is_mine = pressure.with(queue, begin).unwrap_or(false);
        is_mine.then(|| Dropping {
            pressure: Arc::clone(pressure),
            queue: Some(Arc::clone(queue)),
            now,
        })
    }

    /// Notes what became of a job that was to be dropped.
    pub fn dropped(&self, what: Dropped, now: Instant) {
        let mut state = self.pressure.state.lock();
        if let Some(name) = &self.queue {
            if let Some(queue) = state.queues.get_mut(name) {
                queue.dropped(what, now);
            }
            state.note_untold(name);
        }
    }

    /// [Asks](Pressure::admit) again and ends this: nobody comes in between.
    pub fn admit_again(mut self, wants: &mut Vec<Want>, now: Now) -> Admission {
        let pressure = Arc::clone(&self.pressure);
        let mut state = pressure.state.lock();
        self.end(&mut state);
        let answer = pressure.admit_new(&mut state, wants, now);
        pressure.serve(&mut state, now);
        answer
    }

    fn end(&mut self, state: &mut PressureState) {
        if let Some(name) = self.queue.take()
            && let Some(queue) = state.queues.get_mut(&name)
        {
            // The backend was not asked.
            queue.estimate.look = None;
            queue.open();
        }
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        if self.queue.is_some() {
            let pressure = Arc::clone(&self.pressure);
            let mut state = pressure.state.lock();
            self.end(&mut state);
            pressure.serve(&mut state, self.now);
        }
    }
}
