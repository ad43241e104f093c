//! What is seen of jobs, and of the backend that has them: plain data.

use std::sync::Arc;

use ojs_limit::Timestamp;
use ojs_wire::upstream::UpstreamError;

/// A point in the order of things, so that what was sent before an answer is told from what was sent
/// after it, however coarse the clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Mark(pub u64);

/// A job that was stored, as the backend shows it.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its queue.
    pub queue: Arc<str>,
    /// Its id.
    pub id: Box<str>,
    /// The time that it waits for; `None`: it is available.
    pub due: Option<Timestamp>,
}

/// Where jobs go that the backend gave to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenTo {
    /// To a worker: they wait no longer.
    Worker,
    /// Into the hold, where they wait on.
    Hold,
}

/// What became of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnqueueOutcome {
    /// The backend stored it, or may have.
    Stored,
    /// It surely did not.
    Refused,
}

/// What became of a job that was to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// It was held: the backend's numbers are without it since it was claimed.
    Held,
    /// It waited in the backend's queue, which was told at this point.
    Waiting(Mark),
    /// There was none, or the backend has not ended it yet.
    None,
}

/// Why the backend could not be asked.
#[derive(Clone, Debug)]
pub enum Away {
    /// It did not answer.
    Unanswered(UpstreamError),
    /// It answers with this status, and not with numbers.
    Failing(u16),
}
