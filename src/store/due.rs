//! When the backend is asked about a job that is out.

use ojs_limit::Timestamp;

/// Each count takes one place of so many, in microseconds.
const COUNTS: u64 = 1_000;

/// When the backend must be asked about a job that is out, and how often its worker was heard of.
///
/// Each heartbeat counts, and a look moves the time and leaves the count. So whoever looks sees whether there was a
/// heartbeat since it looked last, also where a sibling has looked after that.
///
/// Stores keep and compare one number: the count takes its digits below a millisecond, and begins anew after 999. A field
/// of its own would have to be written by each of them with each heartbeat, and a millisecond is nothing to a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Due(Timestamp);

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Due {
        Due(at)
    }
}

impl Due {
    /// The time.
    pub fn at(self) -> Timestamp {
        self.0
    }

    /// How often the worker was heard of, from wherever it began.
    pub fn heartbeats(self) -> u64 {
        self.0.0 % COUNTS
    }

    /// The worker was heard of, and the backend is asked at `at`.
    #[must_use]
    pub fn after_heartbeat(self, at: Timestamp) -> Due {
        Due::of(at, self.heartbeats() + 1)
    }

    /// The backend is asked at `at`, and the worker was not heard of.
    #[must_use]
    pub fn moved_to(self, at: Timestamp) -> Due {
        Due::of(at, self.heartbeats())
    }

    fn of(at: Timestamp, heartbeats: u64) -> Due {
        let place = at.0 - at.0 % COUNTS;
        Due(Timestamp(place.saturating_add(heartbeats % COUNTS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Workers may ask for any visibility.
    #[test]
    fn the_end_of_time_is_not_passed() {
        let due = Due::from(Timestamp(998)).after_heartbeat(Timestamp(u64::MAX));
        assert!(due.at() > Timestamp(u64::MAX - COUNTS));
    }

    #[test]
    fn looks_of_siblings_are_no_heartbeats() {
        let due = Due::from(Timestamp(1_000 * SECOND + 998));
        let looked = due.moved_to(Timestamp(1_007 * SECOND + 123));
        assert_eq!(looked.at(), Timestamp(1_007 * SECOND + 998));
        let mut due = looked;
        // However often, and although a sibling looks after each.
        for _ in 0..4 {
            let before = due.heartbeats();
            due = due.after_heartbeat(due.at().plus(30 * SECOND + 1));
            assert_ne!(due.heartbeats(), before);
            let after = due.heartbeats();
            due = due.moved_to(due.at().plus(7 * SECOND + 77));
            assert_eq!(due.heartbeats(), after);
        }
        // Each of the nine is off by less than a millisecond.
        assert!(due.at().since(Timestamp(1_155 * SECOND)) < 9_000);
    }
}
