//! The only door to the network: tokio's sockets, or an in-memory network under a paused clock.

mod dial;
mod door;
mod names;
pub mod sim;
mod socket;
mod stream;

pub use dial::Probes;
pub use door::{Listener, Net};
pub use socket::{SMALL_BODY, Socket};
pub use stream::Stream;
