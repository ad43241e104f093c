//! Jobs that leave the hold, or are kept from it: picked to be started, dropped or given back, hidden while somebody
//! settles them, or offered to siblings.

use std::collections::HashSet;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::offer::Offer;
use super::order::order;
use super::queue::{Group, Queue};
use super::state::{HoldState, Whereabouts};
use super::{Held, Hold, Lane};
use crate::limit::{PolicyAndKey, Timestamp, share_of};
use crate::store::{Claimed, Gen};

/// A picked job. Nobody else gets it, and a cancel still finds it. It ends as started ([`Hold::start`]), refused or gone;
/// dropped, it waits again where it stood. Once its claim was replaced or forgotten, its end changes nothing.
#[derive(Debug)]
pub struct Pick {
    hold: Arc<Hold>,
    /// There until it ends.
    held: Option<Held>,
}

/// A refusal of a picked job: it holds for its whole group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why, and until when.
    pub refused: Refused,
    /// When it was refused.
    pub at: Timestamp,
    /// How often the hold had been woken when the question was asked. An end of a slot since then may have
    /// come too late for the answer, and too early for whoever waits for it.
    pub asked: Wakes,
    /// The limit that refused, if one did.
    pub by: Option<PolicyAndKey>,
    /// The time of the refusal, if the group's jobs are to be seen as scheduled until they may start
    /// (`on_limit = "reschedule"`).
    pub rescheduled: Option<Timestamp>,
}

/// A point in the order of the hold's wakes ([`Hold::wake`], [`Hold::ask_all`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Wakes(pub(super) u64);

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

impl Deref for Pick {
    type Target = Held;

    #[expect(
        clippy::expect_used,
        reason = "taken out only by what ends the pick, which takes the pick itself"
    )]
    fn deref(&self) -> &Held {
        self.held.as_ref().expect("a pick that has not ended")
    }
}

impl DerefMut for Pick {
    #[expect(clippy::expect_used, reason = "as above")]
    fn deref_mut(&mut self) -> &mut Held {
        self.held.as_mut().expect("a pick that has not ended")
    }
}

impl Pick {
    /// Ends it, whatever that means for its job.
    fn end(mut self) -> Option<Held> {
        self.held.take()
    }

    /// A limit refused it, or nobody could say: it waits again.
    pub fn refuse(mut self, refusal: Refusal) {
        if let Some(held) = self.held.take() {
            self.hold.put_back(held, Some(refusal));
        }
    }

    /// Its claim is over, and the hold forgets it.
    pub fn gone(self) {
        self.hold
            .forget_claim(&self.claimed.job, self.claimed.generation);
    }
}

impl Drop for Pick {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.hold.put_back(held, None);
        }
    }
}

impl Hold {
    fn picks(self: &Arc<Hold>, state: &mut HoldState, jobs: Vec<Held>) -> Vec<Pick> {
        state.take_in_hand(&jobs);
        let picks = jobs.into_iter().map(|held| Pick {
            hold: Arc::clone(self),
            held: Some(held),
        });
        picks.collect()
    }

    /// Picks, in order, what could start now: at most `want` of each group, and `most` in all.
    pub fn pick(
        self: &Arc<Hold>,
        lane: &Lane,
        want: usize,
        most: usize,
        now: Timestamp,
    ) -> Vec<Pick> {
        let mut state = self.state();
        let HoldState { queues, fair, .. } = &mut *state;
        let Some(queue) = queues.get_mut(lane) else {
            return Vec::new();
        };
        let mut picked = Vec::new();
        for groups in queue.groups.values_mut() {
            let may_ask = |group: &&mut Group| group.may_ask(now);
            let groups = groups.iter_mut().map(Box::as_mut).filter(may_ask);
            let mut groups: Vec<&mut Group> = groups.collect();
            let seen: Vec<&Group> = groups.iter().map(|group| &**group).collect();
            let turns = order(&seen, fair, want, most.saturating_sub(picked.len()));
            let before = picked.len();
            for nth in &turns {
                picked.extend(
                    groups
                        .get_mut(*nth)
                        .and_then(|group| group.jobs.pop_front()),
                );
            }
            for (held, nth) in picked.iter_mut().skip(before).zip(turns) {
                if share_of(&held.written).is_some() {
                    let group = groups.get(nth);
                    held.claimed.has_more = group.is_some_and(|group| !group.jobs.is_empty());
                }
            }
        }
        self.picks(&mut state, picked)
    }

    /// Picked jobs go out, in this order: they are the hold's no longer, and their groups' turns are over. Those that
    /// may not, because they were hidden, replaced or forgotten meanwhile, stay among the picks.
    pub fn start(&self, picks: &mut Vec<Pick>) -> Vec<Held> {
        let mut state = self.state();
        let start = |pick: &mut Pick| state.start(pick);
        picks.extract_if(.., start).filter_map(Pick::end).collect()
    }

    fn put_back(&self, mut held: Held, refused: Option<Refusal>) {
        let short = held.stay();
        let mut state = self.state();
        if state.wait_again(held, refused) && short {
            self.hurry.notify_one();
        }
    }

    /// Picks a waiting job to be given back, from a lane for which `idle` says so of when a worker last asked for its
    /// jobs: the last of the lane, but none of `stay`.
    pub fn pick_last(
        self: &Arc<Hold>,
        idle: impl Fn(Instant) -> bool,
        stay: &HashSet<Arc<str>>,
    ) -> Option<Pick> {
        let mut state = self.state();
        let mut queues = state.queues.values_mut();
        let last = queues.find_map(|queue| {
            let groups = queue.groups.values_mut().rev();
            let mut groups = groups
                .filter(|_| idle(queue.fetched_at))
                .flat_map(|groups| groups.iter_mut().rev());
            groups.find_map(|group| {
                let may_go = |held: &Held| !stay.contains(&held.claimed.job);
                group.jobs.remove(group.jobs.iter().rposition(may_go)?)
            })
        })?;
        self.picks(&mut state, vec![last]).pop()
    }

    /// Picks the waiting job of a queue that was claimed first, over all scopes.
    pub fn pick_oldest(self: &Arc<Hold>, queue_name: &str) -> Option<Pick> {
        let mut state = self.state();
        let waiting = state.queues.of_queue(queue_name).flat_map(Queue::jobs);
        let oldest = waiting.min_by_key(|held| held.claimed.claimed_at)?;
        let job = oldest.claimed.job.clone();
        let (_, held) = state.take_out(&job)?;
        self.picks(&mut state, vec![held]).pop()
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
            known.whereabouts = Whereabouts::Hidden(held);
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
            mem::replace(&mut known.whereabouts, Whereabouts::Waiting)
        {
            state.place(held);
        }
    }

    /// Takes these waiting jobs out of every worker's reach, and gives those that are offered from now on.
    pub fn offer(&self, claims: &[Claimed]) -> Vec<Claimed> {
        let mut state = self.state();
        let mut offered = Vec::with_capacity(claims.len());
        for claimed in claims {
            let known = state.jobs.get(&claimed.job);
            if known.is_some_and(|known| known.generation == claimed.generation)
                && let Some((known, held)) = state.take_out(&claimed.job)
            {
                offered.push(held.claimed.clone());
                known.whereabouts = Whereabouts::Offered(Box::new(Offer::of(held)));
                state.count_offers(1);
            }
        }
        offered
    }

    /// Notes that the store knows that these are offered.
    pub fn note_offers_known(&self, claims: &[Claimed]) {
        let mut state = self.state();
        for claimed in claims {
            if let Some(offer) = state.offer_mut(claimed) {
                offer.is_known = true;
            }
        }
    }

    /// The store says that these offered jobs are ours again, each under its new claim number: they wait again where
    /// they stood.
    pub fn end_offers(&self, ours: &[(Claimed, Gen)]) {
        let state = &mut *self.state();
        for (claimed, next) in ours {
            let Some(mut held) = state.end_offer(claimed) else {
                continue;
            };
            let Some(known) = state.jobs.get_mut(&claimed.job) else {
                continue;
            };
            (held.claimed.generation, known.generation) = (*next, *next);
            // The row by which it is ours again ends when it is named.
            held.named = false;
            state.unnamed += usize::from(mem::replace(&mut known.named, false));
            if known.hide {
                known.whereabouts = Whereabouts::Hidden(held);
                continue;
            }
            let lane = held.lane();
            state.place(held);
            if let Some(queue) = state.queues.get_mut(&lane) {
                queue.line.wake();
            }
        }
    }

    /// Whether any job is offered.
    pub fn has_offers(&self) -> bool {
        self.glance.offers.load(Ordering::Acquire) > 0
    }

    /// Whether a job is offered.
    pub fn is_offered(&self, claimed: &Claimed) -> bool {
        self.has_offers() && self.state().offer_mut(claimed).is_some()
    }
}
