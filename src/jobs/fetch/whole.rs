//! A FETCH that no limit can touch by its queues: it goes to the backend as it came, and its reply is looked through.

use std::sync::Arc;

use http::Response;
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use tokio::time::Instant;

use super::asked::{Asked, Wanted};
use super::reply::{hold, read_reply};
use super::section::{Reach, Section, sections_of};
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::bounds::Mark;
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar};
use crate::hold::Lane;
use crate::inquiry::job::{self, ClaimOrigin};
use crate::inquiry::passing;
use crate::json;
use crate::policy::Accept;
use crate::subqueues::mirror;
use crate::wire::boxed::boxed;
use crate::wire::tick;
use crate::wire::upstream::{Reply, UpstreamError};

/// What a FETCH that was passed whole came to.
pub(super) enum Whole {
    Answer(Response<Body>),
    /// Jobs came that may be limited.
    Held(Came),
}

/// Jobs that came by a FETCH which was passed whole. They are held now.
pub(super) struct Came {
    jobs: usize,
    queues: Vec<Arc<str>>,
}

impl Came {
    /// The FETCH goes on for these jobs; one that cannot be read, for them only.
    pub(super) fn sections(self, sidecar: &Sidecar, wanted: &mut Wanted) -> Vec<Section> {
        if wanted.asked.is_none() {
            wanted.count = self.jobs;
        }
        let queues = (wanted.asked.as_ref()).map_or(&self.queues, |asked| &asked.queues);
        sections_of(sidecar, wanted.scope, queues, &sidecar.live().policies)
    }
}

/// A FETCH that no limit can touch by its queues: forwarded and returned as it is, unless jobs with
/// limits of their own came back, or it could not be read.
pub(super) async fn pass_whole(
    proxy: &Proxy,
    parts: &Parts,
    wanted: &mut Wanted,
    reach: &Reach<'_>,
) -> Whole {
    let (sidecar, live) = (&proxy.sidecar, reach.live);
    let sent = tick::now();
    let queues = wanted.asked.as_ref().map(|asked| &*asked.queues);
    sidecar.fetching.asks.note(queues, sent);
    let mark = sidecar.admit.pressure.mark();
    let reply = match proxy.upstream.call(wanted.call(wanted.body.clone())).await {
        Ok(reply) => reply,
        Err(error) => return Whole::Answer(refuse(parts, Fault::backend(&error))),
    };
    sidecar.fetching.note_status(reply.status);
    // Policies that came while the backend was asked may touch what it gave.
    let all = reach.is_unread(wanted) || sidecar.live().edition != live.edition;
    let brings = mirror::may_bring(&reply.body);
    // What cannot be searched may bring anything. Some servers say a coding and send none.
    let is_packed = reply.headers.contains_key(CONTENT_ENCODING) && !reply.body.starts_with(b"{");
    let is_unsearched = is_packed || json::is_wide(&reply.body);
    let limits = live.policies.accept() != Accept::Ignore
        && (is_unsearched || (brings && mirror::may_limit(&reply.body)));
    if !all && !limits {
        if let Some(asked) = &wanted.asked {
            passing::passed(sidecar, &reply, &asked.queues, asked.given(), mark);
        }
        if live.policies.shadow().is_some() {
            sidecar.shadow.passed(&reply, || wanted.went());
        }
        // What brings no limits has no mirror either.
        let answer = if brings {
            respond::theirs(reply)
        } else {
            respond::reply(reply)
        };
        return Whole::Answer(answer);
    }
    (wanted.scope, wanted.accepted) = sidecar.scopes.of_known(&wanted.headers);
    if wanted.asked.is_none() {
        wanted.asked = Asked::read(&wanted.body);
        wanted.count = wanted.asked.as_ref().map_or(1, |asked| asked.count);
    }
    let (proxy, of) = (proxy.clone(), wanted.clone());
    let work = boxed(|| async move {
        let came = take_in(&proxy, &of, &reply, sent, mark).await;
        (came, reply)
    });
    // A worker that hangs up now has claimed them all the same.
    match to_the_end(&sidecar.tasks.left, work).await {
        (Ok(Some(came)), _) => Whole::Held(came),
        (Ok(None), reply) => Whole::Answer(respond::theirs(reply)),
        (Err(error), _) => Whole::Answer(refuse(parts, Fault::backend(&error))),
    }
}

/// Takes the jobs of a FETCH that was passed whole into the hold. They are claimed under the worker's own id
/// if it gave one: where any heartbeat of a worker keeps all its jobs, its own keep these too. `None`: none came.
///
/// # Errors
/// The reply cannot be read, and what it brings may be limited.
async fn take_in(
    proxy: &Proxy,
    wanted: &Wanted,
    reply: &Reply,
    sent: Instant,
    mark: Mark,
) -> Result<Option<Came>, UpstreamError> {
    let sidecar = &proxy.sidecar;
    let asked = wanted.asked.as_ref();
    let worker_id = asked.and_then(|asked| asked.worker_id(&wanted.body));
    let claim_id = worker_id.unwrap_or_else(|| sidecar.fetching.worker_id.clone());
    let lane = |queue: &Arc<str>| Lane {
        scope: wanted.scope,
        queue: queue.clone(),
    };
    let lanes: Vec<Lane> = wanted.queues().iter().map(lane).collect();
    let origin = ClaimOrigin {
        scope: wanted.scope,
        tenant: job::tenant(&wanted.headers),
        lanes: &lanes,
        subqueues: &[],
        claim_id: &claim_id,
        visibility: wanted.visibility(),
        sent,
        mark,
    };
    let came = read_reply(sidecar, reply, &origin, tick::now())?;
    let Some((shown, jobs)) = came.filter(|(shown, _)| *shown > 0) else {
        return Ok(None);
    };
    let mut queues: Vec<Arc<str>> = jobs.iter().map(|held| held.claimed.queue.clone()).collect();
    queues.dedup();
    hold(proxy, wanted, jobs, &origin);
    let jobs = shown;
    Ok(Some(Came { jobs, queues }))
}
