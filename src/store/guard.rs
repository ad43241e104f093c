//! A store that may be lost: what happens then is declared, is what happens, and heals by itself.
//!
//! The guard knows the rows of this sidecar beside the store. When the store fails twice in a row it is
//! taken for lost: from then on no call waits for it, and questions are answered as
//! [`OnStoreError`] says. The sweep asks twice a second whether it is back; then the rows are put back,
//! what ended meanwhile is ended there, and only after that something new starts.
//!
//! Of a start that was cut off nobody knows whether it was done. It is undone before the job is asked
//! for again; the store refuses what arrives after its time.
//!
//! # What was held at the loss
//!
//! Who says nothing for 5 s is dead to those that still have the store: they take over what it holds, and
//! hand it out. A sidecar that has lost the store cannot tell whether the others have lost it too. So where
//! others lived at the loss, the claims that it had by then are set aside ([`Store::sets_aside`]): they are
//! neither handed out nor kept alive. When the store is back, the row says whose the job is. If that takes
//! longer than the claim lasts, the backend hands the job out again, as a new claim of which nobody else has
//! heard. Only claims that were made since the loss start without the store.
//!
//! The other half of this is that held jobs are taken over only while their claims are sure to stand
//! ([`Store::offered`]): what has lapsed may be out with a sidecar that has no store to say so.
//!
//! Which claims are set aside, their numbers say: later ones are higher ([`Gen`]), and the highest that was
//! ever on its way to the store is known. Where a limit is closed nothing goes out in any case, and claims are
//! kept alive.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::memory::MemoryStore;
use super::{
    Answer, Change, Claimed, Clock, Ended, Gen, Known, Number, Overrides, Place, Room, Row, Step,
    Store, StoreError, Usage, Verdict, Wake, Wish,
};
use crate::limit::{
    Key, Limited, Limits, OnLimit, Rate, Refusal, Reserved, Space, Strategy, Throttle, Timestamp,
    WindowKind,
};

/// So many failures in a row are a loss.
const FAILURES: u32 = 2;
/// When a job is asked for again of which a limit is closed, in microseconds.
const AGAIN: u64 = 500_000;
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
    inner: Arc<dyn Store>,
    mode: OnStoreError,
    declared: Arc<Mutex<Declared>>,
    state: Mutex<State>,
    /// The store is lost or back: what may start is another question now.
    turned: Notify,
}

#[derive(Default, Debug)]
struct State {
    /// Our rows, as far as this sidecar had to do with them.
    own: HashMap<Arc<str>, Row>,
    /// Claims of which a start may stand there that nobody heard of, or that was undone here alone.
    doubt: HashMap<Arc<str>, Gen>,
    /// What ended while the store failed, before it was taken for lost: it may not have heard of it.
    ended: Vec<(Arc<str>, Gen)>,
    /// The newest claim that the store was ever told of, or may have been.
    newest: Option<Gen>,
    /// Failures since the last success.
    failures: u32,
    /// The store may have forgotten something: our rows are put back before anything starts.
    suspect: bool,
    /// It has answered before.
    known: bool,
    lost: Option<Arc<Lost>>,
    /// When it was back after it was lost.
    returned: Option<Timestamp>,
}

/// What answers while the store is lost.
#[derive(Debug)]
struct Lost {
    local: MemoryStore,
    /// How many sidecars share the limits.
    sidecars: u32,
    /// The claims up to this one may be siblings' by now; `None`: there are none.
    aside: Option<Gen>,
    /// How many slots of each key we had.
    slots: HashMap<(Space, Key), u32>,
    mode: OnStoreError,
    /// What single policies declare; `None`: nobody is asked, all is closed.
    declared: Option<Arc<Mutex<Declared>>>,
    /// What ended since.
    ended: Mutex<Vec<(Arc<str>, Gen)>>,
}

impl Guard {
    /// Guards `inner`.
    pub fn new(inner: Arc<dyn Store>, mode: OnStoreError) -> Guard {
        Guard {
            inner,
            mode,
            declared: Arc::default(),
            state: Mutex::default(),
            turned: Notify::new(),
        }
    }

    // Nothing in here panics between two steps that belong together.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> Option<Arc<Lost>> {
        self.state().lost.clone()
    }

    /// Notes how a call to the store ended, and says what answers from now on if it is lost.
    fn note<T>(&self, answer: &Result<T, StoreError>) -> Option<Arc<Lost>> {
        let mut state = self.state();
        let error = match answer {
            Ok(_) => {
                state.failures = 0;
                state.known = true;
                return None;
            }
            Err(error) => error,
        };
        state.failures += 1;
        state.suspect = true;
        if state.lost.is_none() && state.failures >= FAILURES {
            let (mode, declared) = match state.known {
                true => (self.mode, Some(Arc::clone(&self.declared))),
                // What others do is not known.
                false => (OnStoreError::Closed, None),
            };
            let lost = Lost::new(&*self.inner, &state, mode, declared);
            tracing::error!(
                %error,
                mode = mode.as_str(),
                sidecars = lost.sidecars,
                "the store is lost; limits go on as store.on_store_error says"
            );
            state.lost = Some(Arc::new(lost));
            self.turned.notify_one();
        }
        state.lost.clone()
    }

    /// Asks the store, or what answers for it.
    async fn ask<T>(
        &self,
        there: impl Future<Output = Result<T, StoreError>>,
        here: impl AsyncFnOnce(&Lost) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(lost) = self.lost() {
            return here(&lost).await;
        }
        let answer = there.await;
        match self.note(&answer) {
            Some(lost) => here(&lost).await,
            None => answer,
        }
    }

    /// Puts our rows back and ends what has ended: from then on the store decides.
    async fn recover(&self) -> Result<(), StoreError> {
        let (rows, doubt, lost) = {
            let state = self.state();
            let rows: Vec<Row> = state.own.values().cloned().collect();
            (rows, state.doubt.clone(), state.lost.clone())
        };
        self.inner.announce(&rows).await?;
        for (job, generation) in &doubt {
            // One of those that went out since is no longer in doubt.
            let out = rows
                .iter()
                .any(|row| row.claimed.job == *job && row.place == Place::Out);
            if !out {
                self.inner.back(job, *generation).await?;
            }
        }
        let unheard = self.state().ended.clone();
        let mut ended = lost.as_ref().map(|lost| lost.ended()).unwrap_or_default();
        ended.extend(unheard.iter().cloned());
        for (job, generation) in &ended {
            self.inner.end(job, Some(*generation)).await?;
        }
        let mut state = self.state();
        state.doubt.retain(|job, _| !doubt.contains_key(job));
        state.ended.retain(|one| !unheard.contains(one));
        (state.suspect, state.failures, state.known) = (false, 0, true);
        if state.lost.take().is_some() {
            state.returned = Some(self.inner.now());
            tracing::info!(rows = rows.len(), ended = ended.len(), "the store is back");
            self.turned.notify_one();
        }
        Ok(())
    }

    async fn take_there(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        if self.state().suspect {
            self.recover().await?;
        }
        let doubtful: Vec<(Arc<str>, Gen)> = {
            let state = self.state();
            let known = asks
                .iter()
                .filter_map(|ask| state.doubt.get_key_value(&ask.job));
            known.map(|(job, claim)| (job.clone(), *claim)).collect()
        };
        for (job, generation) in doubtful {
            self.inner.back(&job, generation).await?;
            self.state().doubt.remove(&job);
        }
        match self.inner.take(asks, want).await {
            Err(StoreError::Wiped) => {
                self.state().suspect = true;
                self.recover().await?;
                self.inner.take(asks, want).await
            }
            answer => answer,
        }
    }

    async fn take_guarded(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Vec<Verdict>, StoreError> {
        // Before it is known whether the store is lost: what is sent must never be newer than this.
        let newest = asks.iter().map(|ask| ask.generation).max();
        self.state().told_of(newest);
        let there = async {
            let answer = self.take_there(asks, want).await;
            if answer.is_err() {
                let mut state = self.state();
                for ask in asks {
                    state.doubt.insert(ask.job.clone(), ask.generation);
                }
            }
            answer
        };
        let verdicts = self
            .ask(there, async |lost| lost.take(asks, want).await)
            .await?;
        let mut state = self.state();
        for (ask, verdict) in asks.iter().zip(&verdicts) {
            state.took(ask, verdict, self.inner.now());
        }
        Ok(verdicts)
    }
}

impl State {
    fn told_of(&mut self, claim: Option<Gen>) {
        self.newest = self.newest.max(claim);
    }

    /// What our row of an asked job is now.
    fn took(&mut self, ask: &Claimed, verdict: &Verdict, now: Timestamp) {
        let row = |place, until, started| Row {
            claimed: ask.clone(),
            place,
            started,
            until,
            hidden: false,
            ours: true,
        };
        match verdict {
            Verdict::Lost => {
                let same = |row: &mut Row| row.claimed.generation == ask.generation;
                if self.own.get_mut(&ask.job).is_some_and(same) {
                    self.own.remove(&ask.job);
                }
            }
            Verdict::Started { at } => {
                let row = row(Place::Out, at.plus(ask.visibility), Some(*at));
                self.own.insert(ask.job.clone(), row);
            }
            Verdict::Refused { .. } | Verdict::Unasked => {
                let row = row(Place::Held, now.plus(ask.visibility / 3), None);
                self.own.insert(ask.job.clone(), row);
            }
        }
    }

    fn changed(&mut self, change: &Change) {
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
                let row = Row {
                    claimed: claimed.clone(),
                    place: Place::Out,
                    started: None,
                    until: *until,
                    hidden: false,
                    ours: true,
                };
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

impl Lost {
    fn new(
        store: &dyn Store,
        state: &State,
        mode: OnStoreError,
        declared: Option<Arc<Mutex<Declared>>>,
    ) -> Lost {
        let mut slots: HashMap<(Space, Key), u32> = HashMap::new();
        let local = MemoryStore::on(Clock::new(store.now().0));
        let own = state.own.values();
        for row in own.filter(|row| row.place == Place::Out) {
            for limited in row.claimed.limited.iter() {
                *slots
                    .entry((limited.space, limited.key.clone()))
                    .or_default() += 1;
            }
            let (claimed, until) = (row.claimed.clone(), row.until);
            // The memory store answers at once and does not fail.
            drop(local.set(Change::Adopt { claimed, until }));
        }
        let siblings = store.siblings();
        Lost {
            local,
            sidecars: u32::try_from(siblings).unwrap_or(u32::MAX - 1) + 1,
            aside: state.newest.filter(|_| siblings > 0),
            slots,
            mode,
            declared,
            ended: Mutex::default(),
        }
    }

    fn ended(&self) -> Vec<(Arc<str>, Gen)> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }

    fn closed<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Unavailable(
            "nothing starts while it is lost".to_owned(),
        ))
    }

    /// What happens under the limits of a policy.
    fn mode_of(&self, limited: &Limited) -> OnStoreError {
        let Some(declared) = &self.declared else {
            return self.mode;
        };
        let declared = declared.lock().unwrap_or_else(PoisonError::into_inner);
        declared.get(&limited.policy).copied().unwrap_or(self.mode)
    }

    /// Which of a job's limits lets nothing start.
    fn closing(&self, limited: &[Limited]) -> Option<usize> {
        let closed = |one: &Limited| self.mode_of(one) == OnStoreError::Closed;
        limited.iter().position(closed)
    }

    /// Whether a sibling may have taken this claim over, of a job that could start here.
    fn sets_aside(&self, claimed: &Claimed) -> bool {
        let may_be_elsewhere = |newest: Gen| claimed.generation <= newest;
        self.aside.is_some_and(may_be_elsewhere) && self.closing(&claimed.limited).is_none()
    }

    async fn take(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        let later = self.local.now().plus(AGAIN);
        let stays = |ask: &&Claimed| match self.closing(&ask.limited) {
            Some(which) => Some(refused(which, later)),
            None => self.sets_aside(ask).then_some(Verdict::Unasked),
        };
        let stay: Vec<Option<Verdict>> = asks.iter().map(stays).collect();
        let is_closed = |stay: &Option<Verdict>| matches!(stay, Some(Verdict::Refused { .. }));
        if stay.iter().all(is_closed) {
            return self.closed();
        }
        let open: Vec<Claimed> = (asks.iter().zip(&stay))
            .filter(|(_, stay)| stay.is_none())
            .map(|(ask, _)| Claimed {
                limited: self.limits(&ask.limited).into(),
                ..(*ask).clone()
            })
            .collect();
        let open: Vec<&Claimed> = open.iter().collect();
        let mut verdicts = self.local.take(&open, want).await?.into_iter();
        // There is one for each that was asked.
        let mut asked = || verdicts.next().unwrap_or(Verdict::Unasked);
        let each = stay.into_iter().map(|stay| stay.unwrap_or_else(&mut asked));
        Ok(each.collect())
    }

    async fn end(&self, job: &str, generation: Option<Gen>) -> Result<Option<Ended>, StoreError> {
        let ended = self.local.end(job, generation).await?;
        let mut all = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &ended
            && all.len() < MOST_ENDED
        {
            let claimed = &ended.row.claimed;
            all.push((claimed.job.clone(), claimed.generation));
        }
        Ok(ended)
    }

    async fn room(&self, limited: &[Limited]) -> Result<Room, StoreError> {
        match self.closing(limited) {
            Some(_) => self.closed(),
            None => self.local.room(&self.limits(limited)).await,
        }
    }

    /// Our part of the limits.
    fn limits(&self, limited: &[Limited]) -> Vec<Limited> {
        let part = |one: &Limited| match self.mode_of(one) {
            OnStoreError::Open => Limits::default(),
            _ => {
                let key = (one.space, one.key.clone());
                let had = self.slots.get(&key).copied().unwrap_or(0);
                part(&one.limits, self.sidecars, had)
            }
        };
        let parts = limited.iter().map(|one| Limited {
            limits: part(one),
            ..one.clone()
        });
        parts.collect()
    }
}

/// A limit of this job is closed; others may start meanwhile.
fn refused(which: usize, later: Timestamp) -> Verdict {
    Verdict::Refused {
        which,
        why: Refusal {
            strategy: Strategy::Shut,
            limit: 0,
            current: 0,
            at: Some(later),
            slot: false,
        },
        at: Some(later),
        action: OnLimit::Wait,
    }
}

/// One sidecar's part of limits that `sidecars` share, of which it had `slots`.
fn part(limits: &Limits, sidecars: u32, slots: u32) -> Limits {
    Limits {
        concurrency: limits.concurrency.map(|most| most.min(slots)),
        rates: limits
            .rates
            .iter()
            .map(|rate| match divided(rate.limit, rate.period, sidecars) {
                (limit, period) if period == rate.period => Rate {
                    limit,
                    ..rate.clone()
                },
                (limit, period) => Rate {
                    limit,
                    period,
                    window: WindowKind::Sliding,
                },
            })
            .collect(),
        throttle: limits.throttle.map(|throttle| {
            let (limit, period) = divided(throttle.limit, throttle.period, sidecars);
            let burst = NonZeroU32::new(throttle.burst.get() / sidecars);
            Throttle {
                limit,
                period,
                burst: burst.unwrap_or(NonZeroU32::MIN),
                ..throttle
            }
        }),
    }
}

/// A part of `limit` in `period`, rounded down; where that is less than one, one in a longer period.
fn divided(limit: NonZeroU32, period: NonZeroU64, sidecars: u32) -> (NonZeroU32, NonZeroU64) {
    match NonZeroU32::new(limit.get() / sidecars.max(1)) {
        Some(part) => (part, period),
        None => {
            let turns = u64::from(sidecars.div_ceil(limit.get()));
            let longer = period.get().saturating_mul(turns);
            (NonZeroU32::MIN, NonZeroU64::new(longer).unwrap_or(period))
        }
    }
}

impl Store for Guard {
    fn now(&self) -> Timestamp {
        self.inner.now()
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
                if self.state().suspect {
                    self.recover().await?;
                }
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
            let here = async |lost: &Lost| lost.local.back(job, generation).await;
            let back = self.ask(there, here).await;
            let mut state = self.state();
            if back.is_err() || state.lost.is_some() {
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

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Ended>> {
        Answer::later(async move {
            let there = self.inner.end(job, generation);
            let ended = self
                .ask(there, async |lost| lost.end(job, generation).await)
                .await;
            let mut state = self.state();
            let older = |row: &Row| generation.is_none_or(|ended| ended >= row.claimed.generation);
            if state.own.get(job).is_some_and(older)
                && let Some(row) = state.own.remove(job)
                && (ended.is_err() || (state.lost.is_some() && matches!(ended, Ok(None))))
                && state.ended.len() < MOST_ENDED
            {
                // Its slots would be taken, or it would be held, until it is overdue.
                state.ended.push((
                    row.claimed.job,
                    generation.unwrap_or(row.claimed.generation),
                ));
            }
            ended
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let lost = self.lost();
            if lost.is_some() || self.state().suspect {
                let back = self.recover().await;
                if let (Err(_), Some(lost)) = (&back, lost) {
                    return lost.local.due(max).await;
                }
                self.note(&back);
            }
            self.ask(self.inner.due(max), async |lost| lost.local.due(max).await)
                .await
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
                    Change::Override { .. } | Change::Setting { .. } => lost.closed(),
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

    fn overrides(&self) -> &Overrides {
        self.inner.overrides()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let there = self.inner.row(job);
            self.ask(there, async |lost| lost.local.row(job).await)
                .await
        })
    }

    fn known(&self, job: &str) -> Known {
        let state = self.state();
        let in_doubt = state.suspect || !state.known || state.doubt.contains_key(job);
        if in_doubt || state.lost.is_some() {
            return Known::Unsure;
        }
        match state.own.get(job) {
            Some(row) if row.place == Place::Out => Known::Out(Box::new(row.clone())),
            None if self.inner.is_alone() => Known::No,
            _ => Known::Unsure,
        }
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
        let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        *declared = by_policy;
    }

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        Answer::later(async move {
            let there = self.inner.pause(queue, paused);
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn siblings(&self) -> usize {
        self.inner.siblings()
    }

    fn is_lost(&self) -> bool {
        self.state().lost.is_some()
    }

    fn sets_aside(&self, claimed: &Claimed) -> bool {
        self.lost().is_some_and(|lost| lost.sets_aside(claimed))
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.offered(scope, queue, max);
            let mut rows = self.ask(there, async |_| Ok(Vec::new())).await?;
            let since = |at: Timestamp| self.inner.now().since(at);
            let returned = self.state().returned;
            if returned.is_some_and(|at| since(at) < OTHERS_RETURN) {
                // Those that their owners have let go themselves.
                rows.retain(|row| row.until == Timestamp(0));
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
