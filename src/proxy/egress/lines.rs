//! The lines of calls that wait here, one for each key. Only the first of a line asks the store; when it leaves, the
//! next is woken.
//!
//! Jobs of the same key ask for the same starts, so both leave a turn to each other. A start may be asked for from 5 ms
//! before its time: after a call has started the next call asks [`BEHIND_JOBS`] later than it might, and FETCHes ask
//! [`BEHIND_CALLS`] later while calls wait. That wastes no start.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::hold::{Line, Waiter};
use crate::limit::{Key, Space, Timestamp};

/// How much later a FETCH asks for a start while calls wait.
pub(in crate::proxy) const BEHIND_CALLS: Duration = Duration::from_millis(1);
/// How much later a call asks for a start if the last one was a call's.
pub(super) const BEHIND_JOBS: Duration = Duration::from_millis(2);

/// The lines of this sidecar. Calls have keys of jobs.
#[derive(Default, Debug)]
pub(in crate::proxy) struct CallLines(Mutex<Standings>);

#[derive(Default, Debug)]
struct Standings {
    by_key: HashMap<Key, CallLine>,
    /// How many have joined so far, and how many stand there now.
    joined: u64,
    waiting: usize,
    /// How often some were woken.
    wakes: u64,
}

/// Those who wait for one key.
#[derive(Default, Debug)]
struct CallLine {
    line: Line,
    /// Whether the last start that is known was a call's.
    is_jobs_turn: bool,
    /// When the next start was possible, as the store said last.
    next: Timestamp,
}

/// The place of one call in the line of its key, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct CallPlace {
    lines: Arc<CallLines>,
    key: Key,
    waiter: Waiter,
}

impl CallLines {
    /// Stands behind all others that wait for the key.
    pub(super) fn join(self: &Arc<CallLines>, key: &Key) -> CallPlace {
        let mut standings = self.0.lock();
        standings.joined += 1;
        standings.waiting += 1;
        let waiter = Waiter::new(standings.joined);
        let of_key = standings.by_key.entry_ref(key).or_default();
        of_key.line.join(&waiter);
        CallPlace {
            lines: Arc::clone(self),
            key: key.clone(),
            waiter,
        }
    }

    /// How many calls wait.
    pub(in crate::proxy) fn all_waiting(&self) -> usize {
        self.0.lock().waiting
    }

    /// How many calls wait for a key.
    pub(in crate::proxy) fn waiting(&self, key: &Key) -> usize {
        let standings = self.0.lock();
        standings.by_key.get(key).map_or(0, |of| of.line.len())
    }

    /// The first of these keys ask again.
    pub(in crate::proxy) fn wake<'a>(&self, freed: impl Iterator<Item = (Space, &'a Key)>) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        if standings.by_key.is_empty() {
            return;
        }
        for (_, key) in freed.filter(|(space, _)| *space == Space::Job) {
            if let Some(of_key) = standings.by_key.get(key) {
                of_key.line.wake();
            }
        }
    }

    /// All that are first in a line ask again.
    pub(in crate::proxy) fn wake_all(&self) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        standings.by_key.values().for_each(|of| of.line.wake());
    }

    /// How often some were woken.
    pub(super) fn wakes(&self) -> u64 {
        self.0.lock().wakes
    }
}

impl CallPlace {
    /// Whether nobody is before it.
    pub(super) fn is_first(&self) -> bool {
        let standings = self.lines.0.lock();
        let of_key = standings.by_key.get(&self.key);
        of_key.is_some_and(|of| of.line.is_first(&self.waiter))
    }

    /// This call has started: the next start is a job's, if one wants it.
    pub(super) fn started(&self) {
        self.change(|of| (of.is_jobs_turn, of.next) = (true, Timestamp(0)));
    }

    /// The first was refused until `at`. How much later than then it asks again.
    pub(super) fn refused(&self, at: Timestamp) -> Duration {
        let mut behind = Duration::ZERO;
        self.change(|of| {
            // Somebody else has started meanwhile.
            let is_taken = of.next > Timestamp(0) && at > of.next;
            (of.is_jobs_turn, of.next) = (of.is_jobs_turn && !is_taken, at);
            if of.is_jobs_turn {
                behind = BEHIND_JOBS;
            }
        });
        behind
    }

    fn change(&self, change: impl FnOnce(&mut CallLine)) {
        let mut standings = self.lines.0.lock();
        if let Some(of_key) = standings.by_key.get_mut(&self.key) {
            change(of_key);
        }
    }

    /// Waits until it may ask.
    pub(super) async fn woken(&self) {
        self.waiter.notify.notified().await;
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut standings = self.lines.0.lock();
        standings.waiting -= 1;
        if let Some(of_key) = standings.by_key.get_mut(&self.key) {
            of_key.line.leave(&self.waiter);
            if of_key.line.is_empty() {
                standings.by_key.remove(&self.key);
            }
        }
    }
}
