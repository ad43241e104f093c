//! The sweep: what must be done although nobody asks. Held jobs get heartbeats, what is due is looked after, and
//! what is empty is forgotten. Beside it held jobs go back to the backend (`give_back`), and slots whose deadline
//! has passed are asked about (`overdue`).

mod adopt;
mod give_back;
mod overdue;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::prove::{Named, Word};
use super::{DEFAULT_VISIBILITY, Proxy, Sidecar, paused};
use crate::limit::Timestamp;
use crate::pressure::{Bounds, Strategy};
use crate::store::{Change, Claimed, Place, Row};

pub(super) use adopt::Unlearnt;
use overdue::Asking;

/// The longest time between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// How long a pause is taken for granted before the backend is asked whether it still stands.
const PAUSED_FOR: Duration = Duration::from_secs(5);
/// Jobs in one heartbeat of ours, rows looked at in one go.
const AT_ONCE: usize = 256;

impl Proxy {
    /// Runs until the sidecar is told to stop looking.
    pub async fn sweep(&self, stop: CancellationToken) {
        let asking = Asking::default();
        let mut edition = self.sidecar.live().edition;
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
            self.keep_held().await;
            self.let_lapse().await;
            self.drop_soon(self.sidecar.hold.doomed());
            self.look_at_due(&asking, &stop).await;
            self.ask_about_paused().await;
            self.sidecar.show_forgotten().await;
            self.sidecar.offered.tidy();
            self.watch_bounds();
            let now = self.sidecar.live().edition;
            if std::mem::replace(&mut edition, now) != now {
                Box::pin(self.adopt_again()).await;
            }
            let minute_ago = Instant::now().checked_sub(Duration::from_secs(60));
            if let Some(minute_ago) = minute_ago {
                self.sidecar.hold.tidy(minute_ago);
            }
        }
    }

    /// One heartbeat for the held jobs of each claim id whose claim is a third over.
    async fn keep_held(&self) {
        let now = Instant::now();
        let mut due: HashMap<(u64, Arc<str>, Duration), Vec<Claimed>> = HashMap::new();
        for (claimed, proven) in self.sidecar.hold.proofs() {
            if self.sidecar.store.sets_aside(&claimed) {
                continue;
            }
            // A held job needs no more than the default: should this process die, the backend has it
            // back soon. The worker's own visibility is given when it goes out.
            let visibility = Duration::from_micros(claimed.visibility).min(DEFAULT_VISIBILITY);
            if now.duration_since(proven) >= visibility / 3 {
                let group = (claimed.scope, claimed.claim_id.clone(), visibility);
                due.entry(group).or_default().push(claimed);
            }
        }
        for ((scope, claim_id, visibility), claims) in due {
            for batch in claims.chunks(AT_ONCE) {
                self.keep_claims(scope, &claim_id, visibility, batch).await;
            }
        }
    }
}

impl Proxy {
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

    async fn keep_claims(
        &self,
        scope: u64,
        claim_id: &str,
        visibility: Duration,
        claims: &[Claimed],
    ) {
        let jobs: Vec<Named> = claims
            .iter()
            .map(|claimed| (claimed.job.clone(), claimed.attempt))
            .collect();
        let hold = &self.sidecar.hold;
        let now = self.sidecar.store.now();
        let ages = claims.iter().map(|claimed| now.since(claimed.claimed_at));
        let age = Duration::from_micros(ages.max().unwrap_or(0));
        let words = self
            .confirm(scope, claim_id, &jobs, jobs.len(), visibility, age)
            .await;
        for (claimed, word) in claims.iter().zip(words) {
            let gone = match word {
                Word::Ours(since) => {
                    hold.proved(&claimed.job, since, visibility);
                    false
                }
                Word::Gone => true,
                // For want of its word the claim counts until its deadline.
                Word::None => hold.is_past_deadline(&claimed.job),
            };
            if gone {
                self.sidecar.lose(claimed).await;
            }
        }
    }

    /// A queue that was paused through us may be resumed elsewhere; what is held of it must not wait for
    /// ever for a word that never comes this way, nor those who enqueue where the oldest goes for it.
    async fn ask_about_paused(&self) {
        let counts = self.sidecar.hold.counts();
        let bounds = |queue: &str| self.sidecar.pressure.bounds(queue);
        let matters = |queue: &str| {
            let drops = |bounds: &Bounds| bounds.strategy == Strategy::DropOldest;
            counts.contains_key(queue) || bounds(queue).as_deref().is_some_and(drops)
        };
        for (queue, since) in self.sidecar.paused.since(matters) {
            if since.elapsed() < PAUSED_FOR {
                continue;
            }
            let asked = Instant::now();
            let path: String = crate::ojs::encoded(&queue);
            let call = super::get(self, 0, format!("/ojs/v1/queues/{path}/stats"));
            let Ok(reply) = super::call(self, "queue_stats", call).await else {
                // The others would be waited for as long, and held jobs need their heartbeats.
                return;
            };
            match paused::told(&reply.body) {
                Some(false) => {
                    self.sidecar.paused.is_over(&queue, asked);
                    self.sidecar.hold.wake_all();
                }
                _ => self.sidecar.paused.stands(&queue),
            }
        }
    }

    /// What is due, and that we live.
    async fn look_at_due(&self, asking: &Asking, stop: &CancellationToken) {
        let Ok(rows) = self.sidecar.store.due(AT_ONCE).await else {
            return;
        };
        let (held, out): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| row.place == Place::Held);
        self.look_after_held(&held).await;
        self.ask_about(out, asking, stop);
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
                true if row.until == Timestamp(0) => {}
                true => later.push(Sidecar::offer(claimed)),
                // Siblings must see that nobody looks after it while the claim lasts.
                false => {
                    let now = self.sidecar.store.now();
                    later.push(look_later(row, now.plus(claimed.visibility / 3)));
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

/// The row is looked at again then.
fn look_later(row: &Row, until: Timestamp) -> Change {
    let claimed = &row.claimed;
    Change::Until {
        job: claimed.job.clone(),
        generation: claimed.generation,
        until,
        visibility: claimed.visibility,
    }
}

impl Sidecar {
    /// Moves the times of rows, all in one call.
    pub(super) async fn renew_rows(&self, rows: Vec<Change>) {
        if !rows.is_empty() {
            // If the store is away they are overdue when their old times pass, and are looked at then.
            let _moved = self.store.set_all(rows).await;
        }
    }

    /// Whether nothing limited is out with workers through us.
    pub async fn quiet(&self) -> bool {
        matches!(self.store.count(Place::Out).await, Ok(0))
    }
}
