//! Whether an enqueue fits: all of its queues are asked, and then it has places in all of them or in none.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::bounds::Bounds;
use super::edge::TellRefusal;
use super::estimate::LookKind;
use super::fleet::want_places;
use super::line::WantedAhead;
use super::look::AwaitedLook;
use super::queue::{BoundedQueue, QueueAnswer};
use super::seen::Away;
use super::state::{BoundedQueues, Come, Pressure, PressureState, TakenPlaces};
use super::want::{Full, Now, Want};

/// The answer to an enqueue.
#[derive(Debug)]
pub enum Admission {
    /// It fits: its places are taken.
    Go(TakenPlaces),
    /// The backend must be asked first how deep these queues are.
    Look(Vec<AwaitedLook>),
    /// The store must grant places in queues first: each of these ends with its answer.
    AwaitStore(Vec<OwnedNotified>),
    /// It fits once the caller has dropped a job of this queue.
    Drop(Arc<str>),
    /// It does not fit.
    Full(Box<Full>),
    /// It may not fit, and the backend does not say.
    Away(Away),
}

/// What the queues of one enqueue say to it. It needs the consent of all, so what each asks for is gathered first.
#[derive(Default)]
struct QueueAnswers {
    /// Those whose depth must be asked of the backend first.
    look_first: Vec<Arc<str>>,
    /// Those in which it fits, and whose depth should be asked of the backend soon.
    look_soon: Vec<Arc<str>>,
    /// Those in which the store must grant places, and how many.
    of_store: Vec<(Arc<str>, u64)>,
    /// One in which a job must be dropped.
    drop_in: Option<Arc<str>>,
    /// The bound that is told, of all that are met.
    full: Option<Box<Full>>,
}

impl QueueAnswers {
    fn note_full(&mut self, found: Box<Full>) {
        if self
            .full
            .as_ref()
            .is_none_or(|full| found.rank() > full.rank())
        {
            self.full = Some(found);
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
        let ahead = state.line.ahead();
        self.admit_beside(state, wants, now, &ahead, Some(LookKind::Closed))
    }

    /// Asks for places beside what those want who wait `ahead`. `look`: of the looks that are begun; `None`: somebody
    /// else looks.
    fn admit_beside(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: &mut Vec<Want>,
        now: Now,
        ahead: &WantedAhead,
        look: Option<LookKind>,
    ) -> Admission {
        let queues = &mut state.queues;
        let answers = match self.ask_queues(queues, wants, now, ahead) {
            Ok(answers) => answers,
            Err(away) => return Admission::Away(away),
        };
        let may_fit = |full: &Full| full.may_ever_fit();
        if answers.full.as_deref().is_none_or(may_fit) && !answers.look_first.is_empty() {
            let looks = answers.look_first.into_iter();
            let looks = looks.filter_map(|name| AwaitedLook::at(queues, name, look?));
            return Admission::Look(looks.collect());
        }
        if let Some(full) = answers.full {
            return Self::refuse(queues, full, now);
        }
        if let Some(name) = answers.drop_in {
            return Admission::Drop(name);
        }
        if !answers.of_store.is_empty() {
            return Admission::AwaitStore(want_places(state, answers.of_store));
        }
        let mut would_refuse = Vec::new();
        for want in &*wants {
            let held = || (self.held)(&want.queue);
            let queue = self.of(&mut state.queues, want, now.at);
            if queue.would_refuse(want, held) {
                would_refuse.push(Arc::clone(&want.queue));
            }
            queue.reserve(want, now);
            state.note_untold(&want.queue);
        }
        Admission::Go(TakenPlaces {
            pressure: Arc::clone(self),
            wants: std::mem::take(wants),
            now,
            sent: false,
            look_soon: answers.look_soon,
            would_refuse,
            has_waited: false,
        })
    }

    /// Asks each queue of an enqueue.
    ///
    /// # Errors
    /// The backend must be asked about one of them, and was just found away.
    fn ask_queues(
        &self,
        queues: &mut BoundedQueues,
        wants: &[Want],
        now: Now,
        ahead: &WantedAhead,
    ) -> Result<QueueAnswers, Away> {
        let mut answers = QueueAnswers::default();
        let group = self.groups.full(&self.table.load(), wants, ahead);
        for want in wants {
            let name = || Arc::clone(&want.queue);
            let queue = self.of(queues, want, now.at);
            let group = group.as_ref();
            let group = group.filter(|full| want.all_groups().any(|group| *group == full.group));
            let (held, before) = ((self.held)(&want.queue), ahead.of(&want.queue));
            match queue.answer(want, held, before, group, now) {
                QueueAnswer::Fits { look } if look && !queue.estimate.is_looking() => {
                    answers.look_soon.push(name());
                }
                QueueAnswer::Fits { .. } => {}
                QueueAnswer::Look => match queue.away_at(now.at) {
                    Some(away) => return Err(away.clone()),
                    None => answers.look_first.push(name()),
                },
                QueueAnswer::Places => answers.of_store.push((name(), want.jobs)),
                QueueAnswer::Drop => answers.drop_in = Some(name()),
                QueueAnswer::Full(full) => answers.note_full(full),
            }
        }
        Ok(answers)
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
            .or_insert_with_key(|name| self.queue(name, Arc::clone(&want.bounds), now));
        queue.used = now;
        if !Arc::ptr_eq(&queue.bounds, &want.bounds) {
            queue.bounds = Arc::clone(&want.bounds);
        }
        queue
    }

    /// A queue of which nothing is known yet.
    pub(super) fn queue(
        &self,
        name: &Arc<str>,
        bounds: Arc<Bounds>,
        now: Instant,
    ) -> Box<BoundedQueue> {
        Box::new(BoundedQueue::new(name, bounds, &self.groups, now))
    }

    /// The answer to an enqueue that does not fit.
    fn refuse(queues: &BoundedQueues, full: Box<Full>, now: Now) -> Admission {
        // There may be room that nobody knows of; where no numbers are told, there is none.
        if full.may_ever_fit()
            && full.is_of_queue()
            && let Some(queue) = queues.get(&full.queue)
            && queue.estimate.has_stats()
            && let Some(away) = queue.away_at(now.at)
        {
            return Admission::Away(away.clone());
        }
        Admission::Full(full)
    }

    /// Notes that a producer is told that its enqueue does not fit. Returns where else that is worth telling.
    pub fn note_refusal(&self, full: &Full, now: Instant) -> TellRefusal {
        let first = TellRefusal {
            as_event: true,
            in_log: true,
        };
        self.with(&full.queue, |queue| queue.edges.refused(full, now))
            .unwrap_or(first)
    }

    /// Gives places to those who stand in line, in their order. Nobody passes one who waits for the same queue,
    /// unless it has room for both.
    pub(super) fn serve(self: &Arc<Self>, state: &mut PressureState, now: Now) {
        if state.line.len() == 0 {
            return;
        }
        // Queues that have no room even for one who stays, and what all of those want.
        let (mut shut, mut ahead) = (HashSet::<Arc<str>>::new(), WantedAhead::default());
        let mut line = std::mem::take(&mut state.line);
        line.retain(|waiter| {
            let names = || waiter.wants.iter().map(|want| Arc::clone(&want.queue));
            if !waiter.hears() || names().any(|name| shut.contains(&name)) {
                ahead.add(&waiter.wants);
                return true;
            }
            let mut wants = self.bounded_now(&waiter.wants);
            match self.admit_beside(state, &mut wants, now, &ahead, None) {
                Admission::Go(places) => {
                    waiter.tell(Come::Places(places));
                    false
                }
                Admission::Full(full) => {
                    if full.is_of_queue() {
                        shut.insert(full.queue);
                    }
                    ahead.add(&waiter.wants);
                    true
                }
                // Which of them has room is not known.
                Admission::Look(_) | Admission::AwaitStore(_) | Admission::Away(_) => {
                    shut.extend(names());
                    true
                }
                Admission::Drop(queue) => {
                    // It keeps its place in the line.
                    waiter.tell(Come::Drop(queue));
                    ahead.add(&waiter.wants);
                    true
                }
            }
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
