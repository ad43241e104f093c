//! What can touch a FETCH, and its sections: its queues, as they are asked.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::asked::{self, Asked, Wanted, once};
use super::cap::Cap;
use crate::answers::respond::Fault;
use crate::desk::claims::ClaimTask;
use crate::desk::live::Live;
use crate::desk::{Proxy, Sidecar};
use crate::hold::Lane;
use crate::inquiry::in_force;
use crate::jobs::siblings;
use crate::policy::{Gate, PolicySet};
use crate::store::LedgerExt;

/// What can touch a FETCH here, found out once.
pub(super) struct Reach<'a> {
    pub(super) sidecar: &'a Sidecar,
    pub(super) live: &'a Live,
    /// Whether jobs are held.
    pub(super) held: bool,
    /// Whether anything limits any queue.
    limits: bool,
    /// Whether any queue is bounded.
    bounds: bool,
    /// Whether any limit is in shadow.
    shadow: bool,
}

impl<'a> Reach<'a> {
    pub(super) fn of(sidecar: &'a Sidecar, live: &'a Live) -> Reach<'a> {
        let held = sidecar.holds_any();
        let limited = !live.policies.is_empty() || sidecar.fetching.limited.any();
        Reach {
            sidecar,
            live,
            held,
            limits: held || limited || sidecar.subqueues.any(),
            bounds: sidecar.admit.pressure.any(),
            shadow: live.policies.shadow().is_some(),
        }
    }

    /// Reads a FETCH, if anything can touch it.
    ///
    /// # Errors
    /// It cannot be read, and what comes may be limited; or it asks for more than we ask for.
    pub(super) fn read(&self, body: &[u8]) -> Result<Option<Asked>, Fault> {
        let refuses = self.limits || self.bounds;
        let asked = (refuses || self.shadow).then(|| Asked::read(body));
        let asked = asked.flatten();
        match asked::fault(body, asked.as_ref().filter(|_| refuses), self.limits) {
            Some(fault) => Err(fault),
            None => Ok(asked),
        }
    }

    /// Whether jobs may come that are limited, and nobody knows of which queues. What we do not understand but the
    /// backend does must not go round the limits.
    pub(super) fn is_unread(&self, wanted: &Wanted) -> bool {
        self.limits && wanted.asked.is_none()
    }

    /// Whether limits can touch one of its queues, and how they are asked then.
    pub(super) async fn course(&self, proxy: &Proxy, wanted: &mut Wanted) -> Course {
        let is_touched = |queue: &Arc<str>| {
            self.held
                || !self.live.policies.gate(queue).open()
                || self.sidecar.fetching.limited.has(queue)
                || self.sidecar.subqueues.has(queue)
        };
        if !wanted.queues().iter().any(is_touched) {
            return Course::Whole;
        }
        (wanted.scope, wanted.accepted) = self.sidecar.scopes.of_known(&wanted.headers);
        // What is offered is held.
        if self.held {
            siblings::take_over_of(proxy, wanted.scope, wanted.queues()).await;
        }
        let policies = &self.live.policies;
        let sections = sections_of(self.sidecar, wanted.scope, wanted.queues(), policies);
        match sections.iter().any(Section::is_limited) {
            true => Course::Sections(sections),
            false => Course::Whole,
        }
    }
}

/// How a FETCH goes on.
pub(super) enum Course {
    /// To the backend as it is: no limit can touch it by its queues.
    Whole,
    /// Section by section, of which limits can touch one at least.
    Sections(Vec<Section>),
    /// Nowhere: there is nothing for it.
    Nothing,
}

/// Queues that are asked together: one that limits can touch, or a run of others.
pub(super) struct Section {
    pub(super) lanes: SmallVec<[Lane; 1]>,
    /// What the name of a limited queue says; `None`: no limit can touch these queues.
    pub(super) gate: Option<Gate>,
    /// How many jobs the next claim asks for at least: twice as many each time.
    pub(super) next: usize,
    /// What may be claimed of it in this round.
    pub(super) stage: Stage,
    /// Whether the queue itself has no more in this round; its subqueues may.
    pub(super) is_short: bool,
    /// Whether its limits or the hold left no room in the round before.
    pub(super) was_closed: bool,
    /// A claim that the FETCH no longer waits for: what it brings may still come in time.
    pub(super) running: Option<ClaimTask>,
}

/// What may be claimed of a section in one round.
pub(super) enum Stage {
    /// There may be more in the backend.
    Open,
    /// The backend has no more, or the round has no time for it.
    Spent,
    /// There is no room for more: why, and when that may change.
    Closed(Cap),
}

/// Queues in order, each once: those that limits can touch by themselves, the others in runs.
pub(super) fn sections_of(
    sidecar: &Sidecar,
    scope: u64,
    queues: &[Arc<str>],
    policies: &PolicySet,
) -> Vec<Section> {
    let (mut sections, now) = (Vec::<Section>::new(), sidecar.store.now());
    // Mostly nothing is held anywhere, and a FETCH may name a thousand queues.
    let holds_any = sidecar.holds_any();
    for queue in once(queues) {
        let lane = Lane {
            scope,
            queue: queue.clone(),
        };
        let mut gate = policies.gate(queue).into_owned();
        // Jobs with limits of their own make any queue a limited one.
        gate.keyed |= (holds_any && sidecar.hold.look(&lane, 0, now).is_held)
            || sidecar.fetching.limited.has(queue)
            || sidecar.subqueues.has(queue);
        let is_open = gate.open() && in_force::set_for_queue(sidecar, queue).is_none();
        match sections.last_mut() {
            Some(run) if is_open && run.gate.is_none() => run.lanes.push(lane),
            _ => sections.push(Section::of(lane, (!is_open).then_some(gate))),
        }
    }
    sections
}

impl Section {
    fn of(lane: Lane, gate: Option<Gate>) -> Section {
        Section {
            lanes: smallvec![lane],
            gate,
            next: 1,
            stage: Stage::Open,
            is_short: false,
            was_closed: false,
            running: None,
        }
    }

    /// Whether limits can touch its jobs.
    pub(super) fn is_limited(&self) -> bool {
        self.gate.is_some()
    }

    /// A round begins.
    pub(super) fn begin(&mut self) {
        self.was_closed = self.closed().is_some();
        self.stage = Stage::Open;
        self.is_short = false;
        self.next = 1;
    }

    /// Held jobs have started, and others may be claimed in their places.
    pub(super) fn leave_places(&mut self) {
        if self.closed().is_some() && self.gate.as_ref().is_some_and(|gate| gate.keyed) {
            self.stage = Stage::Open;
        }
    }

    /// Why nothing may be claimed of it, if that is so.
    pub(super) fn closed(&self) -> Option<&Cap> {
        match &self.stage {
            Stage::Closed(cap) => Some(cap),
            Stage::Open | Stage::Spent => None,
        }
    }

    /// The queue that limits can touch.
    pub(super) fn limited(&self) -> Option<&Lane> {
        self.lanes.first().filter(|_| self.gate.is_some())
    }

    /// How many of its held jobs may be asked for, up to `most`, and whether the backend must be asked before they are:
    /// it may have one of a higher priority.
    pub(super) fn ready(&self, sidecar: &Sidecar, most: usize) -> Ready {
        let now = sidecar.store.now();
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|lane| !sidecar.fetching.paused.has(&lane.queue));
        lanes.fold(Ready::default(), |ready, lane| {
            let view = sidecar.hold.look(lane, most, now);
            let held = || sidecar.hold.of_subqueues(lane, now);
            let has_higher = |best| {
                let subqueues = &sidecar.subqueues;
                subqueues.any() && subqueues.outranks(lane, best, held, sidecar.most_held())
            };
            let is_outranked = view.is_outranked || view.best.is_some_and(has_higher);
            Ready {
                jobs: ready.jobs + view.askable,
                is_outranked: ready.is_outranked || (self.gate.is_some() && is_outranked),
            }
        })
    }
}

/// What of a section is held and may be asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Ready {
    pub(super) jobs: usize,
    pub(super) is_outranked: bool,
}
