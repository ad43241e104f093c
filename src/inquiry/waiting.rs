//! How many jobs of a queue wait in the backend, as its statistics show. `waiting_count`, the metric and the event of
//! waiting jobs all go by the same number, beside what is held.
//!
//! The backend is asked at most once a second for a queue: by who reads limits, and beside a FETCH that gets less than
//! it wants from a queue whose limits leave no room. The jobs of such a queue stay in the backend, unread, and somebody
//! must be told all the same that they wait (rate-limiting text, 11.1 and 11.2). One job stands for them: that the
//! limit was met is told once, and the next job that is claimed from the queue brings the end of the wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::in_force;
use crate::bounds::StatsAnswer;
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, backend_stats, tell};
use crate::hold::{Episode, Lane};
use crate::inquiry::stats;
use crate::policy::Gate;
use crate::store::KeyStates;
use crate::wire::boxed::boxed;

/// So long a FETCH waits for statistics.
const SOON: Duration = Duration::from_millis(200);
/// The backend is asked about so many queues for one answer.
const QUEUES: usize = 32;

/// Asks the backend how many jobs of a queue are available, with the credentials of `scope`, unless it said so within
/// the last second. Those of its subqueues are added as far as is known. `None`: nobody knows.
async fn ask_depth(proxy: &Proxy, queue: &Arc<str>, scope: u64) -> Option<u64> {
    let backlogs = &proxy.sidecar.fetching.backlogs;
    let turn = backlogs.turn(queue, Instant::now())?;
    let _turn = turn.lock().await;
    if backlogs.is_due(queue, Instant::now()) {
        let begun = Instant::now();
        let answer = stats::ask_stats(proxy, queue, scope).await;
        let rest = backend_stats::rest_after(begun.elapsed());
        let available = answer.counts().map(|counts| counts.available);
        backlogs.note(queue, available, Instant::now() + rest);
        *backlogs.away.lock() = matches!(answer, StatsAnswer::Away(_)).then(Instant::now);
    }
    let of_queue = backlogs.available(queue)?;
    Some(of_queue + proxy.sidecar.subqueues.waiting(queue).available)
}

/// Whether a queue is not paused, here or at the backend itself, which is asked once a second. Where it has no answer, or a
/// late one, its last word counts; before its first one nothing is asked.
pub(crate) async fn runs(proxy: &Proxy, lane: &Lane) -> bool {
    let fetching = &proxy.sidecar.fetching;
    if fetching.paused.has(&lane.queue) {
        return false;
    }
    if fetching.backlogs.is_due(&lane.queue, Instant::now()) {
        let (asker, of) = (proxy.clone(), lane.clone());
        let asked = boxed(|| async move { ask_depth(&asker, &of.queue, of.scope).await });
        let asked = to_the_end(&proxy.sidecar.tasks.own, asked);
        let _late = tokio::time::timeout(SOON, asked).await;
    }
    // It may have been paused meanwhile.
    !fetching.paused.has(&lane.queue) && fetching.backlogs.runs(&lane.queue)
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
            sidecar.metrics.activity().refused(limited, &refusal);
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

/// Asks the backend about these queues, for one answer. `false`: it was asked about each within the last second.
pub(crate) async fn refresh(proxy: &Proxy, queues: &[Arc<str>], scope: u64) -> bool {
    let mut asked = false;
    let is_due = |queue: &&Arc<str>| {
        let backlogs = &proxy.sidecar.fetching.backlogs;
        backlogs.is_due(queue, Instant::now())
    };
    for queue in queues.iter().filter(is_due).take(QUEUES) {
        ask_depth(proxy, queue, scope).await;
        asked = true;
    }
    asked
}
