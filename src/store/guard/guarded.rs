//! The guard: what it knows without a call.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lost::Lost;
use super::mode::{Declared, LostMode, OnStoreError};
use super::state::Notes;
use crate::{
    Answer, Clock, Gen, KnownRow, Ledger, LedgerExt, LooksAfter, Room, Row, RowsOf, StoreError,
};
use ojs_limit::{Limited, Limits, Timestamp};

/// After the store was back others have this long to come back too, in microseconds: until then who has
/// said nothing is not dead, and may be handing out what it holds.
const OTHERS_RETURN: u64 = 5_000_000;
/// So many rows of ours are asked for in one look.
const AT_ONCE: usize = 16;

/// Any store that may be lost, guarded.
#[derive(Debug)]
pub struct Guard {
    pub(super) inner: Arc<dyn Ledger>,
    pub(super) mode: OnStoreError,
    pub(super) declared: Arc<Mutex<Declared>>,
    /// Nothing panics between two steps in it that belong together.
    pub(super) state: Mutex<Notes>,
    /// The clock that starts count by while it is lost. Beside the lock, because it is read all the time.
    pub(super) alone: ArcSwapOption<Clock>,
    pub(super) recovering: tokio::sync::Mutex<()>,
    /// The store is lost, or is sure to know all again: what may start is another question now.
    pub(super) turned: Notify,
}

impl Guard {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Ledger>, mode: OnStoreError) -> Guard {
        Guard {
            inner,
            mode,
            declared: Arc::default(),
            state: Mutex::default(),
            alone: ArcSwapOption::empty(),
            recovering: tokio::sync::Mutex::default(),
            turned: Notify::new(),
        }
    }

    /// Notes that the store answered before it was guarded: if it is lost, what is declared for that happens.
    #[must_use]
    pub fn that_has_answered(self) -> Guard {
        self.state.lock().known = true;
        self
    }

    /// Whether others may need more time since then to come back.
    fn is_recent(&self, at: Option<Timestamp>) -> bool {
        at.is_some_and(|at| self.inner.now().since(at) < OTHERS_RETURN)
    }

    /// Whether others may not have put back yet what the store must know of them.
    pub(super) fn is_filling(&self, state: &Notes) -> bool {
        self.is_recent(state.returned)
    }

    /// Whether the store knows who else is there. One that is lost does not, nor does one to which others may have to come
    /// back yet.
    pub(super) fn sees_others(&self) -> bool {
        let state = self.state.lock();
        state.lost.is_none() && !self.is_filling(&state)
    }

    /// Whether the store may miss rows: it is lost, or has failed since it was told of ours; or others have not put
    /// back theirs yet, where it was away, or where who answers now may be one that took its place.
    pub(super) fn may_have_forgotten(&self, state: &Notes) -> bool {
        let is_another = self.is_recent(state.told) && self.inner.facts().forgets_unsaid;
        state.suspect || is_another || self.is_filling(state)
    }

    /// What happens under this limit; `None`: the store is not lost.
    pub(crate) fn lost_mode(&self, limited: &Limited) -> Option<LostMode> {
        let lost = self.state.lock().lost.clone()?;
        Some(lost.what_happens(limited))
    }

    /// This sidecar's part of a limit while the store is lost, and of how many parts.
    pub(crate) fn part_of(&self, limited: &Limited) -> Option<(Limits, u32)> {
        let lost = self.state.lock().lost.clone()?;
        Some(lost.part_of(limited))
    }

    /// Why the store does not answer, by its last error; empty where it answers.
    pub(crate) fn lost_by(&self) -> String {
        let state = self.state.lock();
        let reason = state.lost.as_ref().map(|_| state.failures.reason.clone());
        reason.unwrap_or_default()
    }

    /// Whether the store does not answer.
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// The claim of our row of a job, wherever the job is.
    pub(super) fn claim_of_own(&self, job: &str) -> Option<Gen> {
        let state = self.state.lock();
        state.own.get(job).map(|row| row.claimed.generation)
    }

    /// The claim under which a job is out through us.
    pub(crate) fn claim_of(&self, job: &str) -> Option<Gen> {
        let state = self.state.lock();
        state.out(job).map(|row| row.claimed.generation)
    }

    /// Whether a job is out through us.
    pub(crate) fn has_row(&self, job: &str) -> bool {
        self.claim_of(job).is_some()
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.state.lock().known
    }

    pub(crate) fn may_miss_rows(&self) -> bool {
        self.may_have_forgotten(&self.state.lock())
    }

    pub(crate) fn times_failed(&self) -> u64 {
        self.state.lock().failures.ever
    }

    pub(crate) fn declare(&self, by_policy: Declared) {
        *self.declared.lock() = by_policy;
    }

    /// What is known of a job's row without a call.
    pub(crate) fn known(&self, job: &str) -> KnownRow {
        let state = self.state.lock();
        if state.suspect || !state.known || state.doubt.contains_key(job) {
            return KnownRow::Unsure;
        }
        match state.out(job) {
            Some(row) => KnownRow::Out(Box::new(row.clone())),
            None if !self.is_filling(&state)
                && self.inner.is_alone()
                && !state.own.contains_key(job) =>
            {
                KnownRow::No
            }
            _ => KnownRow::Unsure,
        }
    }

    /// What may start under these limits; while the store is lost, under our part of them.
    pub(crate) fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let there = self.inner.room(limited);
            self.ask(there, async |lost| lost.room(limited).await).await
        })
    }

    /// A job's row. What is out through us is so whether the store answers or not, or has forgotten it; what we offer is
    /// so where its data began anew.
    pub(super) async fn row_of(
        &self,
        job: &str,
        there: Answer<'_, Vec<Row>>,
    ) -> Result<Vec<Row>, StoreError> {
        let asked = self.claim_of_own(job);
        let here = async |lost: &Lost| lost.local.rows(RowsOf::Job(job)).await;
        let rows = self.ask(there, here).await;
        let mut state = self.state.lock();
        let own = state.own.get(job);
        let claim = |row: &Row| row.claimed.generation;
        let is_forgotten = |own: &&Row| match &rows {
            Ok(rows) if own.is_out() => rows.is_empty() && self.may_have_forgotten(&state),
            // Its data began anew. One of an older claim was put back, and ours takes its place.
            Ok(rows) => {
                rows.iter().all(|row| claim(row) < claim(own)) && self.is_recent(state.emptied)
            }
            Err(_) => own.is_out(),
        };
        if let Some(own) = own.filter(is_forgotten) {
            return Ok(vec![own.clone()]);
        }
        if let Ok(rows) = &rows {
            let is_asked = |own: &Row| !own.is_out() && Some(claim(own)) == asked;
            state.found(job, rows.first(), is_asked);
        }
        rows
    }

    /// A sibling may have ended the row of a job: if it is ours no more, our note of it ends. `false`: the store did not
    /// answer.
    pub(crate) async fn follow(&self, job: &str) -> bool {
        let Some(asked) = self.claim_of_own(job) else {
            return true;
        };
        let Ok(row) = self.inner.row(job).await else {
            return false;
        };
        let claim = |row: &Row| row.claimed.generation;
        let mut state = self.state.lock();
        if row.is_none() && self.may_have_forgotten(&state) {
            return true;
        }
        // One of an older claim was put back, and ours takes its place.
        if row.as_ref().is_none_or(|row| claim(row) >= asked) {
            let is_same = |own: &Row| claim(own) == asked;
            state.found(job, row.as_ref(), is_same);
        }
        // A sibling may have renewed it. What was taken back and offered meanwhile is out no more.
        let own = state.own.get_mut(job).filter(|own| own.is_out());
        if let (Some(own), Some(row)) = (own, row)
            && let Some(due) = row.due()
        {
            own.renew(claim(&row), due, row.claimed.visibility);
        }
        true
    }

    /// Our notes of rows that are overdue, and that the store does not name as such: a sibling may have ended them, and its
    /// message not have come. If the store were lost then, we would go on with their slots.
    async fn follow_overdue(&self, which: LooksAfter, named: &[Row]) {
        let now = self.inner.now();
        let jobs: Vec<Arc<str>> = {
            let state = self.state.lock();
            let is_overdue = |(job, row): &(&Arc<str>, &Row)| {
                row.due().is_some_and(|due| due.at() <= now)
                    && which.has(&row.claimed)
                    && named.iter().all(|named| named.claimed.job != **job)
            };
            let overdue = state.own.iter().filter(is_overdue);
            overdue.map(|(job, _)| job.clone()).take(AT_ONCE).collect()
        };
        for job in jobs {
            // The others would wait as long, and the sweep for all of them. There is another look.
            if !self.follow(&job).await {
                return;
            }
        }
    }

    /// Asks the store what is due, after it was told what it may have forgotten.
    pub(super) async fn look(&self, which: LooksAfter, max: usize) -> Result<Vec<Row>, StoreError> {
        let (failed, suspect) = {
            let state = self.state.lock();
            (state.failures.ever, state.suspect)
        };
        if suspect {
            let back = self.recover().await;
            let lost = self.state.lock().lost.clone();
            if let (Err(error), Some(lost)) = (&back, lost) {
                self.state.lock().log_loss(&lost, error);
                return lost.local.due_of(which, max).await;
            }
            self.note(&back, failed);
        }
        let here = async |lost: &Lost| lost.local.due_of(which, max).await;
        let due = self.ask(self.inner.due_of(which, max), here).await?;
        // One that has more of them names those at the next looks.
        if due.len() < max && !self.is_lost() {
            self.follow_overdue(which, &due).await;
        }
        Ok(due)
    }
}
