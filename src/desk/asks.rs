//! Which queues without limits workers ask for. Those with limits have lanes in the hold, which know it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The most queues that are remembered.
const MOST: usize = 1_000;

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
        for queue in queues {
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

    /// Whether no FETCH of the last `since` can have been for this queue.
    pub(crate) fn is_silent(&self, queue: &str, since: Duration) -> bool {
        let FetchTimes { by_queue, unread } = &*self.0.lock();
        let last = by_queue.get(queue).copied().max(*unread);
        last.is_none_or(|last| last.elapsed() >= since)
    }
}
