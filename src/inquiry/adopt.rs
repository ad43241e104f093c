//! Adoption: jobs that run already when limits begin to apply to them get their slots, from the backend's list of active
//! jobs. Windows start empty with the memory store; slots do not.
//!
//! A job that a sibling holds is active in the backend too, and must get no slot: its holder starts it later. No store
//! says what siblings hold, but they can: whatever was only seen to run ends when its holder names it. So where siblings
//! live, a found job first gets a row without limits. Slots come when the siblings had time to name what they hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job::{self, DEFAULT_VISIBILITY};
use super::{calls, in_force, overdue, prove, rows};
use crate::desk::adoption::{Listing, Unlearnt};
use crate::desk::live::Live;
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, micros, named, settings};
use crate::duration;
use crate::json::Json;
use crate::limit::{Limited, Timestamp};
use crate::policy::{Accept, JobView};
use crate::store::{Change, Claim, Claimed, Due, Gen, LedgerExt, StoreError};
use crate::subqueues::mirror;
use crate::told::metrics::Counted;
use crate::wire::boxed::boxed;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::UpstreamError;

/// Jobs on one page of the backend's list, and the most pages read.
const PAGE: u32 = 100;
const PAGES: usize = 100;
/// How often more the list is read where it has several pages: a job may slip from one to the next between two questions,
/// and some backends order each page anew.
const READINGS: usize = 3;
/// How long a page of the list may take at first: one that hangs keeps nobody for long.
const PAGE_TIME: Duration = Duration::from_secs(2);
/// How long it may take at most. Some backends read all of their jobs for it.
const LONGEST_PAGE: Duration = Duration::from_secs(8);
/// The pauses before the list is asked for again when it did not come, and how long a page may take then.
const LIST_AGAIN: [(Duration, Duration); 2] = [
    (Duration::from_millis(250), Duration::from_secs(4)),
    (Duration::from_secs(1), LONGEST_PAGE),
];
/// How long the list may take in all: a start waits for it, and service managers wait for that for 90 s.
const LONGEST_LIST: Duration = Duration::from_secs(60);
/// How long the backend may take for its manifest, and twice as long each time after it was late: one that hangs keeps
/// nobody for long, and one that is slow is heard in the end.
const MANIFEST: Duration = Duration::from_secs(2);
/// How often a backend is asked again that has not told what it is, and one that refuses to.
const UNLEARNT: Duration = Duration::from_secs(2);
const REFUSED: Duration = Duration::from_secs(60);
/// By then a live sibling has named what it holds of the jobs that were found: it looks at the store every 1.2 s, and
/// its sweep may be half a second late.
const NAMED_BY: Duration = Duration::from_millis(2_500);
/// No job that runs began longer ago, in microseconds. A time that was never set may be one of the year 1.
const LONGEST: u64 = 30 * 86_400 * 1_000_000;

/// Which running jobs had limits before: those have their slots, or somebody holds them.
#[derive(Clone)]
pub(crate) enum LimitedBefore {
    /// None of them, as far as is known here.
    None,
    /// Those that these policies limit.
    Under(Arc<Live>),
    /// All but those of this queue, which gets its first limit.
    AllBut(Arc<str>),
}

/// Whether neither the config nor a job can bring a limit.
pub(crate) fn never_limits(live: &Live) -> bool {
    live.policies.is_empty() && live.policies.accept() == Accept::Ignore
}

/// No list of running jobs came, or not to its end: the status of what came in place of it, or why nothing did.
#[derive(Debug)]
pub(crate) struct Unlisted(Result<StatusCode, UpstreamError>);

impl Unlisted {
    /// Whether it may come another time.
    fn may_come(&self) -> bool {
        self.0.as_ref().map_or(true, |status| is_no_word(*status))
    }
}

/// Whether something between us and the backend speaks for it, or it has its troubles.
fn is_no_word(status: StatusCode) -> bool {
    status.is_server_error() || calls::is_for_now(status)
}

/// How long after a question the backend is asked again what it is; `None`: it has told.
pub(crate) fn asked_again_after(sidecar: &Sidecar) -> Option<Duration> {
    let adoption = &sidecar.keeper.adoption;
    if !adoption.learnt.initialized() {
        return Some(UNLEARNT);
    }
    (adoption.is_refused.load(Ordering::Relaxed)).then_some(REFUSED)
}

/// Asks again what it is. Who fails is told.
pub(crate) async fn ask_again(proxy: &Proxy) {
    let _failed = match proxy.sidecar.keeper.adoption.learnt.initialized() {
        false => ensure_learnt(proxy).await,
        true => read_manifest(proxy, Duration::MAX).await,
    };
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
        let was_stranger = matches!(last, Some(UpstreamError::Unreadable(_)));
        let patience = match &last {
            Some(UpstreamError::Timeout(time)) => time.saturating_mul(2),
            _ => MANIFEST,
        };
        if let Some(error) = last.filter(|_| count > before) {
            return Err(error);
        }
        // To its end: rows without limits are not looked at again, so a worker that hangs up must leave none.
        let own = proxy.clone();
        let learning = boxed(|| async move { learn(&own, patience).await });
        let learnt = to_the_end(&proxy.sidecar.tasks.own, learning).await;
        if let Err(error) = &learnt {
            // That somebody else answers there is told too, whatever was the matter before.
            let is_stranger = matches!(error, UpstreamError::Unreadable(_));
            if count == 0 || (is_stranger && !was_stranger) {
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
    read_manifest(proxy, patience).await?;
    adopt_newly_limited(proxy).await;
    Ok(())
}

/// Asks the backend what it is. Limits hold where it refuses to say that too.
async fn read_manifest(proxy: &Proxy, patience: Duration) -> Result<(), UpstreamError> {
    let mut call = calls::get(proxy, 0, "/ojs/manifest".to_owned());
    call.timeout = patience.min(proxy.sidecar.live().settings.upstream.timeout);
    let reply = calls::call(proxy, "manifest", call).await?;
    if let Some(stranger) = proxy.sidecar.backend.note_stranger(&reply) {
        return Err(UpstreamError::Unreadable(stranger.to_string()));
    }
    if is_no_word(reply.status) {
        return Err(UpstreamError::Lost(format!(
            "its manifest is {}",
            reply.status
        )));
    }
    proxy.sidecar.backend.read_manifest(&reply.body);
    settings::follow_subqueues(&proxy.sidecar);
    let is_refused = matches!(
        reply.status,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
    );
    let adoption = &proxy.sidecar.keeper.adoption;
    let was_refused = adoption.is_refused.swap(is_refused, Ordering::Relaxed);
    if is_refused && !was_refused {
        tracing::warn!(
            id = %"manifest_refused",
            status = reply.status.as_u16(),
            "the backend refuses to tell us what it is (GET /ojs/manifest): set upstream.token to one that may read it; \
             until then [upstream] says what it does, or it is guessed"
        );
    }
    if !is_refused && !proxy.sidecar.backend.is_liveness_known() {
        tracing::warn!(
            id = %"liveness_unknown",
            "nobody says whether a heartbeat keeps single jobs on this backend, so each limited job is claimed by itself, \
             which costs more calls: run `ojs-throttle doctor --probe`, and set upstream.liveness"
        );
    }
    Ok(())
}

/// Other policies may limit jobs that are running: those that had no limits so far get their slots, as
/// at the start. Beside the sweep: held jobs get their heartbeats meanwhile, however long the list is.
pub(crate) fn adopt_again(proxy: &Proxy, stop: &CancellationToken) -> JoinHandle<()> {
    let sidecar = &proxy.sidecar;
    let (proxy, stop) = (proxy.clone(), stop.clone());
    // Tracked, and over when the sweep is.
    sidecar.tasks.spawn(async move {
        if proxy.sidecar.keeper.adoption.learnt.initialized() {
            stop.run_until_cancelled(adopt_newly_limited(&proxy)).await;
        }
    })
}

/// Gives their slots to running jobs that the policies of now limit and those of the last list did not. Without
/// policies too: jobs bring limits of their own.
async fn adopt_newly_limited(proxy: &Proxy) {
    let (sidecar, adoption) = (&proxy.sidecar, &proxy.sidecar.keeper.adoption);
    let live = sidecar.control.live.load_full();
    let last = adoption.listed_under.lock().clone();
    let before = last.map_or(LimitedBefore::None, LimitedBefore::Under);
    let adopted = match never_limits(&live) {
        true => Ok(0),
        false => adopt_running(proxy, &before).await,
    };
    match adopted {
        Ok(adopted) => {
            *adoption.listed_under.lock() = Some(live);
            if adopted > 0 {
                tracing::info!(
                    adopted,
                    "jobs that run already are limited; they have their slots"
                );
            }
        }
        Err(Unlisted(Ok(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)))) => {
            tracing::warn!(
                id = %"active_refused",
                status = status.as_u16(),
                "the backend refuses us its list of active jobs: set upstream.token to one that may read it; until \
                 those that run already have ended, as many more may run"
            )
        }
        Err(Unlisted(came)) => tracing::warn!(
            id = %"active_missing",
            status = came.as_ref().ok().map(StatusCode::as_u16),
            error = came.as_ref().err().map(tracing::field::display),
            "the backend's list of active jobs did not come, or not to its end; until those that run already have \
             ended, as many more may run"
        ),
    }
}

/// Reads the backend's list of active jobs and takes the slots of those that were not limited before. Says how many were
/// found, or what came in place of a list.
pub(crate) async fn adopt_running(
    proxy: &Proxy,
    before: &LimitedBefore,
) -> Result<usize, Unlisted> {
    adopt_listed(proxy, before, None).await
}

/// Does so; with `left` for these jobs alone, of which the store did not answer before.
async fn adopt_listed(
    proxy: &Proxy,
    before: &LimitedBefore,
    left: Option<HashSet<Arc<str>>>,
) -> Result<usize, Unlisted> {
    let sidecar = &proxy.sidecar;
    let _listing = Listing::begin(&sidecar.keeper.adoption);
    // A look at the store tells whether siblings live; at the start there was none yet.
    let looked = sidecar.store.due(0).await.is_ok();
    if (!looked || sidecar.store.is_lost())
        && let Some(left) = left
    {
        limit_unnamed(proxy, before, HashMap::new(), left);
        return Ok(0);
    }
    let is_alone = looked && sidecar.store.siblings() == 0;
    let (mut adopted, mut seen) = (0, HashSet::new());
    let (mut unnamed, mut failed) = (HashMap::new(), HashSet::<Arc<str>>::new());
    let (mut again, mut readings) = (LIST_AGAIN.into_iter(), 1..=READINGS);
    let (mut page_time, until) = (PAGE_TIME, Instant::now() + LONGEST_LIST);
    let listed = loop {
        let (mut found, before_it) = (Vec::new(), adopted);
        let listed = list_running(proxy, before, (page_time, until), &mut found).await;
        // The store is asked about each once.
        found.retain(|claimed| {
            let is_asked = left.as_ref().is_none_or(|left| left.contains(&claimed.job));
            is_asked && seen.insert(Arc::clone(&claimed.job))
        });
        for claimed in found {
            let job = Arc::clone(&claimed.job);
            let mut row = claimed.clone();
            if !is_alone {
                // Without limits it takes no slot.
                row.limited = Arc::default();
            }
            let until = sidecar.store.now().plus(row.visibility);
            match adopt(sidecar, row, until.into()).await {
                Ok(got_row) => {
                    adopted += usize::from(got_row);
                    failed.remove(&job);
                    // It may have got one before, without limits, and nobody heard that.
                    if (got_row && !is_alone) || left.is_some() {
                        unnamed.insert(job, claimed);
                    }
                }
                Err(_) => drop(failed.insert(job)),
            }
        }
        let has_more = adopted > before_it;
        match &listed {
            Err(unlisted) if unlisted.may_come() => match again.next() {
                Some((pause, longer)) if Instant::now() < until => {
                    seen.clear();
                    page_time = longer;
                    tokio::time::sleep(pause).await;
                }
                _ => break listed,
            },
            Ok(pages) if *pages > 1 && has_more && readings.next().is_some() => {}
            _ => break listed,
        }
    };
    if listed.as_ref().is_err_and(Unlisted::may_come) {
        failed.extend(left.into_iter().flatten().filter(|job| !seen.contains(job)));
    }
    limit_unnamed(proxy, before, unnamed, failed);
    listed.map(|_| adopted)
}

/// Gives these found jobs their slots if no sibling names them as held, nor ends them, while it has time for that. Those of
/// which the store does not answer then, or has not before, are looked for once more.
fn limit_unnamed(
    proxy: &Proxy,
    before: &LimitedBefore,
    found: HashMap<Arc<str>, Claimed>,
    mut failed: HashSet<Arc<str>>,
) {
    if found.is_empty() && failed.is_empty() {
        return;
    }
    let sidecar = &proxy.sidecar;
    let (proxy, before) = (proxy.clone(), before.clone());
    let _task = sidecar.tasks.spawn(async move {
        tokio::time::sleep(NAMED_BY).await;
        let sidecar = &proxy.sidecar;
        let mut limited = Vec::new();
        for (job, claimed) in found {
            match limit(sidecar, &claimed).await {
                Ok(true) => limited.push(claimed),
                Ok(false) => {}
                Err(_) => drop(failed.insert(job)),
            }
        }
        // Once all have their slots. One may have ended through a sibling before it had a row.
        for claimed in limited {
            if prove::shown_active(&proxy, &claimed).await == Some(false) {
                overdue::reclaim(sidecar, &claimed).await;
            }
        }
        if !failed.is_empty() && !sidecar.tasks.draining.is_cancelled() {
            drop(adopt_listed(&proxy, &before, Some(failed)).await);
        }
    });
}

/// Gives a found job its slots, unless its row has ended.
async fn limit(sidecar: &Sidecar, claimed: &Claimed) -> Result<bool, StoreError> {
    let _listing = Listing::begin(&sidecar.keeper.adoption);
    let ended = sidecar.store.end(&claimed.job, Some(Gen::ADOPTED)).await?;
    match ended.and_then(|row| row.due()) {
        Some(due) => adopt(sidecar, claimed.clone(), due).await,
        None => Ok(false),
    }
}

/// Reads the backend's list of active jobs, and says how many pages it has. Those that are limited here, were not before
/// and are not held come to `found`, also where the list breaks off: a page may take so long, and all until then.
async fn list_running(
    proxy: &Proxy,
    before: &LimitedBefore,
    (page_time, until): (Duration, Instant),
    found: &mut Vec<Claimed>,
) -> Result<usize, Unlisted> {
    let mut listed: u32 = 0;
    for page in 1..=PAGES {
        let target = format!("/ojs/v1/admin/jobs?state=active&page={page}&per_page={PAGE}");
        let mut call = calls::get(proxy, 0, target);
        call.timeout = page_time.min(until.saturating_duration_since(Instant::now()));
        let answer = calls::call(proxy, "list_active", call).await;
        let reply = answer.map_err(|error| Unlisted(Err(error)))?;
        let unlisted = || Unlisted(Ok(reply.status));
        if reply.status != StatusCode::OK {
            return Err(unlisted());
        }
        let whole = Json::parse(&reply.body, REPLY_DEPTH).map_err(|_| unlisted())?;
        let jobs = whole.get_exact("items").ok_or_else(unlisted)?;
        let pagination = whole.get_exact("pagination");
        let total = pagination.and_then(|pagination| pagination.get_exact("total")?.u32());
        let mut count = 0;
        for job in jobs.items() {
            count += 1;
            found.extend(running(&proxy.sidecar, 0, job, before));
        }
        listed += count;
        // Some give fewer jobs a page than they are asked for.
        let has_more = count == PAGE || total.is_some_and(|total| listed < total);
        if count == 0 || !has_more {
            return Ok(page);
        }
    }
    Ok(PAGES)
}

/// Reads that list where nobody waits for it, with all of them that are limited.
pub(crate) async fn list_all_running(
    proxy: &Proxy,
    found: &mut Vec<Claimed>,
) -> Result<usize, Unlisted> {
    let time = (LONGEST_PAGE, Instant::now() + LONGEST_LIST);
    list_running(proxy, &LimitedBefore::None, time, found).await
}

/// Gives one running job its row, above its limits if need be. Says whether it got one. The backend is asked about it
/// when `until` has come.
async fn adopt(sidecar: &Sidecar, claimed: Claimed, until: Due) -> Result<bool, StoreError> {
    let adoption = &sidecar.keeper.adoption;
    let row = sidecar.store.row(&claimed.job).await?;
    if row.is_some() || sidecar.hold.has(&claimed.job) || adoption.has_ended(&claimed.job) {
        return Ok(false);
    }
    let adopt = Change::Adopt {
        claimed: claimed.clone(),
        until,
    };
    match sidecar.store.set(adopt).await {
        Ok(true) => {}
        // The store cannot keep it, however often it is told.
        Ok(false) | Err(StoreError::Unfit(_)) => return Ok(false),
        Err(error) => return Err(error),
    }
    if !claimed.limited.is_empty() {
        named::noted(sidecar, std::iter::once(&claimed));
        sidecar.metrics.adopted(&claimed.limited);
        sidecar.metrics.count(Counted::SlotAdopted);
    }
    // Who ended it while the store was at it found no row to end.
    if adoption.has_ended(&claimed.job) {
        sidecar.end(&claimed.job, Some(Gen::ADOPTED)).await;
    }
    Ok(true)
}

/// The claim of a job that the backend shows as active, if a sibling holds it. A limited job that runs has a row, so one
/// without a row is held. The store is asked only about jobs that may be another's.
pub(crate) async fn held_by_sibling(
    sidecar: &Sidecar,
    scope: u64,
    job: Json<'_>,
) -> Option<Claimed> {
    if sidecar.store.siblings() == 0 {
        return None;
    }
    let claimed = running(sidecar, scope, job, &LimitedBefore::None)?;
    let is_held = match rows::row_of(sidecar, &claimed.job).await.ok()? {
        Some(row) => !row.is_out(),
        // The jobs of keys that are reserved ahead run without rows.
        None => !sidecar.store.may_miss_rows() && !sidecar.store.is_reserved(&claimed.limited),
    };
    is_held.then_some(claimed)
}

/// A running job as a claim, if it is limited, was not before, and is not held.
pub(crate) fn running(
    sidecar: &Sidecar,
    scope: u64,
    job: Json<'_>,
    before: &LimitedBefore,
) -> Option<Claimed> {
    let [id, kind, queue, state, attempt, started] =
        job.pick_exact(["id", "type", "queue", "state", "attempt", "started_at"]);
    let text = |value: Option<Json<'_>>| value.and_then(|v| v.text()).map(|v| v.into_owned());
    let (Some(id), Some("active")) = (text(id), text(state).as_deref()) else {
        return None;
    };
    let filed = mirror::filed(job).map(|queue| queue.into_owned());
    let queue = filed.or_else(|| text(queue));
    let queue = queue.as_deref().unwrap_or("default");
    let queue = sidecar.subqueues.base_of(queue).to_owned();
    let kind = text(kind).unwrap_or_default();
    let limits = new_limits(sidecar, scope, job, (&queue, &kind), before)?;
    let limited = in_force::limits_now(sidecar, &queue, &limits).into_owned();
    if limited.is_empty() || sidecar.hold.has(&id) {
        return None;
    }
    let attempt = attempt.and_then(|a| a.u32());
    let own = mirror::visibility(job).map(Duration::from_millis);
    Some(Claimed::from(Claim {
        claim_id: Arc::from(text(job.get("worker_id")).unwrap_or_default()),
        scope,
        attempt,
        claimed_at: claimed_at(text(started).as_deref(), sidecar.store.now()),
        visibility: micros(own.unwrap_or(DEFAULT_VISIBILITY)),
        limited,
        ..Claim::new(Arc::from(id), Gen::ADOPTED, Arc::from(queue))
    }))
}

/// What limits a running job of this queue and type; `None`: it was limited before, or nobody knows whose it is.
fn new_limits(
    sidecar: &Sidecar,
    scope: u64,
    job: Json<'_>,
    (queue, kind): (&str, &str),
    before: &LimitedBefore,
) -> Option<Arc<[Limited]>> {
    let (own, live) = (job::own(job, queue), sidecar.live());
    let tenant = sidecar.scopes.tenant_of(scope);
    let id = job.get("id").and_then(|id| id.text());
    let view = JobView {
        id: id.as_deref(),
        queue,
        kind,
        meta: job.get("meta"),
        tenant: live.trusted(tenant.as_deref()),
    };
    if scope == 0 && live.settings.server.trust_tenant_header && live.policies.lacks_tenant(&view) {
        // Whose it is only its FETCH said.
        return None;
    }
    let under = |live: &Live| job::limits_of(&view, &own, live, &mut live.known());
    let limits = under(&live);
    let was_limited = match before {
        LimitedBefore::None => false,
        LimitedBefore::Under(last) => {
            !under(last).is_empty() || in_force::set_for_queue(sidecar, queue).is_some()
        }
        LimitedBefore::AllBut(of) => !limits.is_empty() || **of != *queue,
    };
    (!was_limited).then(|| job::priced(limits, &view, job, |_, _| {}))
}

/// When a running job was claimed, by its `started_at`: where claims last from their start, its heartbeats must ask
/// for so much more. `now` where it has none that can be true.
fn claimed_at(started: Option<&str>, now: Timestamp) -> Timestamp {
    let started = started.and_then(duration::moment).map(Timestamp);
    let is_likely = |at: &Timestamp| *at <= now && now.since(*at) <= LONGEST;
    started.filter(is_likely).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::faulty::{Fault, Faulty};
    use crate::limit::{Limits, Space};
    use crate::policy::queue_key;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::{Ledger, Override, RowsOf, Store};

    /// Whichever question about it the store does not answer, and whether what was asked was done.
    #[tokio::test(start_paused = true)]
    async fn a_running_job_gets_its_slots_although_the_store_fails_once() {
        for (siblings, calls) in [(0, 3), (1, 6)] {
            for nth in 0..calls {
                for fault in [Fault::gone(), Fault::unheard()] {
                    let inner = Arc::new(MemoryStore::new(1_800_000_000_000_000));
                    let faulty = Arc::new(Faulty::new(inner.clone()));
                    faulty.with_siblings(siblings);
                    let guard = Guard::new(faulty.clone(), OnStoreError::Share);
                    let proxy = Proxy::on(Store::shared(Arc::new(guard)));
                    for (target, body) in [
                        (
                            "/ojs/v1/jobs",
                            r#"{"type":"t","args":[],"options":{"queue":"q"}}"#,
                        ),
                        (
                            "/ojs/v1/workers/fetch",
                            r#"{"queues":["q"],"worker_id":"w","visibility_timeout_ms":60000}"#,
                        ),
                    ] {
                        let call = calls::post(&proxy, 0, target, body);
                        let reply = proxy.upstream.call(call).await.unwrap();
                        assert!(reply.status.is_success(), "{:?}", reply.body);
                    }
                    let limits = Limits {
                        concurrency: Some(9),
                        ..Limits::default()
                    };
                    let set = Some(Override {
                        limits,
                        ..Override::default()
                    });
                    let (space, key) = (Space::Queue, queue_key("q"));
                    let set = Change::Override { space, key, set };
                    assert!(proxy.sidecar.store.set(set).await.unwrap());
                    faulty.script((0..nth).map(|_| Fault::NONE).chain([fault.clone()]));
                    let listed = adopt_running(&proxy, &LimitedBefore::None).await;
                    assert!(listed.is_ok());
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    let rows = inner.rows(RowsOf::Out { max: 9 }).await.unwrap();
                    let slots = rows.iter().map(|row| row.claimed.limited.len());
                    let slots: Vec<usize> = slots.collect();
                    assert_eq!(slots, [1], "{siblings} siblings, call {nth}: {fault:?}");
                }
            }
        }
    }
}
