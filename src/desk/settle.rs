//! What settling remembers.

use parking_lot::Mutex;

use super::hiding::Hidden;
use super::refusals::{KeyLines, Refusals};
use super::runs::RunTimes;
use super::unheard::Unheard;
use crate::answers::load::Seldom;

/// What settling remembers: requests that were not answered, what the services behind keys refused, and held jobs
/// that may be about to end.
#[derive(Default, Debug)]
pub(crate) struct Settle {
    pub(crate) unheard: Unheard,
    pub(crate) refusals: Refusals,
    /// Which keys the log tells of that were shut, and that could not be.
    pub(crate) shut: KeyLines,
    pub(crate) not_shut: KeyLines,
    /// Tells of nacks whose time cannot be read.
    pub(crate) unread: Seldom,
    /// Tells of ACKs that do not say what their jobs used.
    pub(crate) untold: Seldom,
    /// How long the last jobs ran.
    pub(crate) runs: RunTimes,
    /// Held jobs that go out nowhere, because a call that may end them is under way.
    pub(crate) hidden: Mutex<Hidden>,
}

impl Settle {
    /// Forgets all requests.
    pub(crate) fn clear(&self) {
        self.unheard.clear();
        self.runs.clear();
    }
}
