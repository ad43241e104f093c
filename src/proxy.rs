//! The HTTP service: recognise the operation, call one function for it, stream everything else.
//!
//! One FETCH reads top to bottom in `fetch`; what it shares with the other operations is here: the
//! [`Sidecar`] (one per process) and the [`Proxy`] (one per thread: the sidecar and that thread's
//! connections to the backend).
//!
//! | part | what it does |
//! |---|---|
//! | `service`, `pass` | names the operation and calls its function; streams what is nobody's |
//! | `fetch` | gathers, grants, goes; waits where that may help |
//! | `settle`, `heartbeat` | ends jobs and keeps them alive, and never fails on the sidecar's account |
//! | `enqueue`, `depth` | checks and mirrors what jobs bring; admits them to bounded queues, whose depth is found out |
//! | `control` | what people set and read over HTTP |
//! | `outside`, `about`, `stream`, `tell`, `measure` | what readers are shown: jobs and queues, manifest and health, events, gauges |
//! | `sweep`, `siblings`, `prove`, `drop` | what must be done unasked: claims kept, proven, adopted, ended |
//! | `waiting`, `why`, `runs` | how many jobs wait for a limit; why they wait, and how long jobs run |
//! | `process` | whether the process takes work, and whether its file is in force |
//! | `hiding`, `paused` | what keeps held jobs from going out, beside their limits |
//! | `calls`, `job`, `mirror`, `scope`, `body`, `respond`, … | what the others share |

use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use crate::config;
use crate::events::Events;
use crate::hold::{Amount, Held, Hold};
use crate::limit::{Space, Timestamp};
use crate::metrics::{Counted, Metrics};
use crate::ojs;
use crate::policy::PolicySet;
use crate::pressure::{HeldCount, Pressure};
use crate::store::{Claimed, End, Gen, LedgerExt, Row, Store};
use crate::upstream::{Reply, UpstreamError};
use control::settings;

mod about;
mod admit;
mod backend;
pub mod body;
mod calls;
pub(crate) mod control;
mod depth;
mod drop;
mod enqueue;
mod enqueued;
mod fetch;
mod heartbeat;
mod hiding;
mod job;
mod live;
pub mod load;
pub(crate) mod measure;
mod mirror;
mod outlive;
mod outside;
pub mod pass;
mod paused;
mod process;
mod prove;
pub mod respond;
mod runs;
mod scope;
mod service;
mod settle;
mod siblings;
pub mod state;
mod stream;
pub(crate) mod sweep;
mod tell;
mod waiting;
pub mod why;

pub(crate) use backend::ADMIN;
pub use backend::{BackendFacts, Stranger};
pub use live::Live;
pub use process::{FollowedFile, Readiness};
pub use service::Proxy;

use outlive::Tasks;
use respond::Fault;
use scope::Scopes;

/// How deep JSON may nest in requests on routes that are read.
pub(crate) const DEPTH: usize = 64;
/// How deep in replies: a job may have come to the backend in another way, and what it brings is limited however deep
/// it nests. Nothing that reads them recurses.
const REPLY_DEPTH: usize = usize::MAX;

/// How long a claim or a slot lasts where nobody said (HTTP binding: 30 s).
pub(crate) const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);

/// How long the backend's word that a held job is ours is taken at most before it is asked for again.
pub(crate) const PROOF: Duration = Duration::from_secs(1);

/// What the proxy is told by the config: all of it, and what is made of it.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// The config, so that a setting is said there and used here, and nowhere else.
    pub config: Arc<config::Settings>,
    /// The worker id of the sidecar's own claims, if it has one that lasts.
    pub worker_id: Option<String>,
    /// The `Authorization` of the sidecar's own calls, where a scope has none to lend.
    pub token: Option<http::HeaderValue>,
    /// The token with which limits may be changed on any listener.
    pub control_token: Option<http::HeaderValue>,
    /// Whether `POST /ojs/v1/admin/reset` clears the sidecar too (`dev` only).
    pub reset: bool,
}

impl Deref for ProxySettings {
    type Target = config::Settings;

    fn deref(&self) -> &config::Settings {
        &self.config
    }
}

impl ProxySettings {
    /// From a config; `reset` is for `dev`.
    ///
    /// # Errors
    /// The field of a token that cannot stand in a header.
    pub fn new(config: Arc<config::Settings>, reset: bool) -> Result<ProxySettings, &'static str> {
        let header = |field, text: String| match http::HeaderValue::try_from(text) {
            Ok(mut value) => {
                value.set_sensitive(true);
                Ok(value)
            }
            Err(_) => Err(field),
        };
        let token = config.upstream.token.as_ref();
        let token =
            token.map(|token| header("upstream.token", format!("Bearer {}", token.expose())));
        let control = config.server.control_token.as_ref();
        let control =
            control.map(|token| header("server.control_token", token.expose().to_owned()));
        Ok(ProxySettings {
            worker_id: config.upstream.worker_id.clone(),
            token: token.transpose()?,
            control_token: control.transpose()?,
            reset,
            config,
        })
    }

    /// Whether the data port can be reached from this machine only, so that whoever reaches it may change limits.
    pub fn is_on_loopback(&self) -> bool {
        self.server.listen.ip().to_canonical().is_loopback()
    }

    /// Whether the admin port can be reached from this machine only.
    pub fn is_admin_on_loopback(&self) -> bool {
        self.server.admin_listen.ip().to_canonical().is_loopback()
    }

    /// The most enqueues that may wait for room at once: they must not keep ACKs out.
    pub fn max_blocked(&self) -> usize {
        self.server.max_in_flight / 4
    }
}

/// The state of one sidecar, shared by its threads: what all parts use, and the state of each part.
#[derive(Debug)]
pub struct Sidecar {
    store: Store,
    hold: Arc<Hold>,
    metrics: Metrics,
    events: Events,
    backend: BackendFacts,
    scopes: Scopes,
    tasks: Tasks,
    control: control::Control,
    fetching: fetch::Fetching,
    settle: settle::Settle,
    admit: admit::Admit,
    keeper: sweep::Keeper,
    readiness: Readiness,
    file: FollowedFile,
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
        let holds = Arc::clone(&hold);
        let pressure = Pressure::new(Arc::clone(&settings.bounds), move |queue| {
            let (jobs, asked) = holds.of_queue(queue);
            HeldCount {
                jobs: jobs as u64,
                asked: asked as u64,
            }
        });
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
            fetching: fetch::Fetching::new(worker_id.unwrap_or_else(|| Arc::from(name))),
            settle: settle::Settle::default(),
            admit: admit::Admit::new(pressure),
            keeper: sweep::Keeper::default(),
        });
        settings::follow_settings(&sidecar);
        sidecar
    }

    /// What answers in place of the backend, as far as was seen.
    pub fn stranger(&self) -> Option<Stranger> {
        self.backend.stranger()
    }

    /// The store, for drain and inspection.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether it takes work, for who serves it.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// The file of the settings, for who follows it.
    pub fn file(&self) -> &FollowedFile {
        &self.file
    }

    /// Where what happens is told, and heard.
    pub fn events(&self) -> &Events {
        &self.events
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
    fn holds_any(&self) -> bool {
        !self.hold.is_empty()
            || self.keeper.offered.any()
            || self.store.overrides().any(Space::Queue)
    }

    /// The places of the hold.
    fn hold_most(&self, settings: &ProxySettings) -> Amount {
        Amount {
            jobs: settings.hold.most(self.backend.claims_count()),
            bytes: settings.hold.max_bytes,
        }
    }

    /// A call of the sidecar's own ended after so long.
    fn note_call(&self, op: &'static str, answer: &Result<Reply, UpstreamError>, after: Duration) {
        let code = answer.as_ref().map_or(0, |reply| reply.status.as_u16());
        self.metrics.called(op, code, after);
    }

    /// Ends a job's row and wakes whoever waits for its slots. Ending twice is ending once.
    async fn end(&self, job: &str, generation: Option<Gen>) -> Option<Row> {
        self.end_by(&End::of(Arc::from(job), generation)).await
    }

    /// The same, by what is known of the end.
    async fn end_by(&self, end: &End) -> Option<Row> {
        self.keeper.adoption.note_end(&end.job);
        let ended = self.store.end_all(slice::from_ref(end)).await.ok()?;
        let ended = ended.into_iter().next()?;
        self.over(&ended);
        Some(ended)
    }

    /// Undoes the start of a job that is held again. A store that does not hear of it hears of it before the job is
    /// asked for again.
    async fn back(&self, held: &mut Held) {
        let (job, claim) = (&held.claimed.job, held.claimed.generation);
        if let Ok(false) = self.store.back(job, claim).await {
            // It was undone before, or it has ended: the backend says which, before it goes out.
            held.doubt();
        }
    }

    /// Wakes whoever waits for the slots of a row that ended.
    fn over(&self, row: &Row) {
        self.hold.wake(&row.claimed.limited);
    }

    /// A held job is not ours any more: cancelled, settled, or taken back by the backend.
    async fn lose(&self, claimed: &Claimed) {
        let was_offered = self.hold.is_offered(claimed);
        let was_held = self.forget_held(claimed);
        let ended = self.end(&claimed.job, Some(claimed.generation)).await;
        let was_ours = !was_offered || ended.is_some() || self.store.siblings() == 0;
        if was_held && (was_ours || self.store.is_lost()) {
            self.count_lost();
        }
    }

    /// A held job that is ours is let go: its claim lapses, if the backend has not taken it back. Its row may have
    /// ended already.
    async fn abandon(&self, claimed: &Claimed) {
        let was_held = self.forget_held(claimed);
        self.end(&claimed.job, Some(claimed.generation)).await;
        if was_held {
            self.count_lost();
        }
    }

    /// Forgets a held job that most likely waits in the backend from now on. Says whether it was held.
    fn forget_held(&self, claimed: &Claimed) -> bool {
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
    fn count_lost(&self) {
        let store = &self.store;
        // Right after an outage it was most likely a sibling that had it meanwhile.
        let after_outage = store.may_miss_rows() && !store.is_lost();
        if store.siblings() == 0 || !after_outage {
            self.metrics.count(Counted::HoldLost);
        }
    }

    /// Forgets everything (`dev`'s reset).
    async fn clear(&self) {
        self.hold.clear();
        self.admit.pressure.clear();
        self.settle.clear();
        self.control.named.clear();
        self.fetching.clear();
        self.metrics.clear();
        // Only the memory store can be behind this, and it does not fail.
        let _cleared = self.store.set(crate::store::Change::Clear).await;
        settings::follow_settings(self);
    }

    /// The moment on our clock at which the store's clock shows `at`.
    fn instant_of(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::from_micros(at.since(self.store.now()))
    }
}

/// A reply of our own that is no success.
fn refuse(parts: &http::request::Parts, fault: Fault) -> http::Response<body::Body> {
    fault.reply(respond::request_id(&parts.headers))
}

/// The headers of a success of our own.
fn ours(request: &HeaderMap, reply: &mut HeaderMap) {
    reply.insert(http::header::CONTENT_TYPE, ojs::MEDIA_TYPE);
    reply.insert(ojs::OJS_VERSION, ojs::VERSION);
    if let Some(id) = respond::request_id(request).or_else(respond::fresh_id) {
        reply.insert(ojs::REQUEST_ID, id);
    }
}
