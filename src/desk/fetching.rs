//! What only FETCH needs to know, over all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::asks::PassedFetches;
use super::backlogs::Backlogs;
use super::claims::Claims;
use super::enqueued::LimitedQueues;
use super::paused::Paused;
use super::pollers::Pollers;
use super::way::Way;
use crate::answers::load::Seldom;
use crate::limit::Timestamp;
use crate::store::Gen;

/// How long a refusal is told: workers that poll are refused again in this time.
const LATELY: Duration = Duration::from_secs(30);

/// What only FETCH needs to know, over all requests.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    /// The worker id under which limited queues are claimed.
    pub(crate) worker_id: Arc<str>,
    /// Queues of which nothing goes out.
    pub(crate) paused: Paused,
    /// Whether jobs have come with limits of their own.
    pub(crate) brought: AtomicBool,
    /// With which status the backend last refused a FETCH, and when; `None`: it has accepted one since.
    refused: Mutex<Option<(StatusCode, Instant)>>,
    /// That it does so, which is said seldom, and whether it was said and is not over.
    refusal: Seldom,
    is_told: AtomicBool,
    /// That FETCH replies cannot be read, which is said seldom.
    pub(crate) unreadable: Seldom,
    /// That jobs do not say their cost, which is said seldom.
    pub(crate) untold: Seldom,
    /// Ids of claims that brought nothing, to be used again: some backends keep each for ever.
    pub(crate) spare_ids: Mutex<Vec<Arc<str>>>,
    /// The number of the last claim.
    last_claim: AtomicU64,
    /// The claims of limited queues that are under way.
    pub(crate) claims: Arc<Claims>,
    /// What the backend said of queues whose limits leave no room.
    pub(crate) backlogs: Backlogs,
    /// The queues to which limited jobs were enqueued.
    pub(crate) limited: LimitedQueues,
    /// The workers that were sent away empty.
    pub(crate) pollers: Pollers,
    /// Which queues without limits workers ask for.
    pub(crate) asks: PassedFetches,
    /// How long the store takes to answer.
    pub(crate) way: Way,
}

impl Fetching {
    pub(crate) fn new(worker_id: Arc<str>) -> Fetching {
        Fetching {
            worker_id,
            last_claim: AtomicU64::new(1),
            ..Fetching::default()
        }
    }

    /// The number of the next claim: by the store's clock, which says `now`, so that it is above that of
    /// any earlier claim of the job, whichever sidecar made it.
    pub(crate) fn next_claim(&self, now: Timestamp) -> Gen {
        let now = now.0;
        let above = |last: u64| Some(now.max(last + 1));
        // Always `Ok`, for there is always a next number.
        let last = self
            .last_claim
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, above);
        Gen(now.max(last.unwrap_or(0) + 1))
    }

    /// Notes with which status the backend answered a FETCH, and says if it refuses all. That it does not understand one
    /// says nothing of the next.
    pub(crate) fn note_status(&self, status: StatusCode) {
        let is_refusal = !status.is_success()
            && !matches!(
                status,
                StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
            );
        let mut last = self.refused.lock();
        // That other credentials are good says nothing of those.
        if is_refusal || last.is_some_and(|(status, _)| !is_of_login(status)) {
            *last = is_refusal.then(|| (status, Instant::now()));
        }
        drop(last);
        if is_refusal && self.refusal.now() {
            // That another worker is accepted ends no refusal of a login.
            self.is_told.store(!is_of_login(status), Ordering::Relaxed);
            tracing::warn!(
                id = %"backend_refuses",
                status = status.as_u16(),
                "the backend refuses a FETCH: who asks so gets no job"
            );
        } else if !is_refusal && self.is_told.swap(false, Ordering::Relaxed) {
            tracing::info!("the backend accepts a FETCH again");
        }
    }

    /// With which status the backend has refused a FETCH lately, if it did. What nobody asks any more nobody is refused.
    pub(crate) fn refused_lately(&self) -> Option<StatusCode> {
        let (status, at) = (*self.refused.lock())?;
        (at.elapsed() < LATELY).then_some(status)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.paused.clear();
        self.backlogs.clear();
        self.limited.clear();
    }

    /// Forgets what nobody has asked for in a while.
    pub(crate) fn forget_unused(&self, now: Instant) {
        self.backlogs.forget_unused(now);
        self.limited.forget_unused(now);
        self.asks.forget_unused(now);
    }
}

/// Whether a refusal speaks of who asks, and not of the backend.
pub(crate) fn is_of_login(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_until_it_is_over() {
        let fetching = Fetching::default();
        fetching.note_status(StatusCode::SERVICE_UNAVAILABLE);
        let told = fetching.refused_lately();
        assert_eq!(told, Some(StatusCode::SERVICE_UNAVAILABLE));
        fetching.note_status(StatusCode::OK);
        assert_eq!(fetching.refused_lately(), None);
        // Of a worker's credentials: others get their jobs.
        fetching.note_status(StatusCode::UNAUTHORIZED);
        fetching.note_status(StatusCode::OK);
        assert_eq!(fetching.refused_lately(), Some(StatusCode::UNAUTHORIZED));
        tokio::time::sleep(LATELY).await;
        assert_eq!(fetching.refused_lately(), None);
    }
}
