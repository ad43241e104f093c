//! What the stores on SQL databases have in common: all but how a transaction begins and ends.
//!
//! An operation names the rows and keys that it is about. The database brings them, locked; the step is
//! taken on them here, by the very core that the memory store runs; what changed is written, and all of
//! it is one transaction. Operations that wait at the same time share one, so that under load the price of
//! a commit is paid once for many.
//!
//! The step is taken here, on loaded pages, and not in the database by procedures of its own. Procedures would save a
//! round trip for each operation; but the limiter would then be written once more for each database, and each copy would
//! have to be right about windows, spacing and costs to the microsecond. Redis is paid for in that way, as its scripts are
//! its only transactions; here one engine serves all, and sharing transactions wins most of the round trips back.
//!
//! [`SqlStore`] is the store as the sidecar sees it, [`serve`] the work, [`Database`] what a database has to do. Its
//! tables and what is asked of them are in `sql/statements.rs`.

mod front;
mod job;
mod page;
mod row;
mod search;
mod statements;
mod steps;
mod times;
mod value;

pub(super) use front::Post;
pub use front::SqlStore;
pub(super) use job::{Job, MOST, serve};
pub(super) use page::{Head, Page};
pub(super) use search::{Database, Findings, First, Need};
pub(super) use statements::{Dialect, Statement, clear};
pub(super) use times::SILENCE;
pub(super) use value::{Rows, SqlValue, number, unsigned};
