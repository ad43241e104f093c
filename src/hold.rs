//! The hold: claimed jobs that wait in this sidecar for a start, and the FETCHes that wait for them.
//!
//! A held job lives under the scope it was claimed with and its queue. It leaves highest priority
//! first, then round robin over what it is limited by, then first in first out. Jobs with the same
//! limits stand in one group: when one of them is refused the rest are too, so a shut key with a
//! thousand jobs costs one question.
//!
//! A job that is being asked for is **in hand**: out of its group, still known by its id, so that a
//! cancel finds it. It ends up started, put back, or forgotten. One lock, held for arithmetic only.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limit::{Key, Limited, Space, Strategy, Timestamp};
use crate::policy::Gate;
use crate::store::{Claimed, Gen};

mod aside;
mod doom;
mod idle;
mod lanes;
mod line;
mod lookahead;
mod queue;
mod relimit;
mod state;
mod view;

pub use line::Waiter;
pub use lookahead::Lookahead;
pub use relimit::Relimited;
pub use view::{Tally, View};

use queue::Group;
use state::{End, Glance, State, Whereabouts};

/// A claim that was granted for less than this may be over before it has been looked at once or twice.
pub const SHORT: Duration = Duration::from_millis(1_500);

/// Held jobs and waiting FETCHes of one scope and queue are found by this.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The hash of the credentials that a FETCH came with.
    pub scope: u64,
    /// The queue.
    pub queue: Arc<str>,
}

impl Lane {
    /// The lane in which a claimed job waits.
    pub fn of(claimed: &Claimed) -> Lane {
        Lane {
            scope: claimed.scope,
            queue: claimed.queue.clone(),
        }
    }
}

impl From<&Lane> for Lane {
    fn from(lane: &Lane) -> Lane {
        lane.clone()
    }
}

/// A claimed job that waits.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its row.
    pub claimed: Claimed,
    /// What the file and the job itself say of its limits: jobs of which that is the same wait in one group. With
    /// what was set over HTTP laid over it, it is what the store is asked: `claimed.limited`.
    pub written: Arc<[Limited]>,
    /// Which edition of the policies says so.
    pub edition: u64,
    /// The limits that it brings itself.
    pub own: Box<[Limited]>,
    /// How long a worker gets it for that does not say.
    pub lasts: Duration,
    /// The tenant header of the FETCH that claimed it.
    pub tenant: Option<Arc<str>>,
    /// The job as a worker gets it.
    pub body: Bytes,
    /// Past this it is not ours any more: last accepted heartbeat + visibility - margin.
    pub deadline: Instant,
    /// When the backend last said that it is ours.
    pub proven: Instant,
    /// For how long from then.
    pub granted: Duration,
    /// When it came into the hold.
    pub since: Instant,
    /// What it was refused by first, if it was: it is limited from then until it starts, and that is
    /// counted and told once.
    pub refused: Option<Box<Episode>>,
    /// When its start counts, once it was granted.
    pub starts: Timestamp,
}

#[cfg(test)]
impl Held {
    /// A job that was claimed just now, under the limits of its claim.
    pub(crate) fn of(claim: crate::store::Claim) -> Held {
        let (now, visibility) = (Instant::now(), Duration::from_micros(claim.visibility));
        Held {
            written: claim.limited.clone(),
            edition: 0,
            own: Box::default(),
            lasts: visibility,
            tenant: None,
            body: Bytes::from(format!("{{\"id\":\"{}\"}}", claim.job)),
            deadline: deadline(now, visibility),
            proven: now,
            granted: visibility,
            since: now,
            refused: None,
            starts: Timestamp::default(),
            claimed: Claimed::from(claim),
        }
    }
}

/// What limits a job, from the first refusal until it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Episode {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// Which of their limits.
    pub strategy: Strategy,
    /// Since when it waits for them, as far as is known.
    pub since: Instant,
}

impl Held {
    /// The backend said at `since` that it is ours for `visibility` from then.
    pub fn prove(&mut self, since: Instant, visibility: Duration) {
        self.proven = since;
        self.granted = visibility;
        self.deadline = deadline(since, visibility);
    }

    /// Whether it is ours still is not known: the next sweep asks, and it is proven before it goes out.
    pub fn doubt(&mut self) {
        let long_ago = Duration::from_micros(self.claimed.visibility);
        self.proven = self.proven.checked_sub(long_ago).unwrap_or(self.proven);
        self.granted = Duration::ZERO;
    }

    /// It was to go out and waits on. Says whether its claim was made so [`SHORT`] for that that it may be over before
    /// the next look at it: then it is to be kept at once, and from then on for as long as it lasts by itself.
    fn stay(&mut self) -> bool {
        let short = self.granted < SHORT.min(self.lasts);
        let lasts = u64::try_from(self.lasts.as_micros()).unwrap_or(u64::MAX);
        if short && self.claimed.visibility < lasts {
            self.claimed.visibility = lasts;
        }
        // Of one in doubt nothing is known: where the backend is away it would be looked at all the time.
        short && !self.granted.is_zero()
    }

    /// Other limits apply to it from now on, says this edition of the policies.
    pub fn limit(&mut self, limits: Arc<[Limited]>, edition: u64) {
        self.claimed.limited = limits.clone();
        self.written = limits;
        self.edition = edition;
    }

    /// The lane it waits in.
    pub fn lane(&self) -> Lane {
        Lane::of(&self.claimed)
    }
}

/// Until when a claim of `visibility` from `since` on may be counted on. The margin is for the way to
/// the backend and back, and for its clock.
pub fn deadline(since: Instant, visibility: Duration) -> Instant {
    since + visibility.saturating_sub((visibility / 10).min(Duration::from_secs(2)))
}

/// What waiting could bring a FETCH; by default nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prospect {
    /// When the soonest of what waits for a time could start.
    pub at: Option<Timestamp>,
    /// From when the end of a slot, which may come at any moment, could let something start.
    pub slot: Option<Timestamp>,
}

impl Prospect {
    /// Something could start at this time.
    pub fn at(at: Timestamp) -> Prospect {
        Prospect {
            at: Some(at),
            slot: None,
        }
    }

    /// Something could start when a slot ends, from this time on.
    pub fn slot_from(at: Timestamp) -> Prospect {
        Prospect {
            at: None,
            slot: Some(at),
        }
    }

    /// Something could start when a slot ends.
    pub fn slot() -> Prospect {
        Prospect::slot_from(Timestamp(0))
    }

    /// Whether waiting until `end` may help.
    pub fn is_by(self, end: Timestamp) -> bool {
        self.at.into_iter().chain(self.slot).any(|at| at <= end)
    }

    /// What both bring.
    pub fn or(self, other: Prospect) -> Prospect {
        let sooner = |a: Option<Timestamp>, b: Option<Timestamp>| a.into_iter().chain(b).min();
        Prospect {
            at: sooner(self.at, other.at),
            slot: sooner(self.slot, other.slot),
        }
    }
}

/// The hold of one sidecar.
#[derive(Debug)]
pub struct Hold {
    state: Mutex<State>,
    glance: Arc<Glance>,
    hurry: Notify,
}

impl Default for Hold {
    fn default() -> Hold {
        let state = State::default();
        Hold {
            glance: Arc::clone(&state.glance),
            state: Mutex::new(state),
            hurry: Notify::new(),
        }
    }
}

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the hold is empty, of jobs in hand too.
    pub fn is_empty(&self) -> bool {
        self.glance.known.load(Ordering::Acquire) == 0
    }

    /// How many times, so far, jobs here were allowed to be asked for again.
    pub fn wakes(&self) -> Wakes {
        Wakes(self.glance.wakes.load(Ordering::Acquire))
    }

    /// Notes that a worker asked for jobs of the lane.
    pub fn fetched(&self, lane: &Lane, gate: &Gate, now: Instant) {
        let mut state = self.state();
        let State { queues, idle, .. } = &mut *state;
        let queue = queues.open(lane, now);
        queue.fetched_at = now;
        queue.offered = None;
        if std::mem::take(&mut queue.idle) {
            *idle = idle.less(queue.known, queue.bytes);
        }
        if !queue.gate.is(gate) {
            queue.gate = gate.clone();
        }
    }

    /// Whether anything is known about the lane's jobs: some are held or in hand.
    pub fn holds(&self, lane: &Lane) -> bool {
        !self.is_empty() && self.state().holding(lane).is_some()
    }

    /// Whether nothing is known about the jobs of these lanes.
    pub fn holds_none<'a>(&self, mut lanes: impl Iterator<Item = &'a Lane>) -> bool {
        if self.is_empty() {
            return true;
        }
        let state = self.state();
        !lanes.any(|lane| state.holding(lane).is_some())
    }

    /// Notes that these jobs of the lane were claimed just now; says whether they may be asked for before
    /// they are held, because nothing of the lane is, and none of them. Those that do not start then
    /// must [`Hold::enter`].
    pub fn is_first(&self, lane: &Lane, jobs: &[Held]) -> bool {
        let mut state = self.state();
        let State {
            queues,
            jobs: known,
            ..
        } = &mut *state;
        let Some(queue) = queues.get_mut(lane).filter(|queue| queue.known == 0) else {
            return false;
        };
        jobs.iter()
            .for_each(|held| queue.saw(held.claimed.priority));
        known.is_empty()
            || !jobs
                .iter()
                .any(|held| known.contains_key(&held.claimed.job))
    }

    /// A fresh claim that was asked for before it was held is in hand from here on, as if it had been
    /// picked: it must be put back.
    pub fn enter(&self, held: &mut Held) {
        let mut state = self.state();
        state.leave(&held.claimed.job);
        state.know(held, Whereabouts::InHand);
    }

    /// Jobs of the queue, over all scopes, that wait for nothing but the gate's own limits, with those in
    /// flight: what the queue's room is already promised to.
    pub fn promised(&self, queue_name: &str, gate: &Gate) -> usize {
        let state = self.state();
        let of_queue = state.queues.of_queue(queue_name);
        of_queue
            .map(|queue| {
                let waiting: usize = (queue.all_groups())
                    .filter(|group| group.limits.len() <= gate.limited.len())
                    .map(|group| group.jobs.len())
                    .sum();
                waiting + queue.in_flight
            })
            .sum()
    }

    /// Whether a held job of the lane that waits for nothing but the gate's own limits was refused, and
    /// may not be asked for yet: then there is no room for another either, and the store need not be asked.
    pub fn is_refused(&self, lane: &Lane, gate: &Gate, now: Timestamp) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state();
        let Some(queue) = state.holding(lane) else {
            return false;
        };
        queue.all_groups().any(|group| {
            !group.jobs.is_empty()
                && group.limits.len() <= gate.limited.len()
                && !group.may_ask(now)
        })
    }

    /// Notes that `n` jobs of the lane are being asked of the backend.
    pub fn asking(&self, lane: &Lane, n: usize, now: Instant) {
        let mut state = self.state();
        state.in_flight += n;
        let queue = state.queues.open(lane, now);
        queue.in_flight += n;
        queue.asked_at = Some(now);
    }

    /// Notes that a job of the lane is being taken over from a sibling: in between it is in no hold.
    pub fn taking_over(&self, lane: &Lane, now: Instant) {
        let mut state = self.state();
        state.in_flight += 1;
        state.queues.open(lane, now).in_flight += 1;
    }

    /// The end of [`Hold::taking_over`], whether the job came or not.
    pub fn taken_over(&self, lane: &Lane, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        let queue = state.queues.open(lane, now);
        queue.in_flight = queue.in_flight.saturating_sub(1);
        state.feed();
    }

    /// Notes the answer to [`Hold::asking`]: whether the backend may have more.
    pub fn asked(&self, lane: &Lane, n: usize, more: bool, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(n);
        let queue = state.queues.open(lane, now);
        queue.in_flight = queue.in_flight.saturating_sub(n);
        queue.more = more;
        state.feed();
    }

    /// Adds fresh claims. A job that is already held is replaced: the backend handed it out again, so
    /// the earlier claim is void. No waiter is woken: who claimed asks next.
    pub fn add(&self, jobs: Vec<Held>) {
        let mut state = self.state();
        for held in jobs {
            if !state.jobs.contains_key(&held.claimed.job) {
                state.enter(held, End::Back);
                continue;
            }
            let job = held.claimed.job.clone();
            let doomed = state.is_doomed(&job);
            state.leave(&job);
            state.enter(held, End::Back);
            if doomed {
                state.doom_again(&job);
            }
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
        state.take_in_hand(&picked);
        picked
    }

    /// Puts a job in hand back at the head of its group; `refused` says why and until when, if it was
    /// asked. A job that was replaced or forgotten meanwhile is not put back.
    pub fn put_back(&self, mut held: Held, refused: Option<Refusal>) {
        let short = held.stay();
        let mut state = self.state();
        let (lane, priority, edition) = (held.lane(), held.claimed.priority, held.edition);
        let limits = held.written.clone();
        if !state.wait_again(held, End::Front) {
            return;
        }
        if short {
            self.hurry.notify_one();
        }
        // What was refused under earlier limits is asked again under those of now.
        let refused = refused.filter(|_| edition == state.edition);
        if let (Some(refusal), Some(queue)) = (refused, state.queues.get_mut(&lane))
            && let Some(group) = queue.group(priority, edition, &limits)
        {
            group.refused_by = Some(refusal.policy);
            group.rescheduled = refusal.rescheduled;
            // What refused it may be over since, and who told has gone by.
            if group.woken <= refusal.asked {
                group.refused = Some(refusal.refused);
            }
        }
    }

    /// Jobs in hand go out, in this order: they are the hold's no longer, and their groups' turns are over.
    /// Says which of them may not, because they were hidden, replaced or forgotten meanwhile.
    pub fn started<'a>(&self, jobs: impl Iterator<Item = &'a Held>) -> Vec<Arc<str>> {
        let mut state = self.state();
        let mut stay = Vec::new();
        for held in jobs {
            let known = state.jobs.get(&held.claimed.job);
            if !known.is_some_and(|known| !known.hide && known.in_hand(held)) {
                stay.push(held.claimed.job.clone());
                continue;
            }
            if let Some(lane) = state.leave(&held.claimed.job)
                && let Some(queue) = state.queues.get_mut(&lane)
            {
                queue.turn_over(held.claimed.priority, held.edition, &held.written);
            }
        }
        stay
    }

    /// Takes a hand-out that did not happen back, ahead of its group.
    pub fn undo(&self, mut held: Held) {
        let short = held.stay();
        let mut state = self.state();
        if state.jobs.contains_key(&held.claimed.job) {
            return;
        }
        let lane = held.lane();
        state.enter(held, End::Front);
        if let Some(queue) = state.queues.get_mut(&lane) {
            queue.line.wake();
        }
        if short {
            self.hurry.notify_one();
        }
    }

    /// Ends when a job waits again whose claim is so short that it must be kept at once; one that came before is not
    /// lost.
    pub async fn hurries(&self) {
        self.hurry.notified().await;
    }

    /// Forgets a job, waiting or in hand; says where it was, if it was known.
    pub fn forget(&self, job: &str) -> Option<Lane> {
        if self.is_empty() {
            return None;
        }
        self.state().leave(job)
    }

    /// Forgets this claim of a job, waiting or in hand. A newer one, of a job that was handed out to us again
    /// meanwhile, stays. Says whether it was known.
    pub fn forget_claim(&self, job: &str, generation: Gen) -> bool {
        !self.is_empty() && self.state().forget_claim(job, generation)
    }

    /// Keeps a held job from going out. `false`: it is not held here.
    pub fn hide(&self, job: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut state = self.state();
        let Some(known) = state.jobs.get_mut(job) else {
            return false;
        };
        known.hide = true;
        if let Some((known, held)) = state.take_out(job) {
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
        if known.doom.is_some() || !matches!(known.whereabouts, Whereabouts::Hidden(_)) {
            return;
        }
        if let Whereabouts::Hidden(held) =
            std::mem::replace(&mut known.whereabouts, Whereabouts::Waiting)
        {
            state.place(*held, End::Front);
        }
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
        best.is_some_and(|(Reverse(best), _)| queue.highest > Some(*best))
    }

    /// Whether and when a job of the lane could start by itself, and the policy that it waits for.
    pub fn prospect(&self, lane: &Lane) -> (Prospect, Option<Arc<str>>) {
        let state = self.state();
        let Some(queue) = state.queues.get(lane) else {
            return (Prospect::default(), None);
        };
        let groups = queue.all_groups().filter(|group| !group.jobs.is_empty());
        groups.fold((Prospect::default(), None), |(prospect, policy), group| {
            let with = prospect.or(match group.refused {
                None => Prospect::at(Timestamp(0)),
                Some(Refused::Until(at)) => Prospect::at(at),
                Some(Refused::ForSlot(from)) => Prospect::slot_from(from),
                Some(Refused::Paused) => Prospect::default(),
            });
            if with == prospect && policy.is_some() {
                (prospect, policy)
            } else {
                (with, group.refused_by.clone())
            }
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
        let Some(queue) = state.queues.get(lane) else {
            return Vec::new();
        };
        (queue.jobs())
            .filter(|held| held.proven < before && alike(&held.claimed))
            .take(max)
            .map(|held| (held.claimed.job.clone(), held.claimed.attempt))
            .collect()
    }

    /// The backend said at `since` that the job is ours for `visibility` from then. What it has said later counts.
    pub fn proved(&self, job: &str, since: Instant, visibility: Duration) {
        let mut state = self.state();
        let State { queues, jobs, .. } = &mut *state;
        let Some(known) = jobs.get_mut(job) else {
            return;
        };
        let held = match &mut known.whereabouts {
            Whereabouts::Hidden(held) | Whereabouts::Aside(held) => Some(&mut **held),
            _ => {
                (queues.get_mut(&known.lane)).and_then(|queue| queue.find_mut(known.priority, job))
            }
        };
        if let Some(held) = held.filter(|held| held.proven <= since) {
            held.prove(since, visibility);
        }
    }

    /// The jobs that are not in hand, each with when the backend last said that it is ours, and for how long from then.
    pub fn proofs(&self) -> Vec<(Claimed, Instant, Duration)> {
        self.state()
            .each()
            .map(|held| (held.claimed.clone(), held.proven, held.granted))
            .collect()
    }

    /// Whether a held job's claim can no longer be counted on.
    pub fn is_past_deadline(&self, job: &str) -> bool {
        let now = Instant::now();
        self.state()
            .each()
            .any(|held| &*held.claimed.job == job && held.deadline <= now)
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
        state.queues.retain(|queue| {
            queue.known > 0
                || queue.fetched_at >= before
                || queue.in_flight > 0
                || !queue.line.is_empty()
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
            edition: state.edition,
            glance: Arc::clone(&state.glance),
            ..State::default()
        };
        self.glance.known.store(0, Ordering::Release);
    }
}

/// A refusal of a job in hand: it holds for its whole group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why, and until when.
    pub refused: Refused,
    /// How often the hold had been woken when the question was asked. An end of a slot since then may have
    /// come too late for the answer, and too early for whoever waits for it.
    pub asked: Wakes,
    /// The policy that refused.
    pub policy: Arc<str>,
    /// The time of the refusal, if the group's jobs are to be seen as scheduled until they may start
    /// (`on_limit = "reschedule"`).
    pub rescheduled: Option<Timestamp>,
}

/// A point in the order of the hold's wakes ([`Hold::wake`], [`Hold::ask_all`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Wakes(u64);

/// Why a job may not be asked for, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its limits say no until then.
    Until(Timestamp),
    /// A slot must end first, and this time must have come.
    ForSlot(Timestamp),
    /// A key has no slots at all: no time brings one.
    Paused,
}

#[cfg(test)]
mod tests;
