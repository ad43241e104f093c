//! `drop_oldest` (backpressure text, 5.3): the oldest available job goes, and then the new one is let in. If the backend
//! does not store that one after all, or its producer hangs up, the old one is gone all the same.
//!
//! The oldest is the job that the backend's next FETCH would give, or the one that it gave first of those held here.
//! It is dropped under a claim of ours, because nobody can claim a job by its id: so no job that a worker has, or that
//! waits for a time, is touched. In a queue of several priorities that is the oldest of the highest one.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;

use crate::bounds::{Dropped, Dropping, Want};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, edges};
use crate::inquiry::calls;
use crate::inquiry::drop::{self, DropEnd, DropReason};
use crate::json::{Json, quote};
use crate::store::LedgerExt;
use crate::wire::ojs::REPLY_DEPTH;

/// The id of a job that waits no more, and where it was.
type Oldest = (Arc<str>, Dropped);

/// Drops the oldest job of a full queue for an enqueue, with the credentials of `scope`: to its end, though the producer
/// hangs up. The enqueue asks again with what is returned; `None`: another enqueue was dropping, or it may drop nothing.
pub(super) async fn drop_oldest(
    proxy: &Proxy,
    wants: &mut [Want],
    queue: &Arc<str>,
    scope: u64,
) -> Option<Dropping> {
    let sidecar = &proxy.sidecar;
    if !may_enqueue(proxy, queue, scope).await {
        let of_queue = wants.iter_mut().filter(|want| want.queue == *queue);
        of_queue.for_each(|want| want.paused = true);
        return None;
    }
    let dropping = Dropping::begin(&sidecar.admit.pressure, queue, edges::now(sidecar))?;
    let (proxy, of) = (proxy.clone(), Arc::clone(queue));
    let work = Box::pin(async move {
        let oldest = drop_one_of(&proxy, &of, scope).await;
        let was = oldest.as_ref().map_or(Dropped::None, |(_, was)| *was);
        dropping.dropped(was, Instant::now());
        if let Some((id, _)) = &oldest {
            let pressure = &proxy.sidecar.admit.pressure;
            pressure.gone(&of, id, edges::now(&proxy.sidecar));
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

/// Whether the backend knows who enqueues, as far as its numbers tell: no job goes for one whose login it refuses.
async fn may_enqueue(proxy: &Proxy, queue: &str, scope: u64) -> bool {
    if proxy.sidecar.scopes.has_accepted(scope) {
        return true;
    }
    let name = crate::wire::ojs::encoded(queue);
    let question = calls::get(proxy, scope, format!("/ojs/v1/queues/{name}/stats"));
    let reply = calls::call(proxy, "queue_stats", question).await;
    // Who is known may be kept from them (403).
    reply.is_ok_and(|reply| reply.status != StatusCode::UNAUTHORIZED)
}

async fn drop_one_of(proxy: &Proxy, queue: &str, scope: u64) -> Option<Oldest> {
    let sidecar = &proxy.sidecar;
    let Some(held) = sidecar.hold.pick_oldest(queue, sidecar.store.now()) else {
        return drop_available(proxy, queue, scope).await;
    };
    let id = held.claimed.job.clone();
    let Some(open) = drop::end_held(proxy, held, DropReason::FullQueue).await else {
        return Some((id, Dropped::Held));
    };
    // It makes room and is told of when it is gone. Until then no other is to go in its place.
    drop::drop_soon(proxy, vec![open], DropReason::FullQueue);
    None
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
    let id: Arc<str> = Arc::from(&*job.text_of("id")?);
    let nack = drop::overflow_nack(queue, &id, worker);
    match drop::end_claimed(proxy, scope, &id, nack).await {
        DropEnd::Dropped => drop::tell_overflow(sidecar, queue, &id, job.raw()),
        // Claimed and not ended: it comes back when the claim lapses.
        DropEnd::Lost | DropEnd::Open(_) => return None,
    }
    Some((id, Dropped::Waiting(sent)))
}
