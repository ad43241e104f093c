//! What is held, for those who only look.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::queue::Queue;
use super::state::Whereabouts;
use super::{Held, Hold};
use crate::limit::{Limited, Limits, Timestamp};
use crate::store::Gen;

/// A held job as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The job as a worker would get it.
    pub body: Bytes,
    /// Its attempt as it was claimed, if the backend showed one.
    pub attempt: Option<u32>,
    /// When it is expected to start, if it is rescheduled; else it is available.
    pub scheduled_at: Option<Timestamp>,
}

/// How many jobs of a queue are held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// All of them, in hand included.
    pub held: usize,
    /// Those of them that are seen as scheduled.
    pub scheduled: usize,
}

impl Hold {
    /// Jobs in the hold, in hand included.
    pub fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Jobs asked of the backend and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// The bytes of the jobs in the hold.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// How a held job is seen: its attempt as it was claimed (if shown), and when it is expected to start, if it
    /// is rescheduled. `None`: not held.
    pub fn seen(&self, job: &str, now: Timestamp) -> Option<(Option<u32>, Option<Timestamp>)> {
        let state = self.state();
        let known = state.jobs.get(job)?;
        let groups = state
            .queues
            .get(&known.lane)
            .and_then(|queue| queue.groups.get(&Reverse(known.priority)));
        // Only a job in a group that was refused can be scheduled: few groups are looked through.
        let scheduled_at = groups
            .into_iter()
            .flatten()
            .filter(|group| group.rescheduled.is_some())
            .find_map(|group| {
                let held = group.jobs.iter().find(|held| &*held.claimed.job == job)?;
                group.scheduled_at(held.claimed.visibility, now)
            });
        Some((known.attempt, scheduled_at))
    }

    /// Whether the job is held, in hand included.
    pub fn has(&self, job: &str) -> bool {
        !self.is_empty() && self.state().jobs.contains_key(job)
    }

    /// Whether the job is being asked for.
    pub fn is_in_hand(&self, job: &str) -> bool {
        let state = self.state();
        let known = state.jobs.get(job);
        known.is_some_and(|known| matches!(known.whereabouts, Whereabouts::InHand))
    }

    /// Whether this claim of a job is held, in hand included.
    pub fn has_claim(&self, job: &str, generation: Gen) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state();
        let known = state.jobs.get(job);
        known.is_some_and(|known| known.generation == generation)
    }

    /// Under which scope a job is held, in hand included.
    pub fn scope_of(&self, job: &str) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let state = self.state();
        Some(state.jobs.get(job)?.lane.scope)
    }

    /// The waiting jobs of a queue, or of all queues without a name, under the scopes of which `sees` says so.
    pub fn views(
        &self,
        name: Option<&str>,
        now: Timestamp,
        sees: impl Fn(u64) -> bool,
    ) -> Vec<View> {
        let state = self.state();
        let lanes = state
            .queues
            .iter()
            .filter(|(lane, _)| name.is_none_or(|name| name == &*lane.queue) && sees(lane.scope));
        let groups = lanes.flat_map(|(_, queue)| queue.all_groups());
        let views = groups.flat_map(|group| {
            group.jobs.iter().map(move |held| View {
                body: held.body.clone(),
                attempt: held.claimed.attempt,
                scheduled_at: group.scheduled_at(held.claimed.visibility, now),
            })
        });
        views.collect()
    }

    /// How many held jobs each queue has under the scopes of which `sees` says so.
    pub fn tallies(&self, now: Timestamp, sees: impl Fn(u64) -> bool) -> HashMap<Arc<str>, Tally> {
        let state = self.state();
        let mut tallies: HashMap<Arc<str>, Tally> = HashMap::new();
        let lanes = state.queues.iter();
        for (lane, queue) in lanes.filter(|(lane, of)| of.known > 0 && sees(lane.scope)) {
            let tally = tallies.entry(lane.queue.clone()).or_default();
            tally.held += queue.known;
            for group in queue.all_groups() {
                let later =
                    |held: &&Held| group.scheduled_at(held.claimed.visibility, now).is_some();
                tally.scheduled += group.jobs.iter().filter(later).count();
            }
        }
        tallies
    }

    /// How many held jobs each queue has.
    pub fn counts(&self) -> HashMap<Arc<str>, usize> {
        let state = self.state();
        let mut counts: HashMap<Arc<str>, usize> = HashMap::new();
        for (lane, queue) in state.queues.iter().filter(|(_, queue)| queue.known > 0) {
            *counts.entry(lane.queue.clone()).or_default() += queue.known;
        }
        counts
    }

    /// Under which scopes jobs are held or in hand.
    pub fn scopes(&self) -> HashSet<u64> {
        let state = self.state();
        let held = state.queues.iter().filter(|(_, queue)| queue.known > 0);
        held.map(|(lane, _)| lane.scope).collect()
    }

    /// How many jobs of a queue are held, over all scopes, and how many are being asked of the backend.
    pub fn of_queue(&self, name: &str) -> (usize, usize) {
        let state = self.state();
        if state.jobs.is_empty() && state.in_flight == 0 {
            return (0, 0);
        }
        let of_queue = state.queues.of_queue(name);
        of_queue.fold((0, 0), |(held, asked), queue| {
            (held + queue.known, asked + queue.in_flight)
        })
    }

    /// Whether jobs of the queue are held or in hand, whichever credentials claimed them.
    pub fn holds_of(&self, queue: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state();
        state.queues.of_queue(queue).any(|lane| lane.known > 0)
    }

    /// The limits of held jobs of which `is` says so.
    pub fn limits_of(&self, is: impl Fn(&Limited) -> bool) -> Vec<Limits> {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        let limited = groups.flat_map(|group| &*group.limits);
        let those = limited.filter(|one| is(one));
        those.map(|one| one.limits.clone()).collect()
    }

    /// Held jobs limited by a key, for `waiting_count`.
    pub fn waiting(&self, matches: impl Fn(&Limited) -> bool) -> usize {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        groups
            .filter(|group| group.limits.iter().any(&matches))
            .map(|group| group.jobs.len())
            .sum()
    }
}
