//! What the hold's lock guards: the lanes, and where each known job is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use hashbrown::HashMap;

use super::doom::Doom;
use super::idle::Amount;
use super::lanes::Lanes;
use super::queue::Queue;
use super::{Held, Lane, Wakes};
use crate::store::Gen;

/// Where a known job is.
#[derive(Debug)]
pub(super) enum Whereabouts {
    /// In its group.
    Waiting,
    /// Being asked for.
    InHand,
    /// Out of its group, because a cancel, a delete or a settle that names it is under way, or it is to
    /// be dropped.
    Hidden(Box<Held>),
    /// Out of its group, because it may be a sibling's by now.
    Aside(Box<Held>),
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) generation: Gen,
    pub(super) lane: Lane,
    pub(super) priority: i32,
    pub(super) attempt: Option<u32>,
    pub(super) bytes: usize,
    pub(super) whereabouts: Whereabouts,
    /// Whether it is to be hidden as soon as it is put back.
    pub(super) hide: bool,
    /// Whether it is to be ended instead of started, and how far that is.
    pub(super) doom: Option<Doom>,
}

impl Known {
    /// Whether it is this claim of the job that is in hand.
    pub(super) fn in_hand(&self, held: &Held) -> bool {
        matches!(self.whereabouts, Whereabouts::InHand)
            && self.generation == held.claimed.generation
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
}

#[derive(Default, Debug)]
pub(super) struct State {
    pub(super) queues: Lanes,
    pub(super) jobs: HashMap<Arc<str>, Known>,
    pub(super) glance: Arc<Glance>,
    pub(super) bytes: usize,
    /// What idle lanes hold.
    pub(super) idle: Amount,
    /// Whether a FETCH found no place for what idle lanes hold.
    pub(super) crowded: bool,
    pub(super) in_flight: usize,
    /// Whether a FETCH found the hold full of what was still on its way.
    pub(super) starved: bool,
    pub(super) waiters: u64,
    /// The latest edition of the policies that jobs here were put under.
    pub(super) edition: u64,
}

/// Which end of its group a job goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

impl State {
    fn wakes(&self) -> Wakes {
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

    /// What was on its way is here, or did not come: others may wait for the places that it might have filled.
    pub(super) fn feed(&mut self) {
        if std::mem::take(&mut self.starved) {
            self.queues.values().for_each(|queue| queue.line.wake());
        }
    }

    pub(super) fn place(&mut self, held: Held, end: End) {
        let (now, wakes) = (held.since, self.wakes());
        self.queues.open(&held.lane(), now).place(held, end, wakes);
    }

    /// A job becomes known and waits.
    pub(super) fn enter(&mut self, mut held: Held, end: End) {
        let wakes = self.wakes();
        let queue = self.know(&mut held, Whereabouts::Waiting);
        queue.saw(held.claimed.priority);
        queue.place(held, end, wakes);
    }

    /// A job becomes known.
    pub(super) fn know(&mut self, held: &mut Held, whereabouts: Whereabouts) -> &mut Queue {
        // It may be a part of a reply, all of which would stay as long as it waits.
        held.body = Bytes::copy_from_slice(&held.body);
        let lane = held.lane();
        let bytes = held.body.len();
        self.bytes += bytes;
        let known = Known {
            generation: held.claimed.generation,
            lane: lane.clone(),
            priority: held.claimed.priority,
            attempt: held.claimed.attempt,
            bytes,
            whereabouts,
            hide: false,
            doom: None,
        };
        self.jobs.insert(held.claimed.job.clone(), known);
        self.glance.known.store(self.jobs.len(), Ordering::Release);
        let queue = self.queues.open(&lane, held.since);
        queue.known += 1;
        queue.bytes += bytes;
        if queue.idle {
            self.idle.jobs += 1;
            self.idle.bytes += bytes;
        }
        queue
    }

    /// Jobs that are neither in hand nor gone.
    pub(super) fn each(&self) -> impl Iterator<Item = &Held> {
        let apart = self
            .jobs
            .values()
            .filter_map(|known| match &known.whereabouts {
                Whereabouts::Hidden(held) | Whereabouts::Aside(held) => Some(&**held),
                _ => None,
            });
        self.queues.values().flat_map(Queue::jobs).chain(apart)
    }

    pub(super) fn take_in_hand(&mut self, picked: &[Held]) {
        for held in picked {
            if let Some(known) = self.jobs.get_mut(&held.claimed.job) {
                known.whereabouts = Whereabouts::InHand;
            }
        }
    }

    /// A waiting job, out of its group: the caller says where it is from now on.
    pub(super) fn take_out(&mut self, job: &str) -> Option<(&mut Known, Held)> {
        let State { queues, jobs, .. } = self;
        let known = jobs.get_mut(job)?;
        let held = queues.get_mut(&known.lane)?.remove(known.priority, job)?;
        Some((known, held))
    }

    /// A job in hand waits again, or is hidden if it is to be. `false`: it does not wait, because it is hidden or
    /// was replaced or forgotten meanwhile.
    pub(super) fn wait_again(&mut self, held: Held, end: End) -> bool {
        let Some(known) = self.jobs.get_mut(&held.claimed.job) else {
            return false;
        };
        if !known.in_hand(&held) {
            return false;
        }
        if known.hide {
            known.whereabouts = Whereabouts::Hidden(Box::new(held));
            return false;
        }
        known.whereabouts = Whereabouts::Waiting;
        self.place(held, end);
        true
    }

    pub(super) fn forget_claim(&mut self, job: &str, generation: Gen) -> bool {
        let known = self.jobs.get(job);
        known.is_some_and(|known| known.generation == generation) && self.leave(job).is_some()
    }

    /// A job is not known any more; says where it was.
    pub(super) fn leave(&mut self, job: &str) -> Option<Lane> {
        let known = self.jobs.remove(job)?;
        self.glance.known.store(self.jobs.len(), Ordering::Release);
        self.bytes = self.bytes.saturating_sub(known.bytes);
        if let Some(queue) = self.queues.get_mut(&known.lane) {
            queue.known = queue.known.saturating_sub(1);
            queue.bytes = queue.bytes.saturating_sub(known.bytes);
            if queue.idle {
                self.idle = self.idle.less(1, known.bytes);
            }
            if matches!(known.whereabouts, Whereabouts::Waiting) {
                queue.remove(known.priority, job);
            }
        }
        Some(known.lane)
    }
}
