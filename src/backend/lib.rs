//! An OJS backend in memory, for `dev`, `demo` and tests.
//!
//! It follows the OJS core text at levels 0 and 1, with priorities, delays, pausing, batches, the dead-letter list and
//! the parts of the admin view that the sidecar uses. [`Lax`] makes it behave like one of the real backends, which are
//! laxer than the text. Its [`Backend::ledger`] records what really happened, and tests judge the sidecar by it.
//!
//! It knows nothing of rate limits, and shares no code with the sidecar but the sockets.
//!
//! All deadlines are on tokio's clock; the wall clock is read once, so that times can be printed. Expiry and promotion
//! happen when a request comes, and every 500 ms while serving.

mod api;
mod job;
mod lax;
mod retry;
mod serve;
mod state;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use lax::{Duplicate, Extended, Lax, Liveness, Requeue};

/// How many state changes a slow event stream may be behind before it misses some.
const CHANGES: usize = 1024;

/// The backend; clones are the same one.
#[derive(Clone, Debug)]
pub struct Backend {
    state: Arc<Mutex<state::BackendState>>,
    changes: broadcast::Sender<PhaseChange>,
}

/// The kinds of events in a job's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// An enqueue was accepted.
    Stored,
    /// A FETCH gave it to a worker.
    Claimed,
    /// The worker finished it.
    Acked,
    /// The worker failed; [`EventKind::Discarded`] follows if that was the end.
    Nacked,
    /// The worker gave it back.
    Requeued,
    /// Its claim, or its time to run, ran out; [`EventKind::Discarded`] follows if that was the end.
    Expired,
    /// Attempts or `expires_at` ran out, or the failure was final.
    Discarded,
    /// It was cancelled.
    Cancelled,
    /// A heartbeat extended its claim.
    Extended,
    /// Its scheduled time, or that of its next attempt, came.
    Promoted,
    /// It was put back by an admin, attempts at zero.
    Revived,
}

/// One line of the ledger.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Job id.
    pub job: Arc<str>,
    /// Job type.
    pub job_type: Arc<str>,
    /// Queue of the job.
    pub queue: Arc<str>,
    /// The worker that has claimed the job, or had when the claim ended, if it has a name.
    pub worker: Option<Arc<str>>,
    /// The job's attempt as it was then; at a claim, the one that begins.
    pub attempt: u32,
    /// Priority of the job.
    pub priority: i32,
    /// When, since the backend was made.
    pub at: Duration,
    /// How long the latest attempt had run.
    pub ran: Option<Duration>,
}

/// A change of state, for the event streams.
#[derive(Clone, Debug)]
struct PhaseChange {
    job: Arc<str>,
    job_type: Arc<str>,
    queue: Arc<str>,
    from: Option<&'static str>,
    to: &'static str,
    done: bool,
    at: String,
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

    /// Forgets all jobs, queues, and the ledger.
    pub fn clear(&self) {
        self.state.lock().clear();
    }
}
