//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

#[derive(Clone, Debug)]
pub(super) struct Waiter {
    id: u64,
    pub(super) notify: Arc<Notify>,
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
