//! What is known of all calls of this sidecar, and what the sweep does for those that are out.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::lines::{AskedBy, CallLines};
use crate::limit::{Key, Limited};
use crate::proxy::Sidecar;
use crate::proxy::rows::renew_rows;
use crate::store::{Change, End, LedgerExt as _, Row};
use crate::wire::upstream::Upstream;

/// The calls that wait here, and those that are out through us.
#[derive(Default, Debug)]
pub(in crate::proxy) struct Calling {
    /// Those that wait.
    pub(in crate::proxy) lines: Arc<CallLines>,
    /// The ids of those that are out, with their keys.
    pub(super) out: Mutex<HashMap<Arc<str>, Key>>,
    /// Cancelled when a drain has no limited job out any more, which may have to call: from then on no call starts.
    pub(in crate::proxy) closed: CancellationToken,
    /// The services behind the ways out, each over the connections of one thread.
    services: Mutex<Vec<(Arc<str>, Upstream)>>,
}

impl Calling {
    /// How many are out through us.
    pub(in crate::proxy) fn out(&self) -> usize {
        self.out.lock().len()
    }

    /// Calls of this way out go there. All threads know the same of whether it answers.
    pub(super) fn goes_to(&self, egress: &Arc<str>, service: &Upstream) {
        let mut services = self.services.lock();
        if services.iter().all(|(known, _)| known != egress) {
            services.push((Arc::clone(egress), service.clone()));
        }
    }

    /// Ends the outages of services that are over.
    pub(in crate::proxy) fn end_outages(&self) {
        for (_, service) in &*self.services.lock() {
            // Only calls of others ask it.
            let _goes_on = service.end_outage_if_over();
        }
    }

    /// The ways out, and whether the service behind each is away.
    pub(in crate::proxy) fn away(&self) -> Vec<(Arc<str>, bool)> {
        let services = self.services.lock();
        let each = services.iter();
        each.map(|(egress, service)| (Arc::clone(egress), service.is_away()))
            .collect()
    }

    /// A slot of these keys ended, or a start of theirs was undone: the first that wait for them ask again.
    pub(in crate::proxy) fn wake(&self, freed: &[Limited]) {
        self.lines
            .wake(freed.iter().map(|one| (one.space, &one.key)));
    }

    /// A job under these has started.
    pub(in crate::proxy) fn job_started(&self, limited: &[Limited]) {
        self.lines.started(AskedBy::Job, limited);
    }

    /// How many of a key are out through us, and how many wait here.
    pub(in crate::proxy) fn of_key(&self, key: &Key) -> (usize, usize) {
        let out = self.out.lock();
        let out = out.values().filter(|of| *of == key).count();
        (out, self.lines.waiting(key))
    }
}

/// Looks after the overdue rows of calls: those that live here go on for another lease, and others are over, because the
/// sidecar that had them does not look after them.
pub(in crate::proxy) async fn look_after(sidecar: &Sidecar, rows: Vec<Row>) {
    let now = sidecar.store.now();
    let mut renewed = Vec::new();
    for row in rows {
        let lives = sidecar.calling.out.lock().contains_key(&row.claimed.job);
        match row.due().filter(|_| lives) {
            Some(due) => {
                let until = due.moved_to(now.plus(row.claimed.visibility));
                renewed.push(Change::until(&row.claimed, until));
            }
            None => drop(sidecar.end_by(&End::of_claim(&row.claimed)).await),
        }
    }
    if !renewed.is_empty() {
        renew_rows(sidecar, renewed).await;
    }
}
