//! Admission: an enqueue into bounded queues gets places in all of them before anything is sent on, or
//! an answer that says why not and when to come back (backpressure text, sections 5 to 7 and 9.3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use super::full::{self, depth_headers};
use super::overflow;
use super::sent::SentJob;
use crate::admit::depth;
use crate::answers::respond::Fault;
use crate::bounds::{
    Admission, Awaited, Away, BoundGroup, BoundMet, Come, DEFAULT_TENANT, EnqueueOutcome, Full,
    OverflowStrategy, PlaceInLine, TakenPlaces, Want,
};
use crate::desk::admit::LOOKS_AT_ONCE;
use crate::desk::{Proxy, Sidecar, edges, tell};
use crate::inquiry::passing;
use crate::limit::Key;
use crate::policy::template::key_of;
use crate::policy::{JobView, Rendered};
use crate::wire::ojs;
use crate::wire::upstream::{Reply, UpstreamError};

const PRESSURE_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-pressure");

/// The most bounded queues in one batch: each may cost the backend two questions, and room here.
const MOST_QUEUES: usize = 100;

/// The longest name of a queue where bounds are in force, in bytes: it is remembered and logged.
pub(super) const LONGEST_NAME: usize = 255;

/// How often those who wait for room see whether the backend may be asked again.
const LOOK: Duration = Duration::from_millis(50);

/// Places for the jobs of an enqueue; `None`: its queues are not bounded. A producer that may wait
/// waits in here.
pub(super) async fn admit(
    proxy: &Proxy,
    parts: &Parts,
    jobs: &[SentJob<'_>],
) -> Result<Option<TakenPlaces>, Fault> {
    let mut wants = wants(&proxy.sidecar, parts, jobs)?;
    if wants.is_empty() {
        return Ok(None);
    }
    let pressure = &proxy.sidecar.admit.pressure;
    match pressure.admit(&mut wants, edges::now(&proxy.sidecar)) {
        Admission::Go(places) => Ok(Some(places)),
        // Mostly it fits at once: what else there is takes room of its own.
        answer => {
            let later = admit_later(proxy, parts, jobs, wants, answer);
            let mut places = Box::pin(later).await?;
            places.has_waited = true;
            Ok(Some(places))
        }
    }
}

/// Places for the jobs of an enqueue whose first answer was none: by looks, and by waiting for room.
async fn admit_later(
    proxy: &Proxy,
    parts: &Parts,
    jobs: &[SentJob<'_>],
    mut wants: Vec<Want>,
    mut answer: Admission,
) -> Result<TakenPlaces, Fault> {
    // Only looks need it, and they are rare.
    let scope = || proxy.sidecar.scopes.of(&parts.headers);
    let (mut looked_for_tenant, mut has_waited) = (false, false);
    loop {
        let mut dropping = None;
        match answer {
            Admission::Go(places) => return Ok(places),
            Admission::Away(away) => return Err(unasked(away)),
            Admission::Wait(awaited) => depth::await_all(proxy, awaited, scope()).await,
            Admission::Full(full)
                if full.met == BoundMet::Tenant && full.may_ever_fit() && !looked_for_tenant =>
            {
                looked_for_tenant = true;
                depth::await_all(proxy, where_tenant_is(&proxy.sidecar, &full), scope()).await;
            }
            Admission::Drop(queue) => {
                dropping = overflow::drop_oldest(proxy, &mut wants, &queue, scope()).await;
            }
            Admission::Full(full) => {
                let blocks = full.strategy == OverflowStrategy::Block && full.may_ever_fit();
                let patience = match blocks && !has_waited {
                    true => block_timeout(parts)?,
                    false => Duration::ZERO,
                };
                let longest = longest_wait(&wants).min(patience);
                if longest.is_zero() || full.met == BoundMet::Rate {
                    return Err(full::full(&proxy.sidecar, &full, jobs));
                }
                let until = Instant::now() + longest;
                if let Some(places) = blocked(proxy, &mut wants, scope(), until, &full).await {
                    return Ok(places);
                }
                // It asks once more, for what is true then: other bounds may be in force.
                has_waited = true;
                wants = proxy.sidecar.admit.pressure.bounded_now(&wants);
            }
        }
        let now = edges::now(&proxy.sidecar);
        answer = match dropping {
            Some(dropping) => dropping.admit_again(&mut wants, now),
            None => proxy.sidecar.admit.pressure.admit(&mut wants, now),
        };
    }
}

/// Waits in line for room, because `full`. `None`: in vain, or the line is too long. Hanging up leaves the line.
async fn blocked(
    proxy: &Proxy,
    wants: &mut [Want],
    scope: u64,
    until: Instant,
    full: &Full,
) -> Option<TakenPlaces> {
    let sidecar = &proxy.sidecar;
    let pressure = &sidecar.admit.pressure;
    let most = sidecar.live().settings.max_blocked();
    let mut place = PlaceInLine::stand(pressure, wants.to_vec(), most)?;
    // Room may have come before it stood there.
    pressure.wake(edges::now(sidecar));
    loop {
        tokio::select! {
            biased;
            come = place.come() => match come? {
                Come::Places(places) => return Some(places),
                Come::Drop(queue) => {
                    let dropping = overflow::drop_oldest(proxy, wants, &queue, scope).await;
                    place.stand_on(wants.to_vec());
                    drop(dropping);
                    pressure.wake(edges::now(sidecar));
                }
            },
            () = sleep_until(until) => return None,
            () = sidecar.tasks.draining.cancelled() => return None,
            () = sleep(LOOK) => {
                depth::make_looks(proxy, &pressure.look_in_line(wants, Instant::now()), scope);
                depth::make_looks(proxy, &where_tenant_is(sidecar, full), scope);
            }
        }
    }
}

/// Looks at queues where jobs of the tenant whose bound was met are counted: they may have left behind our
/// back, and nobody looks at a queue that is not used.
fn where_tenant_is(sidecar: &Sidecar, full: &Full) -> Vec<Awaited> {
    let tenant = full.key.as_ref().filter(|_| full.met == BoundMet::Tenant);
    tenant.map_or_else(Vec::new, |tenant| {
        (sidecar.admit.pressure).look_for_tenant(tenant, LOOKS_AT_ONCE, Instant::now())
    })
}

/// The places that the jobs of an enqueue want in bounded queues, by name.
fn wants(sidecar: &Sidecar, parts: &Parts, jobs: &[SentJob<'_>]) -> Result<Vec<Want>, Fault> {
    let said = crate::inquiry::job::tenant(&parts.headers);
    let tenant = sidecar.live().trusted(said);
    let mut wants: BTreeMap<Arc<str>, Want> = BTreeMap::new();
    for job in jobs {
        // It is remembered.
        if job.queue.len() > LONGEST_NAME {
            let most = format!("must be at most {LONGEST_NAME} bytes long");
            return Err(Fault::field(&format!("{}options.queue", job.at), &most));
        }
        if let Some(want) = wants.get_mut(&*job.queue) {
            add(job, want, tenant);
            continue;
        }
        let Some(mut want) = nothing_yet(sidecar, &job.queue) else {
            continue;
        };
        if wants.len() == MOST_QUEUES {
            let most = format!(
                "must go into at most {MOST_QUEUES} queues with bounds; send the others in another batch"
            );
            return Err(Fault::field("jobs", &most));
        }
        add(job, &mut want, tenant);
        wants.insert(Arc::clone(&want.queue), want);
    }
    let by_tenant = |want: &Want| {
        let keys = want.bounds.per_key.as_ref();
        want.bounds.tenants || keys.is_some_and(|keys| keys.by.sees_tenants())
    };
    let is_nobodys = |job: &SentJob<'_>| job.view("", None).tenant_id().is_none();
    if let Some(said) = said
        && tenant.is_none()
        && wants.values().any(by_tenant)
        && jobs.iter().any(is_nobodys)
    {
        tell::tenant_untrusted(sidecar, said);
    }
    Ok(wants.into_values().collect())
}

/// What an enqueue wants of a queue before it has a job for it. `None`: the queue is not bounded.
fn nothing_yet(sidecar: &Sidecar, queue: &str) -> Option<Want> {
    let bounds = sidecar.admit.pressure.bounds(queue);
    let has_own = bounds.as_ref().is_some_and(|bounds| bounds.has_own());
    if !has_own {
        sidecar.admit.unbounded.note(queue);
    }
    let bounds = bounds?;
    let drops = bounds.strategy == OverflowStrategy::DropOldest;
    Some(Want {
        paused: drops && sidecar.fetching.paused.has(queue),
        tried: sidecar.admit.pressure.table().tried(queue).map(Box::new),
        ..Want::nothing(queue, bounds)
    })
}

/// Settles the places of an enqueue, looks at its queues if that is due, and says in its reply how near its bounds are.
pub(super) fn settle(
    proxy: &Proxy,
    mut places: TakenPlaces,
    answer: &mut Result<Reply, UpstreamError>,
    scope: u64,
) {
    let sidecar = &proxy.sidecar;
    let looks = std::mem::take(&mut places.look_soon);
    let stored = match &answer {
        Ok(reply) => match reply.status {
            StatusCode::CREATED | StatusCode::ACCEPTED | StatusCode::MULTI_STATUS => true,
            // Between us and the backend: it may have been carried out.
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => true,
            // Of a duplicate that was ignored, the job that is there already is shown.
            StatusCode::OK => reply.body.is_empty(),
            other => other.is_success(),
        },
        Err(error) => error.in_doubt(),
    };
    let jobs = match &answer {
        Ok(reply) if stored && (places.wants_ids() || passing::may_wait(reply)) => {
            passing::stored_jobs(sidecar, reply)
        }
        _ => Vec::new(),
    };
    for queue in places.would_refuse.iter().filter(|_| stored) {
        sidecar.metrics.shadow_refused(queue);
    }
    let outcome = match stored {
        true => EnqueueOutcome::Stored,
        false => EnqueueOutcome::Refused,
    };
    let levels = places.settle(outcome, &jobs);
    edges::tell_edges(sidecar, &levels);
    // Not before the enqueue is settled: on its way it would count twice.
    for queue in looks {
        depth::look_soon(proxy, queue, scope);
    }
    let Ok(reply) = answer else {
        return;
    };
    if reply.status != StatusCode::CREATED {
        return;
    }
    let near = levels.iter().map(|(_, level)| level);
    let near = near.filter(|level| level.above);
    let most = near.max_by(|a, b| a.pressure().total_cmp(&b.pressure()));
    if let Some((level, nearest)) = most.and_then(|level| Some((level, level.most?))) {
        let pressure = (level.pressure() * 1e4).round() / 1e4;
        let of_depth = level.max_depth.map(|bound| (level.depth, bound));
        let near = (nearest.used, nearest.bound);
        reply.headers.extend(depth_headers(of_depth, near));
        if let Ok(value) = HeaderValue::try_from(pressure.to_string()) {
            reply.headers.insert(PRESSURE_HEADER, value);
        }
    }
}

/// Adds the place that a job wants; its key and its tenant too, where its queue tells jobs apart.
fn add(job: &SentJob<'_>, want: &mut Want, tenant: Option<&str>) {
    want.jobs += 1;
    want.sizes.push(job.json.raw().len() as u64);
    if !want.bounds.tells_apart() {
        return;
    }
    let kind = job.kind();
    let view = job.view(&kind, tenant);
    let key = want.bounds.per_key.as_ref().map(|keys| {
        let (Rendered::Whole(key) | Rendered::Missing(_, key)) = keys.by.render(&view);
        BoundGroup::key(&want.queue, Arc::from(key.as_str()))
    });
    let owner = want
        .bounds
        .tenants
        .then(|| BoundGroup::tenant(owner_of(&view)));
    want.groups.push(key.into_iter().chain(owner).collect());
}

/// The tenant of a job, as its bound names it.
fn owner_of(job: &JobView<'_>) -> Arc<str> {
    match job.tenant_id() {
        Some(id) if id.len() <= Key::MAX => Arc::from(&*id),
        // Nobody names one so long: it is known by its beginning and a hash.
        Some(id) => Arc::from(key_of("", &id).as_str()),
        None => Arc::from(DEFAULT_TENANT),
    }
}

/// The longest that an enqueue may wait by what its queues say.
fn longest_wait(wants: &[Want]) -> Duration {
    let longest = wants.iter().map(|want| want.bounds.block_timeout_max);
    longest.min().unwrap_or_default()
}

/// How long the producer would wait (`OJS-Block-Timeout`, in seconds).
fn block_timeout(parts: &Parts) -> Result<Duration, Fault> {
    let Some(sent) = parts.headers.get(ojs::BLOCK_TIMEOUT) else {
        return Ok(Duration::ZERO);
    };
    let text = sent.to_str().ok();
    let seconds = text.and_then(|text| text.trim().parse::<f64>().ok());
    match seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0) {
        // Nobody waits longer than queues let them.
        Some(seconds) => Ok(Duration::from_secs_f64(seconds.min(1e9))),
        None => Err(Fault::field(
            "OJS-Block-Timeout",
            "must be a number of seconds, from 0",
        )),
    }
}

/// An enqueue that was not sent on, because the backend did not say how deep its queue is.
fn unasked(away: Away) -> Fault {
    match away {
        Away::Unanswered(error) => {
            let mut fault = Fault::backend(&error);
            fault.message = format!("nothing was stored: {error}, and the queue has a bound");
            fault
        }
        Away::Failing(status) => {
            let message = format!(
                "nothing was stored: the backend answers {status} when it is asked how many jobs wait, and the \
                 queue has a bound"
            );
            Fault::new("backend_stats_failed", message).later(Duration::from_secs(1))
        }
    }
}
