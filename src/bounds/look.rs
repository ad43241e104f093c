//! Looks: one question to the backend for all who wait for its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::estimate::{Counts, LookFound};
use super::fleet_depth::SharedNumber;
use super::line::WantedAhead;
use super::queue::BoundedQueue;
use super::seen::Away;
use super::state::{BoundedQueues, Pressure};
use super::want::{BoundGroup, Now, Want};

/// What an enqueue waits for: a look, or the store's answer about places.
#[derive(Debug)]
pub struct Awaited {
    /// The queue.
    pub queue: Arc<str>,
    /// Whether it is a look that the caller must make.
    pub begin: bool,
    /// Ends with the look, or with the answer.
    pub done: OwnedNotified,
}

/// The result of a look.
#[derive(Clone, Debug)]
pub enum StatsAnswer {
    /// The backend's numbers.
    Counts(Counts),
    /// It has none.
    Nothing,
    /// It has none of any queue: it never told any, and knows no queue of this name, in which jobs were stored.
    Never,
    /// It did not answer.
    Away(Away),
}

/// What a look found of other sidecars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fleet {
    /// Jobs that they hold.
    pub held: u64,
    /// The number of the queue in the store, as the look has set it.
    pub number: SharedNumber,
}

/// A part of the depth that a backend does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingStats {
    /// Jobs that are scheduled or to be tried again.
    States,
    /// Anything.
    All,
}

impl StatsAnswer {
    /// The backend's numbers, if it told any.
    pub fn counts(&self) -> Option<Counts> {
        match self {
            StatsAnswer::Counts(counts) => Some(*counts),
            StatsAnswer::Nothing | StatsAnswer::Never | StatsAnswer::Away(_) => None,
        }
    }
}

/// How a look begins at a queue that is known.
pub(super) type BeginLook = fn(&mut BoundedQueues, Arc<str>) -> Option<Awaited>;

impl Awaited {
    /// Begins a look at a queue that is known, if none is on its way.
    pub(super) fn look(queues: &mut BoundedQueues, name: Arc<str>) -> Option<Awaited> {
        let queue = queues.get_mut(&name)?;
        Some(Awaited {
            done: Arc::clone(&queue.looks.done).notified_owned(),
            begin: queue.estimate.begin(),
            queue: name,
        })
    }

    /// Begins a look that is exact, because nobody is let into the queue before its end.
    pub(super) fn exact_look(queues: &mut BoundedQueues, name: Arc<str>) -> Option<Awaited> {
        queues.get_mut(&name)?.close();
        Awaited::look(queues, name)
    }
}

impl Pressure {
    /// Begins to keep the depth of a bounded queue, with a look. `false`: it is kept already, or the queue has no bounds.
    pub fn begin_keeping(&self, queue: &str, now: Instant) -> bool {
        let Some(bounds) = self.bounds(queue) else {
            return false;
        };
        let mut state = self.state.lock();
        let kept = (state.queues.entry(Arc::from(queue)))
            .or_insert_with_key(|name| BoundedQueue::new(name, &bounds, &self.groups, now));
        !kept.estimate.is_known() && kept.estimate.begin()
    }

    /// Begins a look at a queue. `false`: one is on its way, or the queue is not known.
    pub fn begin_look(&self, queue: &str) -> bool {
        self.with(queue, |queue| queue.estimate.begin()) == Some(true)
    }

    /// Begins looks for an enqueue that stands in line, at those of its queues of which the last is long enough ago.
    pub fn look_in_line(&self, wants: &[Want], now: Instant) -> Vec<Awaited> {
        let mut state = self.state.lock();
        // Who waits for a group of its own keeps nobody out.
        let begin: BeginLook = match self.waits_for_group(wants, &WantedAhead::default()) {
            true => Awaited::look,
            false => Awaited::exact_look,
        };
        let names = wants.iter().map(|want| Arc::clone(&want.queue));
        let looks = names.filter_map(|name| {
            let is_due = state.queues.get(&name)?.estimate.is_due(now);
            is_due.then(|| begin(&mut state.queues, name))?
        });
        looks.collect()
    }

    /// The backend rests so long from a look at a queue.
    pub fn rests(&self, queue: &str, rest: Duration) {
        self.with(queue, |queue| queue.estimate.rests(rest));
    }

    /// Begins looks at queues in which jobs of a tenant are counted, because some may have left unseen: at most
    /// `most` looks, where the last one is longest ago.
    pub fn look_for_tenant(&self, tenant: &str, most: usize, now: Instant) -> Vec<Awaited> {
        let mut state = self.state.lock();
        let counted = self.groups.queues(&BoundGroup::tenant(Arc::from(tenant)));
        let due = counted.into_iter().filter_map(|name| {
            let estimate = &state.queues.get(&name)?.estimate;
            estimate.is_due(now).then(|| (estimate.due(), name))
        });
        let mut due: Vec<_> = due.collect();
        due.sort();
        let due = due.into_iter().take(most);
        due.filter_map(|(_, name)| Awaited::look(&mut state.queues, name))
            .collect()
    }

    /// Begins a look for somebody who reads a queue's depth. Returns the scope of the last look too: with the
    /// reader's credentials the backend may tell less.
    pub fn look_for_reader(&self, queue: &str, now: Instant) -> Option<(Awaited, u64)> {
        let mut state = self.state.lock();
        let (name, queue) = state.queues.get_key_value(queue)?;
        if !queue.estimate.is_known() || !queue.estimate.is_due(now) {
            return None;
        }
        let (name, scope) = (Arc::clone(name), queue.looks.scope);
        let look = Awaited::look(&mut state.queues, name)?;
        Some((look, scope))
    }

    /// Whether the backend's numbers are all that waits in its queue.
    pub fn tells_all(&self, counts: &Counts) -> bool {
        let (tells_scheduled, tells_retryable) = &self.tells;
        let told = counts.scheduled.is_some() && counts.retryable.is_some();
        told && tells_scheduled.is_seen() && tells_retryable.is_seen()
    }

    /// The end of all enqueues on their way, for a look that keeps enqueues out. `None`: there is none to wait for.
    pub fn in_flight(&self, queue: &str) -> Option<OwnedNotified> {
        let state = self.state.lock();
        let queue = state.queues.get(queue)?;
        let wait = queue.looks.closed && queue.estimate.in_flight > 0 && !queue.looks.stuck;
        wait.then(|| Arc::clone(&queue.looks.settled).notified_owned())
    }

    /// Notes that enqueues on their way were not answered in time: a look does not wait for them again.
    pub fn note_stuck(&self, queue: &str) {
        self.with(queue, |queue| queue.looks.stuck = true);
    }

    /// Whether a queue is known to have had jobs that wait for no time when the question of its look left.
    pub fn has_stored(&self, queue: &str) -> bool {
        self.with(queue, |queue| {
            let newer = queue.estimate.stored_since_asked();
            queue.estimate.stored > newer + queue.later.count
        }) == Some(true)
    }

    /// Notes that the question of a look leaves now.
    pub fn note_asked(&self, queue: &str) {
        self.with(queue, |queue| queue.estimate.note_asked());
    }

    /// The backend told its numbers to the credentials of `scope`.
    pub fn note_told(&self, queue: &str, scope: u64) {
        self.with(queue, |queue| queue.looks.scope = scope);
    }

    /// Whose credentials the backend told its numbers last, if those are not of `scope`.
    pub fn told_another(&self, queue: &str, scope: u64) -> Option<u64> {
        (self.with(queue, |queue| queue.looks.scope)).filter(|told| *told != scope)
    }

    /// How many jobs of a queue are known here and are in none of these numbers. Sets `missing` where the backend
    /// surely leaves them out.
    pub(super) fn hides(
        &self,
        queue: &mut BoundedQueue,
        counts: &Counts,
        now: Now,
        missing: &mut Option<MissingStats>,
    ) -> u64 {
        queue.forget_due(now);
        // What came after the question is not in the answer.
        let newer = queue.estimate.stored_since_asked();
        let states = [
            (&self.tells.0, counts.scheduled, &mut queue.later.scheduled),
            (&self.tells.1, counts.retryable, &mut queue.later.retryable),
        ];
        let mut all = 0;
        for (tells, told, jobs) in states {
            let hidden = tells.hides(told, jobs, newer, now.stamp);
            let surely = told.is_none() || (newer == 0 && jobs.surely_wait(now.stamp));
            if hidden > 0 && surely {
                *missing = Some(MissingStats::States);
            }
            all += hidden;
        }
        all
    }

    /// Ends a look. `fleet`: what it found of other sidecars; `None`: each counts for itself. Returns what the backend
    /// turns out not to tell.
    pub fn end_look(
        self: &Arc<Self>,
        name: &str,
        answer: StatsAnswer,
        fleet: Option<Fleet>,
        now: Now,
    ) -> Option<MissingStats> {
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(name)?;
        let mut missing = None;
        match answer {
            StatsAnswer::Counts(counts) => {
                let hidden = self.hides(queue, &counts, now, &mut missing);
                let found = LookFound {
                    counts,
                    hidden,
                    held: (self.held)(name),
                    elsewhere: fleet.map_or(0, |fleet| fleet.held),
                };
                queue.correct(&found, now.at, self.mark());
            }
            StatsAnswer::Nothing | StatsAnswer::Never => {
                queue.estimate.has_stats &= matches!(answer, StatsAnswer::Nothing);
                missing = (!queue.estimate.has_stats).then_some(MissingStats::All);
                queue.estimate.note_no_stats(now.at);
                queue.looks.away = None;
            }
            StatsAnswer::Away(away) => {
                queue.estimate.unanswered(now.at);
                queue.looks.away = Some((away, now.at));
            }
        }
        match fleet {
            Some(fleet) => queue.fleet.set_number(fleet.number, self.mark()),
            None => queue.fleet.forget_number(),
        }
        queue.open();
        self.serve(&mut state, now);
        missing
    }
}
