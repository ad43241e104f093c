//! The FETCHes that wait for one lane, first come first served. Only the first in a line watches the
//! clock and asks; when it leaves, the next is woken. So a start time wakes one worker, not all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Hold, Lane};
use crate::limit::{Key, Limited, Space};

/// A waiting FETCH.
#[derive(Clone, Debug)]
pub struct Waiter {
    id: u64,
    notify: Arc<Notify>,
}

/// Where a waiter stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// First: it watches the clock and asks the backend.
    First,
    /// Behind another.
    Behind,
    /// Not in this line.
    Gone,
}

impl Waiter {
    pub(super) fn new(id: u64) -> Waiter {
        Waiter {
            id,
            notify: Arc::new(Notify::new()),
        }
    }

    /// Ends when the waiter is woken; a wake that came before is not lost.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }
}

#[derive(Default, Debug)]
pub(super) struct Line {
    waiters: VecDeque<(Waiter, usize)>,
}

impl Line {
    pub(super) fn join(&mut self, waiter: &Waiter, want: usize) {
        self.waiters.push_back((waiter.clone(), want));
    }

    pub(super) fn leave(&mut self, waiter: &Waiter) {
        let was_first = self
            .waiters
            .front()
            .is_some_and(|(first, _)| first.id == waiter.id);
        self.waiters.retain(|(other, _)| other.id != waiter.id);
        if was_first {
            self.wake();
        }
    }

    /// Wakes the first.
    pub(super) fn wake(&self) {
        if let Some((first, _)) = self.waiters.front() {
            first.notify.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for (waiter, _) in &self.waiters {
            waiter.notify.notify_one();
        }
    }

    pub(super) fn standing(&self, waiter: &Waiter) -> Rank {
        match self
            .waiters
            .iter()
            .position(|(other, _)| other.id == waiter.id)
        {
            Some(0) => Rank::First,
            Some(_) => Rank::Behind,
            None => Rank::Gone,
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.waiters.iter().map(|(_, want)| want).sum()
    }
}

impl Hold {
    /// A slot of these keys ended, or a start of theirs was undone: whoever waits for one of them may
    /// ask again.
    pub fn wake(&self, freed: &[Limited]) {
        self.wake_where(|space, key| freed.iter().any(|f| f.space == space && f.key == *key));
    }

    /// The same for keys of which nothing else is known.
    pub fn wake_keys(&self, freed: &[(Space, Key)]) {
        self.wake_where(|space, key| freed.iter().any(|f| f.0 == space && f.1 == *key));
    }

    fn wake_where(&self, is_freed: impl Fn(Space, &Key) -> bool) {
        let mut state = self.state();
        let wakes = state.woken();
        for queue in state.queues.values_mut() {
            let touches = |limited: &[Limited]| limited.iter().any(|l| is_freed(l.space, &l.key));
            // The queue's own limits may have been set since its jobs were read.
            let whole = is_freed(Space::Queue, &queue.key);
            let mut woken = whole || touches(&queue.gate.limited);
            for group in queue.all_groups_mut() {
                if whole || touches(&group.limits) {
                    group.wake(wakes);
                    woken = true;
                }
            }
            if woken {
                queue.line.wake();
            }
        }
    }

    /// Why jobs were refused is not to be counted on any more (a slot that ended unheard, a store that is
    /// back): all may be asked for again.
    pub fn ask_all(&self) {
        let mut state = self.state();
        let wakes = state.woken();
        for queue in state.queues.values_mut() {
            for group in queue.all_groups_mut() {
                group.wake(wakes);
            }
            queue.line.wake_all();
        }
    }

    /// Wakes every waiting FETCH (drain).
    pub fn wake_all(&self) {
        for queue in self.state().queues.values() {
            queue.line.wake_all();
        }
    }

    /// Wakes the first who waits for the lane, if something of it may be asked for.
    pub fn nudge(&self, lane: &Lane) {
        let state = self.state();
        if let Some(queue) = state.holding(lane)
            && queue
                .all_groups()
                .any(|group| group.refused.is_none() && !group.jobs.is_empty())
        {
            queue.line.wake();
        }
    }

    /// Stands in the lines of all the lanes, behind who is there already.
    pub fn stand(&self, lanes: &[Lane], want: usize, now: Instant) -> Waiter {
        let mut state = self.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in lanes {
            state.queue(lane, now).line.join(&waiter, want);
        }
        waiter
    }

    /// Leaves the lines; the next in each is woken.
    pub fn leave(&self, lanes: &[Lane], waiter: &Waiter) {
        let mut state = self.state();
        for lane in lanes {
            if let Some(queue) = state.queues.get_mut(lane) {
                queue.line.leave(waiter);
            }
        }
    }

    /// Where a waiter stands in a lane's line.
    pub fn standing(&self, lane: &Lane, waiter: &Waiter) -> Rank {
        self.state()
            .queues
            .get(lane)
            .map_or(Rank::Gone, |queue| queue.line.standing(waiter))
    }

    /// Jobs wanted by everyone in the lane's line.
    pub fn wanted(&self, lane: &Lane) -> usize {
        self.state()
            .queues
            .get(lane)
            .map_or(0, |queue| queue.line.wanted())
    }
}
