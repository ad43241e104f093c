//! What a thread has in hand, for the gauges that are read when they are asked for, and whether the backend
//! answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::upstream::Upstream;

/// How long a thing that goes on is not said again.
const SILENCE: Duration = Duration::from_secs(60);

/// Which places a request takes. Requests that settle a job or keep it alive have places of their own, so that
/// others cannot keep them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// An ACK, nack or heartbeat.
    Urgent,
    /// Any other request.
    Ordinary,
}

/// What one listener has in hand now.
#[derive(Debug, Default)]
pub struct Load {
    /// Open connections, WebSockets among them.
    pub connections: AtomicUsize,
    /// Requests that have no reply yet, but for the urgent ones.
    pub ordinary: AtomicUsize,
    /// The urgent ones: ACKs, nacks and heartbeats.
    pub urgent: AtomicUsize,
}

/// What is said at once, and then once a minute at most while it goes on.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is to be said now.
    pub fn now(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| last.elapsed() >= SILENCE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// The threads of a sidecar, as its gauges see them.
#[derive(Debug, Default)]
pub(super) struct Threads {
    loads: Mutex<Vec<Arc<Load>>>,
    /// Of any thread: they all know the same of the backend.
    upstream: OnceLock<Upstream>,
}

impl Threads {
    /// One more thread, with its way to the backend: where it counts what it has in hand.
    pub(super) fn add(&self, upstream: &Upstream) -> Arc<Load> {
        let load = Arc::<Load>::default();
        let mut loads = self.loads.lock();
        loads.push(Arc::clone(&load));
        self.upstream.get_or_init(|| upstream.clone());
        load
    }

    pub(super) fn sum(&self, of: impl Fn(&Load) -> &AtomicUsize) -> usize {
        let loads = self.loads.lock();
        let each = loads.iter().map(|load| of(load).load(Ordering::Relaxed));
        each.sum()
    }

    /// Whether the backend is away, as far as any thread knows.
    pub(super) fn backend_is_away(&self) -> bool {
        self.upstream.get().is_some_and(Upstream::is_away)
    }
}
