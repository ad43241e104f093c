//! Hot keys: start times reserved ahead of need, so that one call to the shared store serves many starts.
//!
//! A job of a policy with `sync = "reserved"` that has no other limit starts in a turn that the store has
//! granted to this sidecar ([`Store::reserve`]): first come first served over the fleet, each within 5 ms of
//! its time or not at all. The limit is never passed, for a turn counts in the store from the moment it is
//! granted, used or not.
//!
//! Such a job takes no slot, and nothing of it would have to be freed by others, so its row stays here: the
//! store hears of it only when it is offered to siblings. Of all other jobs, and when no turn can be had,
//! the store is asked for each start.

mod start;
mod state;
mod turns;

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    Answer, Change, Claimed, Gen, Known, Number, Overrides, Place, Room, Row, Step, Store,
    StoreError, Usage, Verdict, Wake, Wish, guard,
};
use crate::limit::{
    Key, Limited, Limits, Measure, OnLimit, Rate, Reserved, Space, Throttle, Timestamp, WindowKind,
};
use state::{Changed, State};

/// The names of policies.
pub type Policies = HashSet<Arc<str>>;

/// A clock that is further off than this, in microseconds, leaves too little of a turn.
const MOST_DOUBT: u64 = 2_000;
/// The most rows that go to the store in one call.
const AT_ONCE: usize = 256;
/// Keys that are kept before those with nothing reserved are forgotten, and jobs that are there before those are looked
/// for that have gone.
const MANY: usize = 1_024;

/// Why a limit cannot be reserved ahead; `None`: it can.
pub fn objection(limits: &Limits, on_limit: OnLimit) -> Option<&'static str> {
    let edged = |rate: &Rate| rate.window != WindowKind::Sliding;
    let completion = |throttle: Throttle| throttle.measure == Measure::Completion;
    if limits.concurrency.is_some() {
        Some(
            "a slot is taken and freed by each job, so there is nothing to reserve of `concurrency`",
        )
    } else if limits.rates.is_empty() && limits.throttle.is_none() {
        Some("there is no `rate` or `throttle` to reserve of")
    } else if limits.rates.iter().any(edged) {
        Some("only sliding windows can be looked ahead in")
    } else if limits.throttle.is_some_and(completion) {
        Some("when a job completes is not known ahead, so `measure` must be \"start\"")
    } else if on_limit != OnLimit::Wait {
        Some("a job waits for its turn, so `on_limit` must be \"wait\"")
    } else {
        None
    }
}

/// Whether a limit allows so many starts (32 a second) that there are calls to save. Else each start is asked
/// for: a turn that nobody uses would cost too much.
pub fn is_hot(limits: &Limits) -> bool {
    turns::most(limits) > 1
}

/// A shared store of which the starts of some policies are reserved ahead.
#[derive(Debug)]
pub struct ReservedStore {
    inner: Arc<dyn Store>,
    /// Whether there was ever a policy to reserve for; until then nothing is kept here.
    used: AtomicBool,
    state: Mutex<State>,
    /// A question for turns was answered.
    answered: Notify,
}

impl ReservedStore {
    /// Nothing is reserved before [`Store::reserve_for`].
    pub fn new(inner: Arc<dyn Store>) -> ReservedStore {
        ReservedStore {
            inner,
            used: AtomicBool::new(false),
            state: Mutex::new(State::new()),
            answered: Notify::new(),
        }
    }

    // Nothing in here panics between two steps that belong together.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    fn can_reserve(&self) -> bool {
        !self.inner.is_lost() && self.inner.doubt() <= MOST_DOUBT
    }

    /// Gives back what nobody used and nobody asks for any more.
    async fn give_back(&self) {
        let now = self.now();
        let unused: Vec<(Limited, Vec<Timestamp>)> = {
            let mut state = self.state();
            let State { keys, unused, .. } = &mut *state;
            let mut all = Vec::new();
            for ((key, limits), turns) in keys.iter_mut() {
                let (count, times) = turns.take_unused(now);
                *unused += count as u64;
                if !times.is_empty() {
                    all.push((limited(key, limits), times));
                }
            }
            if keys.len() > MANY {
                keys.retain(|_, turns| !turns.is_idle());
            }
            all
        };
        for (limited, unused) in unused {
            let wish = Wish {
                limited: &limited,
                want: 0,
                ahead: 0,
                unused: &unused,
            };
            // Else they count until their window is over.
            drop(self.inner.reserve(wish).await);
        }
    }

    /// Asks about jobs that should be there and may have ended through siblings without a word. What is a sibling's
    /// stays: the hold may not know that yet, and it would start here.
    async fn look_there(&self) {
        let unheard = self.state().unheard();
        for (job, there) in unheard {
            match self.inner.row(&job).await {
                Ok(row) if !self.inner.may_miss_rows() => {
                    self.state().heard_of(&job, there, row.is_some());
                }
                _ => return,
            }
        }
    }

    /// Makes those of these changes that are about what is here, and says which are for the store, and
    /// whether any was made here. Rows that are offered to siblings go to the store first.
    async fn change_here(&self, changes: Vec<Change>) -> Result<(Vec<Change>, bool), StoreError> {
        let now = self.now();
        let (mut there, mut moved, mut done) = (Vec::new(), Vec::new(), false);
        {
            let mut state = self.state();
            for change in changes {
                match state.change(change, now) {
                    Changed::Here(changed) => done |= changed,
                    Changed::There(change) => there.push(change),
                    Changed::Offered(change, row) => {
                        there.push(change);
                        moved.push(row);
                    }
                }
            }
        }
        let claims: Vec<&Claimed> = moved.iter().map(|row| &row.claimed).collect();
        for some in claims.chunks(AT_ONCE) {
            self.inner.take(some, 0).await?;
        }
        Ok((there, done))
    }
}

/// A key as it is named to the store.
fn limited(key: &Key, limits: &Limits) -> Limited {
    Limited {
        space: Space::Job,
        key: key.clone(),
        limits: limits.clone(),
        on_limit: OnLimit::Wait,
        policy: Arc::from(""),
    }
}

impl Store for ReservedStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.inner.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        if !self.is_used() {
            return self.inner.take(asks, want);
        }
        Answer::later(self.take_each(asks, want))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.inner.reserve(wish)
    }

    fn doubt(&self) -> u64 {
        self.inner.doubt()
    }

    fn lead(&self, micros: u64) {
        self.inner.lead(micros);
    }

    fn turns(&self) -> (u64, u64) {
        let state = self.state();
        (state.granted, state.unused)
    }

    fn reserve_for(&self, policies: Policies) {
        self.used.fetch_or(!policies.is_empty(), Ordering::AcqRel);
        self.state().policies = policies;
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        if !self.is_used() {
            return self.inner.claimed(claims);
        }
        Answer::later(async move {
            let (mut over, there) = {
                let mut state = self.state();
                let over = state.rows.claimed(claims, || self.now());
                for row in &over {
                    state.out.remove(&row.claimed.job);
                }
                let mut there = Vec::new();
                for claim in claims {
                    let was_there = state.there.remove(&claim.job).is_some();
                    if was_there || !state.is_reserved(&claim.limited) {
                        there.push(*claim);
                    }
                }
                (over, there)
            };
            if !there.is_empty() {
                over.extend(self.inner.claimed(&there).await?);
            }
            Ok(over)
        })
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        let now = self.now();
        match self.state().back(job, generation, now) {
            true => Answer::now(true),
            false => self.inner.back(job, generation),
        }
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        let now = self.now();
        let mut state = self.state();
        if state.rows.row(job).is_some() {
            return Answer::now(state.end(job, generation, now));
        }
        state.there.remove(job);
        self.inner.end(job, generation)
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        if !self.is_used() {
            return self.inner.due(max);
        }
        let now = self.now();
        let here = self.state().rows.due(max, now);
        Answer::later(async move {
            self.give_back().await;
            let mut rows = self.inner.due(max).await?;
            self.look_there().await;
            rows.extend(here);
            Ok(rows)
        })
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        if !self.is_used() {
            return self.inner.set(change);
        }
        Answer::later(async move {
            let (there, done) = self.change_here(vec![change]).await?;
            match there.into_iter().next() {
                Some(change) => self.inner.set(change).await,
                None => Ok(done),
            }
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        if !self.is_used() {
            return self.inner.set_all(changes);
        }
        Answer::later(async move {
            let (there, _) = self.change_here(changes).await?;
            match there.is_empty() {
                true => Ok(()),
                false => self.inner.set_all(there).await,
            }
        })
    }

    fn times_wiped(&self) -> u64 {
        self.inner.times_wiped()
    }

    fn times_failed(&self) -> u64 {
        self.inner.times_failed()
    }

    fn overrides(&self) -> &Overrides {
        self.inner.overrides()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        let here = self.state().rows.row(job).cloned();
        match here {
            Some(row) => Answer::now(Some(row)),
            None => self.inner.row(job),
        }
    }

    fn known(&self, job: &str) -> Known {
        match self.state().rows.row(job) {
            Some(row) if row.place == Place::Out => Known::Out(Box::new(row.clone())),
            Some(_) => Known::Unsure,
            None => self.inner.known(job),
        }
    }

    fn is_alone(&self) -> bool {
        self.inner.is_alone()
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        if self.can_reserve() {
            let now = self.now();
            let mut state = self.state();
            if let [one] = limited
                && state.is_reserved(limited)
            {
                return Answer::now(state.turns(one).room(now));
            }
        }
        self.inner.room(limited)
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        self.inner.usage(space, key, limits)
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        self.inner.active(keys)
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        let here = self.state().rows.count(place);
        Answer::later(async move { Ok(here + self.inner.count(place).await?) })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.inner.number(name, step)
    }

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        self.inner.pause(queue, paused)
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn siblings(&self) -> usize {
        self.inner.siblings()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn may_miss_rows(&self) -> bool {
        self.inner.may_miss_rows()
    }

    fn has_answered(&self) -> bool {
        self.inner.has_answered()
    }

    fn sets_aside(&self, claimed: &Claimed) -> bool {
        self.inner.sets_aside(claimed)
    }

    fn told_anew(&self) -> Option<Instant> {
        self.inner.told_anew()
    }

    fn elsewhere(&self) -> Vec<(Claimed, Option<Row>)> {
        self.inner.elsewhere()
    }

    fn forgot(&self, gone: &[(Claimed, Option<Row>)]) {
        let mut state = self.state();
        for (claimed, _) in gone {
            // It may have been claimed here again.
            let known = state.there.get(&claimed.job);
            if known.is_some_and(|there| there.claim == claimed.generation) {
                state.there.remove(&claimed.job);
            }
        }
        drop(state);
        self.inner.forgot(gone);
    }

    fn declare(&self, by_policy: guard::Declared) {
        self.inner.declare(by_policy);
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        self.inner.offered(scope, queue, max)
    }

    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        self.inner.held_by_others(queue)
    }

    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        self.inner.rows_of_others(max)
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, Vec<Arc<str>>> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            let wake = self.inner.wake().await;
            if let Wake::Row { job } = &wake
                && self.state().there.contains_key(job)
                && let Ok(row) = self.inner.row(job).await
                && row.is_none_or(|row| !row.ours)
            {
                self.state().there.remove(job);
            }
            wake
        })
    }
}

#[cfg(test)]
mod tests;
