//! Enqueue: the `rate_limit` that a job brings is checked and mirrored, because backends forget it.
//! A policy in `meta` whose name has escapes gets its plain one. Everything else passes byte for byte.

mod admit;
mod flat;
mod full;
mod overflow;
mod sent;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;

use super::body::Body;
use super::control::named::Brought;
use super::mirror::{self, Forgotten};
use super::outlive::{Client, to_the_end};
use super::refuse;
use super::respond::{self, Fault};
use super::{DEPTH, Proxy};
use crate::boxed::boxed;
use crate::json::{self, Json, Kind, Splice};
use crate::limit::Space;
use crate::metrics::Counted;
use crate::policy::job::{filed, meta_of};
use crate::policy::{self, Accept, FieldError, JobView, PolicySet, Sent};
use crate::pressure::Places;
use crate::upstream::Call;
use sent::VISIBILITY;

pub(super) use flat::Warned;

/// What a body sends.
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
    /// Nobody knows what it says.
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

impl Proxy {
    /// Answers one enqueue of a job, of a batch, or of templates of jobs.
    pub(super) async fn enqueue(
        &self,
        mut parts: Box<Parts>,
        body: Bytes,
        sends: Sends,
    ) -> Response<Body> {
        let sidecar = &self.sidecar;
        let bounded = sends != Sends::Templates && sidecar.pressure.any();
        let read = (bounded && sends == Sends::Job).then(|| sent::read_job(&body));
        let job = match read {
            Some(Err(error)) => match Fault::unread(error) {
                Some(fault) => return refuse(&parts, fault),
                None => None,
            },
            None => None,
            Some(Ok(job)) if job.ambiguous => return refuse(&parts, ambiguous("")),
            Some(Ok(job)) => Some(job),
        };
        let mut places = None;
        if bounded {
            match self.admit(&parts, &body, sends, job.as_ref()).await {
                Ok(found) => places = found,
                Err(fault) => return refuse(&parts, fault),
            }
        }
        let policies = Arc::clone(&sidecar.live().policies);
        let brings = || match &job {
            Some(job) => job.brings,
            None => json::may_name(&body, mirror::NEEDLE),
        };
        let has_visibility = || match &job {
            Some(job) => job.has_visibility,
            None => json::may_name(&body, VISIBILITY),
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
        if !matters && places.is_none() {
            return self.send_on(&mut parts, body).await;
        }
        let prepared = match matters {
            true => self.prepared(&parts, &body, sends, &policies),
            false => Ok((body, Vec::new())),
        };
        let (body, brought) = match prepared {
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
        self.send_counted(parts, body, brought, places).await
    }

    /// Forwards a body whose jobs count: the call runs to its end although the producer hangs up, so that
    /// what is counted is what is stored.
    async fn send_counted(
        &self,
        mut parts: Box<Parts>,
        body: Bytes,
        brought: Vec<Option<Brought>>,
        mut places: Option<Places>,
    ) -> Response<Body> {
        let proxy = self.clone();
        // Whose queues are looked at lends its credentials, later too; all others are not remembered.
        let lends = places
            .as_ref()
            .filter(|places| places.looked || places.asks());
        let lender = lends.map(|_| self.sidecar.scopes.lender(&parts.headers));
        let call = self.enqueue_call(&mut parts, body);
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
                proxy.settled(places, &mut answer, scope).await;
            }
            if let Ok(reply) = &answer
                && reply.status == http::StatusCode::CREATED
            {
                proxy.sidecar.enqueued(&brought, &reply.body);
            }
            answer
        });
        let answer = to_the_end(&self.sidecar.left, Client::default(), work).await;
        respond::answer(&parts, answer, true)
    }

    /// Forwards a body that is known, as it is.
    async fn send_on(&self, parts: &mut Parts, body: Bytes) -> Response<Body> {
        let answer = self.upstream.call(self.enqueue_call(parts, body)).await;
        respond::answer(parts, answer, true)
    }

    fn enqueue_call(&self, parts: &mut Parts, body: Bytes) -> Call {
        Call {
            method: parts.method.clone(),
            target: self.target(&parts.uri),
            headers: respond::take_headers(parts),
            body,
            timeout: self.sidecar.live().settings.upstream_timeout,
        }
    }

    /// The body with every job's mirror in it, and the limits that its jobs name. What is no JSON goes on
    /// as it came: the backend will say what is wrong with it.
    fn prepared(
        &self,
        parts: &Parts,
        body: &Bytes,
        sends: Sends,
        policies: &PolicySet,
    ) -> Result<(Bytes, Vec<Option<Brought>>), Unsendable> {
        let whole = match Json::parse(body, DEPTH) {
            Ok(whole) => whole,
            Err(error) => {
                let unread = Fault::unread(error).map(Unsendable::Unclear);
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
            let brought = self.prepare(parts, job, sends, policies, &mut splice);
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
        &self,
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
            policy::sent_policies(job)?
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
                tenant: self.sidecar.live().trusted(tenant),
            };
            policies.missing_key(&view).map_or(Ok(()), Err)?;
        }
        let visibility = options
            .and_then(|options| options.get(VISIBILITY))
            // What no limit touches is not touched.
            .filter(|_| !sent.is_empty() || self.sidecar.limits_queue(&queue, policies))
            .and_then(|ms| ms.int());
        let is_flat = sends != Sends::Templates && sent::is_flat(job);
        let watched = is_flat && self.sidecar.watches_flat(job, &queue, policies);
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
