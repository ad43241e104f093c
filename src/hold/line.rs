//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

/// A waiting FETCH.
#[derive(Clone, Debug)]
pub struct Waiter {
    id: u64,
    notify: Arc<Notify>,
}

/// Where a waiter stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// First: it watches the clock and asks the backend.
    First,
    /// Behind another.
    Behind,
    /// Not in this line.
    Gone,
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
    waiters: VecDeque<(Waiter, usize)>,
}

impl Line {
    pub(super) fn join(&mut self, waiter: &Waiter, want: usize) {
        self.waiters.push_back((waiter.clone(), want));
    }

    pub(super) fn leave(&mut self, waiter: &Waiter) {
        let was_first = self
            .waiters
            .front()
            .is_some_and(|(first, _)| first.id == waiter.id);
        self.waiters.retain(|(other, _)| other.id != waiter.id);
        if was_first {
            self.wake();
        }
    }

    /// Wakes the first.
    pub(super) fn wake(&self) {
        if let Some((first, _)) = self.waiters.front() {
            first.notify.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for (waiter, _) in &self.waiters {
            waiter.notify.notify_one();
        }
    }

    pub(super) fn standing(&self, waiter: &Waiter) -> Place {
        match self
            .waiters
            .iter()
            .position(|(other, _)| other.id == waiter.id)
        {
            Some(0) => Place::First,
            Some(_) => Place::Behind,
            None => Place::Gone,
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.waiters.iter().map(|(_, want)| want).sum()
    }
}
