//! What bytes on a connection do: framing, headers, slow and broken sides, protocols that pass.
//! Over real sockets, against a scripted backend.

mod bare;
mod early;
mod replies;
mod requests;
mod rig;
mod slow;
mod stalled;
mod streams;

/// What most of these tests use.
mod prelude {
    pub use std::sync::Arc;
    pub use std::time::Duration;

    pub use tokio::io::AsyncReadExt;

    pub use super::rig::{Backend, Front, LONG, Port};
}
