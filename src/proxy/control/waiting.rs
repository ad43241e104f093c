//! How many jobs wait in the backend for a key or a queue, as far as anybody knows. Keys are no business of
//! backends, and jobs that nobody has read have no keys here; but some keys are those of whole queues, and of
//! some jobs it is known that they wait.

use std::collections::HashMap;
use std::sync::Arc;

use http::request::Parts;

use super::named::Waiting;
use crate::limit::Key;
use crate::policy::PolicySet;
use crate::pressure::Told;
use crate::proxy::Proxy;

/// The backend is asked about so many queues for one answer.
const QUEUES: usize = 32;

/// What the backend said of its queues, each of which is asked about once.
pub(super) struct Backlog<'a> {
    proxy: &'a Proxy,
    scope: u64,
    told: HashMap<Arc<str>, Option<u64>>,
    /// What is known of single jobs, once it was asked for.
    known: Option<Waiting>,
    /// It does not answer: it is not waited for again.
    silent: bool,
}

impl<'a> Backlog<'a> {
    /// Nothing is asked yet. The backend is asked with the credentials of this request.
    pub(super) fn new(proxy: &'a Proxy, parts: &Parts) -> Backlog<'a> {
        Backlog {
            proxy,
            scope: proxy.sidecar.scopes.of(&parts.headers),
            told: HashMap::new(),
            known: None,
            silent: false,
        }
    }

    /// How many jobs of a queue are available in the backend; `None`: nobody knows.
    pub(super) async fn of_queue(&mut self, queue: &str) -> Option<u64> {
        if let Some(told) = self.told.get(queue) {
            return *told;
        }
        if self.silent || self.told.len() >= QUEUES {
            return None;
        }
        let told = match self.proxy.depth_told(queue, self.scope).await {
            Told::Counts(counts) => {
                let stats = &self.proxy.sidecar.stats;
                stats.is_believed(counts).then_some(counts.available)
            }
            Told::Away(_) => {
                self.silent = true;
                None
            }
            Told::Nothing | Told::Lie => None,
        };
        self.told.insert(Arc::from(queue), told);
        told
    }

    /// How many jobs are available in the backend and wait for a key: all of the queues that it covers, and in
    /// others those that are known to, of which some may have left unseen.
    pub(super) async fn of_key(&mut self, key: &Key, policies: &PolicySet) -> u64 {
        let named = &self.proxy.sidecar.named;
        // One look for all keys of an answer: FETCH waits for the lock meanwhile.
        let known = self.known.get_or_insert_with(|| named.pending());
        let mut known = known.remove(key).unwrap_or_default();
        let mut count = 0;
        for queue in policies.covered(key) {
            let known = known.remove(queue).unwrap_or(0);
            count += self.of_queue(queue).await.unwrap_or(known);
        }
        for (queue, known) in known {
            count += known.min(self.of_queue(&queue).await.unwrap_or(known));
        }
        count
    }
}
