//! Looks: one question to the backend for all who wait for its answer.

use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::queue::Queue;
use super::{Away, Counts, Looking, Now, Others, Pressure, Shared};

/// What a look came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The backend's numbers.
    Counts(Counts),
    /// It has none.
    Nothing,
    /// They are not true.
    Lie,
    /// It did not answer.
    Away(Away),
}

/// What a backend does not tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Untold {
    /// Jobs that are scheduled or to be tried again.
    States,
    /// Anything.
    All,
}

impl Looking {
    /// A look for which no enqueue waits.
    fn beside(queue: &mut Queue, name: &Arc<str>) -> Looking {
        Looking {
            done: Arc::clone(&queue.done).notified_owned(),
            begin: queue.estimate.begin(false),
            queue: Arc::clone(name),
        }
    }
}

impl Pressure {
    /// A bounded queue is seen for the first time, and something is kept of it from now on. `false`: it is known.
    pub fn meet(&self, queue: &str, now: Instant) -> bool {
        let Some(bounds) = self.bounds(queue) else {
            return false;
        };
        let mut state = self.state.lock();
        let new = !state.queues.contains_key(queue);
        if new {
            let name = Arc::from(queue);
            let met = self.queue(&name, bounds, now);
            state.queues.insert(name, met);
        }
        new
    }

    /// Begins a look at a queue; `closed`: enqueues wait for it. `false`: one is on its way, or the queue
    /// is not known.
    pub fn begin_look(&self, queue: &str, closed: bool) -> bool {
        self.with(queue, |queue| queue.estimate.begin(closed))
            .unwrap_or(false)
    }

    /// Begins a look at a queue if the last is long enough ago.
    pub fn begin_due_look(&self, queue: &str, now: Instant) -> bool {
        let begin = |queue: &mut Queue| queue.estimate.is_due(now) && queue.estimate.begin(true);
        self.with(queue, begin).unwrap_or(false)
    }

    /// Begins looks at queues in which jobs of a tenant are counted, where the last one is long enough ago: some
    /// may have left unseen. No more than `most` of them, those first that were not looked at for longest.
    pub fn look_for_tenant(&self, tenant: &str, most: usize, now: Instant) -> Vec<Looking> {
        let mut state = self.state.lock();
        let counted = self.sums.queues(tenant).into_iter();
        let due = counted.filter_map(|name| {
            let estimate = &state.queues.get(&name)?.estimate;
            estimate.is_due(now).then(|| (estimate.due(), name))
        });
        let mut due: Vec<_> = due.collect();
        due.sort();
        let due = due.into_iter().take(most);
        due.filter_map(|(_, name)| Some(Looking::beside(state.queues.get_mut(&name)?, &name)))
            .collect()
    }

    /// Begins a look at a queue of which something is known, for somebody who wants to be told its depth, and
    /// says whose credentials were used last: a reader's may tell less.
    pub fn look_for_reader(&self, queue: &str, now: Instant) -> Option<(Looking, u64)> {
        let mut state = self.state.lock();
        let (name, queue) = state.queues.get_key_value_mut(queue)?;
        let due = queue.estimate.is_known() && queue.estimate.is_due(now);
        due.then(|| (Looking::beside(queue, name), queue.scope))
    }

    /// Whether the backend's numbers are all that waits in its queue.
    pub fn tells_all(&self, counts: &Counts) -> bool {
        let (tells_scheduled, tells_retryable) = &self.tells;
        let told = counts.scheduled.is_some() && counts.retryable.is_some();
        told && tells_scheduled.are_seen() && tells_retryable.are_seen()
    }

    /// When the last look is long enough ago; `None`: there was none.
    pub fn look_due(&self, queue: &str) -> Option<Instant> {
        self.state.lock().queues.get(queue)?.estimate.due()
    }

    /// What a look that keeps enqueues out should wait for, if anything: that those on their way are
    /// answered, and jobs that go for them gone.
    pub fn in_flight(&self, queue: &str) -> Option<OwnedNotified> {
        let state = self.state.lock();
        let queue = state.queues.get(queue)?;
        let wait = queue.estimate.is_closed() && queue.is_moving() && !queue.stuck;
        wait.then(|| Arc::clone(&queue.settled).notified_owned())
    }

    /// The question of a look leaves now. `stuck`: it was not worth waiting for those on their way.
    /// `scope`: whose credentials it has. Says whether it follows another look so closely that what left between
    /// them tells what may be on its way to other sidecars.
    pub fn asking(&self, queue: &str, stuck: bool, scope: u64, now: Instant) -> bool {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.get_mut(queue) else {
            return false;
        };
        queue.stuck |= stuck;
        queue.scope = scope;
        queue.estimate.asking();
        queue.estimate.follows(now)
    }

    /// How many jobs of a queue other sidecars hold, as of the last look.
    pub fn held_by_others(&self, queue: &str) -> u64 {
        self.with(queue, |queue| queue.estimate.elsewhere.held())
            .unwrap_or(0)
    }

    /// A job that was held here has gone to another sidecar, which holds it.
    pub fn taken_over(&self, queue: &str) {
        self.with(queue, |queue| queue.estimate.elsewhere.took());
    }

    /// How many jobs of a queue are known here and in none of these numbers; tells if they leave them out for sure.
    fn hides(
        &self,
        queue: &mut Queue,
        counts: &Counts,
        now: Now,
        untold: &mut Option<Untold>,
    ) -> u64 {
        let [scheduled, retryable] = queue.waits(now);
        let (tells_scheduled, tells_retryable) = &self.tells;
        let states = [
            (tells_scheduled, counts.scheduled, scheduled),
            (tells_retryable, counts.retryable, retryable),
        ];
        // What came after the question is not in the answer.
        let quiet = queue.estimate.since_asked() == 0;
        let mut all = 0;
        for (tells, told, waits) in states {
            let hidden = tells.hides(told, waits, quiet);
            if hidden > 0 && (told.is_none() || (quiet && waits.sure > 0)) {
                *untold = Some(Untold::States);
            }
            all += hidden;
        }
        all
    }

    /// A look ended. `shared`: what the store knew of the queue before the question left, and `others` what it
    /// knew after the answer, where a fleet shares it. Says whether the backend turns out not to tell of all that waits.
    pub fn looked(
        self: &Arc<Self>,
        name: &str,
        told: Told,
        (shared, others): (Option<Shared>, Option<Others>),
        now: Now,
    ) -> Option<Untold> {
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(name)?;
        let mut untold = None;
        match told {
            Told::Counts(counts) => {
                let hidden = self.hides(queue, &counts, now, &mut untold);
                let mark = self.mark();
                let held = (self.held)(name);
                let of_fleet = (shared, others);
                queue.told(counts, hidden, held, of_fleet, (now.at, mark));
            }
            Told::Nothing => {
                if !queue.estimate.is_told() {
                    untold = Some(Untold::All);
                }
                queue.estimate.untold(now.at);
                queue.away = None;
            }
            Told::Lie => {
                queue.estimate.disbelieved(now.at);
                queue.away = None;
            }
            Told::Away(away) => {
                queue.estimate.unanswered(now.at);
                queue.away = Some((away, now.at));
            }
        }
        queue.done.notify_waiters();
        self.serve(&mut state, now);
        untold
    }
}
