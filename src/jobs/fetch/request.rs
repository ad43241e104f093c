//! One FETCH under way, and what it comes to.

use std::sync::Arc;

use tokio::time::Instant;

use super::asked::Wanted;
use super::handout::{HandOut, Hint};
use super::section::Section;
use crate::desk::Proxy;
use crate::desk::claims::Missing;
use crate::desk::live::Live;
use crate::hold::Visit;
use crate::wire::upstream::{Reply, UpstreamError};

/// What a FETCH came to.
pub(super) enum Outcome {
    /// The backend's own answer, passed on as it is.
    Theirs(Reply),
    /// Jobs from the hold, or none.
    Ours(HandOut, Hint),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// One FETCH of queues that limits can touch.
pub(super) struct Fetch {
    /// That its worker is here, and its places in the lines of its queues once it waits.
    pub(super) visit: Visit,
    pub(super) proxy: Proxy,
    pub(super) wanted: Arc<Wanted>,
    pub(super) live: Arc<Live>,
    pub(super) sections: Vec<Section>,
    /// When it came.
    pub(super) came: Instant,
    /// Until when it may wait.
    pub(super) deadline: Instant,
    /// What it waits for while it gathers, so that the next claim brings it.
    pub(super) missing: Vec<Missing>,
    /// How many jobs are picked at once at least: twice as many where none of them could start.
    pub(super) picks: usize,
}
