//! What is known of all calls of this sidecar, and what the sweep does for those that are out.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Sidecar;
use crate::answers::load::Seldom;
use crate::limit::{Key, Limited};
use crate::lines::CallLines;
use crate::store::{Claimed, LedgerExt};
use crate::wire::upstream::Upstream;

/// The calls that wait here, and those that are out through us.
#[derive(Default, Debug)]
pub(crate) struct Calling {
    /// Those that wait.
    pub(crate) lines: Arc<CallLines>,
    /// Those that are out, by their ids.
    pub(crate) out: Mutex<HashMap<Arc<str>, Claimed>>,
    /// Cancelled when a drain has no limited job out any more, which may have to call: from then on no call starts.
    pub(crate) closed: CancellationToken,
    /// Cancelled when the ports of calls are free for who comes next.
    pub(crate) ports_free: CancellationToken,
    /// The ports of this program.
    pub(crate) own_ports: Arc<OnceLock<Vec<u16>>>,
    /// Tells of calls that do not say what they used.
    pub(crate) untold: Seldom,
    /// Tells of calls that pay nothing to a budget of models.
    pub(crate) unpaid: Seldom,
    /// Tells of calls that are refused because of where they lead.
    pub(crate) misled: Seldom,
    /// The services behind the ways out, each over the connections of one thread.
    services: Mutex<Vec<(Arc<str>, Upstream)>>,
}

impl Sidecar {
    /// No call starts from now on. While the answers of others stream on, their ports are free for who comes next, unless
    /// calls have slots in our memory: of those nobody else knows, and so they are waited for.
    pub(crate) fn close_calls(&self) {
        self.calling.closed.cancel();
        let live = self.live();
        let mut limits = live.settings.egress.iter().flat_map(|way| &way.limits);
        let has_slots = limits.any(|(_, limits, _)| limits.concurrency.is_some());
        if self.store.is_shared() || !has_slots {
            self.calling.ports_free.cancel();
        }
    }
}

impl Calling {
    /// How many are out through us.
    pub(crate) fn out(&self) -> usize {
        self.out.lock().len()
    }

    /// Calls of this way out go there. All threads know the same of whether it answers.
    pub(crate) fn goes_to(&self, egress: &Arc<str>, service: &Upstream) {
        let mut services = self.services.lock();
        if services.iter().all(|(known, _)| known != egress) {
            services.push((Arc::clone(egress), service.clone()));
        }
    }

    /// Ends the outages of services that are over.
    pub(crate) fn end_outages(&self) {
        for (_, service) in &*self.services.lock() {
            // Only calls of others ask it.
            let _goes_on = service.end_outage_if_over();
        }
    }

    /// The ways out, and whether the service behind each is away.
    pub(crate) fn away(&self) -> Vec<(Arc<str>, bool)> {
        let services = self.services.lock();
        let each = services.iter();
        each.map(|(egress, service)| (Arc::clone(egress), service.is_away()))
            .collect()
    }

    /// A slot of these keys ended, or a start of theirs was undone: the first that wait for them ask again.
    pub(crate) fn wake(&self, freed: &[Limited]) {
        self.lines
            .wake(freed.iter().map(|one| (one.space, &one.key)));
    }

    /// How many of a way out are out through us, and how many wait here.
    pub(crate) fn of_way(&self, egress: &str) -> (usize, usize) {
        let out = self.out.lock();
        let out = out.values().filter(|of| of.egress() == Some(egress));
        (out.count(), self.lines.waiting_at(egress))
    }

    /// How many of a key are out through us, and how many wait here.
    pub(crate) fn of_key(&self, key: &Key) -> (usize, usize) {
        let out = self.out.lock();
        let has_key = |of: &&Claimed| of.limited.iter().any(|one| one.key == *key);
        let out = out.values().filter(has_key).count();
        (out, self.lines.waiting(key))
    }
}
