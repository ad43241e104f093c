//! What a start costs, and whose turn it is.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::key::{Key, Space};
use super::limits::Limits;

/// How a policy or a queue prices a job (`cost`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CostRule {
    /// Where a job says its cost, as a path such as `meta.tokens`; `None`: each pays the default.
    pub from: Option<Box<str>>,
    /// What a job pays that says nothing usable.
    pub default: NonZeroU32,
    /// The most that a job pays; `None`: as much as the smallest limit of its key ([`most_paid`]).
    pub max: Option<NonZeroU32>,
    /// Where an ACK says what was really used, as a path such as `result.usage.total_tokens`.
    pub settle: Option<Box<str>>,
}

/// What one job pays to a key.
///
/// Two are equal if their rules are the same, and who pays. How much a job pays makes no difference: jobs of one rule
/// wait in one group of the hold, and the oldest of them is asked first.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Counted in full by each limit of the key; a limit asks for no more of it than the limit itself.
    pub pays: NonZeroU32,
    /// By which rule; `None`: one start is one.
    pub rule: Option<Arc<CostRule>>,
    /// Whether the calls of a job pay in its place (`counts = "calls"`): the job asks for as much, and takes nothing.
    pub by_calls: bool,
}

impl Cost {
    /// That of a job which has no price: one start is one.
    pub const ONE: Cost = Cost {
        pays: NonZeroU32::MIN,
        rule: None,
        by_calls: false,
    };

    /// The cost by a rule, of a job that says nothing.
    pub fn of(rule: Arc<CostRule>) -> Cost {
        Cost {
            pays: rule.default,
            rule: Some(rule),
            by_calls: false,
        }
    }

    /// How much of `limit` must be free: the cost, and never more than all of it.
    pub fn asks(&self, limit: u32) -> u32 {
        self.pays.get().min(limit)
    }
}

/// The most that a job pays to a key with these limits where nobody says how much: all of the smallest window or throttle,
/// so that no job has to be waited for longer than one period of each. Slots end with their job, and count where nothing
/// else does.
pub fn most_paid<'a>(limits: impl Iterator<Item = &'a Limits> + Clone) -> NonZeroU32 {
    let rates = limits.clone().flat_map(|limits| &limits.rates);
    let rates = rates.map(|rate| rate.limit);
    let throttles = limits
        .clone()
        .filter_map(|limits| Some(limits.throttle?.limit));
    let slots = limits.filter_map(|limits| limits.concurrency).min();
    let smallest = rates.chain(throttles).min();
    smallest
        .or(slots.and_then(NonZeroU32::new))
        .unwrap_or(NonZeroU32::MIN)
}

impl Default for Cost {
    fn default() -> Cost {
        Cost::ONE
    }
}

impl PartialEq for Cost {
    fn eq(&self, other: &Cost) -> bool {
        (&self.rule, self.by_calls) == (&other.rule, other.by_calls)
    }
}

impl Eq for Cost {}

impl Hash for Cost {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.rule, self.by_calls).hash(state);
    }
}

/// Whose share of a key a job takes (`fair`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Share {
    /// Such as a tenant.
    pub group: Arc<str>,
    /// How much of the key it gets beside others: twice the weight is twice as much.
    pub weight: NonZeroU32,
}

/// How much a group was served, by the store's books.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// The group.
    pub group: Arc<str>,
    /// Thousandths of cost by weight. The group with the least goes first.
    pub served: u64,
    /// Where the key's virtual time stands: what the group that started last had been served before that start. A group
    /// that is not known begins there.
    pub virtual_time: u64,
}
