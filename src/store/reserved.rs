//! Hot keys: start times reserved ahead of need, so that one call to the shared store serves many starts.
//!
//! A job of a policy with `sync = "reserved"` that has no other limit starts in a turn that the store has
//! granted to this sidecar ([`Ledger::reserve`](crate::Ledger::reserve)): first come first served over the fleet, each within 5 ms of
//! its time or not at all. The limit is never passed, for a turn counts in the store from the moment it is
//! granted, used or not.
//!
//! Such a job takes no slot, and nothing of it would have to be freed by others, so its row is kept here. Of all
//! other jobs, and when no turn can be had, the store is asked for each start.

mod layer;
mod ledger;
mod rules;
mod start;
mod state;
mod turns;

pub use layer::ReservedStore;
pub use rules::{Policies, objection};
pub use turns::is_hot;

#[cfg(test)]
mod tests;
