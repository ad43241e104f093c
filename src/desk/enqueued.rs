//! What FETCH learns from enqueues through this sidecar: which queues have limited jobs in them, and that a job of
//! higher priority waits in the backend than those that are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Sidecar;
use super::asks::LONGEST;
use crate::json::{self, Json};
use crate::policy::job::filed;
use crate::wire::ojs::DEPTH;

/// How long a queue counts as a limited one after the last limited job was enqueued to it.
const LASTS: Duration = Duration::from_secs(3_600);
/// Queues that are remembered; there are never more unless somebody makes up names.
const MOST_QUEUES: usize = 10_000;

/// The queues to which limited jobs were enqueued, and when the last one was. Their FETCHes are not passed whole: what
/// they claim is held although the worker hangs up.
#[derive(Default, Debug)]
pub(crate) struct LimitedQueues {
    queues: Mutex<HashMap<Arc<str>, Instant>>,
    /// Whether there are any: mostly nobody needs to look.
    any: AtomicBool,
}

impl LimitedQueues {
    /// Whether limited jobs were enqueued to this queue within an hour.
    pub(crate) fn has(&self, queue: &str) -> bool {
        self.any() && {
            let queues = self.queues.lock();
            queues.get(queue).is_some_and(|at| at.elapsed() < LASTS)
        }
    }

    /// Whether there may be any such queue.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// A limited job is being enqueued to this queue. The backend may refuse it, so a long name is not remembered.
    pub(crate) fn note(&self, queue: &Arc<str>) {
        let mut queues = self.queues.lock();
        if queue.len() <= LONGEST && (queues.len() < MOST_QUEUES || queues.contains_key(queue)) {
            queues.insert(Arc::clone(queue), Instant::now());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets those whose hour has passed by `now`.
    pub(crate) fn forget_unused(&self, now: Instant) {
        let mut queues = self.queues.lock();
        queues.retain(|_, at| now.saturating_duration_since(*at) < LASTS);
        self.any.store(!queues.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.queues.lock().clear();
        self.any.store(false, Ordering::Relaxed);
    }
}

/// The body of an enqueue, if FETCHes must learn of the priorities in it once it is stored: jobs are held that may
/// be of lower ones.
pub(crate) fn may_outrank(sidecar: &Sidecar, body: &Bytes) -> Option<Bytes> {
    let may = !sidecar.hold.is_empty() && json::may_name(body, "priority");
    may.then(|| body.clone())
}

/// Jobs were stored: the backend is asked before held ones of lower priority go out.
pub(crate) fn outrank(sidecar: &Sidecar, body: Option<Bytes>) {
    let Some(body) = body else { return };
    let Ok(whole) = Json::parse(&body, DEPTH) else {
        return;
    };
    let batch = whole.get("jobs").into_iter().flat_map(|jobs| jobs.items());
    for job in batch.chain(std::iter::once(whole)) {
        let Some(options) = job.get("options") else {
            continue;
        };
        let priority = options.get("priority").and_then(|said| said.int());
        let priority = priority.and_then(|said| i32::try_from(said).ok());
        if let Some(priority) = priority
            && !names_a_time(options)
        {
            sidecar.hold.saw(&filed(options.get("queue")), priority);
        }
    }
}

/// Whether the options of a job name a time before which it does not start.
pub(crate) fn names_a_time(options: Json<'_>) -> bool {
    let named = ["delay_until", "scheduled_at"].map(|at| options.get(at));
    named.iter().flatten().any(|at| !at.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_limited_for_an_hour() {
        let (limited, queue) = (LimitedQueues::default(), Arc::from("q"));
        assert!(!limited.has("q") && !limited.any());
        limited.note(&Arc::from("x".repeat(LONGEST + 1)));
        assert!(!limited.any(), "names come from requests");
        limited.note(&queue);
        assert!(limited.has("q") && !limited.has("p"));
        tokio::time::advance(LASTS - Duration::from_secs(1)).await;
        assert!(limited.has("q"));
        limited.forget_unused(Instant::now());
        assert!(limited.has("q"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!limited.has("q"));
        limited.forget_unused(Instant::now());
        assert!(!limited.any());
    }
}
