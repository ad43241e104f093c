//! `drop_oldest` (backpressure text, 5.3): the oldest available job goes, and then the new one is let in. If the backend
//! does not store that one after all, or its producer hangs up, the old one is gone all the same.
//!
//! The oldest is the job that the backend's next FETCH would give, or the one that it gave first of those held here.
//! It is dropped under a claim of ours, because nobody can claim a job by its id: so no job that a worker has, or that
//! waits for a time, is touched. In a queue of several priorities that is the oldest of the highest one.

use std::sync::Arc;

use tokio::time::Instant;

use crate::bounds::{Dropped, Dropping, Want};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, edges};
use crate::hold::Pick;
use crate::inquiry::calls;
use crate::inquiry::drop::{self, DropEnd};
use crate::json::{Json, quote};
use crate::log::cut;
use crate::store::LedgerExt;
use crate::told::events::EventValue;
use crate::wire::ojs::REPLY_DEPTH;

/// A job to be dropped.
struct Oldest {
    id: Arc<str>,
    kind: String,
    /// Where it was.
    was: Dropped,
}

/// Drops the oldest job of a full queue for an enqueue, with the credentials of `scope`: to its end, though the producer
/// hangs up. The enqueue asks again with what is
/// returned; `None`: another enqueue was dropping.
pub(super) async fn drop_oldest(
    proxy: &Proxy,
    wants: &mut [Want],
    queue: &Arc<str>,
    scope: u64,
) -> Option<Dropping> {
    let sidecar = &proxy.sidecar;
    let dropping = Dropping::begin(&sidecar.admit.pressure, queue, edges::now(sidecar))?;
    let (proxy, of) = (proxy.clone(), Arc::clone(queue));
    let work = Box::pin(async move {
        let oldest = drop_one_of(&proxy, &of, scope).await;
        let was = oldest.as_ref().map_or(Dropped::None, |oldest| oldest.was);
        dropping.dropped(was, Instant::now());
        if let Some(oldest) = &oldest {
            tell_overflow(&proxy, &of, oldest);
        }
        (dropping, oldest.is_some())
    });
    let (dropping, is_gone) = to_the_end(&sidecar.tasks.left, work).await;
    for want in wants.iter_mut().filter(|want| want.queue == *queue) {
        match is_gone {
            true => want.gone += 1,
            false => want.paused = true,
        }
    }
    Some(dropping)
}

async fn drop_one_of(proxy: &Proxy, queue: &str, scope: u64) -> Option<Oldest> {
    let sidecar = &proxy.sidecar;
    match sidecar.hold.pick_oldest(queue, sidecar.store.now()) {
        Some(held) => Some(end_held(proxy, queue, held).await),
        None => drop_available(proxy, queue, scope).await,
    }
}

async fn end_held(proxy: &Proxy, queue: &str, held: Pick) -> Oldest {
    let sidecar = &proxy.sidecar;
    let (job, generation) = (&held.claimed.job, held.claimed.generation);
    let nack = final_nack(queue, job, &held.claimed.claim_id);
    let end = drop::end_claimed(proxy, held.claimed.scope, job, nack).await;
    let oldest = Oldest {
        id: job.clone(),
        kind: kind_of(&held.body),
        was: Dropped::Held,
    };
    match end {
        DropEnd::Open => drop::drop_soon(proxy, vec![held]),
        DropEnd::Dropped | DropEnd::Lost => {
            sidecar.end(job, Some(generation)).await;
            held.gone();
        }
    }
    oldest
}

async fn drop_available(proxy: &Proxy, queue: &str, scope: u64) -> Option<Oldest> {
    let sidecar = &proxy.sidecar;
    let worker = &sidecar.fetching.worker_id;
    let body = format!(
        r#"{{"queues":[{}],"count":1,"worker_id":{}}}"#,
        quote(queue),
        quote(worker)
    );
    let sent = sidecar.admit.pressure.mark();
    let call = calls::post(proxy, scope, "/ojs/v1/workers/fetch", body);
    let reply = calls::call(proxy, "drop", call).await.ok()?;
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok()?;
    let first = whole.get_exact("jobs").and_then(|jobs| jobs.items().next());
    let job = first.or(whole.get_exact("job"))?;
    let attempt = job.get_exact("attempt").and_then(|attempt| attempt.u32());
    sidecar.backend.saw_attempt(attempt);
    let oldest = Oldest {
        id: Arc::from(&*job.text_of("id")?),
        kind: kind_of(job.raw()),
        was: Dropped::Waiting(sent),
    };
    let nack = final_nack(queue, &oldest.id, worker);
    match drop::end_claimed(proxy, scope, &oldest.id, nack).await {
        DropEnd::Dropped => Some(oldest),
        // Claimed and not ended: it comes back when the claim lapses.
        DropEnd::Lost | DropEnd::Open => None,
    }
}

fn tell_overflow(proxy: &Proxy, queue: &str, oldest: &Oldest) {
    let sidecar = &proxy.sidecar;
    (sidecar.admit.pressure).gone(queue, &oldest.id, edges::now(sidecar));
    sidecar.metrics.dropped_oldest(queue, 1);
    tracing::debug!(
        queue,
        job = &*cut(&oldest.id),
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
        ("job_id", EventValue::Text(&oldest.id)),
        ("job_type", EventValue::Text(&oldest.kind)),
    ];
    let job = Some((&*oldest.id, &*oldest.kind));
    edges::tell_pressure(sidecar, "backpressure.dropped", queue, job, &data);
}

fn kind_of(job: &[u8]) -> String {
    let job = Json::parse(job, REPLY_DEPTH).ok();
    let kind = job.and_then(|job| job.text_of("type"));
    kind.map(|kind| kind.into_owned()).unwrap_or_default()
}

fn final_nack(queue: &str, job: &str, claim_id: &str) -> String {
    let message = format!("queue {queue:?} is full, and newer jobs matter more");
    calls::discard(job, claim_id, "queue_overflow", &message)
}
