//! The records of producers, workers and the probe, written down as they see things. All times count from the start of
//! the demo.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::streams::STREAMS;

/// Everybody's notebook; clones are the same one.
#[derive(Clone, Debug)]
pub struct Records {
    epoch: Instant,
    pages: Arc<Mutex<Pages>>,
}

/// The records.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Jobs that a producer got a 201 for, by id: stream and when.
    pub enqueued: HashMap<String, (usize, Duration)>,
    /// Jobs that workers received, in order, each time that one was.
    pub received: Vec<Received>,
    /// Trips of the probe, in order.
    pub probes: Vec<ProbeTrip>,
    /// Calls that failed.
    pub trouble: Vec<String>,
    /// Per stream: enqueued, received.
    pub count: [(usize, usize); STREAMS.len()],
}

/// A job in the hands of a worker.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its stream: an index into [`STREAMS`].
    pub stream: usize,
    /// Its id.
    pub job: String,
    /// When the worker had read the reply that brought it.
    pub at: Duration,
    /// When the worker began to send the ACK.
    pub done: Option<Duration>,
    /// Whether the ACK was accepted.
    pub acked: bool,
}

/// One trip through the sidecar to the backend and back.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTrip {
    /// When it left.
    pub sent: Duration,
    /// When its reply was read.
    pub back: Duration,
}

impl Records {
    /// An empty notebook; time counts from now.
    pub fn start() -> Records {
        Records {
            epoch: Instant::now(),
            pages: Arc::default(),
        }
    }

    /// The time now.
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// To read or write. Never kept over an await.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }

    /// Notes a failed call.
    pub fn trouble(&self, error: &anyhow::Error) {
        self.pages().trouble.push(format!("{error:#}"));
    }
}

impl Pages {
    /// Jobs of a stream that no worker has received yet.
    pub fn waiting(&self, stream: usize) -> usize {
        let count = self.count.get(stream).copied().unwrap_or_default();
        count.0.saturating_sub(count.1)
    }

    /// The earliest that a start may have been made which a worker saw at `seen`: when the last
    /// probe left that was back by then. Had the start been made before, then that probe left after
    /// it and was back before it, through the same thread and the same kind of sockets, on a way
    /// that is more than twice as long.
    pub fn made(&self, seen: Duration) -> Duration {
        let back = self.probes.partition_point(|probe| probe.back <= seen);
        let last = back.checked_sub(1).and_then(|last| self.probes.get(last));
        last.map(|probe| probe.sent).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_was_made_after_the_last_probe_that_was_back_had_left() {
        let ms = Duration::from_millis;
        let probe = |sent, back| ProbeTrip {
            sent: ms(sent),
            back: ms(back),
        };
        let pages = Pages {
            probes: vec![probe(10, 12), probe(20, 90), probe(91, 93)],
            ..Pages::default()
        };
        assert_eq!(pages.made(ms(11)), ms(0), "no probe was back yet");
        assert_eq!(pages.made(ms(19)), ms(10));
        assert_eq!(pages.made(ms(89)), ms(10), "one is on its way");
        assert_eq!(pages.made(ms(90)), ms(20));
        assert_eq!(pages.made(ms(150)), ms(91));
    }
}
