//! The lines of calls that wait here, one for each key. Only the first of a line asks the store; when it leaves, the
//! next is woken.
//!
//! Jobs of the same key ask for the same starts, so half of the starts are left to each: who is not first asks
//! [`BEHIND`] later than it might. That wastes none, because a start may be asked for from 5 ms before its time. Whose
//! it is the time itself says, and so at every sidecar the same.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::hold::{Line, Waiter};
use crate::limit::{Key, Space, Timestamp};

/// How much later who is not first asks for a start.
const BEHIND: Duration = Duration::from_millis(2);

/// What asks for a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proxy) enum Asks {
    Job,
    Call,
}

impl Asks {
    /// How much later it asks for the start at this time.
    pub(in crate::proxy) fn behind(self, at: Timestamp) -> Duration {
        // Spaced times are multiples of each other: their low digits say nothing.
        let is_calls = at.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
        match is_calls == (self == Asks::Call) {
            true => Duration::ZERO,
            false => BEHIND,
        }
    }
}

/// The lines of this sidecar. Calls have keys of jobs.
#[derive(Default, Debug)]
pub(in crate::proxy) struct CallLines(Mutex<Standings>);

#[derive(Default, Debug)]
struct Standings {
    by_key: HashMap<Key, Line>,
    /// How many have joined so far, and how many stand there now.
    joined: u64,
    waiting: usize,
    /// How often some were woken.
    wakes: u64,
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
        standings.by_key.entry_ref(key).or_default().join(&waiter);
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
        standings.by_key.get(key).map_or(0, Line::len)
    }

    /// The first of these keys ask again.
    pub(in crate::proxy) fn wake<'a>(&self, freed: impl Iterator<Item = (Space, &'a Key)>) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        if standings.by_key.is_empty() {
            return;
        }
        for (_, key) in freed.filter(|(space, _)| *space == Space::Job) {
            if let Some(line) = standings.by_key.get(key) {
                line.wake();
            }
        }
    }

    /// All that are first in a line ask again.
    pub(in crate::proxy) fn wake_all(&self) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        standings.by_key.values().for_each(Line::wake);
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
        let line = standings.by_key.get(&self.key);
        line.is_some_and(|line| line.is_first(&self.waiter))
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
        if let Some(line) = standings.by_key.get_mut(&self.key) {
            line.leave(&self.waiter);
            if line.is_empty() {
                standings.by_key.remove(&self.key);
            }
        }
    }
}
