//! What is held, for those who only look.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Hold;
use crate::limit::Limited;

impl Hold {
    /// Whether the hold is empty, of jobs in hand too.
    pub fn is_empty(&self) -> bool {
        self.state().jobs.is_empty()
    }

    /// Jobs in the hold, in hand included.
    pub fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Jobs asked of the backend and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// The attempt of a held job as it was claimed; `None`: not held.
    pub fn attempt(&self, job: &str) -> Option<u32> {
        self.state().jobs.get(job).map(|known| known.attempt)
    }

    /// Whether the job is held, in hand included.
    pub fn has(&self, job: &str) -> bool {
        self.state().jobs.contains_key(job)
    }

    /// The bytes of the waiting jobs of a queue, over all scopes; of all queues without a name.
    pub fn bodies(&self, name: Option<&str>) -> Vec<Bytes> {
        let state = self.state();
        let lanes = state
            .queues
            .iter()
            .filter(|(lane, _)| name.is_none_or(|name| name == &*lane.queue));
        let groups = lanes.flat_map(|(_, queue)| queue.groups.values().flatten());
        groups
            .flat_map(|group| &group.jobs)
            .map(|held| held.body.clone())
            .collect()
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

    /// Held jobs limited by a key, for `waiting_count`.
    pub fn waiting(&self, matches: impl Fn(&Limited) -> bool) -> usize {
        let state = self.state();
        let groups = state
            .queues
            .values()
            .flat_map(|queue| queue.groups.values().flatten());
        groups
            .filter(|group| group.limits.limited.iter().any(&matches))
            .map(|group| group.jobs.len())
            .sum()
    }
}
