//! How many jobs wait for a limit: those that are held, and those that the backend's statistics show in queues that
//! the limit covers. `waiting_count`, the metric and the event of waiting jobs all go by the same number.
//!
//! The backend is asked at most once a second for a queue: by who reads limits, and beside a FETCH that gets less than
//! it wants from a queue whose limits leave no room. The jobs of such a queue stay in the backend, unread, and somebody
//! must be told all the same that they wait (rate-limiting text, 11.1 and 11.2). One job stands for them: that the
//! limit was met is told once, and the next job that is claimed from the queue brings the end of the wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::control::in_force;
use super::control::named::Waiting;
use super::depth;
use super::{Proxy, Sidecar, tell};
use crate::bounds::StatsAnswer;
use crate::hold::{Episode, Held, Lane};
use crate::limit::{Key, Space};
use crate::policy::{Gate, PolicySet};
use crate::store::KeyStates;

/// How often the backend is asked about one queue.
const EVERY: Duration = Duration::from_secs(1);
/// An episode in which the lookahead of a queue is full has ended when it was not seen full for so long.
const NOT_FULL: Duration = Duration::from_secs(60);
/// Queues that are remembered; there are never more unless somebody makes up names.
const MOST_QUEUES: usize = 10_000;
/// How long one is remembered for which nobody asks.
const UNUSED: Duration = Duration::from_secs(600);
/// The backend is asked about so many queues for one answer.
const QUEUES: usize = 32;

/// What the backend said of its queues.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    queues: Mutex<HashMap<Arc<str>, Backlog>>,
    /// When it last did not answer: then it is not waited for again at once.
    away: Mutex<Option<Instant>>,
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
    /// How many jobs are available; `None`: nobody knows.
    available: Option<u64>,
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
    /// The queues in which jobs are available.
    pub(super) fn with_jobs(&self) -> Vec<Arc<str>> {
        let queues = self.queues.lock();
        let with_jobs = (queues.iter()).filter(|(_, backlog)| backlog.available > Some(0));
        with_jobs.map(|(queue, _)| Arc::clone(queue)).collect()
    }

    /// Whether the backend last said that a queue is paused.
    pub(super) fn is_paused(&self, queue: &str) -> bool {
        self.queues
            .lock()
            .get(queue)
            .is_some_and(|backlog| backlog.paused)
    }

    /// Notes whether the backend says that a queue is paused.
    pub(super) fn note_paused(&self, queue: &str, paused: bool) {
        if let Some(backlog) = self.queues.lock().get_mut(queue) {
            backlog.paused = paused;
        }
    }

    /// How many jobs of a queue are available in the backend, without those of its subqueues, as far as it said.
    pub(super) fn available(&self, queue: &str) -> Option<u64> {
        self.queues.lock().get(queue)?.available
    }

    /// Whether the backend may be asked about a queue.
    fn is_due(&self, queue: &str, now: Instant) -> bool {
        is_old(*self.away.lock(), now)
            && (self.queues.lock().get(queue)).is_none_or(|backlog| is_old(backlog.asked, now))
    }

    /// Whether to find out if a queue's next job waits for a limit: once a second. Whoever inspects the queue may have
    /// asked the backend just now, which must not keep this from being found out.
    fn begin_finding(&self, queue: &str, now: Instant) -> bool {
        is_old(*self.away.lock(), now)
            && self.once_a_second(queue, now, |backlog| &mut backlog.looked)
    }

    /// Whether to find out if a queue's lookahead is full: once a second.
    pub(super) fn looks_whether_full(&self, queue: &str, now: Instant) -> bool {
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

    /// Notes that a queue's lookahead is full. Returns `true` the first time of an episode.
    pub(super) fn begins_to_be_full(&self, queue: &str, now: Instant) -> bool {
        let mut queues = self.queues.lock();
        let last = (queues.get_mut(queue)).map(|backlog| backlog.full.replace(now));
        last.is_some_and(|last| last.is_none_or(|at| now.saturating_duration_since(at) >= NOT_FULL))
    }

    /// The turn to ask about a queue; `None`: too many queues are remembered.
    fn turn(&self, queue: &Arc<str>, now: Instant) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut queues = self.queues.lock();
        if queues.len() >= MOST_QUEUES && !queues.contains_key(queue) {
            queues.retain(|_, backlog| backlog.episode.is_some() || !is_old(backlog.asked, now));
        }
        let has_room = queues.len() < MOST_QUEUES || queues.contains_key(queue);
        has_room.then(|| Arc::clone(&queues.entry(Arc::clone(queue)).or_default().turn))
    }

    /// Notes the backend's answer about a queue. If nothing is available any more, what waited is gone.
    fn note(&self, queue: &str, available: Option<u64>, rested: Instant) {
        if let Some(backlog) = self.queues.lock().get_mut(queue) {
            (backlog.asked, backlog.available) = (Some(rested), available);
            if available == Some(0) {
                backlog.episode = None;
            }
        }
    }

    /// Notes that the queue's next job waits. Returns `true` the first time.
    fn begin(&self, queue: &str, episode: Episode) -> bool {
        let mut queues = self.queues.lock();
        let backlog = queues.get_mut(queue);
        let silent = backlog.filter(|backlog| backlog.episode.is_none());
        silent
            .map(|backlog| backlog.episode = Some(episode))
            .is_some()
    }

    /// The backend gave these jobs when it was asked for `lanes`. The first of each queue is the one that waited. If it
    /// gave none, what waited is gone.
    pub(super) fn claimed(&self, lanes: &[Lane], jobs: &mut [Held]) {
        let mut queues = self.queues.lock();
        if queues.is_empty() {
            return;
        }
        if jobs.is_empty() {
            for lane in lanes {
                if let Some(backlog) = queues.get_mut(&lane.queue) {
                    (backlog.available, backlog.episode) = (Some(0), None);
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
    pub(super) fn forget_unused(&self, now: Instant) {
        let is_used = |asked: Instant| now.saturating_duration_since(asked) < UNUSED;
        let mut queues = self.queues.lock();
        queues.retain(|_, backlog| backlog.asked.is_some_and(is_used));
        let len = queues.len();
        queues.shrink_to(2 * len);
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        self.queues.lock().clear();
    }
}

/// Asks the backend how many jobs of a queue are available, with the credentials of `scope`, unless it said so within
/// the last second. `None`: nobody knows.
async fn ask_depth(proxy: &Proxy, queue: &Arc<str>, scope: u64) -> Option<u64> {
    let backlogs = &proxy.sidecar.fetching.backlogs;
    let turn = backlogs.turn(queue, Instant::now())?;
    let _turn = turn.lock().await;
    if backlogs.is_due(queue, Instant::now()) {
        let begun = Instant::now();
        let answer = depth::ask_stats(proxy, queue, scope).await;
        let rest = depth::rest_after(begun.elapsed());
        let available = match answer {
            StatsAnswer::Counts(counts) => Some(counts.available),
            _ => None,
        };
        backlogs.note(queue, available, Instant::now() + rest);
        *backlogs.away.lock() = matches!(answer, StatsAnswer::Away(_)).then(Instant::now);
    }
    available(&proxy.sidecar, queue)
}

/// How many jobs of a queue and of its subqueues are available in the backend, as far as is known.
fn available(sidecar: &Sidecar, queue: &str) -> Option<u64> {
    let of_queue = sidecar.fetching.backlogs.available(queue)?;
    Some(of_queue + sidecar.subqueues.waiting(queue).available)
}

/// Whether a queue is not paused, here or at the backend itself, which is asked once a second; unknown is no.
pub(super) async fn runs(proxy: &Proxy, lane: &Lane) -> bool {
    let fetching = &proxy.sidecar.fetching;
    if fetching.paused.has(&lane.queue) {
        return false;
    }
    let available = ask_depth(proxy, &lane.queue, lane.scope).await;
    available.is_some() && !fetching.backlogs.is_paused(&lane.queue)
}

/// A worker wants more than it gets, and nothing may be claimed of this queue: its limits may be why.
pub(super) fn note_closed(proxy: &Proxy, lane: &Lane, gate: &Gate) {
    let sidecar = &proxy.sidecar;
    let limited = in_force::limits_now(sidecar, &lane.queue, &gate.limited);
    // Without limits of its own it is the hold that is full.
    if limited.is_empty()
        || sidecar.fetching.paused.has(&lane.queue)
        || !sidecar
            .fetching
            .backlogs
            .begin_finding(&lane.queue, Instant::now())
    {
        return;
    }
    let (proxy, lane, gate) = (proxy.clone(), lane.clone(), gate.clone());
    let _task = sidecar.tasks.spawn(async move {
        if ask_depth(&proxy, &lane.queue, lane.scope)
            .await
            .is_some_and(|jobs| jobs > 0)
        {
            tell_waiting(&proxy.sidecar, &lane.queue, &gate).await;
        }
    });
}

/// Tells once that the next job of a queue waits for a limit, if one is met.
async fn tell_waiting(sidecar: &Sidecar, queue: &str, gate: &Gate) {
    for limited in &**in_force::limits_now(sidecar, queue, &gate.limited) {
        let states = sidecar.store.states(&[(limited.space, &limited.key)]).await;
        let Ok(KeyStates { states, now }) = states else {
            return;
        };
        let asked = states
            .first()
            .map(|state| state.ask(&limited.limits, 1, now));
        if let Some(Err(refusal)) = asked {
            sidecar.metrics.held_up(limited);
            let episode = Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: refusal.strategy,
                since: Instant::now(),
            };
            if sidecar.fetching.backlogs.begin(queue, episode) {
                tell::exceeded_unread(sidecar, queue, limited, &refusal);
            }
            return;
        }
    }
}

/// How many jobs wait for a queue's own limits: those that are held here, and those in the backend.
pub(super) fn of_queue(sidecar: &Sidecar, queue: &str) -> u64 {
    let of_queue = sidecar.fetching.backlogs.available(queue).unwrap_or(0);
    let of_subqueues = sidecar.subqueues.waiting(queue).available;
    sidecar.hold.of_queue(queue).0 as u64 + of_queue + of_subqueues
}

/// How many jobs wait for a key: those that are held here, all jobs of the queues that the key covers, and in other
/// queues those that are known to wait for it, of which some may have left unseen.
pub(super) fn of_key(sidecar: &Sidecar, key: &Key, policies: &PolicySet, pending: &Waiting) -> u64 {
    let mut waiting = sidecar.hold.waiting_for(Space::Job, key) as u64;
    let mut pending = pending.get(key).cloned().unwrap_or_default();
    let available = |queue: &str| available(sidecar, queue);
    for queue in policies.covered(key) {
        let pending = pending.remove(queue).unwrap_or(0);
        waiting += available(queue).unwrap_or(pending);
    }
    for (queue, jobs) in pending {
        waiting += available(&queue).unwrap_or(jobs).min(jobs);
    }
    waiting
}

/// The queues of the backend in which jobs may wait for a key.
pub(super) fn queues_of(key: &Key, policies: &PolicySet, pending: &Waiting) -> Vec<Arc<str>> {
    let covered = policies.covered(key).map(Arc::from);
    let pending = pending.get(key).into_iter();
    covered
        .chain(pending.flat_map(|queues| queues.keys().cloned()))
        .collect()
}

/// Asks the backend about these queues, for one answer.
pub(super) async fn refresh(proxy: &Proxy, queues: &[Arc<str>], scope: u64) {
    let is_due = |queue: &&Arc<str>| {
        let backlogs = &proxy.sidecar.fetching.backlogs;
        backlogs.is_due(queue, Instant::now())
    };
    for queue in queues.iter().filter(is_due).take(QUEUES) {
        ask_depth(proxy, queue, scope).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Strategy;

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
