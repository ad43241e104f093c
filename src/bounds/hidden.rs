//! Jobs that wait for a time, on backends whose numbers leave them out: those that passed through here
//! are counted until their time has come.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ojs_limit::Timestamp;

/// How long after its time a job may not be available yet, in microseconds: backends look for such jobs now
/// and then.
const LATE: u64 = 1_500_000;
/// No clock of ours and no look is so much off, in microseconds.
const SURELY: u64 = 1_000_000;
/// More are not counted in one queue and state.
const MOST_JOBS: usize = 100_000;

/// The jobs of one queue that are known to wait for a time.
#[derive(Clone, Default, Debug)]
pub(super) struct LaterJobs {
    /// Of all that waits, how many jobs no FETCH would get: those that the backend tells of, too.
    pub(super) count: u64,
    pub(super) scheduled: DueJobs,
    pub(super) retryable: DueJobs,
}

impl LaterJobs {
    /// A job was enqueued, and is available from `due` on.
    pub(super) fn add_scheduled(&mut self, job: &str, due: Timestamp) {
        self.count += 1;
        self.scheduled.add(job, due);
    }

    /// A job failed, and is to be tried again from `due` on.
    pub(super) fn add_retryable(&mut self, job: &str, due: Timestamp) {
        self.count += 1;
        self.retryable.add(job, due);
    }

    /// A job waits for no time any more. Returns whether it did until `now`, as far as is known.
    pub(super) fn remove(&mut self, job: &str, now: Timestamp) -> bool {
        let due = self.scheduled.remove(job);
        let due = due.max(self.retryable.remove(job));
        let waited = due.is_some_and(|due| due > now);
        self.count = self.count.saturating_sub(u64::from(waited));
        waited
    }

    /// How many still wait at `now`. Forgets the others.
    pub(super) fn waiting(&mut self, now: Timestamp) -> u64 {
        self.scheduled.waiting(now) + self.retryable.waiting(now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scheduled.jobs.is_empty() && self.retryable.jobs.is_empty()
    }
}

/// Jobs in one state by the time that they wait for, as the backend has it.
#[derive(Clone, Default, Debug)]
pub(super) struct DueJobs {
    order: BTreeSet<(Timestamp, Arc<str>)>,
    jobs: HashMap<Arc<str>, Timestamp>,
}

impl DueJobs {
    fn add(&mut self, job: &str, due: Timestamp) {
        self.remove(job);
        if self.jobs.len() < MOST_JOBS {
            let job: Arc<str> = Arc::from(job);
            self.order.insert((due, Arc::clone(&job)));
            self.jobs.insert(job, due);
        }
    }

    fn remove(&mut self, job: &str) -> Option<Timestamp> {
        let (job, due) = self.jobs.remove_entry(job)?;
        self.order.remove(&(due, job));
        Some(due)
    }

    fn waiting(&mut self, now: Timestamp) -> u64 {
        while let Some((due, _)) = self.order.first()
            && due.plus(LATE) <= now
            && let Some((_, job)) = self.order.pop_first()
        {
            self.jobs.remove(&job);
        }
        self.jobs.len() as u64
    }

    /// How many wait for a time that has not come.
    fn early(&self, now: Timestamp) -> u64 {
        let late = self.order.iter().take_while(|(due, _)| *due <= now).count();
        (self.order.len() - late) as u64
    }

    /// Whether the time of one is so far away that no clock is off by it.
    pub(super) fn surely_wait(&self, now: Timestamp) -> bool {
        let last = self.order.last();
        last.is_some_and(|(due, _)| *due > now.plus(SURELY))
    }
}

/// What was seen of whether a backend tells how many jobs are in one state. Some say 0 however many are.
#[derive(Default, Debug)]
pub(super) struct TellsState(AtomicU8);

/// It told of none while some waited.
const MISSED: u8 = 1;
/// It told of some, whatever it missed.
const TOLD: u8 = 2;

impl TellsState {
    /// Whether it was seen to tell of any.
    pub(super) fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TOLD
    }

    /// How many of the jobs that are known to wait are in none of the backend's numbers, of which this one is `told`.
    /// Where it was never seen to leave any out, those whose time has come are taken to be available. `newer` jobs
    /// came after the question.
    pub(super) fn hides(
        &self,
        told: Option<u64>,
        jobs: &mut DueJobs,
        newer: u64,
        now: Timestamp,
    ) -> u64 {
        let (waiting, early) = (jobs.waiting(now), jobs.early(now));
        let seen = match told {
            // An answer without it tells nothing of them, whatever others told.
            None => return waiting,
            Some(1..) => TOLD,
            Some(0) => u8::from(newer == 0 && early > 0) * MISSED,
        };
        match self.0.fetch_max(seen, Ordering::Relaxed).max(seen) {
            TOLD => 0,
            MISSED => waiting,
            _ => early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + secs * 1_000_000)
    }

    #[test]
    fn they_are_counted_until_their_time() {
        let mut later = LaterJobs::default();
        for (job, secs) in [("30", 30), ("10", 10), ("20", 20), ("20 too", 20)] {
            later.add_scheduled(job, at(secs));
        }
        later.add_retryable("a", at(5));
        assert_eq!(later.waiting(at(0)), 5);
        assert_eq!(later.waiting(at(6)), 5, "perhaps not available yet");
        assert_eq!(later.waiting(at(12)), 3);
        assert!(later.remove("20", at(12)), "cancelled");
        assert!(!later.remove("10", at(12)), "not known any more");
        assert_eq!(later.waiting(at(12)), 2);
        assert_eq!(later.waiting(at(40)), 0);
        assert!(later.is_empty());
    }

    #[test]
    fn each_job_waits_once() {
        let mut later = LaterJobs::default();
        for (job, secs) in [("a", 10), ("b", 10), ("c", 20), ("c", 30)] {
            later.add_retryable(job, at(secs));
        }
        assert_eq!(later.waiting(at(5)), 3, "one failed twice");
        assert!(later.remove("a", at(5)) && !later.remove("a", at(5)));
        assert!(!later.remove("b", at(10)), "it may run");
        assert!(!later.remove("x", at(5)));
        assert_eq!(later.waiting(at(5)), 1);
        assert!(later.retryable.surely_wait(at(28)) && !later.retryable.surely_wait(at(29)));
    }

    #[test]
    fn none_are_counted_twice_where_none_were_missed() {
        let (tells, mut jobs) = (TellsState::default(), DueJobs::default());
        jobs.add("a", at(10));
        jobs.add("b", at(20));
        let mut hides = |told, newer, secs| tells.hides(told, &mut jobs, newer, at(secs));
        assert_eq!(hides(None, 0, 11), 2, "no number at all");
        assert_eq!(hides(Some(0), 1, 11), 1, "one is available by now");
        assert_eq!(hides(Some(0), 1, 11), 1, "that showed nothing");
        assert_eq!(hides(Some(0), 0, 11), 2, "one is missing surely");
        assert_eq!(hides(Some(1), 0, 11), 0);
        assert_eq!(hides(Some(0), 0, 11), 0, "of somebody else");
        assert_eq!(hides(None, 0, 11), 2, "with other credentials");
        assert!(tells.is_seen());
    }
}
