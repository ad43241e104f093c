//! Held jobs that nobody asks for: they are given back one by one, and those that are not wait on. Their lanes are
//! **idle**, and what those hold takes no places from others, as far as there is room beside the hold.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lookahead::PART;
use super::queue::Queue;
use super::state::{End, State};
use super::{Held, Hold, Lane};
use crate::store::Claimed;

/// Jobs and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Amount {
    pub(super) jobs: usize,
    pub(super) bytes: usize,
}

impl Amount {
    fn is_over(self, max: usize, max_bytes: usize) -> bool {
        self.jobs > max || self.bytes > max_bytes
    }

    pub(super) fn less(self, jobs: usize, bytes: usize) -> Amount {
        Amount {
            jobs: self.jobs.saturating_sub(jobs),
            bytes: self.bytes.saturating_sub(bytes),
        }
    }
}

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

    /// Looks which lanes are idle: no worker has asked for their jobs for so long, none stands
    /// in line, and the backend is not being asked.
    pub fn look_for_idle(&self, idle: Duration, now: Instant) {
        let mut state = self.state();
        let mut all = Amount::default();
        for queue in state.queues.values_mut() {
            let unasked = now.duration_since(queue.fetched_at) >= idle;
            queue.idle = unasked && queue.in_flight == 0 && queue.line.is_empty();
            if queue.idle {
                all.jobs += queue.known;
                all.bytes += queue.bytes;
            }
        }
        state.idle = all;
    }

    /// Where idle lanes hold more than `max` jobs or `max_bytes` and a FETCH found no place for that: their waiting
    /// jobs, to be offered to siblings, but for those of lanes that are [`Hold::offered`].
    pub fn crowding(&self, max: usize, max_bytes: usize) -> Vec<Claimed> {
        let state = self.state();
        if !state.crowded || !state.idle.is_over(max, max_bytes) {
            return Vec::new();
        }
        let queues = state.queues.values();
        let queues = queues.filter(|queue| queue.idle && queue.offered.is_none());
        let waiting = queues.flat_map(Queue::jobs);
        waiting.map(|held| held.claimed.clone()).collect()
    }

    /// Siblings may have these jobs from now on: their lanes count as offered until they are asked for again.
    pub fn offered(&self, jobs: &[Claimed]) {
        let (mut state, now) = (self.state(), Instant::now());
        for claimed in jobs {
            let lane = Lane {
                scope: claimed.scope,
                queue: claimed.queue.clone(),
            };
            if let Some(queue) = state.queues.get_mut(&lane).filter(|queue| queue.idle) {
                queue.offered = Some(now);
            }
        }
    }

    /// Takes waiting jobs of idle lanes into hand, to be let go, where those hold more than `max` jobs or
    /// `max_bytes` and a FETCH found no place for that; only of lanes that are `offered` to siblings for so long, if
    /// that is not zero. The lane that was asked for longest ago is first, and of it the last job; no more at once
    /// than are kept beside the hold for other lanes. Each ends in [`Hold::wait_on`], [`Hold::forget_claim`] or
    /// [`Hold::ended`].
    pub fn take_crowding(&self, max: usize, max_bytes: usize, offered: Duration) -> Vec<Held> {
        let mut state = self.state();
        let mut taken: Vec<Held> = Vec::new();
        if !std::mem::take(&mut state.crowded) {
            return taken;
        }
        let (mut left, most) = (state.idle, (max / PART).max(1));
        while taken.len() < most
            && left.is_over(max, max_bytes)
            && let Some(held) = state.pop_idlest(offered)
        {
            left = left.less(1, held.body.len());
            taken.push(held);
        }
        state.take_in_hand(&taken);
        taken
    }

    /// Whether no worker has asked for the lane's jobs for so long.
    pub fn is_idle(&self, lane: &Lane, idle: Duration, now: Instant) -> bool {
        let state = self.state();
        let queue = state.queues.get(lane);
        queue.is_none_or(|queue| now.duration_since(queue.fetched_at) >= idle)
    }
}

impl State {
    /// The last waiting job of the idle lane that was asked for longest ago, out of its group; only of lanes that are
    /// `offered` for so long, if that is not zero.
    fn pop_idlest(&mut self, offered: Duration) -> Option<Held> {
        let may_go = |queue: &&mut Queue| {
            let since = queue.offered;
            queue.idle && (offered.is_zero() || since.is_some_and(|at| at.elapsed() >= offered))
        };
        let idle = self.queues.values_mut().filter(may_go);
        let waiting = idle.filter_map(|queue| {
            let at = queue.fetched_at;
            let groups = queue.groups.values_mut().rev();
            let mut groups = groups.flat_map(|groups| groups.iter_mut().rev());
            let group = groups.find(|group| !group.jobs.is_empty())?;
            Some((at, group))
        });
        let (_, group) = waiting.min_by_key(|(at, _)| *at)?;
        group.jobs.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Lookahead;
    use crate::hold::tests::{ids, job, lane};
    use crate::policy::Gate;

    const IDLE: Duration = Duration::from_secs(10);
    const MANY: usize = 1 << 20;
    const NONE: Duration = Duration::ZERO;

    /// So many held jobs of a lane that a worker asked for just now: `1a`, `1b` and so on.
    fn held(hold: &Hold, scope: u64, jobs: u8) {
        hold.fetched(&lane(scope), &Gate::default(), Instant::now());
        let jobs = (b'a'..b'a' + jobs).map(|letter| {
            let mut held = job(&format!("{scope}{}", char::from(letter)), 0, &["k"]);
            held.claimed.scope = scope;
            held
        });
        hold.add(jobs.collect());
    }

    async fn pass(hold: &Hold, time: Duration) {
        tokio::time::advance(time).await;
        hold.look_for_idle(IDLE, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_takes_no_places() {
        let hold = Hold::default();
        held(&hold, 1, 8);
        let asks = |scope: u64| hold.fetched(&lane(scope), &Gate::default(), Instant::now());
        let bytes = hold.bytes();
        let free = |max_bytes| hold.lookahead(&lane(2), 8, max_bytes);
        pass(&hold, IDLE - Duration::from_millis(1)).await;
        assert_eq!(
            (free(MANY), free(bytes)),
            (Lookahead::Free(1), Lookahead::Free(1))
        );
        pass(&hold, Duration::from_millis(1)).await;
        assert_eq!(
            (free(MANY), free(bytes)),
            (Lookahead::Free(8), Lookahead::Free(8))
        );
        // What leaves an idle lane, and what comes into it.
        hold.forget("1a");
        held(&hold, 2, 1);
        assert_eq!(free(MANY), Lookahead::Free(7));
        // Somebody asks for it again, and it is worked off like any.
        asks(1);
        assert_eq!(hold.lookahead(&lane(3), 8, MANY), Lookahead::Free(1));
        // A FETCH that stands in line asks.
        let _waiter = hold.stand(&[lane(1)], Instant::now());
        pass(&hold, 2 * IDLE).await;
        assert_eq!(hold.lookahead(&lane(3), 8, MANY), Lookahead::Free(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_says_nothing_of_what_is_idle() {
        let hold = Hold::default();
        let idle = || {
            let Amount { jobs, bytes } = hold.state().idle;
            (jobs, bytes)
        };
        held(&hold, 1, 3);
        let is_idle = || hold.is_idle(&lane(1), IDLE, Instant::now());
        assert!(!is_idle());
        pass(&hold, IDLE).await;
        assert!(is_idle());
        let three = (3, hold.bytes());
        assert_eq!(idle(), three);
        // Another lane is busy meanwhile.
        held(&hold, 2, 2);
        held(&hold, 2, 0);
        hold.forget("2a");
        assert_eq!(idle(), three);
        hold.forget("1a");
        hold.forget("1b");
        assert_eq!(idle(), (1, three.1 / 3));
        // What left is not counted again at the next look.
        pass(&hold, Duration::ZERO).await;
        assert_eq!(idle(), (1, three.1 / 3));
        held(&hold, 1, 0);
        assert_eq!(idle(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn where_places_are_needed_the_longest_idle_go() {
        let hold = Hold::default();
        for scope in 1..=3 {
            held(&hold, scope, 6);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        pass(&hold, IDLE).await;
        // Eight of eighteen take no places; the others have taken all, those kept for others too.
        assert!(
            hold.take_crowding(8, MANY, NONE).is_empty(),
            "nobody needs them"
        );
        assert_eq!(hold.lookahead(&lane(4), 8, MANY), Lookahead::Soon);
        let gone = hold.take_crowding(8, MANY, NONE);
        assert_eq!(ids(&gone), ["1f", "1e"]);
        for held in &gone {
            hold.ended(&held.claimed.job, held.claimed.generation);
        }
        assert_eq!(hold.lookahead(&lane(4), 8, MANY), Lookahead::Free(1));
        assert!(
            hold.take_crowding(8, MANY, NONE).is_empty(),
            "once for each need"
        );
        // Bytes likewise.
        let few = hold.bytes() / 4;
        assert_eq!(hold.lookahead(&lane(4), 100, few), Lookahead::Soon);
        assert_eq!(ids(&hold.take_crowding(100, few, NONE))[..2], ["1d", "1c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn siblings_have_their_time_to_take_what_would_go() {
        const OFFERED: Duration = Duration::from_secs(5);
        let hold = Hold::default();
        for scope in 1..=3 {
            held(&hold, scope, 6);
        }
        pass(&hold, IDLE).await;
        assert!(hold.crowding(8, MANY).is_empty(), "nobody needs them");
        let needs = || assert_eq!(hold.lookahead(&lane(4), 8, MANY), Lookahead::Soon);
        let stays = || assert!(hold.take_crowding(8, MANY, OFFERED).is_empty());
        // Nobody was told: they wait for that, however long.
        needs();
        assert_eq!(hold.crowding(8, MANY).len(), 18);
        pass(&hold, 2 * OFFERED).await;
        stays();
        needs();
        let offers = hold.crowding(8, MANY);
        assert_eq!(offers.len(), 18);
        hold.offered(&offers);
        assert!(hold.crowding(8, MANY).is_empty());
        stays();
        pass(&hold, OFFERED).await;
        // One of them is asked for again.
        hold.fetched(&lane(1), &Gate::default(), Instant::now());
        pass(&hold, Duration::ZERO).await;
        assert_eq!(hold.lookahead(&lane(4), 8, MANY), Lookahead::Soon);
        assert!(hold.crowding(8, MANY).is_empty());
        assert_eq!(hold.take_crowding(8, MANY, OFFERED).len(), 2);
        // Told too late.
        hold.offered(&offers);
        pass(&hold, IDLE).await;
        needs();
        assert_eq!(hold.crowding(8, MANY).len(), 6, "anew");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_goes_for_a_backlog_that_fills_the_hold_by_itself() {
        let hold = Hold::default();
        held(&hold, 1, 12);
        pass(&hold, IDLE).await;
        held(&hold, 2, 10);
        assert_eq!(hold.lookahead(&lane(2), 8, MANY), Lookahead::Full);
        assert!(hold.take_crowding(8, MANY, NONE).is_empty());
    }
}
