//! One sidecar's part in the depth of a queue that a fleet fills: an admitted enqueue is over no bound, however
//! many sidecars admit.
//!
//! Two numbers in the store make that so, for each queue with a `max_depth`:
//!
//! * **granted**: places ever given to a sidecar. It only grows, and every addition brings the most that it
//!   may become.
//! * **open**: places that were given and whose enqueues are not known to have ended.
//!
//! Who wants places adds to *open*, then to *granted*. Who looks at the queue reads *granted*, then *open*,
//! and then asks the backend. So at each moment after that no more can wait than the backend said, and what
//! was open, and what was granted since; less what was seen to leave. Each sidecar reckons so from its own
//! look, and the store adds no place beyond what that leaves: whose reckoning is the tightest admits, and none
//! of them is ever too low.
//!
//! What others hold back for its limits is active to the backend and waits all the same. It is counted in the
//! store, after the backend was asked, so that a job that goes into a hold meanwhile counts twice rather than not
//! at all. Between the two it is in nobody's number: claimed, and on its way to the sidecar that claimed it. So
//! either what is held is counted [`CLAIM`] after the answer, when it has arrived. Or, where looks follow each
//! other quickly, what has left the backend's queue without our seeing it counts as on its way until a look so
//! much later.
//!
//! Places are taken in advance, fewer the nearer the bound is, and given back when they are not used. So far
//! from the bound there is one call for many enqueues.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long places may be open before nobody counts them any more, in microseconds: what a sidecar that died
/// had open is forgotten after one to two of these. Longer than any enqueue takes.
pub const PERIOD: u64 = 120 * 1_000_000;

/// The most places that are taken at once in advance.
const MOST: u64 = 4_096;

/// What the store's numbers said just before the question of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Places ever granted.
    pub granted: u64,
    /// Places that were open.
    pub open: u64,
}

/// What other sidecars hold of a queue, as the store said after the answer to a look.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Others {
    /// Jobs that they hold.
    pub held: u64,
    /// Whether they may have claimed more just before the answer, which they are going to hold.
    pub more: bool,
}

/// How long a claimed job is on its way from the backend into a hold, at most.
pub const CLAIM: Duration = Duration::from_millis(100);

/// Jobs that wait at other sidecars, as of the last look.
#[derive(Clone, Default, Debug)]
pub(super) struct Elsewhere {
    held: u64,
    /// What left the backend's queue and was not seen to arrive, by looks: it is taken to be on its way until a
    /// look so much later has counted what is held.
    left: VecDeque<(Instant, u64)>,
}

impl Elsewhere {
    /// How many they are.
    pub(super) fn jobs(&self) -> u64 {
        self.held + self.left.iter().map(|(_, jobs)| jobs).sum::<u64>()
    }

    /// A look ended: `left` jobs have left the backend's queue since the one before. `None`: the store did not
    /// answer this time.
    pub(super) fn looked(&mut self, others: Option<Others>, left: u64, now: Instant) {
        let others = others.unwrap_or(Others {
            held: self.held,
            more: true,
        });
        let on_its_way = |at: Instant| now.saturating_duration_since(at) < CLAIM;
        self.left.retain(|(at, _)| on_its_way(*at));
        if others.more && left > 0 {
            self.left.push_back((now, left));
        }
        self.held = others.held;
    }

    /// How many of them are held for certain.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// A job that was held here is held by another sidecar.
    pub(super) fn took(&mut self) {
        self.held += 1;
    }
}

/// Places that are wanted of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// How many.
    pub jobs: u64,
    /// What *granted* may become at most; `None`: whatever comes of it, for others are dropped for them.
    pub most: Option<u64>,
}

/// What became of a [`Lease`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leased {
    /// So many were given; *granted* is this now.
    Some {
        /// How many.
        jobs: u64,
        /// *Granted*.
        granted: u64,
    },
    /// None: *granted* is this.
    None {
        /// *Granted*.
        granted: u64,
    },
    /// The store did not answer this time: it is to be asked again.
    Again,
    /// It is gone, or has other numbers than before: from now on only what passes here is known.
    Lost,
}

/// Places that are not open any more, each number with the period in which they were given.
pub type Ended = Vec<(u64, u64)>;

/// One queue's part.
#[derive(Clone, Default, Debug)]
pub(super) struct Part {
    view: Option<View>,
    /// Places that no enqueue has used yet.
    unused: u64,
    /// Places that enqueues on their way have.
    used: u64,
    /// Places that are not open any more, which the store is to be told.
    ended: u64,
    /// All of these, by the period in which they were given.
    given: VecDeque<(u64, u64)>,
    /// Enqueues have waited for places since the last time that some were given: so many.
    wanted: u64,
    /// Of those, as many must be given though the queue is full: others are dropped for them.
    beyond: bool,
    /// A call for places is on its way, for which *granted* was this.
    pub(super) asking: bool,
    asked_at: u64,
    /// Whether the bound was near when places were last taken.
    pub(super) near: bool,
    /// Whether unused places were used since this was last looked at.
    touched: bool,
}

/// What is reckoned with since a look.
#[derive(Clone, Copy, Debug)]
struct View {
    at: Shared,
    /// *Granted* as of the last answer.
    granted: u64,
    /// Of what was open or granted since, what surely was not stored.
    spared: u64,
    /// What came since without a place: given back, failed, or admitted before there were places.
    besides: u64,
}

impl View {
    fn may_come(&self) -> u64 {
        let since = self.granted - self.at.granted;
        (self.at.open + since).saturating_sub(self.spared) + self.besides
    }
}

impl Part {
    /// How many may have come to the backend's queue since the look, at all sidecars; `None`: only what
    /// passes here is known. Neither unused places of our own nor those of enqueues on their way are among
    /// them.
    pub(super) fn may_have_come(&self) -> Option<u64> {
        let view = self.view?;
        Some(view.may_come().saturating_sub(self.unused + self.used))
    }

    /// Whether what other sidecars let in is known.
    pub(super) fn is_shared(&self) -> bool {
        self.view.is_some()
    }

    /// Places that no enqueue has used yet.
    pub(super) fn unused(&self) -> u64 {
        self.unused
    }

    /// Jobs came that had no place.
    pub(super) fn came(&mut self, jobs: u64) {
        if let Some(view) = &mut self.view {
            view.besides += jobs;
        }
    }

    /// Whether enough places are at hand. If not, so many are wanted.
    pub(super) fn has(&mut self, jobs: u64, beyond: bool) -> bool {
        if self.view.is_none() || self.unused >= jobs {
            return true;
        }
        self.wanted += jobs;
        self.beyond |= beyond;
        false
    }

    /// What to ask the store for, with `room` places left of the bound; `others` sidecars live.
    pub(super) fn lease(&mut self, room: u64, others: u64) -> Option<Lease> {
        let wanted = std::mem::take(&mut self.wanted).max(1);
        let view = self.view?;
        self.asked_at = view.granted;
        if std::mem::take(&mut self.beyond) {
            return Some(Lease {
                jobs: wanted,
                most: None,
            });
        }
        let ahead = (room / (4 * (others + 1))).min(MOST);
        Some(Lease {
            jobs: wanted.max(ahead).min(room.max(1)),
            most: Some(view.granted + room),
        })
    }

    /// The store answered, in this period. `false`: its numbers are others than before.
    pub(super) fn leased(&mut self, leased: Leased, period: u64) -> bool {
        self.asking = false;
        let (jobs, granted) = match leased {
            Leased::Some { jobs, granted } => (jobs, granted),
            Leased::None { granted } => (0, granted),
            Leased::Again => return true,
            Leased::Lost => {
                self.view = None;
                return true;
            }
        };
        if jobs > 0 {
            match self.given.back_mut() {
                Some((known, count)) if *known == period => *count += jobs,
                _ => self.given.push_back((period, jobs)),
            }
        }
        if granted < self.asked_at + jobs {
            // The store was emptied: what was granted there is not known here.
            self.ended += jobs;
            self.view = None;
            return false;
        }
        self.unused += jobs;
        self.touched = true;
        match &mut self.view {
            // A look that ended meanwhile may know of more.
            Some(view) => view.granted = view.granted.max(granted),
            None => self.give_back(),
        }
        true
    }

    /// An enqueue that fits uses places.
    pub(super) fn reserve(&mut self, jobs: u64) {
        let used = jobs.min(self.unused);
        self.unused -= used;
        self.used += used;
        self.touched = true;
    }

    /// Its jobs were stored, or perhaps were.
    pub(super) fn stored(&mut self, jobs: u64) {
        let ended = jobs.min(self.used);
        self.used -= ended;
        self.ended += ended;
        self.came(jobs - ended);
    }

    /// They were not.
    pub(super) fn refused(&mut self, jobs: u64) {
        let ended = jobs.min(self.used);
        self.used -= ended;
        self.ended += ended;
        if let Some(view) = &mut self.view {
            view.spared += ended;
        }
    }

    fn give_back(&mut self) {
        let unused = std::mem::take(&mut self.unused);
        self.ended += unused;
        if let Some(view) = &mut self.view {
            view.spared += unused;
        }
    }

    /// Gives back what was not used since this was last asked; says whether anything is left to do here.
    pub(super) fn tidy(&mut self) -> bool {
        if !std::mem::take(&mut self.touched) {
            self.give_back();
        }
        self.unused + self.used + self.ended > 0
    }

    /// Places that are not open any more; those that nobody counts any longer in `period` are left out.
    pub(super) fn take_ended(&mut self, period: u64) -> Ended {
        let mut told = Vec::new();
        while self.ended > 0 {
            let Some((given, count)) = self.given.front_mut() else {
                self.ended = 0;
                break;
            };
            let jobs = self.ended.min(*count);
            self.ended -= jobs;
            *count -= jobs;
            if *given + 1 >= period {
                told.push((*given, jobs));
            }
            if *count == 0 {
                self.given.pop_front();
            }
        }
        told
    }

    /// So many are granted by now, at all sidecars.
    pub(super) fn hears(&mut self, granted: u64) {
        if let Some(view) = &mut self.view {
            view.granted = view.granted.max(granted);
        }
    }

    /// A look ended, or (`None`) it knows nothing of others.
    pub(super) fn looked(&mut self, shared: Option<Shared>) {
        self.view = shared.map(|at| View {
            at,
            granted: at.granted,
            spared: 0,
            besides: 0,
        });
        if self.view.is_none() {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(granted: u64, open: u64) -> Part {
        let mut part = Part::default();
        part.looked(Some(Shared { granted, open }));
        part
    }

    #[test]
    fn places_are_taken_ahead_and_fewer_near_the_bound() {
        let mut part = looked(100, 0);
        assert!(!part.has(1, false));
        let lease = part.lease(800, 1).unwrap();
        assert_eq!((lease.jobs, lease.most), (100, Some(900)));
        let granted = 200;
        assert!(part.leased(Leased::Some { jobs: 100, granted }, 7));
        assert!(part.has(100, false) && !part.has(101, false));
        assert_eq!(
            part.lease(20, 1).unwrap().jobs,
            20,
            "no more than there are"
        );
        part.wanted = 3;
        assert_eq!(part.lease(8, 1).unwrap().jobs, 3, "near it what is wanted");
        part.beyond = true;
        assert_eq!(part.lease(0, 1).unwrap().most, None);
    }

    #[test]
    fn what_others_are_granted_counts() {
        let mut part = looked(10, 4);
        assert_eq!(part.may_have_come(), Some(4));
        part.leased(Leased::None { granted: 25 }, 7);
        assert_eq!(part.may_have_come(), Some(19));
        let granted = 30;
        part.leased(Leased::Some { jobs: 5, granted }, 7);
        assert_eq!(part.may_have_come(), Some(19), "our own are still unused");
        part.reserve(3);
        assert_eq!(part.may_have_come(), Some(19), "or on their way");
        part.refused(1);
        assert_eq!(part.may_have_come(), Some(19));
        part.stored(2);
        assert_eq!(part.may_have_come(), Some(21));
        part.came(4);
        assert_eq!(part.may_have_come(), Some(25));
        assert_eq!(part.take_ended(7), [(7, 3)]);
    }

    #[test]
    fn what_is_not_used_is_given_back() {
        let mut part = looked(0, 0);
        part.leased(
            Leased::Some {
                jobs: 5,
                granted: 5,
            },
            7,
        );
        assert!(part.tidy(), "just now");
        part.reserve(2);
        assert!(part.tidy());
        assert!(part.tidy(), "those on their way");
        assert_eq!(part.may_have_come(), Some(0));
        assert_eq!(part.take_ended(7), [(7, 3)]);
        part.stored(2);
        assert_eq!(part.take_ended(9), [], "nobody counts them any longer");
        assert!(!part.tidy());
    }

    #[test]
    fn what_has_left_is_on_its_way_until_it_must_have_arrived() {
        let (mut elsewhere, now) = (Elsewhere::default(), Instant::now());
        let after = |ms| now + Duration::from_millis(ms);
        let told = |held| Some(Others { held, more: true });
        elsewhere.looked(told(2), 3, now);
        assert_eq!((elsewhere.jobs(), elsewhere.held()), (5, 2));
        elsewhere.looked(told(3), 1, after(40));
        assert_eq!(elsewhere.jobs(), 3 + 3 + 1, "too soon");
        elsewhere.looked(None, 2, after(90));
        assert_eq!(elsewhere.jobs(), 3 + 3 + 1 + 2, "the store was silent");
        elsewhere.looked(told(6), 0, after(100));
        assert_eq!(elsewhere.jobs(), 6 + 1 + 2);
        elsewhere.took();
        assert_eq!(elsewhere.jobs(), 7 + 1 + 2);
        // What was counted so long after the answer has arrived.
        let arrived = Some(Others {
            held: 9,
            more: false,
        });
        elsewhere.looked(arrived, 4, after(300));
        assert_eq!(elsewhere.jobs(), 9);
    }

    #[test]
    fn an_emptied_store_is_noticed() {
        let mut part = looked(100, 0);
        part.lease(9, 0);
        assert!(!part.leased(
            Leased::Some {
                jobs: 5,
                granted: 5
            },
            7
        ));
        assert!(part.view.is_none() && part.has(9, false));
        assert_eq!(part.take_ended(7), [(7, 5)]);
        let mut part = looked(100, 0);
        assert!(part.leased(Leased::Again, 7) && !part.has(1, false));
        assert!(part.leased(Leased::Lost, 7) && part.view.is_none());
    }
}
