//! Other sidecars on the same store: what they do that matters here, and held jobs that go from one to
//! another. A held job's row is known to all. Where its owner has no worker for it, drains, or is gone,
//! a sidecar whose worker asks for jobs of its lane takes it over.

use std::cmp;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job::{Origin, Shown};
use super::lookup::{Lookup, job_in};
use super::prove::attempt_since;
use super::settle::PAUSES;
use super::{Proxy, Sidecar};
use crate::hold::{Held, Lane};
use crate::metrics::Counted;
use crate::store::{Change, Claimed, Gen, Known, OFFERED, Place, Row, StoreError, Wake};

/// The most held jobs that are taken over for one FETCH.
const AT_ONCE: usize = 16;
/// So many questions for a pause are on their way to the store at once.
const QUESTIONS: usize = 16;
/// How long siblings have to take what is offered, in a drain and before some of it is let go.
pub(super) const OFFER: Duration = Duration::from_secs(5);

/// How long a lane is looked into after the store has named it: one in which an offer stands is named again
/// by one of the next beats.
const STANDS: Duration = Duration::from_secs(60);

/// Lanes in which siblings have offered held jobs, with the time when that was heard of last.
#[derive(Default, Debug)]
pub(super) struct Offered {
    any: AtomicBool,
    lanes: Mutex<HashMap<Lane, Instant>>,
}

impl Offered {
    fn put(&self, lane: Lane) {
        let mut lanes = self.lanes.lock();
        lanes.insert(lane, Instant::now());
        self.any.store(true, Ordering::Release);
    }

    /// Forgets what was named long ago and has found nobody who wants it.
    pub(super) fn tidy(&self) {
        if self.any() {
            let mut lanes = self.lanes.lock();
            lanes.retain(|_, heard| heard.elapsed() < STANDS);
            self.any.store(!lanes.is_empty(), Ordering::Release);
        }
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn take(&self, lane: &Lane) -> bool {
        let mut lanes = self.lanes.lock();
        let found = lanes.remove(lane).is_some();
        self.any.store(!lanes.is_empty(), Ordering::Release);
        found
    }
}

/// How the hold followed when the store was lost and came back.
#[derive(Default, Debug)]
pub(super) struct Loss {
    /// When the store was told of our rows again, as far as the hold has followed.
    told_anew: Option<Instant>,
    /// While it is lost: since when jobs are set aside, and how many were so far. 0: that was said.
    aside: Option<(Instant, usize)>,
}

/// What was on its way at a loss comes in for so long.
const COMES_IN: Duration = Duration::from_millis(500);

impl Loss {
    fn set_aside(&mut self, is_lost: bool, jobs: usize) {
        match &mut self.aside {
            aside if !is_lost => *aside = None,
            Some((_, count)) if *count > 0 => *count += jobs,
            None if jobs > 0 => self.aside = Some((Instant::now(), jobs)),
            _ => {}
        }
    }

    /// How many were set aside, if that is to be said now.
    fn take_all_in(&mut self) -> Option<usize> {
        let (since, jobs) = self.aside.as_mut()?;
        let is_all = *jobs > 0 && since.elapsed() >= COMES_IN;
        is_all.then(|| std::mem::take(jobs))
    }
}

impl Proxy {
    /// Follows what siblings tell until the sidecar is told to stop. With the memory store there are
    /// none.
    pub async fn hear_siblings(&self, stop: CancellationToken) {
        let sidecar = &self.sidecar;
        loop {
            let wake = tokio::select! {
                wake = sidecar.store.wake() => wake,
                () = stop.cancelled() => return,
            };
            match wake {
                Wake::Freed(keys) => sidecar.hold.wake_keys(&keys),
                Wake::Row { job } => sidecar.follow_row(&job).await,
                Wake::Offered { scope, queue } => {
                    sidecar.offered.put(Lane { scope, queue });
                    sidecar.hold.wake_all();
                }
                Wake::Paused { queue, paused } => {
                    sidecar.heard_of_pause(&queue, paused).await;
                }
                Wake::All => {
                    sidecar.follow_loss();
                    sidecar.follow_settings();
                    self.read_pauses().await;
                    sidecar.hold.ask_all();
                }
            }
        }
    }

    /// Learns which queues of held jobs are paused.
    async fn read_pauses(&self) {
        if self.sidecar.store.siblings() == 0 {
            return;
        }
        let mut queues = self.sidecar.hold.counts().into_keys();
        let mut questions = JoinSet::new();
        loop {
            while questions.len() < QUESTIONS
                && let Some(queue) = queues.next()
            {
                let sidecar = Arc::clone(&self.sidecar);
                questions.spawn(async move { sidecar.read_pause(&queue).await });
            }
            if questions.join_next().await.is_none() {
                return;
            }
        }
    }

    /// Takes over what siblings have offered of these queues, for a worker that is here now; in a task
    /// of its own, which ends whatever becomes of the worker.
    pub(super) async fn take_over_of(&self, scope: u64, queues: &[Arc<str>]) {
        if !self.sidecar.offered.any() {
            return;
        }
        let (proxy, queues) = (self.clone(), queues.to_vec());
        let taken = self.sidecar.tasks.spawn(async move {
            for queue in queues {
                proxy.take_over(&Lane { scope, queue }).await;
            }
        });
        // Only a panic in there could fail, and would have been logged.
        drop(taken.await);
    }

    async fn take_over(&self, lane: &Lane) {
        let sidecar = &self.sidecar;
        if sidecar.draining.is_cancelled() || !sidecar.offered.take(lane) {
            return;
        }
        sidecar.read_pause(&lane.queue).await;
        let rows = sidecar.store.offered(lane.scope, &lane.queue, AT_ONCE);
        let Ok(rows) = rows.await else {
            return sidecar.offered.put(lane.clone());
        };
        if rows.len() >= AT_ONCE {
            sidecar.offered.put(lane.clone());
        }
        let mut unheard = 0;
        for row in rows {
            sidecar.hold.taking_over(lane, Instant::now());
            let heard = self.take_over_row(row).await;
            sidecar.hold.taken_over(lane, Instant::now());
            unheard += u32::from(!heard);
            if unheard > 1 {
                // It was not for one job's sake: the others would have no answer either.
                return sidecar.offered.put(lane.clone());
            }
        }
    }

    /// The backend is asked for it first: until it is known here it stays its owner's, who keeps it alive.
    /// `false`: it did not answer.
    async fn take_over_row(&self, row: Row) -> bool {
        let sidecar = &self.sidecar;
        let claimed = row.claimed;
        let held = match self.read_again(&claimed, Instant::now()).await {
            Again::Ours(held) => held,
            Again::Over => {
                sidecar.end(&claimed.job, Some(claimed.generation)).await;
                return true;
            }
            // Whoever takes it over next asks again.
            Again::Unclear => return true,
            Again::Unheard => return false,
        };
        let next = sidecar.next_claim(sidecar.store.now());
        let own = Change::Own {
            job: claimed.job.clone(),
            generation: claimed.generation,
            next,
            until: claimed.look_again(sidecar.store.now()),
        };
        let owned = matches!(sidecar.store.set(own).await, Ok(true));
        if owned || sidecar.owns(&claimed.job, next).await {
            sidecar.hold_taken_over(*held, &claimed, next).await;
        }
        true
    }

    /// The job as the backend has it.
    async fn read_again(&self, claimed: &Claimed, sent: Instant) -> Again {
        let sidecar = &self.sidecar;
        let mark = sidecar.pressure.mark();
        let reply = match self.look_up(claimed.scope, &claimed.job).await {
            Lookup::Found(reply) => reply,
            Lookup::Gone => return Again::Over,
            Lookup::Unknown => return Again::Unclear,
            Lookup::Unanswered => return Again::Unheard,
        };
        let Some(job) = job_in(&reply) else {
            return Again::Unclear;
        };
        let lane = Lane::of(claimed);
        // That of the FETCH which claimed it: the scope says both.
        let tenant = sidecar.scopes.tenant_of(claimed.scope);
        let origin = Origin {
            asked: 1,
            scope: claimed.scope,
            tenant: tenant.as_deref(),
            lanes: &[lane],
            claim_id: &claimed.claim_id,
            visibility: Some(Duration::from_micros(claimed.visibility)),
            sent,
            mark,
        };
        let state = job.get("state").and_then(|state| state.text());
        let live = sidecar.live();
        let mut reading = sidecar.reading(&reply, &origin, &live, Instant::now());
        let held = sidecar.read_job(&Shown::of(job), &mut reading);
        let active = state.is_some_and(|state| state == "active");
        let same = attempt_since(claimed.attempt, job).is_none_or(cmp::Ordering::is_eq);
        match held.filter(|_| active && same) {
            Some(held) => Again::Ours(Box::new(held)),
            None => Again::Over,
        }
    }
}

/// What the backend has of a job that a sibling holds.
enum Again {
    /// It is active in that attempt still.
    Ours(Box<Held>),
    /// It is not.
    Over,
    /// It says something else.
    Unclear,
    /// It did not answer, or not now.
    Unheard,
}

impl Sidecar {
    /// Whether a job is held by us under this claim: the answer to a change that made it so may be lost.
    pub(super) async fn owns(&self, job: &str, claim: Gen) -> bool {
        let row = self.store.row(job).await.ok().flatten();
        row.is_some_and(|row| row.ours && row.claimed.generation == claim)
    }

    /// A job that was taken over from a sibling is in the hold from here on.
    async fn hold_taken_over(&self, mut held: Held, claimed: &Claimed, claim: Gen) {
        held.claimed.generation = claim;
        held.claimed.claimed_at = claimed.claimed_at;
        // When its claim was last extended only its former owner knew: the next sweep extends it, and it is
        // proven before it goes out.
        held.doubt();
        self.metrics.count(Counted::HoldAdopted);
        self.scopes.accept_known(claimed.scope);
        self.noted(std::iter::once(&held.claimed));
        // So that the row is known here too, and asked about after an outage.
        self.register(std::slice::from_ref(&held)).await;
        self.hold.add(vec![held]);
    }

    /// Puts rows of held jobs into a store that others share, so that they know of them.
    pub(super) async fn register(&self, held: &[Held]) {
        if !self.store.is_shared() || held.is_empty() {
            return;
        }
        let claims: Vec<&Claimed> = held.iter().map(|held| &held.claimed).collect();
        // While the store is away nothing starts either; the question of a start makes the row then.
        drop(self.store.take(&claims, 0).await);
    }

    /// While the store is lost, held jobs that siblings may have taken over are out of reach. Once it is back, those
    /// that are siblings' leave the hold, and the others are asked about and asked for again.
    pub(super) fn follow_loss(&self) {
        let is_lost = self.store.is_lost();
        let mut loss = self.loss.lock();
        let gone = self.store.elsewhere();
        if !gone.is_empty() {
            for (claimed, row) in &gone {
                if self.hold.has_claim(&claimed.job, claimed.generation) {
                    self.forget_for(&claimed.job, row.clone());
                }
            }
            self.store.forgot(&gone);
            let jobs = gone.iter().filter(|(_, row)| row.is_some()).count();
            if jobs > 0 {
                tracing::info!(
                    jobs,
                    "siblings took over held jobs while they did not hear of us"
                );
            }
            let jobs = gone.len() - jobs;
            if jobs > 0 {
                tracing::info!(
                    jobs,
                    "held jobs are not in the store: they have ended elsewhere meanwhile, or it cannot keep them"
                );
            }
        }
        let told_anew = self.store.told_anew();
        if let Some(then) = told_anew.filter(|_| loss.told_anew != told_anew) {
            loss.told_anew = told_anew;
            self.hold.doubt_before(then);
        }
        let jobs = (self.hold).set_aside(|claimed| is_lost && self.store.sets_aside(claimed));
        loss.set_aside(is_lost, jobs);
    }

    /// Says how many jobs were set aside, once for each loss, when what was on its way then has come in.
    pub(super) fn tell_aside(&self) {
        let jobs = self.loss.lock().take_all_in();
        if let Some(jobs) = jobs {
            tracing::warn!(
                jobs,
                "held jobs wait for the store or for the end of their claims: siblings may have taken them over"
            );
        }
    }

    /// How many jobs of a queue siblings hold, for those who look at its numbers; 0 while the store is away.
    pub(super) async fn held_by_siblings(&self, queue: &str) -> usize {
        if !self.store.is_shared() || self.store.is_alone() {
            return 0;
        }
        let held = self.store.held_by_others(queue).await.unwrap_or(0);
        usize::try_from(held).unwrap_or(usize::MAX)
    }

    /// A job's row. The store is asked only where the job may have one that is not known here.
    pub(super) async fn row_of(&self, job: &str) -> Result<Option<Row>, StoreError> {
        match self.store.known(job) {
            Known::Out(row) => Ok(Some(*row)),
            Known::No if !self.hold.has(job) => Ok(None),
            _ => self.store.row(job).await,
        }
    }

    /// A job's row. The store is asked again and again until `deadline`, while its answer leaves the caller
    /// `unsure`.
    pub(super) async fn row_by(
        &self,
        job: &str,
        deadline: Instant,
        unsure: impl Fn(&Result<Option<Row>, StoreError>) -> bool,
    ) -> Result<Option<Row>, StoreError> {
        let mut pause = PAUSES.0;
        loop {
            let row = self.row_of(job).await;
            if !unsure(&row) || Instant::now() + pause >= deadline {
                return row;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// A sibling had to do with a row of ours: the hold does as the row says.
    async fn follow_row(&self, job: &str) {
        let Ok(row) = self.store.row(job).await else {
            // The next question of a start tells.
            return;
        };
        match row {
            Some(row) if row.ours && row.hidden => self.hide_for_another(&row.claimed.job),
            Some(row) if row.ours => self.show_for_another(job),
            row => self.forget_for(job, row),
        }
    }

    /// A job in hand that the store does not start: it was hidden through a sibling, or it is not ours
    /// any more, or it was started already.
    pub(super) async fn lost(&self, held: Held) {
        let (job, claim) = (held.claimed.job.clone(), held.claimed.generation);
        if !self.store.is_shared() {
            self.hold.forget_claim(&job, claim);
            return;
        }
        if !self.hold.has_claim(&job, claim) {
            // A newer claim of ours has taken its place.
            return;
        }
        // First, so that a word of a sibling that comes meanwhile has the last one.
        self.hide_for_another(&job);
        match self.store.row(&job).await {
            Ok(Some(row)) if row.ours && row.claimed.generation == held.claimed.generation => {
                if row.place == Place::Out {
                    // A start of which nobody heard: what is in hand is with no worker.
                    self.back(&held.claimed).await;
                    self.hold.wake(&held.claimed.limited);
                }
                if !row.hidden {
                    self.show_for_another(&job);
                }
                self.hold.put_back(held, None);
            }
            // If the store is away the next question of a start tells.
            Err(_) => {
                self.show_for_another(&job);
                self.hold.put_back(held, None);
            }
            // Shown again first: a newer claim may have taken its place since.
            Ok(Some(row)) if row.ours => {
                self.show_for_another(&job);
                self.hold.forget_claim(&job, claim);
            }
            Ok(row) => self.forget_for(&job, row),
        }
    }

    /// Whether a sibling has taken over a job in hand whose row was not ours to end: it is forgotten then.
    pub(super) async fn went_elsewhere(&self, job: &str) -> bool {
        match self.store.row(job).await {
            Ok(Some(row)) if !row.ours => {
                self.forget_for(job, Some(row));
                true
            }
            _ => false,
        }
    }

    /// A held job is not ours any more: this is its row.
    pub(super) fn forget_for(&self, job: &str, row: Option<Row>) {
        let taken = row.filter(|row| !row.ours && row.place == Place::Held);
        if let Some(row) = taken.filter(|_| self.hold.has(job)) {
            // First, so that it counts all the time.
            self.pressure.taken_over(&row.claimed.queue);
        }
        self.hold.forget(job);
        self.show_for_another(job);
    }

    /// Tells siblings that a queue is paused through us, or is not.
    pub(super) async fn share_pause(&self, queue: &str, paused: bool) {
        if self.store.is_shared() {
            // If the store is away, siblings hear it from the backend, which gives them no jobs.
            drop(self.store.pause(queue, paused).await);
        }
    }

    async fn heard_of_pause(&self, queue: &str, paused: bool) {
        let _nobody_reads = self.paused.reading.write().await;
        self.paused.set(queue, paused);
        if !paused {
            self.hold.wake_all();
        }
    }

    /// Learns whether a queue is paused; that it still is, the backend is asked soon.
    async fn read_pause(&self, queue: &str) {
        let _reading = self.paused.reading.read().await;
        if let Ok(true) = self.store.is_paused(queue).await {
            self.paused.set(queue, true);
        }
    }

    /// Whether a held job should go to a sibling: nobody asks for it here, and somebody may elsewhere.
    pub(super) fn offers(&self, claimed: &Claimed) -> bool {
        if self.store.siblings() == 0 {
            return false;
        }
        let lane = Lane::of(claimed);
        let idle = self.live().settings.hold_idle;
        self.draining.is_cancelled() || self.hold.is_idle(&lane, idle, Instant::now())
    }

    /// Offers all held jobs, and waits a while for siblings to take them, `most` at the most.
    pub(super) async fn offer_all(&self, most: Duration) {
        if self.store.siblings() == 0 {
            return;
        }
        let held = self.hold.proofs();
        let offers = held
            .iter()
            .map(|(claimed, ..)| Change::until(claimed, OFFERED));
        self.renew_rows(offers.collect()).await;
        let patience = Instant::now() + OFFER.min(most);
        while !self.hold.proofs().is_empty() && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lane_is_forgotten_that_is_named_no_more() {
        let offered = Offered::default();
        let lane = |queue: &str| Lane {
            scope: 1,
            queue: queue.into(),
        };
        offered.put(lane("left"));
        offered.put(lane("stands"));
        tokio::time::advance(STANDS / 2).await;
        offered.tidy();
        offered.put(lane("stands"));
        tokio::time::advance(STANDS / 2).await;
        offered.tidy();
        assert!(offered.any());
        assert!(!offered.take(&lane("left")));
        assert!(offered.take(&lane("stands")));
        assert!(!offered.any());
        offered.put(lane("alone"));
        tokio::time::advance(STANDS).await;
        offered.tidy();
        assert!(!offered.any(), "no FETCH asks for it any more");
    }
}
