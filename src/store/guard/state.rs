//! What the guard knows beside the store: our rows, what may have to be undone or told again, and how calls ended.

use std::collections::HashMap;
use std::sync::Arc;

use super::lost::Lost;
use crate::limit::Timestamp;
use crate::store::memory::MemoryStore;
use crate::store::{Change, Claimed, Gen, Place, Row, StoreError, Verdict};

/// What the guard knows beside the store.
#[derive(Default, Debug)]
pub(super) struct State {
    /// Our rows, as far as this sidecar had to do with them.
    pub(super) own: HashMap<Arc<str>, Row>,
    /// Claims of which a start may stand there that nobody heard of, or that was undone here alone.
    pub(super) doubt: HashMap<Arc<str>, Gen>,
    /// What ended while the store failed, before it was taken for lost: it may not have heard of it.
    pub(super) ended: Vec<(Arc<str>, Gen)>,
    /// Those of them that were not ours. A sibling that lost the store too has not heard of them, and puts their
    /// rows back when it returns.
    pub(super) echoed: Vec<(Arc<str>, Gen)>,
    /// The newest claim that the store was ever told of, or may have been.
    pub(super) newest: Option<Gen>,
    /// Failures since the last success, each begun after the one before.
    pub(super) failures: u32,
    /// The same of `take` alone: on a full disk reading goes on and hides that nothing can start.
    pub(super) takes_failed: u32,
    /// All that were ever counted.
    pub(super) failed: u64,
    /// The store may have forgotten something: our rows are put back before anything starts.
    pub(super) suspect: bool,
    /// It has answered before.
    pub(super) known: bool,
    pub(super) lost: Option<Arc<Lost>>,
    /// What answered when it was lost before: what was used of our part is used.
    pub(super) before: Option<MemoryStore>,
    /// When it was back after it was lost, or was found to have forgotten.
    pub(super) returned: Option<Timestamp>,
}

impl State {
    /// Of a start that may have been done there it is sure that it is undone.
    pub(super) fn is_sure(&mut self, job: &str, claim: Gen) {
        if self.doubt.get(job) == Some(&claim) {
            self.doubt.remove(job);
        }
    }

    /// The store was emptied: it is told of our rows, and others tell it of theirs.
    pub(super) fn has_forgotten(&mut self, now: Timestamp) {
        self.suspect = true;
        self.returned = Some(now);
    }

    pub(super) fn told_of(&mut self, claim: Option<Gen>) {
        self.newest = self.newest.max(claim);
    }

    /// How a take ended, before which so many calls had `failed`.
    pub(super) fn took_there<T>(&mut self, answer: &Result<T, StoreError>, failed: u64) {
        match answer {
            Ok(_) | Err(StoreError::Settling) => self.takes_failed = 0,
            // As where all calls are counted.
            Err(StoreError::Wiped | StoreError::Unfit(_)) => {}
            Err(_) if self.failed != failed => {}
            Err(_) => self.takes_failed += 1,
        }
    }

    /// What our row of an asked job is now.
    pub(super) fn took(&mut self, ask: &Claimed, verdict: &Verdict, now: Timestamp) {
        let row = |place, until| Row::of(ask.clone(), place, until);
        match verdict {
            Verdict::Lost => {
                let same = |row: &mut Row| row.claimed.generation == ask.generation;
                if self.own.get_mut(&ask.job).is_some_and(same) {
                    self.own.remove(&ask.job);
                }
            }
            Verdict::Started { at } => {
                let mut row = row(Place::Out, at.plus(ask.visibility));
                row.started = Some(*at);
                self.own.insert(ask.job.clone(), row);
            }
            Verdict::Refused { .. } | Verdict::Unasked => {
                let row = row(Place::Held, ask.look_again(now));
                self.own.insert(ask.job.clone(), row);
            }
        }
    }

    pub(super) fn changed(&mut self, change: &Change) {
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => {
                if let Some(row) = self.own.get_mut(job)
                    && row.claimed.generation == *generation
                {
                    (row.until, row.claimed.visibility) = (*until, *visibility);
                }
            }
            Change::Adopt { claimed, until } => {
                let row = Row::of(claimed.clone(), Place::Out, *until);
                self.own.insert(claimed.job.clone(), row);
            }
            Change::Own { job, next, .. } => {
                if let Some(row) = self.own.get_mut(job) {
                    row.claimed.generation = *next;
                }
            }
            Change::Clear => self.own.clear(),
            _ => {}
        }
    }
}
