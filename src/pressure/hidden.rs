//! Jobs that wait for a time, on backends whose numbers leave them out: those that passed through here
//! are counted until their time has come.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::tells::Waits;
use crate::limit::Timestamp;

/// How long after its time a job may not be available yet, in microseconds: backends look for such jobs now
/// and then.
const LATE: u64 = 1_500_000;
/// No clock of ours and no look is so much off, in microseconds.
const SURELY: u64 = 1_000_000;
/// More are not counted by their times in one queue.
const MOST: usize = 100_000;

/// The waiting jobs of one queue that its backend does not tell of.
#[derive(Clone, Default, Debug)]
pub(super) struct HiddenJobs {
    /// Of all that waits, how many jobs no FETCH would get: those that the backend tells of, too.
    pub(super) later: u64,
    scheduled: Later,
    retryable: Retries,
}

/// Jobs by the time that they wait for, as the backend has it.
#[derive(Clone, Default, Debug)]
struct Later {
    jobs: BTreeMap<Timestamp, u64>,
    count: u64,
}

/// Jobs that wait for their next attempt, by the time of that: when one is cancelled, no backend says whether it
/// waited or ran, so their ids are known.
#[derive(Clone, Default, Debug)]
struct Retries {
    due: BTreeSet<(Timestamp, Arc<str>)>,
    jobs: HashMap<Arc<str>, Timestamp>,
}

impl HiddenJobs {
    /// A job was stored that is available from `due` on.
    pub(super) fn schedule(&mut self, due: Timestamp) {
        self.scheduled.add(due);
    }

    /// One of those was cancelled. `false`: none is known.
    pub(super) fn unschedule(&mut self, due: Timestamp) -> bool {
        self.scheduled.remove(due)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scheduled.count == 0 && self.retryable.jobs.is_empty()
    }

    /// A job failed and is available again from `due` on.
    pub(super) fn retry(&mut self, job: &str, due: Timestamp) {
        self.retryable.add(job, due);
    }

    /// A job that had failed was cancelled at `now`, or made available by hand. `false`: it is not known to
    /// have waited still.
    pub(super) fn unretry(&mut self, job: &str, now: Timestamp) -> bool {
        let waits = self.retryable.jobs.get(job).is_some_and(|due| *due > now);
        waits && self.retryable.remove(job)
    }

    /// A job is given to us: it waits for no time any more.
    pub(super) fn given(&mut self, job: &str) {
        self.retryable.remove(job);
    }

    /// Those that [`waiting`](Self::waiting) counts at `now`, scheduled and retryable.
    pub(super) fn waits(&self, now: Timestamp) -> [Waits; 2] {
        let far = now.plus(SURELY);
        let (scheduled, retryable) = (&self.scheduled, &self.retryable);
        let retries = retryable.jobs.len() as u64;
        [
            Waits {
                all: scheduled.count,
                early: scheduled.count - scheduled.due_by(now),
                sure: scheduled.count - scheduled.due_by(far),
            },
            Waits {
                all: retries,
                early: retries - retryable.due_by(now),
                sure: retries - retryable.due_by(far),
            },
        ]
    }

    /// How many still wait at `now`, scheduled and retryable. Forgets the others.
    pub(super) fn waiting(&mut self, now: Timestamp) -> (u64, u64) {
        (self.scheduled.waiting(now), self.retryable.waiting(now))
    }
}

impl Later {
    fn add(&mut self, due: Timestamp) {
        if self.count < MOST as u64 {
            *self.jobs.entry(due).or_default() += 1;
            self.count += 1;
        }
    }

    fn remove(&mut self, due: Timestamp) -> bool {
        let Some(jobs) = self.jobs.get_mut(&due) else {
            return false;
        };
        *jobs -= 1;
        self.count -= 1;
        if *jobs == 0 {
            self.jobs.remove(&due);
        }
        true
    }

    /// How many of them wait for a time that has come at `now`.
    fn due_by(&self, now: Timestamp) -> u64 {
        self.jobs.range(..=now).map(|(_, jobs)| jobs).sum()
    }

    fn waiting(&mut self, now: Timestamp) -> u64 {
        while let Some(first) = self.jobs.first_entry()
            && first.key().plus(LATE) <= now
        {
            self.count -= first.remove();
        }
        self.count
    }
}

impl Retries {
    fn add(&mut self, job: &str, due: Timestamp) {
        self.remove(job);
        if self.jobs.len() < MOST {
            let job: Arc<str> = Arc::from(job);
            self.due.insert((due, Arc::clone(&job)));
            self.jobs.insert(job, due);
        }
    }

    fn remove(&mut self, job: &str) -> bool {
        let known = self.jobs.remove_entry(job);
        known.is_some_and(|(job, due)| self.due.remove(&(due, job)))
    }

    /// How many of them wait for a time that has come at `now`.
    fn due_by(&self, now: Timestamp) -> u64 {
        self.due.iter().take_while(|(due, _)| *due <= now).count() as u64
    }

    fn waiting(&mut self, now: Timestamp) -> u64 {
        while let Some((due, _)) = self.due.first()
            && due.plus(LATE) <= now
            && let Some((_, job)) = self.due.pop_first()
        {
            self.jobs.remove(&job);
        }
        self.jobs.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_counted_until_their_time() {
        let mut hidden = HiddenJobs::default();
        let at = |secs: u64| Timestamp(1_800_000_000_000_000 + secs * 1_000_000);
        [30, 10, 20, 20]
            .into_iter()
            .for_each(|secs| hidden.schedule(at(secs)));
        hidden.retry("a", at(5));
        let waiting = |hidden: &mut HiddenJobs, secs| hidden.waiting(at(secs));
        assert_eq!(waiting(&mut hidden, 0), (4, 1));
        assert_eq!(waiting(&mut hidden, 6), (4, 1), "perhaps not available yet");
        assert_eq!(waiting(&mut hidden, 12), (3, 0));
        assert!(hidden.unschedule(at(20)), "cancelled");
        assert!(!hidden.unschedule(at(10)), "not known any more");
        assert_eq!(waiting(&mut hidden, 12), (2, 0));
        assert_eq!(waiting(&mut hidden, 40), (0, 0));
    }

    #[test]
    fn those_to_be_tried_again_are_told_apart() {
        let (mut hidden, at) = (HiddenJobs::default(), |secs: u64| {
            Timestamp(secs * 1_000_000)
        });
        for (job, secs) in [("a", 10), ("b", 10), ("c", 20), ("c", 30)] {
            hidden.retry(job, at(secs));
        }
        assert_eq!(hidden.waiting(at(5)), (0, 3), "one failed twice");
        assert!(hidden.unretry("a", at(5)) && !hidden.unretry("a", at(5)));
        assert!(!hidden.unretry("b", at(10)), "it may run");
        assert!(!hidden.unretry("x", at(5)));
        assert_eq!(hidden.waiting(at(5)), (0, 2));
        assert_eq!(hidden.waiting(at(12)), (0, 1));
        let waits = |hidden: &HiddenJobs, secs| {
            let [_, Waits { all, early, sure }] = hidden.waits(at(secs));
            (all, early, sure)
        };
        assert_eq!(waits(&hidden, 29), (1, 1, 0));
        assert_eq!(waits(&hidden, 30), (1, 0, 0));
        assert!(hidden.unretry("c", at(25)) && hidden.is_empty());
        hidden.retry("d", at(40));
        hidden.given("d");
        assert!(hidden.is_empty(), "it runs");
    }
}
