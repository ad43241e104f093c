//! What a run gets from outside, and what ends it.

use tokio_util::sync::CancellationToken;

use crate::net::Net;
use crate::store::Store;

/// What a run gets from outside, so that a test can give it a simulated network, a store and a seed.
#[derive(Clone, Debug)]
pub struct Env {
    /// The network.
    pub net: Net,
    /// Where usage is kept.
    pub store: Store,
    /// Makes this sidecar's own worker id.
    pub seed: u64,
    /// Whether `POST /ojs/v1/admin/reset` clears the sidecar too (`dev`).
    pub reset: bool,
}

/// Ends a run: first in order, then at once.
#[derive(Clone, Default, Debug)]
pub struct Stop {
    /// Begin to drain.
    pub drain: CancellationToken,
    /// Do not wait any longer.
    pub now: CancellationToken,
}

impl Stop {
    /// Waits until the run has to end, in order or at once.
    pub async fn heard(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = self.now.cancelled() => {}
        }
    }
}
