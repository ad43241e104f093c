//! Since when the jobs of a queue wait that a FETCH could get (`max_age`). No backend tells, so it is known
//! of those that were enqueued here; the oldest are taken to have left first.

use std::collections::VecDeque;

use tokio::time::Instant;

/// More are not told apart: of a deeper queue, the oldest that is known is younger than the oldest.
const EACH: usize = 65_536;

/// When available jobs came, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Since {
    each: VecDeque<Instant>,
}

impl Since {
    /// A job is available since `at`, which is now or not long ago.
    pub(super) fn add(&mut self, at: Instant) {
        let after = self.each.partition_point(|known| *known <= at);
        self.each.insert(after, at);
        if self.each.len() > EACH {
            self.each.pop_front();
        }
    }

    /// One of those that came just now is not available yet.
    pub(super) fn not_yet(&mut self) {
        self.each.pop_back();
    }

    /// Since when the oldest is, with so many `available`.
    pub(super) fn oldest(&mut self, available: u64) -> Option<Instant> {
        while self.each.len() as u64 > available {
            self.each.pop_front();
        }
        self.each.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_of_those_that_are_available() {
        let (mut since, now) = (Since::default(), Instant::now());
        let at = |secs| now + Duration::from_secs(secs);
        [1, 2, 3].into_iter().for_each(|secs| since.add(at(secs)));
        since.not_yet();
        assert_eq!(since.oldest(5), Some(at(1)), "more than are known");
        since.add(at(9));
        since.add(at(4));
        assert_eq!(since.oldest(2), Some(at(4)), "in order");
        assert_eq!(since.oldest(0), None);
    }
}
