//! What the doctor looks at things with.

use tokio_util::sync::CancellationToken;

use crate::net::Net;
use crate::store::Clock;

/// The doctor's surroundings.
#[derive(Debug)]
pub struct DoctorEnv {
    /// The way to the backend.
    pub net: Net,
    /// This host's wall time. It runs on from when it was read, so time spent in between does not look like a
    /// difference to the store's clock.
    pub clock: Clock,
    /// Names the queue of the probe, and this process to the store.
    pub seed: u64,
    /// Whether to run jobs of the doctor's own through the backend, and to write one number to the store.
    pub probe: bool,
    /// Somebody wants it to end: the probe stops, and what it left is cleaned up.
    pub stop: CancellationToken,
    /// The host of which alone it is told what becomes of calls to it; `None`: everything is looked at.
    pub host: Option<String>,
}
