//! Whether an enqueue fits: all of its queues are asked, and then it has places in all of them or in none.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::edge::LastRefusal;
use super::fleet::want_places;
use super::groups::FullGroup;
use super::line::WantedAhead;
use super::look::{Awaited, BeginLook};
use super::queue::BoundedQueue;
use super::queue::answer::{QueueAnswer, QueueAsk};
use super::seen::{Away, EnqueueOutcome};
use super::state::{BoundedQueues, Come, Pressure, PressureState, TakenPlaces};
use super::want::{Full, Now, Want};

/// The answer to an enqueue.
#[derive(Debug)]
pub enum Admission {
    /// It fits: its places are taken.
    Go(TakenPlaces),
    /// The backend must be asked first how deep queues are, or the store must grant places in them. The caller makes the
    /// looks that it must, waits for all of these and asks again.
    Wait(Vec<Awaited>),
    /// It fits once the caller has dropped a job of this queue.
    Drop(Arc<str>),
    /// It does not fit.
    Full(Box<Full>),
    /// It may not fit, and the backend does not say.
    Away(Away),
}

/// Who asks for places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WhoAsks {
    /// An enqueue that has just come.
    New,
    /// One that stands in line: it begins looks at its own times.
    InLine,
}

/// What the queues of one enqueue say to it. It needs the consent of all, so what each asks for is gathered first.
#[derive(Default)]
struct QueueAnswers {
    /// The bound that is told, of all that are met.
    full: Option<Box<Full>>,
    /// Why the backend cannot be asked about one of them.
    away: Option<Away>,
    /// Those whose depth must be asked of the backend first.
    look_first: Vec<(Arc<str>, BeginLook)>,
    /// One in which a job must be dropped.
    drop_in: Option<Arc<str>>,
    /// Those in which the store must grant places, and how many.
    of_store: Vec<(Arc<str>, u64)>,
    /// Those in which it fits, and whose depth should be asked of the backend soon.
    look_soon: Vec<Arc<str>>,
}

impl QueueAnswers {
    fn note(&mut self, want: &Want, answer: QueueAnswer) {
        let name = || Arc::clone(&want.queue);
        match answer {
            QueueAnswer::Full(found) => {
                let is_higher = |full: &Full| found.rank() > full.rank();
                if self.full.as_deref().is_none_or(is_higher) {
                    self.full = Some(found);
                }
            }
            QueueAnswer::Away(away) => self.away = Some(away),
            QueueAnswer::Look(begin) => self.look_first.push((name(), begin)),
            QueueAnswer::Drop => self.drop_in = Some(name()),
            QueueAnswer::Places => self.of_store.push((name(), want.jobs)),
            QueueAnswer::Fits { look_soon: true } => self.look_soon.push(name()),
            QueueAnswer::Fits { look_soon: false } => {}
        }
    }
}

impl Pressure {
    /// Asks for places in all the queues of an enqueue, in the order of their names, and takes them if it fits.
    pub fn admit(self: &Arc<Self>, wants: &mut Vec<Want>, now: Now) -> Admission {
        self.admit_new(&mut self.state.lock(), wants, now)
    }

    pub(super) fn admit_new(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: &mut Vec<Want>,
        now: Now,
    ) -> Admission {
        state.forget_idle(now.at);
        let mut ahead = WantedAhead::default();
        for waiter in state.line.values() {
            match self.waits_for_group(&waiter.wants, &ahead) {
                true => ahead.add_groups(&waiter.wants),
                false => ahead.add(&waiter.wants),
            }
        }
        self.admit_beside(state, wants, now, &ahead, WhoAsks::New)
    }

    /// Whether an enqueue waits until a group of its jobs has room, whatever its queues have: it keeps none of theirs.
    pub(super) fn waits_for_group(&self, wants: &[Want], ahead: &WantedAhead) -> bool {
        let full = self.groups.full(&self.table.load(), wants, ahead);
        full.is_some()
    }

    /// Asks for places beside what those want who wait `ahead`.
    fn admit_beside(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: &mut Vec<Want>,
        now: Now,
        ahead: &WantedAhead,
        who: WhoAsks,
    ) -> Admission {
        let mut answers = self.ask_queues(&mut state.queues, wants, now, ahead);
        if let Some(never) = answers.full.take_if(|full| !full.may_ever_fit()) {
            return Admission::Full(never);
        }
        if let Some(away) = answers.away {
            return Admission::Away(away);
        }
        if !answers.look_first.is_empty() {
            let looks = answers.look_first.into_iter();
            let looks = looks.filter(|_| who == WhoAsks::New);
            let looks = looks.filter_map(|(name, begin)| begin(&mut state.queues, name));
            return Admission::Wait(looks.collect());
        }
        if let Some(full) = answers.full {
            return Admission::Full(full);
        }
        if let Some(queue) = answers.drop_in {
            return Admission::Drop(queue);
        }
        if !answers.of_store.is_empty() {
            return Admission::Wait(want_places(state, answers.of_store));
        }
        Admission::Go(self.take(state, std::mem::take(wants), now, answers.look_soon))
    }

    /// Takes the places of an enqueue that fits.
    fn take(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: Vec<Want>,
        now: Now,
        look_soon: Vec<Arc<str>>,
    ) -> TakenPlaces {
        let mut would_refuse = Vec::new();
        for want in &wants {
            let held = || (self.held)(&want.queue);
            let queue = self.of(&mut state.queues, want, now.at);
            if queue.would_refuse(want, held) {
                would_refuse.push(Arc::clone(&want.queue));
            }
            queue.reserve(want, now);
            state.note_untold(&want.queue);
        }
        TakenPlaces {
            pressure: Arc::clone(self),
            wants,
            now,
            if_dropped: EnqueueOutcome::Refused,
            look_soon,
            would_refuse,
            has_waited: false,
        }
    }

    /// Asks each queue of an enqueue.
    fn ask_queues(
        &self,
        queues: &mut BoundedQueues,
        wants: &[Want],
        now: Now,
        ahead: &WantedAhead,
    ) -> QueueAnswers {
        let mut answers = QueueAnswers::default();
        let full_group = self.groups.full(&self.table.load(), wants, ahead);
        for want in wants {
            let is_in = |full: &&FullGroup| want.all_groups().any(|group| *group == full.group);
            let ask = QueueAsk {
                want,
                held: (self.held)(&want.queue),
                before: ahead.of(&want.queue),
                group: full_group.as_ref().filter(is_in),
                now,
            };
            let answer = self.of(queues, want, now.at).answer(&ask);
            answers.note(want, answer);
        }
        answers
    }

    /// The state of a wanted queue.
    fn of<'q>(
        &self,
        queues: &'q mut BoundedQueues,
        want: &Want,
        now: Instant,
    ) -> &'q mut BoundedQueue {
        let queue = queues
            .entry(Arc::clone(&want.queue))
            .or_insert_with_key(|name| BoundedQueue::new(name, &want.bounds, &self.groups, now));
        queue.used = now;
        queue.bounds = Arc::clone(&want.bounds);
        queue
    }

    /// Notes that a producer is told that its enqueue does not fit, and `why`. Returns whether the log has a line of it.
    pub fn note_refusal(&self, full: &Full, why: &str, now: Instant) -> bool {
        let note = |queue: &mut BoundedQueue| {
            queue.refusal = LastRefusal::of(full, why, now).or(queue.refusal.take());
            queue.edges.refused(full, now)
        };
        self.with(&full.queue, note).unwrap_or(true)
    }

    /// The queues that refused an enqueue lately although they were not full.
    pub fn refusing(&self, now: Instant) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let queues = state.queues.iter();
        let queues = queues.filter(|(_, queue)| queue.last_refusal(now).is_some());
        queues.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The last of these.
    pub fn last_refusal(&self, queue: &str, now: Instant) -> Option<LastRefusal> {
        self.with(queue, |queue| queue.last_refusal(now).cloned())?
    }

    /// Gives places to those who stand in line, in their order. Nobody passes one who waits for the same queue,
    /// unless it has room for both.
    pub(super) fn serve(self: &Arc<Self>, state: &mut PressureState, now: Now) {
        if state.line.is_empty() {
            return;
        }
        // Queues that have no room even for one who stays, and what all of those want.
        let (mut shut, mut ahead) = (HashSet::<Arc<str>>::new(), WantedAhead::default());
        let mut line = std::mem::take(&mut state.line);
        line.retain(|_, waiter| {
            if self.waits_for_group(&waiter.wants, &ahead) {
                ahead.add_groups(&waiter.wants);
                return true;
            }
            let names = || waiter.wants.iter().map(|want| Arc::clone(&want.queue));
            if waiter.tell.is_none() || names().any(|name| shut.contains(&name)) {
                ahead.add(&waiter.wants);
                return true;
            }
            let mut wants = self.bounded_now(&waiter.wants);
            match self.admit_beside(state, &mut wants, now, &ahead, WhoAsks::InLine) {
                Admission::Go(places) => {
                    waiter.tell(Come::Places(places));
                    return false;
                }
                Admission::Full(full) => shut.extend(full.is_of_queue().then_some(full.queue)),
                // Which of them has room is not known.
                Admission::Wait(_) | Admission::Away(_) => shut.extend(names()),
                // It keeps its place in the line.
                Admission::Drop(queue) => waiter.tell(Come::Drop(queue)),
            }
            ahead.add(&waiter.wants);
            true
        });
        state.line = line;
    }

    /// Gives room to those who stand in line, if there is any.
    pub fn wake(self: &Arc<Self>, now: Now) {
        let mut state = self.state.lock();
        self.serve(&mut state, now);
    }

    /// How many stand in line.
    pub fn blocked(&self) -> usize {
        self.state.lock().line.len()
    }
}
