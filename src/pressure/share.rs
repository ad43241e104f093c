//! One number for a fleet: the depth of a queue, in the store.
//!
//! Each sidecar goes by its own [estimate](super::estimate), and by this number where it is higher. A look sets the
//! number, unless a newer look of a sibling has set it. An admission adds to it, and an enqueue that stored nothing
//! or a job that leaves takes from it: in one call for all of 50 ms, as long as the queue is far from its bound.
//! In the last tenth below the bound the number is asked before the enqueue is admitted.
//!
//! So a queue goes over its bound by no more than its siblings admit until they hear of each other: in 100 ms at
//! most. What a sidecar that died had added is gone with the next look.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Counts, Looking, Now, Pressure, PressureState};

/// The last places below a bound are asked for one by one, however small the bound is.
const LAST: u64 = 32;

/// What a sidecar knows of the number of one queue.
#[derive(Clone, Default, Debug)]
pub(super) struct Share {
    /// The number as of its last answer; `None`: only what passes through this sidecar is known.
    number: Option<u64>,
    /// What has changed here since, and the store was not told: admissions less what is gone. What is gone is no
    /// place to be used again before the store is told: a sibling's look may have seen that already.
    untold: i64,
    /// Places that are in the number already, and that no enqueue uses yet.
    granted: u64,
    /// Jobs for which the store was not asked yet; `None`: nobody waits for its answer.
    wanted: Option<u64>,
}

/// Places that are wanted of the number of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedPlaces {
    /// How many.
    pub jobs: u64,
    /// What the number may become at most.
    pub bound: u64,
}

/// Places of which the number of a queue was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedPlaces {
    /// How many it has in it now; there may be fewer than were wanted, or none.
    pub jobs: u64,
    /// The number.
    pub number: u64,
}

impl Share {
    /// The depth over the fleet, as far as is known here, without places that are granted to this sidecar.
    pub(super) fn depth(&self) -> Option<u64> {
        let depth = self.number?.saturating_add_signed(self.untold);
        Some(depth.saturating_sub(self.granted))
    }

    /// Whether a number is shared.
    pub(super) fn is_on(&self) -> bool {
        self.number.is_some()
    }

    /// Whether somebody waits for places.
    pub(super) fn is_asking(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether an enqueue of so many jobs needs places of the store, where `room` places are left of `bound`.
    pub(super) fn needs(&self, jobs: u64, room: u64, bound: u64) -> bool {
        let is_near = room < jobs.saturating_add(LAST.max(bound / 10));
        self.is_on() && is_near && self.granted < jobs
    }

    /// An enqueue is admitted.
    pub(super) fn reserve(&mut self, jobs: u64) {
        let granted = jobs.min(self.granted);
        self.granted -= granted;
        self.change(i64::try_from(jobs - granted).unwrap_or(i64::MAX));
    }

    /// Jobs were not stored after all, or wait no longer.
    pub(super) fn take(&mut self, jobs: u64) {
        self.change(-i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    fn change(&mut self, by: i64) {
        if self.is_on() {
            self.untold = self.untold.saturating_add(by);
        }
    }

    /// What the store is to be told; places that no enqueue uses are given back.
    fn tell(&mut self) -> i64 {
        let granted = i64::try_from(std::mem::take(&mut self.granted)).unwrap_or(i64::MAX);
        let by = std::mem::take(&mut self.untold).saturating_sub(granted);
        self.number = self.number.map(|number| number.saturating_add_signed(by));
        by
    }

    /// The number as a look has set or found it; `None`: only what passes through this sidecar is known.
    pub(super) fn looked(&mut self, number: Option<u64>) {
        *self = Share {
            number,
            wanted: self.wanted,
            ..Share::default()
        };
    }
}

impl Pressure {
    /// Has the store asked for so many places of each of these queues, if that is not on its way; each wait ends with its
    /// answer.
    pub(super) fn want_places(
        &self,
        state: &mut PressureState,
        queues: Vec<(Arc<str>, u64)>,
    ) -> Vec<Looking> {
        let PressureState {
            queues: known,
            wanted,
            news,
            ..
        } = state;
        let waiting = queues.into_iter().filter_map(|(name, jobs)| {
            let queue = known.get_mut(&name)?;
            if !queue.share.is_asking() {
                wanted.push(Arc::clone(&name));
                news.notify_one();
            }
            *queue.share.wanted.get_or_insert(0) += jobs;
            Some(Looking {
                done: Arc::clone(&queue.looks.done).notified_owned(),
                begin: false,
                queue: name,
            })
        });
        waiting.collect()
    }

    /// Whether a fleet shares its depths.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    /// From now on a fleet shares its depths: somebody answers [`Pressure::take_wanted`].
    pub fn share(&self) {
        self.shared.store(true, Ordering::Release);
    }

    /// From now on each sidecar counts for itself.
    pub fn share_no_longer(self: &Arc<Self>, now: Now) {
        self.shared.store(false, Ordering::Release);
        let mut state = self.state.lock();
        state.wanted.clear();
        for queue in state.queues.values_mut() {
            queue.share = Share::default();
            queue.looks.done.notify_waiters();
        }
        self.serve(&mut state, now);
    }

    /// Ends when the store is to be asked or told something.
    pub async fn share_news(&self) {
        let news = Arc::clone(&self.state.lock().news);
        news.notified().await;
    }

    /// The queues in which places are wanted. Each must be answered by [`Pressure::granted`].
    pub fn take_wanted(&self) -> Vec<(Arc<str>, WantedPlaces)> {
        let mut state = self.state.lock();
        let names = std::mem::take(&mut state.wanted);
        let wanted = names.into_iter().filter_map(|name| {
            let queue = state.queues.get_mut(&name)?;
            let Some(bound) = queue.bounds.max_depth.filter(|_| queue.share.is_on()) else {
                // Nobody has to wait for the store any more.
                queue.share.wanted = None;
                queue.looks.done.notify_waiters();
                return None;
            };
            let jobs = queue.share.wanted.replace(0)?;
            Some((name, WantedPlaces { jobs, bound }))
        });
        wanted.collect()
    }

    /// The store answered: who waits for places may ask again. `None`: it did not, and from now on only what passes
    /// through this sidecar is known, until the next look.
    pub fn granted(self: &Arc<Self>, name: &str, granted: Option<GrantedPlaces>, now: Now) {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.get_mut(name) else {
            return;
        };
        queue.share.wanted = None;
        match granted {
            Some(granted) if queue.share.is_on() => {
                queue.share.number = Some(granted.number);
                queue.share.granted += granted.jobs;
            }
            Some(_) => {}
            None => queue.share.looked(None),
        }
        queue.looks.done.notify_waiters();
        state.note_untold(name);
        self.serve(&mut state, now);
    }

    /// Whether the store is to be told of anything.
    pub fn has_untold(&self) -> bool {
        !self.state.lock().untold.is_empty()
    }

    /// What the store is to be told: of each queue, by how much its number changes.
    pub fn take_untold(&self) -> Vec<(Arc<str>, i64)> {
        let mut state = self.state.lock();
        let names = std::mem::take(&mut state.untold);
        let changes = names.into_iter().filter_map(|name| {
            let by = state.queues.get_mut(&name)?.share.tell();
            Some((name, by))
        });
        changes.filter(|(_, by)| *by != 0).collect()
    }

    /// The same of one queue that is about to be looked at.
    pub fn take_untold_of(&self, name: &str) -> i64 {
        self.with(name, |queue| queue.share.tell()).unwrap_or(0)
    }

    /// The number of a queue, as the store answered. What came here since is beside it.
    pub fn heard(self: &Arc<Self>, name: &str, number: u64, now: Now) {
        self.make_room(name, now, |queue| {
            if queue.share.is_on() {
                queue.share.number = Some(number);
            }
        });
    }

    /// How many jobs wait in all, by what a look found: what the number of the queue is to be.
    pub fn depth_found(&self, name: &str, counts: &Counts, elsewhere: u64, now: Now) -> u64 {
        let beside = self.with(name, |queue| {
            let hidden = self.hides(queue, counts, now, &mut None);
            hidden + queue.estimate.in_flight()
        });
        counts.total() + beside.unwrap_or(0) + (self.held)(name).jobs + elsewhere
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::limit::Timestamp;
    use crate::policy::Pattern;
    use crate::pressure::{Admission, FileBounds, Fleet, Given, HeldCount, StatsTold, Want};

    /// A sibling's look may have found the queue without what left here: admitting others in those places without a
    /// word to the store would fill them twice.
    #[test]
    fn places_of_jobs_that_left_here_are_asked_of_the_store() {
        let mut share = Share::default();
        share.looked(Some(1_000));
        share.take(100);
        assert_eq!(share.depth(), Some(900));
        assert!(share.needs(1, 100, 1_000));
        share.granted = 1;
        assert!(!share.needs(1, 100, 1_000));
        share.reserve(1);
        assert!(share.needs(1, 100, 1_000));
        assert_eq!(share.tell(), -100, "what was granted is in the number");
    }

    #[tokio::test(start_paused = true)]
    async fn an_admission_far_from_the_bound_is_told_to_the_store() {
        let given = Given {
            max_depth: Some(1_000),
            ..Given::default()
        };
        let file = FileBounds::new(vec![(Pattern::new("q"), given)]);
        let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
        let now = Now {
            at: Instant::now(),
            stamp: Timestamp(1),
        };
        let mut wants = vec![Want {
            jobs: 1,
            sizes: vec![1],
            ..Want::nothing("q", pressure.bounds("q").unwrap())
        }];
        assert!(matches!(pressure.ask(&mut wants, now), Admission::Look(_)));
        let fleet = Fleet { held: 0, number: 5 };
        pressure.looked("q", StatsTold::Counts(Counts::default()), Some(fleet), now);
        let places = pressure.ask(&mut wants, now);
        assert!(matches!(places, Admission::Go(_)), "{places:?}");
        let news = timeout(Duration::from_secs(1), pressure.share_news());
        assert!(news.await.is_ok(), "nobody hears of it");
        assert_eq!(pressure.take_untold(), [("q".into(), 1)]);
    }
}
