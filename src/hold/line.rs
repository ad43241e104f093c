//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

/// Somebody who waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    id: u64,
    /// Notified when it is to look again.
    pub notify: Arc<Notify>,
}

impl Waiter {
    /// By a number that no other in its line has.
    pub fn new(id: u64) -> Waiter {
        Waiter {
            id,
            notify: Arc::new(Notify::new()),
        }
    }
}

/// Those who wait, in their order.
#[derive(Default, Debug)]
pub struct Line {
    waiters: VecDeque<Waiter>,
}

impl Line {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Stands behind all others.
    pub fn join(&mut self, waiter: &Waiter) {
        self.waiters.push_back(waiter.clone());
    }

    /// Waits no longer. Where it was the first, the next is woken. Says whether it was.
    pub fn leave(&mut self, waiter: &Waiter) -> bool {
        let was_first = self.is_first(waiter);
        self.waiters.retain(|other| other.id != waiter.id);
        if was_first {
            self.wake();
        }
        was_first
    }

    /// Wakes the first.
    pub fn wake(&self) {
        if let Some(first) = self.waiters.front() {
            first.notify.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for waiter in &self.waiters {
            waiter.notify.notify_one();
        }
    }

    /// Whether nobody is before it.
    pub fn is_first(&self, waiter: &Waiter) -> bool {
        let first = self.waiters.front();
        first.is_some_and(|first| first.id == waiter.id)
    }
}
