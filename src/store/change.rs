//! What can be changed of what a store keeps.

use std::sync::Arc;

use super::due::Due;
use super::overrides::Override;
use super::row::{Claimed, Gen};
use ojs_limit::{Key, Space, Timestamp};

/// A change to what the store keeps.
#[derive(Clone, Debug)]
pub enum Change {
    /// Move the time of a row that is out (and the visibility), if its claim is still this one.
    Until {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// When the backend must be asked about it.
        until: Due,
        /// In microseconds.
        visibility: u64,
    },
    /// A call that may end this job is on its way, or is over, and no row says who has the job: siblings are told.
    Doubt {
        /// The job.
        job: Arc<str>,
    },
    /// Jobs came to some of a queue's subqueues: siblings are told, and nothing is kept.
    Came {
        /// The queue.
        queue: Arc<str>,
        /// A bit for each subqueue.
        subqueues: Arc<[u64]>,
    },
    /// How many jobs came to subqueues of a queue and left them: siblings are told, and nothing is kept. Of the empty queue:
    /// what limits our file sets.
    Moved {
        /// The queue.
        queue: Arc<str>,
        /// What siblings read, without a line break; a colon stands in it.
        moved: Arc<str>,
    },
    /// We hold so many jobs of a queue; siblings that count its depth add them. Told again within [`HOLDS_LAST`](crate::HOLDS_LAST).
    Holds {
        /// The queue.
        queue: Arc<str>,
        /// How many.
        jobs: u64,
    },
    /// No starts of this job key before `until` (section 9.1); an earlier time than now opens it.
    Shut {
        /// The job key.
        key: Key,
        /// When it opens again.
        until: Timestamp,
        /// Whether a key that is shut for as long or longer stays as it is.
        at_least: bool,
    },
    /// Forget what a job key has used (its starts, its spacing, that it is shut) but not its slots.
    Unused {
        /// The job key.
        key: Key,
    },
    /// A job that is out with a worker already (found after a restart, or put back): it takes its slots whatever
    /// the limits say, and its start is not counted again. Replaces the row of an older claim and a
    /// held row of the same one. [`Gen::ADOPTED`]: nobody knows its claim, and it ends as soon as somebody names the
    /// job in [`Ledger::take`](crate::Ledger::take).
    Adopt {
        /// What the row says.
        claimed: Claimed,
        /// When the backend must be asked about it.
        until: Due,
    },
    /// Limits set over HTTP for a key, in place of earlier ones; `None` takes them away.
    Override {
        /// Whose counters.
        space: Space,
        /// Which counters.
        key: Key,
        /// The limits.
        set: Option<Override>,
    },
    /// A setting that was made over HTTP, under its name, in place of an earlier one; `None` takes it away.
    /// The store does not know what it says: see [`Overrides::setting`](crate::Overrides::setting).
    Setting {
        /// Whose it is, such as `bounds:QUEUE`.
        name: Arc<str>,
        /// What it says.
        text: Option<Arc<str>>,
    },
    /// Siblings may have a held job of ours: it has a row from now on, [offered](super::Place::Offered), in place of those of older claims.
    Offer {
        /// What the row says.
        claimed: Claimed,
    },
    /// An offered row becomes ours, under a claim number of our own; it ends when we name the job in
    /// [`Ledger::take`](crate::Ledger::take). Only if its claim is still the one that was offered, or ours: then it was done before.
    Own {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// The row's claim from now on: higher, so that the former owner's operations do nothing.
        next: Gen,
        /// When that claim is over.
        until: Timestamp,
    },
    /// A queue is paused or resumed, and siblings are told.
    Paused {
        /// The queue.
        queue: Arc<str>,
        /// Whether it is paused.
        paused: bool,
    },
    /// Forget everything (the embedded backend's reset; tests).
    Clear,
}

impl Change {
    /// The row of a job that is out is looked at again then.
    pub fn until(claimed: &Claimed, until: Due) -> Change {
        Change::Until {
            job: claimed.job.clone(),
            generation: claimed.generation,
            until,
            visibility: claimed.visibility,
        }
    }

    /// Whether it is kept for all sidecars, so that it cannot be made while the store is lost. What nacks say of a key
    /// holds here meanwhile.
    pub(super) fn is_kept_for_all(&self) -> bool {
        matches!(
            self,
            Change::Override { .. }
                | Change::Setting { .. }
                | Change::Paused { .. }
                | Change::Unused { .. }
                | Change::Shut {
                    at_least: false,
                    ..
                }
        )
    }

    /// Whether siblings that put back what they know of data that began anew may undo it: something is taken away.
    pub(super) fn may_undo_what_is_put_back(&self) -> bool {
        matches!(
            self,
            Change::Override { set: None, .. } | Change::Setting { text: None, .. }
        )
    }
}
