//! Jobs that say their queue beside their `options`, as the Ruby and PHP SDKs send them. Backends written in Go
//! file them by `options.queue`, and show the other name ever after.

use crate::json::Json;
use crate::policy::PolicySet;
use crate::proxy::Sidecar;

impl Sidecar {
    /// Whether a limit can touch a queue by its name.
    pub(super) fn limits_queue(&self, queue: &str, policies: &PolicySet) -> bool {
        !policies.gate(queue).open() || self.set_for_queue(queue).is_some()
    }

    /// Whether limits or bounds look at a job that is filed in one queue and shown in another, by either.
    pub(super) fn watches_flat(&self, job: Json<'_>, filed: &str, policies: &PolicySet) -> bool {
        let watched = |queue: &str| {
            self.pressure.bounds(queue).is_some() || self.limits_queue(queue, policies)
        };
        let named = job.get("queue").and_then(|queue| queue.text());
        named.is_some_and(|named| watched(&named)) || watched(filed)
    }
}
