//! How far FETCH may claim past limited jobs: the places of the hold, and who may take the last of them.

use super::idle::Amount;
use super::state::State;
use super::{Hold, Lane};

/// The part that is kept beside the hold for lanes of which little is held, and the part of what is left of it
/// that one of them gets: a fourth.
pub(super) const PART: usize = 4;

/// How far the hold lets FETCH claim past limited jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookahead {
    /// This many jobs.
    Free(usize),
    /// Nothing until a claim that is on its way has been answered, or a job that is being dropped or let go is
    /// gone.
    Soon,
    /// Nothing until a held job leaves.
    Full,
}

impl Hold {
    /// How many jobs more of the lane may be claimed before the hold is full, those already asked for included.
    /// Jobs that come are taken to be as large as those that are there. A quarter of the `max` jobs and bytes
    /// is kept beside them for lanes of which little is held, so that no backlog shuts the others out. Each of
    /// them gets a quarter of what is left of it, at least one job.
    ///
    /// What idle lanes hold takes none of these places, up to `max` jobs and `max_bytes`: nobody may ask for them
    /// ever again. Where what they hold beyond that leaves no place, some of it is let go ([`Hold::take_crowding`]).
    pub fn lookahead(&self, lane: &Lane, max: usize, max_bytes: usize) -> Lookahead {
        let mut state = self.state();
        let most = Amount {
            jobs: max,
            bytes: max_bytes,
        };
        let common = state.places(most, most);
        if let free @ 1.. = common.saturating_sub(state.in_flight) {
            return Lookahead::Free(free);
        }
        let with_kept = Amount {
            jobs: max + (max / PART).max(1),
            bytes: max_bytes + max_bytes / PART,
        };
        let all = state.places(with_kept, most);
        let queue = state.queues.get(lane);
        let (held, asked) = queue.map_or((0, 0), |queue| (queue.known, queue.in_flight));
        let share = |left: usize, own: usize| (left + own).div_ceil(PART).saturating_sub(own);
        let free = share(all.saturating_sub(state.in_flight), held + asked);
        if free > 0 {
            return Lookahead::Free(free);
        }
        if common > 0 || share(all, held) > 0 || state.is_dropping() {
            state.starved = true;
            return Lookahead::Soon;
        }
        let idle = state.idle;
        if state.places(most, idle) > 0 || share(state.places(with_kept, idle), held) > 0 {
            state.crowded = true;
            state.starved = true;
            return Lookahead::Soon;
        }
        Lookahead::Full
    }
}

impl State {
    /// How many jobs fit beside those that are held, of which so much of idle lanes does not count.
    fn places(&self, most: Amount, uncounted: Amount) -> usize {
        let idle = self.idle.bytes.min(uncounted.bytes);
        let free = most.bytes.saturating_sub(self.bytes.saturating_sub(idle));
        let fit = match (self.bytes, free) {
            (0, _) => most.jobs,
            (_, 0) => 0,
            (bytes, free) => (free.saturating_mul(self.jobs.len()) / bytes).max(1),
        };
        let idle = self.idle.jobs.min(uncounted.jobs);
        let held = self.jobs.len().saturating_sub(idle);
        most.jobs.saturating_sub(held).min(fit)
    }
}
