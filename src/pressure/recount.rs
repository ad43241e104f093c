//! Whether a backend's statistics leave out jobs that are there (some count the first page of an index
//! only). What was stored here and not seen to leave should be in them; where much of it is not, the
//! backend's list of jobs is asked for its total, which tells a bad count from jobs that left behind our back.

use std::time::Duration;

use tokio::time::Instant;

/// Less than this, and less than a tenth, is not worth a question.
const FEW: u64 = 10;
/// How long the answer to one question is enough, and after how many that told nothing new at most.
const AGAIN: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(600);

/// What passed through here, beside what the backend counts.
#[derive(Clone, Debug)]
pub(super) struct Recount {
    /// Jobs that should wait in the backend's queue, by what was seen to come and go.
    passed: u64,
    /// The statistics are known to leave jobs out.
    proven: bool,
    /// The list is to be asked.
    short: bool,
    next: Option<Instant>,
    pause: Duration,
}

impl Default for Recount {
    fn default() -> Recount {
        Recount {
            passed: 0,
            proven: false,
            short: false,
            next: None,
            pause: AGAIN,
        }
    }
}

impl Recount {
    pub(super) fn came(&mut self, jobs: u64) {
        self.passed += jobs;
    }

    pub(super) fn left(&mut self, jobs: u64) {
        self.passed = self.passed.saturating_sub(jobs);
    }

    /// The backend counts `total`, in which `since` may not be yet; says what to go by.
    pub(super) fn told(&mut self, total: u64, since: u64) -> u64 {
        let seen = total + since;
        if seen >= self.passed {
            self.passed = seen;
            self.short = false;
            return total;
        }
        if self.proven {
            self.short = true;
            return self.passed - since.min(self.passed);
        }
        let missing = self.passed - seen;
        self.short = missing >= FEW.max(self.passed / 10);
        total
    }

    /// Whether the statistics are known to leave jobs out.
    pub(super) fn is_proven(&self) -> bool {
        self.proven
    }

    /// Whether the list of jobs should be asked now.
    pub(super) fn asks(&self, now: Instant) -> bool {
        self.short && self.next.is_none_or(|next| now >= next)
    }

    /// The list has so many where the statistics said `told`; `None`: nobody knows. Says whether the
    /// statistics turn out to leave jobs out.
    pub(super) fn listed(&mut self, listed: Option<u64>, told: u64, now: Instant) -> bool {
        self.short = false;
        let more = listed.filter(|listed| *listed >= told + FEW.max(listed / 10));
        match (more, listed) {
            (Some(listed), _) => {
                let news = !self.proven;
                (self.proven, self.passed, self.pause) = (true, listed, AGAIN);
                self.next = Some(now + AGAIN);
                news
            }
            (None, listed) => {
                self.passed = listed.map_or(told, |listed| listed.max(told));
                self.next = Some(now + self.pause);
                self.pause = (self.pause * 2).min(LONGEST);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_behind_our_back_is_told_from_a_bad_count() {
        let (mut recount, now) = (Recount::default(), Instant::now());
        recount.came(100);
        assert_eq!(recount.told(95, 0), 95);
        assert!(!recount.asks(now), "a few");
        assert_eq!(recount.told(40, 5), 40);
        assert!(recount.asks(now));
        assert!(!recount.listed(Some(41), 40, now));
        assert_eq!(recount.told(41, 0), 41);
        recount.came(59);
        assert_eq!(recount.told(41, 0), 41);
        assert!(!recount.asks(now + Duration::from_secs(29)));
        let later = now + Duration::from_secs(31);
        assert!(recount.asks(later));
        assert!(recount.listed(Some(100), 41, later), "it is one");
        assert_eq!(recount.told(41, 0), 100);
        recount.left(10);
        recount.came(3);
        assert_eq!(recount.told(41, 2), 91);
        let later = later + AGAIN;
        assert!(recount.asks(later) && !recount.listed(Some(80), 41, later));
        assert_eq!(recount.told(41, 0), 80);
        assert_eq!(recount.told(200, 0), 200, "more is believed");
    }

    #[test]
    fn without_a_list_it_is_as_it_was_told() {
        let (mut recount, now) = (Recount::default(), Instant::now());
        recount.came(100);
        recount.told(0, 0);
        assert!(recount.asks(now) && !recount.listed(None, 0, now));
        assert_eq!(recount.told(0, 0), 0);
        assert!(!recount.asks(now + LONGEST));
    }
}
