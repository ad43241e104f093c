//! The store as the rest of the program has it.

use std::fmt;
use std::sync::Arc;

use super::guard::{self, Guard};
use super::memory::MemoryStore;
use super::reserved::{self, ReservedStore};
use super::{Answer, KnownRow, Ledger, LedgerExt, Room};
use ojs_limit::{Limited, Limits};

/// A store, and what is known of it without a call. What a [`Ledger`] answers it answers itself.
///
/// A shared one has a guard and start times that were granted ahead before it. The one in memory stands by itself:
/// there is nothing to lose, and nobody to share with.
#[derive(Clone, Debug)]
pub struct Store {
    ledger: Arc<dyn Ledger>,
    /// The ledger once more as what it is, where other sidecars share it; `None`: it is this process's alone.
    shared: Option<Arc<ReservedStore>>,
    beside: Option<OpenBeside>,
}

/// Opens another namespace of a store.
#[derive(Clone)]
struct OpenBeside(Arc<dyn Fn() -> Store + Send + Sync>);

impl fmt::Debug for OpenBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenBeside")
    }
}

impl std::ops::Deref for Store {
    type Target = dyn Ledger;

    fn deref(&self) -> &(dyn Ledger + 'static) {
        &*self.ledger
    }
}

/// A store that cannot be lost.
impl<L: Ledger + 'static> From<Arc<L>> for Store {
    fn from(ledger: Arc<L>) -> Store {
        Store {
            ledger,
            shared: None,
            beside: None,
        }
    }
}

impl Store {
    /// A store that others share, and that may be lost.
    pub fn shared(guard: Arc<Guard>) -> Store {
        let reserved = Arc::new(ReservedStore::new(guard));
        Store {
            ledger: reserved.clone(),
            shared: Some(reserved),
            beside: None,
        }
    }

    /// This store, beside which `open` opens another namespace.
    #[must_use]
    pub fn with_beside(self, open: impl Fn() -> Store + Send + Sync + 'static) -> Store {
        let beside = Some(OpenBeside(Arc::new(open)));
        Store { beside, ..self }
    }

    /// Opens a store beside this one, for usage that must never meet what this one keeps: another namespace of it, or the
    /// memory of this process on the same clock.
    pub fn open_beside(&self) -> Store {
        match &self.beside {
            Some(open) => open.0(),
            None => Store::from(Arc::new(MemoryStore::new(self.now().0))),
        }
    }

    fn guard(&self) -> Option<&Guard> {
        self.shared.as_ref().map(|reserved| reserved.guard())
    }

    /// What may start under these limits, all of them together. Where starts are granted ahead no call is made.
    pub fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        match &self.shared {
            Some(reserved) => reserved.room(limited),
            None => self.ledger.room(limited),
        }
    }

    /// Whether the store does not answer, and [`guard::OnStoreError`] says what happens.
    pub fn is_lost(&self) -> bool {
        self.guard().is_some_and(Guard::is_lost)
    }

    /// This sidecar's part of a limit while the store does not answer, and of how many parts.
    pub fn part_of(&self, limited: &Limited) -> Option<(Limits, u32)> {
        self.guard()?.part_of(limited)
    }

    /// Why it does not answer, by its last error; empty where it answers.
    pub fn lost_by(&self) -> String {
        self.guard().map_or_else(String::new, Guard::lost_by)
    }

    /// What happens under a limit while the store does not answer; `None`: it answers.
    pub fn lost_mode(&self, limited: &Limited) -> Option<guard::LostMode> {
        self.guard()?.lost_mode(limited)
    }

    /// Whether it has ever answered. What was never seen may be another store than the one that is meant.
    pub fn has_answered(&self) -> bool {
        self.guard().is_none_or(Guard::has_answered)
    }

    /// Whether a job may have a row that is not found: the store is lost, or was a moment ago and others have not put
    /// theirs back yet.
    pub fn may_miss_rows(&self) -> bool {
        self.guard().is_some_and(Guard::may_miss_rows)
    }

    /// How often it has failed; calls that were under way together fail once.
    pub fn times_failed(&self) -> u64 {
        self.guard().map_or(0, Guard::times_failed)
    }

    /// Learns whether a job's row is still this sidecar's ([`Wake::Row`](crate::Wake::Row)).
    pub async fn follow(&self, job: &str) {
        if let Some(guard) = self.guard() {
            guard.follow(job).await;
        }
    }

    /// What single policies declare for the time when the store is lost, in place of earlier ones.
    pub fn declare(&self, by_policy: guard::Declared) {
        if let Some(guard) = self.guard() {
            guard.declare(by_policy);
        }
    }

    /// What is known of a job's row without a call. A worker may settle a job through another sidecar than the one it
    /// has it from, so one that is unknown here may have a row as long as there are others.
    pub fn known(&self, job: &str) -> KnownRow {
        let shared = self.shared.as_ref();
        shared.map_or(KnownRow::Unsure, |reserved| reserved.known(job))
    }

    /// Whether starts under these limits may be granted ahead: such jobs run without rows.
    pub fn is_reserved(&self, limited: &[Limited]) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|reserved| reserved.is_reserved(limited))
    }

    /// How many start times were granted ahead to this sidecar, and how many of them passed unused.
    pub fn turns(&self) -> (u64, u64) {
        self.shared
            .as_ref()
            .map_or((0, 0), |reserved| reserved.turns())
    }

    /// The policies whose limits are reserved ahead, by their names, in place of earlier ones ([`ReservedStore`]).
    pub fn reserve_for(&self, policies: reserved::Policies) {
        if let Some(reserved) = &self.shared {
            reserved.reserve_for(policies);
        }
    }
}
