//! Other policies, same jobs: what waits is put under the limits of now.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::queue::{Group, Queue};
use super::{Gen, Held, Hold, Wakes};
use crate::limit::Limited;

/// What limits a held job from now on.
#[derive(Clone, Debug)]
pub struct Relimited {
    /// The job.
    pub job: Arc<str>,
    /// Which claim of it.
    pub generation: Gen,
    /// Its limits.
    pub limits: Arc<[Limited]>,
}

impl Hold {
    /// The waiting jobs whose limits are of an earlier edition of the policies.
    pub fn before(&self, edition: u64) -> Vec<Held> {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        let early = groups.filter(|group| group.edition < edition);
        early.flat_map(|group| &group.jobs).cloned().collect()
    }

    /// Puts waiting jobs under other limits, in one step. All of their groups may be asked at once.
    /// Within a priority they stand in the order in which they were claimed. What is not named here
    /// keeps its limits until it is picked.
    pub fn relimit(&self, edition: u64, jobs: Vec<Relimited>) {
        let mut limits: HashMap<Arc<str>, Relimited> =
            jobs.into_iter().map(|job| (job.job.clone(), job)).collect();
        let mut state = self.state();
        state.edition = state.edition.max(edition);
        let woken = state.woken();
        for queue in state.queues.values_mut() {
            for groups in queue.groups.values_mut() {
                if groups.iter().any(|group| group.edition < edition) {
                    let old = std::mem::take(groups);
                    *groups = regrouped(old, edition, &mut limits, woken);
                }
            }
        }
    }
}

/// The same jobs in groups by the limits of now. A job without new limits is left with those it has.
fn regrouped(
    old: VecDeque<Group>,
    edition: u64,
    limits: &mut HashMap<Arc<str>, Relimited>,
    woken: Wakes,
) -> VecDeque<Group> {
    let mut groups = VecDeque::new();
    let mut jobs: Vec<Held> = Vec::new();
    for group in old {
        if group.edition < edition {
            jobs.extend(group.jobs);
        } else {
            groups.push_back(group);
        }
    }
    jobs.sort_by_key(|held| held.claimed.generation);
    let index = |(at, group): (usize, &Group)| ((group.edition, group.limits.clone()), at);
    let mut places: HashMap<(u64, Arc<[Limited]>), usize> =
        groups.iter().enumerate().map(index).collect();
    for mut held in jobs {
        let new = limits.remove(&held.claimed.job);
        if let Some(new) = new.filter(|new| new.generation == held.claimed.generation) {
            held.limit(new.limits, edition);
        }
        let place = *places
            .entry((held.edition, held.written.clone()))
            .or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.jobs.push_back(held),
            None => groups.push_back(Group::of(held, woken)),
        }
    }
    groups
}
