//! The HTTP service: recognise the operation, call one function for it, stream everything else.
//!
//! One FETCH reads top to bottom in `fetch`; what it shares with the other operations is here: the
//! [`Sidecar`] (one per process) and the [`Proxy`] (one per thread: the sidecar and that thread's
//! connections to the backend).
//!
//! | part | what it does |
//! |---|---|
//! | `service`, `pass` | names the operation and calls its function; streams what is nobody's |
//! | `fetch` | caps, claims, starts, waits and hands out |
//! | `settle`, `heartbeat` | ends jobs and keeps them alive, and never fails on the sidecar's account |
//! | `enqueue`, `depth` | checks and mirrors what jobs bring; admits them to bounded queues, whose depth is found out |
//! | `control` | what people set and read over HTTP |
//! | `outside`, `about`, `stream`, `tell`, `measure` | what readers are shown: jobs and queues, manifest and health, events, gauges |
//! | `sweep`, `siblings`, `prove`, `drop` | what must be done unasked: claims kept, proven, adopted, ended |
//! | `hiding`, `paused` | what keeps held jobs from going out, beside their limits |
//! | `job`, `mirror`, `scope`, `body`, `respond`, … | what the others share |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::events::Events;
use crate::hold::Hold;
use crate::limit::{EARLY, Limited, Space, Timestamp};
use crate::metrics::{Counted, Metrics};
use crate::ojs;
use crate::policy::PolicySet;
use crate::pressure::{FileBounds, Held, Pressure};
use crate::store::{Claimed, Gen, Row, Store};
use crate::tick;
use crate::upstream::{Call, Reply, UpstreamError};

mod about;
mod backend;
pub mod body;
mod control;
mod depth;
mod drop;
mod enqueue;
mod fetch;
mod heartbeat;
mod hiding;
mod job;
mod live;
pub mod load;
mod lookup;
mod measure;
mod mirror;
mod outlive;
mod outside;
pub mod pass;
mod paused;
mod prove;
pub mod respond;
mod said;
mod scope;
mod service;
mod settle;
mod siblings;
mod stream;
mod sweep;
mod tell;

pub use backend::{Backend, Said};
pub use live::Live;
pub use service::Proxy;

use respond::{Fault, Relabel};
use scope::Scopes;

/// How deep JSON may nest in requests on routes that are read.
pub(crate) const DEPTH: usize = 64;
/// How deep in replies: a job may have come to the backend in another way, and those written in Go store what is
/// as deep as this.
const REPLY_DEPTH: usize = 10_000;

/// How long a claim or a slot lasts where nobody said (HTTP binding: 30 s).
pub(crate) const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);

/// How long the backend's word that a held job is ours is taken at most before it is asked for again.
pub(crate) const PROOF: Duration = Duration::from_secs(1);

/// What the proxy is told by the config.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Default))]
pub struct Settings {
    /// How long an empty FETCH may be kept open.
    pub max_wait: Duration,
    /// How long one FETCH may go on claiming past limited jobs.
    pub claim_budget: Duration,
    /// After how long without a FETCH held jobs of a queue are given back.
    pub hold_idle: Duration,
    /// The most held jobs; unset: 1024, or 32 where claims count attempts.
    pub hold_max: Option<usize>,
    /// The most bytes of held jobs.
    pub hold_bytes: usize,
    /// How long an ACK or nack is tried again inside the sidecar.
    pub settle_retry_for: Duration,
    /// The largest body that is read.
    pub max_body: usize,
    /// How long a client may take to send a body that is read.
    pub body_timeout: Duration,
    /// How long the backend may take to answer a call.
    pub upstream_timeout: Duration,
    /// The `Authorization` of the sidecar's own calls, where a scope has none to lend.
    pub token: Option<http::HeaderValue>,
    /// Whether the listener can be reached from this machine only, so that whoever reaches it may change
    /// limits.
    pub loopback: bool,
    /// Whether the admin listener can be reached from this machine only.
    pub admin_loopback: bool,
    /// The token with which limits may be changed on any listener.
    pub control_token: Option<http::HeaderValue>,
    /// Whether `X-OJS-Tenant` may be believed in key templates.
    pub trust_tenant_header: bool,
    /// Mend heartbeats with a number in `active_jobs`.
    pub repair_heartbeat: bool,
    /// Put `job`, the first of `jobs`, beside them in FETCH replies of the sidecar's own.
    pub job_beside_jobs: bool,
    /// Look up over-encoded queue names decoded, and send them plain.
    pub repair_paths: bool,
    /// The reply media type for clients that read only `application/json`.
    pub media_type: Relabel,
    /// Whether `POST /ojs/v1/admin/reset` clears the sidecar too (`dev` only).
    pub reset: bool,
    /// What bounds queues.
    pub bounds: Arc<FileBounds>,
    /// The most enqueues that may wait for room at once.
    pub max_blocked: usize,
}

/// The state of one sidecar, shared by its threads.
#[derive(Debug)]
pub struct Sidecar {
    live: ArcSwap<Live>,
    store: Arc<dyn Store>,
    hold: Arc<Hold>,
    pressure: Arc<Pressure>,
    stats: depth::told::Stats,
    /// Looks at queues that may be on their way.
    looks: Semaphore,
    refusals: AtomicU64,
    /// Held jobs that the backend took back.
    given_back: AtomicU64,
    metrics: Metrics,
    events: Events,
    backend: Backend,
    scopes: Scopes,
    paused: paused::Paused,
    unheard: settle::Unheard,
    vendors: settle::feedback::Refusals,
    gated: fetch::gated::Gated,
    lead: fetch::lead::Lead,
    /// How long the backend takes to give a job out.
    claim_lead: fetch::lead::Lead,
    named: control::named::Named,
    /// The worker id under which limited queues are claimed.
    name: Arc<str>,
    claims: AtomicU64,
    draining: CancellationToken,
    tasks: TaskTracker,
    /// What goes on although its client hung up: ACKs, nacks and heartbeats, and the rest.
    settling: TaskTracker,
    left: TaskTracker,
    /// How the hold follows the store that is lost and comes back.
    loss: Mutex<siblings::Loss>,
    adoption: sweep::Adoption,
    /// Where siblings have held jobs for workers of ours.
    offered: siblings::Offered,
    /// Held jobs that go out nowhere for a while.
    hidden: Mutex<hiding::Hidden>,
    /// The edition of the store's settings that is followed.
    settings: Mutex<u64>,
    shares: depth::share::Shares,
    threads: load::Threads,
    unbounded: depth::Unbounded,
    /// What was said of jobs that name another queue than they are filed in.
    flat: enqueue::Warned,
    /// Jobs have come with limits of their own.
    brought: AtomicBool,
    /// That FETCH replies cannot be read.
    unreadable: load::Seldom,
}

impl Sidecar {
    /// A sidecar that limits by `policies` with usage in `store`. `name` is the worker id of its own
    /// claims and must differ between sidecars.
    pub fn new(
        settings: Settings,
        policies: Arc<PolicySet>,
        store: Arc<dyn Store>,
        backend: Backend,
        metrics: Metrics,
        name: &str,
    ) -> Arc<Sidecar> {
        let hold = Arc::<Hold>::default();
        let holds = Arc::clone(&hold);
        let pressure = Pressure::new(Arc::clone(&settings.bounds), move |queue| {
            let (jobs, asked) = holds.of_queue(queue);
            Held {
                jobs: jobs as u64,
                asked: asked as u64,
            }
        });
        let sidecar = Arc::new(Sidecar {
            live: ArcSwap::from_pointee(Live::new(settings, policies)),
            scopes: Scopes::new(store.is_shared(), Arc::clone(&hold)),
            store,
            hold,
            pressure,
            stats: depth::told::Stats::default(),
            looks: Semaphore::new(depth::AT_ONCE),
            refusals: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            events: Events::new(name, metrics.clone()),
            metrics,
            backend,
            paused: paused::Paused::default(),
            unheard: settle::Unheard::default(),
            vendors: settle::feedback::Refusals::default(),
            gated: fetch::gated::Gated::default(),
            lead: fetch::lead::Lead::default(),
            claim_lead: fetch::lead::Lead::default(),
            named: control::named::Named::default(),
            name: Arc::from(name),
            claims: AtomicU64::new(1),
            draining: CancellationToken::new(),
            tasks: TaskTracker::new(),
            settling: TaskTracker::new(),
            left: TaskTracker::new(),
            loss: Mutex::default(),
            adoption: sweep::Adoption::new(Instant::now()),
            offered: siblings::Offered::default(),
            hidden: Mutex::default(),
            settings: Mutex::default(),
            shares: depth::share::Shares::default(),
            threads: load::Threads::default(),
            unbounded: depth::Unbounded::default(),
            flat: enqueue::Warned::default(),
            brought: AtomicBool::new(false),
            unreadable: load::Seldom::default(),
        });
        sidecar.follow_settings();
        sidecar
    }

    /// The store, for drain and inspection.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Where what happens is told, and heard.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Ends when no task of a request is left.
    pub async fn finished(&self) {
        // In this order: what was left behind may leave something to undo.
        for tasks in [&self.settling, &self.left, &self.tasks] {
            tasks.close();
            tasks.wait().await;
        }
    }

    /// How many requests are still being worked on although their clients hung up: those that settle or keep jobs, or
    /// all others.
    pub fn left_behind(&self, settling: bool) -> usize {
        match settling {
            true => self.settling.len(),
            false => self.left.len(),
        }
    }

    /// Whether jobs are held here or offered by siblings, or limits are set over HTTP for a queue: then any
    /// queue may be one of those.
    fn holds_any(&self) -> bool {
        !self.hold.is_empty() || self.offered.any() || self.store.overrides().any(Space::Queue)
    }

    /// The most jobs that may be held, beside those of queues that find it full.
    fn hold_max(&self, settings: &Settings) -> usize {
        settings
            .hold_max
            .unwrap_or(match self.backend.claims_count() {
                true => 32,
                false => 1024,
            })
    }

    /// The number of the next claim: by the store's clock, which says `now`, so that it is above that of
    /// any earlier claim of the job, whichever sidecar made it.
    fn next_claim(&self, now: Timestamp) -> Gen {
        let now = now.0;
        let above = |last: u64| Some(now.max(last + 1));
        // Always `Ok`, for there is always a next number.
        let last = self
            .claims
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, above);
        Gen(now.max(last.unwrap_or(0) + 1))
    }

    /// A call of the sidecar's own ended after so long.
    fn note_call(&self, op: &'static str, answer: &Result<Reply, UpstreamError>, after: Duration) {
        let code = answer.as_ref().map_or(0, |reply| reply.status.as_u16());
        self.metrics.called(op, code, after);
    }

    /// Ends a job's row and wakes whoever waits for its slots. Ending twice is ending once.
    async fn end(&self, job: &str, generation: Option<Gen>) -> Option<Row> {
        self.note_end(job);
        let ended = self.store.end(job, generation).await.ok()??;
        self.over(&ended);
        Some(ended)
    }

    /// Undoes a start. `false`: the job is not ours any more.
    async fn back(&self, claimed: &Claimed) -> bool {
        let (job, claim) = (&claimed.job, claimed.generation);
        match self.store.back(job, claim).await {
            // What was sent twice was done the first time.
            Ok(false) => self.store.is_shared() && self.owns(job, claim).await,
            // A store that did not hear of it hears of it before the job is asked for again.
            Ok(true) | Err(_) => true,
        }
    }

    /// Wakes whoever waits for the slots of a row that ended.
    fn over(&self, row: &Row) {
        if row.place == crate::store::Place::Out {
            self.metrics.ended(&row.claimed.limited);
        }
        self.hold.wake(&row.claimed.limited);
    }

    /// A held job is not ours any more: cancelled, settled, or taken back by the backend.
    async fn lose(&self, claimed: &Claimed) {
        let was_held = self.forget_held(claimed);
        let ended = self.end(&claimed.job, Some(claimed.generation)).await;
        if was_held {
            self.count_lost(ended.is_some() || self.store.is_lost());
        }
    }

    /// A held job that is ours is let go: its claim lapses, if the backend has not taken it back. Its row may have
    /// ended already.
    async fn abandon(&self, claimed: &Claimed) {
        let was_held = self.forget_held(claimed);
        self.end(&claimed.job, Some(claimed.generation)).await;
        if was_held {
            self.count_lost(true);
        }
    }

    /// Forgets a held job that most likely waits in the backend from now on. Says whether it was held.
    fn forget_held(&self, claimed: &Claimed) -> bool {
        let (job, generation) = (&claimed.job, claimed.generation);
        let was_held = self.hold.has_claim(job, generation);
        if was_held {
            // Before it leaves the hold: what counts twice for a moment is not over a bound unseen.
            self.pressure.came(&claimed.queue, None);
        }
        self.hold.forget_claim(job, generation);
        was_held
    }

    /// A held job left the hold without a start. What a sibling took over is not counted as lost.
    fn count_lost(&self, was_ours: bool) {
        let store = &self.store;
        // Right after an outage it was most likely a sibling that had it meanwhile.
        let after_outage = store.may_miss_rows() && !store.is_lost();
        if store.siblings() == 0 || (was_ours && !after_outage) {
            self.metrics.count(Counted::HoldLost);
        }
    }

    /// Forgets everything (`dev`'s reset).
    async fn clear(&self) {
        self.hold.clear();
        self.pressure.clear();
        self.paused.clear();
        self.unheard.clear();
        self.named.clear();
        self.gated.clear();
        self.metrics.clear();
        // Only the memory store can be behind this, and it does not fail.
        let _cleared = self.store.set(crate::store::Change::Clear).await;
        self.follow_settings();
    }

    /// The moment on our clock at which the store's clock shows `at`.
    fn instant_of(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::from_micros(at.since(self.store.now()))
    }

    /// From when on a start at this time of the store is granted.
    fn granted_from(&self, at: Timestamp) -> Instant {
        self.instant_of(at.minus(EARLY))
    }
}

/// Whether a late hand-out of a job would break a promise: only windows and spacing count time.
fn timed(limited: &[Limited]) -> bool {
    limited
        .iter()
        .any(|l| !l.limits.rates.is_empty() || l.limits.throttle.is_some())
}

/// One call of the sidecar's own, measured.
async fn call(proxy: &Proxy, op: &'static str, call: Call) -> Result<Reply, UpstreamError> {
    let begun = tick::now();
    let answer = proxy.upstream.call(call).await;
    proxy.sidecar.note_call(op, &answer, tick::now() - begun);
    answer
}

/// A POST of JSON under a scope's credentials.
fn post(proxy: &Proxy, scope: u64, target: &str, body: impl Into<Bytes>) -> Call {
    Call {
        method: http::Method::POST,
        target: target.into(),
        headers: proxy.sidecar.own_headers(scope, true),
        body: body.into(),
        timeout: proxy.sidecar.live().settings.upstream_timeout,
    }
}

/// A GET under a scope's credentials.
fn get(proxy: &Proxy, scope: u64, target: String) -> Call {
    Call {
        method: http::Method::GET,
        target: target.into(),
        headers: proxy.sidecar.own_headers(scope, false),
        body: Bytes::new(),
        timeout: proxy
            .sidecar
            .live()
            .settings
            .upstream_timeout
            .min(Duration::from_secs(5)),
    }
}

/// A reply of our own that is no success.
fn refuse(parts: &http::request::Parts, fault: Fault) -> http::Response<body::Body> {
    fault.reply(respond::request_id(&parts.headers))
}

/// The headers of a success of our own.
fn ours(request: &HeaderMap, reply: &mut HeaderMap) {
    ours_under(request, reply, None);
}

/// The same; `known`: an id for it, if the request has none.
fn ours_under(request: &HeaderMap, reply: &mut HeaderMap, known: Option<HeaderValue>) {
    reply.insert(http::header::CONTENT_TYPE, ojs::MEDIA_TYPE);
    reply.insert(ojs::OJS_VERSION, ojs::VERSION);
    let id = respond::request_id(request).or(known);
    if let Some(id) = id.or_else(respond::fresh_id) {
        reply.insert(ojs::REQUEST_ID, id);
    }
}
