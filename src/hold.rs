//! The hold: claimed jobs that wait in this sidecar for a start, and the FETCHes that wait for them.
//!
//! A held job lives under the scope it was claimed with and its queue. It leaves highest priority
//! first, then round robin over what it is limited by, then first in first out. Jobs with the same
//! limits stand in one [`Group`]: when one of them is refused the rest are too, so a shut key with a
//! thousand jobs costs one question.
//!
//! A job that is being asked for is **in hand**: out of its group, still known by its id, so that a
//! cancel finds it. It ends up started, put back, or forgotten. One lock, held for arithmetic only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::limit::{Limited, Timestamp};
use crate::policy::{Gate, JobLimits};
use crate::store::Claimed;

mod line;

pub use line::{Place, Waiter};

/// Held jobs and waiting FETCHes of one scope and queue are found by this.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The hash of the credentials that a FETCH came with.
    pub scope: u64,
    /// The queue.
    pub queue: Arc<str>,
}

/// A claimed job that waits.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its row.
    pub claimed: Claimed,
    /// Everything that limits it.
    pub limits: JobLimits,
    /// The job as a worker gets it.
    pub body: Bytes,
    /// Past this it is not ours any more: last accepted heartbeat + visibility - margin.
    pub deadline: Instant,
    /// When the backend last said that it is ours.
    pub proven: Instant,
    /// When it came into the hold.
    pub since: Instant,
    /// Whether a refusal of it was counted in this wait.
    pub refused: bool,
}

impl Held {
    /// The lane it waits in.
    pub fn lane(&self) -> Lane {
        Lane {
            scope: self.claimed.scope,
            queue: self.claimed.queue.clone(),
        }
    }
}

/// When a group may be asked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Now.
    Ask,
    /// At this time at the earliest.
    At(Timestamp),
    /// When a slot ends.
    Slot,
    /// Not by itself: the key is paused.
    Never,
}

#[derive(Debug)]
struct Group {
    limits: JobLimits,
    jobs: VecDeque<Held>,
    next: Next,
}

#[derive(Debug)]
struct Queue {
    /// By priority, highest first; the groups of one priority in the order of their turns.
    groups: BTreeMap<Reverse<i32>, VecDeque<Group>>,
    line: line::Line,
    /// What the queue's name says, as of the last FETCH.
    gate: Gate,
    /// When the backend was last asked for jobs of this lane.
    asked_at: Option<Instant>,
    /// When a worker last asked for jobs of this lane.
    fetched_at: Instant,
    /// Whether the backend's last answer left more behind, as far as we know.
    more: bool,
    /// Highest and lowest priority seen.
    priorities: Option<(i32, i32)>,
    /// Jobs asked of the backend and not yet answered.
    in_flight: usize,
    /// Jobs known, in hand and hidden ones included.
    known: usize,
}

/// Where a known job is.
#[derive(Debug)]
enum Whereabouts {
    /// In its group.
    Waiting,
    /// Being asked for.
    InHand,
    /// Out of its group, because a cancel, a delete or a settle that names it is under way.
    Hidden(Box<Held>),
}

#[derive(Debug)]
struct Known {
    lane: Lane,
    priority: i32,
    attempt: u32,
    bytes: usize,
    whereabouts: Whereabouts,
    /// Whether it is to be hidden as soon as it is put back.
    hide: bool,
}

#[derive(Default, Debug)]
struct State {
    queues: HashMap<Lane, Queue>,
    jobs: HashMap<Arc<str>, Known>,
    bytes: usize,
    in_flight: usize,
    waiters: u64,
}

/// What waiting could bring a FETCH; by default nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prospect {
    /// When the soonest of what waits for a time could start.
    pub at: Option<Timestamp>,
    /// Whether something waits for a slot to end, which may be at any moment.
    pub slot: bool,
}

impl Prospect {
    /// Something could start at this time.
    pub fn at(at: Timestamp) -> Prospect {
        Prospect {
            at: Some(at),
            slot: false,
        }
    }

    /// Something could start when a slot ends.
    pub fn slot() -> Prospect {
        Prospect {
            at: None,
            slot: true,
        }
    }

    /// Whether there is nothing to wait for.
    pub fn is_none(self) -> bool {
        self == Prospect::default()
    }

    /// What both bring.
    pub fn or(self, other: Prospect) -> Prospect {
        Prospect {
            at: match (self.at, other.at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            slot: self.slot || other.slot,
        }
    }
}

/// The hold of one sidecar.
#[derive(Default, Debug)]
pub struct Hold(Mutex<State>);

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a worker asked for jobs of the lane.
    pub fn fetched(&self, lane: &Lane, gate: &Gate, now: Instant) {
        let mut state = self.state();
        let queue = state.queue(lane, now);
        queue.fetched_at = now;
        queue.gate = gate.clone();
    }

    /// Whether anything is known about the lane's jobs: some are held or in hand.
    pub fn holds(&self, lane: &Lane) -> bool {
        self.state()
            .queues
            .get(lane)
            .is_some_and(|queue| queue.known > 0)
    }

    /// Whether the hold is empty, of jobs in hand too.
    pub fn is_empty(&self) -> bool {
        self.state().jobs.is_empty()
    }

    /// Jobs in the hold, in hand included.
    pub fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Jobs asked of the backend and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// How many jobs more may be claimed before the hold is full, those already asked for included.
    pub fn lookahead(&self, max: usize, max_bytes: usize) -> usize {
        let state = self.state();
        if state.bytes >= max_bytes {
            0
        } else {
            max.saturating_sub(state.jobs.len() + state.in_flight)
        }
    }

    /// Jobs of the queue, over all scopes, that wait for nothing but the gate's own limits, with those in
    /// flight: what the queue's room is already promised to.
    pub fn promised(&self, queue_name: &str, gate: &Gate) -> usize {
        let state = self.state();
        let of_queue = state
            .queues
            .iter()
            .filter(|(lane, _)| &*lane.queue == queue_name);
        of_queue
            .map(|(_, queue)| {
                let waiting: usize = (queue.groups.values().flatten())
                    .filter(|group| group.limits.limited.len() <= gate.limited.len())
                    .map(|group| group.jobs.len())
                    .sum();
                waiting + queue.in_flight
            })
            .sum()
    }

    /// Notes that `n` jobs of the lane are being asked of the backend.
    pub fn asking(&self, lane: &Lane, n: usize, now: Instant) {
        let mut state = self.state();
        state.in_flight += n;
        let queue = state.queue(lane, now);
        queue.in_flight += n;
        queue.asked_at = Some(now);
    }

    /// Notes the answer to [`Hold::asking`]: whether the backend may have more.
    pub fn asked(&self, lane: &Lane, n: usize, more: bool, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(n);
        let queue = state.queue(lane, now);
        queue.in_flight = queue.in_flight.saturating_sub(n);
        queue.more = more;
    }

    /// Adds fresh claims. A job that is already held is replaced: the backend handed it out again, so
    /// the earlier claim is void. No waiter is woken: who claimed asks next.
    pub fn add(&self, jobs: Vec<Held>) {
        let mut state = self.state();
        for held in jobs {
            state.forget(&held.claimed.job);
            let priority = held.claimed.priority;
            state.queue(&held.lane(), held.since).saw(priority);
            state.enter(held, End::Back);
        }
    }

    /// Takes into hand, in order, what could start now: at most `want` of each group. All of them end
    /// in [`Hold::put_back`], [`Hold::started`] or [`Hold::forget`].
    pub fn pick(&self, lane: &Lane, want: usize, now: Timestamp) -> Vec<Held> {
        let mut state = self.state();
        let Some(queue) = state.queues.get_mut(lane) else {
            return Vec::new();
        };
        let mut picked = Vec::new();
        for groups in queue.groups.values_mut() {
            let mut turns: Vec<&mut Group> = groups
                .iter_mut()
                .filter(|group| group.may_ask(now))
                .collect();
            for _ in 0..want {
                let before = picked.len();
                picked.extend(turns.iter_mut().filter_map(|group| group.jobs.pop_front()));
                if picked.len() == before {
                    break;
                }
            }
        }
        state.into_hand(&picked);
        picked
    }

    /// Puts a job in hand back at the head of its group; `refused` says when the group may be asked
    /// again, if it was asked. A job that was replaced or forgotten meanwhile is dropped.
    pub fn put_back(&self, mut held: Held, refused: Option<Refused>) {
        let mut state = self.state();
        let Some(known) = state.jobs.get_mut(&held.claimed.job) else {
            return;
        };
        if !matches!(known.whereabouts, Whereabouts::InHand) {
            return;
        }
        held.refused |= refused.is_some();
        if known.hide {
            known.whereabouts = Whereabouts::Hidden(Box::new(held));
            return;
        }
        known.whereabouts = Whereabouts::Waiting;
        let (lane, priority, limits) = (held.lane(), held.claimed.priority, held.limits.clone());
        state.place(held, End::Front);
        if let (Some(refused), Some(queue)) = (refused, state.queues.get_mut(&lane))
            && let Some(group) = queue.group(priority, &limits)
        {
            group.next = match refused {
                Refused::Until(at) => Next::At(at),
                Refused::ForSlot => Next::Slot,
                Refused::Paused => Next::Never,
            };
        }
    }

    /// A job in hand goes out: it is the hold's no longer, and its group's turn is over. `false` if it
    /// was hidden, replaced or forgotten meanwhile: it must not go out.
    pub fn started(&self, held: &Held) -> bool {
        let mut state = self.state();
        match state.jobs.get(&held.claimed.job) {
            Some(known) if !known.hide && matches!(known.whereabouts, Whereabouts::InHand) => {}
            _ => return false,
        }
        state.forget(&held.claimed.job);
        if let Some(queue) = state.queues.get_mut(&held.lane()) {
            queue.turn_over(held.claimed.priority, &held.limits);
        }
        true
    }

    /// Takes a hand-out that did not happen back, ahead of its group.
    pub fn undo(&self, held: Held) {
        let mut state = self.state();
        if state.jobs.contains_key(&held.claimed.job) {
            return;
        }
        let lane = held.lane();
        state.enter(held, End::Front);
        if let Some(queue) = state.queues.get_mut(&lane) {
            queue.line.wake();
        }
    }

    /// Forgets a job, waiting or in hand; says whether it was known.
    pub fn forget(&self, job: &str) -> bool {
        self.state().forget(job)
    }

    /// Keeps a held job from going out. `false`: it is not held here.
    pub fn hide(&self, job: &str) -> bool {
        let mut state = self.state();
        let State { queues, jobs, .. } = &mut *state;
        let Some(known) = jobs.get_mut(job) else {
            return false;
        };
        known.hide = true;
        if matches!(known.whereabouts, Whereabouts::Waiting)
            && let Some(held) = queues
                .get_mut(&known.lane)
                .and_then(|queue| queue.remove(known.priority, job))
        {
            known.whereabouts = Whereabouts::Hidden(Box::new(held));
        }
        true
    }

    /// Lets a hidden job go out again.
    pub fn show(&self, job: &str) {
        let mut state = self.state();
        let Some(known) = state.jobs.get_mut(job) else {
            return;
        };
        known.hide = false;
        if !matches!(known.whereabouts, Whereabouts::Hidden(_)) {
            return;
        }
        if let Whereabouts::Hidden(held) =
            std::mem::replace(&mut known.whereabouts, Whereabouts::Waiting)
        {
            state.place(*held, End::Front);
        }
    }

    /// The attempt of a held job as it was claimed; `None`: not held.
    pub fn attempt(&self, job: &str) -> Option<u32> {
        self.state().jobs.get(job).map(|known| known.attempt)
    }

    /// Whether the job is held, in hand included.
    pub fn has(&self, job: &str) -> bool {
        self.state().jobs.contains_key(job)
    }

    /// The bytes of the waiting jobs of a queue, over all scopes; of all queues without a name.
    pub fn bodies(&self, name: Option<&str>) -> Vec<Bytes> {
        let state = self.state();
        let lanes = state
            .queues
            .iter()
            .filter(|(lane, _)| name.is_none_or(|name| name == &*lane.queue));
        let groups = lanes.flat_map(|(_, queue)| queue.groups.values().flatten());
        groups
            .flat_map(|group| &group.jobs)
            .map(|held| held.body.clone())
            .collect()
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

    /// Held jobs limited by a key, for `waiting_count`.
    pub fn waiting(&self, matches: impl Fn(&Limited) -> bool) -> usize {
        let state = self.state();
        let groups = state
            .queues
            .values()
            .flat_map(|queue| queue.groups.values().flatten());
        groups
            .filter(|group| group.limits.limited.iter().any(&matches))
            .map(|group| group.jobs.len())
            .sum()
    }

    /// Whether the backend must be asked before a held job of the lane goes out: the lane has shown a
    /// higher priority than the best that is held here.
    pub fn outranked(&self, lane: &Lane) -> bool {
        let state = self.state();
        let Some(queue) = state.queues.get(lane) else {
            return false;
        };
        let best = queue
            .groups
            .iter()
            .find(|(_, groups)| groups.iter().any(|g| !g.jobs.is_empty()));
        match (queue.priorities, best) {
            (Some((highest, lowest)), Some((Reverse(best), _))) => {
                highest > lowest && highest > *best
            }
            _ => false,
        }
    }

    /// Whether and when a job of the lane could start by itself.
    pub fn prospect(&self, lane: &Lane) -> Prospect {
        let state = self.state();
        let Some(queue) = state.queues.get(lane) else {
            return Prospect::default();
        };
        let groups = queue
            .groups
            .values()
            .flatten()
            .filter(|group| !group.jobs.is_empty());
        groups.fold(Prospect::default(), |prospect, group| {
            prospect.or(match group.next {
                Next::Ask => Prospect::at(Timestamp(0)),
                Next::At(at) => Prospect::at(at),
                Next::Slot => Prospect::slot(),
                Next::Never => Prospect::default(),
            })
        })
    }

    /// Whether the backend may have more of the lane than it gave, as far as its last answer tells.
    pub fn more(&self, lane: &Lane) -> bool {
        self.state().queues.get(lane).is_none_or(|queue| queue.more)
    }

    /// When the backend was last asked for jobs of the lane.
    pub fn asked_at(&self, lane: &Lane) -> Option<Instant> {
        self.state().queues.get(lane)?.asked_at
    }

    /// A slot of these keys ended, or a start of theirs was undone: whoever waits for one of them may
    /// ask again.
    pub fn wake(&self, freed: &[Limited]) {
        let mut state = self.state();
        for queue in state.queues.values_mut() {
            let touches = |limited: &[Limited]| {
                limited
                    .iter()
                    .any(|l| freed.iter().any(|f| f.space == l.space && f.key == l.key))
            };
            let mut woken = touches(&queue.gate.limited);
            for group in queue.groups.values_mut().flatten() {
                if touches(&group.limits.limited) {
                    group.next = Next::Ask;
                    woken = true;
                }
            }
            if woken {
                queue.line.wake();
            }
        }
    }

    /// Wakes every waiting FETCH (drain).
    pub fn wake_all(&self) {
        for queue in self.state().queues.values() {
            queue.line.wake_all();
        }
    }

    /// Stands in the lines of all the lanes, behind who is there already.
    pub fn stand(&self, lanes: &[Lane], want: usize, now: Instant) -> Waiter {
        let mut state = self.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in lanes {
            state.queue(lane, now).line.join(&waiter, want);
        }
        waiter
    }

    /// Leaves the lines; the next in each is woken.
    pub fn leave(&self, lanes: &[Lane], waiter: &Waiter) {
        let mut state = self.state();
        for lane in lanes {
            if let Some(queue) = state.queues.get_mut(lane) {
                queue.line.leave(waiter);
            }
        }
    }

    /// Where a waiter stands in a lane's line.
    pub fn standing(&self, lane: &Lane, waiter: &Waiter) -> Place {
        self.state()
            .queues
            .get(lane)
            .map_or(Place::Gone, |queue| queue.line.standing(waiter))
    }

    /// Jobs wanted by everyone in the lane's line.
    pub fn wanted(&self, lane: &Lane) -> usize {
        self.state()
            .queues
            .get(lane)
            .map_or(0, |queue| queue.line.wanted())
    }

    /// Up to `max` waiting jobs of the lane that were claimed under `claim_id` and not proven since
    /// `before`, next to leave first: they are proven together with the one that is due.
    pub fn unproven(
        &self,
        lane: &Lane,
        claim_id: &str,
        before: Instant,
        max: usize,
    ) -> Vec<Arc<str>> {
        let state = self.state();
        let Some(queue) = state.queues.get(lane) else {
            return Vec::new();
        };
        let jobs = queue
            .groups
            .values()
            .flatten()
            .flat_map(|group| &group.jobs);
        jobs.filter(|held| held.proven < before && &*held.claimed.claim_id == claim_id)
            .take(max)
            .map(|held| held.claimed.job.clone())
            .collect()
    }

    /// The backend said that the job is still ours, for `visibility` from `now` on.
    pub fn proved(&self, job: &str, now: Instant, visibility: Duration, margin: Duration) {
        let mut state = self.state();
        let State { queues, jobs, .. } = &mut *state;
        let Some(known) = jobs.get(job) else { return };
        if let Some(held) = queues
            .get_mut(&known.lane)
            .and_then(|queue| queue.find_mut(known.priority, job))
        {
            held.proven = now;
            held.deadline = now + visibility.saturating_sub(margin);
        }
    }

    /// Takes into hand what is waiting in lanes for which `idle` says so (give back), by claim.
    pub fn take_idle(&self, idle: impl Fn(&Lane, Instant) -> bool) -> Vec<Held> {
        let mut state = self.state();
        let mut taken = Vec::new();
        for (lane, queue) in &mut state.queues {
            if idle(lane, queue.fetched_at) {
                for group in queue.groups.values_mut().flatten() {
                    taken.extend(group.jobs.drain(..));
                }
            }
        }
        state.into_hand(&taken);
        taken
    }

    /// The waiting and hidden jobs, each with when the backend last said that it is ours.
    pub fn proofs(&self) -> Vec<(Claimed, Instant)> {
        self.state()
            .each()
            .map(|held| (held.claimed.clone(), held.proven))
            .collect()
    }

    /// How long ago the oldest of these jobs came into the hold.
    pub fn oldest(&self, jobs: &[Arc<str>]) -> Duration {
        let state = self.state();
        let of_these = state.each().filter(|held| jobs.contains(&held.claimed.job));
        of_these
            .map(|held| held.since.elapsed())
            .max()
            .unwrap_or_default()
    }

    /// Whether a held job's claim can no longer be counted on.
    pub fn is_past_deadline(&self, job: &str) -> bool {
        let now = Instant::now();
        self.state()
            .each()
            .any(|held| &*held.claimed.job == job && held.deadline <= now)
    }

    /// Wakes the first who waits for the lane, if something of it may be asked for.
    pub fn nudge(&self, lane: &Lane) {
        let state = self.state();
        if let Some(queue) = state.queues.get(lane)
            && queue
                .groups
                .values()
                .flatten()
                .any(|group| group.next == Next::Ask && !group.jobs.is_empty())
        {
            queue.line.wake();
        }
    }

    /// Drops lanes that hold nothing, wait for nothing and were not asked about since `before`, and
    /// groups without jobs.
    pub fn tidy(&self, before: Instant) {
        let mut state = self.state();
        for queue in state.queues.values_mut() {
            for groups in queue.groups.values_mut() {
                groups.retain(|group| !group.jobs.is_empty());
            }
            queue.groups.retain(|_, groups| !groups.is_empty());
        }
        state.queues.retain(|_, queue| {
            queue.known > 0
                || queue.fetched_at >= before
                || queue.in_flight > 0
                || queue.line.wanted() > 0
        });
    }

    /// Forgets everything (`dev`'s reset).
    pub fn clear(&self) {
        let mut state = self.state();
        for queue in state.queues.values() {
            queue.line.wake_all();
        }
        *state = State {
            waiters: state.waiters,
            ..State::default()
        };
    }
}

/// Why a job in hand was put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its limits say no until then.
    Until(Timestamp),
    /// A slot must end first.
    ForSlot,
    /// A key has no slots at all.
    Paused,
}

/// Which end of its group a job goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

impl State {
    fn queue(&mut self, lane: &Lane, now: Instant) -> &mut Queue {
        if !self.queues.contains_key(lane) {
            self.queues.insert(lane.clone(), Queue::new(now));
        }
        // Inserted above if it was missing; `entry` would clone the lane each time.
        self.queues.get_mut(lane).expect("the lane's queue")
    }

    fn place(&mut self, held: Held, end: End) {
        let now = held.since;
        let queue = self.queue(&held.lane(), now);
        let groups = queue
            .groups
            .entry(Reverse(held.claimed.priority))
            .or_default();
        match groups.iter_mut().find(|group| group.limits == held.limits) {
            Some(group) if end == End::Front => group.jobs.push_front(held),
            Some(group) => group.jobs.push_back(held),
            None => groups.push_back(Group {
                limits: held.limits.clone(),
                jobs: VecDeque::from([held]),
                next: Next::Ask,
            }),
        }
    }

    /// A job becomes known and waits.
    fn enter(&mut self, held: Held, end: End) {
        let known = Known {
            lane: held.lane(),
            priority: held.claimed.priority,
            attempt: held.claimed.attempt,
            bytes: held.body.len(),
            whereabouts: Whereabouts::Waiting,
            hide: false,
        };
        self.bytes += known.bytes;
        self.queue(&held.lane(), held.since).known += 1;
        self.jobs.insert(held.claimed.job.clone(), known);
        self.place(held, end);
    }

    /// Jobs that are neither in hand nor gone.
    fn each(&self) -> impl Iterator<Item = &Held> {
        let hidden = self
            .jobs
            .values()
            .filter_map(|known| match &known.whereabouts {
                Whereabouts::Hidden(held) => Some(&**held),
                _ => None,
            });
        let groups = self
            .queues
            .values()
            .flat_map(|queue| queue.groups.values().flatten());
        groups.flat_map(|group| &group.jobs).chain(hidden)
    }

    fn into_hand(&mut self, picked: &[Held]) {
        for held in picked {
            if let Some(known) = self.jobs.get_mut(&held.claimed.job) {
                known.whereabouts = Whereabouts::InHand;
            }
        }
    }

    fn forget(&mut self, job: &str) -> bool {
        let Some(known) = self.jobs.remove(job) else {
            return false;
        };
        self.bytes = self.bytes.saturating_sub(known.bytes);
        if let Some(queue) = self.queues.get_mut(&known.lane) {
            queue.known = queue.known.saturating_sub(1);
            if matches!(known.whereabouts, Whereabouts::Waiting) {
                queue.remove(known.priority, job);
            }
        }
        true
    }
}

impl Queue {
    fn new(now: Instant) -> Queue {
        Queue {
            groups: BTreeMap::new(),
            line: line::Line::default(),
            gate: Gate::default(),
            asked_at: None,
            fetched_at: now,
            more: true,
            priorities: None,
            in_flight: 0,
            known: 0,
        }
    }

    fn saw(&mut self, priority: i32) {
        self.priorities = Some(match self.priorities {
            None => (priority, priority),
            Some((highest, lowest)) => (highest.max(priority), lowest.min(priority)),
        });
    }

    fn group(&mut self, priority: i32, limits: &JobLimits) -> Option<&mut Group> {
        self.groups
            .get_mut(&Reverse(priority))?
            .iter_mut()
            .find(|group| group.limits == *limits)
    }

    /// Moves a group to the end of the turns; an empty one goes.
    fn turn_over(&mut self, priority: i32, limits: &JobLimits) {
        let Some(groups) = self.groups.get_mut(&Reverse(priority)) else {
            return;
        };
        let Some(at) = groups.iter().position(|group| group.limits == *limits) else {
            return;
        };
        if let Some(group) = groups.remove(at)
            && !group.jobs.is_empty()
        {
            groups.push_back(group);
        }
        if groups.is_empty() {
            self.groups.remove(&Reverse(priority));
        }
    }

    fn find_mut(&mut self, priority: i32, job: &str) -> Option<&mut Held> {
        let groups = self.groups.get_mut(&Reverse(priority))?;
        groups
            .iter_mut()
            .flat_map(|group| &mut group.jobs)
            .find(|held| &*held.claimed.job == job)
    }

    fn remove(&mut self, priority: i32, job: &str) -> Option<Held> {
        let groups = self.groups.get_mut(&Reverse(priority))?;
        for group in groups {
            if let Some(at) = group.jobs.iter().position(|held| &*held.claimed.job == job) {
                return group.jobs.remove(at);
            }
        }
        None
    }
}

impl Group {
    fn may_ask(&self, now: Timestamp) -> bool {
        match self.next {
            Next::Ask => true,
            Next::At(at) => at <= now.plus(crate::limit::EARLY),
            Next::Slot | Next::Never => false,
        }
    }
}
