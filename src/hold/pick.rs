//! Jobs that leave the hold, or are kept from it: picked to be started, dropped or given back, hidden while somebody
//! settles them, or offered to siblings.

use std::collections::HashSet;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::held::{GroupId, Held};
use super::lane::Lane;
use super::locked::Hold;
use super::order::{QueuedGroup, claims, order};
use super::queue::Group;
use super::refusal::{Refusal, Wakes};
use super::state::{HoldState, Whereabouts};
use ojs_limit::{Timestamp, share_of};
use ojs_store::{Claimed, Gen};

/// So many jobs of a key are held or claimed although many are in hand, which may be of other keys.
const IN_HAND: usize = 8;

/// A picked job. Nobody else gets it, and a cancel still finds it. It ends as started ([`Hold::start`]), refused or gone;
/// dropped, it waits again where it stood. Once its claim was replaced or forgotten, its end changes nothing.
#[derive(Debug)]
pub struct Pick {
    hold: Arc<Hold>,
    /// There until it ends.
    held: Option<Held>,
    /// How often the hold had been woken when it was picked.
    picked: Wakes,
}

/// How many jobs of a lane are picked.
#[derive(Clone, Copy, Debug)]
pub struct PickAsk {
    /// So many in all.
    pub most: usize,
    /// So many more where some of these may be refused, because others were or because limits count time.
    pub spare: usize,
    /// So many of each group.
    pub want: usize,
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
            self.hold.put_back(held, Some((refusal, self.picked)));
        }
    }

    /// It is to end, and the backend does not end it now: it is shown as waiting until it leaves our hand.
    pub fn stays_in_hand(&self) {
        let (job, mut state) = (&self.claimed.job, self.hold.state());
        if state.jobs.get(job).is_some_and(|known| known.in_hand(self)) {
            state.stuck.insert(job.clone(), self.claimed.clone());
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
        let picked = state.wakes();
        let picks = jobs.into_iter().map(|held| Pick {
            hold: Arc::clone(self),
            held: Some(held),
            picked,
        });
        picks.collect()
    }

    /// Picks, in order, what could start now.
    pub fn pick(self: &Arc<Hold>, lane: &Lane, ask: PickAsk, now: Timestamp) -> Vec<Pick> {
        let mut state = self.state();
        let HoldState { queues, fair, .. } = &mut *state;
        let Some(queue) = queues.get_mut(lane) else {
            return Vec::new();
        };
        let waiters = queue.line.len();
        let groups = &mut queue.groups;
        let most = match groups.may_refuse_some() {
            true => ask.most.saturating_add(ask.spare),
            false => ask.most,
        };
        let mut picked = Vec::new();
        let mut next = groups.next_priority(None, now);
        while let Some(priority) = next.filter(|_| picked.len() < most) {
            let (before, left) = (picked.len(), most.saturating_sub(picked.len()));
            let askable = groups.askable(priority, left, now).into_iter();
            let (ids, seen): (Vec<GroupId>, Vec<&Group>) = askable.unzip();
            fair.see(seen.iter().map(|group| &*group.limits), now);
            let turns = order(&seen, fair, ask.want, left);
            picked.reserve(turns.len());
            for id in turns.iter().filter_map(|nth| ids.get(*nth)) {
                picked.extend(groups.pop(*id));
            }
            let ids = turns.into_iter().filter_map(|nth| ids.get(nth));
            for (held, id) in picked.iter_mut().skip(before).zip(ids) {
                if let Some((one, share)) = share_of(&held.written) {
                    let has_more = groups.get(*id).is_some_and(Group::has_jobs);
                    held.claimed.since = fair.since(one, share).unwrap_or(u64::MAX);
                    held.claimed.followed = match has_more && waiters > 1 {
                        true => Timestamp::NEVER,
                        false => Timestamp(0),
                    };
                }
            }
            next = groups.next_priority(Some(priority), now);
        }
        self.picks(&mut state, picked)
    }

    /// How many jobs of each of these groups of a key are claimed, `lacking` in all: as many as it takes that starts go by
    /// the groups' turns. With those that are held they are `most` at most.
    pub fn claims_in_turn(
        &self,
        of: &[QueuedGroup],
        lacking: usize,
        most: usize,
        now: Timestamp,
    ) -> Vec<usize> {
        let mut state = self.state();
        // Those in hand go out, or wait again.
        let most = most.saturating_sub(state.picked).max(IN_HAND);
        let fair = &mut state.fair;
        fair.see(of.iter().map(|group| &*group.limits), now);
        claims(of, fair, lacking, most)
    }

    /// Picked jobs go out, in this order: they are the hold's no longer, and their groups' turns are over. Those that
    /// may not, because they were hidden, replaced or forgotten meanwhile, stay among the picks.
    pub fn start(&self, picks: &mut Vec<Pick>) -> Vec<Held> {
        let mut state = self.state();
        let start = |pick: &mut Pick| state.start(pick);
        let mut started = Vec::with_capacity(picks.len());
        started.extend(picks.extract_if(.., start).filter_map(Pick::end));
        started
    }

    fn put_back(&self, mut held: Held, refused: Option<(Refusal, Wakes)>) {
        let short = held.stay();
        let mut state = self.state();
        if state.wait_again(held, refused) && short {
            self.hurry.notify_one();
        }
    }

    /// Picks a waiting job to be given back, from a lane for which `idle` says so of when a worker last asked for its
    /// jobs, which is now where one waits: the last of the lane, but none of `stay`.
    pub fn pick_last(
        self: &Arc<Hold>,
        idle: impl Fn(Instant) -> bool,
        stay: &HashSet<Arc<str>>,
    ) -> Option<Pick> {
        let mut state = self.state();
        let now = Instant::now();
        let mut idle = (state.queues.values()).filter(|queue| idle(now - queue.silent_for()));
        let last = idle.find_map(|queue| {
            let groups = queue.groups.last_first();
            let jobs = groups.flat_map(|group| group.jobs.iter().rev());
            let mut may_go = jobs.filter(|held| !stay.contains(&held.claimed.job));
            Some(may_go.next()?.claimed.job.clone())
        })?;
        let (_, held) = state.take_out(&last)?;
        self.picks(&mut state, vec![held]).pop()
    }

    /// Picks the waiting job of a queue that was claimed first, over all scopes. One that is shown as scheduled does not go
    /// (OJS backpressure 5.3).
    pub fn pick_oldest(self: &Arc<Hold>, queue_name: &str, now: Timestamp) -> Option<Pick> {
        let mut state = self.state();
        let queues = state.queues.of_queue(queue_name);
        let groups = queues.flat_map(|queue| queue.all_groups());
        // Of each group the first is the oldest.
        let first = groups.filter_map(|group| {
            let first = group.jobs.front()?;
            let visibility = first.claimed.visibility;
            (group.scheduled_at(visibility, now).is_none()).then_some(first)
        });
        let oldest = first.min_by_key(|held| held.claimed.claimed_at)?;
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
        if let Whereabouts::Hidden(held) = mem::replace(&mut known.whereabouts, Whereabouts::InHand)
        {
            state.place(held);
        }
    }

    /// Takes these waiting jobs out of every worker's reach: they are offered from now on.
    pub fn offer(&self, claims: &[Claimed]) {
        let mut state = self.state();
        for claimed in claims {
            let known = state.jobs.get(&claimed.job);
            if known.is_some_and(|known| known.generation == claimed.generation)
                && let Some((_, held)) = state.take_out(&claimed.job)
            {
                state.begin_offer(held);
            }
        }
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
            // Where the store had forgotten it a sibling may have had it meanwhile.
            held.doubt();
            state.note_due(&claimed.job, held.due_at());
            let Some(known) = state.jobs.get_mut(&claimed.job) else {
                continue;
            };
            (held.claimed.generation, known.generation) = (*next, *next);
            // The row by which it is ours again ends when it is named.
            held.named = false;
            state.unnamed.insert(claimed.job.clone());
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

    /// Whether the store knows that a job is offered.
    pub fn is_offer_known(&self, claimed: &Claimed) -> bool {
        let mut state = self.state();
        (state.offer_mut(claimed)).is_some_and(|offer| offer.is_known)
    }

    /// Whether a job is offered.
    pub fn is_offered(&self, claimed: &Claimed) -> bool {
        self.has_offers() && self.state().offer_mut(claimed).is_some()
    }
}
