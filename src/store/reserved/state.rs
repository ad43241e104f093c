//! What is kept here instead of in the store: rows, and the turns in which their jobs go out.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::Policies;
use super::turns::{Mine, Turns, is_hot};
use crate::{Change, Claimed, Gen, Row, Verdict};
use ojs_limit::{Key, Limited, Limits, OnLimit, Space, Timestamp};

/// The rows that are kept here, and the turns of each key.
#[derive(Default, Debug)]
pub(super) struct Ahead {
    pub(super) policies: Policies,
    /// The jobs that are out and have no row in the store.
    pub(super) out: HashMap<Arc<str>, Out>,
    /// By key, and for each of the different limits that jobs bring to it.
    pub(super) keys: HashMap<(Key, Limits), Turns>,
    pub(super) granted: u64,
    pub(super) unused: u64,
}

/// A job that went out in a turn.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) row: Row,
    limited: Limited,
    turn: Mine,
}

impl Ahead {
    /// Whether its limits are reserved ahead.
    pub(super) fn is_reserved(&self, limited: &[Limited]) -> bool {
        let [one] = limited else { return false };
        one.space == Space::Job
            && one.on_limit == OnLimit::Wait
            && self.policies.contains(&one.policy)
            && is_hot(&one.limits)
    }

    pub(super) fn row(&self, job: &str) -> Option<&Row> {
        self.out.get(job).map(|out| &out.row)
    }

    /// Ends the rows of older claims of these jobs that are kept here.
    pub(super) fn end_older(&mut self, asks: &[&Claimed]) -> Vec<Row> {
        let is_older = |ask: &&&Claimed| {
            let row = self.row(&ask.job);
            row.is_some_and(|row| row.is_over_by(ask))
        };
        let older: Vec<_> = asks.iter().filter(is_older).collect();
        let ended = older.into_iter().filter_map(|ask| self.end(&ask.job, None));
        ended.collect()
    }

    pub(super) fn turns(&mut self, limited: &Limited) -> &mut Turns {
        let of = (limited.key.clone(), limited.limits.clone());
        self.keys
            .entry(of)
            .or_insert_with(|| Turns::new(&limited.limits))
    }

    /// More may start under these keys than was known.
    pub(super) fn ask_again(&mut self, freed: &[(Space, Key)]) {
        let is_freed = |name: &Key| freed.iter().any(|(_, key)| key == name);
        let same = self.keys.iter_mut().filter(|((name, _), _)| is_freed(name));
        same.for_each(|(_, turns)| turns.ask_again());
    }

    /// Makes a change that is about what is here; `None`: it is for the store.
    pub(super) fn change(&mut self, change: &Change) -> Option<bool> {
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => {
                let row = &mut self.out.get_mut(job)?.row;
                return Some(row.renew(*generation, *until, *visibility));
            }
            Change::Shut { key, .. } | Change::Unused { key } => {
                let same = self.keys.iter_mut().filter(|((name, _), _)| name == key);
                same.for_each(|(_, turns)| turns.forget());
            }
            // From now on the store has its row.
            Change::Adopt { claimed, .. } => drop(self.out.remove(&claimed.job)),
            Change::Clear => {
                self.out.clear();
                self.keys.clear();
            }
            _ => {}
        }
        None
    }

    /// The job goes out in its turn, unless somebody else has it by now.
    pub(super) fn started(
        &mut self,
        ask: &Claimed,
        limited: &Limited,
        turn: Mine,
        now: Timestamp,
    ) -> Verdict {
        if let Some(row) = self.row(&ask.job) {
            let verdict = Verdict::by_row(row, ask);
            self.turns(limited).back(turn);
            return verdict;
        }
        let row = Row::started(ask.clone(), now);
        let limited = limited.clone();
        self.out.insert(ask.job.clone(), Out { row, limited, turn });
        Verdict::Started { at: turn.at }
    }

    pub(super) fn back(&mut self, job: &str, claim: Gen) -> bool {
        let row = self.row(job);
        if row.is_none_or(|row| row.claimed.generation != claim) {
            return false;
        }
        if let Some(out) = self.out.remove(job) {
            self.turns(&out.limited).back(out.turn);
        }
        true
    }

    /// The row goes, unless it is of a newer claim.
    pub(super) fn end(&mut self, job: &str, claim: Option<Gen>) -> Option<Row> {
        self.row(job).filter(|row| row.ends_with(claim))?;
        self.out.remove(job).map(|out| out.row)
    }
}
