//! Which limits apply to a job, and which can apply to a queue. Immutable once built; usage lives
//! in the store under the key, never here.

use std::sync::Arc;

use crate::json::Json;
use crate::limit::{Limited, OnLimit};

/// What a policy may look at in a job.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    pub queue: &'a str,
    pub kind: &'a str,
    /// The job's `meta` object, if it has one.
    pub meta: Option<Json<'a>>,
    /// The `X-OJS-Tenant` it was fetched with, if that header is trusted.
    pub tenant: Option<&'a str>,
}

/// All that limits one job, ready to be asked. Equal values behave alike: a refusal of one is a
/// refusal of the other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JobLimits {
    pub limited: Arc<[Limited]>,
    /// The action when several refuse: drop beats reschedule beats wait.
    pub on_limit: OnLimit,
}

/// What a queue's name alone says, before any job of it is known.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Limits that every job of the queue must pass: queue-level ones, and policies with a constant
    /// key that cover the whole queue and wait.
    pub limited: Arc<[Limited]>,
    /// Whether limits other than those can apply to some job of the queue.
    pub keyed: bool,
}

impl Gate {
    /// Whether no configured limit can touch the queue.
    pub fn open(&self) -> bool {
        self.limited.is_empty() && !self.keyed
    }
}

/// The compiled `[[policy]]` and `[[queue]]` entries.
#[derive(Debug, Default)]
pub struct PolicySet {}

impl PolicySet {
    /// What the queue's name says.
    pub fn gate(&self, _queue: &str) -> Gate {
        todo!()
    }
    /// Every limit of the job: queue-level ones, each matching policy, and the job's own. A job
    /// policy that does not parse is ignored here (it was refused at enqueue, or came around us).
    /// `None`: not limited.
    pub fn limits(&self, _job: &JobView<'_>, _own: &[JobPolicy]) -> Option<JobLimits> {
        todo!()
    }
}

/// A `rate_limit` that came with a job, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobPolicy {
    /// Absent: the policy is the queue's own (`{max_per_second: 1}` has no key).
    pub limited: Limited,
}

/// A field of a body that is wrong: its path, what was found, what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Such as `options.rate_limit.rate.period`.
    pub field: String,
    pub message: String,
}

impl JobPolicy {
    /// Reads one `rate_limit` value in any of the accepted spellings; `at` is where it stands, for
    /// messages. `None`: it is null.
    pub fn read(
        _value: Json<'_>,
        _at: &str,
        _queue: &str,
    ) -> Result<Option<JobPolicy>, FieldError> {
        todo!()
    }
}
