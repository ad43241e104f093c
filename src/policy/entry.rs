//! `[[policy]]` and `[[queue]]` entries, and the limits that each means for a job.

use std::sync::Arc;

use super::feedback::Feedback;
use super::job_view::JobView;
use super::matcher::{Match, Pattern, Sample};
use super::price::Prices;
use super::template::{Attribute, Rendered, Template, key_of, unescaped};
use ojs_limit::{Key, Limited, Limits, OnLimit, Space};

/// What a policy does with a job that lacks a value of the key (`key_missing`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyMissing {
    /// All such jobs share one key.
    #[default]
    Shared,
    /// The policy does not apply to it.
    Skip,
    /// It is refused at enqueue; one that came another way shares one key with its like.
    Reject,
}

/// What limits that come with a job may do (`job_policies.accept`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Accept {
    /// Make the file's limits for the same key stricter, never looser.
    #[default]
    Tighten,
    /// Stand in place of the file's limits for the same key.
    Replace,
    /// Nothing: they are not enforced.
    Ignore,
}

/// One `[[policy]]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// Its name, for logs and metrics.
    pub name: Arc<str>,
    /// Which jobs it is for.
    pub matching: Match,
    /// Which counters it uses.
    pub key: Template,
    /// What to do when a value of the key is missing.
    pub key_missing: KeyMissing,
    /// Its numbers.
    pub limits: Limits,
    /// What happens to a job that it refuses.
    pub on_limit: OnLimit,
    /// Which nacks shut its keys.
    pub feedback: Feedback,
    /// What a start counts in them, and whose turn it is.
    pub prices: Prices,
}

impl Policy {
    /// The policy as asked for a job that it matches; `None`: it skips the job.
    pub(super) fn limited(&self, job: &JobView<'_>) -> Option<Limited> {
        match (self.key.render(job), self.key_missing) {
            (Rendered::Missing(..), KeyMissing::Skip) => None,
            (Rendered::Whole(key) | Rendered::Missing(_, key), _) => Some(self.under(key, job)),
        }
    }

    /// Whether this is a key of this policy, also for a job that brings it. One that is made of places alone has none of
    /// its own: it would take any name.
    pub(super) fn may_give(&self, key: &Key) -> bool {
        let skips = self.key_missing == KeyMissing::Skip;
        let is_own = |of: &Attribute, value: &str| {
            !(skips && value.is_empty()) && self.matching.may_have(of, value)
        };
        self.key.has_text() && self.key.may_give_with(key, is_own)
    }

    pub(super) fn under(&self, key: Key, job: &JobView<'_>) -> Limited {
        let (limits, name) = (self.limits.clone(), Arc::clone(&self.name));
        Limited {
            on_limit: self.on_limit,
            cost: self.prices.cost(),
            share: self.prices.share(job),
            ..Limited::new(Space::Job, key, limits, name)
        }
    }
}

/// One `[[queue]]`. Each queue that the pattern matches has counters of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Which queues.
    pub name: Pattern,
    /// Their numbers.
    pub limits: Limits,
    /// What a start counts in them, and whose turn it is.
    pub prices: Prices,
    /// Which of their jobs.
    pub sample: Sample,
}

/// The key of a queue's own limits, in their space.
pub fn queue_key(queue: &str) -> Key {
    key_of("", queue)
}

/// The queue that has this key of its own; `None`: its name is too long to be read from it.
pub fn queue_of(key: &Key) -> Option<String> {
    let name = String::from_utf8(unescaped(key.as_str())).ok()?;
    (queue_key(&name) == *key).then_some(name)
}

/// The limits of a queue as a whole.
pub fn of_queue(queue: &str, limits: Limits) -> Limited {
    Limited::new(Space::Queue, queue_key(queue), limits, Arc::from("queue"))
}

impl QueueLimits {
    pub(super) fn limited(&self, job: &JobView<'_>) -> Limited {
        Limited {
            cost: self.prices.cost(),
            share: self.prices.share(job),
            ..of_queue(job.queue, self.limits.clone())
        }
    }
}
