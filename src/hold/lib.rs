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
//!
//! A FETCH is a [`visit`](Hold::visit): while it lasts, its worker is here, and may stand in line. It [looks](Hold::look)
//! at its lanes. Before it claims, it asks what their room is [promised](Hold::promise) to, how many
//! [places](Hold::places) there are, and what is held [of subqueues](Hold::of_subqueues); the hold
//! [expects](Hold::expect) what is claimed, and it is [added](Hold::add). Of what is held it [picks](Hold::pick) some,
//! and proves together with these what is [unproven](Hold::unproven). The store hears of claims that are
//! [unnamed](Hold::unnamed), and says how much groups were [served](Hold::served). What it grants [starts](Hold::start),
//! and is [taken back](Hold::take_back) where it did not go out. Whether a queue [is full](Hold::is_full) of jobs that
//! wait is said to people.

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
mod state;
mod view;
mod visit;

pub use ahead::{AHEAD, starts_ahead};
pub use due::{TRUSTED_FOR, is_late, kept_for};
pub use held::{Episode, Held, Proof, SHORT};
pub use lane::Lane;
pub use line::{Line, Waiter};
pub use locked::{Behind, Coming, Hold, Relimited};
pub use order::{KnownGroups, QueuedGroup};
pub use pick::{Pick, PickAsk};
pub use places::{Amount, Lookahead};
pub use prospect::Prospect;
pub use refusal::{Refusal, Refused};
pub use snapshot::{Front, HeldGroup, HeldLane, HeldNow};
pub use view::Tally;
pub use visit::{HeldOfSubqueue, LaneView, Promise, Unnamed, Visit};

#[cfg(test)]
mod tests;
