//! Subqueues: a limited backlog of any depth. Where a `[[queue]]` says `subqueues = true`, jobs with a key of their own
//! wait in queues of the backend beside it ([`ojs_policy::subqueue`]), unclaimed, however many there are. Of one
//! whose key has no room a single job is held, its head: so a tenant's backlog stands in nobody's way, and all that
//! waits, wakes and is shown of held jobs works as it does without.
//!
//! [`Subqueues`] knows which queues have them, and `SubqueueTurns` which of them are to be asked next.
//! [`names`] and [`merged`] hide the names of subqueues in replies; [`mirror`] is what a job carries through a backend that
//! forgets it.

mod bases;
mod book;
pub mod merged;
pub mod mirror;
pub mod names;
mod shown;
mod turns;

pub use bases::{ReadQueue, Subqueues, Writes};
pub use book::{BesideWaiting, MayStart, ToldNumbers};
pub use shown::{ShownSubqueue, SpreadOfQueue};
pub use turns::{Asks, LOOKED_PAST, SubqueueAsk};
