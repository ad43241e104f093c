//! How many jobs wait in a queue: the backend's number at the last look, and what was seen to come and go since.
//!
//! Only admissions raise the estimate, and a **look** (a question to the backend) corrects it. A job that may be in
//! the backend's number and in ours counts in both, so the estimate is never too low. A look during which enqueues
//! were kept out is exact.
//!
//! Why enqueues are admitted from an estimate, and the backend is not asked about each: its answer would be true no
//! longer than it travels, because other enqueues pass it on the way. It would also cost the backend one question for
//! each job, most of all when its queues are full and it is slow. A count without any look was the other way: jobs
//! also leave through doors that we do not see, and such a count would be wrong for ever after the first of them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::seen::{Away, Mark};

/// An enqueue that leaves no more of a bound free is near it, and one that leaves more than this is far from it.
const NEAR_PART: f64 = 0.1;
const HALF_PART: f64 = 0.5;
/// The time between two looks near the bound.
pub const NEAR: Duration = Duration::from_millis(100);
/// The time between two looks where there is some room, and where there is much of it.
const HALF: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(5);
/// A queue that nobody used for so long is looked at less and less often, and at least so often.
const UNUSED: Duration = Duration::from_secs(5);
const SELDOM: Duration = Duration::from_secs(60);
/// How often a backend that told no numbers is asked again.
const BLIND: Duration = Duration::from_secs(30);

/// What the backend says of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Jobs that a FETCH would get.
    pub available: u64,
    /// Jobs that wait for a time; `None`: they are not in its answer.
    pub scheduled: Option<u64>,
    /// Jobs that wait for another attempt; `None`: they are not in its answer.
    pub retryable: Option<u64>,
}

impl Counts {
    /// These and those of another queue. What this one does not tell stays untold.
    #[must_use]
    pub fn and(&self, other: &Counts) -> Counts {
        let add = |of: Option<u64>, more: Option<u64>| Some(of? + more.unwrap_or(0));
        Counts {
            available: self.available + other.available,
            scheduled: add(self.scheduled, other.scheduled),
            retryable: add(self.retryable, other.retryable),
        }
    }

    /// Jobs that no FETCH would get, as far as it says.
    pub fn later(&self) -> u64 {
        self.scheduled.unwrap_or(0) + self.retryable.unwrap_or(0)
    }

    /// All jobs that wait, as far as it says.
    pub fn total(&self) -> u64 {
        self.available + self.later()
    }
}

/// What is held in this sidecar, to the backend it is active, and how many others there are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldCount {
    /// Jobs in the hold.
    pub jobs: u64,
    /// Jobs that the backend was asked for and that have not come yet.
    pub asked: u64,
    /// How many other sidecars may admit jobs to the queue.
    pub siblings: u64,
}

/// The looks at a queue.
#[derive(Default, Debug)]
pub(super) struct LookState {
    /// Told when a look ends.
    pub(super) done: Arc<Notify>,
    /// Told when no enqueue is on its way any more.
    pub(super) settled: Arc<Notify>,
    /// Whether nobody is let in before the end of the look that is on its way: somebody waits for it, so it is to be
    /// exact. Who drops a job has the queue closed in the same way.
    pub(super) closed: bool,
    /// Whether nobody was let in since the last look.
    pub(super) is_fresh: bool,
    /// The scope of the last look.
    pub(super) scope: u64,
    /// Whether the last look waited in vain for enqueues on their way.
    pub(super) stuck: bool,
    /// Why the backend could not be asked, the last time.
    pub(super) away: Option<(Away, Instant)>,
}

/// One queue's depth.
#[derive(Clone, Default, Debug)]
pub struct Estimate {
    /// Whether the backend told numbers. Until then only what passes through here is known.
    pub(super) has_stats: bool,
    /// Jobs in the backend's queue: its number at the last look, and what was seen to come and go since.
    pub(super) stored: u64,
    /// Enqueues that were sent on and not answered.
    pub(super) in_flight: u64,
    /// When the last look ended, well or not, and the backend had rested from it; `None`: nothing is known.
    last_look: Option<Instant>,
    /// How long the backend rests from a look.
    rest: Duration,
    /// Whether jobs may have come of which nothing is known.
    doubted: bool,
    /// Whether that was so since the question of the look left that is on its way.
    doubted_since: bool,
    /// What was sent before this mark may be in the backend's number.
    known: Mark,
    /// Claims that were on their way when the last look ended: gone from the backend's number, and not held yet.
    claims: u64,
    /// Jobs that other sidecars held at the last look.
    pub(super) elsewhere: u64,
    /// The look that is on its way: jobs that were stored since its question left. The answer may have them in it.
    pub(super) look: Option<u64>,
    /// Whether the last look may have counted an enqueue twice.
    unsure: bool,
    /// The last enqueue that was stored.
    newest: Mark,
}

/// What a look found.
#[derive(Clone, Copy, Debug)]
pub struct LookFound {
    /// The backend's numbers.
    pub counts: Counts,
    /// Jobs that are known to wait in states that the backend does not tell of.
    pub hidden: u64,
    /// What this sidecar holds.
    pub held: HeldCount,
    /// Jobs that other sidecars hold.
    pub elsewhere: u64,
}

impl Estimate {
    /// The depth, with enqueues that are on their way.
    pub fn depth(&self, held: HeldCount) -> u64 {
        self.waiting(held) + self.in_flight
    }

    /// The depth without enqueues that are on their way.
    pub fn waiting(&self, held: HeldCount) -> u64 {
        // Held jobs are active to the backend, and wait all the same.
        self.stored + held.jobs + self.claims.min(held.asked) + self.elsewhere
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.last_look.is_some()
    }

    /// Whether a look is on its way.
    pub fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// `jobs` are sent on.
    pub fn reserve(&mut self, jobs: u64) {
        self.in_flight += jobs;
    }

    /// They were stored, or perhaps were.
    pub fn stored(&mut self, jobs: u64, mark: Mark) {
        self.in_flight = self.in_flight.saturating_sub(jobs);
        self.came(jobs, mark);
    }

    /// They were not stored.
    pub fn refused(&mut self, jobs: u64) {
        self.in_flight = self.in_flight.saturating_sub(jobs);
    }

    /// `jobs` came to wait in the backend's queue: stored, failed and to be tried again, or given back.
    pub fn came(&mut self, jobs: u64, mark: Mark) {
        self.stored += jobs;
        self.newest = self.newest.max(mark);
        if let Some(stored) = &mut self.look {
            *stored += jobs;
        }
    }

    /// `jobs` were given to us in answer to what was sent at `sent`. Returns how many of them count: those that may
    /// be gone from the backend's number already do not.
    pub fn left(&mut self, jobs: u64, sent: Mark) -> u64 {
        if sent < self.known {
            return 0;
        }
        let counted = jobs.min(self.stored);
        self.stored -= counted;
        counted
    }

    /// A FETCH that was sent at `sent` got fewer jobs than it asked for: nothing was available. This is only
    /// believed where the backend tells no numbers, and nothing was stored since.
    pub fn ran_dry(&mut self, sent: Mark) {
        if !self.has_stats && self.newest < sent && self.in_flight == 0 {
            self.stored = 0;
        }
    }

    /// Whether the backend is asked before an enqueue is answered. `left`: the part of a bound that is free after it;
    /// `None`: it does not fit.
    pub(super) fn must_look(&self, left: Option<f64>, looks: &LookState, now: Instant) -> bool {
        let Some(looked) = self.last_look.filter(|_| !self.doubted) else {
            return true;
        };
        let is_near = left.is_none_or(|left| left <= NEAR_PART);
        let is_old = now.saturating_duration_since(looked) >= NEAR;
        // It may fit after all: a look that keeps enqueues out tells. Where enqueues on their way are not answered for
        // long, waiting for them tells nothing.
        let may_fit = left.is_none() && self.unsure && !looks.stuck;
        self.has_stats && is_near && (is_old || may_fit)
    }

    /// Whether the backend is asked soon after an enqueue that leaves this part of a bound free: nobody waits for that.
    pub(super) fn wants_look(&self, left: Option<f64>, now: Instant) -> bool {
        let gap = match left {
            _ if !self.has_stats => BLIND,
            Some(left) if left > HALF_PART => FAR,
            Some(left) if left > NEAR_PART => HALF,
            _ => NEAR,
        };
        let is_old = |looked| now.saturating_duration_since(looked) >= gap;
        self.doubted || self.last_look.is_none_or(is_old)
    }

    /// Whether the last look is so long ago that another may begin.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| now >= due)
    }

    /// When another may begin; `None`: there was none.
    pub fn due(&self) -> Option<Instant> {
        let gap = if self.has_stats { NEAR } else { BLIND };
        self.last_look.map(|looked| looked + gap)
    }

    /// Whether the last look is so long ago that a queue near its bound is looked at although nobody asks. `used`:
    /// when somebody last did, or its depth changed; from then on the time between two looks doubles.
    pub fn is_old(&self, used: Instant, now: Instant) -> bool {
        let old = |looked: Instant| {
            let unused = looked.saturating_duration_since(used + UNUSED);
            now.saturating_duration_since(looked) >= unused.clamp(HALF, SELDOM)
        };
        self.has_stats && self.last_look.is_none_or(old)
    }

    /// Begins a look. `false`: one is on its way already.
    pub fn begin(&mut self) -> bool {
        self.look.replace(self.look.unwrap_or(0)).is_none()
    }

    /// The backend rests so long from a look.
    pub fn rests(&mut self, rest: Duration) {
        self.rest = rest;
    }

    /// The question of the look leaves: what is stored from now on may be in its answer, or not.
    pub fn note_asked(&mut self) {
        self.doubted_since = false;
        self.look = self.look.map(|_| 0);
    }

    /// The look ended. Returns by how much the depth is below what was thought.
    pub fn correct(&mut self, found: &LookFound, now: Instant, mark: Mark) -> u64 {
        let before = self.waiting(found.held);
        let stored = self.stored_since_asked();
        self.look = None;
        (self.has_stats, self.doubted) = (true, mem::take(&mut self.doubted_since));
        self.stored = found.counts.total() + found.hidden + stored;
        self.unsure = stored + self.in_flight > 0;
        self.claims = found.held.asked;
        self.elsewhere = found.elsewhere;
        self.last_look = Some(now + self.rest);
        self.known = mark;
        before.saturating_sub(self.waiting(found.held))
    }

    /// Jobs that were stored since the question of the look that is on its way.
    pub(super) fn stored_since_asked(&self) -> u64 {
        self.look.unwrap_or(0)
    }

    /// What was known is not true any more: a look comes before anything is answered.
    pub(super) fn doubt_all(&mut self) {
        (self.doubted, self.doubted_since) = (true, self.look.is_some());
    }

    /// Nobody follows the depth any more: it is not known until the next look.
    pub(super) fn forget(&mut self) {
        self.last_look = None;
        self.doubted = true;
    }

    /// The backend has no numbers for us: only what passes counts, beside numbers that were told once.
    pub fn note_no_stats(&mut self, now: Instant) {
        (self.elsewhere, self.look, self.last_look) = (0, None, Some(now));
        self.doubted = mem::take(&mut self.doubted_since);
    }

    /// The backend did not answer.
    pub fn unanswered(&mut self, now: Instant) {
        self.look = None;
        if let Some(looked) = &mut self.last_look {
            *looked = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: HeldCount = HeldCount {
        jobs: 0,
        asked: 0,
        siblings: 0,
    };

    fn found(available: u64) -> LookFound {
        LookFound {
            counts: Counts {
                available,
                ..Counts::default()
            },
            hidden: 0,
            held: NONE,
            elsewhere: 0,
        }
    }

    fn told(jobs: u64) -> Estimate {
        let mut estimate = Estimate::default();
        assert!(estimate.begin());
        estimate.correct(&found(jobs), Instant::now(), Mark(1));
        estimate
    }

    #[test]
    fn what_settles_during_a_look_counts_twice_at_worst() {
        let mut estimate = told(10);
        estimate.reserve(3);
        estimate.stored(1, Mark(2));
        estimate.begin();
        estimate.note_asked();
        estimate.stored(1, Mark(3));
        // The backend has 12 or 13: the one that settled meanwhile may be in there.
        estimate.correct(&found(12), Instant::now(), Mark(4));
        assert_eq!(estimate.depth(NONE), 12 + 1 + 1);
        estimate.refused(1);
        assert_eq!(estimate.depth(NONE), 13);
    }

    #[test]
    fn a_departure_counts_only_when_it_is_surely_not_counted_yet() {
        let mut estimate = told(10);
        assert_eq!(estimate.left(2, Mark(0)), 0, "sent before the look ended");
        assert_eq!(estimate.left(2, Mark(1)), 2);
        assert_eq!(estimate.depth(NONE), 8);
        assert_eq!(estimate.left(20, Mark(2)), 8, "no more than there are");
    }

    #[test]
    fn held_jobs_and_claims_that_were_on_their_way_count() {
        let mut estimate = Estimate::default();
        estimate.begin();
        let held = |jobs, asked| HeldCount {
            jobs,
            asked,
            siblings: 0,
        };
        let found = LookFound {
            hidden: 2,
            held: held(3, 4),
            ..found(5)
        };
        estimate.correct(&found, Instant::now(), Mark(9));
        assert_eq!(estimate.depth(held(3, 4)), 14);
        assert_eq!(estimate.depth(held(6, 0)), 13, "they came");
        assert_eq!(estimate.depth(held(6, 8)), 17, "others are asked for");
    }

    #[test]
    fn what_other_sidecars_hold_counts() {
        let mut estimate = told(5);
        let others = LookFound {
            elsewhere: 4,
            ..found(5)
        };
        assert_eq!(estimate.correct(&others, Instant::now(), Mark(2)), 0);
        assert_eq!(estimate.depth(NONE), 9);
        estimate.note_no_stats(Instant::now());
        assert_eq!(estimate.depth(NONE), 5);
    }

    #[test]
    fn looks_are_few_far_from_the_bound() {
        let (estimate, now, looks) = (told(10), Instant::now(), LookState::default());
        let after = |left, ms| {
            let now = now + Duration::from_millis(ms);
            let must = estimate.must_look(left, &looks, now);
            (must, must || estimate.wants_look(left, now))
        };
        let (nothing, soon, first) = ((false, false), (false, true), (true, true));
        assert_eq!(after(Some(0.9), 4_000), nothing);
        assert_eq!(after(Some(0.9), 5_100), soon);
        assert_eq!(after(Some(0.4), 900), nothing);
        assert_eq!(after(Some(0.4), 1_100), soon);
        assert_eq!(after(Some(0.05), 90), nothing);
        assert_eq!(after(Some(0.05), 110), first);
        assert_eq!(after(None, 90), nothing);
        assert_eq!(after(None, 110), first);
        assert!(Estimate::default().must_look(Some(0.9), &looks, now));
    }

    #[test]
    fn a_look_that_failed_ends_no_doubt() {
        let (mut estimate, now, looks) = (told(10), Instant::now(), LookState::default());
        let is_asked_first = |estimate: &Estimate| estimate.must_look(Some(0.9), &looks, now);
        assert!(!is_asked_first(&estimate));
        estimate.doubt_all();
        assert!(is_asked_first(&estimate));
        estimate.begin();
        estimate.unanswered(now);
        assert!(is_asked_first(&estimate) && estimate.is_known());
        estimate.correct(&found(10), now, Mark(2));
        assert!(!is_asked_first(&estimate));
        // What came to be doubted since the question left stays so.
        estimate.begin();
        estimate.note_asked();
        estimate.doubt_all();
        estimate.correct(&found(10), now, Mark(3));
        assert!(is_asked_first(&estimate));
    }

    #[test]
    fn without_numbers_what_passes_counts() {
        let (mut estimate, now) = (Estimate::default(), Instant::now());
        estimate.begin();
        estimate.note_no_stats(now);
        estimate.reserve(4);
        estimate.stored(4, Mark(1));
        assert_eq!(estimate.left(1, Mark(2)), 1);
        assert_eq!(estimate.depth(NONE), 3);
        estimate.ran_dry(Mark(0));
        assert_eq!(estimate.depth(NONE), 3, "asked before they were stored");
        estimate.ran_dry(Mark(3));
        assert_eq!(estimate.depth(NONE), 0);
        let later = now + Duration::from_secs(9);
        assert!(!estimate.must_look(None, &LookState::default(), later));
        assert!(!estimate.wants_look(None, later));
    }
}
