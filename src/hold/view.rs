//! What is held, for those who only look.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::held::{Held, Offer};
use super::lane::Lane;
use super::locked::Hold;
use super::queue::Queue;
use super::state::{Known, Whereabouts};
use ojs_limit::{Limited, PolicyAndKey, Timestamp};
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
            groups.get(stand.group)?.scheduled_at(visibility, now)
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
        let group = state.queues.get(&known.lane)?.groups.get(stand.group)?;
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
        // Somebody has it who may be ending it in the backend.
        let is_leaving = |known: &Known| is_of(&known.lane) && (known.is_picked() || known.hide);
        moves.filter(|_| !state.jobs.values().any(is_leaving))
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
        let of_queue = state.queues.of_queue(name);
        of_queue.fold((0, 0), |(held, asked), queue| {
            (held + queue.known, asked + queue.in_flight)
        })
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
        let idle = queues.filter(|queue| queue.silent_for() >= idle);
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
        let first = (Gen(0), Arc::default());
        let offers = state.offers_after(lane, &first);
        let known = offers.filter(|offer| offer.is_known);
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
