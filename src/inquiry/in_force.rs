//! The limits in force: those of the file and of the job, with what was set over HTTP laid over them.
//!
//! What a policy or a job says is read once, when a job is claimed. What is set over HTTP is laid over that at each
//! question, so held jobs and waiting FETCHes obey it at once.

use std::borrow::Cow;
use std::sync::Arc;

use super::job;
use crate::desk::{Sidecar, named};
use crate::hold::Pick;
use crate::limit::{Limited, Space};
use crate::policy;
use crate::policy::price::one_price;
use crate::store::{LedgerExt, Override};

/// `limited` as a job of the queue is asked now: overrides laid over each key, and the queue's own
/// limits that were set over HTTP beside them. Where nothing is set it costs a look.
pub(crate) fn limits_now<'a>(
    sidecar: &Sidecar,
    queue: &str,
    limited: &'a Arc<[Limited]>,
) -> Cow<'a, Arc<[Limited]>> {
    let overrides = sidecar.store.overrides();
    if overrides.is_empty() {
        return Cow::Borrowed(limited);
    }
    let now = sidecar.store.now();
    let of_job = |one: &Limited| match one.space {
        Space::Job => overrides.get(Space::Job, &one.key, now),
        Space::Queue => None,
    };
    let of_queue = set_for_queue(sidecar, queue);
    if of_queue.is_none() && !limited.iter().any(|one| of_job(one).is_some()) {
        return Cow::Borrowed(limited);
    }
    let of_queue = of_queue.map(|set| policy::of_queue(queue, set.limits.clone()));
    let laid_over = limited.iter().map(|one| match of_job(one) {
        Some(set) => Limited {
            limits: set.over(&one.limits),
            ..one.clone()
        },
        None => one.clone(),
    });
    let mut all: Vec<Limited> = of_queue.into_iter().chain(laid_over).collect();
    one_price(&mut all);
    Cow::Owned(all.into())
}

/// The limits of a queue that were set over HTTP.
pub(crate) fn set_for_queue(sidecar: &Sidecar, queue: &str) -> Option<Arc<Override>> {
    let overrides = sidecar.store.overrides();
    if !overrides.any(Space::Queue) {
        return None;
    }
    overrides.get(Space::Queue, &policy::queue_key(queue), sidecar.store.now())
}

/// Puts jobs that are about to be asked for under the limits of now: those of the file, with what was set over
/// HTTP laid over them.
pub(crate) fn renew(sidecar: &Sidecar, jobs: &mut [Pick]) {
    let live = sidecar.live();
    for held in jobs {
        if held.edition != live.edition {
            let limits = job::limits_again(held, &live);
            named::renamed(sidecar, &limits);
            held.limit(limits, live.edition);
        }
        let limited = limits_now(sidecar, &held.claimed.queue, &held.written);
        if !Arc::ptr_eq(&limited, &held.claimed.limited) {
            held.claimed.limited = limited.into_owned();
        }
    }
}

/// Whether a limit can touch a queue by its name.
pub(crate) fn limits_queue(sidecar: &Sidecar, queue: &str, policies: &policy::PolicySet) -> bool {
    !policies.gate(queue).open() || set_for_queue(sidecar, queue).is_some()
}
