//! A hold that is full of jobs that no worker asks for: siblings may have them, the backend gets some of them back
//! where that costs nothing, and others lapse.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::give_back::Back;
use crate::hold::Held;
use crate::proxy::load::Seldom;
use crate::proxy::siblings::OFFER;
use crate::proxy::{Proxy, Sidecar};
use crate::store::{Change, Claimed, OFFERED};

/// How long jobs in hand are given back in one go: nothing keeps their claims meanwhile.
const ROUND: Duration = Duration::from_secs(1);

/// What was done about a crowded hold.
#[derive(Default, Debug)]
pub(super) struct Crowd {
    warned: Arc<Seldom>,
    letting_go: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Looks which queues no worker has asked for in a while, and lets go of some of what is held of them where
    /// there is more than has room beside the hold and other jobs need the places. Siblings have a while to take it
    /// before.
    pub(super) async fn make_room(&self, crowd: &mut Crowd) {
        let sidecar = &self.sidecar;
        let (max, bytes, idle) = {
            let settings = &sidecar.live().settings;
            let max = sidecar.hold_max(settings);
            (max, settings.hold_bytes, settings.hold_idle)
        };
        sidecar.hold.look_for_idle(idle, Instant::now());
        let is_over = |task: &JoinHandle<()>| task.is_finished();
        if !crowd.letting_go.as_ref().is_none_or(is_over) {
            return;
        }
        let mut offered = Duration::ZERO;
        if sidecar.store.siblings() > 0 {
            // Nobody hears of an offer then, nor do we of what somebody has taken.
            if sidecar.store.is_lost() {
                return;
            }
            offered = OFFER;
            sidecar.offer_crowding(max, bytes).await;
        }
        let crowding = sidecar.hold.take_crowding(max, bytes, offered);
        if !crowding.is_empty() {
            let let_go = self.clone().let_all_go(crowding, crowd.warned.clone());
            // Beside the sweep: the backend may be slow.
            crowd.letting_go = Some(sidecar.tasks.spawn(let_go));
        }
    }

    /// Lets go of jobs in hand: the backend has them back at once where that costs them nothing and it takes them,
    /// and when their claims lapse elsewhere.
    async fn let_all_go(self, crowding: Vec<Held>, warned: Arc<Seldom>) {
        let (sidecar, begun) = (&self.sidecar, Instant::now());
        let mut crowding = crowding.into_iter();
        for held in crowding.by_ref() {
            let claimed = held.claimed.clone();
            let harmless = sidecar.backend.requeue_harmless();
            let back = match sidecar.withdraw(&claimed).await {
                Withdrawn::Elsewhere => Back::Elsewhere,
                Withdrawn::Ended if harmless => self.requeue(held).await,
                Withdrawn::Ended | Withdrawn::Unsure => Back::Stays,
            };
            if back == Back::Stays {
                if warned.now() {
                    tracing::warn!(
                        queue = &*claimed.queue,
                        held = sidecar.hold.len(),
                        "the hold is full of jobs that no worker asks for; the claims of some lapse, so that others \
                         can start, and to each this is the death of a worker: start workers for these queues, or \
                         raise hold.max and hold.max_bytes"
                    );
                }
                sidecar.abandon(&claimed).await;
            }
            sidecar.hold.ended(&claimed.job, claimed.generation);
            // Each would be let go like one in doubt.
            if back == Back::InDoubt || begun.elapsed() >= ROUND {
                break;
            }
        }
        // From the front, so that they keep their order.
        crowding.rev().for_each(|held| sidecar.hold.wait_on(held));
    }
}

/// What became of the row of a job that is let go.
enum Withdrawn {
    /// No sibling takes it over from here on.
    Ended,
    /// A sibling had taken it over.
    Elsewhere,
    /// It may be ours still: the store did not say.
    Unsure,
}

impl Sidecar {
    /// Ends the row of a job that is let go. One that a sibling has taken over is forgotten.
    async fn withdraw(&self, claimed: &Claimed) -> Withdrawn {
        let job = &claimed.job;
        if self.end(job, Some(claimed.generation)).await.is_some() || self.store.siblings() == 0 {
            return Withdrawn::Ended;
        }
        match self.store.row(job).await {
            // It was offered: a sibling has it, or had it until it ended.
            Ok(row) if row.as_ref().is_none_or(|row| !row.ours) => {
                self.forget_for(job, row);
                Withdrawn::Elsewhere
            }
            _ => Withdrawn::Unsure,
        }
    }

    /// Offers to siblings what may have to go. What the store does not hear of is offered again at the next look.
    async fn offer_crowding(&self, max: usize, max_bytes: usize) {
        let offers = self.hold.crowding(max, max_bytes);
        if offers.is_empty() {
            return;
        }
        let changes = offers.iter().map(|claimed| Change::until(claimed, OFFERED));
        let told = self.store.set_all(changes.collect());
        // Where it is lost, an answer is not the store's.
        if told.await.is_ok() && !self.store.is_lost() {
            self.hold.offered(&offers);
        }
    }
}
