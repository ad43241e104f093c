//! The depth of bounded queues: looks at the backend (`look`), the number that a fleet shares (`fleet`), and what readers
//! are shown of it (`shown`).

mod fleet;
mod look;
mod shown;

pub(crate) use fleet::{share_depths, tell_holds};
pub(super) use look::{await_all, look_soon, make_looks};
pub(crate) use look::{list_queues, measure_queues, unread_subqueues, watch_bounds};
pub(crate) use shown::with_depth;
