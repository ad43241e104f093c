//! What a look at a database that changes nothing has found.

use std::time::Duration;

/// A database as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Name and version.
    pub server: String,
    /// Sidecars that said in the last 5 s that they live; `None`: there are no tables of ours yet.
    pub live: Option<usize>,
    /// Microseconds from this host's clock to the store's, give or take half the quickest trip.
    pub ahead: i64,
    /// How long calls took there and back, the quickest first. None if there was nothing to ask.
    pub trips: Vec<Duration>,
}
