//! Held jobs that nobody asks for: they are given back one by one, and those that are not wait on.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::state::End;
use super::{Held, Hold, Lane};

impl Hold {
    /// Takes a waiting job into hand, to be given back, from a lane for which `idle` says so of when a worker
    /// last asked for its jobs: the last of the lane, but none of `stay`. It ends in [`Hold::wait_on`] or
    /// [`Hold::forget_claim`].
    pub fn take_last(
        &self,
        idle: impl Fn(Instant) -> bool,
        stay: &HashSet<Arc<str>>,
    ) -> Option<Held> {
        let mut state = self.state();
        let mut queues = state.queues.values_mut();
        let last = queues.find_map(|queue| {
            let groups = queue.groups.values_mut().rev();
            let mut groups = groups
                .filter(|_| idle(queue.fetched_at))
                .flat_map(|groups| groups.iter_mut().rev());
            groups.find_map(|group| {
                let may_go = |held: &Held| !stay.contains(&held.claimed.job);
                group.jobs.remove(group.jobs.iter().rposition(may_go)?)
            })
        })?;
        state.take_in_hand(std::slice::from_ref(&last));
        Some(last)
    }

    /// A job that was taken by [`Hold::take_last`] is not given back: it is the last of its group again, unless
    /// it was replaced or forgotten meanwhile.
    pub fn wait_on(&self, held: Held) {
        self.state().wait_again(held, End::Back);
    }

    /// Whether no worker has asked for the lane's jobs for so long.
    pub fn is_idle(&self, lane: &Lane, idle: Duration, now: Instant) -> bool {
        let state = self.state();
        let queue = state.queues.get(lane);
        queue.is_none_or(|queue| now.duration_since(queue.fetched_at) >= idle)
    }
}
