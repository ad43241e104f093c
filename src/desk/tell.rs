//! What limiting tells those who listen: the events of the rate-limiting text, 11.1, with its data fields
//! and no others, but for `trace_id`, which the events text (8.3) wants in every event of a job that has
//! one.

use std::borrow::Cow;

use super::Sidecar;
use crate::answers::load::Seldom;
use crate::hold::{Episode, Held};
use crate::json::Json;
use crate::limit::{Key, Limited, Refusal, Space, Strategy};
use crate::log::cut;
use crate::policy::Pause;
use crate::store::{Claimed, LedgerExt};
use crate::told::events::{EventValue, NewEvent};
use crate::told::metrics::{Counted, Settlement};
use crate::wire::ojs::{self, REPLY_DEPTH};
use crate::wire::upstream::Reply;

/// A backend's FETCH reply cannot be read, for this reason; the worker gets 502 for it.
pub(crate) fn unreadable(sidecar: &Sidecar, reply: &Reply, why: &str) {
    sidecar.metrics.count(Counted::Nonsense);
    if sidecar.fetching.unreadable.now() {
        let kind = reply.headers.get(http::header::CONTENT_TYPE);
        tracing::warn!(
            id = %"fetch_unreadable",
            status = reply.status.as_u16(),
            content_type = kind.and_then(|kind| kind.to_str().ok()),
            bytes = reply.body.len(),
            why = &*cut(why),
            "a FETCH was answered with what is no list of jobs: the worker gets 502, and what was claimed comes again \
             when its claim lapses; is server.upstream an OJS backend?"
        );
    }
}

/// A held job was refused for the first time since it waits: it is counted, and told.
pub(crate) fn exceeded(sidecar: &Sidecar, held: &Held, by: &Limited, why: &Refusal) {
    sidecar.metrics.exceeded(by, why.strategy);
    tracing::debug!(
        job = &*cut(&held.claimed.job),
        queue = &*cut(&held.claimed.queue),
        key = &*by.space.name_of(&by.key),
        policy = &*by.policy,
        strategy = why.strategy.as_str(),
        limit = why.limit,
        current = why.current,
        "held: its limit allows no start"
    );
    let Some(about) = about(sidecar, held, by.space, &by.key) else {
        return;
    };
    let data = refused(&about.key, why);
    tell(sidecar, "rate_limit.exceeded", &about, &data);
}

/// What is told of a refusal. A line has no numbers.
fn refused<'a>(key: &'a str, why: &Refusal) -> Vec<(&'static str, EventValue<'a>)> {
    let mut data = vec![
        ("key", EventValue::Text(key)),
        ("strategy", EventValue::Text(why.strategy.as_str())),
    ];
    if why.strategy != Strategy::Line {
        data.extend([
            ("limit", EventValue::Number(why.limit.into())),
            ("current", EventValue::Number(why.current.into())),
        ]);
    }
    data
}

/// A queue's own limits keep its next job in the backend, where nobody reads it: that is counted and
/// told of the queue.
pub(crate) fn exceeded_unread(sidecar: &Sidecar, queue: &str, by: &Limited, why: &Refusal) {
    sidecar.metrics.exceeded(by, why.strategy);
    let key = by.space.name_of(&by.key);
    tracing::debug!(
        queue,
        key = &*key,
        policy = &*by.policy,
        strategy = why.strategy.as_str(),
        "jobs wait in the backend: their limit allows no start"
    );
    let event = NewEvent {
        kind: "rate_limit.exceeded",
        subject: &key,
        queue: Some(queue),
        data: &refused(&key, why),
        ..NewEvent::default()
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// A job that was refused may start now, and does.
pub(crate) fn released(sidecar: &Sidecar, held: &Held, episode: &Episode) {
    let Some(about) = about(sidecar, held, episode.space, &episode.key) else {
        return;
    };
    let data = [
        ("key", EventValue::Text(&about.key)),
        ("strategy", EventValue::Text(episode.strategy.as_str())),
        ("job_id", EventValue::Text(&held.claimed.job)),
    ];
    tell(sidecar, "rate_limit.released", &about, &data);
}

/// A refused job was ended in the backend.
pub(crate) fn dropped(sidecar: &Sidecar, held: &Held, by: &Limited) {
    let Some(about) = about(sidecar, held, by.space, &by.key) else {
        return;
    };
    let data = [
        ("key", EventValue::Text(&about.key)),
        ("job_id", EventValue::Text(&held.claimed.job)),
        ("job_type", EventValue::Text(&about.job_type)),
    ];
    tell(sidecar, "rate_limit.dropped", &about, &data);
}

/// A call through this way out had no start in time.
pub(crate) fn call_refused(sidecar: &Sidecar, egress: &str, key: &Key) {
    let key = key.as_str();
    let event = NewEvent {
        kind: "rate_limit.call_refused",
        subject: key,
        data: &[
            ("key", EventValue::Text(key)),
            ("egress", EventValue::Text(egress)),
        ],
        ..NewEvent::default()
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// A service has done a call of a budget, and what that used is not known.
pub(crate) fn untold(
    sidecar: &Sidecar,
    budget: &str,
    key: &Key,
    model: Option<&str>,
    how: Settlement,
) {
    if !sidecar.calling.untold.now() {
        return;
    }
    let why = match how {
        Settlement::Unpriced => "cost.prices do not name its model",
        Settlement::Unnamed => {
            "its answer names no model, and neither does its own body, or that could not be read: over 1 MiB, of unknown length, compressed or no JSON"
        }
        _ => "its answer does not say it where the budget looks",
    };
    let key = key.as_str();
    tracing::warn!(id = %"usage_untold", budget, key, model, why, "what a call used is not known: what it paid stays");
}

/// A call to this host pays nothing to a budget: nobody wrote for which calls that is, and this one is not known to ask a
/// model. Its path is not told: some vendors have keys in them.
pub(crate) fn unpaid(sidecar: &Sidecar, budget: &str, host: &str) {
    sidecar.metrics.settled(budget, Settlement::Unpaid);
    if sidecar.calling.unpaid.now() {
        tracing::warn!(
            id = %"call_unpaid",
            budget,
            host,
            "a call pays nothing to a budget: `only` is not set, and this is not known to ask a model"
        );
    }
}

/// A template of a cron or a workflow brings limits.
pub(crate) fn template_limits(sidecar: &Sidecar, path: &str) {
    if sidecar.admit.templates.now() {
        tracing::warn!(
            id = %"template_limits",
            path,
            "a template brings a rate_limit, which no known backend gives to the jobs of a cron or a workflow: nothing \
             limits them by it; limit them by queue or type"
        );
    }
}

/// Only the header of a request, which is not trusted, says whose a job is that is limited or bounded by tenant.
pub(crate) fn tenant_untrusted(sidecar: &Sidecar, tenant: &str) {
    if sidecar.control.tenant_untrusted.now() {
        tracing::warn!(
            id = %"tenant_untrusted",
            tenant = &*cut(tenant),
            "X-OJS-Tenant is not trusted, and nothing else says whose a job is: by tenant it is limited or bounded \
             with all that are nobody's"
        );
    }
}

/// A job, or its ACK, says nothing usable at the path where a limit looks for its cost.
pub(crate) fn cost_untold(told: &Seldom, job: &Claimed, by: &Limited, path: &str) {
    if told.now() {
        tracing::warn!(
            id = %"cost_untold",
            policy = &*by.policy,
            path,
            counts = by.cost.pays.get(),
            job = &*cut(&job.job),
            "a job or its ACK says no cost where the limit looks: what the limit has without it counts"
        );
    }
}

/// A job was to count more under a key than one job may: that is counted so, and told.
pub(crate) fn capped(sidecar: &Sidecar, job: &Claimed, by: &Limited, counted: Counted) {
    sidecar.metrics.count(counted);
    let key = by.space.name_of(&by.key);
    let event = NewEvent {
        kind: "rate_limit.cost_capped",
        subject: &job.job,
        queue: Some(&job.queue),
        job: Some(&job.job),
        job_type: None,
        scope: Some(job.scope),
        data: &[
            ("key", EventValue::Text(&key)),
            ("job_id", EventValue::Text(&job.job)),
        ],
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// The service behind a key said, through the nack of a job or to a call, that the key is to be shut.
pub(crate) fn adjusted(sidecar: &Sidecar, by: &Claimed, key: &Key, pause: Pause) {
    let is_job = by.egress().is_none();
    let event = NewEvent {
        kind: "rate_limit.dynamic_adjusted",
        subject: key.as_str(),
        // A call is of no queue.
        queue: Some(&*by.queue).filter(|_| is_job),
        job: Some(&*by.job).filter(|_| is_job),
        job_type: None,
        scope: Some(by.scope).filter(|_| is_job),
        data: &[
            ("key", EventValue::Text(key.as_str())),
            ("until", EventValue::Time(pause.until)),
            ("reason", EventValue::Text(pause.reason)),
        ],
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// What all events of a held job have; `None`: nobody listens, so nothing is read.
fn about<'a>(sidecar: &Sidecar, held: &'a Held, space: Space, key: &'a Key) -> Option<About<'a>> {
    if !sidecar.events.heard() {
        return None;
    }
    let job = Json::parse(&held.body, REPLY_DEPTH).ok();
    let [kind, meta] = job.map_or([None; 2], |job| job.pick_exact(["type", "meta"]));
    Some(About {
        claimed: &held.claimed,
        key: space.name_of(key),
        job_type: kind.and_then(|kind| kind.text()).unwrap_or_default(),
        trace: meta.and_then(trace_id),
    })
}

fn tell(
    sidecar: &Sidecar,
    kind: &'static str,
    about: &About<'_>,
    data: &[(&'static str, EventValue<'_>)],
) {
    let trace = about.trace.as_deref();
    let trace = trace.map(|trace| ("trace_id", EventValue::Text(trace)));
    let data: Vec<_> = data.iter().copied().chain(trace).collect();
    let event = NewEvent {
        kind,
        subject: &about.claimed.job,
        queue: Some(&about.claimed.queue),
        job: Some(&about.claimed.job),
        job_type: Some(&about.job_type),
        scope: Some(about.claimed.scope),
        data: &data,
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// What is the same in all events of a job and a key.
struct About<'a> {
    claimed: &'a Claimed,
    key: Cow<'a, str>,
    job_type: Cow<'a, str>,
    trace: Option<Cow<'a, str>>,
}

/// The longest trace id that is passed on, in bytes: it is the producer's, and events are small.
const LONGEST: usize = 128;

/// The trace that a job belongs to (events text, 8.2): as it says, or as its `traceparent` says.
fn trace_id(meta: Json<'_>) -> Option<Cow<'_, str>> {
    let [id, parent] = meta.pick_exact(["trace_id", "traceparent"]);
    if let Some(id) = id.and_then(|id| id.text()).filter(|id| id.len() <= LONGEST) {
        return Some(id);
    }
    let parent = parent?.text()?;
    ojs::trace_id(&parent).map(|id| Cow::Owned(id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_numbers_of_a_limit() {
        let told = |strategy| {
            let why = Refusal {
                strategy,
                limit: 0,
                current: 0,
                at: None,
                slot: false,
            };
            let data = refused("k", &why);
            data.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        assert_eq!(told(Strategy::Line), ["key", "strategy"]);
        assert_eq!(
            told(Strategy::Shut),
            ["key", "strategy", "limit", "current"]
        );
    }

    #[test]
    fn the_trace_of_a_job() {
        let id = |meta: &str| {
            let meta = Json::parse(meta.as_bytes(), REPLY_DEPTH).unwrap();
            trace_id(meta).map(Cow::into_owned)
        };
        let parent = r#""traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01""#;
        assert_eq!(
            id(&format!("{{{parent}}}")).as_deref(),
            Some("4bf92f3577b34da6a3ce929d0e0e4736")
        );
        assert_eq!(
            id(&format!(r#"{{"trace_id":"t1",{parent}}}"#)).as_deref(),
            Some("t1")
        );
        for none in [
            r#"{}"#,
            r#"{"traceparent":"00"}"#,
            r#"{"traceparent":"00-xyz-1-1"}"#,
            r#"{"trace_id":7}"#,
            "[]",
        ] {
            assert_eq!(id(none), None, "{none}");
        }
    }
}
