//! Which jobs go to subqueues: those with a key of their own, in queues that say so.

use std::sync::Arc;

use http::request::Parts;

use super::sent::{SentJob, may_name};
use crate::desk::{Proxy, Sidecar, enqueued, settings};
use crate::inquiry::{adopt, job, passing};
use crate::json::{Json, Kind, Splice, quote};
use crate::limit::Limited;
use crate::policy::PolicySet;
use crate::policy::job::filed;
use crate::policy::subqueue::Flow;
use crate::subqueues::{MayStart, Writes};
use crate::wire::upstream::Reply;

/// A job that goes to a subqueue.
pub(super) struct Routed {
    queue: Arc<str>,
    flow: Flow,
    priority: Option<i32>,
    /// Whether it names a time before which it does not start.
    is_later: bool,
}

/// Whether jobs of this body may go to subqueues: all others need not be read for that. The first time the store is told
/// of each queue, so that every sidecar reads them before anything lies there.
pub(super) async fn ready(proxy: &Proxy, policies: &PolicySet, body: &[u8]) -> bool {
    let (sidecar, mut any) = (&proxy.sidecar, false);
    for queue in policies.subqueues().keys() {
        // Jobs that name no queue are of the default one.
        if **queue != *filed(None) && !may_name(body, queue) {
            continue;
        }
        // Nothing is written before it is known that names cost nothing there.
        if adopt::ensure_learnt(proxy).await.is_err() {
            return any;
        }
        any |= match sidecar.subqueues.writes(queue) {
            Writes::Yes => true,
            Writes::Unmarked | Writes::Otherwise => settings::mark_spread(sidecar, queue).await,
            Writes::No => false,
        };
    }
    any
}

/// Where a job goes; `None`: where it says.
pub(super) fn of(
    proxy: &Proxy,
    parts: &Parts,
    sent: &SentJob<'_>,
    policies: &PolicySet,
    own: &[Limited],
) -> Option<Routed> {
    let (json, options, queue) = (sent.json, sent.options, &*sent.queue);
    let sidecar = &proxy.sidecar;
    // What no queue can be written into is the backend's to refuse.
    let is_readable = options.is_none_or(|all| all.is_null() || all.kind() == Kind::Object);
    let writes = is_readable && sidecar.subqueues.writes(queue) == Writes::Yes;
    if !writes || excludes_others(json, options) {
        return None;
    }
    let tenant = sidecar.live().trusted(job::tenant(&parts.headers));
    let flow = policies.flow_of(&sent.view(&sent.kind(), tenant), own)?;
    let priority = options.and_then(|options| options.get("priority")?.int());
    let priority = priority.and_then(|said| i32::try_from(said).ok());
    Some(Routed {
        queue: Arc::from(queue),
        flow,
        priority: Some(priority.unwrap_or_default()),
        is_later: options.is_some_and(enqueued::names_a_time),
    })
}

/// Whether a job is unique by its queue or its `meta`. In two subqueues such jobs would both be accepted. Where no keys
/// are named, some backends take the queue for one.
fn excludes_others(json: Json<'_>, options: Option<Json<'_>>) -> bool {
    let beside = [
        json.get("unique"),
        options.and_then(|options| options.get("unique")),
    ];
    let mut rules = beside.into_iter().flatten().filter(|rule| !rule.is_null());
    rules.any(|rule| {
        let Some(keys) = rule.get("keys").filter(|keys| keys.kind() == Kind::Array) else {
            return true;
        };
        let mut names = 0;
        let is_near = keys.items().any(|key| {
            names += 1;
            !key.text()
                .is_some_and(|name| !matches!(&*name, "queue" | "meta"))
        });
        is_near || names == 0
    })
}

/// These jobs are asked for soon.
pub(super) fn mark(sidecar: &Sidecar, routed: &[Routed]) {
    for one in routed {
        sidecar
            .subqueues
            .mark(&one.queue, one.flow.subqueue, one.priority);
    }
}

/// The backend stored these jobs, or may have: `reply` says how they wait.
pub(super) fn stored(sidecar: &Sidecar, routed: &[Routed], reply: Option<&Reply>) {
    let may_be_later = reply.is_some_and(passing::may_wait);
    for one in routed {
        let may_start = match may_be_later && one.is_later {
            true => MayStart::Later,
            false => MayStart::Now,
        };
        sidecar.subqueues.stored(&one.queue, one.flow, may_start);
    }
    for of_queue in routed.chunk_by(|a, b| a.queue == b.queue) {
        if let Some(one) = of_queue.first() {
            sidecar.hold.arrived(&one.queue);
        }
    }
}

impl Routed {
    /// Writes the subqueue's name where backends read the queue.
    pub(super) fn write(&self, sent: &SentJob<'_>, splice: &mut Splice) {
        let name = quote(&self.flow.subqueue.name_in(&self.queue));
        let options = sent
            .options
            .filter(|options| options.kind() == Kind::Object);
        let said = options.and_then(|options| options.members().find(|one| one.is_named("queue")));
        match (said, options, sent.options) {
            (Some(said), ..) => splice.replace(said.value.range(), name),
            (None, Some(options), _) => splice.add_member(options, "queue", name.as_bytes()),
            (None, None, Some(null)) => {
                splice.replace(null.range(), format!("{{\"queue\":{name}}}"))
            }
            (None, None, None) => {
                splice.add_member(
                    sent.json,
                    "options",
                    format!("{{\"queue\":{name}}}").as_bytes(),
                );
            }
        }
    }
}
