//! What a FETCH asks of the hold while its worker is here: what waits, what may be claimed, and to be woken.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::lane::Lane;
use super::line::Waiter;
use super::locked::Hold;
use super::prospect::Prospect;
use super::queue::Queue;
use super::refusal::Wakes;
use ojs_limit::{Limited, PolicyAndKey, Timestamp};
use ojs_policy::Gate;
use ojs_policy::subqueue::Subqueue;
use ojs_store::Claimed;

/// A worker is here and asks for jobs of some lanes. When this is dropped it leaves, and the first who waits looks at
/// what it has left.
#[derive(Debug)]
pub struct Visit {
    hold: Arc<Hold>,
    lanes: SmallVec<[Lane; 1]>,
    began: Wakes,
    /// Its place in the lines of its lanes, and since when it waits there.
    waits: Option<(Waiter, Instant)>,
}

/// One lane, as a FETCH sees it.
#[derive(Clone, Default, Debug)]
pub struct LaneView {
    /// Whether some of its jobs are held or in hand.
    pub is_held: bool,
    /// Whether none is, but some that other credentials claimed of the queue are.
    pub is_held_for_others: bool,
    /// How many of its jobs may be asked for.
    pub askable: usize,
    /// Whether the backend must be asked before a held job goes out: the lane has shown a higher priority than the best
    /// that is held here.
    pub is_outranked: bool,
    /// Whether and when a job could start by itself.
    pub prospect: Prospect,
    /// The limit that the jobs wait for that are expected to start first.
    pub waits_for: Option<PolicyAndKey>,
    /// Whether the backend has no more jobs than it gave, as far as its last answer tells.
    pub is_exhausted: bool,
    /// When the backend was last asked for jobs.
    pub asked_at: Option<Instant>,
    /// The highest priority that is held here, whether or not it may be asked for.
    pub best: Option<i32>,
    /// The bytes of all that is held, of other lanes too.
    pub bytes: usize,
}

/// What the room of a queue's own limits is promised to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Promise {
    /// How many jobs of the queue wait for nothing else, over all scopes, with those that are being asked of the backend.
    pub jobs: usize,
    /// Whether one of them, of the lane, was refused and may not be asked for yet: then there is no room for another
    /// either, and the store need not be asked.
    pub is_refused: bool,
}

/// The jobs of one subqueue that are held.
#[derive(Clone, Debug)]
pub struct HeldOfSubqueue {
    /// How many wait.
    pub jobs: usize,
    /// Whether one of them was refused, and may not be asked for yet.
    pub is_refused: bool,
    /// Whether it was the key that they share by weight which refused it.
    pub waits_for_turn: bool,
    /// What limits one of them.
    pub limits: Arc<[Limited]>,
}

/// Claims that are being told to the store, in the order in which they were made. Those of which it has not heard when
/// this is dropped are to be told again.
#[derive(Debug)]
pub struct Unnamed {
    hold: Arc<Hold>,
    /// Those of which it has not heard so far.
    pub claims: Vec<Claimed>,
}

impl Hold {
    /// A worker asks for jobs of these lanes, each with what its queue's name says.
    pub fn visit<'a>(
        self: &Arc<Hold>,
        lanes: impl Iterator<Item = (&'a Lane, &'a Gate)>,
        now: Instant,
    ) -> Visit {
        let mut state = self.state();
        let asks = |(lane, gate): (&Lane, &Gate)| {
            let queue = state.queues.open(lane, now);
            queue.fetched_at = now;
            if !queue.gate.is(gate) {
                queue.gate = gate.clone();
            }
            lane.clone()
        };
        Visit {
            lanes: lanes.map(asks).collect(),
            began: state.wakes(),
            hold: Arc::clone(self),
            waits: None,
        }
    }

    /// What a FETCH has to know of a lane, all at one moment. It counts no more than `most` jobs that may be asked for.
    pub fn look(&self, lane: &Lane, most: usize, now: Timestamp) -> LaneView {
        let state = self.state();
        let queue = state.queues.get(lane);
        let is_held = queue.is_some_and(|queue| queue.known > 0);
        let mut all = state.queues.of_queue(&lane.queue);
        let seen = LaneView {
            is_held,
            is_held_for_others: !is_held && all.any(|queue| queue.known > 0),
            bytes: state.bytes,
            ..LaneView::default()
        };
        let Some(queue) = queue else {
            return seen;
        };
        let (first, starts) = (queue.groups.first(), queue.groups.next_starts());
        let next = starts.into_iter().flatten().next();
        LaneView {
            askable: queue.groups.count_askable(most, now),
            is_outranked: first.is_some_and(|group| queue.highest > Some(group.priority)),
            prospect: queue.prospect(starts),
            waits_for: next.and_then(|group| group.refused_by.clone()),
            is_exhausted: queue.is_exhausted,
            asked_at: queue.asked_at,
            best: first.map(|group| group.priority),
            ..seen
        }
    }

    /// What the room of a queue's own limits, which are the gate's, is promised to.
    pub fn promise(&self, lane: &Lane, gate: &Gate, now: Timestamp) -> Promise {
        let (state, few) = (self.state(), gate.limited.len());
        let promised = state.queues.of_queue(&lane.queue).map(|queue| {
            let groups = queue.groups.of_few_limits(few);
            queue.in_flight + groups.map(|group| group.jobs.len()).sum::<usize>()
        });
        let own = state.holding(lane).into_iter();
        let mut own = own.flat_map(|queue| queue.groups.of_few_limits(few));
        Promise {
            jobs: promised.sum(),
            is_refused: own.any(|group| group.has_jobs() && !group.may_ask(now)),
        }
    }

    /// The waiting jobs of a lane that were claimed from subqueues.
    pub fn of_subqueues(&self, lane: &Lane, now: Timestamp) -> HashMap<Subqueue, HeldOfSubqueue> {
        let state = self.state();
        let queue = state.queues.get(lane).filter(|queue| queue.heads > 0);
        let mut found = HashMap::new();
        for group in queue.into_iter().flat_map(Queue::all_groups) {
            // Jobs that are limited alike come from one subqueue.
            if let Some(subqueue) = group.jobs.front().and_then(|held| held.subqueue) {
                let here = found.entry(subqueue).or_insert_with(|| HeldOfSubqueue {
                    jobs: 0,
                    is_refused: false,
                    waits_for_turn: true,
                    limits: Arc::clone(&group.limits),
                });
                here.jobs += group.jobs.len();
                if !group.may_ask(now) {
                    here.is_refused = true;
                    here.waits_for_turn &= group.waits_for_turn();
                }
            }
        }
        found
    }

    /// Up to `max` waiting jobs of the lane, with their attempts, that are `alike` and not proven since `before`, next
    /// to leave first: they are proven together with the one that is due.
    pub fn unproven(
        &self,
        lane: &Lane,
        alike: impl Fn(&Claimed) -> bool,
        before: Instant,
        max: usize,
    ) -> Vec<(Arc<str>, Option<u32>)> {
        let state = self.state();
        let jobs = state.queues.get(lane).into_iter().flat_map(Queue::jobs);
        jobs.filter(|held| held.proof.at < before && alike(&held.claimed))
            .take(max)
            .map(|held| (held.claimed.job.clone(), held.claimed.attempt))
            .collect()
    }

    /// The claims of which the store has not heard, each given once; but for picked ones, for which the question of
    /// their start is the first word.
    pub fn unnamed(self: &Arc<Hold>) -> Unnamed {
        let mut state = self.state();
        let now = Instant::now();
        let held = state.unnamed.iter().filter_map(|job| state.find(job));
        // What is past its deadline may run elsewhere.
        let lasts = held.filter(|held| held.proof.deadline > now);
        let mut claims: Vec<Claimed> = lasts.map(|held| held.claimed.clone()).collect();
        claims.sort_by_key(|claimed| claimed.generation);
        for claimed in &claims {
            state.unnamed.remove(&claimed.job);
        }
        Unnamed {
            hold: Arc::clone(self),
            claims,
        }
    }
}

impl Visit {
    /// Stands in the lines of all its lanes, behind who is there already. What was woken since it came woke nobody: then
    /// it looks once more at once.
    pub fn stand(&mut self, now: Instant) {
        let mut state = self.hold.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in &self.lanes {
            state.queues.open(lane, now).line.join(&waiter);
        }
        if state.wakes() != self.began {
            waiter.notify.notify_one();
        }
        self.waits = Some((waiter, now));
    }

    /// Since when it stands there, if it does.
    pub fn waits_since(&self) -> Option<Instant> {
        self.waits.as_ref().map(|(_, since)| *since)
    }

    /// Ends when it may be its turn; a wake that came before is not lost. Who stands in no line is not woken.
    pub async fn woken(&self) {
        match &self.waits {
            Some((waiter, _)) => waiter.notify.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The lanes in whose lines it is the first: it watches the clock and asks the backend.
    pub fn leads(&self) -> SmallVec<[&Lane; 1]> {
        let Some((own, _)) = &self.waits else {
            return SmallVec::new();
        };
        let state = self.hold.state();
        let queue = |lane: &&Lane| state.queues.get(*lane);
        let is_first = |lane: &&Lane| queue(lane).is_some_and(|queue| queue.line.is_first(own));
        self.lanes.iter().filter(is_first).collect()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.waits.is_none() && self.hold.is_empty() {
            return;
        }
        let mut state = self.hold.state();
        for lane in &self.lanes {
            let Some(queue) = state.queues.get_mut(lane) else {
                continue;
            };
            let woke = (self.waits.as_ref()).is_some_and(|(own, _)| queue.line.leave(own));
            // They may have what was claimed beyond its own count.
            if !woke && queue.known > 0 && queue.groups.has_open() {
                queue.line.wake();
            }
        }
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let mut state = self.hold.state();
        for claimed in &self.claims {
            let known = state.jobs.get(&claimed.job);
            if known.is_some_and(|known| known.generation == claimed.generation) {
                state.unnamed.insert(claimed.job.clone());
            }
        }
    }
}
