//! The line of producers that wait for room (backpressure text, 5.2): first come, first served. What they are told is
//! not known in here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::want::{BoundGroup, BoundMet, Want};

/// The enqueues that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct BlockedLine<News> {
    waiters: VecDeque<BlockedEnqueue<News>>,
    last: u64,
}

/// An enqueue that waits.
#[derive(Debug)]
pub(super) struct BlockedEnqueue<News> {
    number: u64,
    pub(super) wants: Vec<Want>,
    /// How it is told; `None` while it drops a job.
    tell: Option<oneshot::Sender<News>>,
}

impl<News> BlockedEnqueue<News> {
    /// Whether it can be told anything now.
    pub(super) fn hears(&self) -> bool {
        self.tell.is_some()
    }

    /// Tells it. Whoever hangs up leaves the line first, so it is always heard.
    pub(super) fn tell(&mut self, news: News) {
        if let Some(tell) = self.tell.take() {
            let _heard = tell.send(news);
        }
    }
}

/// The places that those in line want: who comes later must fit beside them.
#[derive(Default, Debug)]
pub(super) struct WantedAhead {
    queues: HashMap<Arc<str>, Before>,
    /// How many jobs of each group.
    groups: HashMap<BoundGroup, u64>,
}

/// The places that those in line want of one queue.
#[derive(Default, Debug)]
pub(super) struct Before {
    jobs: u64,
    bytes: u64,
}

impl Before {
    /// How much of this bound.
    pub(super) fn amount(&self, bound: BoundMet) -> u64 {
        match bound {
            BoundMet::Bytes => self.bytes,
            _ => self.jobs,
        }
    }
}

impl WantedAhead {
    /// One more waits.
    pub(super) fn add(&mut self, wants: &[Want]) {
        for want in wants {
            let before = match self.queues.get_mut(&want.queue) {
                Some(before) => before,
                None => self.queues.entry(Arc::clone(&want.queue)).or_default(),
            };
            before.jobs += want.jobs;
            before.bytes += want.bytes();
            for group in want.all_groups() {
                *self.groups.entry(group.clone()).or_default() += 1;
            }
        }
    }

    /// What they want of a queue.
    pub(super) fn of(&self, queue: &str) -> Option<&Before> {
        self.queues.get(queue)
    }

    /// How many jobs of the group.
    pub(super) fn of_group(&self, group: &BoundGroup) -> u64 {
        self.groups.get(group).copied().unwrap_or(0)
    }
}

impl<News> Default for BlockedLine<News> {
    fn default() -> BlockedLine<News> {
        BlockedLine {
            waiters: VecDeque::new(),
            last: 0,
        }
    }
}

impl<News> BlockedLine<News> {
    /// One more waits, and hears by `tell` what comes. Returns its number; `None`: the line is too long.
    pub(super) fn stand(
        &mut self,
        wants: Vec<Want>,
        tell: oneshot::Sender<News>,
        most: usize,
    ) -> Option<u64> {
        if self.waiters.len() >= most {
            return None;
        }
        self.last += 1;
        self.waiters.push_back(BlockedEnqueue {
            number: self.last,
            wants,
            tell: Some(tell),
        });
        Some(self.last)
    }

    /// An enqueue that waits wants this now; it hears by `tell` what comes next.
    pub(super) fn stand_on(&mut self, number: u64, wants: Vec<Want>, tell: oneshot::Sender<News>) {
        let mut waiters = self.waiters.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.number == number) {
            waiter.wants = wants;
            waiter.tell = Some(tell);
        }
    }

    /// What all of them want.
    pub(super) fn ahead(&self) -> WantedAhead {
        let mut ahead = WantedAhead::default();
        (self.waiters.iter()).for_each(|waiter| ahead.add(&waiter.wants));
        ahead
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Keeps those for whom `stays` says so.
    pub(super) fn retain(&mut self, stays: impl FnMut(&mut BlockedEnqueue<News>) -> bool) {
        self.waiters.retain_mut(stays);
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.waiters.retain(|waiter| waiter.number != number);
    }
}
