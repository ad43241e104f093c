//! How many jobs a lane may hold: the dynamic threshold of packet buffers (Choudhury and Hahne, 1998).
//!
//! A lane may hold three times as many jobs as there are places free, so a backlog takes three quarters of the hold at
//! most. Backlogs that never start could still fill the rest one after the other, so a lane of which less than [`FEW`]
//! jobs are held gets a place all the same, while a hold and a quarter are not full. Jobs of lanes that no worker asks
//! for are **idle**: a whole hold of them takes no places from others. Where there are more, and others need the places,
//! they lapse.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::Held;
use super::state::HoldState;

/// A lane may hold so many times what is free.
const TIMES_FREE: usize = 3;
/// A lane of which fewer jobs are held gets another place though its threshold is reached.
const FEW: usize = 2;
/// One part of these is kept beside the hold for such lanes, and so much of it is let go at one look.
const PARTS: usize = 4;

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

/// Jobs and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// How many jobs.
    pub jobs: usize,
    /// How many bytes they have.
    pub bytes: usize,
}

impl Amount {
    pub(super) fn is_over(self, most: Amount) -> bool {
        self.jobs > most.jobs || self.bytes > most.bytes
    }

    pub(super) fn less(self, jobs: usize, bytes: usize) -> Amount {
        Amount {
            jobs: self.jobs.saturating_sub(jobs),
            bytes: self.bytes.saturating_sub(bytes),
        }
    }

    /// With what is kept beside it.
    fn and_kept(self) -> Amount {
        Amount {
            jobs: self.jobs + (self.jobs / PARTS).max(1),
            bytes: self.bytes + self.bytes / PARTS,
        }
    }

    pub(super) fn at_most(self, most: Amount) -> Amount {
        Amount {
            jobs: self.jobs.min(most.jobs),
            bytes: self.bytes.min(most.bytes),
        }
    }
}
impl HoldState {
    /// How many places more a lane may take that has `own` of them, when so many `come` for all lanes and these `idle`
    /// ones do not count: all that it has is then at most three times what is left.
    pub(super) fn share(&self, most: Amount, idle: Amount, come: usize, own: usize) -> usize {
        let free = self.free(most, idle).saturating_sub(come);
        let share = (TIMES_FREE * free).saturating_sub(own) / (TIMES_FREE + 1);
        let gets_one = own < FEW && self.free(most.and_kept(), idle) > come;
        share.max(usize::from(gets_one))
    }

    /// How many jobs fit beside those that are held, which are taken to be as large. So many idle ones do not count.
    fn free(&self, most: Amount, uncounted: Amount) -> usize {
        let bytes = self.bytes.saturating_sub(uncounted.bytes);
        let left = most.bytes.saturating_sub(bytes);
        let fit = match (self.bytes, left) {
            (0, _) => most.jobs,
            (_, 0) => 0,
            (bytes, left) => (left.saturating_mul(self.jobs.len()) / bytes).max(1),
        };
        let held = self.jobs.len().saturating_sub(uncounted.jobs);
        most.jobs.saturating_sub(held).min(fit)
    }

    /// Takes jobs of idle lanes out, where there are more than the hold has places and a FETCH found none for that:
    /// waiting ones, or those that are `offered` to siblings, which have so long from then on to take them. The lane
    /// that was asked for longest ago is first, and of it the last job.
    pub(super) fn take_idle(&mut self, most: Amount, offered: Option<Duration>) -> Vec<Held> {
        let mut taken: Vec<Held> = Vec::new();
        if !std::mem::take(&mut self.crowded) {
            return taken;
        }
        let (mut left, at_once) = (self.idle, (most.jobs / PARTS).max(1));
        if left.is_over(most) {
            self.need_offers();
        }
        while taken.len() < at_once
            && left.is_over(most)
            && let Some(held) = match offered {
                Some(offered) => self.pop_offered(offered),
                None => self.pop_idlest(),
            }
        {
            left = left.less(1, held.body.len());
            taken.push(held);
        }
        taken
    }

    /// The last waiting job of the idle lane that was asked for longest ago, out of its group.
    fn pop_idlest(&mut self) -> Option<Held> {
        let idle = self.queues.values_mut().filter(|queue| queue.idle);
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

    /// The last offered job of the idle lane that was asked for longest ago, of those whose places are needed for so
    /// long.
    fn pop_offered(&mut self, patience: Duration) -> Option<Held> {
        let is_over = |since: Instant| since.elapsed() >= patience;
        let long_ago = self
            .offers()
            .filter(|offer| offer.needed.is_some_and(is_over));
        let of_idle = long_ago.filter_map(|offer| {
            let queue = self.queues.get(&offer.held.lane())?;
            (queue.idle).then_some((
                queue.fetched_at,
                Reverse(offer.held.claimed.generation),
                offer,
            ))
        });
        let (_, _, offer) = of_idle.min_by_key(|(at, generation, _)| (*at, *generation))?;
        let held = offer.held.clone();
        self.count_offers(-1);
        // Out of the offers at once, so that the next look finds another.
        self.take_in_hand(std::slice::from_ref(&held));
        Some(held)
    }
}
