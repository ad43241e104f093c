//! One number for a fleet: the depth of a queue, in the store.
//!
//! Each sidecar goes by its own [estimate](super::estimate), and by this number where it is higher. A look sets the
//! number, unless a newer look of a sibling has set it. An admission adds to it, and an enqueue that stored nothing
//! or a job that leaves takes from it: in one call for all of 50 ms, as long as the queue is far from its bound.
//! In the last tenth below the bound the number is asked before the enqueue is admitted, and is told all that it was not
//! told yet. A sidecar also asks once it has admitted its share of a tenth of the bound, and the store has not heard of that.
//!
//! What a FETCH took is taken off no number that a sibling's look has set since: that look may have seen the jobs go, and
//! their places would be filled twice. The FETCH of a worker may take many jobs at once; all else goes one by one.
//!
//! So a queue goes over its bound by what siblings have on their way at the moment of a look: a few jobs. If a sidecar
//! hears late of the others, it is a tenth at most. What a sidecar that died had added is gone with the next look.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::estimate::Counts;
use super::fleet_depth::{FleetDepth, GrantedPlaces, SharedNumber, UntoldChange, WantedPlaces};
use super::look::Awaited;
use super::state::{Pressure, PressureState};
use super::want::Now;

/// Has the store asked for so many places of each of these queues, if that is not on its way; each wait ends with its
/// answer.
pub(super) fn want_places(state: &mut PressureState, queues: Vec<(Arc<str>, u64)>) -> Vec<Awaited> {
    let waiting = queues.into_iter().filter_map(|(name, jobs)| {
        let queue = state.queues.get_mut(&name)?;
        if !queue.fleet.is_asking() {
            state.wanted.push(Arc::clone(&name));
            state.news.notify_one();
        }
        *queue.fleet.wanted.get_or_insert(0) += jobs;
        Some(Awaited {
            done: Arc::clone(&queue.looks.done).notified_owned(),
            begin: false,
            queue: name,
        })
    });
    waiting.collect()
}

/// Whether a fleet shares its depths.
pub fn is_shared(pressure: &Pressure) -> bool {
    pressure.shared.load(Ordering::Acquire)
}

/// From now on a fleet shares its depths: somebody answers [`take_wanted`].
pub fn share_depths(pressure: &Pressure) {
    pressure.shared.store(true, Ordering::Release);
}

/// From now on each sidecar counts for itself.
pub fn stop_sharing(pressure: &Arc<Pressure>, now: Now) {
    pressure.shared.store(false, Ordering::Release);
    let mut state = pressure.state.lock();
    state.wanted.clear();
    for queue in state.queues.values_mut() {
        queue.fleet = FleetDepth::default();
        queue.looks.done.notify_waiters();
    }
    pressure.serve(&mut state, now);
}

/// Ends when the store is to be asked or told something.
pub async fn fleet_news(pressure: &Pressure) {
    let news = Arc::clone(&pressure.state.lock().news);
    news.notified().await;
}

/// The queues in which places are wanted. Each must be answered by [`granted`].
pub fn take_wanted(pressure: &Pressure) -> Vec<(Arc<str>, WantedPlaces)> {
    let mut state = pressure.state.lock();
    let names = std::mem::take(&mut state.wanted);
    let wanted = names.into_iter().filter_map(|name| {
        let queue = state.queues.get_mut(&name)?;
        let Some(bound) = queue.bounds.max_depth.filter(|_| queue.fleet.is_on()) else {
            // Nobody has to wait for the store any more.
            queue.fleet.wanted = None;
            queue.looks.done.notify_waiters();
            return None;
        };
        Some((name, queue.fleet.ask(bound)?))
    });
    wanted.collect()
}

/// The store answered: who waits for places may ask again. `None`: it did not, and only what passes through this sidecar is
/// known, until a look that comes at once.
pub fn granted(pressure: &Arc<Pressure>, name: &str, granted: Option<GrantedPlaces>, now: Now) {
    let mut state = pressure.state.lock();
    let Some(queue) = state.queues.get_mut(name) else {
        return;
    };
    queue.fleet.wanted = None;
    match granted {
        Some(granted) if queue.fleet.is_on() => {
            queue.fleet.hear(granted.number, pressure.mark());
            queue.fleet.granted += granted.jobs;
        }
        Some(_) => {}
        None => {
            queue.fleet.forget_number();
            queue.estimate.doubt_all();
        }
    }
    queue.looks.done.notify_waiters();
    state.note_untold(name);
    pressure.serve(&mut state, now);
}

/// Whether the store is to be told of anything.
pub fn has_untold(pressure: &Pressure) -> bool {
    !pressure.state.lock().untold.is_empty()
}

/// What the store is to be told of each queue.
pub fn take_untold(pressure: &Pressure) -> Vec<(Arc<str>, UntoldChange)> {
    let mut state = pressure.state.lock();
    let names = std::mem::take(&mut state.untold);
    let changes = names.into_iter().filter_map(|name| {
        let untold = state.queues.get_mut(&name)?.fleet.take_untold();
        (!untold.is_empty()).then_some((name, untold))
    });
    changes.collect()
}

/// What the store is to be told of one queue, which is about to be looked at.
pub fn take_untold_of(pressure: &Pressure, name: &str) -> UntoldChange {
    pressure
        .with(name, |queue| queue.fleet.take_untold())
        .unwrap_or_default()
}

/// The number of a queue, as the store answered. What came here since is beside it.
pub fn heard(pressure: &Arc<Pressure>, name: &str, number: SharedNumber, now: Now) {
    let mark = pressure.mark();
    pressure.make_room(name, now, |queue| queue.fleet.hear(number, mark));
}

/// How many jobs wait in all, by what a look found: what the number of the queue is to be.
pub fn depth_found(
    pressure: &Pressure,
    name: &str,
    counts: &Counts,
    elsewhere: u64,
    now: Now,
) -> u64 {
    let beside = pressure.with(name, |queue| {
        let hidden = pressure.hides(queue, counts, now, &mut None);
        let stored = queue.estimate.stored_since_asked() + queue.estimate.in_flight;
        hidden + stored + queue.fleet.granted
    });
    counts.total() + beside.unwrap_or(0) + (pressure.held)(name).jobs + elsewhere
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::{Admission, FileBounds, Fleet, Given, HeldCount, Mark, StatsAnswer, Want};
    use ojs_limit::Timestamp;
    use ojs_policy::Pattern;

    fn now() -> Now {
        Now {
            at: Instant::now(),
            stamp: Timestamp(1),
        }
    }

    /// A queue of at most 1,000 jobs at which a look found the number 5, and an enqueue of so many jobs to it.
    fn looked_at(siblings: &Arc<AtomicU64>, jobs: u64) -> (Arc<Pressure>, Vec<Want>) {
        let given = Given {
            max_depth: Some(1_000),
            ..Given::default()
        };
        let file = FileBounds::new(vec![(Pattern::new("q"), given)]);
        let siblings = Arc::clone(siblings);
        let pressure = Pressure::new(Arc::new(file), move |_| HeldCount {
            siblings: siblings.load(Ordering::Relaxed),
            ..HeldCount::default()
        });
        let mut wants = vec![Want {
            jobs,
            sizes: vec![1],
            ..Want::nothing("q", pressure.bounds("q").unwrap())
        }];
        let admission = pressure.admit(&mut wants, now());
        assert!(matches!(admission, Admission::Wait(_)));
        let number = SharedNumber {
            jobs: 5,
            ..SharedNumber::default()
        };
        let fleet = Fleet { held: 0, number };
        let none = StatsAnswer::Counts(Counts::default());
        pressure.end_look("q", none, Some(fleet), now());
        (pressure, wants)
    }

    #[tokio::test(start_paused = true)]
    async fn an_admission_far_from_the_bound_is_told_to_the_store() {
        let (pressure, mut wants) = looked_at(&Arc::new(AtomicU64::new(1)), 1);
        let places = pressure.admit(&mut wants, now());
        assert!(matches!(places, Admission::Go(_)), "{places:?}");
        let news = timeout(Duration::from_secs(1), fleet_news(&pressure));
        assert!(news.await.is_ok(), "nobody hears of it");
        let untold = UntoldChange {
            by: 1,
            ..UntoldChange::default()
        };
        assert_eq!(take_untold(&pressure), [("q".into(), untold)]);
    }

    /// What came while the looker waited for the backend's answer may not be in that.
    #[tokio::test(start_paused = true)]
    async fn what_was_stored_during_a_look_is_in_the_number_that_it_sets() {
        let (pressure, _) = looked_at(&Arc::new(AtomicU64::new(1)), 1);
        pressure.with("q", |queue| {
            queue.estimate.begin();
            queue.estimate.note_asked();
            queue.estimate.came(3, Mark(9));
        });
        let found = depth_found(&pressure, "q", &Counts::default(), 0, now());
        assert_eq!(found, 3);
    }

    /// What a sibling that came since has admitted is in the number of the store alone.
    #[tokio::test(start_paused = true)]
    async fn who_was_alone_at_the_last_look_asks_the_store_once_there_is_a_sibling() {
        let siblings = Arc::new(AtomicU64::new(0));
        let (pressure, mut wants) = looked_at(&siblings, 800);
        siblings.store(1, Ordering::Relaxed);
        let waits = pressure.admit(&mut wants, now());
        assert!(matches!(waits, Admission::Wait(_)), "{waits:?}");
        assert_eq!(take_wanted(&pressure).len(), 1);
    }
}
