//! The depth of bounded queues: looks at the backend, what passes through here and changes the depth, and the number
//! that a fleet shares.

mod backend_stats;
mod fleet;
mod look;
mod passing;
mod shown;
mod stats;
mod tell;
mod unbounded;

pub(super) use backend_stats::{BackendStats, rest_after};
pub(super) use fleet::{Holds, share_depths, tell_holds};
pub(super) use look::{
    await_all, list_queues, look_soon, make_looks, measure_queues, unread_subqueues, watch_bounds,
};
pub(super) use passing::{
    cancelled, claimed, fetched, may_wait, nacked, passed, revived, stored_jobs,
};
pub(super) use shown::with_depth;
pub(super) use stats::{ask_stats, ask_what_waits, count_subqueues, refresh_subqueues};
pub(super) use tell::{now, tell_edges, tell_level, tell_pressure};
pub(super) use unbounded::Unbounded;
