//! One picture of what is, for all who show it: page, `top`, `why`, limits and metrics. It is made when somebody asks and
//! there is none that is young enough, and it is read as a value. So two answers of one time say the same. A fresh one
//! takes the place of the one that is shared.
//!
//! What is used of limits is no part of it: the store says that at each question, of a moment of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::live::Live;
use super::named::Waiting;
use super::shadow::ShadowTally;
use super::{Sidecar, edges, whole};
use crate::bounds::{Counts, Level};
use crate::hold::{Amount, HeldLane, HeldNow};
use crate::limit::{Key, Space, Timestamp};
use crate::store::LedgerExt;
use crate::subqueues::ShownSubqueue;
use crate::told::causes::Cause;

/// Page, limits and metrics share one for so long at most.
pub(crate) const SHARED: Duration = Duration::from_secs(1);
/// `why` takes no older one: who has just set something asks it at once.
pub(crate) const YOUNG: Duration = Duration::from_millis(50);
/// One is shared for so many times as long as it took to make. So a small one is never old, and large ones cost a tenth
/// of a core at most.
const TIMES: u32 = 10;

/// The one that is shared.
#[derive(Default, Debug)]
pub(crate) struct SharedSnapshot {
    last: Mutex<Option<Arc<Snapshot>>>,
    /// Held from the first gauge that is set by it to the end of the page that shows them.
    pub(crate) page: parking_lot::Mutex<()>,
}

/// What is at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// When that is.
    pub(crate) at: Timestamp,
    /// What the config said.
    pub(crate) live: Arc<Live>,
    /// What is held, and how much may be.
    pub(crate) held: HeldNow,
    pub(crate) most: Amount,
    /// The queues of which something is known.
    pub(crate) queues: BTreeMap<Arc<str>, QueueNow>,
    unknown: QueueNow,
    /// How many single jobs are known to wait in the backend.
    pending: Waiting,
    /// What is wrong with the sidecar as a whole.
    pub(crate) causes: Vec<Cause>,
    /// What the entries that are tried would have done.
    pub(crate) shadow: BTreeMap<Arc<str>, ShadowTally>,
    pub(crate) store_up: bool,
    pub(crate) store_errors: u64,
    pub(crate) siblings: usize,
    pub(crate) backend_up: bool,
    begun: Instant,
    took: Duration,
}

/// What is known of a queue.
#[derive(Default, Debug)]
pub(crate) struct QueueNow {
    /// Whether the config names it.
    pub(crate) is_named: bool,
    /// Whether it is paused, as far as the backend and siblings said.
    pub(crate) is_paused: bool,
    /// Its jobs that are held, in hand included, and those that are being asked of the backend.
    pub(crate) held: usize,
    pub(crate) in_flight: usize,
    /// How many jobs are available in the backend, without those of its subqueues; `None`: nobody knows.
    pub(crate) available: Option<u64>,
    /// Where it stands, if it is bounded.
    pub(crate) level: Option<Level>,
    /// Whether it refused an enqueue lately although it was not full.
    pub(crate) is_refusing: bool,
    /// How many jobs wait in its subqueues, how many of these told no numbers, and what is known of each, the worst
    /// first; `None`: it has none.
    pub(crate) in_subqueues: Counts,
    pub(crate) untold: usize,
    pub(crate) subqueues: Option<Vec<ShownSubqueue>>,
}

impl SharedSnapshot {
    /// Forgets it when nobody has asked for a while.
    pub(crate) fn forget_unused(&self) {
        if let Ok(mut last) = self.last.try_lock() {
            last.take_if(|one| one.begun.elapsed() >= SHARED);
        }
    }

    /// Forgets it: what it shows is not there any more.
    pub(super) async fn clear(&self) {
        *self.last.lock().await = None;
    }
}

impl QueueNow {
    /// Its jobs that wait: those that are held here, and those that the backend has available.
    pub(crate) fn waiting(&self) -> u64 {
        self.held as u64 + self.available.unwrap_or(0) + self.in_subqueues.available
    }

    /// Whether it is known how many those are.
    pub(crate) fn tells_all(&self) -> bool {
        self.available.is_some() && self.untold == 0
    }

    /// Whether it is worth a row: it has limits or a bound, is paused, or has jobs that wait.
    pub(crate) fn is_shown(&self) -> bool {
        let has_jobs = self.held > 0 || self.available > Some(0);
        let is_bounded = self.level.is_some() || self.is_refusing;
        has_jobs || self.is_named || self.is_paused || is_bounded
    }

    /// Whether no job of it waits anywhere, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        let is_none_here = self.held + self.in_flight == 0;
        is_none_here
            && self.available == Some(0)
            && self.in_subqueues.available == 0
            && self.untold == 0
    }

    /// How many jobs of it and of its subqueues are available in the backend, as far as is known.
    fn in_backend(&self) -> Option<u64> {
        Some(self.available? + self.in_subqueues.available)
    }
}

impl Snapshot {
    /// The one that is shared, if it is no older than this, and of the settings in force; else a fresh one in its place.
    pub(crate) async fn of(sidecar: &Sidecar, age: Duration) -> Arc<Snapshot> {
        let mut shared = sidecar.snapshot.last.lock().await;
        let is_young = |one: &&Arc<Snapshot>| {
            let age = age.min(TIMES * one.took);
            one.begun.elapsed() < age && one.live.edition == sidecar.live().edition
        };
        if let Some(young) = shared.as_ref().filter(is_young) {
            return Arc::clone(young);
        }
        let fresh = Arc::new(Snapshot::take(sidecar).await);
        *shared = Some(Arc::clone(&fresh));
        fresh
    }

    async fn take(sidecar: &Sidecar) -> Snapshot {
        let (begun, at, store) = (Instant::now(), sidecar.store.now(), &sidecar.store);
        let live = sidecar.control.live.load_full();
        let most = sidecar.hold_most(&live.settings);
        let held = sidecar.hold.snapshot(at).await;
        Snapshot {
            queues: queues(sidecar, &live, &held, most),
            unknown: QueueNow::default(),
            pending: sidecar.control.named.pending(),
            causes: whole::of_sidecar(sidecar),
            shadow: sidecar.shadow.tallies(&live.policies).await,
            store_up: !store.is_lost(),
            store_errors: store.times_failed(),
            siblings: store.siblings(),
            backend_up: !sidecar.tasks.threads.backend_is_away(),
            took: begun.elapsed(),
            at,
            live,
            held,
            most,
            begun,
        }
    }

    /// What is known of a queue.
    pub(crate) fn queue(&self, name: &str) -> &QueueNow {
        self.queues.get(name).unwrap_or(&self.unknown)
    }

    /// How many jobs wait for a key: those that are held here, all jobs of the queues that the key covers, and in other
    /// queues those that are known to wait for it, of which some may have left unseen.
    pub(crate) fn waiting_for(&self, key: &Key) -> u64 {
        let held = self.held.limited_by(Space::Job, key);
        let mut waiting = held.map(|group| group.jobs as u64).sum();
        let covered: BTreeSet<&str> = self.live.policies.covered(key).collect();
        let pending = self.pending.get(key);
        for queue in &covered {
            let known = || pending.and_then(|queues| queues.get(*queue)).copied();
            let told = self.queue(queue).in_backend();
            waiting += told.or_else(known).unwrap_or(0);
        }
        let others = pending.into_iter().flatten();
        for (queue, jobs) in others.filter(|(queue, _)| !covered.contains(&***queue)) {
            waiting += self.queue(queue).in_backend().unwrap_or(*jobs).min(*jobs);
        }
        waiting
    }

    /// The job keys for which jobs may wait, as far as is known; some more than once.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = &Key> {
        let held = self.held.keys().filter(|(space, _)| *space == Space::Job);
        let held = held.map(|(_, key)| key);
        let covering = self.live.policies.covering();
        held.chain(self.pending.keys()).chain(covering)
    }

    /// Whether no other job waits for a key than those that are counted: each queue of those is the key's as a whole, or
    /// the backend has no other job of it.
    pub(crate) fn counts_all_of(&self, key: &Key) -> bool {
        let covered: BTreeSet<&str> = self.live.policies.covered(key).collect();
        let pending = self.pending.get(key);
        let queues: BTreeSet<&str> = self.held_in(key).map(|queue| &**queue).collect();
        let known = pending.into_iter().flatten().map(|(queue, _)| &**queue);
        let queues = queues.into_iter().chain(known);
        let mut queues = queues.chain(covered.iter().copied());
        queues.all(|queue| {
            let (here, known) = (self.queue(queue), pending.and_then(|of| of.get(queue)));
            let is_own = || here.in_backend() == Some(*known.unwrap_or(&0));
            here.tells_all() && (covered.contains(queue) || is_own())
        })
    }

    /// The queues of the held jobs that a key limits.
    pub(crate) fn held_in(&self, key: &Key) -> impl Iterator<Item = &Arc<str>> {
        let held = self.held.limited_by(Space::Job, key);
        held.map(|group| &group.queue)
    }

    /// The queues of the backend in which jobs may wait for a key.
    pub(crate) fn queues_of(&self, key: &Key) -> Vec<Arc<str>> {
        let covered = self.live.policies.covered(key).map(Arc::from);
        let pending = self.pending.get(key).into_iter();
        let pending = pending.flat_map(|queues| queues.keys().cloned());
        covered.chain(pending).collect()
    }
}

/// What is known of each queue.
fn queues(
    sidecar: &Sidecar,
    live: &Live,
    held: &HeldNow,
    most: Amount,
) -> BTreeMap<Arc<str>, QueueNow> {
    let mut all = BTreeMap::<Arc<str>, QueueNow>::new();
    for queue in live.policies.named_queues() {
        all.entry(Arc::from(queue)).or_default().is_named = true;
    }
    sidecar
        .fetching
        .backlogs
        .tell(|queue, available, is_paused| {
            let queue = all.entry(Arc::clone(queue)).or_default();
            (queue.available, queue.is_paused) = (available, is_paused);
        });
    for (queue, _) in sidecar.fetching.paused.since(|_| true) {
        all.entry(queue).or_default().is_paused = true;
    }
    for queue in held.queues() {
        let lanes = held.lanes(queue).iter();
        let sum = |(held, asked), lane: &HeldLane| (held + lane.held, asked + lane.in_flight);
        let (held, in_flight) = lanes.fold((0, 0), sum);
        // Anybody may ask for queues that are made up.
        if held + in_flight > 0 {
            let queue = all.entry(Arc::clone(queue)).or_default();
            (queue.held, queue.in_flight) = (held, in_flight);
        }
    }
    for queue in sidecar.admit.pressure.names() {
        let level = edges::tell_level(sidecar, &queue);
        all.entry(queue).or_default().level = level;
    }
    for queue in sidecar.admit.pressure.refusing(Instant::now()) {
        all.entry(queue).or_default().is_refusing = true;
    }
    for queue in sidecar.subqueues.read_queues() {
        let (name, subqueues) = (&queue.name, &sidecar.subqueues);
        let mut shown = subqueues.shown(name, &held.heads_in(name), most.jobs);
        shown.sort_by_key(|one| Reverse((one.out_of_reach, one.shared, one.waiting)));
        let queue = all.entry(Arc::clone(name)).or_default();
        queue.in_subqueues = subqueues.waiting(name);
        queue.untold = subqueues.untold(name);
        queue.subqueues = Some(shown);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::Proxy;
    use crate::store::Store;
    use crate::store::memory::MemoryStore;

    /// A large one is shared for long, but not beyond the end of what it shows.
    #[tokio::test]
    async fn one_that_is_young_is_shared_until_a_reset() {
        let proxy = Proxy::on(Store::from(Arc::new(MemoryStore::new(1_000_000))));
        let sidecar = &proxy.sidecar;
        let slow = Arc::new(Snapshot {
            took: Duration::from_secs(60),
            ..Snapshot::take(sidecar).await
        });
        *sidecar.snapshot.last.lock().await = Some(Arc::clone(&slow));
        let hour = Duration::from_secs(3_600);
        assert!(Arc::ptr_eq(&slow, &Snapshot::of(sidecar, hour).await));
        sidecar.clear().await;
        assert!(!Arc::ptr_eq(&slow, &Snapshot::of(sidecar, hour).await));
    }
}
