//! `drop_oldest` (backpressure text, 5.3): the new job is stored, and the oldest available one goes.
//!
//! Where the backend's next job is the oldest, it is dropped under a claim of ours: a held one under the
//! claim it has, else the one that the next FETCH would get. So no job that a worker has, or that waits for
//! a time, is touched. With several tenants or priorities the oldest (of the heaviest tenant) is another one
//! than the next. Nobody can claim a job by its id, so it is cancelled, once the backend has shown that it
//! is available. Where a cancelled job stays in its queue that would make no room: there the next one goes too.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::events::Value;
use crate::hold::Held;
use crate::json::{Json, quote};
use crate::log::cut;
use crate::pressure::{Dropped, Mark, Told};
use crate::proxy::depth::told::waits_in;
use crate::proxy::drop::End;
use crate::proxy::lookup::{Lookup, job_in};
use crate::proxy::{Proxy, REPLY_DEPTH, said};
use crate::upstream::Call;

/// How many jobs that turn out not to wait any more are passed over for one.
const TRIES: usize = 8;

/// What goes for an enqueue that was stored.
pub(super) struct Overflow {
    /// How many jobs, by queue, and how many it brought.
    pub(super) queues: Vec<(Arc<str>, u64, u64)>,
    /// The jobs of the enqueue itself, which do not.
    pub(super) stored: HashSet<Box<str>>,
}

/// What does not go from a queue: the jobs of the enqueue itself, so many of which are there.
struct Stays<'a> {
    ids: &'a HashSet<Box<str>>,
    here: u64,
    /// How many older ones are available, once that was asked.
    older: Option<u64>,
}

/// What was found to be dropped.
enum Found {
    Dropped(Oldest),
    /// The next in the queue is a job that came just now: nothing older waits, whatever was counted.
    Itself,
    Nothing,
}

impl Found {
    fn what(&self) -> Dropped {
        match self {
            Found::Dropped(oldest) => oldest.sent.map_or(Dropped::Held, Dropped::Waiting),
            Found::Itself | Found::Nothing => Dropped::None,
        }
    }
}

/// A job to be dropped.
struct Oldest {
    id: Arc<str>,
    kind: String,
    /// What came before it was asked for in the backend's queue; `None`: it was held.
    sent: Option<Mark>,
}

impl Proxy {
    /// Drops so many jobs of each queue, with the credentials of `scope`. The producer's answer waits for
    /// it: where it does not hear from its job before, the queue is never deeper than its bound to it.
    pub(super) async fn drop_oldest(&self, overflow: Overflow, scope: u64) {
        let Overflow { queues, stored } = overflow;
        for (queue, jobs, here) in queues {
            let ids = &stored;
            let mut stays = Stays {
                ids,
                here,
                older: None,
            };
            for left in (0..jobs).rev() {
                if !self.sidecar.pressure.must_drop(&queue) {
                    continue;
                }
                let found = self.drop_one_of(&queue, &mut stays, scope).await;
                let what = found.what();
                let dropped = || (self.sidecar.pressure).dropped(&queue, what, Instant::now());
                dropped();
                match found {
                    Found::Dropped(oldest) => self.tell_overflow(&queue, &oldest),
                    Found::Itself => {
                        (0..left).for_each(|_| dropped());
                        break;
                    }
                    Found::Nothing => tracing::warn!(
                        queue = &*queue,
                        "no job could be dropped for one that was stored: the queue is over its bound"
                    ),
                }
            }
        }
    }

    /// Drops one job of a queue in which none could be dropped the last time, before an enqueue is let in; whether
    /// that worked. Who hangs up does not stop it halfway.
    pub(super) async fn drop_first(&self, queue: Arc<str>, scope: u64) -> bool {
        let proxy = self.clone();
        let work = async move {
            let none = HashSet::new();
            let mut stays = Stays {
                ids: &none,
                here: 0,
                older: None,
            };
            let found = proxy.drop_one_of(&queue, &mut stays, scope).await;
            let pressure = &proxy.sidecar.pressure;
            pressure.dropped_first(&queue, found.what(), Instant::now());
            let Found::Dropped(oldest) = found else {
                return false;
            };
            proxy.tell_overflow(&queue, &oldest);
            true
        };
        self.sidecar.tasks.spawn(work).await.unwrap_or(false)
    }

    async fn drop_one_of(&self, queue: &str, stays: &mut Stays<'_>, scope: u64) -> Found {
        // A backend that is not known yet may be such a one.
        let learnt = self.ensure_learnt().await;
        let cancels = learnt.is_ok() && !self.sidecar.backend.cancelled_stays();
        let tries = if cancels { TRIES } else { 0 };
        for _ in 0..tries {
            let Some(id) = self.sidecar.pressure.oldest(queue, stays.ids) else {
                break;
            };
            if let Some(held) = self.sidecar.hold.doom_waiting(&id) {
                return Found::Dropped(self.end_held(queue, &held).await);
            }
            if let Some(gone) = self.cancel_available(queue, &id, scope).await {
                return Found::Dropped(gone);
            }
        }
        let ids = stays.ids;
        let stay = |job: &str| ids.contains(job);
        match self.sidecar.hold.doom_oldest(queue, stay) {
            Some(held) => Found::Dropped(self.end_held(queue, &held).await),
            None => (self.drop_available(queue, stays, scope).await).unwrap_or(Found::Nothing),
        }
    }

    /// Cancels a job that waits in the backend's queue.
    async fn cancel_available(&self, queue: &str, id: &str, scope: u64) -> Option<Oldest> {
        let Lookup::Found(reply) = self.look_up(scope, id).await else {
            return None;
        };
        let job = job_in(&reply)?;
        if !waits_in(job, queue) {
            return None;
        }
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(id));
        let sent = self.sidecar.pressure.mark();
        let cancel = Call {
            method: http::Method::DELETE,
            ..crate::proxy::get(self, scope, target)
        };
        let reply = crate::proxy::call(self, "drop", cancel).await.ok()?;
        reply.status.is_success().then(|| Oldest {
            id: Arc::from(id),
            kind: kind_of(job.raw()),
            sent: Some(sent),
        })
    }

    async fn end_held(&self, queue: &str, held: &Held) -> Oldest {
        let sidecar = &self.sidecar;
        let (job, generation) = (&held.claimed.job, held.claimed.generation);
        let nack = final_nack(queue, job, &held.claimed.claim_id);
        let end = self.end_claimed(held.claimed.scope, job, nack).await;
        if end == End::Open {
            // It is ended at the next sweep.
            sidecar.hold.spared(job, generation);
        } else {
            sidecar.end(job, Some(generation)).await;
            sidecar.hold.ended(job, generation);
        }
        Oldest {
            id: job.clone(),
            kind: kind_of(&held.body),
            sent: None,
        }
    }

    async fn drop_available(
        &self,
        queue: &str,
        stays: &mut Stays<'_>,
        scope: u64,
    ) -> Option<Found> {
        let sidecar = &self.sidecar;
        if self.only_new(queue, stays, scope).await {
            return Some(Found::Itself);
        }
        let worker = &sidecar.name;
        let body = format!(
            r#"{{"queues":[{}],"count":1,"worker_id":{}}}"#,
            quote(queue),
            quote(worker)
        );
        let sent = sidecar.pressure.mark();
        let call = crate::proxy::post(self, scope, "/ojs/v1/workers/fetch", body);
        let reply = crate::proxy::call(self, "drop", call).await.ok()?;
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
            self.give_back_new(&oldest.id, scope).await;
            return Some(Found::Itself);
        }
        let nack = final_nack(queue, &oldest.id, worker);
        match self.end_claimed(scope, &oldest.id, nack).await {
            End::Dropped => Some(Found::Dropped(oldest)),
            // Claimed and not ended: it comes back when the claim lapses.
            End::Lost | End::Open => None,
        }
    }

    /// Whether nothing is available in a queue but the jobs that came just now. Only asked where a job that is
    /// claimed and given back has lost an attempt, and once: then those that go are taken off.
    async fn only_new(&self, queue: &str, stays: &mut Stays<'_>, scope: u64) -> bool {
        if stays.here == 0 || self.sidecar.backend.requeue_harmless() {
            return false;
        }
        let older = match stays.older {
            Some(older) => older,
            None => match self.depth_told(queue, scope).await {
                Told::Counts(counts) => counts.available.saturating_sub(stays.here),
                _ => return false,
            },
        };
        stays.older = Some(older.saturating_sub(1));
        older == 0
    }

    /// A job that was stored just now is given back unstarted. Where claims count it has lost an attempt, as it
    /// would when the claim lapses, but nobody waits for that.
    async fn give_back_new(&self, job: &str, scope: u64) {
        let sidecar = &self.sidecar;
        let nack = said::requeue(job, &sidecar.name);
        let call = crate::proxy::post(self, scope, "/ojs/v1/workers/nack", nack);
        if let Err(error) = crate::proxy::call(self, "give_back", call).await {
            tracing::debug!(job = &*cut(job), %error, "not given back: it comes back when its claim lapses");
        }
    }

    fn tell_overflow(&self, queue: &str, oldest: &Oldest) {
        let sidecar = &self.sidecar;
        if sidecar.pressure.is_keyed(queue) {
            sidecar.pressure.gone(queue, &oldest.id, sidecar.now());
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
        sidecar.tell_pressure("backpressure.dropped", queue, job, &data);
    }
}

fn kind_of(job: &[u8]) -> String {
    let job = Json::parse(job, REPLY_DEPTH).ok();
    let kind = job.and_then(|job| job.text_of("type"));
    kind.map(|kind| kind.into_owned()).unwrap_or_default()
}

fn final_nack(queue: &str, job: &str, claim_id: &str) -> String {
    let message =
        format!("dropped by ojs-throttle: queue {queue:?} is full, and newer jobs matter more");
    said::discard(job, claim_id, "queue_overflow", &message)
}
