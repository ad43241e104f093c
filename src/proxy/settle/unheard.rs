//! ACKs and nacks whose answers have not reached their workers, as far as is known. When such a request comes again, it
//! may have been carried out already.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answers::body::Watch;
use crate::proxy::Sidecar;
use crate::store::{Claim, Gen};
use crate::wire::tick;

/// How long a request is remembered after it was last seen.
const KEEP: Duration = Duration::from_secs(60);
/// With more requests than this all are forgotten at once.
const REQUESTS: usize = 16_384;

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::proxy) enum Verb {
    Ack,
    Nack,
}

/// Why a request that the backend refuses may have been carried out already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// A try of ours got no answer.
    Tried,
    /// Its worker asked before, and got no answer.
    Again,
}

/// One run of a job: which claim of it, by which worker.
#[derive(Clone, Debug)]
struct Run {
    claim: Gen,
    worker: Option<Arc<str>>,
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
pub(super) struct Unheard {
    hasher: DefaultHashBuilder,
    requests: Mutex<HashMap<u64, Seen>>,
}

impl Unheard {
    /// Remembers a request, and returns what was known of the same one.
    fn note(&self, request: u64) -> Option<Option<Run>> {
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
    fn note_run(&self, request: u64, of: &Claim) {
        if let Some(seen) = self.requests.lock().get_mut(&request) {
            seen.run.get_or_insert_with(|| Run {
                claim: of.generation,
                worker: of.worker.clone(),
            });
        }
    }

    /// Begins the request's time anew, unless the same request was answered meanwhile.
    fn renew(&self, request: u64) {
        if let Some(seen) = self.requests.lock().get_mut(&request) {
            seen.at = tick::now();
        }
    }

    /// Forgets a request.
    fn forget(&self, request: u64) {
        self.requests.lock().remove(&request);
    }

    /// Forgets all requests.
    pub(super) fn clear(&self) {
        self.requests.lock().clear();
    }
}

/// One ACK or nack, from when it comes until its worker has the answer.
pub(super) struct Request {
    sidecar: Arc<Sidecar>,
    request: u64,
    /// The run of the same request that came before and whose worker got no answer, as far as we know.
    earlier: Option<Option<Run>>,
    heard: bool,
}

impl Request {
    pub(super) fn begin(sidecar: &Arc<Sidecar>, verb: Verb, scope: u64, body: &[u8]) -> Request {
        let request = sidecar.settle.unheard.hasher.hash_one((verb, scope, body));
        Request {
            sidecar: Arc::clone(sidecar),
            request,
            earlier: sidecar.settle.unheard.note(request),
            heard: false,
        }
    }

    /// Why it may have been carried out already.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.earlier.as_ref().map(|_| Doubt::Again)
    }

    /// Remembers which run of its job it is of.
    pub(super) fn note_run(&self, now: &Claim) {
        self.sidecar.settle.unheard.note_run(self.request, now);
    }

    /// Whether it came before, and another worker got the job since.
    pub(super) fn is_of_earlier_run(&self, now: &Claim) -> bool {
        let then = self.earlier.iter().flatten().next();
        then.is_some_and(|then| {
            now.generation > then.claim && now.is_with_another(then.worker.as_deref())
        })
    }
}

impl Watch for Request {
    fn sent(&mut self) {
        self.heard = true;
        self.sidecar.settle.unheard.forget(self.request);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.heard {
            self.sidecar.settle.unheard.renew(self.request);
        }
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
