//! Other settings while the sidecar runs.

use std::sync::Arc;

use super::job;
use crate::desk::live::Live;
use crate::desk::settings::{follow_subqueues, tell_in_place_of_file, tell_moved};
use crate::desk::{ProxySettings, Sidecar, edges, named};
use crate::hold::{Held, Relimited};
use crate::policy::PolicySet;

/// Swaps settings and policies: they apply from the next decision on, to held jobs and waiting
/// FETCHes too. Usage is untouched. What was there before is returned, so that the caller can drop it
/// where that takes nobody's time.
///
/// Reading thousands of policies takes longer than a request may wait, so call it from a thread that
/// serves nothing. One call at a time.
pub(crate) fn publish(
    sidecar: &Sidecar,
    settings: ProxySettings,
    policies: Arc<PolicySet>,
) -> Arc<Live> {
    let next = Arc::new(sidecar.live().next(settings, policies));
    let edition = next.edition;
    // Most of the work is done before the swap and outside all locks.
    let limits = under(&next, sidecar.hold.before(edition));
    let bounds = Arc::clone(&next.settings.bounds);
    let last = sidecar.control.live.swap(Arc::clone(&next));
    sidecar.make_room_for_bodies();
    for queue in last.policies.moved(&next.policies) {
        tell_moved(queue);
    }
    let levels = sidecar.admit.pressure.publish(bounds, edges::now(sidecar));
    edges::tell_edges(sidecar, &levels);
    let before = Some(&*last.settings.bounds);
    tell_in_place_of_file(sidecar.admit.pressure.table().in_place_of_file(before));
    follow_subqueues(sidecar);
    sidecar.shadow.follow();
    sidecar.control.named.forget_windows();
    relimit(sidecar, edition, limits);
    // Those that came meanwhile. Any that are in hand just now follow when they are next picked.
    let limits = under(&next, sidecar.hold.before(edition));
    relimit(sidecar, edition, limits);
    sidecar.hold.wake_all();
    sidecar.calling.lines.wake_all();
    last
}

/// The limits of held jobs as they are under `live`.
fn under(live: &Live, jobs: Vec<Held>) -> Vec<Relimited> {
    let each = jobs.into_iter().map(|held| Relimited {
        job: held.claimed.job.clone(),
        generation: held.claimed.generation,
        limits: job::limits_again(&held, live),
    });
    each.collect()
}

fn relimit(sidecar: &Sidecar, edition: u64, limits: Vec<Relimited>) {
    for of_job in &limits {
        named::renamed(sidecar, &of_job.limits);
    }
    sidecar.hold.relimit(edition, limits);
}
