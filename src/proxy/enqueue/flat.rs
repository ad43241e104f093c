//! Jobs that say their queue beside their `options`, as the Ruby and PHP SDKs send them. Backends written in Go
//! file them by `options.queue`, and show the other name ever after.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::admit::LONGEST_NAME;
use crate::json::Json;
use crate::policy::PolicySet;
use crate::proxy::Sidecar;

/// The most queues that are warned of.
const MOST_WARNED: usize = 20;

/// The queues that were warned of.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Warned(Mutex<HashSet<Box<str>>>);

impl Warned {
    /// Whether a line is due about this queue.
    fn first(&self, queue: &str) -> bool {
        let mut known = self.0.lock();
        !known.contains(queue) && known.len() < MOST_WARNED && known.insert(queue.into())
    }
}

impl Sidecar {
    /// Whether a limit can touch a queue by its name.
    pub(super) fn limits_queue(&self, queue: &str, policies: &PolicySet) -> bool {
        !policies.gate(queue).open() || self.set_for_queue(queue).is_some()
    }

    /// Whether limits or bounds look at a job that is filed in one queue and shown in another, by either. Says once
    /// that those of the queue that it names do not touch it.
    pub(super) fn watches_flat(&self, job: Json<'_>, filed: &str, policies: &PolicySet) -> bool {
        let watched = |queue: &str| {
            self.pressure.bounds(queue).is_some() || self.limits_queue(queue, policies)
        };
        let named = job.get("queue").and_then(|queue| queue.text());
        let named = named.as_deref().filter(|named| *named != filed);
        let by_name = named.filter(|named| watched(named));
        if let Some(queue) = by_name.filter(|queue| queue.len() <= LONGEST_NAME)
            && (policies.names_queue(queue)
                || self.pressure.is_bounded(queue)
                || self.set_for_queue(queue).is_some())
            && self.flat.first(queue)
        {
            tracing::warn!(
                queue,
                filed_in = filed,
                "a job names its queue beside `options`, as the Ruby and PHP SDKs do, and backends file it by \
                 `options.queue`: the limits and bounds of the queue that it names do not touch it"
            );
        }
        by_name.is_some() || watched(filed)
    }
}
