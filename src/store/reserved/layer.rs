//! The store before which starts are granted ahead: what it knows without a call, and what it gives back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::rules::Policies;
use super::state::Ahead;
use crate::guard::Guard;
use crate::{Answer, KnownRow, Ledger, LedgerExt, Room, Wish};
use ojs_limit::{Limited, Space, Timestamp};

/// A clock that is further off than this, in microseconds, leaves too little of a turn.
const MOST_DOUBT: u64 = 2_000;

/// Keys that are kept before those with nothing reserved are forgotten.
const MANY: usize = 1_024;

/// A shared store of which the starts of some policies are reserved ahead.
#[derive(Debug)]
pub struct ReservedStore {
    pub(super) inner: Arc<Guard>,
    /// Whether there was ever a policy to reserve for; until then nothing is kept here.
    pub(super) used: AtomicBool,
    /// Nothing panics between two steps in it that belong together.
    pub(super) state: Mutex<Ahead>,
    /// A question for turns was answered.
    pub(super) answered: Notify,
}

impl ReservedStore {
    /// Nothing is reserved before the policies are named.
    pub fn new(inner: Arc<Guard>) -> ReservedStore {
        ReservedStore {
            inner,
            used: AtomicBool::new(false),
            state: Mutex::default(),
            answered: Notify::new(),
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    pub(super) fn can_reserve(&self) -> bool {
        !self.inner.is_lost() && self.inner.facts().doubt <= MOST_DOUBT
    }

    /// Gives back what nobody used and nobody asks for any more.
    pub(super) async fn give_back(&self) {
        let now = self.now();
        let unused: Vec<(Limited, Vec<Timestamp>)> = {
            let mut state = self.state.lock();
            let Ahead { keys, unused, .. } = &mut *state;
            let mut all = Vec::new();
            for ((key, limits), turns) in keys.iter_mut() {
                let (count, times) = turns.take_unused(now);
                *unused += count as u64;
                if !times.is_empty() {
                    let policy = Arc::from("");
                    let limited = Limited::new(Space::Job, key.clone(), limits.clone(), policy);
                    all.push((limited, times));
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

    pub(crate) fn guard(&self) -> &Guard {
        &self.inner
    }

    /// Whether starts under these limits may be granted ahead.
    pub(crate) fn is_reserved(&self, limited: &[Limited]) -> bool {
        self.state.lock().is_reserved(limited)
    }

    /// How many start times were granted ahead, and how many of them passed unused.
    pub(crate) fn turns(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.granted, state.unused)
    }

    /// The policies whose limits are reserved ahead, by their names, in place of earlier ones.
    pub(crate) fn reserve_for(&self, policies: Policies) {
        self.used.fetch_or(!policies.is_empty(), Ordering::AcqRel);
        self.state.lock().policies = policies;
    }

    /// What is known of a job's row without a call.
    pub(crate) fn known(&self, job: &str) -> KnownRow {
        match self.state.lock().row(job) {
            Some(row) => KnownRow::Out(Box::new(row.clone())),
            None => self.inner.known(job),
        }
    }

    /// What may start under these limits, all of them together.
    pub(crate) fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        if self.can_reserve() {
            let now = self.now();
            let mut state = self.state.lock();
            if let [one] = limited
                && state.is_reserved(limited)
            {
                return Answer::now(state.turns(one).room(now));
            }
        }
        self.inner.room(limited)
    }
}
