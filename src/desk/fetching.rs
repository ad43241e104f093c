//! What only FETCH needs to know, over all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use http::StatusCode;
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

/// What only FETCH needs to know, over all requests.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    /// The worker id under which limited queues are claimed.
    pub(crate) worker_id: Arc<str>,
    /// Queues of which nothing goes out.
    pub(crate) paused: Paused,
    /// Whether jobs have come with limits of their own.
    pub(crate) brought: AtomicBool,
    /// The status with which the backend refused the last FETCH; 0: it did not.
    pub(crate) refused: AtomicU16,
    /// That it does so, which is said seldom, and whether it was said and is not over.
    refusal: Seldom,
    is_told: AtomicBool,
    /// That FETCH replies cannot be read, which is said seldom.
    pub(crate) unreadable: Seldom,
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
        let refused = if is_refusal { status.as_u16() } else { 0 };
        self.refused.store(refused, Ordering::Relaxed);
        if is_refusal && self.refusal.now() {
            self.is_told.store(true, Ordering::Relaxed);
            tracing::warn!(
                id = %"backend_refuses",
                status = refused,
                "the backend refuses a FETCH: nothing can be fetched while it does"
            );
        } else if !is_refusal && self.is_told.swap(false, Ordering::Relaxed) {
            tracing::info!("the backend accepts a FETCH again");
        }
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
    }
}
