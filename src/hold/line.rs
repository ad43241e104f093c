//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Hold, Lane};

/// The places of a waiting FETCH in the lines of its lanes; it leaves them when this is dropped.
#[derive(Debug)]
pub struct Standing {
    hold: Arc<Hold>,
    lanes: Vec<Lane>,
    waiter: Waiter,
    /// Since when it stands there.
    pub since: Instant,
}

impl Standing {
    /// Stands in the lines of all the lanes, behind who is there already.
    pub fn new(hold: &Arc<Hold>, lanes: Vec<Lane>) -> Standing {
        let since = Instant::now();
        let mut state = hold.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in &lanes {
            state.queues.open(lane, since).line.join(&waiter);
        }
        drop(state);
        Standing {
            waiter,
            hold: Arc::clone(hold),
            lanes,
            since,
        }
    }

    /// Ends when it may be its turn; a wake that came before is not lost.
    pub async fn woken(&self) {
        self.waiter.notify.notified().await;
    }

    /// Whether it is the first in a lane's line: it watches the clock and asks the backend.
    pub fn is_first(&self, lane: &Lane) -> bool {
        let state = self.hold.state();
        let queue = state.queues.get(lane);
        queue.is_some_and(|queue| queue.line.is_first(&self.waiter))
    }

    /// Whether it is the first in any of its lines.
    pub fn is_first_anywhere(&self) -> bool {
        self.lanes.iter().any(|lane| self.is_first(lane))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut state = self.hold.state();
        for lane in &self.lanes {
            if let Some(queue) = state.queues.get_mut(lane) {
                queue.line.leave(&self.waiter);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Waiter {
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
}

#[derive(Default, Debug)]
pub(super) struct Line {
    waiters: VecDeque<Waiter>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
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

    pub(super) fn is_first(&self, waiter: &Waiter) -> bool {
        let first = self.waiters.front();
        first.is_some_and(|first| first.id == waiter.id)
    }
}
