//! The places of a waiting FETCH in the lines of its lanes.

use std::sync::Arc;

use tokio::time::Instant;

use super::lane::Lane;
use super::line::Waiter;
use super::locked::Hold;

/// The places of a waiting FETCH in the lines of its lanes; it leaves them when this is dropped.
#[derive(Debug)]
pub struct Standing {
    hold: Arc<Hold>,
    lanes: Vec<Lane>,
    waiter: Waiter,
    /// Since when it stands there.
    pub since: Instant,
}

impl Standing {
    /// Stands in the lines of all the lanes, behind who is there already.
    pub fn new(hold: &Arc<Hold>, lanes: Vec<Lane>) -> Standing {
        let since = Instant::now();
        let mut state = hold.state();
        state.waiters += 1;
        let waiter = Waiter::new(state.waiters);
        for lane in &lanes {
            state.queues.open(lane, since).line.join(&waiter);
        }
        drop(state);
        Standing {
            waiter,
            hold: Arc::clone(hold),
            lanes,
            since,
        }
    }

    /// Ends when it may be its turn; a wake that came before is not lost.
    pub async fn woken(&self) {
        self.waiter.notify.notified().await;
    }

    /// Whether it is the first in a lane's line: it watches the clock and asks the backend.
    pub fn is_first(&self, lane: &Lane) -> bool {
        let state = self.hold.state();
        let queue = state.queues.get(lane);
        queue.is_some_and(|queue| queue.line.is_first(&self.waiter))
    }

    /// Whether it is the first in any of its lines.
    pub fn is_first_anywhere(&self) -> bool {
        self.lanes.iter().any(|lane| self.is_first(lane))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut state = self.hold.state();
        for lane in &self.lanes {
            if let Some(queue) = state.queues.get_mut(lane) {
                queue.line.leave(&self.waiter);
            }
        }
    }
}
