//! `drop_oldest` (backpressure text, 5.3): the new job is stored, and the oldest available one goes.
//!
//! Where the backend's next job is the oldest, it is dropped under a claim of ours: a held one under the
//! claim it has, else the one that the next FETCH would get. So no job that a worker has, or that waits for
//! a time, is touched. With several priorities the oldest need not be the next one. Nobody can claim a job by its
//! id, so it is cancelled, once the backend has shown that it is available. On backends where a cancelled job stays
//! in its queue that would make no room: there the next job goes.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::events::Value;
use crate::hold::Doomed;
use crate::json::{Json, quote};
use crate::log::cut;
use crate::pressure::{Dropped, Mark, StatsTold};
use crate::proxy::calls::{self, Lookup, job_in};
use crate::proxy::depth::told::{self, waits_in};
use crate::proxy::drop::{self, DropEnd};
use crate::proxy::sweep::adopt;
use crate::proxy::{Proxy, REPLY_DEPTH, depth};
use crate::upstream::Call;

/// How many jobs that turn out not to wait any more are passed over for one.
const TRIES: usize = 8;

/// The jobs to drop for an enqueue that was stored.
pub(super) struct Overflow {
    /// How many jobs, by queue, and how many it brought.
    pub(super) queues: Vec<(Arc<str>, u64, u64)>,
    /// The jobs of the enqueue itself, which do not.
    pub(super) stored: HashSet<Box<str>>,
}

/// The jobs of a queue that are not dropped: those of the enqueue itself.
struct Stays<'a> {
    ids: &'a HashSet<Box<str>>,
    here: u64,
    /// How many older ones are available, once that was asked.
    older: Option<u64>,
}

/// The result of looking for a job to drop.
enum DropFound {
    Dropped(Oldest),
    /// The next job of the queue came with this enqueue: nothing older waits.
    Itself,
    Nothing,
}

impl DropFound {
    fn what(&self) -> Dropped {
        match self {
            DropFound::Dropped(oldest) => oldest.sent.map_or(Dropped::Held, Dropped::Waiting),
            DropFound::Itself | DropFound::Nothing => Dropped::None,
        }
    }
}

/// A job to be dropped.
struct Oldest {
    id: Arc<str>,
    kind: String,
    /// When it was asked for in the backend's queue; `None`: it was held.
    sent: Option<Mark>,
}

/// Drops so many jobs of each queue, with the credentials of `scope`. The producer's answer waits for
/// it: where it does not hear from its job before, the queue is never deeper than its bound to it.
pub(super) async fn drop_oldest(proxy: &Proxy, overflow: Overflow, scope: u64) {
    let Overflow { queues, stored } = overflow;
    for (queue, jobs, here) in queues {
        let ids = &stored;
        let mut stays = Stays {
            ids,
            here,
            older: None,
        };
        for left in (0..jobs).rev() {
            if !proxy.sidecar.admit.pressure.must_drop(&queue) {
                continue;
            }
            let found = drop_one_of(proxy, &queue, &mut stays, scope).await;
            let what = found.what();
            let dropped = || (proxy.sidecar.admit.pressure).dropped(&queue, what, Instant::now());
            dropped();
            match found {
                DropFound::Dropped(oldest) => tell_overflow(proxy, &queue, &oldest),
                DropFound::Itself => {
                    (0..left).for_each(|_| dropped());
                    break;
                }
                DropFound::Nothing => tracing::warn!(
                    queue = &*queue,
                    "no job could be dropped for one that was stored: the queue is over its bound"
                ),
            }
        }
    }
}

/// Drops one job of a queue before an enqueue is let in, because the last time none could be dropped. Returns
/// whether that worked.
pub(super) async fn drop_first(proxy: &Proxy, queue: Arc<str>, scope: u64) -> bool {
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    let work = async move {
        let none = HashSet::new();
        let mut stays = Stays {
            ids: &none,
            here: 0,
            older: None,
        };
        let found = drop_one_of(&proxy, &queue, &mut stays, scope).await;
        let pressure = &proxy.sidecar.admit.pressure;
        pressure.dropped_first(&queue, found.what(), Instant::now());
        let DropFound::Dropped(oldest) = found else {
            return false;
        };
        tell_overflow(&proxy, &queue, &oldest);
        true
    };
    sidecar.tasks.spawn(work).await.unwrap_or(false)
}

async fn drop_one_of(proxy: &Proxy, queue: &str, stays: &mut Stays<'_>, scope: u64) -> DropFound {
    // A backend that is not known yet may be such a one.
    let learnt = adopt::ensure_learnt(proxy).await;
    let cancels = learnt.is_ok() && !proxy.sidecar.backend.cancelled_stays();
    let tries = if cancels { TRIES } else { 0 };
    for _ in 0..tries {
        let Some(id) = proxy.sidecar.admit.pressure.oldest(queue, stays.ids) else {
            break;
        };
        if let Some(held) = proxy.sidecar.hold.doom_waiting(&id) {
            return DropFound::Dropped(end_held(proxy, queue, held).await);
        }
        if let Some(gone) = cancel_available(proxy, queue, &id, scope).await {
            return DropFound::Dropped(gone);
        }
    }
    let ids = stays.ids;
    let stay = |job: &str| ids.contains(job);
    match proxy.sidecar.hold.doom_oldest(queue, stay) {
        Some(held) => DropFound::Dropped(end_held(proxy, queue, held).await),
        None => (drop_available(proxy, queue, stays, scope).await).unwrap_or(DropFound::Nothing),
    }
}

/// Cancels a job that waits in the backend's queue.
async fn cancel_available(proxy: &Proxy, queue: &str, id: &str, scope: u64) -> Option<Oldest> {
    let Lookup::Found(reply) = calls::look_up(proxy, scope, id).await else {
        return None;
    };
    let job = job_in(&reply)?;
    if !waits_in(job, queue) {
        return None;
    }
    let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(id));
    let sent = proxy.sidecar.admit.pressure.mark();
    let cancel = Call {
        method: http::Method::DELETE,
        ..calls::get(proxy, scope, target)
    };
    let reply = calls::call(proxy, "drop", cancel).await.ok()?;
    reply.status.is_success().then(|| Oldest {
        id: Arc::from(id),
        kind: kind_of(job.raw()),
        sent: Some(sent),
    })
}

async fn end_held(proxy: &Proxy, queue: &str, held: Doomed) -> Oldest {
    let sidecar = &proxy.sidecar;
    let (job, generation) = (&held.claimed.job, held.claimed.generation);
    let nack = final_nack(queue, job, &held.claimed.claim_id);
    let end = drop::end_claimed(proxy, held.claimed.scope, job, nack).await;
    let oldest = Oldest {
        id: job.clone(),
        kind: kind_of(&held.body),
        sent: None,
    };
    // What is not over is due again, and ended at the next sweep.
    if end != DropEnd::Open {
        sidecar.end(job, Some(generation)).await;
        held.gone();
    }
    oldest
}

async fn drop_available(
    proxy: &Proxy,
    queue: &str,
    stays: &mut Stays<'_>,
    scope: u64,
) -> Option<DropFound> {
    let sidecar = &proxy.sidecar;
    if only_new(proxy, queue, stays, scope).await {
        return Some(DropFound::Itself);
    }
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
        sent: Some(sent),
    };
    if stays.ids.contains(&*oldest.id) {
        // Those before it have left behind our back.
        give_back_new(proxy, &oldest.id, scope).await;
        return Some(DropFound::Itself);
    }
    let nack = final_nack(queue, &oldest.id, worker);
    match drop::end_claimed(proxy, scope, &oldest.id, nack).await {
        DropEnd::Dropped => Some(DropFound::Dropped(oldest)),
        // Claimed and not ended: it comes back when the claim lapses.
        DropEnd::Lost | DropEnd::Open => None,
    }
}

/// Whether nothing is available in a queue but the jobs that came just now. Only asked where a job that is
/// claimed and given back has lost an attempt, and once: then those that go are taken off.
async fn only_new(proxy: &Proxy, queue: &str, stays: &mut Stays<'_>, scope: u64) -> bool {
    if stays.here == 0 || proxy.sidecar.backend.requeue_harmless() {
        return false;
    }
    let older = match stays.older {
        Some(older) => older,
        None => match told::depth_told(proxy, queue, scope).await {
            StatsTold::Counts(counts) => counts.available.saturating_sub(stays.here),
            _ => return false,
        },
    };
    stays.older = Some(older.saturating_sub(1));
    older == 0
}

/// A job that was stored just now is given back unstarted. Where claims count it has lost an attempt, as it
/// would when the claim lapses, but nobody waits for that.
async fn give_back_new(proxy: &Proxy, job: &str, scope: u64) {
    let sidecar = &proxy.sidecar;
    let nack = calls::requeue(job, &sidecar.fetching.worker_id);
    let call = calls::post(proxy, scope, "/ojs/v1/workers/nack", nack);
    if let Err(error) = calls::call(proxy, "give_back", call).await {
        tracing::debug!(job = &*cut(job), %error, "not given back: it comes back when its claim lapses");
    }
}

fn tell_overflow(proxy: &Proxy, queue: &str, oldest: &Oldest) {
    let sidecar = &proxy.sidecar;
    if sidecar.admit.pressure.is_keyed(queue) {
        sidecar
            .admit
            .pressure
            .gone(queue, &oldest.id, depth::now(sidecar));
    }
    sidecar.metrics.dropped_oldest(queue, 1);
    tracing::debug!(
        queue,
        job = &*cut(&oldest.id),
        "dropped: the oldest of a full queue"
    );
    let data = [
        ("queue", Value::Text(queue)),
        ("job_id", Value::Text(&oldest.id)),
        ("job_type", Value::Text(&oldest.kind)),
    ];
    let job = Some((&*oldest.id, &*oldest.kind));
    depth::tell_pressure(sidecar, "backpressure.dropped", queue, job, &data);
}

fn kind_of(job: &[u8]) -> String {
    let job = Json::parse(job, REPLY_DEPTH).ok();
    let kind = job.and_then(|job| job.text_of("type"));
    kind.map(|kind| kind.into_owned()).unwrap_or_default()
}

fn final_nack(queue: &str, job: &str, claim_id: &str) -> String {
    let message =
        format!("dropped by ojs-throttle: queue {queue:?} is full, and newer jobs matter more");
    calls::discard(job, claim_id, "queue_overflow", &message)
}
