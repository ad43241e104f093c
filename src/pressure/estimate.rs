//! How many jobs wait in a queue: what the backend said last, and what was seen to come and go since.
//!
//! Nothing is ever counted as gone that may not be: whatever could be in the backend's number and in
//! ours is in both, so the estimate errs upwards, and the next **look** (a question to the backend)
//! mends it. A look for which enqueues were kept out is exact.

use std::time::Duration;

use tokio::time::Instant;

use super::share::{CLAIM, Elsewhere, Others, Part, Shared};

/// A point in the order of things, so that what was sent before an answer is told from what was sent
/// after it, however coarse the clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Mark(pub u64);

/// The time between two looks near the bound.
pub const NEAR: Duration = Duration::from_millis(100);
/// The same where there is some room, and where there is much of it.
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
    /// Jobs that no FETCH would get, as far as it says.
    pub fn later(&self) -> u64 {
        self.scheduled.unwrap_or(0) + self.retryable.unwrap_or(0)
    }

    /// All jobs that wait, as far as it says.
    pub fn total(&self) -> u64 {
        self.available + self.later()
    }
}

/// What is held in this sidecar: to the backend it is active.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Jobs in the hold.
    pub jobs: u64,
    /// Jobs that the backend was asked for and that have not come yet.
    pub asked: u64,
}

/// Where the number comes from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Source {
    /// Nowhere yet.
    #[default]
    Unknown,
    /// The backend's statistics.
    Stats,
    /// What passed through here: the backend has no statistics.
    Passing,
}

/// Whether a look is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// No.
    Nothing,
    /// Yes, but nobody has to wait for it.
    Soon,
    /// Before anything is answered.
    First,
}

/// One queue's depth.
#[derive(Clone, Default, Debug)]
pub struct Estimate {
    source: Source,
    /// What the backend has, as of the last look.
    base: u64,
    /// Stored since, perhaps already in `base`.
    since: u64,
    /// Left since, surely not yet gone from `base`.
    left: u64,
    /// Sent on and not answered.
    in_flight: u64,
    /// When the last look ended, well or not.
    looked: Option<Instant>,
    /// What was sent before this may be in `base`.
    known: Mark,
    /// Claims that were on their way when the last look ended: gone from `base`, and not held yet.
    doubt: u64,
    look: Option<Look>,
    /// Of `since`, what may be in `base` already: stored while a look was on its way.
    unsure: u64,
    /// Waiting in states that the backend does not tell of, as of the last look.
    hidden: u64,
    /// The last enqueue that was stored.
    stored_at: Mark,
    /// What is known of the enqueues of other sidecars.
    pub(super) part: Part,
    /// What waits at other sidecars.
    pub(super) elsewhere: Elsewhere,
}

/// A look on its way.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Stored since it began: perhaps in what it will say.
    since: u64,
    /// Whether enqueues are kept out meanwhile.
    closed: bool,
}

impl Estimate {
    /// The depth, with enqueues that are on their way.
    pub fn depth(&self, held: Held) -> u64 {
        self.waiting(held) + self.in_flight
    }

    /// The same without places of siblings that nobody here knows to be used: so many are known to be there.
    pub fn known(&self, held: Held) -> u64 {
        let come = self.part.may_have_come();
        let come = come.map_or(self.since, |come| come.min(self.since));
        self.with(come) + self.outside(held) + self.in_flight
    }

    /// The depth without enqueues that are on their way.
    pub fn waiting(&self, held: Held) -> u64 {
        self.in_backend() + self.outside(held)
    }

    /// The depth of the backend's queue.
    pub(super) fn in_backend(&self) -> u64 {
        self.with(self.part.may_have_come().unwrap_or(self.since))
    }

    /// The same, where so many came since the last look.
    fn with(&self, come: u64) -> u64 {
        (self.base + self.hidden + come).saturating_sub(self.left)
    }

    /// What waits and is active to the backend.
    fn outside(&self, held: Held) -> u64 {
        held.jobs + self.doubt.min(held.asked) + self.elsewhere.jobs()
    }

    /// Enqueues that are on their way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.source != Source::Unknown
    }

    /// Whether a look is on its way.
    pub fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// Whether enqueues are to wait for it.
    pub fn is_closed(&self) -> bool {
        self.look.is_some_and(|look| look.closed)
    }

    /// Whether the backend tells numbers, as far as is known.
    pub fn is_told(&self) -> bool {
        self.source == Source::Stats
    }

    /// `jobs` are sent on.
    pub fn reserve(&mut self, jobs: u64) {
        self.in_flight += jobs;
        self.part.reserve(jobs);
    }

    /// They were stored, or perhaps were.
    pub fn stored(&mut self, jobs: u64, mark: Mark) {
        self.in_flight = self.in_flight.saturating_sub(jobs);
        self.part.stored(jobs);
        self.note(jobs, mark);
    }

    /// They were not stored.
    pub fn refused(&mut self, jobs: u64) {
        self.in_flight = self.in_flight.saturating_sub(jobs);
        self.part.refused(jobs);
    }

    /// `jobs` wait again that did not before: failed and to be tried again, or given back.
    pub fn came(&mut self, jobs: u64, mark: Mark) {
        self.part.came(jobs);
        self.note(jobs, mark);
    }

    fn note(&mut self, jobs: u64, mark: Mark) {
        self.since += jobs;
        self.stored_at = self.stored_at.max(mark);
        if let Some(look) = &mut self.look {
            look.since += jobs;
        }
    }

    /// `jobs` were given to us in answer to what was sent at `sent`; says how many of them count: what
    /// may be gone from the backend's number already does not.
    pub fn left(&mut self, jobs: u64, sent: Mark) -> u64 {
        if sent < self.known {
            return 0;
        }
        let counted = jobs.min(self.in_backend());
        self.left += counted;
        counted
    }

    /// A FETCH that was sent at `sent` got fewer jobs than it asked for: nothing was available. Only
    /// believed where the backend tells no numbers, and nothing was stored since.
    pub fn ran_dry(&mut self, sent: Mark) {
        if self.source == Source::Passing && self.stored_at < sent && self.in_flight == 0 {
            (self.base, self.since, self.left) = (0, 0, 0);
        }
    }

    /// Whether a look is wanted by an enqueue that finds `room` of `bound` places after it (`None`: it
    /// does not fit). `stuck`: some enqueues on their way are not answered for long, so that waiting for
    /// them tells nothing.
    pub fn wants(&self, room: Option<u64>, bound: u64, stuck: bool, now: Instant) -> Want {
        let Some(looked) = self.looked else {
            return Want::First;
        };
        let age = now.saturating_duration_since(looked);
        if self.source == Source::Passing {
            return if age >= BLIND {
                Want::Soon
            } else {
                Want::Nothing
            };
        }
        match room {
            Some(room) if room > bound / 2 && age >= FAR => Want::Soon,
            Some(room) if room > bound / 2 || age < NEAR => Want::Nothing,
            Some(room) if room > bound / 10 && age >= HALF => Want::Soon,
            Some(room) if room > bound / 10 => Want::Nothing,
            // It may fit after all: a look that keeps enqueues out tells.
            None if self.unsure > 0 && !stuck => Want::First,
            _ if age >= NEAR => Want::First,
            _ => Want::Nothing,
        }
    }

    /// Whether the last look was so little before `now` that what left since then tells what may be on its way
    /// to other sidecars.
    pub(super) fn follows(&self, now: Instant) -> bool {
        let recent = |looked| now.saturating_duration_since(looked) <= 2 * CLAIM;
        // Of a look that knew nothing of others, what they let in since is not known.
        let knew = self.source == Source::Stats && self.part.may_have_come().is_some();
        knew && self.looked.is_some_and(recent)
    }

    /// Whether the last look is so long ago that another may begin.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| now >= due)
    }

    /// When another may begin; `None`: there was none.
    pub fn due(&self) -> Option<Instant> {
        let gap = match self.source {
            Source::Passing => BLIND,
            _ => NEAR,
        };
        self.looked.map(|looked| looked + gap)
    }

    /// Whether the last look is so long ago that a queue near its bound is looked at although nobody asks. `used`:
    /// when somebody last did, or its depth changed; from then on the time between two looks doubles.
    pub fn is_old(&self, used: Instant, now: Instant) -> bool {
        let old = |looked: Instant| {
            let unused = looked.saturating_duration_since(used + UNUSED);
            now.saturating_duration_since(looked) >= unused.clamp(HALF, SELDOM)
        };
        self.source == Source::Stats && self.looked.is_none_or(old)
    }

    /// A look begins; `closed`: enqueues wait for it. `false`: one is on its way.
    pub fn begin(&mut self, closed: bool) -> bool {
        if let Some(look) = &mut self.look {
            look.closed |= closed;
            return false;
        }
        self.look = Some(Look { since: 0, closed });
        true
    }

    /// What is on its way from now on may be in what the look says, or not: the question leaves.
    pub fn asking(&mut self) {
        if let Some(look) = &mut self.look {
            look.since = 0;
        }
    }

    /// The look ended with these numbers. `hidden`: jobs that are known to wait in states in which the
    /// backend shows none. `shared`: what the store knew before the question, and `others` what it
    /// knew after the answer, where a fleet shares it. Says by how much the depth was below what was thought.
    pub fn told(
        &mut self,
        counts: Counts,
        hidden: u64,
        held: Held,
        (shared, others): (Option<Shared>, Option<Others>),
        (now, mark): (Instant, Mark),
    ) -> u64 {
        let before = self.waiting(held);
        if let Some(shared) = shared {
            self.part.hears(shared.granted);
        }
        let there = self.in_backend();
        let since = self.look.take().map_or(0, |look| look.since);
        self.source = Source::Stats;
        self.base = counts.total();
        self.hidden = hidden;
        self.since = since;
        self.unsure = since + self.in_flight;
        self.left = 0;
        self.doubt = held.asked;
        self.looked = Some(now);
        self.known = mark;
        self.part.looked(shared);
        match shared {
            Some(_) => {
                let left = there.saturating_sub(self.in_backend());
                self.elsewhere.looked(others, left, now);
            }
            None => self.elsewhere = Elsewhere::default(),
        }
        before.saturating_sub(self.waiting(held))
    }

    /// Stored since the question of the look that is on its way.
    pub(super) fn since_asked(&self) -> u64 {
        self.look.map_or(0, |look| look.since)
    }

    /// What was known is not true any more: a look comes before anything is answered.
    pub(super) fn doubt_all(&mut self) {
        self.looked = None;
    }

    /// Nothing is known of other sidecars any more.
    pub(super) fn alone(&mut self) {
        self.part.looked(None);
        self.elsewhere = Elsewhere::default();
    }

    /// The backend has no numbers for us: from now on only what passes counts.
    pub fn untold(&mut self, now: Instant) {
        self.alone();
        self.look = None;
        self.looked = Some(now);
        // Numbers that were told once are better than none.
        if self.source == Source::Unknown {
            self.source = Source::Passing;
        }
    }

    /// The backend's numbers are not true, and never were: only what passes counts.
    pub fn disbelieved(&mut self, now: Instant) {
        self.untold(now);
        self.source = Source::Passing;
    }

    /// The backend did not answer.
    pub fn unanswered(&mut self, now: Instant) {
        self.look = None;
        if self.source != Source::Unknown {
            self.looked = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Held = Held { jobs: 0, asked: 0 };

    fn available(available: u64) -> Counts {
        Counts {
            available,
            ..Counts::default()
        }
    }

    fn told(jobs: u64) -> Estimate {
        let mut estimate = Estimate::default();
        assert!(estimate.begin(true));
        estimate.told(
            available(jobs),
            0,
            NONE,
            (None, None),
            (Instant::now(), Mark(1)),
        );
        estimate
    }

    #[test]
    fn what_settles_during_a_look_counts_twice_at_worst() {
        let mut estimate = told(10);
        estimate.reserve(3);
        estimate.stored(1, Mark(2));
        estimate.begin(false);
        estimate.asking();
        estimate.stored(1, Mark(3));
        // The backend has 12 or 13: the one that settled meanwhile may be in there.
        estimate.told(
            available(12),
            0,
            NONE,
            (None, None),
            (Instant::now(), Mark(4)),
        );
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
        estimate.begin(false);
        let held = |jobs, asked| Held { jobs, asked };
        estimate.told(
            available(5),
            2,
            held(3, 4),
            (None, None),
            (Instant::now(), Mark(9)),
        );
        assert_eq!(estimate.depth(held(3, 4)), 14);
        assert_eq!(estimate.depth(held(6, 0)), 13, "they came");
        assert_eq!(estimate.depth(held(6, 8)), 17, "others are asked for");
    }

    #[test]
    fn what_left_tells_only_after_a_look_that_knew_of_others() {
        let (mut estimate, now) = (Estimate::default(), Instant::now());
        assert!(!estimate.follows(now));
        let at = (now, Mark(1));
        estimate.told(available(5), 0, NONE, (None, None), at);
        assert!(!estimate.follows(now));
        let (granted, open) = (9, 2);
        let shared = Some(Shared { granted, open });
        let others = |held, more| Some(Others { held, more });
        estimate.told(available(5), 0, NONE, (shared, others(4, false)), at);
        assert_eq!(estimate.depth(NONE), 5 + 2 + 4);
        assert_eq!(estimate.known(NONE), 5 + 4, "two places are only open");
        assert!(estimate.follows(now + 2 * CLAIM) && !estimate.follows(now + 3 * CLAIM));
        // Three more were let in, four have left the queue, and one of those has arrived.
        let (granted, open) = (12, 0);
        let shared = Some(Shared { granted, open });
        estimate.told(available(6), 0, NONE, (shared, others(5, true)), at);
        assert_eq!(
            estimate.depth(NONE),
            6 + 4 + 5,
            "that one counts twice for now"
        );
        estimate.alone();
        assert_eq!(estimate.depth(NONE), 6);
    }

    #[test]
    fn looks_are_few_far_from_the_bound() {
        let (estimate, now) = (told(10), Instant::now());
        let after = |room, ms| estimate.wants(room, 1_000, false, now + Duration::from_millis(ms));
        assert_eq!(after(Some(900), 4_000), Want::Nothing);
        assert_eq!(after(Some(900), 5_100), Want::Soon);
        assert_eq!(after(Some(400), 900), Want::Nothing);
        assert_eq!(after(Some(400), 1_100), Want::Soon);
        assert_eq!(after(Some(50), 90), Want::Nothing);
        assert_eq!(after(Some(50), 110), Want::First);
        assert_eq!(after(None, 90), Want::Nothing);
        assert_eq!(after(None, 110), Want::First);
        assert_eq!(
            Estimate::default().wants(Some(900), 1_000, false, now),
            Want::First
        );
    }

    #[test]
    fn without_numbers_what_passes_counts() {
        let (mut estimate, now) = (Estimate::default(), Instant::now());
        estimate.begin(true);
        estimate.untold(now);
        estimate.reserve(4);
        estimate.stored(4, Mark(1));
        assert_eq!(estimate.left(1, Mark(2)), 1);
        assert_eq!(estimate.depth(NONE), 3);
        estimate.ran_dry(Mark(0));
        assert_eq!(estimate.depth(NONE), 3, "asked before they were stored");
        estimate.ran_dry(Mark(3));
        assert_eq!(estimate.depth(NONE), 0);
        assert_eq!(
            estimate.wants(None, 5, false, now + Duration::from_secs(9)),
            Want::Nothing
        );
    }
}
