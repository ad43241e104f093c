//! How many jobs wait for a limit: those that are held, and those that the backend's statistics show in queues that
//! the limit covers. `waiting_count`, the metric and the event of waiting jobs all go by the same number.
//!
//! The backend is asked at most once a second for a queue: by who reads limits, and beside a FETCH that gets less than
//! it wants from a queue whose limits leave no room. The jobs of such a queue stay in the backend, unread, and somebody
//! must be told all the same that they wait (rate-limiting text, 11.1 and 11.2). One job stands for them: that the
//! limit was met is told once, and the next job that is claimed from the queue brings the end of the wait.

use std::sync::Arc;

use tokio::time::Instant;

use super::in_force;
use crate::bounds::StatsAnswer;
use crate::desk::named::Waiting;
use crate::desk::{Proxy, Sidecar, backend_stats, tell};
use crate::hold::{Episode, Lane};
use crate::inquiry::stats;
use crate::limit::{Key, Space};
use crate::policy::{Gate, PolicySet};
use crate::store::KeyStates;

/// The backend is asked about so many queues for one answer.
const QUEUES: usize = 32;

/// Asks the backend how many jobs of a queue are available, with the credentials of `scope`, unless it said so within
/// the last second. `None`: nobody knows.
async fn ask_depth(proxy: &Proxy, queue: &Arc<str>, scope: u64) -> Option<u64> {
    let backlogs = &proxy.sidecar.fetching.backlogs;
    let turn = backlogs.turn(queue, Instant::now())?;
    let _turn = turn.lock().await;
    if backlogs.is_due(queue, Instant::now()) {
        let begun = Instant::now();
        let answer = stats::ask_stats(proxy, queue, scope).await;
        let rest = backend_stats::rest_after(begun.elapsed());
        let available = match answer {
            StatsAnswer::Counts(counts) => Some(counts.available),
            _ => None,
        };
        backlogs.note(queue, available, Instant::now() + rest);
        *backlogs.away.lock() = matches!(answer, StatsAnswer::Away(_)).then(Instant::now);
    }
    available(&proxy.sidecar, queue)
}

/// How many jobs of a queue and of its subqueues are available in the backend, as far as is known.
fn available(sidecar: &Sidecar, queue: &str) -> Option<u64> {
    let of_queue = sidecar.fetching.backlogs.available(queue)?;
    Some(of_queue + sidecar.subqueues.waiting(queue).available)
}

/// Whether a queue is not paused, here or at the backend itself, which is asked once a second; unknown is no.
pub(crate) async fn runs(proxy: &Proxy, lane: &Lane) -> bool {
    let fetching = &proxy.sidecar.fetching;
    if fetching.paused.has(&lane.queue) {
        return false;
    }
    let available = ask_depth(proxy, &lane.queue, lane.scope).await;
    available.is_some() && !fetching.backlogs.is_paused(&lane.queue)
}

/// A worker wants more than it gets, and nothing may be claimed of this queue: its limits may be why.
pub(crate) fn note_closed(proxy: &Proxy, lane: &Lane, gate: &Gate) {
    let sidecar = &proxy.sidecar;
    let limited = in_force::limits_now(sidecar, &lane.queue, &gate.limited);
    // Without limits of its own it is the hold that is full.
    if limited.is_empty()
        || sidecar.fetching.paused.has(&lane.queue)
        || !sidecar
            .fetching
            .backlogs
            .begin_finding(&lane.queue, Instant::now())
    {
        return;
    }
    let (proxy, lane, gate) = (proxy.clone(), lane.clone(), gate.clone());
    let _task = sidecar.tasks.spawn(async move {
        if ask_depth(&proxy, &lane.queue, lane.scope)
            .await
            .is_some_and(|jobs| jobs > 0)
        {
            tell_waiting(&proxy.sidecar, &lane.queue, &gate).await;
        }
    });
}

/// Tells once that the next job of a queue waits for a limit, if one is met.
async fn tell_waiting(sidecar: &Sidecar, queue: &str, gate: &Gate) {
    for limited in &**in_force::limits_now(sidecar, queue, &gate.limited) {
        let states = sidecar.store.states(&[(limited.space, &limited.key)]).await;
        let Ok(KeyStates { states, now }) = states else {
            return;
        };
        let asked = states
            .first()
            .map(|state| state.ask(&limited.limits, 1, now));
        if let Some(Err(refusal)) = asked {
            sidecar.metrics.held_up(limited);
            let episode = Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: refusal.strategy,
                since: Instant::now(),
            };
            if sidecar.fetching.backlogs.begin(queue, episode) {
                tell::exceeded_unread(sidecar, queue, limited, &refusal);
            }
            return;
        }
    }
}

/// How many jobs wait for a queue's own limits: those that are held here, and those in the backend.
pub(crate) fn of_queue(sidecar: &Sidecar, queue: &str) -> u64 {
    let of_queue = sidecar.fetching.backlogs.available(queue).unwrap_or(0);
    let of_subqueues = sidecar.subqueues.waiting(queue).available;
    sidecar.hold.of_queue(queue).0 as u64 + of_queue + of_subqueues
}

/// How many jobs wait for a key: those that are held here, all jobs of the queues that the key covers, and in other
/// queues those that are known to wait for it, of which some may have left unseen.
pub(crate) fn of_key(sidecar: &Sidecar, key: &Key, policies: &PolicySet, pending: &Waiting) -> u64 {
    let mut waiting = sidecar.hold.waiting_for(Space::Job, key) as u64;
    let mut pending = pending.get(key).cloned().unwrap_or_default();
    let available = |queue: &str| available(sidecar, queue);
    for queue in policies.covered(key) {
        let pending = pending.remove(queue).unwrap_or(0);
        waiting += available(queue).unwrap_or(pending);
    }
    for (queue, jobs) in pending {
        waiting += available(&queue).unwrap_or(jobs).min(jobs);
    }
    waiting
}

/// The queues of the backend in which jobs may wait for a key.
pub(crate) fn queues_of(key: &Key, policies: &PolicySet, pending: &Waiting) -> Vec<Arc<str>> {
    let covered = policies.covered(key).map(Arc::from);
    let pending = pending.get(key).into_iter();
    covered
        .chain(pending.flat_map(|queues| queues.keys().cloned()))
        .collect()
}

/// Asks the backend about these queues, for one answer.
pub(crate) async fn refresh(proxy: &Proxy, queues: &[Arc<str>], scope: u64) {
    let is_due = |queue: &&Arc<str>| {
        let backlogs = &proxy.sidecar.fetching.backlogs;
        backlogs.is_due(queue, Instant::now())
    };
    for queue in queues.iter().filter(is_due).take(QUEUES) {
        ask_depth(proxy, queue, scope).await;
    }
}
