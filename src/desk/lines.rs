//! The lines of calls that wait here, one for each key. Only the first of a line asks the store; when it leaves, the
//! next is woken.
//!
//! Jobs of the same key ask for the same starts, and a call asks sooner than a FETCH. So who had the last start lets the
//! other ask first, for [`BEHIND`], while both want one.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::EgressSettings;
use crate::hold::{Line, Waiter};
use crate::limit::{Key, Limited, Space, each_paid_key};

/// How much later asks who had the last start. That wastes none whose time is known, because a start may be asked for from
/// 5 ms before its time.
pub(crate) const BEHIND: Duration = Duration::from_millis(2);
/// So long after a job has asked others of its key are taken to want a start: workers poll every second or two.
const LATELY: Duration = Duration::from_secs(2);

/// What asks for a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AskedBy {
    Job,
    Call,
}

/// The lines of this sidecar. Calls have keys of jobs.
#[derive(Default, Debug)]
pub(crate) struct CallLines(Mutex<Standings>);

#[derive(Default, Debug)]
struct Standings {
    by_key: HashMap<Key, KeyLine>,
    /// How many have joined so far.
    joined: u64,
    /// How many stand there now, by their ways out.
    waiting: HashMap<Arc<str>, usize>,
    /// How often some were woken.
    wakes: u64,
}

/// The calls that wait for one key.
#[derive(Default, Debug)]
struct KeyLine {
    line: Line,
    /// Whose the last start here was since some wait.
    last: Option<AskedBy>,
    /// When a job of the key last asked here.
    job_asked: Option<Instant>,
}

/// The place of one call in the line of its key, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct CallPlace {
    lines: Arc<CallLines>,
    key: Key,
    egress: Arc<str>,
    waiter: Waiter,
}

impl Standings {
    /// Each key of which a start takes something, and for which calls wait.
    fn each_of(&mut self, limited: &[Limited], mut step: impl FnMut(&mut KeyLine)) {
        for (_, one) in each_paid_key(limited).filter(|(_, one)| one.space == Space::Job) {
            if let Some(of_key) = self.by_key.get_mut(&one.key) {
                step(of_key);
            }
        }
    }
}

impl CallLines {
    /// Whether one more call of this way out may wait. Where it has many keys, those of one leave places to others: they
    /// have three times as many as there are free, as queues have in the hold.
    pub(crate) fn has_place(&self, key: &Key, entry: &EgressSettings) -> bool {
        let standings = self.0.lock();
        let waiting = standings.waiting.get(&entry.name).copied().unwrap_or(0);
        let free = entry.max_waiting.saturating_sub(waiting);
        let of_key = standings
            .by_key
            .get(key)
            .map_or(0, |of_key| of_key.line.len());
        free > 0 && (entry.key.constant().is_some() || of_key < free.saturating_mul(3))
    }

    /// Stands behind all others that wait for the key.
    pub(crate) fn join(self: &Arc<CallLines>, key: &Key, egress: &Arc<str>) -> CallPlace {
        let mut standings = self.0.lock();
        standings.joined += 1;
        *standings.waiting.entry_ref(&**egress).or_default() += 1;
        let waiter = Waiter::new(standings.joined);
        let of_key = standings.by_key.entry_ref(key).or_default();
        of_key.line.join(&waiter);
        CallPlace {
            lines: Arc::clone(self),
            key: key.clone(),
            egress: Arc::clone(egress),
            waiter,
        }
    }

    /// How many calls wait.
    pub(crate) fn all_waiting(&self) -> usize {
        self.0.lock().waiting.values().sum()
    }

    /// How many calls wait for a key.
    pub(crate) fn waiting(&self, key: &Key) -> usize {
        let standings = self.0.lock();
        standings
            .by_key
            .get(key)
            .map_or(0, |of_key| of_key.line.len())
    }

    /// A job asks for a start. Whether calls of one of its keys are to ask before it.
    pub(crate) fn job_asks(&self, limited: &[Limited]) -> bool {
        let mut standings = self.0.lock();
        let mut is_behind = false;
        standings.each_of(limited, |of_key| {
            of_key.job_asked = Some(Instant::now());
            is_behind |= of_key.last == Some(AskedBy::Job);
        });
        is_behind
    }

    /// Whether jobs of the key are to ask before the first of its calls.
    pub(crate) fn call_is_behind(&self, key: &Key) -> bool {
        let standings = self.0.lock();
        let of_key = standings.by_key.get(key);
        let had_it = of_key.filter(|of_key| of_key.last == Some(AskedBy::Call));
        let asked = had_it.and_then(|of_key| of_key.job_asked);
        asked.is_some_and(|asked| asked.elapsed() < LATELY)
    }

    /// One of these has started.
    pub(crate) fn started(&self, by: AskedBy, limited: &[Limited]) {
        let mut standings = self.0.lock();
        standings.each_of(limited, |of_key| of_key.last = Some(by));
    }

    /// The first of these keys ask again.
    pub(crate) fn wake<'a>(&self, freed: impl Iterator<Item = (Space, &'a Key)>) {
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
    pub(crate) fn wake_all(&self) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        let lines = standings.by_key.values();
        lines.for_each(|of_key| of_key.line.wake());
    }

    /// How often some were woken.
    pub(crate) fn wakes(&self) -> u64 {
        self.0.lock().wakes
    }
}

impl CallPlace {
    /// Whether nobody is before it.
    pub(crate) fn is_first(&self) -> bool {
        let standings = self.lines.0.lock();
        let of_key = standings.by_key.get(&self.key);
        of_key.is_some_and(|of_key| of_key.line.is_first(&self.waiter))
    }

    /// Waits until it may ask.
    pub(crate) async fn woken(&self) {
        self.waiter.notify.notified().await;
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut standings = self.lines.0.lock();
        if let Some(waiting) = standings.waiting.get_mut(&self.egress) {
            *waiting -= 1;
        }
        if let Some(of_key) = standings.by_key.get_mut(&self.key) {
            of_key.line.leave(&self.waiter);
            if of_key.line.is_empty() {
                standings.by_key.remove(&self.key);
            }
        }
    }
}
