//! What is held, for those who only look.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::held::{Held, Offer};
use super::lane::Lane;
use super::locked::Hold;
use super::places::Amount;
use super::queue::Queue;
use super::state::{Known, Whereabouts};
use ojs_limit::{Cost, Key, Limited, Limits, PolicyAndKey, Share, Space, Timestamp};
use ojs_policy::subqueue::Subqueue;
use ojs_store::{Claimed, Gen};

/// How many jobs of a queue are held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// All of them, in hand included.
    pub held: usize,
    /// Those of them that are seen as scheduled.
    pub scheduled: usize,
    /// Those of them that were claimed from subqueues.
    pub heads: usize,
}

/// What fills the places of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Front {
    /// How many jobs of the queue are held.
    pub held: usize,
    /// The keys that they wait for, and how many jobs wait for each, most first.
    pub keys: Vec<(PolicyAndKey, usize)>,
}

/// Held jobs of a subqueue that are limited alike.
#[derive(Clone, Debug)]
pub struct Heads {
    /// The credentials that claimed them.
    pub scope: u64,
    /// Where they came from.
    pub subqueue: Subqueue,
    /// How many they are.
    pub jobs: usize,
    /// What limits them.
    pub limits: Arc<[Limited]>,
    /// The limit that has no room for them, if one has none.
    pub shut_by: Option<PolicyAndKey>,
}

impl Hold {
    /// Jobs in the hold, in hand included.
    pub fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Jobs asked of the backend and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// The bytes of the jobs in the hold.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// How a held job is seen: its attempt as it was claimed (if shown), and when it is expected to start, if it
    /// is rescheduled. `None`: not held.
    pub fn seen(&self, job: &str, now: Timestamp) -> Option<(Option<u32>, Option<Timestamp>)> {
        let state = self.state();
        let known = state.jobs.get(job)?;
        let scheduled_at = || {
            let Whereabouts::Waiting(stand) = &known.whereabouts else {
                return None;
            };
            let groups = &state.queues.get(&known.lane)?.groups;
            let visibility = groups.job(*stand)?.claimed.visibility;
            groups.group_of(*stand)?.scheduled_at(visibility, now)
        };
        Some((known.attempt, scheduled_at()))
    }

    /// Whether the job is held, in hand included.
    pub fn has(&self, job: &str) -> bool {
        self.of_known(job, |_| true)
    }

    /// Whether the job is being asked for.
    pub fn is_in_hand(&self, job: &str) -> bool {
        self.of_known(job, Known::is_picked)
    }

    /// Whether this claim of a job is held, in hand included.
    pub fn has_claim(&self, job: &str, generation: Gen) -> bool {
        self.of_known(job, |known| known.generation == generation)
    }

    fn of_known(&self, job: &str, is: impl FnOnce(&Known) -> bool) -> bool {
        !self.is_empty() && self.state().jobs.get(job).is_some_and(is)
    }

    /// A job as it was claimed, unless it is in hand.
    pub fn claimed(&self, job: &str) -> Option<Claimed> {
        if self.is_empty() {
            return None;
        }
        let state = self.state();
        let held = state.find(job);
        held.map(|held| held.claimed.clone())
    }

    /// When one of the jobs may be asked for next, as far as is known.
    pub fn next_ask(&self) -> Option<Timestamp> {
        let state = self.state();
        let each = state.queues.values();
        each.filter_map(|queue| queue.groups.next_ask()).min()
    }

    /// The limit for which a job waits unasked, because others that are limited alike were refused.
    pub fn waits_behind(&self, job: &str) -> Option<PolicyAndKey> {
        let state = self.state();
        let known = state.jobs.get(job)?;
        let Whereabouts::Waiting(stand) = &known.whereabouts else {
            return None;
        };
        let group = state.queues.get(&known.lane)?.groups.group_of(*stand)?;
        group.refused.and(group.refused_by.clone())
    }

    /// How many held jobs each queue has under the scopes of which `sees` says so.
    pub fn tallies(&self, now: Timestamp, sees: impl Fn(u64) -> bool) -> HashMap<Arc<str>, Tally> {
        let state = self.state();
        let mut tallies: HashMap<Arc<str>, Tally> = HashMap::new();
        let lanes = state.queues.iter();
        for (lane, queue) in lanes.filter(|(lane, of)| of.known > 0 && sees(lane.scope)) {
            let tally = tallies.entry(lane.queue.clone()).or_default();
            tally.held += queue.known;
            tally.heads += queue.heads;
            let rescheduled = queue
                .all_groups()
                .filter(|group| group.rescheduled.is_some());
            for group in rescheduled {
                let later =
                    |held: &&Held| group.scheduled_at(held.claimed.visibility, now).is_some();
                tally.scheduled += group.jobs.iter().filter(later).count();
            }
        }
        tallies
    }

    /// How often jobs of a queue, or of any, have moved between the backend and the hold. While two answers are the same,
    /// none has moved. `None`: some may be on their way just now, claimed, given back or cancelled.
    pub fn moves(&self, queue: Option<&str>) -> Option<u64> {
        let state = self.state();
        let is_of = |lane: &Lane| queue.is_none_or(|name| *lane.queue == *name);
        let lanes = state.queues.iter().filter(|(lane, _)| is_of(lane));
        let moves = lanes.map(|(_, of)| (of.in_flight == 0).then_some(of.moved));
        let moves: Option<u64> = moves.sum();
        let on_their_way =
            (state.jobs.values()).any(|known| is_of(&known.lane) && known.may_be_leaving());
        moves.filter(|_| !on_their_way)
    }

    /// How many held jobs each queue has.
    pub fn counts(&self) -> HashMap<Arc<str>, usize> {
        let state = self.state();
        let mut counts: HashMap<Arc<str>, usize> = HashMap::new();
        for (lane, queue) in state.queues.iter().filter(|(_, queue)| queue.known > 0) {
            *counts.entry(lane.queue.clone()).or_default() += queue.known;
        }
        counts
    }

    /// How many jobs of a queue are held, over all scopes, and how many are being asked of the backend.
    pub fn of_queue(&self, name: &str) -> (usize, usize) {
        let state = self.state();
        if state.jobs.is_empty() && state.in_flight == 0 {
            return (0, 0);
        }
        let of_queue = state.queues.of_queue(name);
        of_queue.fold((0, 0), |(held, asked), queue| {
            (held + queue.known, asked + queue.in_flight)
        })
    }

    /// The limits of held jobs of which `is` says so.
    pub fn limits_of(&self, is: impl Fn(&Limited) -> bool) -> Vec<Limits> {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        let limited = groups.flat_map(|group| &*group.limits);
        let those = limited.filter(|one| is(one));
        those.map(|one| one.limits.clone()).collect()
    }

    /// How many waiting jobs a key limits, for `waiting_count`.
    pub fn waiting_for(&self, space: Space, key: &Key) -> usize {
        let (state, key) = (self.state(), (space, key.clone()));
        let queues = state.queues.values();
        let groups = queues.flat_map(|queue| queue.groups.limited_by(&key));
        groups.map(|group| group.jobs.len()).sum()
    }

    /// How many waiting jobs have a limit of which `matches` says so.
    pub fn waiting(&self, matches: impl Fn(&Limited) -> bool) -> usize {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        groups
            .filter(|group| group.limits.iter().any(&matches))
            .map(|group| group.jobs.len())
            .sum()
    }

    /// The limits of the jobs that wait in a queue, over all scopes, those of most jobs first.
    pub fn limits_in(&self, queue: &str) -> Vec<Arc<[Limited]>> {
        let state = self.state();
        let groups = state.queues.of_queue(queue).flat_map(Queue::all_groups);
        let mut busy: Vec<_> = groups.filter(|group| !group.jobs.is_empty()).collect();
        busy.sort_by_key(|group| Reverse(group.jobs.len()));
        busy.iter().map(|group| group.limits.clone()).collect()
    }

    /// The waiting jobs of a queue that were claimed from its subqueues, whichever credentials claimed them.
    pub fn heads_in(&self, queue: &str, now: Timestamp) -> Vec<Heads> {
        let state = self.state();
        let lanes = state.queues.of_queue(queue).filter(|lane| lane.heads > 0);
        let heads = lanes.flat_map(Queue::all_groups).filter_map(|group| {
            let first = group.jobs.front()?;
            Some(Heads {
                scope: first.claimed.scope,
                subqueue: first.subqueue?,
                jobs: group.jobs.len(),
                limits: Arc::clone(&group.limits),
                shut_by: (group.refused_by.clone()).filter(|_| !group.may_start(now)),
            })
        });
        heads.collect()
    }

    /// The groups that share a key, what the next job of each costs, and how many are held.
    pub fn groups_of(&self, is: impl Fn(&Limited) -> bool) -> Vec<(Share, Cost, usize)> {
        let state = self.state();
        let mut found = BTreeMap::<Arc<str>, (Share, Cost, usize)>::new();
        for group in state.queues.values().flat_map(Queue::all_groups) {
            let first = group.jobs.front();
            let key = first.and_then(|held| held.written.iter().find(|one| is(one)));
            if let Some((key, share)) = key.and_then(|key| Some((key, key.share.as_ref()?))) {
                let name = Arc::clone(&share.group);
                let known = || (share.clone(), key.cost.clone(), 0);
                found.entry(name).or_insert_with(known).2 += group.jobs.len();
            }
        }
        found.into_values().collect()
    }

    /// How many held jobs of which `is` says so leave before this one, as far as priority and age say, and the turns of
    /// groups that share a key by weight.
    pub fn count_before(&self, job: &str, is: impl Fn(&Limited) -> bool) -> usize {
        let state = self.state();
        let Some(this) = state.find(job) else {
            return 0;
        };
        let rank = |held: &Held| (Reverse(held.claimed.priority), held.place);
        let all = state.queues.values().flat_map(Queue::all_groups);
        let same = all.filter(|group| group.limits.iter().any(&is));
        let jobs = same.flat_map(|group| &group.jobs);
        let Some(turns) = state.turns_before(this) else {
            return jobs.filter(|held| rank(held) < rank(this)).count();
        };
        turns + jobs.filter(|held| rank(held).0 < rank(this).0).count()
    }

    /// Whether jobs fill what may be held of a queue, some of them for a key of which `is` says so. Those of its subqueues
    /// have places of their own.
    pub fn is_full_of(
        &self,
        queue: &str,
        most: Amount,
        is: impl Fn(&PolicyAndKey) -> bool,
    ) -> bool {
        let state = self.state();
        let is_full = |lane: &Queue| {
            let held = lane.known.saturating_sub(lane.heads);
            held > 0 && state.share(most, 0, held) == 0
        };
        let mut lanes = state.queues.of_queue(queue);
        // Most groups wait for such a key, so that this is no walk over all of them.
        state.queues.of_queue(queue).any(is_full)
            && lanes.any(|lane| in_front(lane).any(|(by, jobs)| jobs > 0 && is(&by)))
    }

    /// Whether jobs of a queue were held here that had other keys than others of it.
    pub fn saw_other_keys(&self, queue: &str) -> bool {
        let state = self.state();
        let mut lanes = state.queues.of_queue(queue);
        lanes.any(|lane| lane.groups.are_mixed)
    }

    /// What fills the places of a queue: a walk over all that is held of it.
    pub fn front(&self, queue: &str) -> Front {
        let state = self.state();
        let mut held = 0;
        let mut keys = HashMap::<PolicyAndKey, usize>::new();
        for lane in state.queues.of_queue(queue) {
            held += lane.known.saturating_sub(lane.heads);
            for (by, jobs) in in_front(lane) {
                *keys.entry(by).or_default() += jobs;
            }
        }
        let mut keys: Vec<_> = keys.into_iter().filter(|(_, jobs)| *jobs > 0).collect();
        keys.sort_by(|(a, jobs), (b, other)| other.cmp(jobs).then_with(|| a.2.cmp(&b.2)));
        Front { held, keys }
    }

    /// For each set of credentials with which workers asked lately, or jobs are held: how many jobs of the queue are
    /// held, and how long ago a worker asked with them.
    pub fn by_credentials(&self, queue: &str) -> Vec<(usize, Duration)> {
        let state = self.state();
        let lanes = state.queues.iter();
        let lanes = lanes.filter(|(lane, _)| *lane.queue == *queue);
        lanes
            .map(|(_, of)| (of.known, of.fetched_at.elapsed()))
            .collect()
    }

    /// How many jobs of a queue are known that were claimed from its subqueues.
    pub fn heads(&self, queue: &str) -> usize {
        let state = self.state();
        state.queues.of_queue(queue).map(|lane| lane.heads).sum()
    }

    /// The claims of waiting jobs that are over, of lanes that no worker has asked for since then.
    pub fn lapsed(&self, since: Instant) -> Vec<Claimed> {
        let (state, now) = (self.state(), Instant::now());
        let queues = state.queues.values();
        let unwanted = queues.filter(|queue| !queue.is_wanted(since));
        let lapsed = (unwanted.flat_map(Queue::jobs)).filter(|held| held.proof.deadline <= now);
        lapsed.map(|held| held.claimed.clone()).collect()
    }

    /// Whether a held job's claim can no longer be counted on.
    pub fn is_past_deadline(&self, job: &str) -> bool {
        let state = self.state();
        let held = state.find(job);
        held.is_some_and(|held| held.proof.deadline <= Instant::now())
    }

    /// All that is held is to be named to the store once more: a sibling may have taken it for running.
    pub fn unname_all(&self) {
        let mut state = self.state();
        state.unnamed = state.jobs.keys().cloned().collect();
    }

    /// The waiting jobs whose limits are of an earlier edition of the policies.
    pub fn before(&self, edition: u64) -> Vec<Held> {
        let state = self.state();
        let groups = state.queues.values().flat_map(Queue::all_groups);
        let early = groups.filter(|group| group.edition < edition);
        early.flat_map(|group| &group.jobs).cloned().collect()
    }

    /// The waiting jobs of lanes that no worker has asked for in so long: siblings may have a worker for them.
    pub fn unwanted(&self, idle: Duration) -> Vec<Claimed> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state();
        let queues = state.queues.values();
        let idle = queues.filter(|queue| queue.fetched_at.elapsed() >= idle);
        let waiting = idle.flat_map(Queue::jobs);
        waiting.map(|held| held.claimed.clone()).collect()
    }

    /// The offers of which the store has not said that it knows them: it is asked again.
    pub fn untold_offers(&self) -> Vec<Claimed> {
        self.offers_that(|offer| !offer.is_known)
    }

    /// At most so many jobs of a lane of which the store knows that they are offered, those first that were claimed
    /// first.
    pub fn offers_of(&self, lane: &Lane, most: usize) -> Vec<Claimed> {
        if !self.has_offers() {
            return Vec::new();
        }
        let state = self.state();
        let known = state.offers_of(lane).filter(|offer| offer.is_known);
        let claims = known.map(|offer| offer.held.claimed.clone());
        claims.take(most).collect()
    }

    /// All jobs of which the store knows that they are offered, those first that were claimed first.
    pub fn all_offers(&self) -> Vec<Claimed> {
        self.offers_that(|offer| offer.is_known)
    }

    /// The offered jobs whose claims can no longer be counted on.
    pub fn lapsed_offers(&self) -> Vec<Claimed> {
        let now = Instant::now();
        self.offers_that(|offer| offer.held.proof.deadline <= now)
    }

    fn offers_that(&self, is: impl Fn(&Offer) -> bool) -> Vec<Claimed> {
        if !self.has_offers() {
            return Vec::new();
        }
        let state = self.state();
        let offers = state.offers().filter(|offer| is(offer));
        let mut claims: Vec<Claimed> = offers.map(|offer| offer.held.claimed.clone()).collect();
        claims.sort_by_key(|claimed| claimed.generation);
        claims
    }
}

/// What the jobs of a lane wait for, group by group, but for those of subqueues alone.
fn in_front(lane: &Queue) -> impl Iterator<Item = (PolicyAndKey, usize)> {
    let own = lane.all_groups().filter(|group| {
        let mut jobs = group.jobs.iter();
        !jobs.all(|held| held.subqueue.is_some())
    });
    own.filter_map(|group| {
        let by = group.refused_by.clone();
        let by = by.or_else(|| group.limits.last().map(Limited::names));
        Some((by?, group.jobs.len()))
    })
}
