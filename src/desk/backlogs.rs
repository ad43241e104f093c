//! What the backend said of its queues: how many jobs wait in each, and whether their limits leave no room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::hold::{Episode, Held, Lane};

/// How often the backend is asked about one queue.
const EVERY: Duration = Duration::from_secs(1);
/// An episode in which the lookahead of a queue is full has ended when it was not seen full for so long.
const NOT_FULL: Duration = Duration::from_secs(60);
/// Queues that are remembered; there are never more unless somebody makes up names.
const MOST_QUEUES: usize = 10_000;
/// How long one is remembered for which nobody asks.
const UNUSED: Duration = Duration::from_secs(600);
/// What the backend said of its queues.
#[derive(Debug, Default)]
pub(crate) struct Backlogs {
    queues: Mutex<HashMap<Arc<str>, Backlog>>,
    /// When it last did not answer: then it is not waited for again at once.
    pub(crate) away: Mutex<Option<Instant>>,
}

/// What the backend said of one queue.
#[derive(Debug, Default)]
struct Backlog {
    /// When it was last asked, and rested from that.
    asked: Option<Instant>,
    /// When it was last found out whether its next job waits for a limit.
    looked: Option<Instant>,
    /// When it was last found out whether its lookahead is full, and when it last was.
    looked_whether_full: Option<Instant>,
    full: Option<Instant>,
    /// How many jobs are available, as it said last; `None`: nobody knows.
    available: Option<u64>,
    /// Whether it said so when it was last asked.
    is_told: bool,
    /// Whether the backend says that it is paused.
    paused: bool,
    /// Since when the queue's next job is known to wait for a limit.
    episode: Option<Episode>,
    /// Whoever holds this asks the backend. Others wait for the answer.
    turn: Arc<tokio::sync::Mutex<()>>,
}

fn is_old(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= EVERY)
}

impl Backlogs {
    /// Tells of each queue how many of its jobs are available, and whether it is paused, as the backend said last: while it
    /// says nothing its jobs wait there still.
    pub(super) fn tell(&self, mut tell: impl FnMut(&Arc<str>, Option<u64>, bool)) {
        for (queue, backlog) in &*self.queues.lock() {
            tell(queue, backlog.available, backlog.paused);
        }
    }

    /// Whether the backend was asked about a queue, and has not said that it is paused.
    pub(crate) fn runs(&self, queue: &str) -> bool {
        let queues = self.queues.lock();
        let backlog = queues.get(queue);
        backlog.is_some_and(|backlog| backlog.asked.is_some() && !backlog.paused)
    }

    /// Notes whether the backend says that a queue is paused.
    pub(crate) fn note_paused(&self, queue: &str, paused: bool) {
        if let Some(backlog) = self.queues.lock().get_mut(queue) {
            backlog.paused = paused;
        }
    }

    /// How many jobs of a queue are available in the backend, without those of its subqueues. `None`: it did not say so
    /// when it was last asked.
    pub(crate) fn available(&self, queue: &str) -> Option<u64> {
        let queues = self.queues.lock();
        let backlog = queues.get(queue).filter(|backlog| backlog.is_told);
        backlog?.available
    }

    /// Whether the backend may be asked about a queue.
    pub(crate) fn is_due(&self, queue: &str, now: Instant) -> bool {
        is_old(*self.away.lock(), now)
            && (self.queues.lock().get(queue)).is_none_or(|backlog| is_old(backlog.asked, now))
    }

    /// Whether to find out if a queue's next job waits for a limit: once a second. Whoever inspects the queue may have
    /// asked the backend just now, which must not keep this from being found out.
    pub(crate) fn begin_finding(&self, queue: &str, now: Instant) -> bool {
        is_old(*self.away.lock(), now)
            && self.once_a_second(queue, now, |backlog| &mut backlog.looked)
    }

    /// Whether to find out if a queue's lookahead is full: once a second. The queue is remembered for that.
    pub(crate) fn looks_whether_full(&self, queue: &Arc<str>, now: Instant) -> bool {
        self.turn(queue, now);
        self.once_a_second(queue, now, |backlog| &mut backlog.looked_whether_full)
    }

    /// Whether something was found out of a queue last a second ago, and so is now; always of one that nobody knows.
    fn once_a_second(
        &self,
        queue: &str,
        now: Instant,
        last: fn(&mut Backlog) -> &mut Option<Instant>,
    ) -> bool {
        let mut queues = self.queues.lock();
        let Some(last) = queues.get_mut(queue).map(last) else {
            return true;
        };
        let is_due = is_old(*last, now);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Whether a queue's lookahead was full lately: then it is so as of now.
    pub(crate) fn is_full_as_before(&self, queue: &str, now: Instant) -> bool {
        let mut queues = self.queues.lock();
        let last = queues.get_mut(queue).map(|backlog| &mut backlog.full);
        last.is_some_and(|last| {
            let was = last.is_some_and(|at| now.saturating_duration_since(at) < NOT_FULL);
            *last = last.map(|at| if was { now } else { at });
            was
        })
    }

    /// Notes that a queue's lookahead is full. Returns `true` the first time of an episode.
    pub(crate) fn begins_to_be_full(&self, queue: &str, now: Instant) -> bool {
        let mut queues = self.queues.lock();
        let last = (queues.get_mut(queue)).map(|backlog| backlog.full.replace(now));
        last.is_some_and(|last| last.is_none_or(|at| now.saturating_duration_since(at) >= NOT_FULL))
    }

    /// The turn to ask about a queue; `None`: too many queues are remembered.
    pub(crate) fn turn(
        &self,
        queue: &Arc<str>,
        now: Instant,
    ) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut queues = self.queues.lock();
        if queues.len() >= MOST_QUEUES && !queues.contains_key(queue) {
            queues.retain(|_, backlog| backlog.episode.is_some() || !is_old(backlog.asked, now));
        }
        let has_room = queues.len() < MOST_QUEUES || queues.contains_key(queue);
        has_room.then(|| Arc::clone(&queues.entry(Arc::clone(queue)).or_default().turn))
    }

    /// Notes the backend's answer about a queue. If nothing is available any more, what waited is gone.
    pub(crate) fn note(&self, queue: &str, available: Option<u64>, rested: Instant) {
        if let Some(backlog) = self.queues.lock().get_mut(queue) {
            (backlog.asked, backlog.is_told) = (Some(rested), available.is_some());
            backlog.available = available.or(backlog.available);
            if available == Some(0) {
                backlog.episode = None;
            }
        }
    }

    /// Notes that the queue's next job waits. Returns `true` the first time.
    pub(crate) fn begin(&self, queue: &str, episode: Episode) -> bool {
        let mut queues = self.queues.lock();
        let backlog = queues.get_mut(queue);
        let silent = backlog.filter(|backlog| backlog.episode.is_none());
        silent
            .map(|backlog| backlog.episode = Some(episode))
            .is_some()
    }

    /// The backend gave these jobs when it was asked for `lanes`. The first of each queue is the one that waited. If it
    /// gave none, what waited is gone.
    pub(crate) fn claimed(&self, lanes: &[Lane], jobs: &mut [Held]) {
        let mut queues = self.queues.lock();
        if queues.is_empty() {
            return;
        }
        if jobs.is_empty() {
            for lane in lanes {
                if let Some(backlog) = queues.get_mut(&lane.queue) {
                    (backlog.available, backlog.episode) = (Some(0), None);
                    backlog.is_told = true;
                }
            }
        }
        for held in jobs {
            if let Some(backlog) = queues.get_mut(&held.claimed.queue) {
                let from_queue = u64::from(held.subqueue.is_none());
                let left = |jobs: u64| jobs.saturating_sub(from_queue);
                backlog.available = backlog.available.map(left);
                if let Some(episode) = backlog.episode.take() {
                    held.refused.get_or_insert_with(|| Box::new(episode));
                }
            }
        }
    }

    /// Forgets queues that nobody has asked for in a while.
    pub(crate) fn forget_unused(&self, now: Instant) {
        let is_used = |asked: Instant| now.saturating_duration_since(asked) < UNUSED;
        let mut queues = self.queues.lock();
        queues.retain(|_, backlog| backlog.asked.is_some_and(is_used));
        let len = queues.len();
        queues.shrink_to(2 * len);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.queues.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Key, Space, Strategy};

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
        let (backlogs, now) = (Backlogs::default(), Instant::now());
        let queue: Arc<str> = Arc::from("q");
        assert!(!backlogs.begin(&queue, episode()), "nobody asked");
        assert!(backlogs.is_due(&queue, now));
        drop(backlogs.turn(&queue, now));
        backlogs.note(&queue, Some(2), now);
        assert!(!backlogs.is_due(&queue, now + EVERY / 2));
        assert!(backlogs.is_due(&queue, now + EVERY));
        // However often somebody inspects it.
        assert!(backlogs.begin_finding(&queue, now) && !backlogs.begin_finding(&queue, now));
        assert!(backlogs.begin(&queue, episode()));
        assert!(!backlogs.begin(&queue, episode()));
        backlogs.claimed(&[lane("other")], &mut []);
        assert_eq!(backlogs.available(&queue), Some(2));
        assert!(!backlogs.begin(&queue, episode()), "it waits still");
        backlogs.claimed(&[lane(&queue)], &mut []);
        assert_eq!(backlogs.available(&queue), Some(0), "it was gone");
        assert!(backlogs.begin(&queue, episode()));
        backlogs.note(&queue, Some(0), now + EVERY);
        assert!(backlogs.begin(&queue, episode()), "it was gone again");
    }

    /// What waited before an outage waits during it.
    #[tokio::test(start_paused = true)]
    async fn what_the_backend_said_last_is_shown_while_it_says_nothing() {
        let (backlogs, now) = (Backlogs::default(), Instant::now());
        let queue: Arc<str> = Arc::from("q");
        let shown = || {
            let mut shown = None;
            backlogs.tell(|_, available, _| shown = available);
            shown
        };
        drop(backlogs.turn(&queue, now));
        backlogs.note(&queue, Some(5), now);
        backlogs.note(&queue, None, now + EVERY);
        assert_eq!((shown(), backlogs.available(&queue)), (Some(5), None));
        backlogs.note(&queue, Some(4), now + 2 * EVERY);
        assert_eq!((shown(), backlogs.available(&queue)), (Some(4), Some(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_names_do_not_pile_up() {
        let (backlogs, now) = (Backlogs::default(), Instant::now());
        let asks = |name: &str, at: Instant| {
            let asked = backlogs.turn(&Arc::from(name), at).is_some();
            backlogs.note(name, Some(1), at);
            asked
        };
        assert!(asks("waits", now) && backlogs.begin("waits", episode()));
        for nth in 1..MOST_QUEUES {
            assert!(asks(&format!("q{nth}"), now));
        }
        assert!(!asks("more", now));
        assert!(asks("more", now + EVERY));
        assert_eq!(backlogs.queues.lock().len(), 2, "what waits is remembered");
        backlogs.forget_unused(now + UNUSED);
        assert_eq!(backlogs.queues.lock().len(), 1);
    }
}
