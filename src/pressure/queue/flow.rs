//! What comes to a queue and leaves it.

use std::time::Duration;

use tokio::time::Instant;

use super::Queue;
use crate::limit::Timestamp;
use crate::pressure::Dropped;
use crate::pressure::drain::Drain;
use crate::pressure::estimate::{Counts, Held, Mark};
use crate::pressure::share::{Others, Shared};
use crate::pressure::tells::Waits;
use crate::pressure::want::{Now, Want};

/// How long a queue of which nothing could be dropped refuses until that is tried again.
const UNDROPPABLE: Duration = Duration::from_secs(1);

impl Queue {
    /// Takes the places of an enqueue that fits.
    pub(in crate::pressure) fn reserve(&mut self, want: &Want, now: Now) {
        self.estimate.reserve(want.jobs);
        self.bytes_in_flight += want.bytes();
        self.dropping += want.drop;
        self.owed = match want.drop {
            0 => 0,
            _ => self.owed.saturating_sub(want.drops_beyond()),
        };
        want.keys.iter().for_each(|key| self.keys.reserve(key));
        let tenants = want.tenants.iter();
        tenants.for_each(|tenant| self.tenants.reserve(tenant));
        self.edges.accepted(&want.keys, &want.tenants);
        if let Some(rate) = want.bounds.enqueue_rate {
            let window = self.window(rate);
            (0..want.jobs).for_each(|_| window.add(now.stamp, now.stamp));
        }
    }

    /// The jobs were stored, or perhaps were.
    /// `ids`: those of the jobs, in their order.
    pub(in crate::pressure) fn stored<'a>(
        &mut self,
        want: &Want,
        ids: impl Iterator<Item = &'a str> + Clone,
        mark: Mark,
        now: Instant,
    ) {
        for (known, keys) in [
            (&mut self.keys, &want.keys),
            (&mut self.tenants, &want.tenants),
        ] {
            let mut ids = ids.clone();
            keys.iter().for_each(|key| known.stored(key, ids.next()));
        }
        for ((owner, priority), id) in want.droppable.iter().zip(ids) {
            self.ages.stored(owner, *priority, id);
        }
        self.recount.came(want.jobs);
        self.estimate.stored(want.jobs, mark);
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(want.bytes());
        if want.bounds.max_bytes.is_some() {
            want.sizes.iter().for_each(|size| self.sizes.add(*size));
        }
        if want.bounds.max_age.is_some() {
            (0..want.jobs).for_each(|_| self.since.add(now));
        }
        self.tell_settled();
    }

    /// They were not stored. `at`: when they were admitted.
    pub(in crate::pressure) fn refused(&mut self, want: &Want, at: Timestamp) {
        self.estimate.refused(want.jobs);
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(want.bytes());
        self.dropping = self.dropping.saturating_sub(want.drop);
        self.owed += want.drops_beyond();
        want.keys.iter().for_each(|key| self.keys.refused(key));
        let tenants = want.tenants.iter();
        tenants.for_each(|tenant| self.tenants.refused(tenant));
        if let Some(window) = &mut self.window {
            (0..want.jobs).for_each(|_| window.remove(at));
        }
        self.tell_settled();
    }

    /// Whether enqueues are on their way, or jobs that go for them: what a look says meanwhile may be with
    /// them or without.
    pub(in crate::pressure) fn is_moving(&self) -> bool {
        self.estimate.in_flight() > 0 || self.dropping > 0
    }

    /// Tells those who wait until nothing moves, if nothing does.
    pub(in crate::pressure) fn tell_settled(&mut self) {
        if !self.is_moving() {
            self.stuck = false;
            self.settled.notify_waiters();
        }
    }

    /// What became of a job that was to be dropped for an enqueue that was stored.
    pub(in crate::pressure) fn dropped(&mut self, what: Dropped, now: Instant) {
        self.dropping = self.dropping.saturating_sub(1);
        self.owed += u64::from(what == Dropped::None);
        self.went(what, now);
        self.tell_settled();
    }

    /// What became of a job that was to be dropped before an enqueue is let in.
    pub(in crate::pressure) fn dropped_first(&mut self, what: Dropped, now: Instant) {
        self.went(what, now + UNDROPPABLE);
    }

    /// What became of a job that was to be dropped; `again`: when that may be tried again.
    fn went(&mut self, what: Dropped, again: Instant) {
        self.undroppable = None;
        match what {
            // It left the backend's number when it was claimed, and ours when it left the hold.
            Dropped::Held => {}
            Dropped::Waiting(sent) => {
                self.estimate.left(1, sent);
                self.recount.left(1);
            }
            Dropped::None => {
                self.undroppable = Some(again);
                self.estimate.doubt_all();
            }
        }
    }

    /// Jobs were given to a worker in answer to what was sent at `sent`. `out`: they wait no longer;
    /// else they are held.
    pub(in crate::pressure) fn left(&mut self, jobs: u64, sent: Mark, out: bool, now: Instant) {
        self.recount.left(jobs);
        let counted = self.estimate.left(jobs, sent);
        self.moved = now;
        if out {
            self.drain.note(counted, now);
        }
    }

    /// A job waits again.
    pub(in crate::pressure) fn came(&mut self, mark: Mark) {
        self.recount.came(1);
        self.estimate.came(1, mark);
    }

    /// A job was stored that waits for `due`.
    pub(in crate::pressure) fn schedules(&mut self, due: Timestamp) {
        self.later += 1;
        self.since.not_yet();
        self.hidden.schedule(due);
    }

    /// A job that was to wait for `due` is gone.
    pub(in crate::pressure) fn unschedules(&mut self, due: Timestamp) {
        if self.hidden.unschedule(due) {
            self.later = self.later.saturating_sub(1);
        }
    }

    /// A job failed that is tried again from `due` on.
    pub(in crate::pressure) fn retries(&mut self, job: &str, due: Timestamp) {
        self.later += 1;
        self.hidden.retry(job, due);
    }

    /// A job that had failed does not wait for another attempt any more. `false`: it is not known to have.
    pub(in crate::pressure) fn unretries(&mut self, job: &str, now: Timestamp) -> bool {
        let waited = self.hidden.unretry(job, now);
        self.later = self.later.saturating_sub(u64::from(waited));
        waited
    }

    /// A job was given to us that may have been tried before.
    pub(in crate::pressure) fn given(&mut self, job: &str) {
        self.hidden.given(job);
    }

    /// Those that are known to wait for a time, scheduled and retryable.
    pub(in crate::pressure) fn waits(&mut self, now: Now) -> [Waits; 2] {
        self.hidden(now);
        self.hidden.waits(now.stamp)
    }

    /// How many are known to wait for a time, scheduled and retryable.
    pub(in crate::pressure) fn hidden(&mut self, now: Now) -> (u64, u64) {
        let aged = self.bounds.max_age.is_some();
        let since = &mut self.since;
        let waiting = (self.hidden).waiting(now.stamp, |due, jobs| {
            let ago = Duration::from_micros(now.stamp.since(due));
            if let Some(at) = now.at.checked_sub(ago).filter(|_| aged) {
                (0..jobs).for_each(|_| since.add(at));
            }
        });
        if !self.estimate.is_told() {
            self.later = waiting.0 + waiting.1;
        }
        waiting
    }

    /// A held job went to a worker.
    pub(in crate::pressure) fn started(&mut self, id: &str, now: Instant) {
        self.moved = now;
        self.drain.note(1, now);
        self.gone(id);
    }

    /// This job waits no longer.
    pub(in crate::pressure) fn gone(&mut self, id: &str) {
        self.keys.left(id);
        self.tenants.left(id);
        self.ages.left(id);
    }

    /// The backend told its numbers.
    pub(in crate::pressure) fn told(
        &mut self,
        counts: Counts,
        hidden: u64,
        held: Held,
        (shared, others): (Option<Shared>, Option<Others>),
        (now, mark): (Instant, Mark),
    ) {
        if counts.available == 0 {
            // That an empty queue gave nothing up tells nothing of a full one.
            self.undroppable = None;
        }
        self.later = counts.later() + hidden;
        let total = counts.available + self.later;
        let since = self.estimate.since_asked();
        let more = self.recount.told(total, since).saturating_sub(total);
        let counts = Counts {
            available: counts.available + more,
            ..counts
        };
        let before = self.estimate.depth(held);
        let gone = self
            .estimate
            .told(counts, hidden, held, (shared, others), (now, mark));
        self.drain.note(gone, now);
        let most = self.estimate.depth(held);
        if most != before {
            self.moved = now;
        }
        self.keys.at_most(most);
        self.tenants.at_most(most);
        self.ages.at_most(most);
        if self.estimate.waiting(held) == 0 {
            // An empty queue gives up no more than comes in: that is not how fast it could be.
            self.drain = Drain::default();
        }
        self.away = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pressure::bounds::UNBOUNDED;
    use crate::pressure::keys::Keys;

    #[test]
    fn a_dropped_job_is_taken_away_once() {
        let now = Instant::now();
        let mut queue = Queue::new(Arc::new(UNBOUNDED), Keys::default(), now);
        let counts = Counts {
            available: 10,
            ..Counts::default()
        };
        let held = Held::default();
        queue.estimate.begin(true);
        queue.told(counts, 0, held, (None, None), (now, Mark(5)));
        let mut drop = |what| {
            queue.dropping = 1;
            queue.dropped(what, now);
            assert!(!queue.is_moving());
            queue.depth(held)
        };
        assert_eq!(drop(Dropped::Waiting(Mark(4))), 10, "gone when it was told");
        assert_eq!(drop(Dropped::Waiting(Mark(6))), 9);
        assert_eq!(drop(Dropped::Held), 9, "it was not among them");
        assert_eq!(drop(Dropped::None), 9);
    }
}
