//! How many jobs wait in the subqueues of a queue, as far as is known: what passes through here is counted, and the
//! backend's statistics put it right, a few names at a time. No list of queues is read: official backends go over all of
//! their queues for one, and a bound may be looked at ten times a second.

use tokio::time::Instant;

use crate::policy::subqueue::{COUNT, Subqueue};
use crate::pressure::Counts;

/// So many names are looked at beside each look at the queue itself.
const LOOKED_AT: usize = 8;

/// The jobs that wait in each subqueue of one queue.
#[derive(Debug)]
pub(super) struct SubqueueCounts(Box<[CountedSubqueue]>);

#[derive(Clone, Copy, Default, Debug)]
struct CountedSubqueue {
    counts: Counts,
    /// When the backend last told them.
    told: Option<Instant>,
}

impl Default for SubqueueCounts {
    fn default() -> SubqueueCounts {
        SubqueueCounts(vec![CountedSubqueue::default(); COUNT].into())
    }
}

impl SubqueueCounts {
    fn get(&mut self, subqueue: Subqueue) -> Option<&mut Counts> {
        let known = self.0.get_mut(usize::from(subqueue.0))?;
        Some(&mut known.counts)
    }

    /// A job was stored in a subqueue.
    pub(super) fn stored(&mut self, subqueue: Subqueue) {
        if let Some(counts) = self.get(subqueue) {
            counts.available += 1;
        }
    }

    /// A job was claimed from a subqueue.
    pub(super) fn claimed(&mut self, subqueue: Subqueue) {
        if let Some(counts) = self.get(subqueue) {
            counts.available = counts.available.saturating_sub(1);
        }
    }

    /// The backend told the numbers of a subqueue.
    pub(super) fn told(&mut self, subqueue: Subqueue, counts: Counts, now: Instant) {
        if let Some(known) = self.0.get_mut(usize::from(subqueue.0)) {
            *known = CountedSubqueue {
                counts,
                told: Some(now),
            };
        }
    }

    /// Those whose numbers the backend is asked for next: all of them the first time, and then those that were told the
    /// longest time ago.
    pub(super) fn oldest(&self) -> Vec<Subqueue> {
        let mut all: Vec<(Option<Instant>, Subqueue)> = (0..=u8::MAX)
            .zip(&self.0)
            .map(|(number, known)| (known.told, Subqueue(number)))
            .collect();
        all.sort_by_key(|(told, _)| *told);
        let is_first = all.iter().all(|(told, _)| told.is_none());
        let most = if is_first { COUNT } else { LOOKED_AT };
        all.into_iter().take(most).map(|(_, one)| one).collect()
    }

    /// All together.
    pub(super) fn sum(&self) -> Counts {
        let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.0.iter().fold(Counts::default(), |sum, known| Counts {
            available: sum.available + known.counts.available,
            scheduled: add(sum.scheduled, known.counts.scheduled),
            retryable: add(sum.retryable, known.counts.retryable),
        })
    }
}
