//! What a sidecar knows of the number that a fleet keeps for the depth of one queue.

/// The last places below a bound are asked for one by one, however small the bound is.
const LAST: u64 = 32;
/// One in so many jobs of a bound is what all siblings together may admit before the store hears of it.
const UNHEARD: u64 = 10;

/// What a sidecar knows of the number of one queue.
#[derive(Clone, Default, Debug)]
pub(super) struct FleetDepth {
    /// The number as of its last answer; `None`: only what passes through this sidecar is known.
    number: Option<u64>,
    /// What has changed here since, and the store was not told: admissions less what is gone. What is gone is no
    /// place to be used again before the store is told: a sibling's look may have seen that already.
    untold: i64,
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
    pub untold: i64,
}

/// Places of which the number of a queue was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedPlaces {
    /// How many it has in it now; there may be fewer than were wanted, or none.
    pub jobs: u64,
    /// The number.
    pub number: u64,
}

impl FleetDepth {
    /// The depth over the fleet, as far as is known here, without places that are granted to this sidecar.
    pub(super) fn depth(&self) -> Option<u64> {
        let depth = self.number?.saturating_add_signed(self.untold);
        Some(depth.saturating_sub(self.granted))
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
            self.untold = self.untold.saturating_add_unsigned(jobs - granted);
        }
    }

    /// Jobs were not stored after all, or wait no longer.
    pub(super) fn take(&mut self, jobs: u64) {
        if self.is_on() {
            self.untold = self.untold.saturating_sub_unsigned(jobs);
        }
    }

    /// What the store is to be told; places that no enqueue uses are given back.
    pub(super) fn take_untold(&mut self) -> i64 {
        let granted = std::mem::take(&mut self.granted);
        let by = std::mem::take(&mut self.untold).saturating_sub_unsigned(granted);
        self.unanswered += std::mem::take(&mut self.unasked);
        self.number = self.number.map(|number| number.saturating_add_signed(by));
        by
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

    /// The number, as the store answered. What came here since is beside it.
    pub(super) fn hear(&mut self, number: u64) {
        if self.is_on() {
            (self.number, self.unanswered) = (Some(number), 0);
        }
    }

    /// The number as a look has set or found it. What was admitted meanwhile and not told is not in it; what has left
    /// meanwhile may be gone from it already. Places that were granted stay: with a slow store the next look would be due
    /// before an enqueue has used them.
    pub(super) fn set_number(&mut self, number: u64) {
        self.number = Some(number);
        self.untold = self.untold.max(0);
        self.unanswered = 0;
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
        depth.set_number(1_000);
        depth.take(100);
        assert_eq!(depth.depth(), Some(900));
        assert!(depth.needs(1, 900, 1_000, 1));
        depth.granted = 1;
        assert!(!depth.needs(1, 900, 1_000, 1));
        depth.reserve(1);
        assert!(depth.needs(1, 900, 1_000, 1));
        assert_eq!(
            depth.take_untold(),
            -100,
            "what was granted is in the number"
        );
    }
}
