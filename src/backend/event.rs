//! What happened: the ledger's lines, and changes for the event streams.

use std::sync::Arc;
use std::time::Duration;

use super::job::Phase;

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
pub(super) struct PhaseChange {
    pub(super) job: Arc<str>,
    pub(super) job_type: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) from: Option<Phase>,
    pub(super) to: Phase,
    pub(super) at: String,
}
