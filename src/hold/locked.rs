//! The hold itself: what happens to it, under one lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::held::{Held, Proof};
use super::lane::Lane;
use super::places::{Amount, FEW, Lookahead};
use super::state::{Glance, HoldState, Whereabouts};
use ojs_limit::{Key, Limited, Served, Space, Timestamp};
use ojs_store::Gen;

/// The hold of one sidecar.
#[derive(Debug)]
pub struct Hold {
    state: Mutex<HoldState>,
    pub(super) glance: Arc<Glance>,
    pub(super) hurry: Notify,
}

/// Jobs that are on their way into the hold, until this is dropped: they count as held.
#[derive(Debug)]
pub struct Coming {
    hold: Arc<Hold>,
    lane: Lane,
    jobs: usize,
    /// What the backend said, once it has.
    behind: Option<Behind>,
}

/// What the backend's last answer tells of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// It may have more jobs.
    More,
    /// It has no more.
    Nothing,
}

impl Behind {
    /// What a reply with so many jobs tells, of those that were asked for.
    pub fn of(came: usize, asked: usize) -> Behind {
        match came < asked {
            true => Behind::Nothing,
            false => Behind::More,
        }
    }
}

impl Coming {
    /// The backend has answered.
    pub fn answered(mut self, behind: Behind) {
        self.behind = Some(behind);
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut state = self.hold.state();
        state.in_flight = state.in_flight.saturating_sub(self.jobs);
        if let Some(queue) = state.queues.get_mut(&self.lane) {
            queue.in_flight = queue.in_flight.saturating_sub(self.jobs);
            match self.behind {
                Some(Behind::Nothing) => (queue.is_exhausted, queue.highest) = (true, None),
                Some(Behind::More) => queue.is_exhausted = false,
                None => {}
            }
        }
        state.queues.follow(&self.lane);
        state.feed();
    }
}

/// What limits a held job from now on.
#[derive(Clone, Debug)]
pub struct Relimited {
    /// The job.
    pub job: Arc<str>,
    /// Which claim of it.
    pub generation: Gen,
    /// Its limits.
    pub limits: Arc<[Limited]>,
}

impl Default for Hold {
    fn default() -> Hold {
        let state = HoldState::default();
        Hold {
            glance: Arc::clone(&state.glance),
            state: Mutex::new(state),
            hurry: Notify::new(),
        }
    }
}

impl Hold {
    pub(super) fn state(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock()
    }

    /// Whether the hold is empty, of jobs in hand too.
    pub fn is_empty(&self) -> bool {
        self.glance.known.load(Ordering::Acquire) == 0
    }

    /// The store said that groups with a share were served so much.
    pub fn served(&self, served: &[Served], now: Timestamp) {
        if !served.is_empty() {
            self.state().fair.note(served, now);
        }
    }

    /// `n` jobs of the lane are being asked of the backend.
    pub fn expect(self: &Arc<Hold>, lane: &Lane, n: usize, now: Instant) -> Coming {
        self.state().queues.open(lane, now).asked_at = Some(now);
        self.coming(lane, n, now)
    }

    /// Notes that `n` jobs of the lane are on their way into the hold: until they come they are in no hold.
    pub fn coming(self: &Arc<Hold>, lane: &Lane, n: usize, now: Instant) -> Coming {
        let mut state = self.state();
        state.in_flight += n;
        state.queues.open(lane, now).in_flight += n;
        state.queues.follow(lane);
        Coming {
            hold: Arc::clone(self),
            lane: lane.clone(),
            jobs: n,
            behind: None,
        }
    }

    /// Adds fresh claims. A job that is already held is replaced: the backend handed it out again, so
    /// the earlier claim is void. The first who waits for one of them is woken.
    pub fn add(&self, jobs: Vec<Held>) {
        let mut state = self.state();
        let mut lanes: SmallVec<[Lane; 1]> = jobs.iter().map(Held::lane).collect();
        lanes.dedup();
        for held in jobs {
            state.add(held);
        }
        for lane in &lanes {
            if let Some(queue) = state.queues.get(lane) {
                queue.line.wake();
            }
        }
    }

    /// Takes a started job back that did not go out: it waits again where it stood.
    pub fn take_back(&self, mut held: Held) {
        let short = held.stay();
        let mut state = self.state();
        if state.jobs.contains_key(&held.claimed.job) {
            return;
        }
        let lane = held.lane();
        state.enter(held);
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

    /// A job of this priority waits in the backend: it is asked before held jobs of lower ones go out.
    pub fn saw(&self, queue_name: &str, priority: i32) {
        self.state().queues.change_busy(queue_name, |queue| {
            queue.saw(priority);
            queue.asked_at = None;
        });
    }

    /// A job came to a subqueue of this queue: the first who waits asks for it at once. Else it would ask a quarter of a
    /// second after it last did, although the job has to wait for nothing.
    pub fn arrived(&self, queue_name: &str) {
        if self.is_empty() {
            return;
        }
        self.state().queues.change_busy(queue_name, |queue| {
            queue.asked_at = None;
            queue.line.wake();
        });
    }

    /// The backend said at `since` that the job is ours for `visibility` from then. What it has said later counts.
    pub fn proved(&self, job: &str, since: Instant, visibility: Duration) {
        let mut state = self.state();
        let HoldState { queues, jobs, .. } = &mut *state;
        let Some(known) = jobs.get_mut(job) else {
            return;
        };
        let held = match &mut known.whereabouts {
            Whereabouts::Hidden(held) => Some(held),
            Whereabouts::Offered(offer) => Some(&mut offer.held),
            Whereabouts::Waiting(stand) => {
                (queues.get_mut(&known.lane)).and_then(|queue| queue.groups.job_mut(*stand))
            }
            Whereabouts::InHand => None,
        };
        if let Some(held) = held.filter(|held| held.proof.at <= since) {
            held.proof = Proof::new(since, visibility);
            let (job, due_at) = (held.claimed.job.clone(), held.due_at());
            state.note_due(&job, due_at);
        }
    }

    /// Puts waiting jobs under other limits, in one step. All of their groups may be asked at once.
    /// Within a priority they stand in the order in which they were claimed. What is not named here
    /// keeps its limits until it is picked.
    pub fn relimit(&self, edition: u64, jobs: Vec<Relimited>) {
        let mut limits: HashMap<Arc<str>, Relimited> =
            jobs.into_iter().map(|job| (job.job.clone(), job)).collect();
        let mut state = self.state();
        state.edition = state.edition.max(edition);
        let woken = state.woken();
        let HoldState { queues, jobs, .. } = &mut *state;
        for queue in queues.values_mut() {
            for mut held in queue.groups.take_before(edition) {
                let job = held.claimed.job.clone();
                let new = limits.remove(&job);
                if let Some(new) = new.filter(|new| new.generation == held.claimed.generation) {
                    held.limit(new.limits, edition);
                }
                let stand = queue.groups.place(held, woken);
                if let Some(known) = jobs.get_mut(&job) {
                    known.whereabouts = Whereabouts::Waiting(stand);
                }
            }
        }
    }

    /// How many jobs more of the lane may be claimed before it has its share of the hold, which has `most` places. Claims
    /// under way count as held.
    pub fn places(&self, lane: &Lane, most: Amount) -> Lookahead {
        let mut state = self.state();
        let queue = state.queues.get(lane);
        let (held, asked) = queue.map_or((0, 0), |queue| {
            (queue.known.saturating_sub(queue.heads), queue.in_flight)
        });
        let filled = state.filled();
        let more = filled.share(most, state.in_flight, held + asked);
        if more > 0 {
            return Lookahead::Free(more);
        }
        if filled.share(most, 0, held) > 0 || state.picked > 0 {
            state.starved = true;
            return Lookahead::Soon;
        }
        if held < FEW {
            state.refused_at = Some(Instant::now());
        }
        Lookahead::Full
    }

    /// Whether a lane of which next to nothing is held found no place within this time.
    pub fn lacked_places(&self, within: Duration) -> bool {
        let refused_at = self.state().refused_at;
        refused_at.is_some_and(|at| at.elapsed() < within)
    }

    /// A slot of these keys ended, or a start of theirs was undone: whoever waits for one of them may
    /// ask again.
    pub fn wake(&self, freed: &[Limited]) {
        let keys = freed.iter().map(|one| (one.space, one.key.clone()));
        self.wake_keys(&SmallVec::<[_; 4]>::from_iter(keys));
    }

    /// A slot of these keys ended, of which nothing else is known.
    pub fn wake_keys(&self, freed: &[(Space, Key)]) {
        let mut state = self.state();
        let wakes = state.woken();
        // Most lanes of a sidecar with many queues have nothing to wake.
        for queue in state.queues.values_mut().filter(|queue| queue.is_needed()) {
            let mut woken = false;
            for of in freed {
                // The queue's own limits may have been set since its jobs were read.
                if of.0 == Space::Queue && of.1 == queue.key {
                    queue.groups.wake_all(wakes);
                    woken = true;
                }
                let mut gate = queue.gate.limited.iter();
                woken |= gate.any(|one| (one.space, &one.key) == (of.0, &of.1));
                woken |= queue.groups.wake(of, wakes);
            }
            if woken {
                queue.line.wake();
            }
        }
    }

    /// Why jobs were refused is not to be counted on any more (a slot that ended unheard, a store that is
    /// back): all may be asked for again.
    pub fn ask_all(&self) {
        let mut state = self.state();
        let wakes = state.woken();
        for queue in state.queues.values_mut() {
            queue.groups.wake_all(wakes);
            queue.line.wake_all();
        }
    }

    /// Wakes every waiting FETCH (drain).
    pub fn wake_all(&self) {
        for queue in self.state().queues.values() {
            queue.line.wake_all();
        }
    }

    /// Drops lanes that hold nothing, wait for nothing and were not asked about since `before`, and
    /// groups without jobs.
    pub fn tidy(&self, before: Instant) {
        let mut state = self.state();
        for queue in state.queues.values_mut() {
            queue.groups.tidy();
        }
        state
            .queues
            .retain(|queue| queue.is_needed() || queue.fetched_at >= before);
    }

    /// Forgets everything (`dev`'s reset).
    pub fn clear(&self) {
        let mut state = self.state();
        for queue in state.queues.values() {
            queue.line.wake_all();
        }
        *state = HoldState {
            waiters: state.waiters,
            edition: state.edition,
            glance: Arc::clone(&state.glance),
            ..HoldState::default()
        };
        self.glance.known.store(0, Ordering::Release);
        self.glance.offers.store(0, Ordering::Release);
    }
}
