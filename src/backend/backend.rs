//! The backend itself: its state under one lock.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::event::{Event, PhaseChange};
use super::lax::Lax;
use super::{api, state, wire};

/// How many state changes a slow event stream may be behind before it misses some.
const CHANGES: usize = 1024;

/// The backend; clones are the same one.
#[derive(Clone, Debug)]
pub struct Backend {
    pub(super) state: Arc<Mutex<state::BackendState>>,
    pub(super) changes: broadcast::Sender<PhaseChange>,
}

impl Backend {
    /// An empty backend. `seed` decides everything random: jitter, new ids, the order of lax replies.
    pub fn new(lax: Lax, seed: u64) -> Backend {
        let (changes, _) = broadcast::channel(CHANGES);
        let state = state::BackendState::new(lax, wire::WallClock::new(), seed, changes.clone());
        Backend {
            state: Arc::new(Mutex::new(state)),
            changes,
        }
    }

    /// Answers one request whose body was read whole. An event stream gets its first lines only;
    /// [`Backend::serve`] serves the whole of them.
    pub async fn handle(&self, request: http::Request<Bytes>) -> http::Response<Bytes> {
        api::answer(&mut self.state.lock(), &request, Instant::now())
    }

    /// The latest million events, in order.
    pub fn ledger(&self) -> Vec<Event> {
        self.state.lock().ledger.iter().cloned().collect()
    }

    /// From now on no FETCH leaves out a locked job, as where nobody else asks (`Lax::skips_locked`).
    pub fn unlock(&self) {
        self.state.lock().lax.skips_locked = 0;
    }

    /// Forgets all jobs, queues, and the ledger.
    pub fn clear(&self) {
        self.state.lock().clear();
    }
}
