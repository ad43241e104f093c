//! What a job must pass: its keys, each with the numbers that the job brings.

use std::sync::Arc;

use super::cost::{Cost, Share};
use super::key::{Key, Space};
use super::limits::{Limits, OnLimit};

/// One key that a job must pass, with the numbers it brings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Limited {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// The numbers this job is checked against.
    pub limits: Limits,
    /// What to do when this key refuses.
    pub on_limit: OnLimit,
    /// The policy the numbers come from, for logs and metrics: a `[[policy]]` name, `job`, or `queue`.
    pub policy: Arc<str>,
    /// What this job pays to the key.
    pub cost: Cost,
    /// Whose share of the key it takes; `None`: turns go round.
    pub share: Option<Share>,
}

impl Limited {
    /// A key whose jobs wait where it refuses, each of which pays one, in turns that go round.
    pub fn new(space: Space, key: Key, limits: Limits, policy: Arc<str>) -> Limited {
        Limited {
            space,
            key,
            limits,
            on_limit: OnLimit::Wait,
            policy,
            cost: Cost::ONE,
            share: None,
        }
    }

    /// Whether both are of one key.
    pub fn shares_key(&self, other: &Limited) -> bool {
        self.space == other.space && self.key == other.key
    }

    /// By what it is named.
    pub fn names(&self) -> PolicyAndKey {
        (self.policy.clone(), self.space, self.key.clone())
    }
}

/// The policy of a limit, and its key.
pub type PolicyAndKey = (Arc<str>, Space, Key);

/// The first limit of each different key, with its place: however many policies name a key, a job takes one
/// slot of it.
pub fn each_key(limited: &[Limited]) -> impl Iterator<Item = (usize, &Limited)> {
    let is_first = |(nth, one): &(usize, &Limited)| {
        let mut earlier = limited.iter().take(*nth);
        !earlier.any(|earlier| earlier.shares_key(one))
    };
    limited.iter().enumerate().filter(is_first)
}

/// The first limit of each different key of jobs, with its place.
pub fn each_job_key(limited: &[Limited]) -> impl Iterator<Item = (usize, &Limited)> {
    each_key(limited).filter(|(_, one)| one.space == Space::Job)
}

/// The first limit of each different key of which a start takes something, with its place.
pub fn each_paid_key(limited: &[Limited]) -> impl Iterator<Item = (usize, &Limited)> {
    each_key(limited).filter(|(_, one)| !one.cost.by_calls)
}

/// Whether a job pays more than one start to some key.
pub fn is_priced(limited: &[Limited]) -> bool {
    limited.iter().any(|one| one.cost.pays.get() > 1)
}

/// The key whose share a job takes, and whose. Of several that are fair the first one counts.
pub fn share_of(limited: &[Limited]) -> Option<(&Limited, &Share)> {
    limited
        .iter()
        .find_map(|one| Some((one, one.share.as_ref()?)))
}
