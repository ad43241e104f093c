//! What producers, workers and the probe saw, written down as they see it. All times count from
//! the start of the demo.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::streams::STREAMS;

/// How close a probe must be to a moment to say how slow things were then.
const NEAR: Duration = Duration::from_millis(20);
/// Deliveries may always take this long, whatever the probe says: it does not take every way.
const LEAST_DELAY: Duration = Duration::from_millis(5);

/// Everybody's notebook; clones are the same one.
#[derive(Clone, Debug)]
pub struct Records {
    epoch: Instant,
    pages: Arc<Mutex<Pages>>,
}

/// What was written down.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Jobs that a producer got a 201 for, by id: stream and when.
    pub enqueued: HashMap<String, (usize, Duration)>,
    /// Jobs that workers received, in order, each time that one was.
    pub received: Vec<Received>,
    /// Trips of the probe, in order.
    pub probes: Vec<Probe>,
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
pub struct Probe {
    /// When it was to begin.
    pub due: Duration,
    /// When its reply was read.
    pub back: Duration,
}

impl Records {
    /// An empty notebook; time counts from now.
    pub fn new() -> Records {
        Records {
            epoch: Instant::now(),
            pages: Arc::default(),
        }
    }

    /// The time now.
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// A moment of tokio's clock as a time of these records.
    pub fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }

    /// To read or write. Never kept over an await.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a failed call.
    pub fn trouble(&self, error: &anyhow::Error) {
        self.pages().trouble.push(format!("{error:#}"));
    }
}

impl Default for Records {
    fn default() -> Records {
        Records::new()
    }
}

impl Pages {
    /// Jobs of a stream that no worker has received yet.
    pub fn waiting(&self, stream: usize) -> usize {
        let count = self.count.get(stream).copied().unwrap_or_default();
        count.0.saturating_sub(count.1)
    }

    /// The longest that a delivery seen at `at` may have taken: as long as the slowest trip of the
    /// probe around that moment. The probe goes twice as far and shares thread and sockets, so what
    /// held up a delivery held up a trip.
    pub fn delay_at(&self, at: Duration) -> Duration {
        let from = self.probes.partition_point(|probe| probe.back + NEAR < at);
        let near = self.probes.iter().skip(from);
        near.take_while(|probe| probe.due <= at + NEAR)
            .map(|probe| probe.back.saturating_sub(probe.due))
            .fold(LEAST_DELAY, Duration::max)
    }

    /// The median, the 99th of a hundred, and the longest trip of the probe.
    pub fn trips(&self) -> [Duration; 3] {
        let mut trips: Vec<Duration> = self
            .probes
            .iter()
            .map(|probe| probe.back.saturating_sub(probe.due))
            .collect();
        trips.sort_unstable();
        let at = |percent: usize| {
            let nth = trips.len() * percent / 100;
            let nth = nth.min(trips.len().saturating_sub(1));
            trips.get(nth).copied().unwrap_or_default()
        };
        [at(50), at(99), at(100)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_took_at_most_as_long_as_the_probes_around_it() {
        let ms = Duration::from_millis;
        let probe = |due, back| Probe {
            due: ms(due),
            back: ms(back),
        };
        let pages = Pages {
            probes: vec![probe(0, 1), probe(20, 90), probe(100, 101), probe(200, 207)],
            ..Pages::default()
        };
        assert_eq!(pages.delay_at(ms(60)), ms(70), "inside the slow one");
        assert_eq!(pages.delay_at(ms(92)), ms(70), "just behind it");
        assert_eq!(pages.delay_at(ms(150)), ms(5), "away from it");
        assert_eq!(pages.delay_at(ms(203)), ms(7));
        assert_eq!(pages.trips(), [ms(7), ms(70), ms(70)]);
        assert_eq!(Pages::default().trips(), [Duration::ZERO; 3]);
    }
}
