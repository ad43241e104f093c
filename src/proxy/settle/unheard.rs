//! ACKs and nacks whose workers have not got the answer, as far as is known: on their way, cut off, or
//! given up. The same request again may ask for what has happened already.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::Verb;
use crate::proxy::Sidecar;
use crate::proxy::body::Watch;
use crate::tick;

/// How long a request is remembered at least, from the last that was seen of it; at most twice as long.
const KEEP: Duration = Duration::from_secs(60);
/// With more requests than this the older ones go before their time.
const REQUESTS: usize = 16_384;
/// The most jobs remembered as asked about.
const JOBS: usize = 10_000;

/// Requests by their hashes: where two are mistaken for one, the backend is asked once more than need be. Each
/// is either young or old.
#[derive(Debug)]
struct Requests {
    young: HashSet<u64>,
    old: HashSet<u64>,
    /// When the old ones were the young ones last.
    turned: Instant,
}

impl Requests {
    fn turn(&mut self) {
        let now = tick::now();
        let age = now.saturating_duration_since(self.turned);
        if age < KEEP && self.young.len() < REQUESTS {
            return;
        }
        std::mem::swap(&mut self.young, &mut self.old);
        self.young.clear();
        if age >= 2 * KEEP {
            self.old.clear();
        }
        self.turned = now;
    }

    fn forget(&mut self, request: u64) -> bool {
        self.young.remove(&request) || self.old.remove(&request)
    }
}

/// What is remembered of ACKs and nacks.
#[derive(Debug)]
pub(in crate::proxy) struct Unheard {
    hasher: DefaultHashBuilder,
    requests: Mutex<Requests>,
    born: Instant,
    /// Its first minute is not over, as far as was looked.
    young: AtomicBool,
    /// What this sidecar was asked to settle in its first minute.
    jobs: Mutex<HashSet<Box<str>>>,
}

impl Default for Unheard {
    fn default() -> Unheard {
        let now = Instant::now();
        Unheard {
            hasher: DefaultHashBuilder::default(),
            requests: Mutex::new(Requests {
                young: HashSet::new(),
                old: HashSet::new(),
                turned: now,
            }),
            born: now,
            young: AtomicBool::new(true),
            jobs: Mutex::default(),
        }
    }
}

impl Unheard {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        let mut requests = self.requests.lock();
        requests.turn();
        requests
    }

    /// Remembers a request; says whether the same one is remembered.
    fn note(&self, request: u64) -> bool {
        let mut requests = self.requests();
        let again = requests.forget(request);
        requests.young.insert(request);
        again
    }

    /// The request's time begins anew, unless the same one that came later was heard meanwhile.
    fn renew(&self, request: u64) {
        let mut requests = self.requests();
        if requests.forget(request) {
            requests.young.insert(request);
        }
    }

    /// Whether an earlier sidecar may have settled the job and died before it could answer: this one is
    /// young, and was not asked to settle it before.
    pub(super) fn inherited(&self, job: &str) -> bool {
        if !self.young.load(Ordering::Relaxed) {
            return false;
        }
        let mut jobs = self.jobs.lock();
        if tick::now().saturating_duration_since(self.born) >= KEEP {
            *jobs = HashSet::new();
            self.young.store(false, Ordering::Relaxed);
            return false;
        }
        jobs.len() < JOBS && jobs.insert(job.into())
    }

    /// Forgets all requests.
    pub(in crate::proxy) fn clear(&self) {
        let mut requests = self.requests();
        requests.young.clear();
        requests.old.clear();
    }
}

/// One ACK or nack, from when it comes until its worker has the answer.
pub(super) struct Request {
    sidecar: Arc<Sidecar>,
    request: u64,
    /// Whether the same request came before, and its worker got no answer that we know of.
    pub(super) again: bool,
    heard: bool,
}

impl Request {
    pub(super) fn begin(sidecar: &Arc<Sidecar>, verb: Verb, scope: u64, body: &[u8]) -> Request {
        let request = sidecar.unheard.hasher.hash_one((verb, scope, body));
        Request {
            sidecar: Arc::clone(sidecar),
            request,
            again: sidecar.unheard.note(request),
            heard: false,
        }
    }
}

impl Watch for Request {
    fn sent(&mut self) {
        self.heard = true;
        self.sidecar.unheard.requests().forget(self.request);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.heard {
            self.sidecar.unheard.renew(self.request);
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
        assert!(!unheard.note(1));
        assert!(unheard.note(1) && !unheard.note(2));
        advance(KEEP - Duration::from_millis(1)).await;
        unheard.renew(1);
        unheard.renew(3);
        advance(KEEP - Duration::from_millis(1)).await;
        assert!(unheard.note(1) && !unheard.note(3));
        advance(2 * KEEP).await;
        assert!(!unheard.note(1));
        unheard.clear();
        assert!(!unheard.note(1));
        // Heard of twice, it is forgotten all the same.
        advance(KEEP).await;
        assert!(unheard.note(1) && unheard.requests().forget(1));
        assert!(!unheard.note(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_requests_ends_at_the_bound_and_leaves_the_latest() {
        let unheard = Unheard::default();
        for request in 0..5 * REQUESTS as u64 {
            unheard.note(request);
        }
        let requests = unheard.requests();
        assert!(requests.young.len() + requests.old.len() <= 2 * REQUESTS);
        drop(requests);
        assert!(unheard.note(4 * REQUESTS as u64));
        assert!(!unheard.note(7));
    }
}
