//! What is held, as a value, for those who only show it. They ask nothing else of the hold, so that a page with
//! thousands of keys costs FETCH a few short waits for the lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::held::Offer;
use super::lane::Lane;
use super::locked::Hold;
use super::places::{Amount, Filled};
use super::queue::{Group, Queue};
use ojs_limit::{Cost, Key, Limited, PolicyAndKey, Share, Space, Timestamp};
use ojs_policy::subqueue::Subqueue;
use ojs_store::{Claimed, Gen};

/// So many groups are copied at once: FETCH waits for no more.
const AT_ONCE: usize = 256;

/// What is held. The numbers of lanes are of one moment, and the groups were copied one after the other.
#[derive(Default, Debug)]
pub struct HeldNow {
    /// Jobs that are held, in hand included.
    pub jobs: usize,
    /// Their bytes.
    pub bytes: usize,
    filled: Filled,
    lanes: HashMap<Arc<str>, Vec<HeldLane>>,
    groups: Vec<HeldGroup>,
    by_key: HashMap<(Space, Key), SmallVec<[usize; 1]>>,
}

/// The jobs of one queue under one set of credentials. They may be none.
#[derive(Debug)]
pub struct HeldLane {
    /// The credentials that claimed its jobs.
    pub scope: u64,
    /// Its jobs that are held, in hand included.
    pub held: usize,
    /// Its jobs that are being asked of the backend.
    pub in_flight: usize,
    /// When a worker last asked for them.
    pub fetched_at: Instant,
    /// Those of the held that were claimed from subqueues.
    pub heads: usize,
    are_mixed: bool,
    /// Which of the groups are its own.
    groups: std::ops::Range<usize>,
}

/// Waiting jobs of a lane that are limited alike.
#[derive(Debug)]
pub struct HeldGroup {
    /// Their queue.
    pub queue: Arc<str>,
    /// The credentials that claimed them.
    pub scope: u64,
    /// The subqueue that they came from, if they came from one.
    pub subqueue: Option<Subqueue>,
    /// What limits each of them, as it is written, with what it pays and whose share it takes.
    pub limits: Arc<[Limited]>,
    /// How many they are.
    pub jobs: usize,
    are_heads: bool,
    refused_by: Option<PolicyAndKey>,
    may_start: bool,
}

/// What fills the places of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Front {
    /// How many jobs of the queue are held.
    pub held: usize,
    /// The keys that they wait for, and how many jobs wait for each, most first.
    pub keys: Vec<(PolicyAndKey, usize)>,
    /// Whether jobs were seen that had other keys than others of the queue.
    pub are_mixed: bool,
}

impl Hold {
    /// What is held now.
    pub async fn snapshot(&self, now: Timestamp) -> HeldNow {
        let (mut held, ids) = {
            let state = self.state();
            let ids = state.queues.iter().filter(|(_, queue)| queue.known > 0);
            let ids: Vec<_> = ids
                .map(|(lane, queue)| (lane.clone(), queue.groups.ids()))
                .collect();
            let mut lanes = HashMap::<_, Vec<HeldLane>>::new();
            for (lane, queue) in state.queues.iter() {
                let of_queue = lanes.entry(Arc::clone(&lane.queue)).or_default();
                of_queue.push(HeldLane::of(lane.scope, queue));
            }
            let filled = state.filled();
            let held = HeldNow {
                jobs: filled.jobs,
                bytes: filled.bytes,
                filled,
                lanes,
                ..HeldNow::default()
            };
            (held, ids)
        };
        for (lane, ids) in ids {
            let from = held.groups.len();
            for some in ids.chunks(AT_ONCE) {
                let next = held.groups.len();
                if let Some(queue) = self.state().queues.get(&lane) {
                    let groups = some.iter().filter_map(|id| queue.groups.get(*id));
                    let groups = groups.filter(|group| group.has_jobs());
                    let with_heads = queue.heads > 0;
                    let groups = groups.map(|group| HeldGroup::of(&lane, group, with_heads, now));
                    held.groups.extend(groups);
                }
                held.find_by_key(next);
                // Others of this thread have their turn too.
                tokio::task::yield_now().await;
            }
            self.add_offered(&mut held, &lane).await;
            let to = held.groups.len();
            let mut of_queue = held.lanes.get_mut(&lane.queue).into_iter().flatten();
            if let Some(of_lane) = of_queue.find(|one| one.scope == lane.scope) {
                of_lane.groups = from..to;
            }
        }
        let stuck = held.groups.len();
        let alone = |claimed| HeldGroup::of_one(claimed, None);
        held.groups.extend(self.state().stuck.values().map(alone));
        held.find_by_key(stuck);
        held
    }

    /// The jobs of a lane that are offered to siblings wait here until one has them.
    async fn add_offered(&self, held: &mut HeldNow, lane: &Lane) {
        let (begin, mut after) = (held.groups.len(), (Gen(0), Arc::default()));
        loop {
            let some: Vec<_> = {
                let state = self.state();
                let offers = state.offers_after(lane, &after).take(AT_ONCE);
                offers.map(HeldGroup::of_offer).collect()
            };
            let Some((last, _)) = some.last() else { break };
            after = last.clone();
            for (_, one) in some {
                let before = held.groups.get_mut(begin..).and_then(<[_]>::last_mut);
                match before.filter(|before| before.is_like(&one)) {
                    Some(before) => before.jobs += 1,
                    None => held.groups.push(one),
                }
            }
            tokio::task::yield_now().await;
        }
        held.find_by_key(begin);
    }

    /// Whether jobs fill what may be held of a queue. Those of its subqueues have places of their own.
    pub fn is_full(&self, queue: &str, most: Amount) -> bool {
        let state = self.state();
        let filled = state.filled();
        let mut lanes = state.queues.of_queue(queue);
        lanes.any(|lane| filled.is_full_with(most, lane.known.saturating_sub(lane.heads)))
    }
}

impl HeldLane {
    fn of(scope: u64, queue: &Queue) -> HeldLane {
        HeldLane {
            scope,
            held: queue.known,
            in_flight: queue.in_flight,
            fetched_at: queue.fetched_at,
            heads: queue.heads,
            are_mixed: queue.groups.are_mixed,
            groups: 0..0,
        }
    }

    /// Its jobs without those of subqueues.
    fn own(&self) -> usize {
        self.held.saturating_sub(self.heads)
    }
}

impl HeldGroup {
    fn of(lane: &Lane, group: &Group, with_heads: bool, now: Timestamp) -> HeldGroup {
        let mut jobs = group.jobs.iter();
        HeldGroup {
            queue: Arc::clone(&lane.queue),
            scope: lane.scope,
            limits: Arc::clone(&group.limits),
            jobs: group.jobs.len(),
            subqueue: (group.jobs.front().filter(|_| with_heads)).and_then(|held| held.subqueue),
            are_heads: with_heads && jobs.all(|held| held.subqueue.is_some()),
            refused_by: group.refused_by.clone(),
            may_start: group.may_start(now),
        }
    }

    /// An offered job by itself, with its claim.
    fn of_offer(Offer { held, .. }: &Offer) -> ((Gen, Arc<str>), HeldGroup) {
        (
            (held.claimed.generation, Arc::clone(&held.claimed.job)),
            HeldGroup::of_one(&held.claimed, held.subqueue),
        )
    }

    /// A job by itself.
    fn of_one(claimed: &Claimed, subqueue: Option<Subqueue>) -> HeldGroup {
        HeldGroup {
            queue: Arc::clone(&claimed.queue),
            scope: claimed.scope,
            subqueue,
            limits: Arc::clone(&claimed.limited),
            jobs: 1,
            are_heads: subqueue.is_some(),
            refused_by: None,
            may_start: false,
        }
    }

    /// Whether jobs of both are limited alike, and came from one place.
    fn is_like(&self, other: &HeldGroup) -> bool {
        self.limits == other.limits && self.subqueue == other.subqueue
    }

    /// The limit that has no room for them, if one has none.
    pub fn shut_by(&self) -> Option<&PolicyAndKey> {
        self.refused_by.as_ref().filter(|_| !self.may_start)
    }
}

impl HeldNow {
    /// Groups from this one on are found by their keys.
    fn find_by_key(&mut self, next: usize) {
        for (nth, group) in self.groups.iter().enumerate().skip(next) {
            for one in &*group.limits {
                let of_key = self.by_key.entry((one.space, one.key.clone())).or_default();
                if of_key.last() != Some(&nth) {
                    of_key.push(nth);
                }
            }
        }
    }

    /// The queues of which jobs are held or workers have asked.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<str>> {
        self.lanes.keys()
    }

    /// What is held of a queue, by the credentials with which it was asked for.
    pub fn lanes(&self, queue: &str) -> &[HeldLane] {
        self.lanes.get(queue).map_or(&[], Vec::as_slice)
    }

    fn groups_in(&self, queue: &str) -> impl Iterator<Item = &HeldGroup> {
        let lanes = self.lanes(queue).iter();
        lanes.flat_map(|lane| self.groups.get(lane.groups.clone()).unwrap_or_default())
    }

    /// The groups of jobs that a key limits.
    pub fn limited_by(&self, space: Space, key: &Key) -> impl Iterator<Item = &HeldGroup> {
        let of_key = self.by_key.get(&(space, key.clone()));
        let of_key = of_key.into_iter().flatten();
        of_key.filter_map(|nth| self.groups.get(*nth))
    }

    /// How many waiting jobs have a limit of which `matches` says so.
    pub fn waiting(&self, matches: impl Fn(&Limited) -> bool) -> usize {
        let groups = self.groups.iter();
        let groups = groups.filter(|group| group.limits.iter().any(&matches));
        groups.map(|group| group.jobs).sum()
    }

    /// The keys that limit jobs which are held.
    pub fn keys(&self) -> impl Iterator<Item = &(Space, Key)> {
        self.by_key.keys()
    }

    /// The limits of the jobs that wait in a queue, over all scopes: at most so many, those of most jobs first.
    pub fn limits_in(&self, queue: &str, most: usize) -> Vec<Arc<[Limited]>> {
        let mut groups: Vec<_> = self.groups_in(queue).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.jobs));
        let groups = groups.iter().take(most);
        groups.map(|group| Arc::clone(&group.limits)).collect()
    }

    /// The waiting jobs of a queue that were claimed from its subqueues, whichever credentials claimed them.
    pub fn heads_in(&self, queue: &str) -> Vec<&HeldGroup> {
        let groups = self.groups_in(queue);
        groups.filter(|group| group.subqueue.is_some()).collect()
    }

    /// The groups that share a key, what the next job of each costs, and how many are held.
    pub fn shares_of(&self, of: &Limited) -> Vec<(Share, Cost, usize)> {
        let mut found = BTreeMap::<&str, (Share, Cost, usize)>::new();
        for group in self.limited_by(of.space, &of.key) {
            let key = group.limits.iter().find(|one| one.shares_key(of));
            if let Some((key, share)) = key.and_then(|key| Some((key, key.share.as_ref()?))) {
                let known = || (share.clone(), key.cost.clone(), 0);
                found.entry(&*share.group).or_insert_with(known).2 += group.jobs;
            }
        }
        found.into_values().collect()
    }

    /// What fills the places of a queue, of which there are `most` in all; `None`: it has places left. Jobs of its
    /// subqueues have places of their own.
    pub fn front(&self, queue: &str, most: Amount) -> Option<Front> {
        let lanes = self.lanes(queue);
        if !(lanes.iter()).any(|lane| self.filled.is_full_with(most, lane.own())) {
            return None;
        }
        let mut keys = HashMap::<PolicyAndKey, usize>::new();
        for group in self.groups_in(queue).filter(|group| !group.are_heads) {
            let by = group.refused_by.clone();
            if let Some(by) = by.or_else(|| group.limits.last().map(Limited::names)) {
                *keys.entry(by).or_default() += group.jobs;
            }
        }
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by(|(a, jobs), (b, other)| other.cmp(jobs).then_with(|| a.2.cmp(&b.2)));
        Some(Front {
            held: lanes.iter().map(HeldLane::own).sum(),
            keys,
            are_mixed: lanes.iter().any(|lane| lane.are_mixed),
        })
    }
}
