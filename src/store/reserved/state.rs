//! What is kept here instead of in the store: rows, and the turns in which their jobs go out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::turns::{Mine, Turns};
use super::{Policies, is_hot};
use crate::limit::{Key, Limited, Limits, OnLimit, Space, Timestamp};
use crate::store::memory::Books;
use crate::store::{Change, Claimed, Gen, Row, Verdict};

/// The rows that are kept here, and the turns of each key.
#[derive(Debug)]
pub(super) struct State {
    pub(super) policies: Policies,
    /// The rows that the store does not have.
    pub(super) rows: Books,
    /// The turns in which jobs of these rows went out.
    pub(super) out: HashMap<Arc<str>, (Limited, Mine)>,
    /// By key, and for each of the different limits that jobs bring to it.
    pub(super) keys: HashMap<(Key, Limits), Turns>,
    pub(super) granted: u64,
    pub(super) unused: u64,
}

impl State {
    pub(super) fn new() -> State {
        State {
            policies: HashSet::new(),
            rows: Books::new(),
            out: HashMap::new(),
            keys: HashMap::new(),
            granted: 0,
            unused: 0,
        }
    }

    /// Whether its limits are reserved ahead.
    pub(super) fn is_reserved(&self, limited: &[Limited]) -> bool {
        let [one] = limited else { return false };
        one.space == Space::Job
            && one.on_limit == OnLimit::Wait
            && self.policies.contains(&one.policy)
            && is_hot(&one.limits)
    }

    /// The row is here no longer; from now on the store has it.
    pub(super) fn leave(&mut self, job: &str) {
        self.rows.end(job, None, Timestamp(0));
        self.out.remove(job);
    }

    /// Ends the rows of older claims of these jobs that are kept here.
    pub(super) fn end_older(&mut self, asks: &[&Claimed], now: Timestamp) -> Vec<Row> {
        let ended = self.rows.end_older(asks, now);
        for row in &ended {
            self.out.remove(&row.claimed.job);
        }
        ended
    }

    pub(super) fn turns(&mut self, limited: &Limited) -> &mut Turns {
        let of = (limited.key.clone(), limited.limits.clone());
        self.keys
            .entry(of)
            .or_insert_with(|| Turns::new(&limited.limits))
    }

    /// Makes a change that is about what is here; `None`: it is for the store.
    pub(super) fn change(&mut self, change: &Change, now: Timestamp) -> Option<bool> {
        match change {
            Change::Until { job, .. } if self.rows.row(job).is_some() => {
                return Some(self.rows.set(change, now));
            }
            Change::Shut { key, .. } | Change::Unused { key } => {
                let same = self.keys.iter_mut().filter(|((name, _), _)| name == key);
                same.for_each(|(_, turns)| turns.forget());
            }
            Change::Adopt { claimed, .. } => self.leave(&claimed.job),
            Change::Clear => {
                self.rows.set(&Change::Clear, now);
                self.out.clear();
                self.keys.clear();
            }
            _ => {}
        }
        None
    }

    /// The job goes out in its turn, unless it may not any more: then somebody else has it.
    pub(super) fn started(
        &mut self,
        ask: &Claimed,
        limited: &Limited,
        turn: Mine,
        now: Timestamp,
    ) -> Verdict {
        // The turn says that it may; the row needs no more than to be out.
        let mut free = ask.clone();
        free.limited = Arc::from([Limited {
            limits: Limits::default(),
            ..limited.clone()
        }]);
        match self.rows.take(&[&free], 1, now).verdicts.pop() {
            Some(Verdict::Started { .. }) => {
                self.out.insert(ask.job.clone(), (limited.clone(), turn));
                Verdict::Started { at: turn.at }
            }
            _ => {
                self.turns(limited).back(turn);
                Verdict::Lost
            }
        }
    }

    pub(super) fn back(&mut self, job: &str, claim: Gen, now: Timestamp) -> bool {
        let back = self.rows.back(job, claim, now);
        if back && let Some((limited, turn)) = self.out.remove(job) {
            self.turns(&limited).back(turn);
        }
        back
    }

    pub(super) fn end(&mut self, job: &str, claim: Option<Gen>, now: Timestamp) -> Option<Row> {
        let ended = self.rows.end(job, claim, now)?;
        self.out.remove(job);
        Some(ended)
    }
}
