//! Backpressure: how much waits in each bounded queue, and whether an enqueue fits.
//!
//! An enqueue of one or more jobs **wants** places in its queues, and gets **places** in all of them
//! or in none. Places are taken before anything is sent on and settled by the backend's answer, so
//! that no number of producers at once gets a queue over its bound. A queue near its bound is
//! **looked** at first: one question to the backend for all who wait.
//!
//! Nothing in here asks, waits or tells the time. One lock, held for arithmetic only. Where a
//! fleet shares a store, it shares one number for each queue ([`fleet`]).

mod admit;
mod blocked;
pub mod bounds;
pub mod drain;
pub mod drops;
pub mod edge;
pub mod estimate;
pub mod fleet;
mod fleet_depth;
mod forget;
pub mod given;
mod groups;
mod hidden;
mod known;
mod line;
mod look;
mod places;
mod queue;
mod seen;
mod sizes;
mod state;
mod want;

pub use admit::Admission;
pub use blocked::PlaceInLine;
pub use bounds::{
    Bounds, BoundsTable, DEFAULT_TENANT, FileBounds, Given, OverflowStrategy, PerKey,
};
pub use drops::Dropping;
pub use edge::LastRefusal;
pub use estimate::{Counts, HeldCount, LookFound};
pub use fleet_depth::{GrantedPlaces, SharedNumber, UntoldChange, WantedPlaces};
pub use look::{Awaited, Fleet, MissingStats, StatsAnswer};
pub use seen::{Away, Dropped, EnqueueOutcome, Mark, NewJob, TakenTo};
pub use state::{Come, Pressure, TakenPlaces};
pub use want::{BoundGroup, BoundMet, BoundUsage, Crossed, Edge, Full, Level, Now, Want};
