//! How many bytes wait in a queue. No backend tells, so it is counted from what was enqueued here:
//! each job is as long as it was sent, and the oldest are taken to have left first.

use std::collections::VecDeque;

/// Beyond this many, the oldest are summed up: memory stays bounded however deep the queue is.
const EACH: usize = 65_536;

/// The waiting jobs that are known, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    each: VecDeque<u32>,
    bytes: u64,
    /// Older ones: how many, and their bytes.
    rest: (u64, u64),
    /// Bytes of enqueues that are on their way.
    in_flight: u64,
}

impl Bytes {
    /// A job of `bytes` was stored.
    pub(super) fn add(&mut self, bytes: u64) {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.each.push_back(size);
        self.bytes += u64::from(size);
        if self.each.len() > EACH
            && let Some(oldest) = self.each.pop_front()
        {
            self.rest.0 += 1;
            self.rest.1 += u64::from(oldest);
        }
    }

    /// An enqueue is on its way.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// An enqueue was answered.
    pub(super) fn release(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// The bytes of a queue in which `depth` jobs wait, with those on their way. Jobs that are known beyond that have
    /// left; jobs that are not known are as long as the others on average.
    pub(super) fn of(&mut self, depth: u64) -> u64 {
        let mut surplus = self.known().saturating_sub(depth);
        if surplus > 0 && self.rest.0 > 0 {
            let gone = surplus.min(self.rest.0);
            let bytes = self.rest.1 / self.rest.0 * gone;
            self.rest.0 -= gone;
            self.rest.1 -= bytes;
            self.bytes -= bytes;
            if self.rest.0 == 0 {
                self.bytes -= self.rest.1;
                self.rest.1 = 0;
            }
            surplus -= gone;
        }
        for _ in 0..surplus {
            if let Some(size) = self.each.pop_front() {
                self.bytes -= u64::from(size);
            }
        }
        let (known, unknown) = (self.known(), depth.saturating_sub(self.known()));
        let mean = self.bytes.checked_div(known);
        let waiting = mean.map_or(0, |mean| self.bytes + mean.saturating_mul(unknown));
        waiting + self.in_flight
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known() == 0
    }

    fn known(&self) -> u64 {
        self.rest.0 + self.each.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_first() {
        let mut sizes = Bytes::default();
        [10, 20, 30].into_iter().for_each(|size| sizes.add(size));
        assert_eq!(sizes.of(3), 60);
        assert_eq!(sizes.of(2), 50);
        assert_eq!(sizes.of(4), 50 + 2 * 25, "two more that nobody knows");
        assert_eq!(sizes.of(0), 0);
        assert_eq!(sizes.of(5), 0, "nothing is known");
    }

    #[test]
    fn deep_queues_are_summed_up_and_emptied() {
        let mut sizes = Bytes::default();
        let many = EACH as u64 + 1_000;
        (0..many).for_each(|n| sizes.add(n % 7));
        let all = (0..many).map(|n| n % 7).sum::<u64>();
        assert_eq!(sizes.of(many), all);
        assert_eq!(sizes.each.len(), EACH);
        let last: u64 = (many - 10..many).map(|n| n % 7).sum();
        sizes.of(500);
        assert_eq!(sizes.of(10), last);
        assert_eq!(sizes.of(0), 0);
        assert_eq!(sizes.bytes, 0);
    }
}
