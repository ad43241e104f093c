//! `drop_oldest` (backpressure text, 5.3): the new job is stored, and the oldest available one goes.
//!
//! A job is only ever dropped under a claim of ours: a held one under the claim it has, else the one
//! that the next FETCH would get. So no job that a worker has, or that waits for a time, is touched.

use std::sync::Arc;

use tokio::time::Instant;

use super::drop::End;
use super::{DEPTH, Proxy};
use crate::events::Value;
use crate::json::{Json, quote};

/// A job to be dropped.
struct Oldest {
    id: Arc<str>,
    kind: String,
}

impl Proxy {
    /// Drops so many jobs of each queue, with the credentials of `scope`. The producer's answer waits for
    /// it: where it does not hear from its job before, the queue is never deeper than its bound to it.
    pub(super) async fn drop_oldest(&self, queues: Vec<(Arc<str>, u64)>, scope: u64) {
        for (queue, jobs) in queues {
            for _ in 0..jobs {
                let gone = match self.drop_held(&queue).await {
                    Some(gone) => Some(gone),
                    None => self.drop_available(&queue, scope).await,
                };
                let now = Instant::now();
                self.sidecar.pressure.dropped(&queue, gone.is_some(), now);
                match gone {
                    Some(oldest) => {
                        if self.sidecar.pressure.is_keyed(&queue) {
                            let now = self.sidecar.now();
                            self.sidecar.pressure.gone(&queue, &oldest.id, now);
                        }
                        self.tell_overflow(&queue, &oldest);
                    }
                    None => tracing::warn!(
                        queue = &*queue,
                        "no job could be dropped for one that was stored: the queue is over its bound"
                    ),
                }
            }
        }
    }

    async fn drop_held(&self, queue: &str) -> Option<Oldest> {
        let sidecar = &self.sidecar;
        let held = sidecar.hold.doom_oldest(queue)?;
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
        Some(Oldest {
            id: job.clone(),
            kind: kind_of(&held.body),
        })
    }

    async fn drop_available(&self, queue: &str, scope: u64) -> Option<Oldest> {
        let worker = &self.sidecar.name;
        let body = format!(
            r#"{{"queues":[{}],"count":1,"worker_id":{}}}"#,
            quote(queue),
            quote(worker)
        );
        let call = super::post(self, scope, "/ojs/v1/workers/fetch", body);
        let reply = super::call(self, "drop", call).await.ok()?;
        let whole = Json::parse(&reply.body, DEPTH).ok()?;
        let first = whole.get_exact("jobs").and_then(|jobs| jobs.items().next());
        let job = first.or(whole.get_exact("job"))?;
        let oldest = Oldest {
            id: Arc::from(&*job.get_exact("id")?.text()?),
            kind: kind_of(job.raw()),
        };
        let nack = final_nack(queue, &oldest.id, worker);
        match self.end_claimed(scope, &oldest.id, nack).await {
            End::Dropped => Some(oldest),
            // Claimed and not ended: it comes back when the claim lapses.
            End::Lost | End::Open => None,
        }
    }

    fn tell_overflow(&self, queue: &str, oldest: &Oldest) {
        let sidecar = &self.sidecar;
        sidecar.metrics.dropped_oldest(queue, 1);
        tracing::debug!(
            queue,
            job = &*oldest.id,
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
    let job = Json::parse(job, DEPTH).ok();
    let kind = job.and_then(|job| job.get_exact("type")?.text());
    kind.map(|kind| kind.into_owned()).unwrap_or_default()
}

fn final_nack(queue: &str, job: &str, claim_id: &str) -> String {
    let message =
        format!("dropped by ojs-throttle: queue {queue:?} is full, and newer jobs matter more");
    format!(
        r#"{{"job_id":{},"worker_id":{},"error":{{"code":"queue_overflow","type":"queue_overflow","message":{},"retryable":false}}}}"#,
        quote(job),
        quote(claim_id),
        quote(&message),
    )
}
