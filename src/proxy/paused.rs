//! The queues that were paused through us, or through a sibling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tokio::time::Instant;

/// More paused queues than this are not remembered: names come from requests.
const MAX: usize = 10_000;

/// Each paused queue, and since when the pause is known to stand.
#[derive(Default, Debug)]
pub(super) struct Paused {
    /// Hardly any is, and then no lock is needed to see that.
    any: AtomicBool,
    queues: Mutex<HashMap<Arc<str>, Instant>>,
}

impl Paused {
    fn queues(&self) -> MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queues, unless there is none.
    fn some(&self) -> Option<MutexGuard<'_, HashMap<Arc<str>, Instant>>> {
        self.any.load(Ordering::Acquire).then(|| self.queues())
    }

    /// Whether a queue is paused.
    pub(super) fn has(&self, queue: &str) -> bool {
        self.some().is_some_and(|all| all.contains_key(queue))
    }

    /// Notes that a queue is paused as of now, or is not.
    pub(super) fn set(&self, queue: &str, paused: bool) {
        let mut all = self.queues();
        if !paused {
            all.remove(queue);
        } else if all.len() < MAX || all.contains_key(queue) {
            all.insert(Arc::from(queue), Instant::now());
        }
        // Under the lock, so that it says what the last to change them left.
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    /// The backend gave jobs of the queue, or said that it runs, in answer to something sent at `asked`:
    /// a pause from before that is over.
    pub(super) fn is_over(&self, queue: &str, asked: Instant) {
        let Some(mut all) = self.some() else { return };
        if all.get(queue).is_some_and(|since| *since < asked) {
            all.remove(queue);
        }
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    /// The backend did not say otherwise of a pause that was known to stand at `since`: it does now, unless it was
    /// ended or set anew meanwhile.
    pub(super) fn stands(&self, queue: &str, since: Instant) {
        let Some(mut all) = self.some() else { return };
        if let Some(known) = all.get_mut(queue).filter(|known| **known == since) {
            *known = Instant::now();
        }
    }

    /// Those that `wanted` wants, with since when.
    pub(super) fn since(&self, wanted: impl Fn(&str) -> bool) -> Vec<(Arc<str>, Instant)> {
        let all = self.some();
        let all = all.iter().flat_map(|all| all.iter());
        all.filter(|(queue, _)| wanted(queue))
            .map(|(queue, since)| (queue.clone(), *since))
            .collect()
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        let mut all = self.queues();
        all.clear();
        self.any.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_brings_no_pause_back_that_was_ended_meanwhile() {
        let paused = Paused::default();
        let pass = || tokio::time::advance(Duration::from_secs(1));
        paused.set("a", true);
        let since = Instant::now();
        pass().await;
        paused.stands("a", since);
        assert_eq!(paused.since(|_| true), [("a".into(), Instant::now())]);
        let since = Instant::now();
        pass().await;
        paused.set("a", false);
        paused.stands("a", since);
        assert!(!paused.has("a"));
        paused.set("a", true);
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
        paused.set("a", true);
        paused.set("b", true);
        paused.is_over("a", before);
        assert!(paused.has("a") && paused.has("b") && !paused.has("c"));
        assert_eq!(paused.since(|queue| queue == "b").len(), 1);
        paused.is_over("a", Instant::now() + Duration::from_secs(1));
        paused.set("b", false);
        assert!(!paused.has("a") && !paused.has("b"));
        assert!(!paused.any.load(Ordering::Relaxed));
        paused.set("a", true);
        paused.clear();
        assert!(!paused.has("a"));
    }
}
