//! Makes the parts from the settings, serves, and drains at the end. `main` makes the runtime, the threads and the
//! signal handlers, so that tests can run the same code without them.

mod diff;
mod reload;
mod running;
mod storage;
mod surroundings;
mod watch;

pub use diff::{Changes, Diff};
pub use reload::{LogLevel, Reload, ReloadOutcome};
pub use running::{Running, Thread, bind};
pub(crate) use running::{call_bounds, egress_target, target};
pub use storage::{inspect_store, open_store};
pub use surroundings::{Env, Stop};
