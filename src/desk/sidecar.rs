//! The state of one sidecar: what all threads share.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::Guard;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::admit::Admit;
use super::backend::BackendFacts;
use super::calling::Calling;
use super::control;
use super::fetching::Fetching;
use super::keeper::Keeper;
use super::live::{Live, ProxySettings};
use super::outlive::Tasks;
use super::process::{FollowedFile, Readiness};
use super::scope::Scopes;
use super::settle::Settle;
use super::shadow::Shadow;
use super::snapshot::SharedSnapshot;
use crate::answers::load;
use crate::bounds::{HeldCount, Pressure};
use crate::config;
use crate::desk::settings;
use crate::hold::{Amount, Held, Hold};
use crate::limit::{EARLY, Key, Limited, Space, Timestamp};
use crate::policy::PolicySet;
use crate::store::{Claimed, End, Gen, LedgerExt, Row, Store, StoreError};
use crate::subqueues::Subqueues;
use crate::told::events::Events;
use crate::told::metrics::{Counted, Metrics};
use crate::wire::upstream::{Reply, UpstreamError};

/// The state of one sidecar, shared by its threads: what all parts use, and the state of each part.
#[derive(Debug)]
pub struct Sidecar {
    pub(crate) store: Store,
    pub(crate) hold: Arc<Hold>,
    pub(crate) metrics: Metrics,
    pub(crate) events: Events,
    pub(crate) backend: BackendFacts,
    pub(crate) scopes: Scopes,
    pub(crate) tasks: Tasks,
    pub(crate) control: control::Control,
    pub(crate) fetching: Fetching,
    pub(crate) settle: Settle,
    pub(crate) subqueues: Subqueues,
    pub(crate) admit: Admit,
    pub(crate) keeper: Keeper,
    pub(crate) shadow: Shadow,
    pub(crate) calling: Calling,
    /// What is shown of all this.
    pub(crate) snapshot: SharedSnapshot,
    /// Room for the bytes of bodies that are read whole, of what workers send, and of calls, which may wait for long.
    pub(crate) bodies: Semaphore,
    pub(crate) urgent_bodies: Semaphore,
    pub(crate) call_bodies: Semaphore,
    body_room: AtomicUsize,
    pub(crate) readiness: Readiness,
    pub(crate) file: FollowedFile,
}

impl Sidecar {
    /// A sidecar that limits by `policies` with usage in `store`. `name` must differ between sidecars, and between
    /// their lives.
    pub fn new(
        settings: ProxySettings,
        policies: Arc<PolicySet>,
        store: Store,
        backend: BackendFacts,
        metrics: Metrics,
        name: &str,
    ) -> Arc<Sidecar> {
        let hold = Arc::<Hold>::default();
        let (holds, siblings) = (Arc::clone(&hold), store.clone());
        let pressure = Pressure::new(Arc::clone(&settings.bounds), move |queue| {
            let (jobs, asked) = holds.of_queue(queue);
            HeldCount {
                jobs: jobs as u64,
                asked: asked as u64,
                siblings: siblings.siblings() as u64,
            }
        });
        let server = &settings.config.server;
        let bytes = server.max_bodies.max(server.max_body);
        let worker_id = settings.worker_id.as_deref().map(Arc::from);
        let sidecar = Arc::new(Sidecar {
            scopes: Scopes::default(),
            readiness: Readiness::default(),
            file: FollowedFile::new(store.now()),
            store,
            hold,
            events: Events::new(name, metrics.clone()),
            metrics,
            backend,
            tasks: Tasks::default(),
            control: control::Control::new(Live::new(settings, policies)),
            fetching: Fetching::new(worker_id.unwrap_or_else(|| Arc::from(name))),
            settle: Settle::default(),
            subqueues: Subqueues::default(),
            admit: Admit::new(pressure),
            keeper: Keeper::default(),
            shadow: Shadow::default(),
            calling: Calling::default(),
            snapshot: SharedSnapshot::default(),
            bodies: Semaphore::new(bytes),
            urgent_bodies: Semaphore::new(bytes),
            call_bodies: Semaphore::new(bytes),
            body_room: AtomicUsize::new(bytes),
        });
        settings::follow_settings(&sidecar);
        settings::follow_subqueues(&sidecar);
        sidecar
    }

    /// Makes room for the largest body that the config in force takes. Room that was made stays.
    pub(crate) fn make_room_for_bodies(&self) {
        let largest = self.config().server.max_body;
        let more = largest.saturating_sub(self.body_room.fetch_max(largest, Ordering::Relaxed));
        let all = [&self.bodies, &self.urgent_bodies, &self.call_bodies];
        all.into_iter().for_each(|room| room.add_permits(more));
    }

    /// The config in force.
    pub fn config(&self) -> Arc<config::Settings> {
        Arc::clone(&self.live().settings.config)
    }

    /// What the config says at this moment; not to be kept over an await.
    pub(crate) fn live(&self) -> Guard<Arc<Live>> {
        self.control.live.load()
    }

    /// Why it does not take work, as `/readyz` says it; `None`: it does.
    pub fn unready(&self) -> Option<String> {
        match self.readiness.word() {
            // The store's URL may be wrong, so a rollout must not go on.
            "ready" if !self.store.has_answered() => {
                Some("the store has not answered yet".to_owned())
            }
            // So may the backend's, which would take none of the work.
            "ready" => self.backend.stranger().map(|stranger| stranger.to_string()),
            word => Some(word.to_owned()),
        }
    }

    /// Ends when no task of a request is left.
    pub async fn finished(&self) {
        // In this order: what was left behind may leave something to undo.
        for tasks in [&self.tasks.settling, &self.tasks.left, &self.tasks.own] {
            tasks.close();
            tasks.wait().await;
        }
    }

    /// How many requests of this urgency are still being worked on although their clients hung up.
    pub fn left_behind(&self, urgency: load::Urgency) -> usize {
        match urgency {
            load::Urgency::Urgent => self.tasks.settling.len(),
            load::Urgency::Ordinary => self.tasks.left.len(),
        }
    }

    /// Whether jobs are held here or offered by siblings, or limits are set over HTTP for a queue: then any
    /// queue may be one of those.
    pub(crate) fn holds_any(&self) -> bool {
        !self.hold.is_empty()
            || self.keeper.offered.any()
            || self.store.overrides().any(Space::Queue)
    }

    /// The places of the hold.
    pub(crate) fn hold_most(&self, settings: &ProxySettings) -> Amount {
        Amount {
            jobs: settings.hold.most(self.backend.claims_count()),
            bytes: settings.hold.max_bytes,
        }
    }

    /// How many jobs are held at most.
    pub(crate) fn most_held(&self) -> usize {
        self.hold_most(&self.live().settings).jobs
    }

    /// Forgets what was seen and shown, and is made again when it is needed.
    pub(crate) fn forget_unused(&self) {
        self.scopes.forget_unused();
        self.snapshot.forget_unused();
        self.live().forget_known();
    }

    /// A call of the sidecar's own ended after so long.
    pub(crate) fn note_call(
        &self,
        op: &'static str,
        answer: &Result<Reply, UpstreamError>,
        after: Duration,
    ) {
        let code = answer.as_ref().map_or(0, |reply| reply.status.as_u16());
        self.metrics.called(op, code, after);
    }

    /// How many limited jobs are out with workers through us. The rows of calls are no jobs.
    pub(crate) async fn jobs_out(&self) -> Result<usize, StoreError> {
        let rows = self.store.count_out().await?;
        Ok(rows.saturating_sub(self.calling.out()))
    }

    /// Ends a job's row and wakes whoever waits for its slots. Ending twice is ending once.
    pub(crate) async fn end(&self, job: &str, generation: Option<Gen>) -> Option<Row> {
        self.end_by(&End::of(Arc::from(job), generation)).await
    }

    /// Ends a job's row as `end` says, and wakes whoever waits for its slots. Ending twice is ending once.
    pub(crate) async fn end_by(&self, end: &End) -> Option<Row> {
        self.keeper.adoption.note_end(&end.job);
        let ended = self.store.end_all(slice::from_ref(end)).await.ok()?;
        let ended = ended.into_iter().next()?;
        self.over(&ended);
        Some(ended)
    }

    /// Undoes the start of a job that is held again. A store that does not hear of it hears of it before the job is
    /// asked for again.
    pub(crate) async fn back(&self, held: &mut Held) {
        let (job, claim) = (&held.claimed.job, held.claimed.generation);
        if let Ok(false) = self.store.back(job, claim).await {
            // It was undone before, or it has ended: the backend says which, before it goes out.
            held.doubt();
        }
    }

    /// Wakes whoever waits for the slots of a row that ended: after a call jobs ask first, and calls after a job.
    pub(crate) fn over(&self, row: &Row) {
        let freed = &row.claimed.limited;
        match row.claimed.egress() {
            None => self.wake(freed),
            Some(_) => {
                self.hold.wake(freed);
                self.calling.wake(freed);
            }
        }
    }

    /// Whether what the backend says now of a held job is of our claim. Past its deadline a sibling may have claimed the
    /// job, and some backends accept a heartbeat from anybody.
    pub(crate) fn is_still_ours(&self, job: &str) -> bool {
        self.has_no_siblings() || !self.hold.is_past_deadline(job)
    }

    /// Whether no other sidecar may claim what this one loses.
    pub(crate) fn has_no_siblings(&self) -> bool {
        !self.store.is_shared() || self.store.is_alone()
    }

    /// The backend said at `since` that a held job is ours for as long from then.
    pub(crate) fn proved(&self, job: &str, since: Instant, lasts: Duration) {
        if self.is_still_ours(job) {
            self.hold.proved(job, since, lasts);
        }
    }

    /// A slot of these keys ended, or a start of theirs was undone: calls and jobs that wait for one of them may ask again.
    pub(crate) fn wake(&self, freed: &[Limited]) {
        self.calling.wake(freed);
        self.hold.wake(freed);
    }

    /// A slot of these keys ended, of which nothing else is known.
    pub(crate) fn wake_keys(&self, freed: &[(Space, Key)]) {
        let keys = freed.iter().map(|(space, key)| (*space, key));
        self.calling.lines.wake(keys);
        self.hold.wake_keys(freed);
    }

    /// From when on a start at this time of the store is asked for: it is granted then, and the way there takes time.
    pub(crate) fn asked_from(&self, at: Timestamp) -> Instant {
        self.instant_of(at.minus(EARLY + self.fetching.way.lead()))
    }

    /// A held job is not ours any more: cancelled, settled, or taken back by the backend.
    pub(crate) async fn lose(&self, claimed: &Claimed) {
        let was_offered = self.hold.is_offered(claimed);
        let was_held = self.forget_held(claimed);
        let ended = self.end_by(&End::of_claim(claimed)).await;
        let was_ours = !was_offered || ended.is_some() || self.store.siblings() == 0;
        if was_held && (was_ours || self.store.is_lost()) {
            self.count_lost();
        }
    }

    /// A held job that is ours is let go: its claim lapses, if the backend has not taken it back. Its row may have
    /// ended already.
    pub(crate) async fn abandon(&self, claimed: &Claimed) {
        let was_held = self.forget_held(claimed);
        self.end_by(&End::of_claim(claimed)).await;
        if was_held {
            self.count_lost();
        }
    }

    /// Forgets a held job that most likely waits in the backend from now on. Says whether it was held.
    pub(super) fn forget_held(&self, claimed: &Claimed) -> bool {
        let (job, generation) = (&claimed.job, claimed.generation);
        let was_held = self.hold.has_claim(job, generation);
        if was_held {
            // Before it leaves the hold: what counts twice for a moment is not over a bound unseen.
            self.admit.pressure.came(&claimed.queue);
        }
        self.hold.forget_claim(job, generation);
        was_held
    }

    /// A held job that was ours left the hold without a start. What a sibling took over is not counted as lost.
    pub(super) fn count_lost(&self) {
        let store = &self.store;
        // Right after an outage it was most likely a sibling that had it meanwhile.
        let after_outage = store.may_miss_rows() && !store.is_lost();
        if store.siblings() == 0 || !after_outage {
            self.metrics.count(Counted::HoldLost);
        }
    }

    /// Forgets everything (`dev`'s reset).
    pub(crate) async fn clear(&self) {
        self.hold.clear();
        self.admit.pressure.clear();
        self.settle.clear();
        self.control.named.clear();
        self.fetching.clear();
        self.metrics.clear();
        self.shadow.clear().await;
        // It is the memory store, which does not fail.
        let _cleared = self.store.set(crate::store::Change::Clear).await;
        settings::follow_settings(self);
        self.snapshot.clear().await;
    }

    /// The moment on our clock at which the store's clock shows `at`.
    pub(crate) fn instant_of(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::from_micros(at.since(self.store.now()))
    }
}
