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
//!   any sidecar may look after it ([`Ledger::due_of`]).
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
mod change;
#[cfg(test)]
#[path = "../../tests/harness/claims.rs"]
pub mod claims;
mod clock;
mod config;
mod due;
mod engine;
mod error;
#[cfg(test)]
#[path = "../../tests/faulty.rs"]
pub mod faulty;
mod fleet;
pub mod guard;
mod handle;
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
mod taken;
mod usage;

pub use answer::Answer;
pub use change::Change;
pub use clock::Clock;
pub use config::{BadUrl, StoreConfig};
pub use due::Due;
pub use error::StoreError;
pub use fleet::{HOLDS_LAST, NAMES, NUMBER_LASTS, Number, Step, Wake, sidecar_of};
pub use handle::Store;
pub use inspection::Inspection;
pub use ledger::{CountOf, KeyStates, Ledger, LedgerExt, LooksAfter, RowsOf, StoreFacts, Wish};
pub use ojs_limit::Room;
pub use overrides::{MAX as MAX_OVERRIDES, MAX_SETTINGS, Override, Overrides};
pub use row::{Claim, Claimed, End, Gen, KnownRow, Place, Row, Used};
pub use sql::SqlStore;
pub use taken::{Taken, Verdict};
pub use usage::Usage;
