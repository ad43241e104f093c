//! The hold: claimed jobs that wait in this sidecar for a start, and the FETCHes that wait for them.
//!
//! A held job lives under the scope it was claimed with and its queue. It leaves highest priority
//! first, then round robin over what it is limited by, then first in first out. Jobs with the same
//! limits stand in one group: when one of them is refused the rest are too, so a shut key with a
//! thousand jobs costs one question. Where a key is shared by weight each tenant has a group of its own, and of
//! those the one that was served least goes first.
//!
//! A job that is being asked for is **picked**: out of its group, still known by its id, so that a
//! cancel finds it. A [`Pick`] ends as started, refused or gone; dropped, the job waits again. One lock, held for
//! arithmetic only.

// Unit tests use parts of the integration tests, which name this crate so.
#[cfg(test)]
extern crate self as ojs_hold;
mod ahead;
#[cfg(test)]
#[path = "../../tests/harness/claims.rs"]
pub mod claims;
mod due;
mod held;
#[cfg(test)]
#[path = "../../tests/harness/held.rs"]
pub mod held_jobs;
mod lane;
mod lanes;
mod line;
mod locked;
mod offer;
mod order;
mod pick;
mod places;
mod prospect;
mod queue;
mod refusal;
mod snapshot;
mod standing;
mod state;
mod view;

pub use ahead::{AHEAD, starts_ahead};
pub use due::{TRUSTED_FOR, is_late, kept_for};
pub use held::{Episode, Held, Proof, SHORT};
pub use lane::Lane;
pub use line::{Line, Waiter};
pub use locked::{Behind, Coming, Hold, Relimited};
pub use order::QueuedGroup;
pub use pick::Pick;
pub use places::{Amount, Lookahead};
pub use prospect::Prospect;
pub use refusal::{Refusal, Refused, Wakes};
pub use snapshot::{Front, HeldGroup, HeldLane, HeldNow};
pub use standing::Standing;
pub use view::{HeldOfSubqueue, LaneView, Tally};

#[cfg(test)]
mod tests;
