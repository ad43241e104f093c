//! By what held jobs and those who wait for them are found.

use std::sync::Arc;

use ojs_store::Claimed;

/// Held jobs and waiting FETCHes of one scope and queue are found by this.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The hash of the credentials that a FETCH came with.
    pub scope: u64,
    /// The queue.
    pub queue: Arc<str>,
}

impl Lane {
    /// The lane of another queue under these credentials.
    pub fn with_queue(&self, queue: &str) -> Lane {
        Lane {
            scope: self.scope,
            queue: Arc::from(queue),
        }
    }

    /// The lane in which a claimed job waits.
    pub fn of(claimed: &Claimed) -> Lane {
        Lane {
            scope: claimed.scope,
            queue: claimed.queue.clone(),
        }
    }
}

impl From<&Lane> for Lane {
    fn from(lane: &Lane) -> Lane {
        lane.clone()
    }
}
