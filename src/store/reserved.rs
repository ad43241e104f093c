//! Hot keys: start times reserved ahead of need, so that one call to the shared store serves many starts.
//!
//! A job of a policy with `sync = "reserved"` that has no other limit starts in a turn that the store has
//! granted to this sidecar ([`Ledger::reserve`]): first come first served over the fleet, each within 5 ms of
//! its time or not at all. The limit is never passed, for a turn counts in the store from the moment it is
//! granted, used or not.
//!
//! Such a job takes no slot, and nothing of it would have to be freed by others, so its row is kept here. Of all
//! other jobs, and when no turn can be had, the store is asked for each start.

mod start;
mod state;
mod turns;

use crate::LedgerExt;
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::guard::Guard;
use super::memory::first_due;
use super::{
    Answer, Change, Claimed, CountOf, End, Gen, KeyStates, Known, Ledger, Number, Room, Row,
    RowsOf, Standing, Step, Taken, Wake, Wish,
};
use ojs_limit::{
    Key, Limited, Limits, Measure, OnLimit, Rate, Reserved, Space, Throttle, Timestamp, WindowKind,
};
use state::Ahead;

/// The names of policies.
pub type Policies = HashSet<Arc<str>>;

/// A clock that is further off than this, in microseconds, leaves too little of a turn.
const MOST_DOUBT: u64 = 2_000;
/// Keys that are kept before those with nothing reserved are forgotten.
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
    inner: Arc<Guard>,
    /// Whether there was ever a policy to reserve for; until then nothing is kept here.
    used: AtomicBool,
    state: Mutex<Ahead>,
    /// A question for turns was answered.
    answered: Notify,
}

impl ReservedStore {
    /// Nothing is reserved before the policies are named.
    pub fn new(inner: Arc<Guard>) -> ReservedStore {
        ReservedStore {
            inner,
            used: AtomicBool::new(false),
            state: Mutex::new(Ahead::new()),
            answered: Notify::new(),
        }
    }

    // Nothing in here panics between two steps that belong together.
    fn state(&self) -> MutexGuard<'_, Ahead> {
        self.state.lock()
    }

    fn there(&self) -> &dyn Ledger {
        &*self.inner
    }

    fn now(&self) -> Timestamp {
        self.there().now()
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    fn can_reserve(&self) -> bool {
        !self.inner.is_lost() && self.inner.standing().doubt <= MOST_DOUBT
    }

    /// Gives back what nobody used and nobody asks for any more.
    async fn give_back(&self) {
        let now = self.now();
        let unused: Vec<(Limited, Vec<Timestamp>)> = {
            let mut state = self.state();
            let Ahead { keys, unused, .. } = &mut *state;
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
}

/// A key as it is named to the store.
fn limited(key: &Key, limits: &Limits) -> Limited {
    Limited {
        space: Space::Job,
        key: key.clone(),
        limits: limits.clone(),
        on_limit: OnLimit::Wait,
        policy: Arc::from(""),
        cost: Default::default(),
        share: None,
    }
}

impl ReservedStore {
    pub(super) fn guard(&self) -> &Guard {
        &self.inner
    }

    /// Whether starts under these limits may be granted ahead.
    pub(super) fn is_reserved(&self, limited: &[Limited]) -> bool {
        self.state().is_reserved(limited)
    }

    /// How many start times were granted ahead, and how many of them passed unused.
    pub(super) fn turns(&self) -> (u64, u64) {
        let state = self.state();
        (state.granted, state.unused)
    }

    /// The policies whose limits are reserved ahead, by their names, in place of earlier ones.
    pub(super) fn reserve_for(&self, policies: Policies) {
        self.used.fetch_or(!policies.is_empty(), Ordering::AcqRel);
        self.state().policies = policies;
    }

    /// What is known of a job's row without a call.
    pub(super) fn known(&self, job: &str) -> Known {
        match self.state().row(job) {
            Some(row) => Known::Out(Box::new(row.clone())),
            None => self.inner.known(job),
        }
    }

    /// What may start under these limits, all of them together.
    pub(super) fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
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
}

impl Ledger for ReservedStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.inner.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        if !self.is_used() {
            return self.inner.take(asks, want);
        }
        Answer::later(self.take_each(asks, want))
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        match self.state().back(job, generation) {
            true => Answer::now(true),
            false => self.inner.back(job, generation),
        }
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        let (mut there, mut ended) = (Vec::new(), Vec::new());
        {
            let mut state = self.state();
            for end in ends {
                if state.row(&end.job).is_some() {
                    ended.extend(state.end(&end.job, end.claim));
                } else {
                    there.push(end.clone());
                }
            }
        }
        if there.is_empty() {
            return Answer::now(ended);
        }
        Answer::later(async move {
            ended.extend(self.inner.end_all(&there).await?);
            Ok(ended)
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        if !self.is_used() {
            return self.inner.due(max);
        }
        let rows = |ahead: &Ahead| {
            let rows = ahead.out.values().map(|out| &out.row);
            first_due(rows, max, self.now())
        };
        let here = rows(&self.state());
        Answer::later(async move {
            self.give_back().await;
            let mut rows = self.inner.due(max).await?;
            rows.extend(here);
            Ok(rows)
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        if !self.is_used() {
            return self.inner.set_all(changes);
        }
        let (mut there, mut done) = (Vec::new(), false);
        {
            let mut state = self.state();
            for change in changes {
                match state.change(&change) {
                    Some(changed) => done |= changed,
                    None => there.push(change),
                }
            }
        }
        if there.is_empty() {
            return Answer::now(done);
        }
        Answer::later(async move { Ok(self.inner.set_all(there).await? | done) })
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        self.inner.states(keys)
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let mut here: Vec<Row> = match which {
            RowsOf::Job(job) => self.state().row(job).cloned().into_iter().collect(),
            RowsOf::Out { max } => {
                let state = self.state();
                let out = state.out.values().take(max);
                out.map(|out| out.row.clone()).collect()
            }
            RowsOf::Offered { .. } => Vec::new(),
        };
        if matches!(which, RowsOf::Job(_)) && !here.is_empty() {
            return Answer::now(here);
        }
        Answer::later(async move {
            here.extend(self.inner.rows(which).await?);
            Ok(here)
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        let here = match which {
            CountOf::Out => self.state().out.len() as u64,
            CountOf::HeldByOthers(_) => 0,
        };
        Answer::later(async move { Ok(here + self.inner.count_rows(which).await?) })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.inner.number(name, step)
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.inner.reserve(wish)
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        self.inner.wake()
    }

    fn standing(&self) -> Standing<'_> {
        self.inner.standing()
    }
}

#[cfg(test)]
mod tests;
