//! Looks whether other sidecars limit the same jobs with a store of their own. Then each of them starts as much as a
//! limit allows, and together they start several times as much.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::adopt::{LimitedBefore, list_running};
use crate::limit::Timestamp;
use crate::proxy::Proxy;
use crate::store::{Claimed, LedgerExt, sidecar_of};

/// How often the backend's list of running jobs is looked at.
const EVERY: Duration = Duration::from_secs(20);
/// One look takes at most one part in so many of the time: a list may be long.
const SELDOM: u32 = 100;
/// Whoever shows signs of life for so long is no predecessor that ends, as in an update.
const TOGETHER: Duration = Duration::from_secs(60);
/// How often the log has the others.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// Looks now and then, where the store is this process's own.
pub(super) async fn look_for_unshared(proxy: &Proxy) {
    let sidecar = &proxy.sidecar;
    if sidecar.store.is_shared() {
        return;
    }
    let mut others = UnsharedSidecars::new(&sidecar.fetching.worker_id, sidecar.store.now());
    let mut warned: Option<Instant> = None;
    loop {
        sleep(EVERY).await;
        let (mut running, begun) = (Vec::new(), Instant::now());
        // Without a list nothing is known of others.
        let listed = list_running(proxy, &LimitedBefore::None, &mut running).await;
        if listed.is_ok() {
            let found = others.note_running(&running, sidecar.store.now());
            sidecar.metrics.unshared(found.len());
            let unshared = &sidecar.keeper.unshared;
            unshared.store(found.len(), Ordering::Relaxed);
            let is_due = warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
            if !found.is_empty() && is_due {
                warned = Some(Instant::now());
                tracing::warn!(
                    id = %"unshared_sidecars",
                    others = ?found,
                    "other sidecars start jobs of the same limits, and each has a store of its own: together they \
                     start several times as many as a limit allows; give all of them one store.url"
                );
            }
        }
        sleep(begun.elapsed() * SELDOM).await;
    }
}

/// What was seen of other sidecars.
struct UnsharedSidecars {
    own: Box<str>,
    began: Timestamp,
    /// The claims of others at the last look; `None`: there was none yet.
    known: Option<HashSet<(Arc<str>, Arc<str>)>>,
    /// When each first and last showed that it lives.
    lived: HashMap<Box<str>, (Instant, Instant)>,
}

impl UnsharedSidecars {
    fn new(own: &str, began: Timestamp) -> UnsharedSidecars {
        UnsharedSidecars {
            own: sidecar_of(own).unwrap_or(own).into(),
            began,
            known: None,
            lived: HashMap::new(),
        }
    }

    /// Notes what runs now. Gives those that have lived beside this sidecar for [`TOGETHER`], and live still.
    fn note_running(&mut self, running: &[Claimed], now: Timestamp) -> BTreeSet<Box<str>> {
        let (mut claims, mut alive) = (HashSet::new(), HashSet::new());
        for job in running {
            let Some(name) = sidecar_of(&job.claim_id).filter(|name| **name != *self.own) else {
                continue;
            };
            let claim = (job.job.clone(), job.claim_id.clone());
            let is_new = self
                .known
                .as_ref()
                .is_some_and(|known| !known.contains(&claim));
            // A claim that was there before this sidecar was may be a dead one's, whose job runs on.
            let is_kept =
                job.claimed_at > self.began && now.since(job.claimed_at) >= job.visibility;
            if is_new || is_kept {
                alive.insert(name);
            }
            claims.insert(claim);
        }
        let seen = Instant::now();
        for name in &alive {
            let lived = self.lived.entry((*name).into()).or_insert((seen, seen));
            lived.1 = seen;
        }
        self.known = Some(claims);
        // Not each look finds something new of each.
        self.lived.retain(|_, (_, last)| seen - *last < TOGETHER);
        let found = self
            .lived
            .iter()
            .filter(|(_, (first, last))| *last - *first >= TOGETHER);
        found.map(|(name, _)| name.clone()).collect()
    }
}
