//! Looks whether other sidecars limit the same jobs with a store of their own. Then each of them starts as much as a
//! limit allows, and together they start several times as much.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use super::adopt::{LimitedBefore, list_running};
use crate::proxy::Proxy;
use crate::store::{Claimed, LedgerExt};

/// When it is looked first.
const FIRST: Duration = Duration::from_secs(60);
/// How often it is looked after that, and warned at most.
const EVERY: Duration = Duration::from_secs(600);
/// How the names of sidecars begin.
const NAMES: &str = "ojs-throttle-";

/// Looks now and then, where the store is this process's own.
pub(super) async fn look_for_unshared(proxy: &Proxy) {
    let sidecar = &proxy.sidecar;
    if sidecar.store.is_shared() {
        return;
    }
    let began = sidecar.store.now();
    sleep(FIRST).await;
    loop {
        let mut running = Vec::new();
        // Without a list nothing is known of others.
        if list_running(proxy, &LimitedBefore::None, &mut running)
            .await
            .is_ok()
        {
            let (own, now) = (&sidecar.fetching.worker_id, sidecar.store.now());
            // After a restart jobs run on that were claimed before, and nobody keeps those that a dead sidecar held.
            let is_kept = |job: &&Claimed| {
                job.claimed_at > began && now.since(job.claimed_at) >= job.visibility
            };
            let names = running.iter().filter(is_kept).map(|job| &job.claim_id);
            let others: BTreeSet<_> = names
                .filter(|name| name.starts_with(NAMES) && *name != own)
                .collect();
            sidecar.metrics.unshared(others.len());
            if !others.is_empty() {
                tracing::warn!(
                    id = %"unshared_sidecars",
                    ?others,
                    "other sidecars start jobs of the same limits, and each has a store of its own: together they \
                     start several times as many as a limit allows; give all of them one store.url"
                );
            }
        }
        sleep(EVERY).await;
    }
}
