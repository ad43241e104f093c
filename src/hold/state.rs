//! What the hold's lock guards: the lanes, and where each known job is.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use hashbrown::hash_map::EntryRef;
use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::held::{GroupId, Held, Offer};
use super::lane::Lane;
use super::lanes::Lanes;
use super::order::{KnownShares, are_alike, order};
use super::queue::{Group, Queue, Stand};
use super::refusal::{Refusal, Wakes};
use ojs_limit::share_of;
use ojs_store::{Claimed, Gen};

/// Where a known job is.
#[derive(Debug)]
pub(super) enum Whereabouts {
    /// In its group.
    Waiting(Stand),
    /// Picked, to be started, dropped or given back.
    InHand,
    /// Out of its group, because a cancel, a delete or a settle that names it is under way.
    Hidden(Held),
    /// Out of its group, because siblings may have it.
    Offered(Box<Offer>),
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) generation: Gen,
    pub(super) lane: Lane,
    pub(super) attempt: Option<u32>,
    pub(super) bytes: usize,
    /// Whether it was claimed from a subqueue.
    pub(super) is_head: bool,
    pub(super) whereabouts: Whereabouts,
    /// When its claim is to be looked at.
    pub(super) due_at: Option<Instant>,
    /// Whether it is to be hidden as soon as it is put back.
    pub(super) hide: bool,
}

impl Known {
    /// Whether it is being asked for.
    pub(super) fn is_picked(&self) -> bool {
        matches!(self.whereabouts, Whereabouts::InHand)
    }

    /// Whether it is this claim of the job that is in hand.
    pub(super) fn in_hand(&self, held: &Held) -> bool {
        self.is_picked() && self.generation == held.claimed.generation
    }
}

/// What is seen of the hold without its lock.
#[derive(Default, Debug)]
pub(super) struct Glance {
    /// How many jobs are known: mostly none, and then this answers what would need the lock. Written before
    /// anybody is woken for one of them.
    pub(super) known: AtomicUsize,
    /// How often jobs were let be asked for again.
    pub(super) wakes: AtomicU64,
    /// How many jobs are offered to siblings.
    pub(super) offers: AtomicUsize,
}

#[derive(Default, Debug)]
pub(super) struct HoldState {
    pub(super) queues: Lanes,
    pub(super) jobs: HashMap<Arc<str>, Known>,
    pub(super) glance: Arc<Glance>,
    pub(super) bytes: usize,
    /// When a lane of which next to nothing is held last found no place.
    pub(super) refused_at: Option<Instant>,
    pub(super) in_flight: usize,
    /// Whether a FETCH found the hold full of what was still on its way.
    pub(super) starved: bool,
    pub(super) waiters: u64,
    /// The latest edition of the policies that jobs here were put under.
    pub(super) edition: u64,
    /// How many jobs have come so far.
    pub(super) came: u64,
    /// What groups with a share were served.
    pub(super) fair: KnownShares,
    /// The known jobs of whose claims the store has not heard.
    pub(super) unnamed: HashSet<Arc<str>>,
    /// The jobs that are offered to siblings, by lane and claim. Two jobs may have claims of one number.
    pub(super) offered: HashMap<Lane, BTreeSet<(Gen, Arc<str>)>>,
    /// When claims are to be looked at, the earliest first. A job's own time says which of several counts.
    pub(super) due: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    /// How many jobs are in hand.
    pub(super) picked: usize,
    /// Those of them that are to end, and that the backend does not end.
    pub(super) stuck: HashMap<Arc<str>, Claimed>,
    /// How many jobs of subqueues are known. Each subqueue has a few places of its own.
    pub(super) heads: usize,
}

impl HoldState {
    pub(super) fn wakes(&self) -> Wakes {
        Wakes(self.glance.wakes.load(Ordering::Relaxed))
    }

    /// Some jobs may be asked for again.
    pub(super) fn woken(&mut self) -> Wakes {
        Wakes(self.glance.wakes.fetch_add(1, Ordering::Release) + 1)
    }

    /// The lane, if it has jobs that are held or in hand.
    pub(super) fn holding(&self, lane: &Lane) -> Option<&Queue> {
        self.queues.get(lane).filter(|queue| queue.known > 0)
    }

    /// A job has left, or what was on its way is here or did not come: others may wait for the places.
    pub(super) fn feed(&mut self) {
        if std::mem::take(&mut self.starved) {
            self.queues.values().for_each(|queue| queue.line.wake());
        }
    }

    /// A known job waits, in its place; says in which group.
    pub(super) fn place(&mut self, held: Held) -> Option<GroupId> {
        let (now, wakes) = (held.since, self.wakes());
        let HoldState { queues, jobs, .. } = self;
        let known = jobs.get_mut(&held.claimed.job)?;
        let queue = queues.open(&known.lane, now);
        let stand = queue.groups.place(held, wakes);
        known.whereabouts = Whereabouts::Waiting(stand);
        Some(stand.group)
    }

    /// A job comes, behind all others.
    pub(super) fn add(&mut self, mut held: Held) {
        self.came += 1;
        held.place = self.came;
        self.enter(held);
    }

    /// A job becomes known, and waits in its place. An earlier claim of it is not known any more.
    pub(super) fn enter(&mut self, mut held: Held) {
        // It may be a part of a reply, all of which would stay as long as it waits.
        held.body = Bytes::copy_from_slice(&held.body);
        let (lane, bytes, wakes) = (held.lane(), held.body.len(), self.wakes());
        let (job, due_at) = (held.claimed.job.clone(), held.due_at());
        let (named, is_head) = (held.named, held.subqueue.is_some());
        let queue = self.queues.open(&lane, held.since);
        let was_busy = queue.is_busy();
        queue.known += 1;
        queue.heads += usize::from(is_head);
        queue.moved += 1;
        queue.saw(held.claimed.priority);
        let known = Known {
            generation: held.claimed.generation,
            lane: lane.clone(),
            attempt: held.claimed.attempt,
            bytes,
            is_head,
            whereabouts: Whereabouts::Waiting(queue.groups.place(held, wakes)),
            due_at: None,
            hide: false,
        };
        if !was_busy {
            self.queues.follow(&lane);
        }
        if let Some(earlier) = self.jobs.insert(job.clone(), known) {
            self.left(&job, earlier);
        }
        self.glance.known.store(self.jobs.len(), Ordering::Release);
        self.bytes += bytes;
        self.heads += usize::from(is_head);
        if !named {
            self.unnamed.insert(job.clone());
        }
        self.note_due(&job, due_at);
    }

    /// A job that is neither in hand nor gone.
    pub(super) fn find(&self, job: &str) -> Option<&Held> {
        let known = self.jobs.get(job)?;
        match &known.whereabouts {
            Whereabouts::Waiting(stand) => self.queues.get(&known.lane)?.groups.job(*stand),
            Whereabouts::InHand => None,
            Whereabouts::Hidden(held) => Some(held),
            Whereabouts::Offered(offer) => Some(&offer.held),
        }
    }

    /// How many jobs of its lane and priority have their turn before this one, if it takes a share.
    pub(super) fn turns_before(&self, this: &Held) -> Option<usize> {
        share_of(&this.written)?;
        let queue = self.queues.get(&this.lane())?;
        let groups = queue.groups.of_priority(this.claimed.priority);
        let groups: Vec<&Group> = groups.map(|(_, group)| group).collect();
        let mut jobs: Vec<_> = groups.iter().map(|group| group.jobs.iter()).collect();
        let turns = order(&groups, &self.fair, usize::MAX, usize::MAX);
        let mut leaves = turns
            .into_iter()
            .filter_map(|nth| jobs.get_mut(nth)?.next());
        leaves.position(|held| held.claimed.job == this.claimed.job)
    }

    pub(super) fn take_in_hand(&mut self, picked: &[Held]) {
        for held in picked {
            if let Some(known) = self.jobs.get_mut(&held.claimed.job) {
                known.whereabouts = Whereabouts::InHand;
                self.picked += 1;
            }
        }
    }

    /// A waiting job, out of its group: the caller says where it is from now on.
    pub(super) fn take_out(&mut self, job: &str) -> Option<(&mut Known, Held)> {
        let HoldState { queues, jobs, .. } = self;
        let known = jobs.get_mut(job)?;
        let Whereabouts::Waiting(stand) = &known.whereabouts else {
            return None;
        };
        let held = queues.get_mut(&known.lane)?.groups.take(*stand)?;
        Some((known, held))
    }

    /// A picked job goes out. `false`: it may not, because it was hidden, replaced or forgotten meanwhile.
    pub(super) fn start(&mut self, held: &Held) -> bool {
        let job = &*held.claimed.job;
        let EntryRef::Occupied(known) = self.jobs.entry_ref(job) else {
            return false;
        };
        if known.get().hide || !known.get().in_hand(held) {
            return false;
        }
        let known = known.remove();
        let lane = self.left(job, known);
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.groups.turn_over(held.group);
        }
        true
    }

    /// A picked job waits again where it stood, or is hidden if it is to be. `refused` says why it may not be asked
    /// for, and since which of the hold's wakes; it holds for all of its group. Returns `false` if it does not wait, because it is hidden or was replaced or
    /// forgotten meanwhile.
    pub(super) fn wait_again(&mut self, held: Held, refused: Option<(Refusal, Wakes)>) -> bool {
        let Some(known) = self.jobs.get_mut(&held.claimed.job) else {
            return false;
        };
        if !known.in_hand(&held) {
            return false;
        }
        self.picked -= 1;
        self.stuck.remove(&held.claimed.job);
        if held.named {
            self.unnamed.remove(&held.claimed.job);
        }
        let (job, due_at) = (held.claimed.job.clone(), held.due_at());
        if known.hide {
            known.whereabouts = Whereabouts::Hidden(held);
            self.note_due(&job, due_at);
            return false;
        }
        let (lane, priority, edition) = (held.lane(), held.claimed.priority, held.edition);
        let limits = held.written.clone();
        let group = self.place(held);
        // While it was in hand it may have been doubted.
        self.note_due(&job, due_at);
        // What was refused under earlier limits is asked again under those of now.
        let refused = refused.filter(|_| edition == self.edition);
        if let (Some((refusal, picked)), Some(queue)) = (refused, self.queues.get_mut(&lane)) {
            // Where others that are alike were refused just now, so were all of them.
            if group.is_some_and(|id| queue.groups.is_refused_so(id, &refusal)) {
                return true;
            }
            let alike: Vec<GroupId> = match share_of(&limits) {
                None => group.into_iter().collect(),
                Some(_) => {
                    let is_alike = |group: &Group| {
                        group.edition == edition && are_alike(&group.limits, &limits)
                    };
                    let groups = queue.groups.of_priority(priority);
                    let alike = groups.filter(|(_, group)| is_alike(group));
                    alike.map(|(id, _)| id).collect()
                }
            };
            for id in alike {
                queue.groups.refuse(id, refusal.clone(), picked);
            }
        }
        true
    }

    pub(super) fn forget_claim(&mut self, job: &str, generation: Gen) -> bool {
        let known = self.jobs.get(job);
        known.is_some_and(|known| known.generation == generation) && self.leave(job).is_some()
    }

    /// A job is not known any more; says where it was.
    pub(super) fn leave(&mut self, job: &str) -> Option<Lane> {
        let known = self.jobs.remove(job)?;
        let lane = self.left(job, known);
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.moved += 1;
        }
        Some(lane)
    }

    /// What was known of a job is known no longer; says where it was.
    fn left(&mut self, job: &str, known: Known) -> Lane {
        if let Whereabouts::Offered(offer) = &known.whereabouts {
            self.note_offer_over(&known.lane, &offer.held.claimed);
        }
        self.unnamed.remove(job);
        self.stuck.remove(job);
        self.picked -= usize::from(known.is_picked());
        self.glance.known.store(self.jobs.len(), Ordering::Release);
        self.bytes = self.bytes.saturating_sub(known.bytes);
        let heads = usize::from(known.is_head);
        self.heads = self.heads.saturating_sub(heads);
        if let Some(queue) = self.queues.get_mut(&known.lane) {
            queue.known = queue.known.saturating_sub(1);
            queue.heads = queue.heads.saturating_sub(heads);
            if let Whereabouts::Waiting(stand) = &known.whereabouts {
                queue.groups.take(*stand);
            }
            if !queue.is_busy() {
                self.queues.follow(&known.lane);
            }
        }
        self.feed();
        known.lane
    }
}
