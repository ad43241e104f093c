//! What a look at a store has found that changes none of its data.

use std::time::Duration;

use super::StoreError;

/// A store as it was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// Name and version; `None`: the user may not ask.
    pub server: Option<String>,
    /// Whether that version is too old.
    pub is_too_old: bool,
    /// What it does when its memory is full; `None`: it has no such limit, or the user may not ask.
    pub eviction: Option<String>,
    /// Sidecars that said in the last 5 s that they live; `None`: there is nothing of ours yet.
    pub live: Option<usize>,
    /// Why nothing can be written there. It is tried where something of ours is there.
    pub unwritable: Option<StoreError>,
    /// Microseconds from this host's clock to the store's, give or take half the quickest trip.
    pub ahead: i64,
    /// How long calls took there and back, the quickest first. None if there was nothing to ask.
    pub trips: Vec<Duration>,
}
