//! Proving: whether a claim is still ours. One heartbeat asks for many jobs; those that its answer does not
//! name are looked up.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::calls::{self, Lookup, job_in};
use crate::desk::{BackendFacts, Proxy, Sidecar};
use crate::hold;
use crate::json::Json;
use crate::limit::Timestamp;
use crate::store::{Claimed, LedgerExt};
use crate::wire::boxed;
use crate::wire::ojs::REPLY_DEPTH;

/// So many jobs are looked up at once.
const AT_ONCE: usize = 16;

/// The shortest time that is given to a heartbeat.
const LEAST: Duration = Duration::from_secs(1);

/// A job, and the attempt it was claimed in, if the backend showed it.
pub(crate) type Named = (Arc<str>, Option<u32>);

/// What one heartbeat asks for: the same for all jobs that it names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Extension {
    /// The worker id under which they were claimed.
    claim_id: Arc<str>,
    /// How long they shall be ours from now on.
    pub(crate) lasts: Duration,
    /// From when on the backend counts that, if not from now.
    counts_from: Option<Timestamp>,
}

impl Extension {
    /// What makes a job's claim last so long from now on.
    pub(crate) fn of(claimed: &Claimed, lasts: Duration, backend: &BackendFacts) -> Extension {
        Extension {
            claim_id: claimed.claim_id.clone(),
            lasts,
            counts_from: backend.counts_from(claimed.claimed_at),
        }
    }

    /// Asks under another worker id for what this asks for.
    pub(crate) fn under(self, claim_id: &Arc<str>) -> Extension {
        Extension {
            claim_id: Arc::clone(claim_id),
            ..self
        }
    }

    /// What a job gets while it is held.
    pub(crate) fn of_held(claimed: &Claimed, backend: &BackendFacts) -> Extension {
        Extension::of(claimed, hold::kept_for(claimed), backend)
    }

    /// The heartbeat for these jobs.
    pub(crate) fn heartbeat<'a>(
        &self,
        jobs: impl Iterator<Item = &'a str>,
        sidecar: &Sidecar,
    ) -> String {
        let now = sidecar.store.now();
        let age = Duration::from_micros(self.counts_from.map_or(0, |from| now.since(from)));
        let ms = sidecar.backend.heartbeat_value(self.lasts, age).as_millis();
        calls::heartbeat(&self.claim_id, jobs, ms)
    }
}

/// What the backend says of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// It stands, as of then.
    Ours(Instant),
    /// The job is not active in that attempt any more.
    Gone,
    /// The backend did not answer, was not asked, or did not keep it.
    None,
}

/// One heartbeat for `jobs`, and what the backend says of each. The first `asked` are looked up, several
/// at once, where its answer does not name them, until a third of what it asks for is over: what hangs is asked
/// anew while the claims last.
pub(crate) async fn confirm(
    proxy: &Proxy,
    scope: u64,
    extension: &Extension,
    jobs: &[Named],
    asked: usize,
) -> Vec<Word> {
    let sidecar = &proxy.sidecar;
    let sent = Instant::now();
    let body = extension.heartbeat(jobs.iter().map(|(job, _)| &**job), sidecar);
    let target = "/ojs/v1/workers/heartbeat";
    let patience = (extension.lasts / 3).max(LEAST);
    let mut heartbeat = calls::post(proxy, scope, target, body);
    heartbeat.timeout = heartbeat.timeout.min(patience);
    let answer = calls::call(proxy, "heartbeat", heartbeat).await;
    // A job may be active still, and yet a heartbeat that was lost, failed or refused keeps no claim. A backend without
    // this route ends no claims.
    let keeps = answer.as_ref().is_ok_and(|reply| {
        let has_no_route = [404, 405, 501].contains(&reply.status.as_u16());
        reply.status.is_success() || has_no_route
    });
    let named: HashSet<Cow<'_, str>> = match &answer {
        // Where any heartbeat keeps all jobs of a worker, the list is only an echo.
        Ok(reply) if reply.status.is_success() && !sidecar.backend.worker_liveness() => {
            named(&reply.body).into_iter().collect()
        }
        _ => HashSet::new(),
    };
    let mut words = vec![Word::None; jobs.len()];
    let mut unnamed = Vec::new();
    for (nth, ((job, attempt), word)) in jobs.iter().zip(&mut words).enumerate() {
        if named.contains(&**job) {
            sidecar.proved(job, sent, extension.lasts);
            *word = Word::Ours(sent);
        } else if nth < asked {
            unnamed.push((nth, job.clone(), *attempt));
        }
    }
    let (mut unnamed, mut looks) = (unnamed.into_iter(), JoinSet::new());
    loop {
        while looks.len() < AT_ONCE
            && sent.elapsed() < patience
            && let Some((nth, job, attempt)) = unnamed.next()
        {
            let proxy = proxy.clone();
            let look = async move { (nth, still_active(&proxy, scope, &job, attempt).await) };
            looks.spawn(boxed::work(look).in_current_span());
        }
        let Some(looked) = looks.join_next().await else {
            return words;
        };
        if let Ok((nth, active)) = looked
            && let (Some(word), Some((job, _))) = (words.get_mut(nth), jobs.get(nth))
        {
            *word = match active {
                Some(true) if keeps => {
                    sidecar.proved(job, sent, extension.lasts);
                    Word::Ours(sent)
                }
                Some(false) => Word::Gone,
                Some(true) | None => Word::None,
            };
        }
    }
}

/// Whether the backend has the job as active, in the attempt in which it was `claimed`; `None`: it cannot be asked.
async fn still_active(proxy: &Proxy, scope: u64, job: &str, claimed: Option<u32>) -> Option<bool> {
    match calls::look_up(proxy, scope, job).await {
        Lookup::Found(reply) => is_active(&reply, claimed),
        Lookup::Gone => Some(false),
        Lookup::Unknown | Lookup::Unanswered => None,
    }
}

/// Whether the backend has the job as active, in the attempt of this claim; `None`: it cannot be asked. Of a job that was
/// adopted under nobody's credentials an answer 404 says nothing: it may be what strangers get.
pub(crate) async fn shown_active(proxy: &Proxy, claimed: &Claimed) -> Option<bool> {
    match calls::look_up(proxy, claimed.scope, &claimed.job).await {
        Lookup::Found(reply) => is_active(&reply, claimed.attempt),
        Lookup::Gone if claimed.scope != 0 => Some(false),
        Lookup::Gone | Lookup::Unknown | Lookup::Unanswered => None,
    }
}

/// Whether a reply shows a job as active, in the attempt in which it was `claimed`.
fn is_active(reply: &[u8], claimed: Option<u32>) -> Option<bool> {
    let job = job_in(reply)?;
    let state = job.get_exact("state")?.text()?;
    let same = attempt_since(claimed, job).is_none_or(Ordering::is_eq);
    Some(state == "active" && same)
}

/// How the attempt that the backend shows of a job now compares to that in which it was `claimed`; `None`: one of them
/// was not shown, so nothing follows from it. Nobody may take that for attempt 0, which is a first one on some backends.
pub(crate) fn attempt_since(claimed: Option<u32>, job: Json<'_>) -> Option<Ordering> {
    let now = job.get_exact("attempt")?.int()?;
    Some(now.cmp(&i64::from(claimed?)))
}

/// The ids in a heartbeat reply's `jobs_extended`.
pub(crate) fn named(reply: &[u8]) -> Vec<Cow<'_, str>> {
    let Ok(whole) = Json::parse(reply, REPLY_DEPTH) else {
        return Vec::new();
    };
    let extended = whole.get_exact("jobs_extended");
    let ids = extended.into_iter().flat_map(|ids| ids.items());
    ids.filter_map(|id| id.text()).collect()
}
