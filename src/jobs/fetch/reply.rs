//! The reply to a claim: its jobs are read, and go into the hold.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::asked::Wanted;
use crate::bounds::TakenTo;
use crate::desk::{Proxy, Sidecar, named, tell};
use crate::hold::Held;
use crate::inquiry::job::{self, ClaimOrigin, Shown};
use crate::inquiry::passing;
use crate::told::metrics::Counted;
use crate::wire::upstream::{Reply, UpstreamError};

/// Reads the jobs of a FETCH reply that came at `ended`: they are ours now, and in no other place. How many it
/// shows, and those that can be read and whose claims are not over; `None`: it is a refusal.
///
/// # Errors
/// It may have jobs in it, and cannot be read: it must go to nobody, for what it brings would not be limited.
pub(super) fn read_reply(
    sidecar: &Sidecar,
    reply: &Reply,
    origin: &ClaimOrigin<'_>,
    ended: Instant,
) -> Result<Option<(usize, Vec<Held>)>, UpstreamError> {
    if !reply.status.is_success() {
        return Ok(None);
    }
    let all = Shown::all(reply).map_err(|why| {
        tell::unreadable(sidecar, reply, &why);
        UpstreamError::Unreadable(why)
    })?;
    let shown = all.len();
    let mut jobs = Vec::with_capacity(shown);
    {
        let live = sidecar.live();
        let mut reading = job::reading(sidecar, &reply.body, origin, &live, ended);
        let read = |job| job::read_job(sidecar, job, &mut reading);
        jobs.extend(all.iter().filter_map(read));
    }
    once_each(&mut jobs);
    for _ in jobs.len()..shown {
        sidecar.metrics.count(Counted::Nonsense);
    }
    // One whose claim was over when the reply came is none of ours any more. A sibling may run it by now, under a claim
    // that has the earlier number though it is the later one.
    let is_over = |held: &mut Held| held.proof.deadline <= ended && !sidecar.has_no_siblings();
    for _ in jobs.extract_if(.., is_over) {
        sidecar.metrics.count(Counted::HoldLost);
    }
    sidecar.metrics.claimed(jobs.len());
    named::noted(sidecar, jobs.iter().map(|held: &Held| &held.claimed));
    // What subqueues have says nothing of the queue itself: the backend gives their jobs while that is paused.
    let of_queues = origin.subqueues.is_empty();
    for run in jobs.chunk_by(|a, b| a.claimed.queue == b.claimed.queue) {
        if let Some(first) = run.first().filter(|_| of_queues) {
            let paused = &sidecar.fetching.paused;
            paused.is_over(&first.claimed.queue, origin.sent);
        }
    }
    let asked = if of_queues { origin.lanes } else { &[] };
    sidecar.fetching.backlogs.claimed(asked, &mut jobs);
    Ok(Some((shown, jobs)))
}

/// Puts claimed jobs into the hold. From here on earlier claims of them are over, whatever the store grants them.
/// The credentials of this FETCH, to which the backend gave them, are needed as long as they are out or held.
pub(super) fn hold(proxy: &Proxy, wanted: &Wanted, jobs: Vec<Held>, origin: &ClaimOrigin<'_>) {
    let sidecar = &proxy.sidecar;
    if !wanted.accepted {
        sidecar.scopes.accept(wanted.scope, &wanted.headers);
    }
    let claimed = passing::claimed(sidecar, &jobs);
    sidecar.hold.add(jobs);
    passing::fetched(sidecar, &claimed, origin.mark, TakenTo::Hold);
}

/// Keeps each job once, as it stands last: however often the reply has it, it is one job and takes one slot.
fn once_each(jobs: &mut Vec<Held>) {
    let ids: HashSet<&str> = jobs.iter().map(|held| &*held.claimed.job).collect();
    if ids.len() < jobs.len() {
        let mut seen = HashSet::new();
        jobs.reverse();
        jobs.retain(|held| seen.insert(Arc::clone(&held.claimed.job)));
        jobs.reverse();
    }
}
