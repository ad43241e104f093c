//! Queues whose own limits leave no room: their jobs stay in the backend, unread, and still somebody must
//! be told that they wait for a limit (rate-limiting text, 11.1 and 11.2).
//!
//! One job stands for such a queue: whichever the backend gives next. When a worker asks for the queue
//! and gets less than it wants, the backend is asked whether jobs wait there, at most once a second for a
//! queue and beside the FETCH, never before its answer. If so, that the limit was met is counted and told
//! once, and the next job that is claimed from the queue brings the end of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::claim::Section;
use crate::hold::{Episode, Held, Lane};
use crate::limit::{EARLY, Limited, Limits, Strategy, Timestamp};
use crate::policy::Gate;
use crate::pressure::Told;
use crate::proxy::{Proxy, Sidecar};
use crate::store::Usage;

/// How often the backend is asked about one queue.
const EVERY: Duration = Duration::from_secs(1);
/// Queues that are remembered; there are never more unless somebody makes up names.
const MOST: usize = 10_000;
/// How long one is remembered for which nobody asks.
const UNUSED: Duration = Duration::from_secs(600);

/// The queues that were found shut.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Gated {
    queues: Mutex<Queues>,
    /// How many of them have an episode: while none has, nobody looks any further.
    open: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queues {
    all: HashMap<Arc<str>, Queue>,
    /// Those without an episode, by when they were asked about.
    idle: BTreeSet<(Instant, Arc<str>)>,
}

impl Queues {
    /// Forgets those that were asked about so long ago, and for which nothing is known to wait.
    fn forget(&mut self, ago: Duration, now: Instant) {
        while let Some((asked, _)) = self.idle.first()
            && now.saturating_duration_since(*asked) >= ago
            && let Some((_, queue)) = self.idle.pop_first()
        {
            self.all.remove(&queue);
        }
    }
}

#[derive(Debug)]
struct Queue {
    asked: Instant,
    episode: Option<Episode>,
}

/// Which of a queue's limits is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proxy) struct Met {
    pub(in crate::proxy) strategy: Strategy,
    pub(in crate::proxy) limit: u32,
    pub(in crate::proxy) current: u32,
}

impl Gated {
    /// Whether the backend is to be asked about the queue: nothing of it is known to wait, and that was
    /// not asked just now. Whoever is told so asks.
    fn is_due(&self, queue: &Arc<str>, now: Instant) -> bool {
        let mut queues = self.queues.lock();
        let Queues { all, idle } = &mut *queues;
        if let Some(known) = all.get_mut(queue) {
            let due = known.episode.is_none() && now.duration_since(known.asked) >= EVERY;
            if due {
                idle.remove(&(known.asked, Arc::clone(queue)));
                idle.insert((now, Arc::clone(queue)));
                known.asked = now;
            }
            return due;
        }
        if all.len() >= MOST {
            queues.forget(EVERY, now);
        }
        let fits = queues.all.len() < MOST;
        if fits {
            let (asked, episode) = (now, None);
            queues.idle.insert((now, Arc::clone(queue)));
            (queues.all).insert(Arc::clone(queue), Queue { asked, episode });
        }
        fits
    }

    /// A job of the queue waits. `false`: that is known, or over already.
    fn begin(&self, queue: &Arc<str>, episode: Episode) -> bool {
        let mut queues = self.queues.lock();
        let Queues { all, idle } = &mut *queues;
        let known = all.get_mut(queue);
        let Some(known) = known.filter(|queue| queue.episode.is_none()) else {
            return false;
        };
        known.episode = Some(episode);
        idle.remove(&(known.asked, Arc::clone(queue)));
        self.open.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The wait of a queue's job is over.
    fn end(&self, queue: &Arc<str>) -> Option<Episode> {
        let mut queues = self.queues.lock();
        let Queues { all, idle } = &mut *queues;
        let known = all.get_mut(queue)?;
        let episode = known.episode.take()?;
        idle.insert((known.asked, Arc::clone(queue)));
        self.open.fetch_sub(1, Ordering::Relaxed);
        Some(episode)
    }

    /// Forgets what nobody has asked for in a while.
    pub(in crate::proxy) fn forget_unused(&self, now: Instant) {
        let mut queues = self.queues.lock();
        queues.forget(UNUSED, now);
        let len = queues.all.len();
        queues.all.shrink_to(2 * len);
    }

    /// The backend gave these jobs when it was asked for `lanes`: the first of each queue is the one that
    /// waited. If it gave none, what waited is gone.
    pub(super) fn claimed(&self, lanes: &[Lane], jobs: &mut [Held]) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        if jobs.is_empty() {
            lanes.iter().for_each(|lane| drop(self.end(&lane.queue)));
        }
        for held in jobs {
            if let Some(episode) = self.end(&held.claimed.queue) {
                held.refused.get_or_insert_with(|| Box::new(episode));
            }
        }
    }

    /// Forgets everything.
    pub(in crate::proxy) fn clear(&self) {
        let mut queues = self.queues.lock();
        *queues = Queues::default();
        self.open.store(0, Ordering::Relaxed);
    }
}

impl Proxy {
    /// A worker wants more of these queues than it gets, and those that are `shut` are not asked for it.
    pub(super) fn note_shut(&self, scope: u64, sections: &[Section], shut: &[bool]) {
        for (section, _) in sections.iter().zip(shut).filter(|(_, shut)| **shut) {
            let (Some(gate), Some(lane)) = (&section.gate, section.lanes.first()) else {
                continue;
            };
            let sidecar = &self.sidecar;
            let limited = sidecar.limits_now(&lane.queue, &gate.limited);
            // Without limits of its own it is the hold that is full.
            if limited.is_empty()
                || sidecar.paused.has(&lane.queue)
                || !sidecar.gated.is_due(&lane.queue, Instant::now())
            {
                continue;
            }
            let (proxy, queue, gate) = (self.clone(), Arc::clone(&lane.queue), gate.clone());
            let _task = sidecar.tasks.spawn(async move {
                proxy.look_behind(&queue, scope, &gate).await;
            });
        }
    }

    /// Asks the backend whether jobs wait behind a queue's limits, and tells if they do.
    async fn look_behind(&self, queue: &Arc<str>, scope: u64, gate: &Gate) {
        let Told::Counts(counts) = self.depth_told(queue, scope).await else {
            return;
        };
        let sidecar = &self.sidecar;
        let limited = sidecar.limits_now(queue, &gate.limited);
        // What is held of it has the room, and tells for itself.
        if counts.available == 0 {
            return;
        }
        if let Some((limited, met)) = sidecar.met(&limited).await {
            let episode = Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: met.strategy,
                since: Instant::now(),
            };
            if sidecar.gated.begin(queue, episode) {
                sidecar.exceeded_unread(queue, limited, met);
            }
        }
    }
}

impl Sidecar {
    /// The first of these that has no room.
    async fn met<'a>(&self, limited: &'a [Limited]) -> Option<(&'a Limited, Met)> {
        for limited in limited {
            let usage = self
                .store
                .usage(limited.space, &limited.key, &limited.limits);
            let usage = usage.await.ok()?.unwrap_or_default();
            if let Some(met) = met(&usage, &limited.limits, self.store.now()) {
                return Some((limited, met));
            }
        }
        None
    }
}

/// Which of a key's limits lets nothing start; of several, the one that lets go last.
fn met(usage: &Usage, limits: &Limits, now: Timestamp) -> Option<Met> {
    let met = |strategy, limit, current| Met {
        strategy,
        limit,
        current,
    };
    // Nobody knows when a slot ends, so that is last of all.
    if let Some(most) = limits.concurrency.filter(|most| usage.active >= *most) {
        return Some(met(Strategy::Concurrency, most, usage.active));
    }
    let shut = usage.shut_until.filter(|until| *until > now);
    let shut = shut.map(|until| (until, met(Strategy::Shut, 0, 0)));
    let rates = limits.rates.iter().zip(&usage.windows);
    let full = rates.filter(|(rate, (count, _))| *count >= rate.limit.get());
    let full = full.map(|(rate, (count, leaves))| {
        let met = met(Strategy::Rate, rate.limit.get(), *count);
        (leaves.unwrap_or(now), met)
    });
    let next = usage.next_start.filter(|next| *next > now.plus(EARLY));
    let spaced = next.zip(limits.throttle).map(|(next, throttle)| {
        let limit = throttle.limit.get();
        (next, met(Strategy::Throttle, limit, limit))
    });
    let all = shut.into_iter().chain(full).chain(spaced);
    all.max_by_key(|(until, _)| *until).map(|(_, met)| met)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Key, Measure, Rate, Space, Throttle, WindowKind};

    fn episode() -> Episode {
        Episode {
            space: Space::Queue,
            key: Key::new("q").unwrap(),
            strategy: Strategy::Rate,
            since: Instant::now(),
        }
    }

    fn lane(queue: &str) -> Lane {
        Lane {
            scope: 0,
            queue: queue.into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_question_a_second_and_one_episode_at_a_time() {
        let gated = Gated::default();
        let queue: Arc<str> = Arc::from("q");
        let now = Instant::now();
        assert!(!gated.begin(&queue, episode()), "nobody asked");
        assert!(gated.is_due(&queue, now));
        assert!(!gated.is_due(&queue, now + EVERY / 2));
        assert!(gated.begin(&queue, episode()));
        assert!(!gated.begin(&queue, episode()));
        assert!(!gated.is_due(&queue, now + 2 * EVERY), "it is known");
        gated.claimed(&[lane("other")], &mut []);
        assert_eq!(gated.open.load(Ordering::Relaxed), 1);
        gated.claimed(&[lane(&queue)], &mut []);
        assert_eq!(gated.open.load(Ordering::Relaxed), 0, "it was gone");
        assert!(gated.end(&queue).is_none());
        assert!(gated.is_due(&queue, now + 2 * EVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_names_do_not_pile_up() {
        let gated = Gated::default();
        let now = Instant::now();
        for nth in 0..MOST {
            assert!(gated.is_due(&Arc::from(format!("q{nth}")), now));
        }
        assert!(!gated.is_due(&Arc::from("more"), now));
        assert!(gated.is_due(&Arc::from("more"), now + EVERY));
        let queues = gated.queues.lock();
        assert_eq!((queues.all.len(), queues.idle.len()), (1, 1));
    }

    /// What waits is remembered as long as it waits; of the rest goes what is due, and nothing else is looked at.
    #[tokio::test(start_paused = true)]
    async fn those_that_were_asked_about_for_longest_make_room() {
        let gated = Gated::default();
        let (begun, waits): (_, Arc<str>) = (Instant::now(), Arc::from("waits"));
        let at = |nth: usize| begun + Duration::from_micros(nth as u64);
        assert!(gated.is_due(&waits, begun) && gated.begin(&waits, episode()));
        for nth in 1..MOST {
            assert!(gated.is_due(&Arc::from(format!("q{nth}")), at(nth)));
        }
        assert!(!gated.is_due(&Arc::from("more"), at(MOST)));
        let later = at(5) + EVERY;
        assert!(gated.is_due(&Arc::from("more"), later), "five have gone");
        let names = |gated: &Gated| {
            let queues = gated.queues.lock();
            (queues.all.len(), queues.idle.len())
        };
        assert_eq!(names(&gated), (MOST - 4, MOST - 5));
        // Asked about again, one is the last to go.
        assert!(gated.is_due(&Arc::from("q6"), later + EVERY));
        gated.forget_unused(later + UNUSED);
        assert_eq!(names(&gated), (2, 1));
        assert!(gated.queues.lock().all.contains_key("q6"));
        gated.claimed(&[lane(&waits)], &mut []);
        gated.forget_unused(later + 2 * UNUSED);
        assert_eq!(names(&gated), (0, 0));
        assert!(gated.queues.lock().all.capacity() < MOST / 10);
    }

    #[test]
    fn the_limit_that_lets_go_last_is_named() {
        let number = |n: u32| std::num::NonZeroU32::new(n).unwrap();
        let period = std::num::NonZeroU64::new(1_000_000).unwrap();
        let limits = Limits {
            concurrency: Some(2),
            rates: vec![Rate {
                limit: number(3),
                period,
                window: WindowKind::Sliding,
            }],
            throttle: Some(Throttle {
                limit: number(4),
                period,
                burst: number(1),
                measure: Measure::Start,
            }),
        };
        let now = Timestamp(10_000_000);
        let at = |seconds: u64| Some(now.plus(seconds * 1_000_000));
        let mut usage = Usage {
            windows: vec![(2, at(9))],
            ..Usage::default()
        };
        let why = |usage: &Usage| {
            let met = met(usage, &limits, now)?;
            Some((met.strategy.as_str(), met.limit, met.current))
        };
        assert_eq!(why(&usage), None);
        usage.next_start = Some(now.plus(EARLY));
        assert_eq!(why(&usage), None);
        usage.next_start = at(1);
        assert_eq!(why(&usage), Some(("throttle", 4, 4)));
        usage.windows = vec![(3, at(2))];
        assert_eq!(why(&usage), Some(("rate", 3, 3)));
        usage.shut_until = at(3);
        assert_eq!(why(&usage), Some(("shut", 0, 0)));
        usage.active = 5;
        assert_eq!(why(&usage), Some(("concurrency", 2, 5)));
    }
}
