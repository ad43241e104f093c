//! An OJS backend in memory, for `dev`, `demo` and tests.
//!
//! It follows the OJS core text at levels 0 and 1, with priorities, delays, pausing, batches, the dead-letter list and
//! the parts of the admin view that the sidecar uses. [`Lax`] makes it behave like one of the real backends, which are
//! laxer than the text. Its [`Backend::ledger`] records what really happened, and tests judge the sidecar by it.
//!
//! It knows nothing of rate limits, and shares no code with the sidecar but the sockets.
//!
//! All deadlines are on tokio's clock; the wall clock is read once, so that times can be printed. Expiry and promotion
//! happen when a request comes, and every 500 ms while serving.

mod api;
mod backend;
mod event;
mod job;
mod lax;
mod retry;
mod serve;
mod state;
#[cfg(test)]
mod tests;
mod wire;

pub use backend::Backend;
pub use event::{Event, EventKind};
pub use lax::{Duplicate, Extended, Lax, Liveness, Requeue};
