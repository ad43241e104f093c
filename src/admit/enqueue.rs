//! Enqueue: the `rate_limit` that a job brings is checked and mirrored, because backends forget it.
//! A policy in `meta` whose name has escapes gets its plain one. Everything else passes byte for byte.
//!
//! Why a body is spliced, and not parsed into values and written anew: that would change what nobody asked to change,
//! such as the digits of a number that no double holds, or members that are there twice. Backends read such bodies
//! each in its own way, so the producer would get another answer through us than without us. Jobs are therefore found
//! as ranges of bytes, and only bytes that must differ are replaced; a body that need not change is not even copied.

mod admit;
mod full;
mod overflow;
mod routes;
mod sent;

use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::bounds::TakenPlaces;
use crate::desk::named::{self, LimitedJob};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, enqueued, tell};
use crate::inquiry::calls::may_be_done;
use crate::inquiry::in_force::limits_queue;
use crate::json::{self, Json, Kind, Splice};
use crate::limit::{Limited, Space};
use crate::policy::job::meta_of;
use crate::policy::{self, Accept, FieldError, PolicySet, Sent};
use crate::store::LedgerExt;
use crate::subqueues::mirror::{self, Forgotten, MetaOf};
use crate::told::metrics::Counted;
use crate::wire::boxed::boxed;
use crate::wire::upstream::{Call, UpstreamError};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;

use routes::Routed;
pub(crate) use sent::Sends;
use sent::{SentJob, VISIBILITY};

/// Answers one enqueue of a job, of a batch, or of templates of jobs.
pub(crate) async fn enqueue(
    proxy: &Proxy,
    parts: Box<Parts>,
    body: Bytes,
    sends: Sends,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    // A template is no job that waits.
    let are_jobs = sends != Sends::Templates;
    let bounded = are_jobs && sidecar.admit.pressure.any();
    let policies = Arc::clone(&sidecar.live().policies);
    let limits = !policies.is_empty() || sidecar.store.overrides().any(Space::Queue);
    // Where the mirror is believed, it is ours.
    let mirrors = policies.accept() != Accept::Ignore || limits || bounded;
    let brings = (mirrors && sent::may_name(&body, mirror::NEEDLE))
        || (limits && (policies.rejects() || sent::may_name(&body, VISIBILITY)));
    // It may come in one reply with limited jobs, which could not be read then.
    let joins = limits || bounded || brings || sidecar.fetching.limited.any();
    if joins && let Some(fault) = sent::odd_number(&body) {
        return refuse(&parts, fault);
    }
    let splits = are_jobs && routes::ready(proxy, &policies, &body).await;
    let may_be_odd = are_jobs && (limits || bounded) && sent::may_be_odd(&body);
    let read = match bounded || brings || may_be_odd || splits {
        true => sent::read_jobs(&body, sends),
        false => Ok(None),
    };
    let jobs = match read {
        Ok(jobs) => jobs.unwrap_or_default(),
        Err(fault) => return refuse(&parts, fault),
    };
    let matters = brings || splits || (may_be_odd && jobs.iter().any(SentJob::is_odd));
    let mut routed = Vec::new();
    let (prepared, brought) = match matters {
        true => match prepared(
            proxy,
            &parts,
            &body,
            &jobs,
            &policies,
            splits.then_some(&mut routed),
        ) {
            Ok((body, brought)) if are_jobs => (body, brought),
            Ok((body, brought)) => {
                if brought.iter().any(Option::is_some) {
                    tell::template_limits(sidecar, parts.uri.path());
                }
                (body, Vec::new())
            }
            Err(error) => {
                sidecar.metrics.count(Counted::PolicyRefused);
                return refuse(&parts, Fault::field(&error.field, &error.message));
            }
        },
        false => (body.clone(), Vec::new()),
    };
    drop(policies);
    // Last: for what is refused no old job is dropped.
    let places = match bounded {
        true => admit::admit(proxy, &parts, &jobs).await,
        false => Ok(None),
    };
    // There may be very many, and the backend may take its time.
    drop(jobs);
    match places {
        Ok(places) => send_on(proxy, parts, prepared, (brought, routed), places, sends).await,
        Err(fault) => refuse(&parts, fault),
    }
}

/// Forwards a body, with what its jobs bring and the places that they have. The call runs to its end although the
/// producer hangs up, because the backend may store its jobs.
async fn send_on(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Bytes,
    (brought, routed): (Vec<Option<LimitedJob>>, Vec<Routed>),
    mut places: Option<TakenPlaces>,
    sends: Sends,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    // Whose queues are looked at lends its credentials, later too; all others are not remembered.
    let lends = places
        .as_ref()
        .filter(|places| places.has_waited || !places.look_soon.is_empty());
    let lender = lends.map(|_| proxy.sidecar.scopes.lender(&parts.headers));
    for brought in brought.iter().flatten() {
        proxy.sidecar.fetching.limited.note(&brought.queue);
    }
    // Before it is sent: without an answer it may be stored all the same.
    routes::mark(&proxy.sidecar, &routed);
    let outranks = enqueued::may_outrank(&proxy.sidecar, &body);
    let call = Call {
        method: parts.method.clone(),
        target: proxy.target(&parts.uri),
        headers: respond::take_headers(&mut parts),
        body,
        timeout: proxy.sidecar.live().settings.upstream.timeout,
    };
    let work = boxed(|| async move {
        if let Some(places) = &mut places {
            places.sending();
        }
        let mut answer = proxy.upstream.call(call).await;
        routes::mark(&proxy.sidecar, &routed);
        if let (Ok(reply), Some(lender)) = (&answer, &lender)
            && reply.status.is_success()
        {
            proxy.sidecar.scopes.accept_lender(lender);
        }
        if let Some(places) = places {
            let scope = lender.map_or(0, |lender| lender.scope);
            admit::settle(&proxy, places, &mut answer, scope);
        }
        if sends == Sends::Templates && may_be_done(&answer) {
            // A workflow stores jobs at once, in whatever queues.
            proxy.sidecar.admit.pressure.doubt_all();
        }
        if answer.as_ref().is_err_and(UpstreamError::in_doubt) {
            routes::stored(&proxy.sidecar, &routed, None);
        }
        if let Ok(reply) = &answer
            && reply.status == http::StatusCode::CREATED
        {
            routes::stored(&proxy.sidecar, &routed, Some(reply));
            named::enqueued(&proxy.sidecar, &brought, &reply.body);
            enqueued::outrank(&proxy.sidecar, outranks);
        }
        answer
    });
    let answer = to_the_end(&sidecar.tasks.left, work).await;
    respond::answer(&parts, answer, Fault::storing)
}

/// The body with every job's mirror in it, and the limits that its jobs name.
fn prepared(
    proxy: &Proxy,
    parts: &Parts,
    body: &Bytes,
    jobs: &[SentJob<'_>],
    policies: &PolicySet,
    mut routed: Option<&mut Vec<Routed>>,
) -> Result<(Bytes, Vec<Option<LimitedJob>>), FieldError> {
    let mut splice = Splice::new();
    let mut all = Vec::new();
    for job in jobs {
        let brought = prepare(
            proxy,
            parts,
            job,
            policies,
            &mut splice,
            routed.as_deref_mut(),
        );
        all.push(brought.map_err(|error| FieldError {
            field: format!("{}{}", job.at, error.field),
            ..error
        })?);
    }
    let body = match splice.is_empty() {
        true => body.clone(),
        false => splice.apply(body).into(),
    };
    Ok((body, all))
}

/// Checks one job and writes its mirror; says which limits it brings.
fn prepare(
    proxy: &Proxy,
    parts: &Parts,
    job: &SentJob<'_>,
    policies: &PolicySet,
    splice: &mut Splice,
    routed: Option<&mut Vec<Routed>>,
) -> Result<Option<LimitedJob>, FieldError> {
    let (json, options, queue) = (job.json, job.options, &*job.queue);
    let sent = if policies.accept() != Accept::Ignore {
        unforward(options, splice);
        let sent = policy::sent_policies(json)?;
        policies.too_many_windows(&sent).map_or(Ok(()), Err)?;
        sent
    } else {
        Vec::new()
    };
    if policies.rejects() {
        let tenant = crate::inquiry::job::tenant(&parts.headers);
        let tenant = proxy.sidecar.live().trusted(tenant);
        let missing = policies.missing_key(&job.view(&job.kind(), tenant));
        missing.map_or(Ok(()), Err)?;
    }
    let visibility = options
        // What no limit touches is not touched.
        .filter(|_| !sent.is_empty() || limits_queue(&proxy.sidecar, queue, policies))
        .and_then(sent::visibility);
    let own: Vec<Limited> = sent.iter().map(|sent| sent.policy.clone()).collect();
    let route = routed.and_then(|routed| {
        let route = routes::of(proxy, parts, job, policies, &own)?;
        route.write(job, splice);
        routed.push(route);
        Some(())
    });
    let watched = job.is_odd() && watches(&proxy.sidecar, json, queue, policies);
    if watched || route.is_some() || !sent.is_empty() {
        let untrue = job.untrue.iter();
        untrue.for_each(|member| splice.remove_member(json, *member));
    }
    let forgotten = Forgotten {
        policy: forgotten(&sent),
        visibility_ms: visibility.filter(|ms| *ms > 0),
        queue: (route.is_some() || job.is_flat && (watched || !sent.is_empty())).then_some(queue),
    };
    write(json, meta_of(json, options), forgotten, splice);
    let brought = (!sent.is_empty()).then(|| LimitedJob {
        queue: Arc::from(queue),
        limited: sent.into_iter().map(|sent| sent.policy).collect(),
    });
    Ok(brought)
}

/// Whether limits or bounds look at a job that is filed in one queue and names another, by either name.
fn watches(sidecar: &Sidecar, job: Json<'_>, filed: &str, policies: &PolicySet) -> bool {
    let is_watched = |queue: &str| {
        sidecar.admit.pressure.bounds(queue).is_some() || limits_queue(sidecar, queue, policies)
    };
    let named = job.get("queue").and_then(|queue| queue.text());
    is_watched(filed) || named.is_some_and(|named| is_watched(&named))
}

/// Takes `options.rate_limit.max_per_second` out: some backends would keep it for the queue for ever,
/// and the sidecar enforces it.
fn unforward(options: Option<Json<'_>>, splice: &mut Splice) {
    let Some(limit) = options.and_then(|options| options.get(mirror::NEEDLE)) else {
        return;
    };
    for member in limit
        .members()
        .filter(|member| member.is_named("max_per_second"))
    {
        splice.remove_member(limit, member);
    }
}

/// The policy that a backend forgets, and where it stood.
fn forgotten<'a>(sent: &[Sent<'a>]) -> Option<(&'static str, &'a [u8])> {
    let mut sent = sent.iter();
    let forgotten = sent.find(|sent| ["options.rate_limit", "rate_limit"].contains(&sent.at));
    forgotten.map(|sent| (sent.at, sent.raw.raw()))
}

/// Writes a job's mirror into the `meta` that the backend will keep, and the name of a policy there without
/// escapes.
fn write(job: Json<'_>, meta: Option<Json<'_>>, forgotten: Forgotten<'_>, splice: &mut Splice) {
    if let Some(meta) = meta {
        for member in meta.members() {
            match member.name.text().as_deref() {
                // Nobody but the sidecar writes mirrors.
                Some(mirror::MIRROR) => splice.remove_member(meta, member),
                // Backends may give it back as it was written, and then it must be found.
                Some(policy::META) if !mirror::may_bring(member.name.raw()) => {
                    splice.replace(member.name.range(), json::quote(policy::META));
                }
                _ => {}
            }
        }
    }
    if forgotten.is_empty() {
        return;
    }
    let whole = || {
        let value = forgotten.value(MetaOf::Ours);
        [b"{\"", mirror::MIRROR.as_bytes(), b"\":", &value, b"}"].concat()
    };
    match meta {
        Some(meta) if meta.kind() == Kind::Object => {
            splice.add_member(meta, mirror::MIRROR, &forgotten.value(MetaOf::Producer));
        }
        None if job.kind() == Kind::Object => {
            splice.add_member(job, "meta", &whole());
        }
        Some(meta) if meta.is_null() => {
            splice.replace(meta.range(), whole());
        }
        // A `meta` of another kind is the backend's to refuse.
        _ => {}
    }
}
