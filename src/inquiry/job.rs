//! A job as the backend handed it out, read just far enough to limit it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use parking_lot::MutexGuard;
use tokio::time::Instant;

use crate::bounds::Mark;
use crate::desk::live::Live;
use crate::desk::{Sidecar, micros, tell};
use crate::duration;
use crate::hold::{Held, Lane, Proof};
use crate::json::{self, Json, JsonError, Kind, Reader};
use crate::limit::{Limited, Timestamp, most_paid};
use crate::policy::price::{self, Unpaid};
use crate::policy::subqueue::{self, Subqueue};
use crate::policy::{self, Accept, JobView, LimitCache};
use crate::store::{Claim, Claimed};
use crate::subqueues::names::{self, ReplyKind};
use crate::subqueues::{Subqueues, mirror};
use crate::told::metrics::Counted;
use crate::wire::ojs::{REPLY_DEPTH, TENANT};
use crate::wire::upstream::Reply;

/// How long a claim or a slot lasts where nobody said (HTTP binding: 30 s).
pub(crate) const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);

/// The circumstances of a claim.
pub(crate) struct ClaimOrigin<'a> {
    /// Whose credentials.
    pub(crate) scope: u64,
    /// The tenant header of the FETCH, if there was one.
    pub(crate) tenant: Option<&'a str>,
    /// The lanes that were asked; none: the request was not understood.
    pub(crate) lanes: &'a [Lane],
    /// The subqueues that were asked, if it was not the lane's own queue.
    pub(crate) subqueues: &'a [Subqueue],
    /// The worker id it was claimed under.
    pub(crate) claim_id: &'a Arc<str>,
    /// What the FETCH said of visibility.
    pub(crate) visibility: Option<Duration>,
    /// When the claim was sent, the latest moment from which its visibility surely counts.
    pub(crate) sent: Instant,
    /// When it was sent, in the order of things.
    pub(crate) mark: Mark,
}

impl ClaimOrigin<'_> {
    /// The subqueue that a job came from.
    fn subqueue_of(&self, shown: Option<Json<'_>>, subqueues: &Subqueues) -> Option<Subqueue> {
        if let [only] = self.subqueues {
            return Some(*only);
        }
        let shown = shown.and_then(|shown| {
            let name = shown.text()?;
            let (base, number) = subqueue::split(&name)?;
            subqueues.has(base).then_some(number)
        });
        // A backend may show another queue than the one that the job is in.
        let asked = shown.filter(|number| self.subqueues.contains(number));
        match self.subqueues {
            [] => shown,
            [first, ..] => asked.or(Some(*first)),
        }
    }
}

/// The queue that a job came from. What it says is only believed among those that were asked: some backends let a
/// producer's own top-level `queue` overwrite the real one, and a job held under a name that no FETCH asks for would never
/// leave.
fn queue_among<'q, 'a>(
    mut asked: impl ExactSizeIterator<Item = &'q Arc<str>> + Clone,
    said: impl FnOnce() -> Option<Cow<'a, str>>,
) -> Arc<str> {
    let first = asked.clone().next();
    if let (Some(only), 1) = (first, asked.len()) {
        return Arc::clone(only);
    }
    let said = said();
    let shown = said.as_deref().unwrap_or("default");
    let asked = asked.find(|asked| ***asked == *shown).or(first);
    asked.map_or_else(|| Arc::from(shown), Arc::clone)
}

/// A job as a reply shows it: all of it, and the members that count here. Backends write their names in small letters:
/// others are unknown members that a producer sent.
pub(crate) struct Shown<'a> {
    pub(crate) job: Json<'a>,
    members: [Option<Json<'a>>; MEMBERS.len()],
}

const MEMBERS: [&str; 7] = [
    "id",
    "type",
    "queue",
    "priority",
    "attempt",
    "meta",
    "expires_at",
];

impl<'a> Shown<'a> {
    /// A job that was read already.
    pub(crate) fn of(job: Json<'a>) -> Shown<'a> {
        let members = job.pick_exact(MEMBERS);
        Shown { job, members }
    }

    /// What limits look at in a job that went to a worker which asked for these queues; `None`: it has no id.
    pub(crate) fn seen(&self, asked: &[Arc<str>]) -> Option<SeenJob<'a>> {
        let [id, kind, queue, priority, _, meta, _] = self.members;
        let said = || mirror::filed(self.job).or_else(|| queue?.text());
        Some(SeenJob {
            id: id?.text()?,
            kind: kind.and_then(|kind| kind.text()).unwrap_or_default(),
            queue: queue_among(asked.iter(), said),
            priority: priority_of(priority),
            meta,
        })
    }

    /// The jobs of a FETCH reply, which is read in one pass: `jobs`, or a lone `job`, or none of an empty object or of
    /// nothing.
    ///
    /// # Errors
    /// It is no FETCH reply: what it is instead.
    pub(crate) fn all(reply: &'a Reply) -> Result<Vec<Shown<'a>>, String> {
        let text = &reply.body;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let coding = reply.headers.get(header::CONTENT_ENCODING);
        Shown::plain(text).map_err(|error| match (coding, json::oddity(text, error)) {
            (Some(coding), _) => format!("it is packed as {coding:?}, which could not be undone"),
            (None, Some(oddity)) => format!("it {oddity}"),
            (None, None) => error.to_string(),
        })?
    }

    fn plain(text: &'a [u8]) -> Result<Result<Vec<Shown<'a>>, String>, JsonError> {
        let mut reader = Reader::new(text, REPLY_DEPTH);
        let mut shown = Vec::new();
        let (mut jobs, mut lone) = (None, None);
        let whole = reader.members(|name, reader| {
            if name.is("jobs") {
                // The last of a name counts.
                shown.clear();
                jobs = Some(reader.items(|reader| {
                    let (job, members) = reader.pick_exact(MEMBERS)?;
                    shown.push(Shown { job, members });
                    Ok(())
                })?);
            } else if name.is("job") {
                lone = Some(reader.value()?);
            } else {
                reader.value()?;
            }
            Ok(())
        })?;
        reader.end()?;
        Ok(match (jobs, lone) {
            _ if whole.kind() == Kind::Array => {
                Err("it is an array, and no object with `jobs`".to_owned())
            }
            _ if whole.kind() != Kind::Object => Err("it is no object with `jobs`".to_owned()),
            (Some(jobs), _) if jobs.kind() == Kind::Array => Ok(shown),
            (Some(jobs), None) if !jobs.is_null() => Err("its `jobs` is no list".to_owned()),
            (_, Some(job)) if job.kind() == Kind::Object => Ok(vec![Shown::of(job)]),
            _ => Ok(Vec::new()),
        })
    }
}

/// What limits look at in a job.
pub(crate) struct SeenJob<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) kind: Cow<'a, str>,
    pub(crate) queue: Arc<str>,
    pub(crate) priority: i32,
    pub(crate) meta: Option<Json<'a>>,
}

impl SeenJob<'_> {
    pub(crate) fn view<'v>(&'v self, tenant: Option<&'v str>) -> JobView<'v> {
        JobView {
            id: Some(&self.id),
            queue: &self.queue,
            kind: &self.kind,
            meta: self.meta,
            tenant,
        }
    }
}

/// A reply whose jobs are being read.
pub(crate) struct Reading<'a> {
    text: &'a Bytes,
    origin: &'a ClaimOrigin<'a>,
    /// When it came, on both clocks.
    came: (Instant, Timestamp),
    /// When its jobs were claimed; earlier, if that was by a sibling.
    pub(crate) claimed_at: Timestamp,
    /// The policies of now, not of when the backend was asked.
    live: &'a Live,
    known: MutexGuard<'a, LimitCache>,
    /// Whether its jobs may have limits of their own or mirrors. One search of the reply spares several of
    /// each job: hardly any bring something.
    brings: bool,
    /// Whether some of its jobs may come from subqueues.
    has_subqueues: bool,
}

/// Begins to read the jobs of a reply that came at `ended`.
pub(crate) fn reading<'a>(
    sidecar: &Sidecar,
    text: &'a Bytes,
    origin: &'a ClaimOrigin<'_>,
    live: &'a Live,
    ended: Instant,
) -> Reading<'a> {
    Reading {
        text,
        origin,
        came: (ended, sidecar.store.at(ended)),
        claimed_at: sidecar.store.at(ended),
        live,
        known: live.known(),
        brings: mirror::may_bring(text),
        has_subqueues: !origin.subqueues.is_empty()
            || (sidecar.subqueues.any() && subqueue::may_name(text)),
    }
}

/// Reads one job of a reply; `None`: it has no id, so nothing can be kept about it.
pub(crate) fn read_job(
    sidecar: &Sidecar,
    shown: &Shown<'_>,
    reading: &mut Reading<'_>,
) -> Option<Held> {
    let (origin, live, brings) = (reading.origin, reading.live, reading.brings);
    let (came, came_at) = reading.came;
    let (job, [id, kind, queue, priority, attempt, meta, expires]) = (shown.job, shown.members);
    let id = id?.text()?;
    let filed = || brings.then(|| mirror::filed(job)).flatten();
    let said = queue.filter(|_| reading.has_subqueues);
    let subqueue = origin.subqueue_of(said, &sidecar.subqueues);
    let asked = origin.lanes.iter().map(|lane| &lane.queue);
    let queue = queue_among(asked, || filed().or_else(|| queue?.text()));
    let attempt = attempt.and_then(|a| a.u32());
    sidecar.backend.saw_attempt(attempt);
    let own = match brings {
        true => own(job, &queue),
        false => Box::default(),
    };
    let view = JobView {
        id: Some(&id),
        queue: &queue,
        kind: &kind_of(kind, live),
        meta,
        tenant: live.trusted(origin.tenant),
    };
    let is_doubtful = |_: &&str| view.tenant.is_none() && live.policies.lacks_tenant(&view);
    if let Some(said) = origin.tenant.filter(is_doubtful) {
        tell::tenant_untrusted(sidecar, said);
    }
    if !own.is_empty() && live.policies.accept() != Accept::Ignore {
        sidecar.fetching.brought.store(true, Ordering::Relaxed);
    }
    let limits = limits_of(&view, &own, live, &mut reading.known);
    let mut unpaid = Vec::new();
    let limits = priced(limits, &view, job, |nth, why| unpaid.push((nth, why)));
    let wished = brings.then(|| mirror::visibility(job)).flatten();
    let lasts = wished.map_or(DEFAULT_VISIBILITY, Duration::from_millis);
    let visibility = origin.visibility.unwrap_or(lasts);
    let generation = sidecar.fetching.next_claim(came_at);
    let claimed = Claimed::from(Claim {
        claim_id: origin.claim_id.clone(),
        scope: origin.scope,
        priority: priority_of(priority),
        attempt,
        claimed_at: came_at,
        visibility: micros(visibility),
        limited: limits,
        ..Claim::new(Arc::from(id.as_ref()), generation, queue)
    });
    for (nth, why) in unpaid {
        tell_unpaid(sidecar, &claimed, nth, why);
    }
    let body = shown_to_workers(sidecar, job, subqueue, reading);
    let proof = match origin.visibility.is_some() || wished.is_some() {
        true => Proof::new(origin.sent, visibility),
        false => Proof::assumed(origin.sent, visibility),
    };
    let mut held = Held::new(claimed, live.edition, body, proof, came);
    (held.own, held.lasts, held.subqueue) = (own, lasts, subqueue);
    held.tenant = origin.tenant.map(Arc::from);
    let expires = expires.and_then(|expires| duration::moment(&expires.text()?));
    // What it gives in spite of that is given: a time that was never set may be one of the year 1.
    held.expires = expires.map(Timestamp).filter(|at| *at > reading.claimed_at);
    Some(held)
}

/// A job does not pay what it says to the limit of this number.
fn tell_unpaid(sidecar: &Sidecar, claimed: &Claimed, nth: usize, why: Unpaid) {
    let Some(one) = claimed.limited.get(nth) else {
        return;
    };
    if why == Unpaid::OverMax {
        return tell::capped(sidecar, claimed, one, Counted::CostOverMax);
    }
    sidecar.metrics.count(Counted::CostUnsaid);
    let Some(rule) = &one.cost.rule else { return };
    // A default above 1 is for those that say nothing.
    let is_meant = why == Unpaid::Unsaid && rule.default.get() > 1;
    if let Some(from) = rule.from.as_deref().filter(|_| !is_meant) {
        tell::cost_untold(&sidecar.fetching.untold, claimed, one, from);
    }
}

/// The job as a worker gets it: without its mirror, and in the queue that the worker named.
fn shown_to_workers(
    sidecar: &Sidecar,
    job: Json<'_>,
    subqueue: Option<Subqueue>,
    reading: &Reading<'_>,
) -> Bytes {
    let body = match reading.brings {
        true => mirror::shown(job),
        // Found in this text, so it is within.
        false => reading.text.slice(job.range()),
    };
    let changed =
        subqueue.and_then(|_| names::changed(&body, ReplyKind::default(), &sidecar.subqueues));
    changed.map_or(body, Bytes::from)
}

/// A job's priority, in the range that OJS allows; 0 if it says none.
fn priority_of(said: Option<Json<'_>>) -> i32 {
    said.and_then(|said| said.int())
        .map_or(0, |priority| priority.clamp(-1000, 1000) as i32)
}

/// Everything that limits a held job under `live`.
pub(super) fn limits_again(held: &Held, live: &Live) -> Arc<[Limited]> {
    let job = Json::parse(&held.body, REPLY_DEPTH).ok();
    let [kind, meta] = job.map_or([None; 2], |job| job.pick_exact(["type", "meta"]));
    let kind = kind_of(kind, live);
    let view = JobView {
        id: Some(&held.claimed.job),
        queue: &held.claimed.queue,
        kind: &kind,
        meta,
        tenant: live.trusted(held.tenant.as_deref()),
    };
    let limits = limits_of(&view, &held.own, live, &mut live.known());
    match job {
        Some(job) => priced(limits, &view, job, |_, _| {}),
        None => limits,
    }
}

/// The limits of a job with what it pays by its own bytes. What it could not pay as it says is told, once for a key, with
/// the place of the first limit.
pub(crate) fn priced(
    mut limits: Arc<[Limited]>,
    view: &JobView<'_>,
    job: Json<'_>,
    mut tell: impl FnMut(usize, Unpaid),
) -> Arc<[Limited]> {
    let member = |name: &str| match name {
        "meta" => view.meta,
        _ => job.get_exact(name),
    };
    for nth in 0..limits.len() {
        let Some((one, rule)) = limits
            .get(nth)
            .and_then(|one| Some((one, one.cost.rule.as_ref()?)))
        else {
            continue;
        };
        let of_key = limits.iter().filter(|other| other.shares_key(one));
        let most = || most_paid(of_key.map(|other| &other.limits));
        let (pays, unpaid) = price::pays(rule, most, member);
        let is_first = !limits.iter().take(nth).any(|before| before.shares_key(one));
        if let Some(unpaid) = unpaid.filter(|_| is_first) {
            tell(nth, unpaid);
        }
        // The others of this list are told by the default.
        if pays != one.cost.pays
            && let Some(one) = Arc::make_mut(&mut limits).get_mut(nth)
        {
            one.cost.pays = pays;
        }
    }
    limits
}

/// Everything that limits a job under `live`; `known` is what is known of that.
pub(crate) fn limits_of(
    job: &JobView<'_>,
    own: &[Limited],
    live: &Live,
    known: &mut LimitCache,
) -> Arc<[Limited]> {
    let limits = match own {
        [] => known.limits(&live.policies, job),
        own => {
            live.policies.note_matched(job);
            live.policies.limits(job, own)
        }
    };
    limits.unwrap_or_default()
}

/// A job's type, where it decides anything.
fn kind_of<'a>(kind: Option<Json<'a>>, live: &Live) -> Cow<'a, str> {
    let seen = kind.filter(|_| live.policies.sees_types());
    seen.and_then(|kind| kind.text()).unwrap_or_default()
}

/// The limits that a job brings, whether they are accepted or not.
pub(crate) fn own(job: Json<'_>, queue: &str) -> Box<[Limited]> {
    // Most jobs bring none, and a search costs less than a walk.
    match mirror::may_bring(job.raw()) {
        true => policy::own_policies(job, queue).into(),
        false => Box::default(),
    }
}

/// The tenant header of a request, as text.
pub(crate) fn tenant(headers: &http::HeaderMap) -> Option<&str> {
    let value = headers.get(&TENANT)?;
    // The server has refused what is none.
    std::str::from_utf8(value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    /// What a backend shows as the queue may be a producer's own member.
    #[test]
    fn a_job_that_passed_is_of_a_queue_that_was_asked() {
        let asked = ["mail", "default"].map(Arc::from);
        for (job, queue) in [
            (r#"{"id":"a","queue":"default"}"#, "default"),
            (r#"{"id":"a","queue":"made up"}"#, "mail"),
            (r#"{"id":"a"}"#, "default"),
            (
                r#"{"id":"a","queue":"mail","meta":{"ojs.rate_limit.mirror":{"queue":"default"}}}"#,
                "default",
            ),
        ] {
            let shown = Shown::of(Json::parse(job.as_bytes(), 8).unwrap());
            assert_eq!(&*shown.seen(&asked).unwrap().queue, queue, "{job}");
            let only = shown.seen(&asked[..1]).unwrap().queue;
            assert_eq!(&*only, "mail", "{job}");
        }
    }

    /// Jobs of one list share it, unless they say a cost that is not the default.
    #[test]
    fn only_a_job_that_pays_otherwise_has_a_list_of_its_own() {
        let job = Json::parse(br#"{"args":[7],"meta":{"n":1}}"#, 8).unwrap();
        let view = JobView {
            id: None,
            queue: "q",
            kind: "t",
            meta: job.get("meta"),
            tenant: None,
        };
        for (cost, pays, is_shared) in [
            ("", 1, true),
            ("cost = 5", 5, true),
            ("cost = { from = 'meta.n' }", 1, true),
            ("cost = { from = 'meta.m', default = 9 }", 9, true),
            ("cost = { from = 'args.0', max = 7 }", 7, false),
            ("cost = { from = 'args.0' }", 3, false),
        ] {
            let file = format!(
                "server.upstream = 'http://h'\n[[queue]]\nname = 'q'\nconcurrency = 3\n{cost}"
            );
            let policies = Settings::parse(&file, "t").unwrap().policies;
            let list = policies.limits(&view, &[]).unwrap();
            let found = priced(list.clone(), &view, job, |_, _| {});
            assert_eq!(found[0].cost.pays.get(), pays, "{cost}");
            assert_eq!(Arc::ptr_eq(&list, &found), is_shared, "{cost}");
        }
    }
}
