//! A store that may be lost: what happens then is declared, is what happens, and heals by itself.
//!
//! The guard knows the rows of this sidecar beside the store. When a call to the store fails, and so does one
//! that was begun after it, the store is taken for lost: from then on no call waits for it, and questions are
//! answered as [`OnStoreError`] says. The sweep asks twice a second whether it is back; then it is told of our
//! rows and of what ended, until it knows all that happened meanwhile too, and only then it decides again.
//!
//! Of a start that was cut off nobody knows whether it was done. It is undone before the job is asked
//! for again; the store refuses what arrives after its time.
//!
//! # What was held at the loss
//!
//! A held job is its holder's alone, and has no row: it starts here without the store as it would with it. A job that
//! was offered before the loss may be a sibling's by now. It goes out nowhere here before the store says again whose
//! it is, or its claim is over.

mod ask;
mod lost;
mod recover;
mod state;

use crate::LedgerExt;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    Answer, Change, Claimed, Clock, CountOf, End, Gen, KeyStates, Known, Ledger, Number, Room, Row,
    RowsOf, Standing, Step, StoreError, Taken, Wake, Wish,
};
use lost::Lost;
use ojs_limit::{Key, Limited, Reserved, Space, Timestamp};
use state::Notes;

/// After the store was back others have this long to come back too, in microseconds: until then who has
/// said nothing is not dead, and may be handing out what it holds.
const OTHERS_RETURN: u64 = 5_000_000;
/// More ends than this are not remembered for the store's return; the rows are overdue some time.
const MOST_ENDED: usize = 10_000;

/// What happens while the store is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStoreError {
    /// This sidecar goes on alone with its share: the slots that it had, and of windows and spacing the
    /// part that it has among the sidecars that lived. The default.
    #[default]
    Share,
    /// Nothing that is limited starts.
    Closed,
    /// Everything starts, as if there were no limits.
    Open,
}

impl OnStoreError {
    /// All of them with their words.
    pub fn words() -> [(&'static str, OnStoreError); 3] {
        let all = [
            OnStoreError::Share,
            OnStoreError::Closed,
            OnStoreError::Open,
        ];
        all.map(|mode| (mode.as_str(), mode))
    }

    /// The word of the config.
    pub fn as_str(self) -> &'static str {
        match self {
            OnStoreError::Share => "share",
            OnStoreError::Closed => "closed",
            OnStoreError::Open => "open",
        }
    }
}

/// What single policies declare, by their names.
pub type Declared = HashMap<Arc<str>, OnStoreError>;

/// Any store that may be lost, guarded.
#[derive(Debug)]
pub struct Guard {
    inner: Arc<dyn Ledger>,
    mode: OnStoreError,
    declared: Arc<Mutex<Declared>>,
    /// It has answered before it was guarded.
    answered: bool,
    state: Mutex<Notes>,
    /// The clock that starts count by while it is lost. Beside the lock, because it is read all the time.
    alone: ArcSwapOption<Clock>,
    recovering: tokio::sync::Mutex<()>,
    /// The store is lost, or is sure to know all again: what may start is another question now.
    turned: Notify,
}

impl Guard {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Ledger>, mode: OnStoreError) -> Guard {
        Guard {
            inner,
            mode,
            declared: Arc::default(),
            answered: false,
            state: Mutex::default(),
            alone: ArcSwapOption::empty(),
            recovering: tokio::sync::Mutex::default(),
            turned: Notify::new(),
        }
    }

    /// Notes that the store answered before it was guarded: if it is lost, what is declared for that happens.
    #[must_use]
    pub fn that_has_answered(self) -> Guard {
        Guard {
            answered: true,
            ..self
        }
    }

    // Nothing in here panics between two steps that belong together.
    fn state(&self) -> MutexGuard<'_, Notes> {
        self.state.lock()
    }

    /// Whether others may not have put back yet what the store must know of them.
    fn is_filling(&self, state: &Notes) -> bool {
        let since = |at: Timestamp| self.inner.now().since(at);
        state.returned.is_some_and(|at| since(at) < OTHERS_RETURN)
    }

    /// Whether the store may miss rows: it is lost, or has failed since it was told of ours; or others have not put
    /// back theirs yet, where it was away, or where who answers now may be one that took its place.
    fn may_have_forgotten(&self, state: &Notes) -> bool {
        let since = |at: Timestamp| self.inner.now().since(at);
        let is_told = state.told.is_some_and(|at| since(at) < OTHERS_RETURN);
        let is_another = is_told && self.inner.standing().forgets_unsaid;
        state.suspect || is_another || self.is_filling(state)
    }
}

/// Whether the store cannot keep what it was told: nothing was done, and nothing will be however often it is told.
fn is_unfit<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unfit(_)))
}

/// What happens under a limit while the store is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostMode {
    /// It has never answered, so nothing that is limited starts.
    NeverThere,
    /// What the limit's policy declares.
    As(OnStoreError),
}

impl Guard {
    /// What happens under this limit; `None`: the store is not lost.
    pub(super) fn lost_mode(&self, limited: &Limited) -> Option<LostMode> {
        let lost = self.state().lost.clone()?;
        Some(lost.what_happens(limited))
    }

    /// Whether the store does not answer.
    pub fn is_lost(&self) -> bool {
        self.state().lost.is_some()
    }

    /// The claim under which a job is out through us.
    pub(super) fn claim_of(&self, job: &str) -> Option<Gen> {
        let state = self.state();
        state.own.get(job).map(|row| row.claimed.generation)
    }

    /// Whether a job is out through us.
    pub(super) fn has_row(&self, job: &str) -> bool {
        self.claim_of(job).is_some()
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answered || self.state().known
    }

    pub(super) fn may_miss_rows(&self) -> bool {
        self.may_have_forgotten(&self.state())
    }

    pub(super) fn times_failed(&self) -> u64 {
        self.state().failures.ever
    }

    pub(super) fn declare(&self, by_policy: Declared) {
        *self.declared.lock() = by_policy;
    }

    /// What is known of a job's row without a call.
    pub(super) fn known(&self, job: &str) -> Known {
        let state = self.state();
        if state.suspect || !state.known || state.doubt.contains_key(job) {
            return Known::Unsure;
        }
        match state.own.get(job) {
            Some(row) => Known::Out(Box::new(row.clone())),
            None if self.inner.is_alone() => Known::No,
            _ => Known::Unsure,
        }
    }

    /// What may start under these limits; while the store is lost, under our part of them.
    pub(super) fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let there = self.inner.room(limited);
            self.ask(there, async |lost| lost.room(limited).await).await
        })
    }

    /// A job's row. What is out through us is so whether the store answers or not, or has forgotten it.
    async fn row_of(&self, job: &str, there: Answer<'_, Vec<Row>>) -> Result<Vec<Row>, StoreError> {
        let here = async |lost: &Lost| lost.local.rows(RowsOf::Job(job)).await;
        let rows = self.ask(there, here).await;
        let state = self.state();
        let is_missing = match &rows {
            Ok(rows) => rows.is_empty() && self.may_have_forgotten(&state),
            Err(_) => true,
        };
        match state.own.get(job) {
            Some(own) if is_missing => Ok(vec![own.clone()]),
            _ => rows,
        }
    }

    /// Asks the store what is due, after it was told what it may have forgotten.
    async fn look(&self, max: usize) -> Result<Vec<Row>, StoreError> {
        let (lost, failed, suspect) = {
            let state = self.state();
            (state.lost.clone(), state.failures.ever, state.suspect)
        };
        if suspect {
            let back = self.recover().await;
            if let (Err(error), Some(lost)) = (&back, lost) {
                self.state().log_loss(&lost, error);
                return lost.local.due(max).await;
            }
            self.note(&back, failed);
        }
        self.ask(self.inner.due(max), async |lost| lost.local.due(max).await)
            .await
    }
}

impl Ledger for Guard {
    /// While it is lost this is the clock of what answers for it: what is known of the server's moves with each
    /// answer to whoever tries whether it is back, and each start would seem early or late by that.
    fn at(&self, moment: Instant) -> Timestamp {
        match &*self.alone.load() {
            Some(clock) => clock.at(moment),
            None => self.inner.at(moment),
        }
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        if asks.is_empty() {
            // Answers without a question say nothing of the store.
            return Answer::now(Taken::default());
        }
        Answer::later(self.take_guarded(asks, want))
    }

    /// What is granted by a store that may have forgotten something could be too much, and while it is lost
    /// nothing is granted ahead.
    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move {
            let there = async {
                self.make_sure().await?;
                self.inner.reserve(wish).await
            };
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        Answer::later(async move {
            let there = self.inner.back(job, generation);
            let mut alone = false;
            let here = async |lost: &Lost| {
                alone = true;
                lost.local.back(job, generation).await
            };
            let back = self.ask(there, here).await;
            let mut state = self.state();
            if (back.is_err() && !is_unfit(&back)) || alone {
                // There it is out still, with its slots.
                state.doubt.insert(job.into(), generation);
            }
            state.is_over(job, generation);
            back
        })
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.end_all(ends);
            let mut is_alone = false;
            let here = async |lost: &Lost| {
                is_alone = true;
                lost.local.end_all(ends).await
            };
            let ended = self.ask(there, here).await;
            let is_untold = is_alone || (ended.is_err() && !is_unfit(&ended));
            let now = self.inner.now();
            let mut state = self.state();
            let mut unheard = Vec::new();
            for End { job, claim, .. } in ends {
                let own = state.end_own(job, |own| own.ends_with(*claim));
                let is_of_job = |row: &&Row| row.claimed.job == *job;
                let there = ended.as_ref().ok().map(|rows| rows.iter().find(is_of_job));
                if is_untold {
                    // Its slots would be taken until it is overdue; a sibling's too. Where any claim ends, those to
                    // come are above the time.
                    let was = own.as_ref().map(|row| row.claimed.generation);
                    let claim = claim.or(was).unwrap_or(Gen(now.0));
                    state.is_untold(job, claim);
                }
                // What was sent twice was done the first time, and nobody heard of it.
                unheard.extend(own.filter(|_| matches!(there, Some(None))));
            }
            drop(state);
            Ok(ended?.into_iter().chain(unheard).collect())
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let mut due = self.look(max).await;
            if matches!(due, Err(StoreError::Wiped)) {
                // The others wait for our rows, so they are put back at once.
                due = self.look(max).await;
            }
            due
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        Answer::later(async move {
            let there = self.inner.set_all(changes.clone());
            let here = async |lost: &Lost| match changes.iter().any(Change::is_kept_for_all) {
                true => lost.keeps_nothing(),
                false => lost.local.set_all(changes.clone()).await,
            };
            let done = self.ask(there, here).await?;
            if done {
                let mut state = self.state();
                changes.iter().for_each(|change| state.changed(change));
            }
            Ok(done)
        })
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        Answer::later(async move {
            let there = self.inner.states(keys);
            self.ask(there, async |lost| lost.local.states(keys).await)
                .await
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.rows(which);
            match which {
                RowsOf::Job(job) => self.row_of(job, there).await,
                // Of siblings nothing is known here.
                _ => {
                    self.ask(there, async |lost| lost.local.rows(which).await)
                        .await
                }
            }
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        Answer::later(async move {
            let there = self.inner.count_rows(which);
            self.ask(there, async |lost| lost.local.count_rows(which).await)
                .await
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        Answer::later(async move {
            let there = self.inner.number(name, step);
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            let wake = tokio::select! {
                wake = self.inner.wake() => wake,
                () = self.turned.notified() => Wake::All,
            };
            if let Wake::Row { job } = &wake
                && let Some(claim) = self.claim_of(job)
                && let Ok(row) = self.inner.row(job).await
                && row.is_none_or(|row| !row.ours)
            {
                self.state().is_over(job, claim);
            }
            wake
        })
    }

    fn standing(&self) -> Standing<'_> {
        let standing = self.inner.standing();
        Standing {
            is_shared: true,
            is_alone: standing.is_alone && !self.is_lost(),
            ..standing
        }
    }
}

#[cfg(test)]
mod tests;
