//! What is remembered of ACKs and nacks whose workers may not have the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{Claim, Gen};
use crate::wire::tick;

/// How long a request is remembered after it was last seen.
const KEEP: Duration = Duration::from_secs(60);
/// With more requests than this all are forgotten at once.
const REQUESTS: usize = 16_384;

/// One run of a job: which claim of it, by which worker.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) claim: Gen,
    pub(crate) worker: Option<Arc<str>>,
}

/// A request that was seen, and the run that it is of.
#[derive(Debug)]
struct Seen {
    at: Instant,
    run: Option<Run>,
}

/// What is remembered of ACKs and nacks, by the hashes of the requests. Where two have the same hash, the backend is
/// asked once more than necessary.
#[derive(Default, Debug)]
pub(crate) struct Unheard {
    pub(crate) hasher: DefaultHashBuilder,
    requests: Mutex<HashMap<u64, Seen>>,
}

impl Unheard {
    /// Remembers a request, and returns what was known of the same one.
    pub(crate) fn note(&self, request: u64) -> Option<Option<Run>> {
        let at = tick::now();
        let is_fresh = |seen: &Seen| at.saturating_duration_since(seen.at) <= KEEP;
        let mut requests = self.requests.lock();
        let earlier = requests.remove(&request).filter(is_fresh);
        let earlier = earlier.map(|seen| seen.run);
        if requests.len() >= REQUESTS {
            requests.retain(|_, seen| is_fresh(seen));
        }
        if requests.len() >= REQUESTS {
            requests.clear();
        }
        let run = earlier.clone().flatten();
        requests.insert(request, Seen { at, run });
        earlier
    }

    /// Remembers which run a request is of. The first one of several counts.
    pub(crate) fn note_run(&self, request: u64, of: &Claim) {
        if let Some(seen) = self.requests.lock().get_mut(&request) {
            seen.run.get_or_insert_with(|| Run {
                claim: of.generation,
                worker: of.worker.clone(),
            });
        }
    }

    /// Begins the request's time anew, unless the same request was answered meanwhile.
    pub(crate) fn renew(&self, request: u64) {
        if let Some(seen) = self.requests.lock().get_mut(&request) {
            seen.at = tick::now();
        }
    }

    /// Forgets a request.
    pub(crate) fn forget(&self, request: u64) {
        self.requests.lock().remove(&request);
    }

    /// Forgets all requests.
    pub(crate) fn clear(&self) {
        self.requests.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_remembered_for_a_minute_from_its_end() {
        let unheard = Unheard::default();
        let note = |request| unheard.note(request).is_some();
        assert!(!note(1));
        assert!(note(1) && !note(2));
        advance(KEEP - Duration::from_millis(1)).await;
        unheard.renew(1);
        unheard.renew(3);
        advance(KEEP - Duration::from_millis(1)).await;
        assert!(note(1) && !note(3));
        advance(2 * KEEP).await;
        assert!(!note(1));
        unheard.clear();
        assert!(!note(1));
        // Heard of twice, it is forgotten all the same.
        advance(KEEP).await;
        assert!(note(1));
        unheard.forget(1);
        assert!(!note(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_requests_ends_at_the_bound_and_leaves_the_latest() {
        let unheard = Unheard::default();
        for request in 0..5 * REQUESTS as u64 {
            unheard.note(request);
        }
        assert!(unheard.requests.lock().len() <= REQUESTS);
        assert!(unheard.note(4 * REQUESTS as u64).is_some());
        assert!(unheard.note(7).is_none());
    }
}
