//! Adoption: jobs that were running before this sidecar started get their slots, from the backend's
//! list of active jobs, and from workers' heartbeats where it has no such list for us. Windows start empty
//! with the memory store; slots do not.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::duration;
use crate::json::Json;
use crate::limit::Timestamp;
use crate::metrics::Counted;
use crate::policy::{Accept, JobView};
use crate::proxy::calls::{self, Lookup, job_in};
use crate::proxy::control::{named, overrides};
use crate::proxy::sweep::overdue;
use crate::proxy::{DEFAULT_VISIBILITY, Proxy, REPLY_DEPTH, Sidecar, job, mirror, prove, siblings};
use crate::store::{Change, Claim, Claimed, Gen, LedgerExt};
use crate::upstream::UpstreamError;

/// The most unknown jobs looked up from heartbeats.
const MAX_SEEN: usize = 10_000;
/// Jobs on one page of the backend's list, and the most pages read.
const PAGE: usize = 100;
const PAGES: usize = 100;
/// The pauses before the list is asked for again when it did not come.
const LIST_AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// So many jobs that heartbeats name are looked up at once.
const LOOK_UPS: usize = 16;
/// The most that are looked up for one heartbeat; the rest is for the next one.
const MOST: usize = 1_000;
/// How long a look-up waits for its turn. Past that it is for the next heartbeat.
const TURN: Duration = Duration::from_secs(5);
/// How long a heartbeat waits for the look-ups of its jobs.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the backend may take for its manifest, and twice as long each time after it was late: one that hangs keeps
/// nobody for long, and one that is slow is heard in the end.
const MANIFEST: Duration = Duration::from_secs(2);
/// How long the end of a job may be on its way through a sibling that found no row of it.
const UNDER_WAY: Duration = Duration::from_millis(250);
/// No job that runs began longer ago, in microseconds. A time that was never set may be one of the year 1.
const LONGEST: u64 = 30 * 86_400 * 1_000_000;

/// What is known of jobs that were running before this sidecar started.
#[derive(Debug)]
pub(in crate::proxy) struct Adoption {
    /// Done when the backend has told what it is and which limited jobs are running.
    learnt: OnceCell<()>,
    unlearnt: Mutex<Unlearnt>,
    adopting: Mutex<Adopting>,
    /// Look-ups of jobs that heartbeats name that may be on their way.
    look_ups: Semaphore,
}

/// How often learning has failed, and why last.
#[derive(Clone, Default, Debug)]
struct Unlearnt {
    count: u64,
    last: Option<UpstreamError>,
}

/// Which unknown jobs of heartbeats were looked up already.
#[derive(Debug)]
struct Adopting {
    /// Until when they are; `None`: the backend's list has told them all.
    until: Option<Instant>,
    seen: HashSet<Box<str>>,
    /// How many such lists are on their way, and which jobs ended meanwhile: what they say of those is
    /// over.
    lists: usize,
    ended: HashSet<Box<str>>,
}

impl Adoption {
    pub(in crate::proxy) fn new(now: Instant) -> Adoption {
        Adoption {
            learnt: OnceCell::new(),
            unlearnt: Mutex::default(),
            adopting: Mutex::new(Adopting {
                until: Some(now + 2 * DEFAULT_VISIBILITY),
                seen: HashSet::new(),
                lists: 0,
                ended: HashSet::new(),
            }),
            look_ups: Semaphore::new(LOOK_UPS),
        }
    }

    /// Notes that a job is over, if a list of running jobs is on its way.
    pub(in crate::proxy) fn note_end(&self, job: &str) {
        let mut adopting = self.adopting.lock();
        if adopting.lists > 0 {
            adopting.ended.insert(job.into());
        }
    }

    /// Whether the job ended since the list was asked for.
    fn has_ended(&self, job: &str) -> bool {
        self.adopting.lock().ended.contains(job)
    }

    /// Notes that the job is being looked up. Returns `true` the first time.
    fn note_seen(&self, job: &str) -> bool {
        let mut adopting = self.adopting.lock();
        adopting.seen.len() < MAX_SEEN && adopting.seen.insert(job.into())
    }

    /// The job could not be looked up.
    fn forget_seen(&self, job: &str) {
        self.adopting.lock().seen.remove(job);
    }
}

/// Whether heartbeats may still name jobs that ran before this sidecar started.
pub(in crate::proxy) fn adopts_from_heartbeats(sidecar: &Sidecar) -> bool {
    let until = sidecar.keeper.adoption.adopting.lock().until;
    until.is_some_and(|until| Instant::now() < until) && !never_limits(sidecar)
}

/// Whether neither the config nor a job can bring a limit.
fn never_limits(sidecar: &Sidecar) -> bool {
    let live = sidecar.live();
    live.policies.is_empty() && live.policies.accept() == Accept::Ignore
}

/// The backend answers: where it has no list, workers can tell from now on what they run.
fn adopt_from_now(sidecar: &Sidecar, list: &Result<usize, Unlisted>) {
    // Whose a job is, a list does not tell where only the FETCH's header did.
    let tells_all = list.is_ok() && !sidecar.live().settings.server.trust_tenant_header;
    let mut adopting = sidecar.keeper.adoption.adopting.lock();
    adopting.until = (!tells_all).then(|| Instant::now() + 2 * DEFAULT_VISIBILITY);
    adopting.seen.clear();
}

/// No list of running jobs came: the status of what did, if anything.
#[derive(Debug)]
pub(in crate::proxy) struct Unlisted(Option<StatusCode>);

impl Unlisted {
    /// Whether it may come another time.
    fn may_come(&self) -> bool {
        self.0.is_none_or(|status| status.is_server_error())
    }
}

/// While a list of running jobs is on its way, jobs that end are noted.
struct Listing<'a>(&'a Adoption);

impl<'a> Listing<'a> {
    fn begin(adoption: &'a Adoption) -> Listing<'a> {
        adoption.adopting.lock().lists += 1;
        Listing(adoption)
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let mut adopting = self.0.adopting.lock();
        adopting.lists = adopting.lists.saturating_sub(1);
        if adopting.lists == 0 {
            adopting.ended = HashSet::new();
        }
    }
}

/// Whether the backend has told what it is, and what runs.
pub(super) fn is_learnt(sidecar: &Sidecar) -> bool {
    sidecar.keeper.adoption.learnt.initialized()
}

/// Learns what must be known before the first limited FETCH: what kind of backend it is, and which
/// limited jobs are running already. A backend that does not answer is asked again at each FETCH.
///
/// # Errors
/// The backend does not answer yet.
pub(crate) async fn ensure_learnt(proxy: &Proxy) -> Result<(), UpstreamError> {
    let adoption = &proxy.sidecar.keeper.adoption;
    if adoption.learnt.initialized() {
        return Ok(());
    }
    let failures = || adoption.unlearnt.lock();
    let before = failures().count;
    let learning = adoption.learnt.get_or_try_init(|| async {
        // Who waited while another failed shares the failure: if each tried in turn, the last of them
        // would wait for all.
        let Unlearnt { count, last } = failures().clone();
        let patience = match &last {
            Some(UpstreamError::Timeout(time)) => time.saturating_mul(2),
            _ => MANIFEST,
        };
        if let Some(error) = last.filter(|_| count > before) {
            return Err(error);
        }
        let learnt = learn(proxy, patience).await;
        if let Err(error) = &learnt {
            if count == 0 {
                tracing::warn!(
                    id = %"manifest_missing",
                    %error,
                    "the backend has not told what it is (GET /ojs/manifest): FETCHes of queues that limits can \
                     touch fail until it has"
                );
            }
            let mut failures = failures();
            failures.count += 1;
            failures.last = Some(error.clone());
        }
        learnt
    });
    // Boxed: it is done once, and every FETCH would have room for it.
    Box::pin(learning).await.map(drop)
}

async fn learn(proxy: &Proxy, patience: Duration) -> Result<(), UpstreamError> {
    let mut call = calls::get(proxy, 0, "/ojs/manifest".to_owned());
    call.timeout = patience.min(proxy.sidecar.live().settings.upstream.timeout);
    let reply = calls::call(proxy, "manifest", call).await?;
    if let Some(stranger) = proxy.sidecar.backend.note_stranger(&reply) {
        return Err(UpstreamError::Unreadable(stranger.to_string()));
    }
    if reply.status.is_server_error() {
        // Something between us and the backend speaks for it.
        return Err(UpstreamError::Lost(format!(
            "its manifest is {}",
            reply.status
        )));
    }
    proxy.sidecar.backend.read_manifest(&reply.body);
    if never_limits(&proxy.sidecar) {
        return Ok(());
    }
    // Without policies too: jobs bring limits of their own.
    let adopted = adopt_running(proxy).await;
    adopt_from_now(&proxy.sidecar, &adopted);
    match adopted {
        Ok(0) => {}
        Ok(adopted) => {
            tracing::info!(
                adopted,
                "limited jobs were running already; they have their slots"
            );
        }
        Err(Unlisted(Some(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)))) => {
            tracing::warn!(
                id = %"active_refused",
                status = status.as_u16(),
                "the backend refuses us its list of active jobs: set upstream.token to one that may read it; those \
             that run already are learnt from heartbeats"
            )
        }
        Err(Unlisted(status)) => tracing::warn!(
            id = %"active_missing",
            status = status.map(|status| status.as_u16()),
            "the backend has no list of active jobs for us; those that run already are learnt from heartbeats"
        ),
    }
    Ok(())
}

/// Other policies may limit jobs that are running: those that had no limits so far get their slots, as
/// at the start. Beside the sweep: held jobs get their heartbeats meanwhile, however long the list is.
pub(super) fn adopt_again(proxy: &Proxy, stop: &CancellationToken) -> JoinHandle<()> {
    let sidecar = &proxy.sidecar;
    let (proxy, stop) = (proxy.clone(), stop.clone());
    // Tracked, and over when the sweep is.
    sidecar.tasks.spawn(async move {
        stop.run_until_cancelled(adopt_newly_limited(&proxy)).await;
    })
}

async fn adopt_newly_limited(proxy: &Proxy) {
    if !proxy.sidecar.keeper.adoption.learnt.initialized() || never_limits(&proxy.sidecar) {
        return;
    }
    let adopted = adopt_running(proxy).await;
    adopt_from_now(&proxy.sidecar, &adopted);
    if let Ok(adopted @ 1..) = adopted {
        tracing::info!(
            adopted,
            "running jobs are limited from now on; they have their slots"
        );
    }
}

/// Reads the backend's list of active jobs and takes their slots. Says how many were adopted, or what came in
/// place of a list.
pub(in crate::proxy) async fn adopt_running(proxy: &Proxy) -> Result<usize, Unlisted> {
    let _listing = Listing::begin(&proxy.sidecar.keeper.adoption);
    let mut adopted = Vec::new();
    let mut pauses = LIST_AGAIN.into_iter();
    let listed = loop {
        let listed = adopt_listed(proxy, &mut adopted).await;
        match (&listed, pauses.next()) {
            (Err(unlisted), Some(pause)) if unlisted.may_come() => {
                tokio::time::sleep(pause).await;
            }
            _ => break listed,
        }
    };
    let count = adopted.len();
    look_again(proxy, adopted);
    listed.map(|()| count)
}

async fn adopt_listed(proxy: &Proxy, adopted: &mut Vec<Claimed>) -> Result<(), Unlisted> {
    let mut found = Vec::new();
    let listed = list_running(proxy, &mut found).await;
    for claimed in found {
        adopted.extend(adopt(proxy, claimed).await.flatten());
    }
    listed
}

/// Reads the backend's list of active jobs. Those that are limited here and not held come to `found`, also where the
/// list breaks off.
pub(super) async fn list_running(proxy: &Proxy, found: &mut Vec<Claimed>) -> Result<(), Unlisted> {
    for page in 1..=PAGES {
        let target = format!("/ojs/v1/admin/jobs?state=active&page={page}&per_page={PAGE}");
        let mut call = calls::get(proxy, 0, target);
        call.timeout = Duration::from_secs(2);
        let answer = calls::call(proxy, "list_active", call).await;
        let reply = answer.map_err(|_| Unlisted(None))?;
        let unlisted = || Unlisted(Some(reply.status));
        if reply.status != StatusCode::OK {
            return Err(unlisted());
        }
        let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
        let jobs = whole.and_then(|whole| whole.get_exact("items"));
        let jobs = jobs.ok_or_else(unlisted)?;
        let mut count = 0;
        for job in jobs.items() {
            count += 1;
            found.extend(running(&proxy.sidecar, 0, job));
        }
        if count < PAGE {
            break;
        }
    }
    Ok(())
}

/// Where siblings share the store, jobs that ended through them before their slots were taken had no row to end
/// any more. So those that were adopted are asked about once more; a slot of one that is over ends.
fn look_again(proxy: &Proxy, adopted: Vec<Claimed>) {
    if adopted.is_empty() || !proxy.sidecar.store.is_shared() {
        return;
    }
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    let _task = sidecar.tasks.spawn(async move {
        tokio::time::sleep(UNDER_WAY).await;
        for of in &adopted {
            if prove::shown_active(&proxy, of).await == Some(false) {
                overdue::reclaim(&proxy.sidecar, of).await;
            }
        }
    });
}

/// Has the jobs of a heartbeat that have no row looked up, and their slots taken. Look-ups run to their ends
/// whoever hangs up, and the heartbeat waits for them for a while only.
pub(in crate::proxy) async fn adopt_named(proxy: &Proxy, scope: u64, jobs: &[Arc<str>]) {
    let sidecar = &proxy.sidecar;
    let mut look_ups = Vec::new();
    for id in jobs {
        if look_ups.len() >= MOST {
            break;
        }
        if sidecar.hold.has(id) || !sidecar.keeper.adoption.note_seen(id) {
            continue;
        }
        match siblings::row_of(sidecar, id).await {
            Ok(None) => {
                let looking = adopt_if_running(proxy.clone(), scope, id.clone());
                look_ups.push(sidecar.tasks.spawn(looking));
            }
            Ok(Some(_)) | Err(_) => sidecar.keeper.adoption.forget_seen(id),
        }
    }
    let all = async {
        for looking in look_ups {
            // Only a panic in there could fail, and would have been logged.
            drop(looking.await);
        }
    };
    let _late = timeout(PATIENCE, all).await;
}

/// Looks one job up and takes its slots if it is running. Where the backend did not show it, or the store did not
/// answer, it is for the next heartbeat: of what is made up, or another's, nothing is remembered.
async fn adopt_if_running(proxy: Proxy, scope: u64, id: Arc<str>) {
    let sidecar = &proxy.sidecar;
    let known = match timeout(TURN, sidecar.keeper.adoption.look_ups.acquire()).await {
        Ok(Ok(_turn)) => looked_up(&proxy, scope, &id).await,
        _ => None,
    };
    if known.is_none() {
        sidecar.keeper.adoption.forget_seen(&id);
    }
}

/// Adopts the job if it is running; `None`: it is not known whether it is.
async fn looked_up(proxy: &Proxy, scope: u64, id: &str) -> Option<()> {
    let _listing = Listing::begin(&proxy.sidecar.keeper.adoption);
    let reply = match calls::look_up(proxy, scope, id).await {
        Lookup::Found(reply) => reply,
        Lookup::Gone | Lookup::Unknown | Lookup::Unanswered => return None,
    };
    let running = job_in(&reply).and_then(|job| running(&proxy.sidecar, scope, job));
    if let Some(claimed) = running {
        let adopted = adopt(proxy, claimed).await?;
        look_again(proxy, adopted.into_iter().collect());
    }
    Some(())
}

/// Takes the slots of one running job, above its limits if need be. Says what was adopted, if anything; `None`: the
/// store did not say.
async fn adopt(proxy: &Proxy, claimed: Claimed) -> Option<Option<Claimed>> {
    let sidecar = &proxy.sidecar;
    let (id, limited) = (claimed.job.clone(), claimed.limited.clone());
    let row = sidecar.store.row(&id).await.ok()?;
    let is_held = sidecar.hold.has(&id);
    if is_held || row.is_some() || sidecar.keeper.adoption.has_ended(&id) {
        return Some(None);
    }
    let until = sidecar.store.now().plus(claimed.visibility);
    let adopt = Change::Adopt {
        claimed: claimed.clone(),
        until,
    };
    if !sidecar.store.set(adopt).await.ok()? {
        return Some(None);
    }
    sidecar.scopes.accept_known(claimed.scope);
    named::noted(sidecar, std::iter::once(&claimed));
    sidecar.metrics.adopted(&limited);
    sidecar.metrics.count(Counted::SlotAdopted);
    // Who ended it while the store was at it found no row to end.
    if sidecar.keeper.adoption.has_ended(&id) {
        sidecar.end(&id, Some(Gen::ADOPTED)).await;
    }
    Some(Some(claimed))
}

/// A running job as a claim, if it is limited and not held.
pub(in crate::proxy) fn running(sidecar: &Sidecar, scope: u64, job: Json<'_>) -> Option<Claimed> {
    let [id, kind, queue, state, attempt, started] =
        job.pick(["id", "type", "queue", "state", "attempt", "started_at"]);
    let text = |value: Option<Json<'_>>| value.and_then(|v| v.text()).map(|v| v.into_owned());
    let (Some(id), Some("active")) = (text(id), text(state).as_deref()) else {
        return None;
    };
    let filed = mirror::filed(job).map(|queue| queue.into_owned());
    let queue = filed.or_else(|| text(queue));
    let queue = queue.unwrap_or_else(|| "default".to_owned());
    let kind = text(kind).unwrap_or_default();
    let tenant = sidecar.scopes.tenant_of(scope);
    let limits = {
        let own = job::own(job, &queue);
        let live = sidecar.live();
        let view = JobView {
            queue: &queue,
            kind: &kind,
            meta: job.get("meta"),
            tenant: live.trusted(tenant.as_deref()),
        };
        if scope == 0
            && live.settings.server.trust_tenant_header
            && live.policies.lacks_tenant(&view)
        {
            // Whose it is only its FETCH said. Its worker's heartbeats say it too.
            return None;
        }
        let limits = job::limits_of(&view, &own, &live, &mut live.known());
        job::priced(limits, &view, job, |_, _| {})
    };
    let limited = overrides::limits_now(sidecar, &queue, &limits).into_owned();
    if limited.is_empty() || sidecar.hold.has(&id) {
        return None;
    }
    let attempt = attempt.and_then(|a| a.u32());
    let own = mirror::visibility(job).map(Duration::from_millis);
    Some(Claimed::from(Claim {
        job: Arc::from(id),
        generation: Gen::ADOPTED,
        claim_id: Arc::from(text(job.get("worker_id")).unwrap_or_default()),
        worker: None,
        scope,
        queue: Arc::from(queue),
        priority: 0,
        attempt,
        claimed_at: claimed_at(text(started).as_deref(), sidecar.store.now()),
        visibility: job::micros(own.unwrap_or(DEFAULT_VISIBILITY)),
        limited,
        has_more: false,
    }))
}

/// When a running job was claimed, by its `started_at`: where claims last from their start, its heartbeats must ask
/// for so much more. `now` where it has none that can be true.
fn claimed_at(started: Option<&str>, now: Timestamp) -> Timestamp {
    let started = started.and_then(duration::moment).map(Timestamp);
    let is_likely = |at: &Timestamp| *at <= now && now.since(*at) <= LONGEST;
    started.filter(is_likely).unwrap_or(now)
}
