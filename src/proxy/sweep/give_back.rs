//! Giving back: held jobs that no worker asks for, and all of them at the end, wait in the backend again where
//! that costs them nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::EVERY;
use crate::hold::Held;
use crate::metrics::Counted;
use crate::proxy::{Proxy, Sidecar, call, post, said};

/// What became of a job that was to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Back {
    Given,
    /// It waits on.
    Stays,
    /// It may be back or not, and is ours no more.
    InDoubt,
    /// A sibling has taken it over.
    Elsewhere,
}

/// How long the backend may take to take a job back, and how long the others wait after one that it may have
/// taken back or not.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a drain looks whether anything is out still.
const LOOK: Duration = Duration::from_millis(50);

impl Sidecar {
    /// How many held jobs the backend has taken back since the start.
    pub fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    /// How many jobs are held.
    pub fn held(&self) -> usize {
        self.hold.len()
    }

    /// What becomes of held jobs if the process ends now, in words.
    pub fn fate_of_held(&self) -> &'static str {
        if self.store.siblings() > 0 {
            "other sidecars take them over while those last"
        } else if self.backend.claims_count() {
            "they never ran, but when those are over the backend takes each for a failed attempt, and discards the \
             job where it was the last"
        } else {
            "when those are over the backend has them back"
        }
    }
}

impl Proxy {
    /// Gives held jobs back that no worker has asked for in a while, where that costs them nothing, until told
    /// to stop. Beside the sweep, and one by one: all others get their heartbeats meanwhile, however slow the
    /// backend is.
    pub(in crate::proxy) async fn return_idle(&self, stop: CancellationToken) {
        let sidecar = &self.sidecar;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = Instant::now();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
                () = sidecar.draining.cancelled() => return,
            }
            // What cannot be given back does not hold up the others.
            let mut stay = HashSet::new();
            while self.returns_idle()
                && Instant::now() >= next
                && let Some(held) = (sidecar.hold).take_last(|at| self.is_idle(at), &stay)
            {
                let job = held.claimed.job.clone();
                match self.give_back(held).await {
                    Back::Given | Back::Elsewhere => {}
                    Back::Stays => drop(stay.insert(job)),
                    // Each would be let go like this one.
                    Back::InDoubt => next = Instant::now() + PATIENCE,
                }
            }
        }
    }

    /// Whether idle jobs go back. A sibling that has a worker for them gets them at once, and in their order.
    fn returns_idle(&self) -> bool {
        let sidecar = &self.sidecar;
        sidecar.backend.requeue_harmless()
            && sidecar.store.siblings() == 0
            && !sidecar.draining.is_cancelled()
    }

    fn is_idle(&self, fetched_at: Instant) -> bool {
        fetched_at.elapsed() >= self.sidecar.live().settings.hold_idle
    }

    /// Nothing new starts from now on: waiting FETCHes are answered, claims in flight end in the hold, and
    /// held jobs are offered to siblings. What none of them takes goes back where that costs it nothing
    /// (elsewhere it is kept until the process ends, and the backend takes it back when its claim lapses), and so
    /// does what comes into the hold later. Ends when nothing limited is out with workers, and after `least`: of
    /// jobs that nothing limits it is not known whether any are out. `most`: how much time there is for all of it.
    pub async fn drain(&self, least: Duration, most: Duration) {
        let sidecar = &self.sidecar;
        let least = Instant::now() + least;
        sidecar.draining.cancel();
        sidecar.hold.wake_all();
        let patience = sidecar.live().settings.upstream_timeout;
        let patience = patience.min(PATIENCE).min(most / 4);
        let patience = Instant::now() + patience;
        while sidecar.hold.in_flight() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        sidecar.offer_all(most / 4).await;
        let mut stay = HashSet::new();
        loop {
            // Asked first, so that what was out until now is given back before the end.
            let quiet = sidecar.out().await == Some(0);
            self.return_all(&mut stay).await;
            if quiet && Instant::now() >= least {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives all held jobs back but those that stay, where that costs them nothing. What cannot be given back
    /// stays from now on.
    async fn return_all(&self, stay: &mut HashSet<Arc<str>>) {
        let sidecar = &self.sidecar;
        while sidecar.backend.requeue_harmless()
            && let Some(held) = sidecar.hold.take_last(|_| true, stay)
        {
            let job = held.claimed.job.clone();
            if self.give_back(held).await == Back::Stays {
                stay.insert(job);
            }
        }
    }

    /// Gives a job in hand back. Where a requeued job goes to the head of its queue, the last must go first, so
    /// that their order is kept.
    async fn give_back(&self, held: Held) -> Back {
        let sidecar = &self.sidecar;
        let job = held.claimed.job.clone();
        // First, so that no sibling takes it over meanwhile; if one has, the row is not ours to end.
        let ended = sidecar.end(&job, Some(held.claimed.generation)).await;
        if ended.is_none() && sidecar.store.siblings() > 0 {
            if sidecar.went_elsewhere(&job).await {
                return Back::Elsewhere;
            }
            self.keep(held).await;
            return Back::Stays;
        }
        self.requeue(held).await
    }

    /// Gives a job in hand back that no sibling can take over.
    pub(super) async fn requeue(&self, mut held: Held) -> Back {
        let sidecar = &self.sidecar;
        let (job, generation) = (held.claimed.job.clone(), held.claimed.generation);
        let left = held.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !sidecar.hold.has_claim(&job, generation) {
            // A job whose claim may be over may be with a worker.
            held.doubt();
            self.keep(held).await;
            return Back::Stays;
        }
        let body = said::requeue(&job, &held.claimed.claim_id);
        let mut nack = post(self, held.claimed.scope, "/ojs/v1/workers/nack", body);
        nack.timeout = nack.timeout.min(PATIENCE).min(left);
        match call(self, "give_back", nack).await {
            Ok(reply) if reply.status.is_success() => {
                // Before it leaves the hold: what counts twice for a moment is not over a bound unseen.
                sidecar.pressure.came(&held.claimed.queue, None);
                sidecar.hold.forget_claim(&job, generation);
                sidecar.waits_again(&held.claimed);
                sidecar.metrics.count(Counted::Returned);
                sidecar.given_back.fetch_add(1, Ordering::Relaxed);
                Back::Given
            }
            // It may be done, or be done yet, and must not be with a worker then: no proof of a claim tells ours
            // from a later one in the same attempt.
            Ok(reply) if is_of_gateway(reply.status) => self.let_go(&held).await,
            Err(error) if error.in_doubt() => self.let_go(&held).await,
            // Cancelled, lapsed, or never asked: if it is still ours it waits on, and the next heartbeat tells.
            _ => {
                held.doubt();
                self.keep(held).await;
                Back::Stays
            }
        }
    }

    async fn let_go(&self, held: &Held) -> Back {
        self.sidecar.abandon(&held.claimed).await;
        Back::InDoubt
    }

    /// A job that was not given back waits on, and siblings know of it again.
    async fn keep(&self, held: Held) {
        let sidecar = &self.sidecar;
        let claimed = held.claimed.clone();
        let (job, generation) = (&claimed.job, claimed.generation);
        if sidecar.hold.has_claim(job, generation) {
            sidecar.register(std::slice::from_ref(&held)).await;
            sidecar.hold.wait_on(held);
        }
        // Ended meanwhile, when it had no row.
        if !sidecar.hold.has_claim(job, generation) {
            sidecar.end(job, Some(generation)).await;
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
