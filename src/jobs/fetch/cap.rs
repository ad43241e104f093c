//! How many jobs may be claimed of a limited queue: no more than its own limits let start soon, and no more than the
//! hold has places for.

use crate::desk::Sidecar;
use crate::hold::{AHEAD, Lane, Lookahead, Prospect, starts_ahead};
use crate::inquiry::in_force;
use crate::limit::{Limited, PolicyAndKey, Timestamp};
use crate::policy::Gate;
use crate::store::LedgerExt;

/// How many jobs may be asked for now, and if none, when that may change by itself.
#[derive(Clone, Default, Debug)]
pub(super) struct Cap {
    pub(super) jobs: usize,
    pub(super) prospect: Prospect,
    /// When the queue's own limits let the next one start, as far as time goes.
    pub(super) opens: Option<Timestamp>,
    /// The queue's own limit that has no room.
    pub(super) by: Option<PolicyAndKey>,
}

/// How many jobs may be claimed of a limited queue for a FETCH that misses `n`. Where the queue has limits of its
/// own: those, and what may start in the time after them, as far as that may start within [`AHEAD`] and is not
/// promised to jobs that wait for nothing else. Where limits are by key: what the hold has free.
pub(super) async fn cap_of(sidecar: &Sidecar, lane: &Lane, gate: &Gate, n: usize) -> Cap {
    let limited = in_force::limits_now(sidecar, &lane.queue, &gate.limited);
    let mut cap = cap_by_limits(sidecar, lane, gate, &limited, n).await;
    if gate.keyed || limited.is_empty() {
        let most = sidecar.hold_most(&sidecar.live().settings);
        let free = match sidecar.hold.places(lane, most) {
            Lookahead::Free(free) => free,
            Lookahead::Full => 0,
            Lookahead::Soon => {
                cap.prospect = Prospect::slot();
                0
            }
        };
        cap.jobs = cap.jobs.min(free);
    }
    cap
}

/// How many jobs may be claimed of a queue's subqueues for a FETCH that misses `n`: the queue's own limits say that. Each
/// of them has places of its own in the hold, as far as that has room for their bytes.
pub(super) async fn cap_of_subqueues(sidecar: &Sidecar, lane: &Lane, gate: &Gate, n: usize) -> Cap {
    let limited = in_force::limits_now(sidecar, &lane.queue, &gate.limited);
    let bytes = sidecar.hold.look(lane, 0, sidecar.store.now()).bytes;
    if bytes >= sidecar.hold_most(&sidecar.live().settings).bytes {
        return Cap::default();
    }
    cap_by_limits(sidecar, lane, gate, &limited, n).await
}

/// How many jobs the queue's own limits, which are these, let be claimed; all `n` where it has none.
async fn cap_by_limits(
    sidecar: &Sidecar,
    lane: &Lane,
    gate: &Gate,
    limited: &[Limited],
    n: usize,
) -> Cap {
    if limited.is_empty() {
        return Cap {
            jobs: n,
            ..Cap::default()
        };
    }
    let promise = sidecar.hold.promise(lane, gate, sidecar.store.now());
    let (promised, soon) = (promise.jobs, starts_ahead(limited));
    if promised > 0 && 2 * promised >= soon.unwrap_or(1) && promise.is_refused {
        return Cap::default();
    }
    let Ok(room) = sidecar.store.room(limited).await else {
        return Cap::default();
    };
    let by_then = sidecar.store.now().plus(AHEAD);
    let ahead = match room.at {
        Some(at) if at <= by_then && !room.slot => soon.unwrap_or(0),
        _ => 0,
    };
    let slots = limited.iter().filter_map(|one| one.limits.concurrency);
    let slots = slots.min().map_or(usize::MAX, |slots| slots as usize);
    // Of a queue with a cost one job is held at any time: only then it is known how much room it needs.
    let is_priced = limited.iter().any(|one| one.cost.rule.is_some());
    let is_paused = limited.iter().any(|one| one.limits.concurrency == Some(0));
    let least = usize::from(is_priced && !is_paused && promised == 0);
    let starts = (room.starts as usize).max(least);
    // Only the jobs claimed ahead are bounded here: while the store is lost there may be more starts than slots.
    let ahead = ahead.min(slots.saturating_sub(starts));
    let most = starts.saturating_add(ahead);
    let jobs = most.saturating_sub(promised).min(n.saturating_add(ahead));
    let mut cap = Cap {
        jobs,
        ..Cap::default()
    };
    if jobs > 0 {
        return cap;
    }
    let paused = limited.iter().find(|one| one.limits.concurrency == Some(0));
    let by = paused.or(limited.get(room.by));
    cap.by = by.map(Limited::names);
    if paused.is_none() && !sidecar.hold.look(lane, 0, sidecar.store.now()).is_exhausted {
        cap.opens = room.at.filter(|_| !room.slot);
        cap.prospect = match room.slot {
            true => Prospect::slot_from(room.at.unwrap_or_default()),
            false => Prospect {
                at: room.at.map(|at| at.minus(AHEAD)),
                slot: None,
            },
        };
    }
    cap
}
