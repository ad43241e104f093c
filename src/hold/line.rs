//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Hold, Lane};
use crate::limit::{Key, Limited, Space};

/// A waiting FETCH.
#[derive(Clone, Debug)]
pub struct Waiter {
    id: u64,
    notify: Arc<Notify>,
}

impl Waiter {
    pub(super) fn new(id: u64) -> Waiter {
        Waiter {
            id,
            notify: Arc::new(Notify::new()),
        }
    }

    /// Ends when the waiter is woken; a wake that came before is not lost.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }
}

#[derive(Default, Debug)]
pub(super) struct Line {
    waiters: VecDeque<Waiter>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn join(&mut self, waiter: &Waiter) {
        self.waiters.push_back(waiter.clone());
    }

    pub(super) fn leave(&mut self, waiter: &Waiter) {
        let was_first = self.is_first(waiter);
        self.waiters.retain(|other| other.id != waiter.id);
        if was_first {
            self.wake();
        }
    }

    /// Wakes the first.
    pub(super) fn wake(&self) {
        if let Some(first) = self.waiters.front() {
            first.notify.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for waiter in &self.waiters {
            waiter.notify.notify_one();
        }
    }

    fn is_first(&self, waiter: &Waiter) -> bool {
        let first = self.waiters.front();
        first.is_some_and(|first| first.id == waiter.id)
    }
}

impl Hold {
    /// A slot of these keys ended, or a start of theirs was undone: whoever waits for one of them may
    /// ask again.
    pub fn wake(&self, freed: &[Limited]) {
        self.wake_where(|space, key| freed.iter().any(|f| f.space == space && f.key == *key));
    }

    /// The same for keys of which nothing else is known.
    pub fn wake_keys(&self, freed: &[(Space, Key)]) {
        self.wake_where(|space, key| freed.iter().any(|f| f.0 == space && f.1 == *key));
    }

    fn wake_where(&self, is_freed: impl Fn(Space, &Key) -> bool) {
        let mut state = self.state();
        let wakes = state.woken();
        for queue in state.queues.values_mut() {
            let touches = |limited: &[Limited]| limited.iter().any(|l| is_freed(l.space, &l.key));
            // The queue's own limits may have been set since its jobs were read.
            let whole = is_freed(Space::Queue, &queue.key);
            let mut woken = whole || touches(&queue.gate.limited);
            for group in queue.all_groups_mut() {
                if whole || touches(&group.limits) {
                    group.wake(wakes);
                    woken = true;
                }
            }
            if woken {
                queue.line.wake();
            }
        }
    }

    /// Why jobs were refused is not to be counted on any more (a slot that ended unheard, a store that is
    /// back): all may be asked for again.
    pub fn ask_all(&self) {
        let mut state = self.state();
        let wakes = state.woken();
        for queue in state.queues.values_mut() {
            for group in queue.all_groups_mut() {
                group.wake(wakes);
            }
            queue.line.wake_all();
        }
    }

    /// Wakes every waiting FETCH (drain).
    pub fn wake_all(&self) {
        for queue in self.state().queues.values() {
            queue.line.wake_all();
        }
    }

    /// Wakes the first who waits for the lane, if something of it may be asked for.
    pub fn nudge(&self, lane: &Lane) {
        let state = self.state();
        if let Some(queue) = state.holding(lane)
            && queue
                .all_groups()
                .any(|group| group.refused.is_none() && !group.jobs.is_empty())
        {
            queue.line.wake();
        }
    }

    /// Stands in the lines of all the lanes, behind who is there already.
    pub fn stand(&self, lanes: &[Lane], now: Instant) -> Waiter {
        let mut state = self.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in lanes {
            state.queues.open(lane, now).line.join(&waiter);
        }
        waiter
    }

    /// Leaves the lines; the next in each is woken.
    pub fn leave(&self, lanes: &[Lane], waiter: &Waiter) {
        let mut state = self.state();
        for lane in lanes {
            if let Some(queue) = state.queues.get_mut(lane) {
                queue.line.leave(waiter);
            }
        }
    }

    /// Whether a waiter is the first in a lane's line: it watches the clock and asks the backend.
    pub fn is_first_in_line(&self, lane: &Lane, waiter: &Waiter) -> bool {
        let state = self.state();
        let queue = state.queues.get(lane);
        queue.is_some_and(|queue| queue.line.is_first(waiter))
    }
}
