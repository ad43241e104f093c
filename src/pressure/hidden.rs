//! Jobs that wait for a time, on backends whose numbers leave them out: those that passed through here
//! are counted until their time has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

/// How long after its time a job may not be available yet: backends look for such jobs now and then.
const LATE: Duration = Duration::from_millis(1_500);
/// More are not counted singly in one queue.
const MOST: usize = 100_000;

/// The waiting jobs of one queue that its backend does not tell of.
#[derive(Clone, Default, Debug)]
pub(super) struct Hidden {
    scheduled: BinaryHeap<Reverse<Instant>>,
    retryable: BinaryHeap<Reverse<Instant>>,
}

impl Hidden {
    /// A job was stored that is available from `due` on.
    pub(super) fn schedule(&mut self, due: Instant) {
        push(&mut self.scheduled, due);
    }

    /// A job failed and is available again from `due` on.
    pub(super) fn retry(&mut self, due: Instant) {
        push(&mut self.retryable, due);
    }

    /// How many still waited at `now`, scheduled and retryable; tells `came` when the others came to be
    /// available.
    pub(super) fn waiting(&mut self, now: Instant, mut came: impl FnMut(Instant)) -> (u64, u64) {
        (
            count(&mut self.scheduled, now, &mut came),
            count(&mut self.retryable, now, &mut came),
        )
    }
}

fn push(heap: &mut BinaryHeap<Reverse<Instant>>, due: Instant) {
    if heap.len() < MOST {
        heap.push(Reverse(due));
    }
}

fn count(
    heap: &mut BinaryHeap<Reverse<Instant>>,
    now: Instant,
    came: &mut impl FnMut(Instant),
) -> u64 {
    while let Some(Reverse(due)) = heap
        .peek()
        .copied()
        .filter(|Reverse(due)| *due + LATE <= now)
    {
        heap.pop();
        came(due);
    }
    heap.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_counted_until_their_time() {
        let (mut hidden, now) = (Hidden::default(), Instant::now());
        let at = |secs| now + Duration::from_secs(secs);
        [30, 10, 20]
            .into_iter()
            .for_each(|secs| hidden.schedule(at(secs)));
        hidden.retry(at(5));
        let mut came = Vec::new();
        let mut waiting = |at| hidden.waiting(at, |due| came.push(due));
        assert_eq!(waiting(now), (3, 1));
        assert_eq!(waiting(at(6)), (3, 1), "perhaps not available yet");
        assert_eq!(waiting(at(12)), (2, 0));
        assert_eq!(waiting(at(40)), (0, 0));
        assert_eq!(came, [10, 5, 20, 30].map(at));
    }
}
