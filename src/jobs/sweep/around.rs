//! Looks now and then whether limits are evaded: by sidecars with stores of their own, by workers that ask the backend
//! itself, and by entries whose queue nobody uses. A limit that is not in force must not look healthy.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::unshared::{Lived, TOGETHER, UnsharedSidecars};
use crate::admit::depth;
use crate::desk::adoption::Listing;
use crate::desk::{Live, Proxy, Sidecar};
use crate::inquiry::adopt::{list_all_running, never_limits};
use crate::policy::{Pattern, Policy, nearest};
use crate::store::{Claimed, LedgerExt, NAMES, sidecar_of};
use crate::told::causes::{self, Cause, quoted};
use crate::told::metrics::StartKind;

/// How often the backend's list of running jobs is looked at.
const EVERY: Duration = Duration::from_secs(20);
/// When it is looked at first.
const FIRST: Duration = Duration::from_secs(1);
/// One look takes at most one part in so many of the time: a list may be long.
const SELDOM: u32 = 100;
/// After so many looks without an answer what was seen before is told no more.
const IN_VAIN: u32 = 3;
/// How often the log has the same again.
const WARN_EVERY: Duration = Duration::from_secs(600);
/// A policy that has limited no job for so long is told of.
const UNMATCHED_FOR: Duration = Duration::from_secs(3_600);
/// A policy that counts calls is told of if so many of its jobs have started, and no call came for so long.
const UNSEEN_JOBS: u64 = 20;
const UNSEEN_FOR: Duration = Duration::from_secs(600);
/// Of so many jobs the store is asked in one look.
const AT_ONCE: usize = 64;
/// So many queues or workers are named in a sentence.
const NAMED: usize = 5;

/// Names of workers, by queue.
type WorkersByQueue = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// Looks until it is dropped.
pub(super) async fn look_for_evaded(proxy: &Proxy) {
    let sidecar = &proxy.sidecar;
    let own = &sidecar.fetching.worker_id;
    let mut sidecars = UnsharedSidecars::new(own, sidecar.store.now());
    let mut workers = WorkersAround::default();
    let mut entries = UnusedEntries::new(sidecar);
    let [mut warned_of_sidecars, mut warned_of_workers] = [WarnedAt::default(); 2];
    sleep(FIRST).await;
    note_before(proxy, &mut workers).await;
    sleep(EVERY.saturating_sub(FIRST)).await;
    let mut in_vain = 0;
    loop {
        let (mut running, begun) = (Vec::new(), Instant::now());
        let limits = !never_limits(&sidecar.live());
        if limits {
            let _listing = Listing::begin(&sidecar.keeper.adoption);
            // Without a list nothing is known of others.
            let listed = list_all_running(proxy, &mut running).await;
            in_vain += 1;
            if listed.is_ok() {
                in_vain = 0;
                if !sidecar.store.is_shared() {
                    let found = sidecars.note_running(&running, sidecar.store.now());
                    tell_unshared(sidecar, &found, &mut warned_of_sidecars);
                }
                let found = workers.note_running(sidecar, &running).await;
                tell_workers(sidecar, &found, &mut warned_of_workers);
            }
        }
        // What runs by now runs without limits; or the backend tells no more what runs, and what it told is old.
        if !limits || in_vain == IN_VAIN {
            workers = WorkersAround::default();
            tell_unshared(sidecar, &BTreeSet::new(), &mut warned_of_sidecars);
            tell_workers(sidecar, &WorkersByQueue::new(), &mut warned_of_workers);
        }
        entries.look(proxy).await;
        sleep(EVERY + begun.elapsed() * SELDOM).await;
    }
}

/// Notes what runs at the start. What workers get around us later is not among it.
async fn note_before(proxy: &Proxy, workers: &mut WorkersAround) {
    let mut running = Vec::new();
    if !never_limits(&proxy.sidecar.live()) {
        let listed = list_all_running(proxy, &mut running).await;
        if listed.is_ok() {
            workers.note_running(&proxy.sidecar, &running).await;
        }
    }
}

/// When the log last had something.
#[derive(Clone, Copy, Default)]
pub(super) struct WarnedAt(Option<Instant>);

impl WarnedAt {
    /// Whether the log is to have it now.
    pub(super) fn note_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

fn tell_unshared(sidecar: &Sidecar, found: &BTreeSet<Box<str>>, warned: &mut WarnedAt) {
    (sidecar.metrics).set("ojs_throttle_unshared_sidecars", &[], found.len());
    let unshared = &sidecar.keeper.unshared;
    unshared.store(found.len(), Ordering::Relaxed);
    if !found.is_empty() && warned.note_due() {
        tracing::warn!(
            id = %"unshared_sidecars",
            others = ?found,
            "other sidecars start jobs of the same limits, and each has a store of its own: together they \
             start several times as many as a limit allows; give all of them one store.url"
        );
    }
}

fn tell_workers(sidecar: &Sidecar, found: &WorkersByQueue, warned: &mut WarnedAt) {
    let workers: BTreeSet<&Arc<str>> = found.values().flatten().collect();
    (sidecar.metrics).set("ojs_throttle_workers_around", &[], workers.len());
    let listed = |names: Vec<&Arc<str>>| {
        let named = names.iter().take(NAMED).map(|name| quoted(name));
        let others = (names.len() > NAMED).then(|| "others".to_owned());
        named.chain(others).collect::<Vec<_>>().join(", ")
    };
    let cause = (!found.is_empty()).then(|| {
        let queues = listed(found.keys().collect());
        let workers = listed(workers.iter().copied().collect());
        causes::around(&queues, &workers)
    });
    if cause.is_some() && warned.note_due() {
        tracing::warn!(
            id = %"workers_around",
            queues = ?found.keys().collect::<Vec<_>>(),
            workers = ?workers,
            "workers get jobs of limited queues from the backend itself, and no limit holds for those jobs: give \
             these workers the sidecar's address"
        );
    }
    *sidecar.keeper.evaded.workers.lock() = cause;
}

/// What was seen of workers that get limited jobs from the backend itself.
#[derive(Default)]
struct WorkersAround {
    /// The claims that ran at the first look and run still: workers may have had those before there were limits.
    before: Option<HashSet<(Arc<str>, Arc<str>)>>,
    /// The queues of which such workers had jobs.
    lived: Lived,
    /// Which workers had them last.
    last: WorkersByQueue,
}

impl WorkersAround {
    /// Notes what runs now. Gives the queues of which workers have got jobs so for [`TOGETHER`], and do still.
    async fn note_running(&mut self, sidecar: &Sidecar, running: &[Claimed]) -> WorkersByQueue {
        let claim = |one: &Claimed| (one.job.clone(), one.claim_id.clone());
        let Some(before) = &mut self.before else {
            self.before = Some(running.iter().map(claim).collect());
            return WorkersByQueue::new();
        };
        let still: HashSet<_> = running.iter().map(claim).collect();
        before.retain(|one| still.contains(one));
        let foreign = running.iter().filter(|one| {
            let is_ours = sidecar_of(&one.claim_id).is_some()
                || one.claim_id.starts_with(&*sidecar.fetching.worker_id);
            !is_ours && !before.contains(&claim(one))
        });
        let mut now = WorkersByQueue::new();
        for one in foreign.take(AT_ONCE) {
            if is_around(sidecar, one).await {
                let workers = now.entry(one.queue.clone()).or_default();
                workers.insert(match &*one.claim_id {
                    "" => Arc::from("unnamed"),
                    _ => one.claim_id.clone(),
                });
            }
        }
        let lived = self.lived.note(now.keys().map(|queue| &**queue));
        self.last.extend(now);
        self.last.retain(|queue, _| lived.contains(&**queue));
        self.last.clone()
    }
}

/// Whether a job that runs under no sidecar's name has come to its worker past all sidecars.
async fn is_around(sidecar: &Sidecar, one: &Claimed) -> bool {
    // The sidecars of one store claim what an entry limits under their own names, and begin these alike. What they claim
    // under a worker's has a row, or one of them holds it.
    let is_named = sidecar.fetching.worker_id.starts_with(NAMES) && !one.claim_id.is_empty();
    let claims_tell = is_named && !sidecar.live().policies.gate(&one.queue).open();
    let may_be_theirs = !claims_tell && sidecar.store.siblings() > 0;
    !may_be_theirs
        && matches!(sidecar.store.row(&one.job).await, Ok(None))
        && !sidecar.hold.has(&one.job)
        && !sidecar.keeper.adoption.has_ended(&one.job)
}

/// What was seen of entries that limit nothing, under one edition of the policies.
struct UnusedEntries {
    edition: u64,
    since: Instant,
    /// Whether the log has the policies that limited no job.
    is_told: bool,
    /// Whether it has those whose calls do not come.
    has_unseen: bool,
}

impl UnusedEntries {
    fn new(sidecar: &Sidecar) -> UnusedEntries {
        UnusedEntries {
            edition: sidecar.live().edition,
            since: Instant::now(),
            is_told: false,
            has_unseen: false,
        }
    }

    async fn look(&mut self, proxy: &Proxy) {
        let (sidecar, live) = (&proxy.sidecar, proxy.sidecar.live());
        if self.edition != live.edition {
            *self = UnusedEntries::new(sidecar);
        }
        let found = match self.since.elapsed() >= TOGETHER {
            true => slips(&live, &queues_of_backend(proxy).await),
            false => Vec::new(),
        };
        let known = std::mem::replace(&mut *sidecar.keeper.evaded.slips.lock(), found.clone());
        for new in &found {
            if !known.iter().any(|known| known.why == new.why) {
                tracing::warn!(id = %"queue_unused", "{}", new.why);
            }
        }
        let is_due = self.since.elapsed() >= UNMATCHED_FOR;
        let unmatched = live.policies.unmatched().filter(|_| is_due);
        let unmatched: Vec<&str> = unmatched.map(|policy| &*policy.name).collect();
        (sidecar.metrics).set("ojs_throttle_unmatched_policies", &[], unmatched.len());
        if !unmatched.is_empty() && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                id = %"policies_unmatched",
                policies = ?unmatched,
                "no job has come under these policies for an hour, so they limit nothing: look at their match and \
                 key, and whether workers ask the sidecar"
            );
        }
        let unseen = match self.since.elapsed() >= UNSEEN_FOR {
            true => calls_unseen(sidecar, &live),
            false => Vec::new(),
        };
        if !unseen.is_empty() && !std::mem::replace(&mut self.has_unseen, true) {
            tracing::warn!(
                id = %"calls_unseen",
                policies = ?unseen,
                "jobs of these policies start, and none of their calls comes, which alone count: give the SDKs in the \
                 workers the address of the [[egress]]"
            );
        }
    }
}

/// The policies that count calls in place of jobs, of which jobs have started and no call has come.
fn calls_unseen<'l>(sidecar: &Sidecar, live: &'l Live) -> Vec<&'l str> {
    let starts = |kind, policy: &Arc<str>| sidecar.metrics.starts_of(kind, policy);
    let is_unseen = |policy: &&Policy| {
        let ways = live.settings.egress.iter();
        let ways = ways.filter(|way| way.key.has_form_of(&policy.key));
        // Calls count under the names of what limits them.
        let mut names = ways.flat_map(|way| &way.limits).map(|(name, ..)| name);
        starts(StartKind::Job, &policy.name) >= Some(UNSEEN_JOBS)
            && !names.any(|name| starts(StartKind::Call, name).is_some())
    };
    let policies = live.policies.policies().iter();
    let by_calls = policies.filter(|policy| policy.prices.by_calls);
    let unseen = by_calls.filter(is_unseen);
    unseen.map(|policy| &*policy.name).collect()
}

/// The names of the queues that the backend has; none where it does not tell all of them.
async fn queues_of_backend(proxy: &Proxy) -> Vec<String> {
    let page = depth::list_queues(proxy, "?limit=1000").await;
    let names = page.filter(|page| !page.has_more).map(|page| page.names);
    let subqueues = &proxy.sidecar.subqueues;
    let names = names.into_iter().flatten();
    names
        .map(|name| subqueues.base_of(&name).to_owned())
        .collect()
}

/// The entries that name only queues which are not among those `used`, where one of those is near and has no limits.
fn slips(live: &Live, used: &[String]) -> Vec<Cause> {
    let policies = &live.policies;
    let limited = policies.queues().iter().map(|entry| &entry.name);
    let bounded = live.settings.bounds.entries.iter().map(|(name, _)| name);
    let mut entries: Vec<&Pattern> = limited.chain(bounded).collect();
    entries.sort_by_key(|name| name.as_str());
    entries.dedup();
    let is_free = |queue: &&String| {
        policies.gate(queue).open() && !entries.iter().any(|entry| entry.matches(queue))
    };
    let free: Vec<&String> = used.iter().filter(is_free).collect();
    let of_policies = policies.unmatched().map(|policy| {
        let entry = format!("policy {}", quoted(&policy.name));
        (entry, policy.matching.queue.iter().collect::<Vec<_>>())
    });
    let of_queues = (entries.iter()).map(|entry| ("a [[queue]]".to_owned(), vec![*entry]));
    let is_used = |queue: &Pattern| queue.is_glob() || used.iter().any(|used| queue.matches(used));
    let mut found = Vec::new();
    for (entry, queues) in of_policies.chain(of_queues) {
        if queues.iter().any(|queue| is_used(queue)) {
            continue;
        }
        for queue in queues {
            if let Some(near) = nearest(queue.as_str(), free.iter().map(|free| free.as_str())) {
                found.push(causes::unused(&entry, queue.as_str(), near));
            }
        }
    }
    found
}
