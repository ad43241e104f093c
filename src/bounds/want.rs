//! What is asked of bounded queues, and what they say: plain data.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::{Bounds, OverflowStrategy};
use ojs_limit::Timestamp;

/// The moment of a question, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On this process's clock.
    pub at: Instant,
    /// On the store's clock, for rates.
    pub stamp: Timestamp,
}

/// A key of a queue, or a tenant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BoundGroup {
    /// The queue whose key it is; `None`: a tenant.
    pub(super) queue: Option<Arc<str>>,
    /// The key, or the tenant's id.
    pub(super) name: Arc<str>,
}

impl BoundGroup {
    /// The jobs of this key in this queue.
    pub fn key(queue: &Arc<str>, key: Arc<str>) -> BoundGroup {
        BoundGroup {
            queue: Some(Arc::clone(queue)),
            name: key,
        }
    }

    /// The jobs of this tenant.
    pub fn tenant(id: Arc<str>) -> BoundGroup {
        BoundGroup {
            queue: None,
            name: id,
        }
    }
}

/// What an enqueue wants of one queue.
#[derive(Clone, Debug)]
pub struct Want {
    /// The queue.
    pub queue: Arc<str>,
    /// What bounds it.
    pub bounds: Arc<Bounds>,
    /// What is only tried of its bounds.
    pub tried: Option<Box<Bounds>>,
    /// How many jobs.
    pub jobs: u64,
    /// How long each of them is, as sent.
    pub sizes: Vec<u64>,
    /// The groups of each of them, where keys of the queue or tenants are bounded.
    pub groups: Vec<Vec<BoundGroup>>,
    /// Whether nothing of the queue can be dropped: it is known to be paused, or that was tried in vain.
    pub paused: bool,
    /// How many jobs have gone for it already.
    pub gone: u64,
}

impl Want {
    /// No job of this queue yet.
    pub fn nothing(queue: &str, bounds: Arc<Bounds>) -> Want {
        Want {
            queue: Arc::from(queue),
            bounds,
            tried: None,
            jobs: 0,
            sizes: Vec::new(),
            groups: Vec::new(),
            paused: false,
            gone: 0,
        }
    }

    /// The groups of all its jobs; one that several are in comes several times.
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &BoundGroup> {
        self.groups.iter().flatten()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// How much it wants of this bound.
    pub(super) fn amount(&self, bound: BoundMet) -> u64 {
        match bound {
            BoundMet::Bytes => self.bytes(),
            _ => self.jobs,
        }
    }
}

/// Which bound an enqueue met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundMet {
    /// `max_depth`.
    Depth,
    /// `max_size`: bytes of jobs, each as long as it was sent.
    Bytes,
    /// `enqueue_rate`.
    Rate,
    /// `per_key`.
    Key,
    /// `max_queue_depth` of a tenant, over all queues.
    Tenant,
}

impl BoundMet {
    /// What its numbers count, in answers, events and the log; `None`: jobs, which need no word.
    pub fn unit(self) -> Option<&'static str> {
        (self == BoundMet::Bytes).then_some("bytes")
    }
}

/// Why an enqueue does not fit.
#[derive(Clone, Debug)]
pub struct Full {
    /// The queue.
    pub queue: Arc<str>,
    /// Which of its bounds.
    pub met: BoundMet,
    /// How much of it is used.
    pub depth: u64,
    /// The bound.
    pub bound: u64,
    /// How long the window of a rate is.
    pub period: Option<Duration>,
    /// How much of it the enqueue wants.
    pub wanted: u64,
    /// What the queue does.
    pub strategy: OverflowStrategy,
    /// When there should be room; `None`: nobody knows.
    pub after: Option<Duration>,
    /// Jobs that leave in a second, as measured.
    pub drain: Option<f64>,
    /// The key or the tenant whose bound was met.
    pub key: Option<Arc<str>>,
}

impl Full {
    /// Whether it could ever fit.
    pub fn may_ever_fit(&self) -> bool {
        self.wanted <= self.bound
    }

    /// Whether other jobs that leave the queue make room for it.
    pub(super) fn is_of_queue(&self) -> bool {
        matches!(self.met, BoundMet::Depth | BoundMet::Bytes)
    }

    /// The rank among several bounds that are met, of which the highest is told: what could never fit, then what
    /// does not wait, then what takes longest.
    pub(super) fn rank(&self) -> (bool, bool, Option<Duration>) {
        (
            !self.may_ever_fit(),
            self.strategy != OverflowStrategy::Block,
            self.after,
        )
    }
}

/// How much of a bound is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundUsage {
    /// How much is used.
    pub used: u64,
    /// The bound.
    pub bound: u64,
    /// Which bound it is.
    pub met: BoundMet,
}

impl BoundUsage {
    /// The fraction that is used: 1 where the bound is met, and more where it is passed.
    pub(super) fn fraction(self) -> f64 {
        self.used as f64 / self.bound as f64
    }

    /// Whether so much more fits.
    pub(super) fn fits(self, wanted: u64) -> bool {
        self.used + wanted <= self.bound
    }

    /// The part of the bound that is left after so much more; less than 0 if it does not fit.
    pub(super) fn part_left(self, wanted: u64) -> f64 {
        let bound = self.bound as f64;
        (bound - (self.used + wanted) as f64) / bound
    }
}

/// An edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// The depth has come to the warning threshold.
    Warning,
    /// It is below it again.
    Cleared,
    /// There is no bound any more that it could be near.
    Unbounded,
}

/// An edge that was crossed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossed {
    /// The edge.
    pub edge: Edge,
    /// Whether that was just now. Else the queue has stayed there so long that it is worth a line after all.
    pub anew: bool,
    /// Whether it is worth a line of the log. A warning and its end have a line both, or none.
    pub loud: bool,
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
    pub most: Option<BoundUsage>,
    /// Whether that is at the warning threshold or beyond.
    pub above: bool,
    /// The edge that was crossed just now.
    pub crossed: Option<Crossed>,
}

impl Level {
    /// The fraction of the nearest bound that is used, 0 to 1.
    pub fn pressure(&self) -> f64 {
        self.most.map_or(0.0, |most| most.fraction().min(1.0))
    }
}
