//! The limits in force: those of the file and of the job, with what was set over HTTP laid over them.
//!
//! What a policy or a job says is read once, when a job is claimed. What is set over HTTP is laid over that at each
//! question, so held jobs and waiting FETCHes obey it at once.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::job;
use crate::desk::{Sidecar, named};
use crate::hold::Pick;
use crate::limit::{Beside, Limited, Limits, Space, Timestamp, counted_beside};
use crate::policy::price::one_price;
use crate::policy::{self, strictest};
use crate::store::{LedgerExt, Override, Overrides};

/// `limited` as a job of the queue is asked now: what is set for each key and for each policy laid over them, and the
/// queue's own limits that were set over HTTP beside them. Where nothing is set it costs a look.
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
    let of_queue = set_for_queue(sidecar, queue);
    let laid_over = limited.iter().map(|one| with_set(overrides, one, now));
    let laid_over: SmallVec<[_; 4]> = laid_over.collect();
    if of_queue.is_none() && laid_over.iter().all(Option::is_none) {
        return Cow::Borrowed(limited);
    }
    let of_queue = of_queue.map(|set| policy::of_queue(queue, set.limits.clone()));
    let laid_over = limited.iter().zip(laid_over).map(|(one, limits)| Limited {
        limits: limits.unwrap_or_else(|| one.limits.clone()),
        ..one.clone()
    });
    let mut all: Vec<Limited> = of_queue.into_iter().chain(laid_over).collect();
    one_price(&mut all);
    Cow::Owned(all.into())
}

/// The numbers of a key's limit with what is set for its policy, and for the key itself, laid over them; `None`: nothing
/// is. Where both are set, the key's own cannot loosen the policy's.
pub(crate) fn with_set(overrides: &Overrides, one: &Limited, now: Timestamp) -> Option<Limits> {
    if one.space == Space::Queue {
        return None;
    }
    let of_policy = overrides.of_policy(&one.policy, now);
    let of_key = overrides.get(Space::Job, &one.key, now);
    let by_policy = of_policy.as_ref().map(|set| set.over(&one.limits));
    let Some(of_key) = of_key else {
        return by_policy;
    };
    let limits = of_key.over(by_policy.as_ref().unwrap_or(&one.limits));
    Some(match of_policy {
        Some(set) => strictest(limits, set.limits.clone()),
        None => limits,
    })
}

/// By what a key is paused over HTTP, itself or its policy, and until when, if somebody has said so. Of two pauses the
/// one counts that lasts longer.
pub(crate) fn pause_of(sidecar: &Sidecar, one: &Limited) -> Option<(Space, Option<Timestamp>)> {
    let (overrides, now) = (sidecar.store.overrides(), sidecar.store.now());
    let of_policy = overrides.of_policy(&one.policy, now);
    let of_key = overrides.get(Space::Job, &one.key, now);
    let both = [(Space::Policy, of_policy), (Space::Job, of_key)].into_iter();
    let pauses = both.filter_map(|(space, set)| {
        let set = set.filter(|set| set.limits.concurrency == Some(0))?;
        Some((space, set.expires_at))
    });
    pauses.max_by_key(|(_, until)| until.unwrap_or(Timestamp::NEVER))
}

/// The limits of a queue that were set over HTTP.
pub(crate) fn set_for_queue(sidecar: &Sidecar, queue: &str) -> Option<Arc<Override>> {
    let overrides = sidecar.store.overrides();
    if !overrides.any(Space::Queue) {
        return None;
    }
    overrides.get(Space::Queue, &policy::queue_key(queue), sidecar.store.now())
}

/// `limited` as the store is asked for one start: those of now, and beside them what other jobs of its keys name. What is
/// set stands in place of written windows for a while. Starts count there all the same, or its end would refill them.
pub(crate) fn asked<'a>(
    sidecar: &Sidecar,
    queue: &str,
    limited: &'a Arc<[Limited]>,
) -> Cow<'a, Arc<[Limited]>> {
    let mut now = limits_now(sidecar, queue, limited);
    let written = |one: &Limited| {
        let of_key = limited.iter().filter(|written| written.shares_key(one));
        Some(Beside::written(of_key.map(|written| &written.limits)))
    };
    if let Cow::Owned(set) = &now
        && let Some(all) = counted_beside(set, written)
    {
        now = Cow::Owned(all);
    }
    match sidecar.control.named.with_beside(&now) {
        Some(all) => Cow::Owned(all),
        None => now,
    }
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
        let limited = asked(sidecar, &held.claimed.queue, &held.written);
        if !Arc::ptr_eq(&limited, &held.claimed.limited) {
            held.claimed.limited = limited.into_owned();
        }
    }
}

/// Whether a limit can touch a queue by its name.
pub(crate) fn limits_queue(sidecar: &Sidecar, queue: &str, policies: &policy::PolicySet) -> bool {
    !policies.gate(queue).open() || set_for_queue(sidecar, queue).is_some()
}
