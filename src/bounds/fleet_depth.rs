//! What a sidecar knows of the number that a fleet keeps for the depth of one queue.

/// The last places below a bound are asked for one by one, however small the bound is.
const LAST: u64 = 32;
/// One in so many jobs of a bound is what all siblings together may admit before the store hears of it.
const UNHEARD: u64 = 10;

use ojs_limit::Timestamp;

use super::seen::Mark;

/// The number of one queue, as the store answered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SharedNumber {
    /// How many jobs wait.
    pub jobs: u64,
    /// When a look has set it, by the store's clock.
    pub put_at: Timestamp,
}

/// What the store is to be told of one queue. What FETCHes took may be seen by a sibling's look before that: it is taken
/// off no number that a look has set since.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UntoldChange {
    /// Jobs that were admitted, less those that were not stored or have started, and places that nobody used.
    pub by: i64,
    /// Jobs that FETCHes took.
    pub gone: u64,
    /// [`SharedNumber::put_at`] of the number that they are taken off.
    pub since: Timestamp,
}

/// What a sidecar knows of the number of one queue.
#[derive(Clone, Default, Debug)]
pub(super) struct FleetDepth {
    /// The number as of its last answer; `None`: only what passes through this sidecar is known.
    number: Option<u64>,
    /// What has changed here since. What is gone is no place to be used again before the store is told.
    untold: UntoldChange,
    /// What was sent before this mark may be gone from the number already.
    known: Mark,
    /// Admissions for which the store was not asked, since it was told; and those that it was told and did not answer.
    unasked: u64,
    unanswered: u64,
    /// Places that are in the number already, and that no enqueue uses yet.
    pub(super) granted: u64,
    /// Jobs for which the store was not asked yet; `None`: nobody waits for its answer.
    pub(super) wanted: Option<u64>,
}

/// Places that are wanted of the number of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedPlaces {
    /// How many.
    pub jobs: u64,
    /// What the number may become at most.
    pub bound: u64,
    /// What has changed here since the store was last told.
    pub untold: UntoldChange,
}

/// Places of which the number of a queue was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedPlaces {
    /// How many it has in it now; there may be fewer than were wanted, or none.
    pub jobs: u64,
    /// The number.
    pub number: SharedNumber,
}

impl UntoldChange {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.by == 0 && self.gone == 0
    }

    fn of(&self, number: u64) -> u64 {
        number
            .saturating_add_signed(self.by)
            .saturating_sub(self.gone)
    }
}

impl FleetDepth {
    /// The depth over the fleet, as far as is known here, without places that are granted to this sidecar.
    pub(super) fn depth(&self) -> Option<u64> {
        Some(self.untold.of(self.number?).saturating_sub(self.granted))
    }

    /// Whether a number is shared.
    pub(super) fn is_on(&self) -> bool {
        self.number.is_some()
    }

    /// Whether somebody waits for places.
    pub(super) fn is_asking(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether the store has granted places for so many jobs.
    pub(super) fn has_places(&self, jobs: u64) -> bool {
        self.granted >= jobs
    }

    /// Whether an enqueue of so many jobs to a queue of this depth needs places of the store. However late the sidecars
    /// hear of each other, what they admit without its word is a tenth of the bound at most.
    pub(super) fn needs(&self, jobs: u64, depth: u64, bound: u64, siblings: u64) -> bool {
        let is_near = depth + jobs + LAST.max(bound / 10) > bound;
        let unheard = siblings * (self.unasked + self.unanswered + jobs);
        let asks = is_near || unheard > bound / UNHEARD;
        self.is_on() && asks && !self.has_places(jobs)
    }

    /// An enqueue is admitted.
    pub(super) fn reserve(&mut self, jobs: u64) {
        let granted = jobs.min(self.granted);
        self.granted -= granted;
        if self.is_on() {
            self.unasked += jobs - granted;
            self.untold.by = self.untold.by.saturating_add_unsigned(jobs - granted);
        }
    }

    /// Jobs were not stored after all, or wait no longer.
    pub(super) fn take(&mut self, jobs: u64) {
        if self.is_on() {
            self.untold.by = self.untold.by.saturating_sub_unsigned(jobs);
        }
    }

    /// Jobs wait no longer, by the answer to what was sent at `sent`.
    pub(super) fn take_sent(&mut self, jobs: u64, sent: Mark) {
        if self.is_on() && sent >= self.known {
            self.untold.gone += jobs;
        }
    }

    /// What the store is to be told; places that no enqueue uses are given back.
    pub(super) fn take_untold(&mut self) -> UntoldChange {
        let granted = std::mem::take(&mut self.granted);
        let mut told = self.untold;
        told.by = told.by.saturating_sub_unsigned(granted);
        self.untold = UntoldChange {
            since: told.since,
            ..UntoldChange::default()
        };
        self.unanswered += std::mem::take(&mut self.unasked);
        self.number = self.number.map(|number| told.of(number));
        told
    }

    /// The store is asked for places of a bound, and told what it was not told.
    pub(super) fn ask(&mut self, bound: u64) -> Option<WantedPlaces> {
        let jobs = self.wanted.replace(0)?;
        let untold = self.take_untold();
        Some(WantedPlaces {
            jobs,
            bound,
            untold,
        })
    }

    /// The number, as the store answered at `mark`. What was admitted here since is beside it. What has left may be gone
    /// from it already if a look has set it since the last answer.
    pub(super) fn hear(&mut self, number: SharedNumber, mark: Mark) {
        if self.is_on() {
            if number.put_at != self.untold.since {
                (self.untold.gone, self.untold.since) = (0, number.put_at);
                self.known = mark;
            }
            (self.number, self.unanswered) = (Some(number.jobs), 0);
        }
    }

    /// The number as a look of this sidecar has set or found it. Places that were granted stay: with a slow store the next
    /// look would be due before an enqueue has used them.
    pub(super) fn set_number(&mut self, number: SharedNumber, mark: Mark) {
        self.number = Some(number.jobs);
        (self.untold.by, self.untold.gone) = (self.untold.by.max(0), 0);
        self.hear(number, mark);
    }

    /// Only what passes through this sidecar is known.
    pub(super) fn forget_number(&mut self) {
        *self = FleetDepth {
            wanted: self.wanted,
            ..FleetDepth::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sibling's look may have found the queue without what left here: admitting others in those places without a
    /// word to the store would fill them twice.
    #[test]
    fn places_of_jobs_that_left_here_are_asked_of_the_store() {
        let mut depth = FleetDepth::default();
        let found = SharedNumber {
            jobs: 1_000,
            ..SharedNumber::default()
        };
        depth.set_number(found, Mark(1));
        depth.take_sent(100, Mark(2));
        assert_eq!(depth.depth(), Some(900));
        assert!(depth.needs(1, 900, 1_000, 1));
        depth.granted = 1;
        assert!(!depth.needs(1, 900, 1_000, 1));
        depth.reserve(1);
        assert!(depth.needs(1, 900, 1_000, 1));
        let told = depth.take_untold();
        assert_eq!(
            (told.by, told.gone),
            (0, 100),
            "what was granted is in the number"
        );
    }
}
