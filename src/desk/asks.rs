//! Which queues without limits workers ask for. Those with limits have lanes in the hold, which know it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The most queues that are remembered.
const MOST: usize = 1_000;
/// The longest name of a queue that is remembered, in bytes. Requests may name any, and the backend may refuse them.
pub(super) const LONGEST: usize = 255;
/// How long it is remembered that a queue was asked for. Nobody looks further back.
const LASTS: Duration = Duration::from_secs(60);

/// When FETCHes passed as they came, by their queues.
#[derive(Default, Debug)]
pub(crate) struct PassedFetches(Mutex<FetchTimes>);

#[derive(Default, Debug)]
struct FetchTimes {
    by_queue: HashMap<Arc<str>, Instant>,
    /// The last one of which nobody knows all queues.
    unread: Option<Instant>,
}

impl PassedFetches {
    /// Notes a FETCH; `None`: its queues were not read.
    pub(crate) fn note(&self, queues: Option<&[Arc<str>]>, now: Instant) {
        let FetchTimes { by_queue, unread } = &mut *self.0.lock();
        let Some(queues) = queues else {
            *unread = Some(now);
            return;
        };
        for queue in queues.iter().filter(|name| name.len() <= LONGEST) {
            if let Some(last) = by_queue.get_mut(queue) {
                *last = now;
            } else if by_queue.len() < MOST {
                by_queue.insert(Arc::clone(queue), now);
            } else {
                // Names come from requests.
                by_queue.clear();
                *unread = Some(now);
            }
        }
    }

    /// Forgets those of long before `now`.
    pub(crate) fn forget_unused(&self, now: Instant) {
        (self.0.lock().by_queue).retain(|_, at| now.saturating_duration_since(*at) < LASTS);
    }

    /// Whether no FETCH of the last `since` can have been for this queue.
    pub(crate) fn is_silent(&self, queue: &str, since: Duration) -> bool {
        let FetchTimes { by_queue, unread } = &*self.0.lock();
        let last = by_queue.get(queue).copied().max(*unread);
        queue.len() <= LONGEST && last.is_none_or(|last| last.elapsed() >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_is_forgotten_and_long_names_are_not_noted() {
        let (asks, second) = (PassedFetches::default(), Duration::from_secs(1));
        let long = "x".repeat(LONGEST + 1);
        let noted = |queue: &str| asks.note(Some(&[Arc::from(queue)]), Instant::now());
        let known = || asks.0.lock().by_queue.len();
        noted(&long);
        noted(&"x".repeat(LONGEST));
        noted("q");
        assert_eq!(known(), 2);
        assert!(!asks.is_silent("q", second) && asks.is_silent("p", second));
        assert!(!asks.is_silent(&long, second), "nobody knows");
        tokio::time::advance(LASTS - second).await;
        noted("q");
        asks.forget_unused(Instant::now());
        assert_eq!(known(), 2);
        tokio::time::advance(second).await;
        asks.forget_unused(Instant::now());
        assert_eq!(known(), 1);
        assert!(!asks.is_silent("q", 2 * second));
    }
}
