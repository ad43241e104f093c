//! The records of producers, workers, the probe and the vendor, written down as they see things. All times count from
//! the start of the demo.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Everybody's notebook; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Records {
    epoch: Instant,
    pages: Arc<Mutex<Pages>>,
}

/// The records. A stream is an index into those of the scene.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    /// Jobs that a producer got a 201 for, by id: stream and when.
    pub(super) enqueued: HashMap<String, (usize, Duration)>,
    /// Jobs that workers received, in order, each time that one was.
    pub(super) received: Vec<Received>,
    /// Trips of the probe, in order.
    pub(super) probes: Vec<ProbeTrip>,
    /// Enqueues that were answered 429.
    pub(super) refused: usize,
    /// Calls that failed otherwise, and the first of them.
    pub(super) failed: usize,
    pub(super) first_failed: Option<String>,
    /// What the vendor wrote down.
    pub(super) vendor: VendorRecord,
    /// Per stream: enqueued, received.
    counts: HashMap<usize, (usize, usize)>,
}

/// A job in the hands of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub(super) stream: usize,
    /// Its id, and the number that its producer gave it.
    pub(super) job: String,
    pub(super) nth: u64,
    /// When the worker had read the reply that brought it.
    pub(super) at: Duration,
    /// When the worker began to send the ACK.
    pub(super) done: Option<Duration>,
    /// Whether the ACK was accepted.
    pub(super) acked: bool,
}

/// One trip through the sidecar to the backend and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeTrip {
    /// When it left.
    pub(super) sent: Duration,
    /// When its reply was read.
    pub(super) back: Duration,
}

/// What the vendor wrote down. A ban is for good.
#[derive(Clone, Default, Debug)]
pub(super) struct VendorRecord {
    /// The calls, or tokens, that it allows in any [`VendorRecord::PERIOD`].
    pub(super) allowed: u64,
    /// When it answered, and what that call counts.
    pub(super) answered: Vec<(Duration, u64)>,
    pub(super) banned: Option<Duration>,
    pub(super) refused: usize,
}

impl Records {
    /// An empty notebook; time counts from now.
    pub(super) fn start() -> Records {
        Records {
            epoch: Instant::now(),
            pages: Arc::default(),
        }
    }

    /// The time now.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// To read or write. Never kept over an await.
    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }

    /// What came of a call. One that failed is noted.
    pub(super) fn heed<T>(&self, called: anyhow::Result<T>) -> Option<T> {
        let noted = called.inspect_err(|error| {
            let mut pages = self.pages();
            pages.failed += 1;
            pages
                .first_failed
                .get_or_insert_with(|| format!("{error:#}"));
        });
        noted.ok()
    }
}

impl Pages {
    /// A producer got a 201 for a job.
    pub(super) fn enqueue(&mut self, stream: usize, job: String, at: Duration) {
        self.enqueued.insert(job, (stream, at));
        self.counts.entry(stream).or_default().0 += 1;
    }

    /// A worker received a job.
    pub(super) fn receive(&mut self, received: Received) {
        self.counts.entry(received.stream).or_default().1 += 1;
        self.received.push(received);
    }

    /// How many jobs of a stream were enqueued, and how many of them no worker has received yet.
    pub(super) fn enqueued_and_waiting(&self, stream: usize) -> (usize, usize) {
        let (enqueued, received) = self.counts.get(&stream).copied().unwrap_or_default();
        (enqueued, enqueued.saturating_sub(received))
    }

    /// The earliest that a start may have been made which a worker saw at `seen`: when the last
    /// probe left that was back by then. Had the start been made before, then that probe left after
    /// it and was back before it, through the same thread and the same kind of sockets, on a way
    /// that is more than twice as long.
    pub(super) fn made(&self, seen: Duration) -> Duration {
        let back = self.probes.partition_point(|probe| probe.back <= seen);
        let last = back.checked_sub(1).and_then(|last| self.probes.get(last));
        last.map(|probe| probe.sent).unwrap_or_default()
    }
}

impl VendorRecord {
    pub(super) const PERIOD: Duration = Duration::from_secs(2);

    /// Answers a call that counts so much.
    pub(super) fn call(&mut self, now: Duration, counts: u64) -> StatusCode {
        if self.banned.is_none() && self.lately(now) + counts > self.allowed {
            self.banned = Some(now);
        }
        if self.banned.is_some() {
            self.refused += 1;
            return StatusCode::FORBIDDEN;
        }
        self.answered.push((now, counts));
        StatusCode::OK
    }

    /// What counts now.
    pub(super) fn lately(&self, now: Duration) -> u64 {
        let backwards = self.answered.iter().rev();
        let lately = backwards.take_while(|(at, _)| *at + VendorRecord::PERIOD > now);
        lately.map(|(_, counts)| counts).sum()
    }

    /// The hundredths of what is allowed that were used, from the first call to the last.
    pub(super) fn used(&self) -> u128 {
        let [(first, _), .., (last, _)] = &*self.answered else {
            return 0;
        };
        let time = last.saturating_sub(*first).as_micros().max(1);
        let more = self.answered.iter().skip(1);
        let counts = u128::from(more.map(|(_, counts)| counts).sum::<u64>());
        counts * VendorRecord::PERIOD.as_micros() * 100 / (time * u128::from(self.allowed.max(1)))
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

    #[test]
    fn the_vendor_bans_for_one_call_too_many_and_for_good() {
        let called = |calls: u64, each: u64| {
            let mut record = VendorRecord {
                allowed: 100,
                ..VendorRecord::default()
            };
            for nth in 0..calls {
                record.call(Duration::from_micros(nth * each), 1);
            }
            record
        };
        assert_eq!(called(500, 20_000).banned, None);
        let mut record = called(101, 19_999);
        assert_eq!(record.banned, Some(Duration::from_micros(1_999_900)));
        let later = record.call(Duration::from_secs(3600), 1);
        assert_eq!(later, StatusCode::FORBIDDEN);
        assert_eq!((record.answered.len(), record.refused), (100, 2));
    }
}
