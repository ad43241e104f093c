//! How far FETCH may claim past limited jobs: the places of the hold, and who may take the last of them.

use super::state::State;
use super::{Hold, Lane};

/// The part that is kept beside the hold for lanes of which little is held, and the part of what is left of it
/// that one of them gets: a fourth.
const PART: usize = 4;

/// How far the hold lets FETCH claim past limited jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookahead {
    /// This many jobs.
    Free(usize),
    /// Nothing until a claim that is on its way has been answered, or a job that is being dropped is
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
    pub fn lookahead(&self, lane: &Lane, max: usize, max_bytes: usize) -> Lookahead {
        let mut state = self.state();
        let common = state.places(max, max_bytes);
        if let free @ 1.. = common.saturating_sub(state.in_flight) {
            return Lookahead::Free(free);
        }
        let kept = (max / PART).max(1);
        let all = state.places(max + kept, max_bytes + max_bytes / PART);
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
        Lookahead::Full
    }
}

impl State {
    /// How many jobs fit beside those that are held.
    fn places(&self, max: usize, max_bytes: usize) -> usize {
        let fit = match self.bytes {
            0 => max,
            bytes if bytes >= max_bytes => 0,
            bytes => ((max_bytes - bytes).saturating_mul(self.jobs.len()) / bytes).max(1),
        };
        max.saturating_sub(self.jobs.len()).min(fit)
    }
}
