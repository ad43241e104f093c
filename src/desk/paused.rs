//! The queues that were paused through us, or through a sibling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::json::Json;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::Reply;

/// The store forgets after a day that a queue is paused, and is told again before.
const TOLD_AGAIN: Duration = Duration::from_secs(3_600);
/// More paused queues than this are not remembered: names come from requests.
const MAX: usize = 10_000;

/// Each queue that is paused, or that a call through us is about to pause.
#[derive(Default, Debug)]
pub(crate) struct Paused {
    /// Hardly any is, and then no lock is needed to see that.
    any: AtomicBool,
    queues: Mutex<HashMap<Arc<str>, PausedQueue>>,
    /// Shared by those who read in the store whether a queue is paused, and taken by who ends a pause: what was
    /// read before an end is noted before it too.
    pub(crate) reading: RwLock<()>,
}

#[derive(Default, Debug)]
struct PausedQueue {
    /// How many calls that pause it are under way.
    calls: usize,
    /// Since when a pause is known to stand.
    since: Option<Instant>,
    /// When the store was told that it stands, if ever.
    told: Option<Instant>,
}

impl Paused {
    /// The queues, unless there is none.
    fn some(&self) -> Option<MutexGuard<'_, HashMap<Arc<str>, PausedQueue>>> {
        self.any.load(Ordering::Acquire).then(|| self.queues.lock())
    }

    /// Changes what is known of a queue.
    fn change(&self, queue: &str, change: impl FnOnce(&mut PausedQueue)) {
        let mut all = self.queues.lock();
        if all.len() < MAX || all.contains_key(queue) {
            let pause = all.entry_ref(queue).or_default();
            change(pause);
            if pause.calls == 0 && pause.since.is_none() {
                all.remove(queue);
            }
        }
        // Under the lock, so that it says what the last to change them left.
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    /// Whether a queue is paused, or about to be.
    pub(crate) fn has(&self, queue: &str) -> bool {
        self.some().is_some_and(|all| all.contains_key(queue))
    }

    /// A call that pauses a queue is on its way: the queue is paused until the call ends, with [`Paused::end_done`]
    /// or [`Paused::end_failed`].
    pub(crate) fn begin(&self, queue: &str) {
        self.change(queue, |pause| pause.calls += 1);
    }

    /// The call has paused the queue.
    pub(crate) fn end_done(&self, queue: &str) {
        self.change(queue, |pause| {
            pause.calls = pause.calls.saturating_sub(1);
            pause.since = Some(Instant::now());
        });
    }

    /// The call came to nothing: the queue is what it would be without it.
    pub(crate) fn end_failed(&self, queue: &str) {
        self.change(queue, |pause| pause.calls = pause.calls.saturating_sub(1));
    }

    /// Notes that a queue is paused as of now.
    pub(crate) fn pause(&self, queue: &str) {
        self.change(queue, |pause| pause.since = Some(Instant::now()));
    }

    /// Notes that a queue is not paused.
    pub(crate) fn resume(&self, queue: &str) {
        self.change(queue, |pause| pause.since = None);
    }

    /// The backend did not say otherwise of a pause that was known to stand at `since`: it does now, unless it was
    /// ended or set anew meanwhile. Whether it is time to tell the store of it again.
    pub(crate) fn stands(&self, queue: &str, since: Instant) -> bool {
        let (now, mut is_due) = (Instant::now(), false);
        self.change(queue, |pause| {
            if pause.since == Some(since) {
                pause.since = Some(now);
                is_due = (pause.told).is_none_or(|told| now.duration_since(told) >= TOLD_AGAIN);
                pause.told = if is_due { Some(now) } else { pause.told };
            }
        });
        is_due
    }

    /// The backend gave jobs of the queue, or said that it runs, in answer to something sent at `asked`:
    /// a pause from before that is over.
    pub(crate) fn is_over(&self, queue: &str, asked: Instant) {
        if self.has(queue) {
            self.change(queue, |pause| {
                pause.since = pause.since.filter(|since| *since >= asked)
            });
        }
    }

    /// Those of which a pause is known to stand and that `wanted` wants, with since when.
    pub(crate) fn since(&self, wanted: impl Fn(&str) -> bool) -> Vec<(Arc<str>, Instant)> {
        let all = self.some();
        let all = all.iter().flat_map(|all| all.iter());
        all.filter(|(queue, _)| wanted(queue))
            .filter_map(|(queue, pause)| Some((queue.clone(), pause.since?)))
            .collect()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut all = self.queues.lock();
        all.clear();
        self.any.store(false, Ordering::Release);
    }
}

/// Whether a queue's numbers say that it is paused, by `paused` or by `status`; `None`: they do not say.
pub(crate) fn read_paused(reply: &Reply) -> Option<bool> {
    let stats = Json::parse(&reply.body, REPLY_DEPTH).ok()?;
    let places = [stats.get_exact("queue").unwrap_or(stats), stats];
    let said = |name: &str| places.iter().find_map(|place| place.get_exact(name));
    let status = || Some(said("status")?.text()? == "paused");
    let is_told = reply.status.is_success();
    (said("paused").and_then(|paused| paused.boolean()))
        .or_else(status)
        .filter(|_| is_told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_said_in_two_ways() {
        for (status, body, paused) in [
            (200, r#"{"queue":{"name":"q","paused":true}}"#, Some(true)),
            (
                200,
                r#"{"name":"q","paused":false,"status":"paused"}"#,
                Some(false),
            ),
            (
                200,
                r#"{"queue":"q","status":"paused","stats":{}}"#,
                Some(true),
            ),
            (
                200,
                r#"{"queue":{"name":"q","status":"paused"}}"#,
                Some(true),
            ),
            (200, r#"{"queue":"q","status":"active"}"#, Some(false)),
            (200, r#"{"queue":"q","status":7}"#, None),
            (503, r#"{"status":"unavailable"}"#, None),
            (200, "paused", None),
        ] {
            let reply = Reply {
                status: http::StatusCode::from_u16(status).unwrap(),
                headers: http::HeaderMap::new(),
                body: body.into(),
            };
            assert_eq!(read_paused(&reply), paused, "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_brings_no_pause_back_that_was_ended_meanwhile() {
        let paused = Paused::default();
        let pass = || tokio::time::advance(Duration::from_secs(1));
        paused.pause("a");
        let since = Instant::now();
        pass().await;
        paused.stands("a", since);
        assert_eq!(paused.since(|_| true), [("a".into(), Instant::now())]);
        let since = Instant::now();
        pass().await;
        paused.resume("a");
        paused.stands("a", since);
        assert!(!paused.has("a"));
        paused.pause("a");
        let anew = Instant::now();
        pass().await;
        paused.stands("a", since);
        assert_eq!(paused.since(|_| true), [("a".into(), anew)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_by_word_or_by_jobs_that_came_after_it() {
        let paused = Paused::default();
        let before = Instant::now();
        assert!(!paused.has("a"));
        tokio::time::advance(Duration::from_secs(1)).await;
        paused.pause("a");
        paused.pause("b");
        paused.is_over("a", before);
        assert!(paused.has("a") && paused.has("b") && !paused.has("c"));
        assert_eq!(paused.since(|queue| queue == "b").len(), 1);
        paused.is_over("a", Instant::now() + Duration::from_secs(1));
        paused.resume("b");
        assert!(!paused.has("a") && !paused.has("b"));
        assert!(!paused.any.load(Ordering::Relaxed));
        paused.pause("a");
        paused.clear();
        assert!(!paused.has("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_comes_to_nothing_leaves_the_others() {
        let paused = Paused::default();
        let listed = |paused: &Paused| paused.since(|_| true).len();
        paused.begin("a");
        paused.begin("a");
        assert!(paused.has("a"));
        assert_eq!(listed(&paused), 0, "none is known to stand");
        // Jobs that were given meanwhile say nothing of a pause that has not ended.
        paused.is_over("a", Instant::now() + Duration::from_secs(1));
        paused.stands("a", Instant::now());
        paused.end_done("a");
        paused.end_failed("a");
        assert!(paused.has("a"));
        assert_eq!(listed(&paused), 1);

        paused.begin("a");
        paused.resume("a");
        assert!(paused.has("a"), "that call may pause it yet");
        paused.end_failed("a");
        assert!(!paused.has("a"));
        // Asked about before it ended.
        paused.stands("a", Instant::now());
        assert!(!paused.has("a") && !paused.any.load(Ordering::Relaxed));
    }
}
