//! Dropping: a job that a limit refused (`on_limit = "drop"`), or the oldest one of a full queue (`drop_oldest`), is
//! ended in the backend under the claim that we hold. The decision stands while that claim lasts: until the backend has
//! the job as ended it stays in hand, out of every worker's reach, and is tried again and again.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::calls::{self, Lookup};
use crate::desk::{Proxy, Sidecar, edges, tell};
use crate::hold::{Held, Pick};
use crate::json::Json;
use crate::limit::{Limited, OnLimit};
use crate::log::cut;
use crate::told::events::EventValue;
use crate::told::metrics::Counted;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::Call;

/// How long after a first attempt that came to nothing the next one is made, and how long at most after later ones: the
/// pause doubles. A claim lasts for 30 s, which is enough for six or seven attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// How an attempt to end a job came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DropEnd {
    /// It is discarded, or cancelled where it cannot be discarded.
    Dropped,
    /// It ended in another way, or its claim is not ours any more.
    Lost,
    /// It did not happen, or nobody can say. With what the backend answered last, if it did.
    Open(Option<StatusCode>),
}

/// Why a job is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DropReason {
    /// A limit of its says so.
    Limit,
    /// Its queue is full.
    FullQueue,
    /// Its `expires_at` came while it was held. The backend would have discarded it at its FETCH (ojs-core).
    Expired,
}

impl DropReason {
    /// The limit by which a job is dropped.
    fn by(self, held: &Held) -> Option<&Limited> {
        match self {
            DropReason::Limit => acting(held, usize::MAX, OnLimit::Drop),
            DropReason::FullQueue | DropReason::Expired => None,
        }
    }
}

/// Ends picked jobs, one after the other, while their FETCH goes on. Those that do not end are tried again, and wait
/// again once their claims may be over, or where the sidecar drains.
pub(crate) fn drop_soon(proxy: &Proxy, mut picks: Vec<Pick>, why: DropReason) {
    if picks.is_empty() {
        return;
    }
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    // Tracked: a stop waits for it.
    let _task = sidecar.tasks.spawn(async move {
        let draining = &proxy.sidecar.tasks.draining;
        let mut pause = RETRY_PAUSE;
        loop {
            let mut open = Vec::new();
            for pick in picks {
                open.extend(drop_one(&proxy, pick, why).await);
            }
            picks = open;
            let again = draining.run_until_cancelled(tokio::time::sleep(pause));
            if picks.is_empty() || again.await.is_none() {
                return;
            }
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    });
}

/// One attempt, if the job may be ours still; it is returned if it is to be tried again.
async fn drop_one(proxy: &Proxy, held: Pick, why: DropReason) -> Option<Pick> {
    let (job, generation) = (&held.claimed.job, held.claimed.generation);
    if held.proof.deadline <= Instant::now() || !proxy.sidecar.hold.has_claim(job, generation) {
        // Perhaps not ours any more; the sweep will tell.
        return None;
    }
    end_held(proxy, held, why).await
}

/// One attempt; the job is returned if it did not end.
pub(crate) async fn end_held(proxy: &Proxy, held: Pick, why: DropReason) -> Option<Pick> {
    let sidecar = &proxy.sidecar;
    let (job, generation) = (&held.claimed.job, held.claimed.generation);
    let end = end_claimed(proxy, held.claimed.scope, job, final_nack(&held, why)).await;
    match end {
        DropEnd::Open(status) => {
            tell_refused(sidecar, &held, why, status);
            held.stays_in_hand();
            return Some(held);
        }
        DropEnd::Lost => sidecar.metrics.count(Counted::HoldLost),
        DropEnd::Dropped => {
            match why.by(&held) {
                Some(by) => tell_dropped(sidecar, &held, by),
                None if why == DropReason::Expired => {
                    tracing::debug!(job = &*cut(job), "dropped: it expired while it was held");
                    sidecar.metrics.count(Counted::HeldExpired);
                }
                None => tell_overflow(sidecar, &held.claimed.queue, job, &held.body),
            }
            (sidecar.admit.pressure).gone(&held.claimed.queue, job, edges::now(sidecar));
        }
    }
    sidecar.end(job, Some(generation)).await;
    held.gone();
    None
}

/// Tells of a job that is gone because of this limit.
fn tell_dropped(sidecar: &Sidecar, held: &Held, by: &Limited) {
    tracing::debug!(
        job = &*cut(&held.claimed.job),
        policy = %by.policy,
        key = %by.key,
        "dropped: over its limit"
    );
    let policy = format!("_policy:{}", by.policy);
    if let Some(jobs) = sidecar.admit.discarded.count(&policy) {
        tracing::warn!(
            id = %"jobs_dropped",
            policy = %by.policy,
            key = %by.key,
            jobs,
            "jobs for which their limit has no room are discarded, as on_limit says"
        );
    }
    sidecar.metrics.dropped(&by.policy);
    tell::dropped(sidecar, held, by);
}

/// Tells that the backend does not end a job that is to be dropped. Where it does not answer, the log says so already.
fn tell_refused(sidecar: &Sidecar, held: &Held, why: DropReason, status: Option<StatusCode>) {
    let Some(status) = status else { return };
    let by = match why.by(held) {
        Some(by) => format!("_policy:{}", by.policy),
        None => format!("_queue:{}", held.claimed.queue),
    };
    if let Some(attempts) = sidecar.admit.refused_drops.count(&by) {
        tracing::warn!(
            id = %"drop_refused",
            %by,
            status = status.as_u16(),
            attempts,
            "the backend does not end jobs that are to be discarded: they wait here, and no worker gets them"
        );
    }
}

/// Tells of a job that is gone because its queue is full.
pub(crate) fn tell_overflow(sidecar: &Sidecar, queue: &str, id: &str, job: &[u8]) {
    let job = Json::parse(job, REPLY_DEPTH).ok();
    let kind = job.and_then(|job| job.text_of("type"));
    let kind = kind.as_deref().unwrap_or_default();
    sidecar.metrics.dropped_oldest(queue, 1);
    tracing::debug!(
        queue,
        job = &*cut(id),
        "dropped: the oldest of a full queue"
    );
    if let Some(jobs) = sidecar.admit.discarded.count(&format!("_queue:{queue}")) {
        tracing::warn!(
            id = %"oldest_dropped",
            queue,
            jobs,
            "the oldest jobs of a full queue are discarded for new ones"
        );
    }
    let data = [
        ("queue", EventValue::Text(queue)),
        ("job_id", EventValue::Text(id)),
        ("job_type", EventValue::Text(kind)),
    ];
    edges::tell_pressure(
        sidecar,
        "backpressure.dropped",
        queue,
        Some((id, kind)),
        &data,
    );
}

/// A nack that allows no retry, and a cancel where the backend retries all the same.
pub(crate) async fn end_claimed(
    proxy: &Proxy,
    scope: u64,
    job: &Arc<str>,
    nack: String,
) -> DropEnd {
    if proxy.sidecar.backend.retries_always() {
        return cancel_refused(proxy, scope, job).await;
    }
    let call = calls::post(proxy, scope, "/ojs/v1/workers/nack", nack);
    let answer = calls::call(proxy, "drop", call).await.ok();
    let status = answer.as_ref().map(|reply| reply.status);
    let reply = answer.filter(|reply| reply.status.is_success());
    let said = reply.as_ref().and_then(|reply| state_in(&reply.body));
    let state = match said {
        Some(state) => Some(state),
        None => state_of(proxy, scope, job).await,
    };
    match (state.as_deref(), reply.is_some()) {
        (Some("discarded"), _) | (Some(GONE), true) => DropEnd::Dropped,
        (Some("completed" | "cancelled"), _) | (Some("available" | GONE), false) => DropEnd::Lost,
        (Some("active") | None, _) => DropEnd::Open(status),
        // The backend means to try it again.
        (Some(_), _) => cancel_refused(proxy, scope, job).await,
    }
}

async fn cancel_refused(proxy: &Proxy, scope: u64, job: &Arc<str>) -> DropEnd {
    let target = format!("/ojs/v1/jobs/{}", crate::wire::ojs::encoded(job));
    let call = Call {
        method: http::Method::DELETE,
        ..calls::get(proxy, scope, target)
    };
    let answer = calls::call(proxy, "drop", call).await;
    if answer.as_ref().is_ok_and(|reply| reply.status.is_success()) {
        return DropEnd::Dropped;
    }
    match state_of(proxy, scope, job).await.as_deref() {
        Some("discarded") => DropEnd::Dropped,
        // Ours, if its reply was lost.
        Some("cancelled") if answer.is_err() => DropEnd::Dropped,
        Some("completed" | "cancelled" | GONE) => DropEnd::Lost,
        _ => DropEnd::Open(answer.ok().map(|reply| reply.status)),
    }
}

/// The state that the backend has a job in; [`GONE`] if it knows none; `None`: it cannot be asked.
async fn state_of(proxy: &Proxy, scope: u64, job: &str) -> Option<String> {
    match calls::look_up(proxy, scope, job).await {
        Lookup::Found(reply) => state_in(&reply),
        Lookup::Gone => Some(GONE.into()),
        Lookup::Unknown | Lookup::Unanswered => None,
    }
}

/// The state of a job that is not there.
const GONE: &str = "gone";

/// A job's state in an answer: beside `job`, or in it.
fn state_in(body: &[u8]) -> Option<String> {
    let whole = Json::parse(body, REPLY_DEPTH).ok()?;
    let inside = whole
        .get_exact("job")
        .and_then(|job| job.get_exact("state"));
    Some(whole.get_exact("state").or(inside)?.text()?.into_owned())
}

fn final_nack(held: &Held, why: DropReason) -> String {
    let claimed = &held.claimed;
    let Some(by) = why.by(held) else {
        if why == DropReason::Expired {
            let message = "its expires_at came before a limit had room for it";
            return calls::discard(&claimed.job, &claimed.claim_id, "expired", message);
        }
        return overflow_nack(&claimed.queue, &claimed.job, &claimed.claim_id);
    };
    let message = format!(
        "the policy {:?} lets no job of {:?} start now",
        &*by.policy,
        by.key.as_str()
    );
    calls::discard(
        &claimed.job,
        &claimed.claim_id,
        "rate_limit_dropped",
        &message,
    )
}

/// The nack of a job that goes for a newer one.
pub(crate) fn overflow_nack(queue: &str, job: &str, claim_id: &str) -> String {
    let message = format!("queue {queue:?} is full, and newer jobs matter more");
    calls::discard(job, claim_id, "queue_overflow", &message)
}

/// The limit whose action it is: the one that lets go last if that is its action, else the first that
/// has it. (Where two limits with the same action stand beside a third that outlasts both, it may be
/// the one of them that did not refuse; only a label depends on it.)
pub(crate) fn acting(held: &Held, which: usize, action: OnLimit) -> Option<&Limited> {
    let limited = &held.claimed.limited;
    let mut all = limited.get(which).into_iter().chain(limited.iter());
    all.find(|limited| limited.on_limit == action)
}
