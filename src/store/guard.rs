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
//! Who says nothing for 5 s is dead to those that still have the store: they take over what it holds, and
//! hand it out. A sidecar that has lost the store cannot tell whether the others have lost it too. So where
//! others lived at the loss, the claims that it had by then are set aside ([`Store::sets_aside`]): they are
//! neither handed out nor kept alive. When the store is back, the row says whose the job is
//! ([`Store::elsewhere`]); where it has ended the backend says so, which is asked anew: a sibling runs a job under
//! the claim that it took over, so what was heard before proves nothing ([`Store::told_anew`]). If that takes
//! longer than the claim lasts, the backend hands the job out again, as a new claim of which nobody else has
//! heard. Only claims that were made since the loss start without the store.
//!
//! The other half of this is that held jobs are taken over only while their claims are sure to stand
//! ([`Store::offered`]): what has lapsed may be out with a sidecar that has no store to say so.
//!
//! Which claims are set aside, their numbers say: later ones are higher ([`Gen`]), and the highest that was
//! ever on its way to the store is known. Where a limit is closed nothing goes out in any case, and claims are
//! kept alive.

mod ask;
mod lost;
mod recover;
mod state;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    Answer, Change, Claimed, Clock, Gen, Known, Number, OFFERED, Overrides, Place, Room, Row, Step,
    Store, StoreError, Usage, Verdict, Wake, Wish,
};
use crate::limit::{Key, Limited, Limits, Reserved, Space, Timestamp};
use lost::Lost;
use state::{Ended, State};

/// After the store was back others have this long to come back too, in microseconds: until then who has
/// said nothing is not dead, and may be handing out what it holds.
const OTHERS_RETURN: u64 = 5_000_000;
/// More ends than this are not remembered for the store's return; the rows are overdue some time.
const MOST_ENDED: usize = 10_000;
/// And of these, which were out through siblings, no more are told again and again.
const MOST_ECHOED: usize = 1_000;

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
    inner: Arc<dyn Store>,
    mode: OnStoreError,
    declared: Arc<Mutex<Declared>>,
    /// It has answered before it was guarded.
    answered: bool,
    state: Mutex<State>,
    /// The clock that starts count by while it is lost. Beside the lock, because it is read all the time.
    alone: ArcSwapOption<Clock>,
    recovering: tokio::sync::Mutex<()>,
    /// The store is lost, or is sure to know all again: what may start is another question now.
    turned: Notify,
    begun: Instant,
    /// So many microseconds after that the store was last told of our rows again after it was away; 0: never.
    told_anew: AtomicU64,
}

impl Guard {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Store>, mode: OnStoreError) -> Guard {
        Guard {
            inner,
            mode,
            declared: Arc::default(),
            answered: false,
            state: Mutex::default(),
            alone: ArcSwapOption::empty(),
            recovering: tokio::sync::Mutex::default(),
            turned: Notify::new(),
            begun: Instant::now(),
            told_anew: AtomicU64::new(0),
        }
    }

    /// The same store, which has answered already or has not.
    #[must_use]
    pub fn answered(self, answered: bool) -> Guard {
        Guard { answered, ..self }
    }

    // Nothing in here panics between two steps that belong together.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn lost(&self) -> Option<Arc<Lost>> {
        self.state().lost.clone()
    }

    /// Whether others may not have put back yet what the store must know of them.
    fn is_filling(&self, state: &State) -> bool {
        let since = |at: Timestamp| self.inner.now().since(at);
        state.returned.is_some_and(|at| since(at) < OTHERS_RETURN)
    }

    /// Whether the store may miss rows: it is lost, or has failed since it was told of ours; or others have not put
    /// back theirs yet, where it was away, or where who answers now may be one that took its place.
    fn may_have_forgotten(&self, state: &State) -> bool {
        let since = |at: Timestamp| self.inner.now().since(at);
        let is_told = state.told.is_some_and(|at| since(at) < OTHERS_RETURN);
        let is_another = is_told && self.inner.forgets_unsaid();
        state.suspect || is_another || self.is_filling(state)
    }
}

/// Whether the store cannot keep what it was told: nothing was done, and nothing will be however often it is told.
fn is_unfit<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unfit(_)))
}

impl Store for Guard {
    /// While it is lost this is the clock of what answers for it: what is known of the server's moves with each
    /// answer to whoever tries whether it is back, and each start would seem early or late by that.
    fn at(&self, moment: Instant) -> Timestamp {
        match &*self.alone.load() {
            Some(clock) => clock.at(moment),
            None => self.inner.at(moment),
        }
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        if asks.is_empty() {
            // Answers without a question say nothing of the store.
            return Answer::now(Vec::new());
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

    fn doubt(&self) -> u64 {
        self.inner.doubt()
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        if claims.is_empty() {
            return Answer::now(Vec::new());
        }
        Answer::later(async move {
            let there = self.inner.claimed(claims);
            let over = self
                .ask(there, async |lost| lost.local.claimed(claims).await)
                .await?;
            let mut state = self.state();
            for row in &over {
                let job = &row.claimed.job;
                let same = |own: &Row| own.claimed.generation == row.claimed.generation;
                if state.own.get(job).is_some_and(same) {
                    state.own.remove(job);
                }
            }
            Ok(over)
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
            if let Some(row) = state.own.get_mut(job)
                && row.claimed.generation == generation
            {
                (row.place, row.started) = (Place::Held, None);
            }
            back
        })
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let there = self.inner.end(job, generation);
            let ended = self
                .ask(there, async |lost| lost.end(job, generation).await)
                .await;
            let mut state = self.state();
            let older = |row: &Row| generation.is_none_or(|ended| ended >= row.claimed.generation);
            let row = match state.own.get(job).is_some_and(older) {
                true => state.own.remove(job),
                false => None,
            };
            let none = matches!(ended, Ok(None));
            let known = row
                .as_ref()
                .or(ended.as_ref().ok().and_then(Option::as_ref));
            if let Some(known) = known {
                let ended = Ended {
                    at: self.inner.now(),
                    job: known.claimed.job.clone(),
                    claim: known.claimed.generation,
                    theirs: !known.ours,
                };
                state.has_ended(ended);
            }
            let failed = ended.is_err() && !is_unfit(&ended);
            if (failed || (state.lost.is_some() && none)) && state.ended.len() < MOST_ENDED {
                // Its slots would be taken, or it would be held, until it is overdue; a sibling's too. Where any
                // claim ends, those to come are above the time.
                let own = row.as_ref().map(|row| row.claimed.generation);
                let claim = generation.or(own).unwrap_or(Gen(self.inner.now().0));
                state.ended.push((job.into(), claim));
                if row.is_none() && state.echoed.len() < MOST_ECHOED {
                    state.echoed.push((job.into(), claim));
                }
            }
            match row.filter(|row| none && row.place == Place::Out) {
                // What was sent twice was done the first time, and nobody heard of it.
                Some(row) => Ok(Some(row)),
                None => ended,
            }
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let (lost, failed, suspect) = {
                let state = self.state();
                (state.lost.clone(), state.failed, state.suspect)
            };
            if suspect {
                let back = self.recover().await;
                if let (Err(_), Some(lost)) = (&back, lost) {
                    return lost.local.due(max).await;
                }
                self.note(&back, failed);
            }
            let due = self
                .ask(self.inner.due(max), async |lost| lost.local.due(max).await)
                .await;
            self.tell_again().await;
            due
        })
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        Answer::later(async move {
            if let Change::Own { next, .. } = &change {
                self.state().told_of(Some(*next));
            }
            let there = self.inner.set(change.clone());
            let done = self
                .ask(there, async |lost| match &change {
                    Change::Override { .. } | Change::Setting { .. } => lost.keeps_nothing(),
                    // What nacks say holds here meanwhile.
                    by_hand if by_hand.is_by_hand() => lost.keeps_nothing(),
                    _ => lost.local.set(change.clone()).await,
                })
                .await?;
            if done {
                self.state().changed(&change);
            }
            Ok(done)
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        Answer::later(async move {
            let there = self.inner.set_all(changes.clone());
            let here = async |lost: &Lost| lost.local.set_all(changes.clone()).await;
            self.ask(there, here).await?;
            let mut state = self.state();
            changes.iter().for_each(|change| state.changed(change));
            Ok(())
        })
    }

    fn lead(&self, micros: u64) {
        self.inner.lead(micros);
    }

    fn times_wiped(&self) -> u64 {
        self.inner.times_wiped()
    }

    fn times_failed(&self) -> u64 {
        self.state().failed
    }

    fn overrides(&self) -> &Overrides {
        self.inner.overrides()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let there = self.inner.row(job);
            let row = self
                .ask(there, async |lost| lost.local.row(job).await)
                .await;
            let state = self.state();
            // What is out through us is so whether the store answers or not, or has forgotten it.
            let is_missing = match &row {
                Ok(row) => row.is_none() && self.may_have_forgotten(&state),
                Err(_) => true,
            };
            match state.own.get(job) {
                Some(own) if is_missing && own.place == Place::Out => Ok(Some(own.clone())),
                _ => row,
            }
        })
    }

    fn known(&self, job: &str) -> Known {
        let state = self.state();
        if state.suspect || !state.known || state.doubt.contains_key(job) {
            return Known::Unsure;
        }
        match state.own.get(job) {
            Some(row) if row.place == Place::Out => Known::Out(Box::new(row.clone())),
            None if self.inner.is_alone() => Known::No,
            _ => Known::Unsure,
        }
    }

    fn may_miss_rows(&self) -> bool {
        self.may_have_forgotten(&self.state())
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let there = self.inner.room(limited);
            self.ask(there, async |lost| lost.room(limited).await).await
        })
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        Answer::later(async move {
            let there = self.inner.usage(space, key, limits);
            self.ask(there, async |lost| {
                lost.local.usage(space, key, limits).await
            })
            .await
        })
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        Answer::later(async move {
            let there = self.inner.active(keys);
            self.ask(there, async |lost| lost.local.active(keys).await)
                .await
        })
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        Answer::later(async move {
            let there = self.inner.count(place);
            self.ask(there, async |lost| lost.local.count(place).await)
                .await
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        Answer::later(async move {
            let there = self.inner.number(name, step);
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn declare(&self, by_policy: Declared) {
        let mut declared = self.declared.lock();
        *declared = by_policy;
    }

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        Answer::later(async move {
            let there = self.inner.pause(queue, paused);
            self.ask(there, async |lost| lost.keeps_nothing()).await
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_alone(&self) -> bool {
        !self.is_lost() && self.inner.is_alone()
    }

    fn siblings(&self) -> usize {
        self.inner.siblings()
    }

    fn is_lost(&self) -> bool {
        self.state().lost.is_some()
    }

    fn has_answered(&self) -> bool {
        self.answered || self.state().known
    }

    fn sets_aside(&self, claimed: &Claimed) -> bool {
        self.lost().is_some_and(|lost| lost.sets_aside(claimed))
    }

    fn told_anew(&self) -> Option<Instant> {
        let after = self.told_anew.load(Ordering::Acquire);
        (after > 0).then(|| self.begun + Duration::from_micros(after))
    }

    fn elsewhere(&self) -> Vec<(Claimed, Option<Row>)> {
        self.state().elsewhere.values().cloned().collect()
    }

    fn forgot(&self, gone: &[(Claimed, Option<Row>)]) {
        let mut state = self.state();
        for (claimed, _) in gone {
            state.is_forgotten(claimed);
        }
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.offered(scope, queue, max);
            let mut rows = self.ask(there, async |_| Ok(Vec::new())).await?;
            if self.is_filling(&self.state()) {
                // Those that their owners have let go themselves.
                rows.retain(|row| row.until == OFFERED);
            }
            Ok(rows)
        })
    }

    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        Answer::later(async move {
            let there = self.inner.held_by_others(queue);
            self.ask(there, async |_| Ok(0)).await
        })
    }

    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.rows_of_others(max);
            self.ask(there, async |_| Ok(Vec::new())).await
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, Vec<Arc<str>>> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            let wake = tokio::select! {
                wake = self.inner.wake() => wake,
                () = self.turned.notified() => Wake::All,
            };
            if let Wake::Row { job } = &wake
                && let Ok(row) = self.inner.row(job).await
                && row.is_none_or(|row| !row.ours)
            {
                self.state().own.remove(job);
            }
            wake
        })
    }
}

#[cfg(test)]
mod tests;
