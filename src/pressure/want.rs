//! What is asked of bounded queues, and what they say: plain data.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::{Bounds, Strategy};
use super::edge::{Crossed, Whose};
use crate::limit::Timestamp;

/// The moment of a question, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On this process's clock.
    pub at: Instant,
    /// On the store's clock, for rates.
    pub stamp: Timestamp,
}

/// What an enqueue wants of one queue.
#[derive(Clone, Debug)]
pub struct Want {
    /// The queue.
    pub queue: Arc<str>,
    /// What bounds it.
    pub bounds: Arc<Bounds>,
    /// How many jobs.
    pub jobs: u64,
    /// How long each of them is, as sent.
    pub sizes: Vec<u64>,
    /// The key of each of them, where the queue has a bound for each key.
    pub keys: Vec<Arc<str>>,
    /// The tenant of each of them, where tenants are bounded.
    pub tenants: Vec<Arc<str>>,
    /// Whose each of them is, and its priority, where jobs are dropped.
    pub droppable: Vec<(Arc<str>, i64)>,
    /// The fastest that jobs of the queue may start under its own limits, a second.
    pub pace: Option<f64>,
    /// Whether the queue is known to be paused: nothing of it can be dropped.
    pub paused: bool,
    /// How many jobs have gone for it already.
    pub gone: u64,
    /// How many jobs must go for it, once it fits.
    pub drop: u64,
}

impl Want {
    pub(super) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// How many more jobs go than it brings.
    pub(super) fn drops_beyond(&self) -> u64 {
        (self.drop + self.gone).saturating_sub(self.jobs)
    }
}

/// It was tried to drop jobs of a queue for an enqueue, and so many went. That is tried once.
pub fn tried_to_drop(wants: &mut [Want], queue: &str, gone: u64) {
    for want in wants.iter_mut().filter(|want| *want.queue == *queue) {
        want.gone += gone;
        // It is full now.
        want.paused |= gone == 0;
    }
}

/// Which bound an enqueue met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// `max_depth`.
    Depth,
    /// `max_size`.
    Bytes,
    /// `max_age`.
    Age,
    /// `max_wait`.
    Wait,
    /// `enqueue_rate`.
    Rate,
    /// `per_key`.
    Key,
    /// `max_queue_depth` of a tenant, over all queues.
    Tenant,
}

/// What the numbers of a bound count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Jobs.
    Jobs,
    /// Bytes of jobs, each as long as it was sent.
    Bytes,
    /// Whole seconds.
    Seconds,
    /// Milliseconds, where the bound is not a whole number of seconds.
    Millis,
}

impl Unit {
    /// Its name in answers, events and the log; `None`: jobs, which need none.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Unit::Jobs => None,
            Unit::Bytes => Some("bytes"),
            Unit::Seconds => Some("seconds"),
            Unit::Millis => Some("milliseconds"),
        }
    }
}

/// When a queue that was full accepts again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Resumes {
    /// The most that may be used of its bound then.
    pub at: u64,
    /// Its `resume_threshold`.
    pub threshold: f64,
}

/// Why an enqueue does not fit.
#[derive(Clone, Debug)]
pub struct Full {
    /// The queue.
    pub queue: Arc<str>,
    /// Which of its bounds.
    pub met: Met,
    /// How much of it is used.
    pub depth: u64,
    /// How much of that is known: the rest are places of siblings, which may be unused.
    pub at_least: u64,
    /// The bound.
    pub bound: u64,
    /// How much more of it the enqueue wants; 0 where that is not how it is met.
    pub wanted: u64,
    /// What these numbers count.
    pub unit: Unit,
    /// Where the queue was full and is shut since: when it accepts again.
    pub resumes: Option<Resumes>,
    /// What the queue does.
    pub strategy: Strategy,
    /// When there should be room; `None`: nobody knows.
    pub after: Option<Duration>,
    /// Jobs that leave in a second, as measured.
    pub drain: Option<f64>,
    /// Whether it could ever fit.
    pub ever: bool,
    /// The key or the tenant whose bound was met.
    pub key: Option<Arc<str>>,
}

impl Full {
    /// Of several that are met, the highest is told: what could never fit, then what does not wait, then what
    /// takes longest.
    pub(super) fn rank(&self) -> (bool, bool, Option<Duration>) {
        (!self.ever, self.strategy != Strategy::Block, self.after)
    }
}

/// How much of a bound is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// So much.
    pub used: u64,
    /// The bound.
    pub bound: u64,
    /// What both count.
    pub unit: Unit,
}

impl Usage {
    /// The fraction that is used: 1 where the bound is met, and more where it is passed.
    pub(super) fn share(self) -> f64 {
        self.used as f64 / self.bound as f64
    }
}

/// Where a queue stands.
#[derive(Clone, Debug)]
pub struct Level {
    /// Its depth.
    pub depth: u64,
    /// The bound of that; `None`: none.
    pub max_depth: Option<u64>,
    /// The bytes of what waits, as far as they are known.
    pub bytes: u64,
    /// How much of the bound that is nearest is used; `None`: no bound of this kind.
    pub most: Option<Usage>,
    /// Whether that is at the warning threshold or beyond.
    pub above: bool,
    /// The edge that was crossed just now.
    pub crossed: Option<Crossed>,
    /// Whose enqueues the log has as refused, by an age or a wait or for a key or a tenant, and one of whose has
    /// been accepted since.
    pub over: Vec<Whose>,
}

impl Level {
    /// The fraction of the nearest bound that is used, 0 to 1.
    pub fn pressure(&self) -> f64 {
        self.most.map_or(0.0, |most| most.share().min(1.0))
    }
}
