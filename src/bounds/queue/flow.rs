//! Changes of a queue: jobs that come and go, and looks that end.

use std::time::Duration;

use tokio::time::Instant;

use super::BoundedQueue;
use crate::drain::Drain;
use crate::estimate::LookFound;
use crate::seen::{Dropped, Mark, NewJob, TakenTo};
use crate::want::{Now, Want};
use ojs_limit::Timestamp;

/// How long a queue of which nothing could be dropped refuses until that is tried again.
const UNDROPPABLE: Duration = Duration::from_secs(1);

impl BoundedQueue {
    /// Takes the places of an enqueue that fits.
    pub(crate) fn reserve(&mut self, want: &Want, now: Now) {
        self.looks.is_fresh = false;
        self.estimate.reserve(want.jobs);
        self.fleet.reserve(want.jobs);
        self.bytes.reserve(want.bytes());
        self.members.reserve(want);
        self.edges.accepted();
        if let Some(rate) = &want.bounds.enqueue_rate {
            let window = self.window(rate);
            (0..want.jobs).for_each(|_| window.add(now.stamp, 1, now.stamp));
        }
    }

    /// Notes that the jobs of an enqueue were stored, or may have been. `jobs`: those that are known, in their order.
    pub(crate) fn stored(&mut self, want: &Want, jobs: &[&NewJob], mark: Mark) {
        self.members.stored(want, jobs.iter().map(|job| &*job.id));
        for job in jobs {
            if let Some(due) = job.due {
                self.later.add_scheduled(&job.id, due);
            }
        }
        self.estimate.stored(want.jobs, mark);
        self.bytes.release(want.bytes());
        let tried = want.tried.as_ref().and_then(|tried| tried.max_bytes);
        if want.bounds.max_bytes.or(tried).is_some() {
            want.sizes.iter().for_each(|size| self.bytes.add(*size));
        }
        self.tell_settled();
    }

    /// Notes that the jobs of an enqueue were not stored. `at`: when they were admitted.
    pub(crate) fn refused(&mut self, want: &Want, at: Timestamp) {
        self.estimate.refused(want.jobs);
        self.fleet.take(want.jobs);
        self.bytes.release(want.bytes());
        self.members.refused(want);
        if let Some(window) = &mut self.window {
            (0..want.jobs).for_each(|_| window.remove(at, 1));
        }
        self.tell_settled();
    }

    /// Tells those who wait until no enqueue is on its way, if none is.
    fn tell_settled(&mut self) {
        if self.estimate.in_flight == 0 {
            self.looks.stuck = false;
            self.looks.settled.notify_waiters();
        }
    }

    /// Notes what became of a job that was to be dropped for an enqueue.
    pub(crate) fn dropped(&mut self, what: Dropped, now: Instant) {
        self.undroppable = None;
        match what {
            // It left the backend's number when it was claimed, and ours when it left the hold.
            Dropped::Held => self.fleet.take(1),
            Dropped::Waiting(sent) => {
                let counted = self.estimate.left(1, sent);
                self.fleet.take_sent(counted, sent);
            }
            Dropped::None => {
                self.undroppable = Some(now + UNDROPPABLE);
                self.estimate.doubt_all();
            }
        }
    }

    /// Notes that jobs were given to us in answer to a request that was sent at `sent`.
    pub(crate) fn left(&mut self, jobs: u64, sent: Mark, to: TakenTo, now: Instant) {
        let counted = self.estimate.left(jobs, sent);
        self.used = now;
        if to == TakenTo::Worker {
            self.fleet.take_sent(counted, sent);
            self.drain.note(counted, now);
        }
    }

    /// Forgets jobs that wait for their time no more.
    pub(crate) fn forget_due(&mut self, now: Now) {
        let waiting = self.later.waiting(now.stamp);
        if !self.estimate.has_stats {
            self.later.count = waiting;
        }
    }

    /// Notes that a held job went to a worker.
    pub(crate) fn started(&mut self, id: &str, now: Instant) {
        self.used = now;
        self.fleet.take(1);
        self.drain.note(1, now);
        self.members.left(id);
    }

    /// Takes over the numbers that a look found.
    pub(crate) fn correct(&mut self, found: &LookFound, now: Instant, mark: Mark) {
        let (counts, held) = (&found.counts, found.held);
        if counts.available == 0 && held.jobs == 0 {
            // That an empty queue gave nothing up tells nothing of a full one.
            self.undroppable = None;
        }
        self.looks.is_fresh = true;
        self.later.count = counts.later() + found.hidden;
        let before = self.estimate.depth(held);
        let gone = self.estimate.correct(found, now, mark);
        self.drain.note(gone, now);
        let most = self.estimate.depth(held);
        if most != before {
            self.used = now;
        }
        self.members.at_most(most);
        if self.estimate.waiting(held) == 0 {
            // An empty queue gives up no more than comes in: that is not how fast it could be.
            self.drain = Drain::default();
        }
        self.looks.away = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bounds::Bounds;
    use crate::{Counts, HeldCount};

    #[test]
    fn a_dropped_job_is_taken_away_once() {
        let now = Instant::now();
        let mut queue =
            BoundedQueue::new(&"q".into(), &Arc::new(Bounds::none()), &Arc::default(), now);
        let counts = Counts {
            available: 10,
            ..Counts::default()
        };
        let held = HeldCount::default();
        queue.estimate.begin();
        let found = LookFound {
            counts,
            hidden: 0,
            held,
            elsewhere: 0,
        };
        queue.correct(&found, now, Mark(5));
        let mut drop = |what| {
            queue.dropped(what, now);
            queue.depth(held)
        };
        assert_eq!(drop(Dropped::Waiting(Mark(4))), 10, "gone when it was told");
        assert_eq!(drop(Dropped::Waiting(Mark(6))), 9);
        assert_eq!(drop(Dropped::Held), 9, "it was not among them");
        assert_eq!(drop(Dropped::None), 9);
    }
}
