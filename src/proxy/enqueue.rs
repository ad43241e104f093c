//! Enqueue: the `rate_limit` that a job brings is checked and mirrored, because backends forget it.
//! A policy in `meta` whose name has escapes gets its plain one. Everything else passes byte for byte.

mod admit;
mod full;
mod overflow;
mod sent;

use super::body::Body;
use super::control::named::{self, Brought};
use super::control::overrides;
use super::fetch::enqueued;
use super::mirror::{self, Forgotten};
use super::outlive::to_the_end;
use super::respond::{self, Fault};
use super::{DEPTH, Proxy, Sidecar, refuse};
use crate::store::LedgerExt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;

use crate::boxed::boxed;
use crate::json::{self, Json, Kind, Splice};
use crate::limit::Space;
use crate::metrics::Counted;
use crate::policy::job::{filed, meta_of};
use crate::policy::{self, Accept, FieldError, JobView, PolicySet, Sent};
use crate::pressure::Places;
use crate::upstream::Call;
use sent::{VISIBILITY, unreadable};

/// The kind of body of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sends {
    /// One job.
    Job,
    /// Jobs, in `jobs`.
    Batch,
    /// What jobs are made from later, at any depth: a cron entry, a workflow.
    Templates,
}

/// Why an enqueue is not sent on.
enum Unsendable {
    /// What a job brings is wrong.
    Brings(FieldError),
    /// Backends read it in different ways.
    Unclear(Fault),
}

/// 400: nobody knows which `options` of a job, or which queue in them, count.
pub(super) fn ambiguous(at: &str) -> Fault {
    let why = "is there several times, or says its queue several times: say everything in one";
    Fault::field(&format!("{at}options"), why)
}

/// 400: nobody knows which list of jobs counts.
pub(super) fn several_batches() -> Fault {
    Fault::field("jobs", "is there several times: say everything in one")
}

/// Answers one enqueue of a job, of a batch, or of templates of jobs.
pub(super) async fn enqueue(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Bytes,
    sends: Sends,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let bounded = sends != Sends::Templates && sidecar.admit.pressure.any();
    let read = (bounded && sends == Sends::Job).then(|| sent::read_job(&body));
    let job = match read {
        Some(Err(error)) => match unreadable(&body, error) {
            Some(fault) => return refuse(&parts, fault),
            None => None,
        },
        None => None,
        Some(Ok(job)) if job.ambiguous => return refuse(&parts, ambiguous("")),
        Some(Ok(job)) => Some(job),
    };
    let policies = Arc::clone(&sidecar.live().policies);
    let brings = || match &job {
        Some(job) => job.brings,
        None => sent::may_name(&body, mirror::NEEDLE),
    };
    let has_visibility = || match &job {
        Some(job) => job.has_visibility,
        None => sent::may_name(&body, VISIBILITY),
    };
    let is_flat = || match &job {
        Some(job) => job.flat,
        None => sent::may_have_flat(&body, sends),
    };
    let limits = !policies.is_empty() || sidecar.store.overrides().any(Space::Queue);
    // Where the mirror is believed, it is ours.
    let mirrors = policies.accept() != Accept::Ignore || limits || bounded;
    let matters = (mirrors && brings())
        || (limits && (policies.rejects() || has_visibility()))
        || ((limits || bounded) && is_flat());
    let prepared = match matters {
        true => prepared(proxy, &parts, &body, sends, &policies),
        false => Ok((body.clone(), Vec::new())),
    };
    let (prepared, brought) = match prepared {
        // A template is no job that waits.
        Ok((body, _)) if sends == Sends::Templates => (body, Vec::new()),
        Ok(prepared) => prepared,
        Err(Unsendable::Brings(error)) => {
            sidecar.metrics.count(Counted::PolicyRefused);
            return refuse(&parts, Fault::field(&error.field, &error.message));
        }
        Err(Unsendable::Unclear(fault)) => return refuse(&parts, fault),
    };
    drop(policies);
    // Last: for what is refused no old job is dropped.
    let mut places = None;
    if bounded {
        match admit::admit(proxy, &parts, &body, sends, job.as_ref()).await {
            Ok(found) => places = found,
            Err(fault) => return refuse(&parts, fault),
        }
    }
    if !matters && places.is_none() {
        return send_on(proxy, &mut parts, body).await;
    }
    send_counted(proxy, parts, prepared, brought, places).await
}

/// Forwards a body whose jobs count. The call runs to its end although the producer hangs up, because the
/// backend may store its jobs.
async fn send_counted(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Bytes,
    brought: Vec<Option<Brought>>,
    mut places: Option<Places>,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    // Whose queues are looked at lends its credentials, later too; all others are not remembered.
    let lends = places
        .as_ref()
        .filter(|places| places.looked || !places.look.is_empty());
    let lender = lends.map(|_| proxy.sidecar.scopes.lender(&parts.headers));
    for brought in brought.iter().flatten() {
        proxy.sidecar.fetching.limits(&brought.queue);
    }
    let outranks = enqueued::may_outrank(&proxy.sidecar, &body);
    let call = enqueue_call(&proxy, &mut parts, body);
    let work = boxed(|| async move {
        if let Some(places) = &mut places {
            places.sending();
        }
        let mut answer = proxy.upstream.call(call).await;
        if let (Ok(reply), Some(lender)) = (&answer, &lender)
            && reply.status.is_success()
        {
            proxy.sidecar.scopes.accept_lender(lender);
        }
        if let Some(places) = places {
            let scope = lender.map_or(0, |lender| lender.scope);
            admit::settled(&proxy, places, &mut answer, scope);
        }
        if let Ok(reply) = &answer
            && reply.status == http::StatusCode::CREATED
        {
            named::enqueued(&proxy.sidecar, &brought, &reply.body);
            enqueued::outrank(&proxy.sidecar, outranks);
        }
        answer
    });
    let answer = to_the_end(&sidecar.tasks.left, work).await;
    respond::answer_storing(&parts, answer)
}

/// Forwards a body that is known, as it is.
async fn send_on(proxy: &Proxy, parts: &mut Parts, body: Bytes) -> Response<Body> {
    let outranks = enqueued::may_outrank(&proxy.sidecar, &body);
    let answer = proxy.upstream.call(enqueue_call(proxy, parts, body)).await;
    if answer
        .as_ref()
        .is_ok_and(|reply| reply.status == http::StatusCode::CREATED)
    {
        enqueued::outrank(&proxy.sidecar, outranks);
    }
    respond::answer_storing(parts, answer)
}

fn enqueue_call(proxy: &Proxy, parts: &mut Parts, body: Bytes) -> Call {
    Call {
        method: parts.method.clone(),
        target: proxy.target(&parts.uri),
        headers: respond::take_headers(parts),
        body,
        timeout: proxy.sidecar.live().settings.upstream.timeout,
    }
}

/// The body with every job's mirror in it, and the limits that its jobs name. What is JSON to nobody goes on as it
/// came: the backend will say what is wrong with it.
fn prepared(
    proxy: &Proxy,
    parts: &Parts,
    body: &Bytes,
    sends: Sends,
    policies: &PolicySet,
) -> Result<(Bytes, Vec<Option<Brought>>), Unsendable> {
    let whole = match Json::parse(body, DEPTH) {
        Ok(whole) => whole,
        Err(error) => {
            let unread = unreadable(body, error).map(Unsendable::Unclear);
            return unread.map_or_else(|| Ok((body.clone(), Vec::new())), Err);
        }
    };
    if sends == Sends::Batch && sent::has_several(whole, "jobs") {
        return Err(Unsendable::Unclear(several_batches()));
    }
    let mut splice = Splice::new();
    let mut all = Vec::new();
    for (at, job) in jobs_in(whole, sends) {
        if sent::is_ambiguous(job) {
            return Err(Unsendable::Unclear(ambiguous(&at)));
        }
        let brought = prepare(proxy, parts, job, sends, policies, &mut splice);
        all.push(brought.map_err(|error| {
            Unsendable::Brings(FieldError {
                field: format!("{at}{}", error.field),
                ..error
            })
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
    job: Json<'_>,
    sends: Sends,
    policies: &PolicySet,
    splice: &mut Splice,
) -> Result<Option<Brought>, FieldError> {
    let options = job.get("options");
    let queue = filed(options.and_then(|options| options.get("queue")));
    let sent = if policies.accept() != Accept::Ignore {
        unforward(options, splice);
        let sent = policy::sent_policies(job)?;
        policies.too_many_windows(&sent).map_or(Ok(()), Err)?;
        sent
    } else {
        Vec::new()
    };
    let meta = meta_of(job, options);
    if policies.rejects() {
        let kind = job
            .get("type")
            .and_then(|kind| kind.text())
            .unwrap_or_default();
        let tenant = super::job::tenant(&parts.headers);
        let view = JobView {
            queue: &queue,
            kind: &kind,
            meta,
            tenant: proxy.sidecar.live().trusted(tenant),
        };
        policies.missing_key(&view).map_or(Ok(()), Err)?;
    }
    let visibility = options
        .and_then(|options| options.get(VISIBILITY))
        // What no limit touches is not touched.
        .filter(|_| !sent.is_empty() || limits_queue(&proxy.sidecar, &queue, policies))
        .and_then(|ms| ms.int());
    let is_flat = sends != Sends::Templates && sent::is_flat(job);
    let watched = is_flat && watches(&proxy.sidecar, job, &queue, policies);
    let forgotten = Forgotten {
        policy: forgotten(&sent),
        visibility_ms: visibility.filter(|ms| *ms > 0),
        queue: (watched || (is_flat && !sent.is_empty())).then_some(&*queue),
    };
    write(job, meta, forgotten, splice);
    let brought = (!sent.is_empty()).then(|| Brought {
        queue: Arc::from(queue),
        limited: sent.into_iter().map(|sent| sent.policy).collect(),
    });
    Ok(brought)
}

/// Whether a limit can touch a queue by its name.
pub(super) fn limits_queue(sidecar: &Sidecar, queue: &str, policies: &PolicySet) -> bool {
    !policies.gate(queue).open() || overrides::set_for_queue(sidecar, queue).is_some()
}

/// Whether limits or bounds look at a job that is filed in one queue and names another, by either name.
fn watches(sidecar: &Sidecar, job: Json<'_>, filed: &str, policies: &PolicySet) -> bool {
    let is_watched = |queue: &str| {
        sidecar.admit.pressure.bounds(queue).is_some() || limits_queue(sidecar, queue, policies)
    };
    let named = job.get("queue").and_then(|queue| queue.text());
    is_watched(filed) || named.is_some_and(|named| is_watched(&named))
}

/// The jobs of a body, each with what stands before its fields in messages.
fn jobs_in(whole: Json<'_>, sends: Sends) -> Vec<(String, Json<'_>)> {
    let mut found = Vec::new();
    match sends {
        Sends::Job => found.push((String::new(), whole)),
        Sends::Batch => {
            let jobs = whole.get("jobs").into_iter().flat_map(|jobs| jobs.items());
            let each = jobs.enumerate();
            found.extend(each.map(|(nth, job)| (format!("jobs[{nth}]."), job)));
        }
        Sends::Templates => find_templates(whole, "", &mut found),
    }
    found
}

/// Finds what has a `type` in `job_template`, `steps`, `jobs` and `callbacks`, and inside of those.
/// No deeper than [`DEPTH`], as the text was parsed.
fn find_templates<'a>(holder: Json<'a>, at: &str, found: &mut Vec<(String, Json<'a>)>) {
    let mut look = |template: Json<'a>, at: String| {
        if template
            .get("type")
            .is_some_and(|kind| kind.kind() == Kind::String)
        {
            found.push((at.clone(), template));
        }
        find_templates(template, &at, found);
    };
    if let Some(template) = holder.get("job_template") {
        look(template, format!("{at}job_template."));
    }
    for list in ["steps", "jobs"] {
        let items = holder.get(list).into_iter().flat_map(|list| list.items());
        for (nth, item) in items.enumerate() {
            look(item, format!("{at}{list}[{nth}]."));
        }
    }
    for callback in holder
        .get("callbacks")
        .into_iter()
        .flat_map(|c| c.members())
    {
        let name = callback.name.text().unwrap_or_default();
        look(callback.value, format!("{at}callbacks.{name}."));
    }
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
    for member in meta.into_iter().flat_map(|meta| meta.members()) {
        match member.name.text().as_deref() {
            // Nobody but the sidecar writes mirrors.
            Some(mirror::MIRROR) => {
                if let Some(meta) = meta {
                    splice.remove_member(meta, member);
                }
            }
            // Backends may give it back as it was written, and then it must be found.
            Some(policy::META) if !mirror::may_bring(member.name.raw()) => {
                splice.replace(member.name.range(), json::quote(policy::META));
            }
            _ => {}
        }
    }
    if forgotten.is_empty() {
        return;
    }
    let whole = || {
        let value = forgotten.value(true);
        [b"{\"", mirror::MIRROR.as_bytes(), b"\":", &value, b"}"].concat()
    };
    match meta {
        Some(meta) if meta.kind() == Kind::Object => {
            splice.add_member(meta, mirror::MIRROR, &forgotten.value(false));
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
