//! Where usage lives, under the key: slots, windows, spacing, and one row per limited job that is out.
//!
//! Each operation is one atomic step. The store's clock decides. Usage knows no limits: every
//! question brings its own numbers, so that changing a number changes the next decision and
//! nothing else. Limits that were set over HTTP are kept beside ([`Overrides`]).
//!
//! # What a store that many sidecars share must keep
//!
//! * **A claim is a token.** A row says under which claim ([`Gen`]) it stands, and every operation names
//!   one: done twice it is done once, done late it does nothing. Claim numbers are made from the store's
//!   clock, so that a later claim has a higher one whichever sidecar made it.
//! * **Deadlines.** An operation that was cut off ([`StoreError::Timeout`]) may still be on its way. It
//!   carries the time on the store's clock past which the store refuses it, so that [`Ledger::back`] after
//!   a [`Ledger::take`] that nobody heard of leaves nothing behind.
//! * **Rows end by deed, never by time alone.** A row is its owner's. When the row of a job that is out is overdue,
//!   any sidecar may look after it ([`Ledger::due`]).
//! * **A held job is its holder's alone, and has no row.** It goes to a sibling only after its holder has offered it
//!   ([`Change::Offer`], [`Change::Own`]), and the holder gets it back in the same way. How many are held of a queue
//!   each sidecar says itself ([`Change::Holds`]).
//! * **A store that forgot says so** ([`StoreError::Wiped`]), and starts nothing until the sidecar has put
//!   back what it knows ([`Ledger::announce`]).
//!
//! # Who stands before whom
//!
//! ```text
//! Store                      what the rest of the program asks
//! └ ReservedStore            starts that were granted ahead are taken here, without a call
//!   └ Guard                  what happens while the store cannot be asked
//!     └ RedisStore, SqlStore what all sidecars share; SqlStore over SQLite or PostgreSQL
//! └ MemoryStore              by itself: there is nothing to lose, and nobody to share with
//! ```
//!
//! Below `Store` each is a [`Ledger`]. Memory and SQL run one step engine over their rows and keys, and Redis runs its
//! scripts.

// Unit tests use parts of the integration tests, which name this crate so.
#[cfg(test)]
extern crate self as ojs_store;

mod answer;
#[cfg(test)]
#[path = "../../tests/harness/claims.rs"]
pub mod claims;
mod clock;
mod engine;
#[cfg(test)]
#[path = "../../tests/faulty.rs"]
pub mod faulty;
mod fleet;
pub mod guard;
mod inspection;
mod ledger;
#[cfg(test)]
#[path = "../../tests/harness/lines.rs"]
pub mod lines;
pub mod memory;
mod overrides;
pub mod postgres;
mod record;
pub mod redis;
mod remote;
pub mod reserved;
mod row;
mod sql;
pub mod sqlite;
mod step;

pub use answer::Answer;
pub use clock::Clock;
pub use fleet::{HOLDS_LAST, NAMES, NUMBER_LASTS, Number, Step, Wake, sidecar_of};
pub use inspection::Inspection;
pub use ledger::{CountOf, KeyStates, Ledger, LedgerExt, RowsOf, Standing};
pub use ojs_limit::Room;
pub use overrides::{MAX as MAX_OVERRIDES, MAX_SETTINGS, Override, Overrides};
pub use row::{Claim, Claimed, End, Gen, Known, OFFERED, Place, Row, Used};
pub use sql::SqlStore;

use guard::Guard;
use reserved::ReservedStore;

use std::sync::Arc;
use std::time::Duration;

use ojs_limit::{Key, Limited, OnLimit, Refusal, Served, Space, Timestamp};

/// What went wrong with a connection, and what to do where it was the server's certificate.
fn distrusted(why: String) -> String {
    match why.contains("invalid peer certificate") {
        true => format!("{why} (store.ca_file names the certificates that are trusted)"),
        false => why,
    }
}

/// Why a URL names no store. Never repeats it: it may have a password in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

/// Refuses a fragment behind the login of a URL: some clients take one as an order to trust any certificate.
fn refuse_fragment(behind_login: &str) -> Result<(), BadUrl> {
    match behind_login.contains('#') {
        true => {
            let why = "it has a `#`: certificates are always checked (ca_file names those to trust), and a `#` \
                       that belongs to a name is %23";
            Err(BadUrl(why.to_owned()))
        }
        false => Ok(()),
    }
}

/// What a store that sidecars share is told.
#[derive(Clone, Debug)]
pub struct StoreConfig<T> {
    /// Where it is.
    pub target: T,
    /// Sidecars with the same one share their budgets.
    pub namespace: String,
    /// The sidecar's name, which no other has.
    pub owner: String,
    /// The longest that an operation may take.
    pub timeout: Duration,
}

/// What became of one asked job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It started: its slots are taken and its start is counted at `at`, at most 5 ms from now.
    Started {
        /// The time at which the start counts.
        at: Timestamp,
    },
    /// At least one key refused; nothing was spent. `which` is the index into `limited` of the
    /// refusal that lets go last.
    Refused {
        /// Index into [`Claim::limited`].
        which: usize,
        /// Why that key refused.
        why: Refusal,
        /// The time of the start as far as time goes, over all keys: granted from 5 ms before it, if
        /// nothing else starts. Where `why` waits for a slot, that must end too; `None`: that is all.
        at: Option<Timestamp>,
        /// The strongest action of the keys that refused: drop, else reschedule, else wait.
        action: OnLimit,
    },
    /// Not asked: enough others started.
    Unasked,
    /// The job has a row: it is out, it is offered, or there is a newer claim. Or the store cannot keep its row.
    Lost,
}

impl Verdict {
    /// Whether the job has started.
    pub fn is_started(&self) -> bool {
        matches!(self, Verdict::Started { .. })
    }
}

/// What became of the jobs that [`Ledger::take`] was asked for.
#[derive(Clone, Default, Debug)]
pub struct Taken {
    /// One for each asked job, in their order.
    pub verdicts: Vec<Verdict>,
    /// The rows of older claims of these jobs: they have ended, and their slots with them.
    pub ended: Vec<Row>,
    /// What the groups of the asked jobs were served by now, where those have a share.
    pub served: Vec<Served>,
}

impl Taken {
    /// How many have started.
    fn started(&self) -> usize {
        let started = self.verdicts.iter().filter(|verdict| verdict.is_started());
        started.count()
    }

    /// Adds what became of the jobs that were asked for next.
    fn extend(&mut self, next: Taken) {
        self.verdicts.extend(next.verdicts);
        self.ended.extend(next.ended);
        self.served.extend(next.served);
    }
}

/// A change to what the store keeps.
#[derive(Clone, Debug)]
pub enum Change {
    /// Move the `until` (and the visibility) of a row that is out, if its claim is still this one.
    Until {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// When the owner must look again.
        until: Timestamp,
        /// In microseconds.
        visibility: u64,
    },
    /// A call that may end this job is on its way, or is over, and no row says who has the job: siblings are told.
    Doubt {
        /// The job.
        job: Arc<str>,
    },
    /// We hold so many jobs of a queue; siblings that count its depth add them. Told again within [`HOLDS_LAST`].
    Holds {
        /// The queue.
        queue: Arc<str>,
        /// How many.
        jobs: u64,
    },
    /// No starts of this job key before `until` (section 9.1); an earlier time than now opens it.
    Shut {
        /// The job key.
        key: Key,
        /// When it opens again.
        until: Timestamp,
        /// Whether a key that is shut for as long or longer stays as it is.
        at_least: bool,
    },
    /// Forget what a job key has used (its starts, its spacing, that it is shut) but not its slots.
    Unused {
        /// The job key.
        key: Key,
    },
    /// A job that is out with a worker already (found after a restart, or put back): it takes its slots whatever
    /// the limits say, and its start is not counted again. Replaces the row of an older claim and a
    /// held row of the same one. [`Gen::ADOPTED`]: nobody knows its claim, and it ends as soon as somebody names the
    /// job in [`Ledger::take`].
    Adopt {
        /// What the row says.
        claimed: Claimed,
        /// When the backend must be asked about it.
        until: Timestamp,
    },
    /// Limits set over HTTP for a key, in place of earlier ones; `None` takes them away.
    Override {
        /// Whose counters.
        space: Space,
        /// Which counters.
        key: Key,
        /// The limits.
        set: Option<Override>,
    },
    /// A setting that was made over HTTP, under its name, in place of an earlier one; `None` takes it away.
    /// The store does not know what it says: see [`Overrides::setting`].
    Setting {
        /// Whose it is, such as `bounds:QUEUE`.
        name: Arc<str>,
        /// What it says.
        text: Option<Arc<str>>,
    },
    /// Siblings may have a held job of ours: it has a row from now on, [`OFFERED`], in place of those of older claims.
    Offer {
        /// What the row says.
        claimed: Claimed,
    },
    /// An offered row becomes ours, under a claim number of our own; it ends when we name the job in
    /// [`Ledger::take`]. Only if its claim is still the one that was offered, or ours: then it was done before.
    Own {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// The row's claim from now on: higher, so that the former owner's operations do nothing.
        next: Gen,
        /// When that claim is over.
        until: Timestamp,
    },
    /// A queue is paused or resumed, and siblings are told.
    Paused {
        /// The queue.
        queue: Arc<str>,
        /// Whether it is paused.
        paused: bool,
    },
    /// Forget everything (the embedded backend's reset; tests).
    Clear,
}

impl Change {
    /// The row of a job that is out is looked at again then.
    pub fn until(claimed: &Claimed, until: Timestamp) -> Change {
        Change::Until {
            job: claimed.job.clone(),
            generation: claimed.generation,
            until,
            visibility: claimed.visibility,
        }
    }

    /// Whether it is kept for all sidecars, so that it cannot be made while the store is lost. What nacks say of a key
    /// holds here meanwhile.
    fn is_kept_for_all(&self) -> bool {
        matches!(
            self,
            Change::Override { .. }
                | Change::Setting { .. }
                | Change::Paused { .. }
                | Change::Unused { .. }
                | Change::Shut {
                    at_least: false,
                    ..
                }
        )
    }

    /// Whether siblings that put back what they know of data that began anew may undo it: something is taken away.
    fn may_undo_what_is_put_back(&self) -> bool {
        matches!(
            self,
            Change::Override { set: None, .. } | Change::Setting { text: None, .. }
        )
    }
}

/// A key's state, for inspection (section 10.1). Numbers only; limits come from the config.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Slots taken.
    pub active: u32,
    /// Per asked window: starts counted, and when the oldest of them leaves.
    pub windows: Vec<(u32, Option<Timestamp>)>,
    /// The next start's time under the asked throttle, if it is in the future.
    pub next_start: Option<Timestamp>,
    /// Shut until then, if that is in the future.
    pub shut_until: Option<Timestamp>,
}

impl Usage {
    /// What a key's state says under these limits; `None`: nothing is used.
    pub fn of(
        state: &ojs_limit::KeyState,
        limits: &ojs_limit::Limits,
        now: Timestamp,
    ) -> Option<Usage> {
        if state.is_unused(now) {
            return None;
        }
        let throttle = limits.throttle.as_ref();
        Some(Usage {
            active: state.active(),
            windows: limits
                .rates
                .iter()
                .map(|rate| state.counted(rate, now))
                .collect(),
            next_start: throttle.and_then(|throttle| state.next_start(throttle, now)),
            shut_until: state.shut_until(now),
        })
    }
}

/// The store could not answer. The memory store never says this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It is not reachable, or refused.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// It answers, and cannot be used as it is: the user lacks rights, it is too old, something else is
    /// under our keys.
    #[error("the store cannot be used: {0}")]
    Unusable(String),
    /// It answers, and cannot keep or compare what was said: a text is too long for it, or has a character for which
    /// it has none. Nothing was done.
    #[error("the store cannot keep this: {0}")]
    Unfit(String),
    /// It took too long; the operation may still have been done.
    #[error("the store did not answer in time")]
    Timeout,
    /// Its data began anew, and all have to put back what they know before anything starts. Nothing was done.
    #[error("the store's data began anew: others have to put back what they know first")]
    Settling,
    /// It lost what it knew, or was away for so long that it may have: nothing starts before
    /// [`Ledger::announce`].
    #[error("the store was emptied or replaced")]
    Wiped,
}

/// Starts of one key that are wanted ahead of their time.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The key, with the limits under which they are granted; its windows are sliding ones.
    pub limited: &'a Limited,
    /// At most so many.
    pub want: usize,
    /// None later than so many microseconds from now.
    pub ahead: u64,
    /// The times of starts that were granted under these limits and not used.
    pub unused: &'a [Timestamp],
}

/// A store, and what is known of it without a call. What a [`Ledger`] answers it answers itself.
///
/// A shared one has a guard and start times that were granted ahead before it. The one in memory stands by itself:
/// there is nothing to lose, and nobody to share with.
#[derive(Clone, Debug)]
pub struct Store {
    ledger: Arc<dyn Ledger>,
    /// The ledger once more as what it is, where other sidecars share it; `None`: it is this process's alone.
    shared: Option<Arc<ReservedStore>>,
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

    /// What single policies declare for the time when the store is lost, in place of earlier ones.
    pub fn declare(&self, by_policy: guard::Declared) {
        if let Some(guard) = self.guard() {
            guard.declare(by_policy);
        }
    }

    /// What is known of a job's row without a call. A worker may settle a job through another sidecar than the one it
    /// has it from, so one that is unknown here may have a row as long as there are others.
    pub fn known(&self, job: &str) -> Known {
        let shared = self.shared.as_ref();
        shared.map_or(Known::Unsure, |reserved| reserved.known(job))
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
