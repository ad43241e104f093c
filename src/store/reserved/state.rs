//! What is kept here instead of in the store: rows, and the turns in which their jobs go out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::turns::{Mine, Turns};
use super::{MANY, Policies, is_hot};
use crate::limit::{Key, Limited, Limits, OnLimit, Space, Timestamp};
use crate::store::memory::Books;
use crate::store::{Change, Claimed, Gen, OFFERED, Place, Row, Verdict};

/// After so long the store is asked whether a job that should be there is.
const UNHEARD: Duration = Duration::from_secs(600);
/// So many at each look.
const SOME: usize = 16;

/// The rows that are kept here, and the turns of each key.
#[derive(Debug)]
pub(super) struct State {
    pub(super) policies: Policies,
    /// The rows that the store does not have.
    pub(super) rows: Books,
    /// The turns in which jobs of these rows went out.
    pub(super) out: HashMap<Arc<str>, (Limited, Mine)>,
    /// Jobs that could be here, but have their rows in the store.
    pub(super) there: HashMap<Arc<str>, There>,
    /// By key, and for each of the different limits that jobs bring to it.
    pub(super) keys: HashMap<(Key, Limits), Turns>,
    pub(super) granted: u64,
    pub(super) unused: u64,
}

/// A job that has its row in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct There {
    pub(super) claim: Gen,
    /// When it was known to be there last.
    pub(super) at: Instant,
}

impl State {
    pub(super) fn new() -> State {
        State {
            policies: HashSet::new(),
            rows: Books::new(),
            out: HashMap::new(),
            there: HashMap::new(),
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

    /// Whether a job is started here now. One that has its row on the other side goes there by that.
    pub(super) fn goes_here(&mut self, ask: &Claimed, can: bool) -> bool {
        let known = self.rows.row(&ask.job).is_some();
        if self.is_reserved(&ask.limited) && can && (known || !self.there.contains_key(&ask.job)) {
            return true;
        }
        if known || self.is_reserved(&ask.limited) {
            self.leave(&ask.job, ask.generation);
        }
        false
    }

    /// The row is here no longer; from now on the store has it.
    pub(super) fn leave(&mut self, job: &Arc<str>, claim: Gen) -> Option<Row> {
        let row = self.rows.end(job, None, Timestamp(0));
        self.out.remove(job);
        self.goes_there(job, claim);
        row
    }

    fn goes_there(&mut self, job: &Arc<str>, claim: Gen) {
        let at = Instant::now();
        self.there.insert(job.clone(), There { claim, at });
    }

    /// Some of the jobs there, if there are many, that may have gone without a word.
    pub(super) fn unheard(&self) -> Vec<(Arc<str>, There)> {
        if self.there.len() <= MANY {
            return Vec::new();
        }
        let is_old = |(_, there): &(_, &There)| there.at.elapsed() >= UNHEARD;
        let some = self.there.iter().filter(is_old).take(SOME);
        some.map(|(job, there)| (job.clone(), *there)).collect()
    }

    /// Whether a job has a row there, as the store said; unless it was named since that was asked.
    pub(super) fn heard_of(&mut self, job: &Arc<str>, asked: There, is_there: bool) {
        if self.there.get(job) != Some(&asked) {
            return;
        }
        match is_there {
            true => self.goes_there(job, asked.claim),
            false => drop(self.there.remove(job)),
        }
    }

    /// Ends the rows of older claims of these jobs that are kept here.
    pub(super) fn end_older(&mut self, asks: &[&Claimed], now: Timestamp) -> Vec<Row> {
        let ended = self.rows.end_older(asks, now);
        for row in &ended {
            self.out.remove(&row.claimed.job);
        }
        ended
    }

    /// Whether an older claim of the job has its row in the store, and this one is to be kept here.
    pub(super) fn leaves_there(&self, ask: &Claimed) -> bool {
        let known = self.there.get(&ask.job);
        known.is_some_and(|there| there.claim < ask.generation) && self.is_reserved(&ask.limited)
    }

    /// Whether its row is held here, ready to start; it is made if there is none.
    pub(super) fn hold(&mut self, ask: &Claimed, now: Timestamp) -> bool {
        let taken = self.rows.take(&[ask], 0, now);
        matches!(taken.verdicts.first(), Some(Verdict::Unasked))
    }

    pub(super) fn turns(&mut self, limited: &Limited) -> &mut Turns {
        let of = (limited.key.clone(), limited.limits.clone());
        self.keys
            .entry(of)
            .or_insert_with(|| Turns::new(&limited.limits))
    }

    pub(super) fn change(&mut self, change: Change, now: Timestamp) -> Changed {
        let job = match &change {
            Change::Until { job, .. } | Change::Hidden { job, .. } => job.clone(),
            Change::Shut { key, .. } | Change::Unused { key } => {
                let same = self.keys.iter_mut().filter(|((name, _), _)| name == key);
                same.for_each(|(_, turns)| turns.forget());
                return Changed::There(change);
            }
            Change::Adopt { claimed, .. } => {
                self.leave(&claimed.job, claimed.generation);
                return Changed::There(change);
            }
            Change::Own { job, next, .. } => {
                self.goes_there(job, *next);
                return Changed::There(change);
            }
            Change::Clear => {
                self.rows.set(&Change::Clear, now);
                self.out.clear();
                self.there.clear();
                self.keys.clear();
                return Changed::There(change);
            }
            Change::Open { .. }
            | Change::Override { .. }
            | Change::Setting { .. }
            | Change::Paused { .. } => {
                return Changed::There(change);
            }
        };
        let offered = matches!(&change, Change::Until { until: OFFERED, .. });
        let known = self.rows.row(&job);
        match known.map(|row| (row.place, row.claimed.generation)) {
            None => Changed::There(change),
            Some((Place::Held, claim)) if offered => match self.leave(&job, claim) {
                Some(row) => Changed::Offered(change, Box::new(row)),
                None => Changed::There(change),
            },
            Some(_) => Changed::Here(self.rows.set(&change, now)),
        }
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

/// Where a change was made, or has to be.
pub(super) enum Changed {
    /// Here; whether there was anything to change.
    Here(bool),
    There(Change),
    /// There, and its row too.
    Offered(Change, Box<Row>),
}
