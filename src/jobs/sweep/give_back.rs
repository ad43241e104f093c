//! Giving back: held jobs that no worker asks for, and all of them at the end, wait in the backend again where
//! that costs them nothing.

use super::pace::ticks;
use crate::desk::{Proxy, Sidecar, named};
use crate::hold::Pick;
use crate::inquiry::calls;
use crate::jobs::siblings;
use crate::log::cut;
use crate::store::LedgerExt;
use crate::told::metrics::Counted;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What became of a job that was to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Back {
    Given,
    /// It waits on.
    Stays,
    /// It may be back or not, and is ours no more.
    InDoubt,
}

/// How long the backend may take to take a job back, and how long the others wait after one that it may have
/// taken back or not.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many held jobs are named at most when the process ends.
const NAMED: usize = 20;
/// How often a drain looks whether anything is out still.
const RECHECK: Duration = Duration::from_millis(50);

/// How many held jobs the backend has taken back since the start.
pub(crate) fn given_back(sidecar: &Sidecar) -> u64 {
    sidecar.keeper.given_back.load(Ordering::Relaxed)
}

/// How many limited jobs and calls are out through us; `None`: the store does not say. Before it has
/// ever answered none has started, and it is not waited for.
pub(crate) async fn out(sidecar: &Sidecar) -> Option<usize> {
    if !sidecar.store.has_answered() {
        return Some(0);
    }
    sidecar.store.count_out().await.ok()
}

/// The ids of some held jobs.
pub(crate) fn some_held(sidecar: &Sidecar) -> String {
    let hold = &sidecar.hold;
    let unwanted = hold.unwanted(Duration::ZERO);
    let held = unwanted.into_iter().chain(hold.all_offers());
    let names = held.take(NAMED).map(|of| cut(&of.job).into_owned());
    let names: Vec<String> = names.collect();
    names.join(" ")
}

/// What becomes of held jobs if the process ends now, in words.
pub(crate) fn fate_of_held(sidecar: &Sidecar) -> &'static str {
    if sidecar.store.siblings() > 0 {
        "other sidecars take them over while those last"
    } else if sidecar.backend.claims_count() {
        "they never ran, but when those are over the backend takes each for a failed attempt, and discards the \
         job where it was the last"
    } else {
        "when those are over the backend has them back"
    }
}

/// Gives held jobs back that no worker has asked for in a while, where that costs them nothing, until told
/// to stop. Beside the sweep, and one by one: all others get their heartbeats meanwhile, however slow the
/// backend is.
pub(in crate::jobs) async fn return_idle(proxy: &Proxy, stop: CancellationToken) {
    let sidecar = &proxy.sidecar;
    let mut ticks = ticks();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
            () = sidecar.tasks.draining.cancelled() => return,
        }
        // What cannot be given back does not hold up the others.
        let mut stay = HashSet::new();
        while returns_idle(proxy)
            && Instant::now() >= next
            && let Some(pick) = (sidecar.hold).pick_last(|at| is_idle(proxy, at), &stay)
        {
            let job = pick.claimed.job.clone();
            match give_back(proxy, pick).await {
                Back::Given => {}
                Back::Stays => drop(stay.insert(job)),
                // Each would be let go like this one.
                Back::InDoubt => next = Instant::now() + PATIENCE,
            }
        }
    }
}

/// Whether idle jobs go back. A sibling that has a worker for them gets them at once, and in their order.
fn returns_idle(proxy: &Proxy) -> bool {
    let sidecar = &proxy.sidecar;
    sidecar.backend.requeue_harmless()
        && sidecar.store.siblings() == 0
        && !sidecar.tasks.draining.is_cancelled()
}

fn is_idle(proxy: &Proxy, fetched_at: Instant) -> bool {
    fetched_at.elapsed() >= proxy.sidecar.live().settings.hold.idle
}

/// Nothing of a limited queue is claimed from now on: claims in flight end in the hold, and held jobs are offered to
/// siblings. What none of them takes goes back where that costs it nothing, and so does what comes into the hold later.
/// Elsewhere each would lose an attempt, so workers may have what is held until the process ends. Ends when nothing
/// limited is out with workers nor held for them, and after `least`: of jobs that nothing limits it is not known whether
/// any are out. `most`: how much time there is for all of it.
pub(crate) async fn drain(proxy: &Proxy, least: Duration, most: Duration) {
    let sidecar = &proxy.sidecar;
    let least = Instant::now() + least;
    sidecar.tasks.draining.cancel();
    sidecar.hold.wake_all();
    let patience = sidecar.live().settings.upstream.timeout;
    let patience = patience.min(PATIENCE).min(most / 4);
    let patience = Instant::now() + patience;
    while sidecar.hold.in_flight() > 0 && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    siblings::offer_all(sidecar, most / 4).await;
    if sidecar.backend.requeue_harmless() {
        siblings::own_again(proxy, sidecar.hold.all_offers()).await;
    }
    let mut stay = HashSet::new();
    loop {
        // Asked first, so that what was out until now is given back before the end, and what was held is out.
        let keeps_held = burns_held(sidecar);
        let out = out(sidecar).await;
        let quiet = out == Some(0);
        let no_jobs = out.is_some_and(|out| out <= sidecar.calling.out()) && !keeps_held;
        if no_jobs && Instant::now() >= least {
            sidecar.close_calls();
        }
        return_all(proxy, &mut stay).await;
        if quiet && !keeps_held && Instant::now() >= least {
            // Who waits for held jobs waits in vain.
            return sidecar.hold.wake_all();
        }
        tokio::time::sleep(RECHECK).await;
    }
}

/// Whether the end of the process costs held jobs an attempt. The backend of `dev` ends with it.
fn burns_held(sidecar: &Sidecar) -> bool {
    let backend = &sidecar.backend;
    let costs = backend.claims_count() && !backend.requeue_harmless();
    costs && !sidecar.hold.is_empty() && !sidecar.live().settings.reset
}

/// Gives all held jobs back but those that stay, where that costs them nothing. What cannot be given back
/// stays from now on.
async fn return_all(proxy: &Proxy, stay: &mut HashSet<Arc<str>>) {
    let sidecar = &proxy.sidecar;
    let mut went = false;
    while sidecar.backend.requeue_harmless()
        && let Some(pick) = sidecar.hold.pick_last(|_| true, stay)
    {
        let job = pick.claimed.job.clone();
        if give_back(proxy, pick).await == Back::Stays {
            stay.insert(job);
        } else {
            went = true;
        }
    }
    if went {
        // Who came since the drain began may wait for what is not here any more.
        sidecar.hold.wake_all();
    }
}

/// Gives a picked job back. Where a requeued job goes to the head of its queue, the last must go first, so
/// that their order is kept.
pub(super) async fn give_back(proxy: &Proxy, mut pick: Pick) -> Back {
    let sidecar = &proxy.sidecar;
    let (job, generation) = (pick.claimed.job.clone(), pick.claimed.generation);
    let left = pick
        .proof
        .deadline
        .saturating_duration_since(Instant::now());
    // Whatever is heard of it, also where a drain does not wait for that: what may be back goes to no worker unproven.
    pick.doubt();
    if left.is_zero() || !sidecar.hold.has_claim(&job, generation) {
        return Back::Stays;
    }
    let body = calls::requeue(&job, &pick.claimed.claim_id);
    let mut nack = calls::post(proxy, pick.claimed.scope, "/ojs/v1/workers/nack", body);
    nack.timeout = nack.timeout.min(PATIENCE).min(left);
    match calls::call(proxy, "give_back", nack).await {
        Ok(reply) if reply.status.is_success() => {
            // Before it leaves the hold: what counts twice for a moment is not over a bound unseen.
            sidecar.admit.pressure.came(&pick.claimed.queue);
            named::waits_again(sidecar, &pick.claimed);
            // A sibling that took it for running would look after it until its visibility is over.
            sidecar.end(&job, Some(generation)).await;
            pick.gone();
            sidecar.metrics.count(Counted::Returned);
            sidecar.keeper.given_back.fetch_add(1, Ordering::Relaxed);
            Back::Given
        }
        // Cancelled, lapsed, or never asked: if it is still ours it waits on, and the next heartbeat tells.
        Ok(reply) if !is_of_gateway(reply.status) => Back::Stays,
        Err(error) if !error.in_doubt() => Back::Stays,
        // It may be done, or be done yet, and must not be with a worker then: no proof of a claim tells ours
        // from a later one in the same attempt.
        _ => {
            sidecar.abandon(&pick.claimed).await;
            Back::InDoubt
        }
    }
}

/// Whether something between us and the backend says that it got no answer.
fn is_of_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT
    )
}
