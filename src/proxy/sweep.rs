//! The sweep: what must be done although nobody asks. What is due is looked after, and what is empty is forgotten.
//! Beside it held jobs get heartbeats (`keep`) or go back to the backend (`give_back`), jobs that run already get
//! their slots (`adopt`), and the backend is asked about slots whose deadline has passed (`overdue`), about paused
//! queues (`pauses`), and whether it is there again (`outage`): none of them waits for another, and the sweep, by
//! which siblings see that we live, for none of them.

mod adopt;
mod crowded;
mod give_back;
mod keep;
mod outage;
mod overdue;
mod pauses;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Proxy, Sidecar};
use crate::store::{Change, Claimed, OFFERED, Place, Row};

pub(super) use adopt::Adoption;
use crowded::Crowd;
use overdue::Slots;
pub(super) use overdue::heard;

/// The longest time between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// Rows looked at in one go.
const AT_ONCE: usize = 256;
/// How often what came with requests and is not used any more is forgotten.
const FORGET: Duration = Duration::from_secs(600);

impl Proxy {
    /// Does what must be done although nobody asks, until the sidecar is told to stop.
    pub async fn attend(&self, stop: CancellationToken) {
        tokio::join!(
            // Rows that are due, jobs that are to be dropped, what is empty.
            self.sweep(stop.clone()),
            // Heartbeats for held jobs.
            self.keep_held(stop.clone()),
            // Held jobs that nobody asks for go back to the backend.
            self.return_idle(stop.clone()),
            // Which queues the backend has paused.
            self.ask_about_paused(stop.clone()),
            // Whether a backend that was away is back.
            self.watch_backend(stop.clone()),
            // Places in bounded queues, which the fleet shares.
            self.share_depths(stop.clone()),
            // What siblings tell.
            self.hear_siblings(stop)
        );
    }

    /// Runs until the sidecar is told to stop looking.
    pub async fn sweep(&self, stop: CancellationToken) {
        let overdue = Slots::default();
        let mut crowd = Crowd::default();
        let mut edition = self.sidecar.live().edition;
        let mut adopting: Option<JoinHandle<()>> = None;
        let mut forgotten = Instant::now();
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.meet_queues().await;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.sidecar.end_expired();
            self.sidecar.follow_settings();
            self.sidecar.follow_loss();
            self.sidecar.tell_aside();
            self.make_room(&mut crowd).await;
            self.let_lapse().await;
            self.drop_soon(self.sidecar.hold.doomed());
            self.look_at_due(&overdue, &stop).await;
            self.sidecar.show_forgotten().await;
            self.sidecar.offered.tidy();
            self.watch_bounds();
            if forgotten.elapsed() >= FORGET {
                forgotten = Instant::now();
                self.sidecar.forget_unused();
            }
            let now = self.sidecar.live().edition;
            if edition != now && adopting.as_ref().is_none_or(JoinHandle::is_finished) {
                edition = now;
                adopting = Some(self.adopt_again(&stop));
            }
            let minute_ago = Instant::now().checked_sub(Duration::from_secs(60));
            if let Some(minute_ago) = minute_ago {
                self.sidecar.hold.tidy(minute_ago);
            }
        }
    }

    /// Forgets the jobs that were set aside when their claims are over: the backend hands them out again.
    async fn let_lapse(&self) {
        let sidecar = &self.sidecar;
        if !sidecar.store.is_lost() {
            return;
        }
        let is_aside = |claimed: &Claimed| sidecar.store.sets_aside(claimed);
        for claimed in sidecar.hold.lapsed(is_aside) {
            sidecar.lose(&claimed).await;
        }
    }

    /// What is due, and that we live.
    async fn look_at_due(&self, overdue: &Slots, stop: &CancellationToken) {
        let Ok(rows) = self.sidecar.store.due(AT_ONCE).await else {
            return;
        };
        let (held, out): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| row.place == Place::Held);
        self.look_after_held(&held).await;
        self.ask_about(out, overdue, stop).await;
    }

    async fn look_after_held(&self, rows: &[Row]) {
        let mut later = Vec::new();
        for row in rows {
            let claimed = &row.claimed;
            if !self.sidecar.hold.has(&claimed.job) {
                self.end_unheld(claimed).await;
                continue;
            }
            match self.sidecar.offers(claimed) {
                true if row.until == OFFERED => {}
                true => later.push(Change::until(claimed, OFFERED)),
                // Siblings must see that nobody looks after it while the claim lasts.
                false => {
                    let now = self.sidecar.store.now();
                    later.push(Change::until(claimed, claimed.look_again(now)));
                }
            }
        }
        self.sidecar.renew_rows(later).await;
    }

    /// Ends the row of a job that was held when the store was asked, and is not now. If it has gone out since,
    /// it keeps its slots.
    async fn end_unheld(&self, claimed: &Claimed) {
        let sidecar = &self.sidecar;
        let (job, claim) = (&claimed.job, claimed.generation);
        if let Ok(Some(row)) = sidecar.store.row(job).await
            && row.place == Place::Held
            && !sidecar.hold.has(job)
        {
            sidecar.end(job, Some(claim)).await;
        }
    }
}

impl Sidecar {
    /// Forgets names of queues, keys and credentials that came with requests and are not used any more: nobody
    /// says when that is so.
    fn forget_unused(&self) {
        let now = self.now();
        self.pressure.forget_unused(now);
        self.gated.forget_unused(now.at);
        self.scopes.forget_unused();
        self.live().forget_known();
    }

    /// Moves the times of rows, all in one call.
    pub(super) async fn renew_rows(&self, rows: Vec<Change>) {
        if !rows.is_empty() {
            // If the store is away they are overdue when their old times pass, and are looked at then.
            let _moved = self.store.set_all(rows).await;
        }
    }

    /// How many limited jobs are out with workers through us; `None`: the store does not say. Before it has
    /// ever answered none has started, and it is not waited for.
    pub async fn out(&self) -> Option<usize> {
        if !self.store.has_answered() {
            return Some(0);
        }
        self.store.count(Place::Out).await.ok()
    }
}
