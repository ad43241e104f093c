//! Subqueues: a limited backlog of any depth. Where a `[[queue]]` says `subqueues = true`, jobs with a key of their own
//! wait in queues of the backend beside it ([`crate::policy::subqueue`]), unclaimed, however many there are. Of one
//! whose key has no room a single job is held, its head: so a tenant's backlog stands in nobody's way, and all that
//! waits, wakes and is shown of held jobs works as it does without.
//!
//! [`Subqueues`] knows which queues have them, and [`SubqueueTurns`] which of them are to be asked next.

mod bases;
mod book;
mod shown;
mod tell;
mod turns;

pub(in crate::proxy) use bases::{ReadQueue, Subqueues, Writes};
pub(in crate::proxy) use book::{BesideWaiting, ToldNumbers};
pub(in crate::proxy) use shown::{ShownSubqueue, SpreadOfQueue};
pub(in crate::proxy) use tell::tell_siblings;
pub(in crate::proxy) use turns::{Asks, LOOKED_PAST, SubqueueAsk};
