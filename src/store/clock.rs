//! The clock of a store that has none of its own, and what is known of the one of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use ojs_limit::Timestamp;

/// Wall time that does not step.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    /// Runs on tokio's monotonic clock, and stands still with paused time.
    Running { base: Instant, unix_base: Timestamp },
    /// Moved by hand.
    Given(Arc<AtomicU64>),
}

impl Clock {
    /// A clock on which it is `unix_micros` microseconds since the Unix epoch now.
    pub fn new(unix_micros: u64) -> Clock {
        Clock(ClockSource::Running {
            base: Instant::now(),
            unix_base: Timestamp(unix_micros),
        })
    }

    /// A clock that shows what is written there, for tests over real sockets, where time cannot be
    /// paused. A store that is elsewhere goes by it instead of its server's. It must not be set back.
    pub fn given(micros: Arc<AtomicU64>) -> Clock {
        Clock(ClockSource::Given(micros))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The time at a moment; one that is moved by hand shows what it shows now.
    pub fn at(&self, moment: Instant) -> Timestamp {
        match &self.0 {
            ClockSource::Running { base, unix_base } => {
                let since = moment.saturating_duration_since(*base);
                unix_base.plus(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
            }
            ClockSource::Given(micros) => Timestamp(micros.load(Ordering::Acquire)),
        }
    }
}

/// Asks a server its time so many times: how long each call took, the quickest first, and by how many microseconds its
/// clock is ahead of ours, as the quickest says it.
pub(super) async fn compare<E>(
    own: &Clock,
    calls: usize,
    mut ask: impl AsyncFnMut() -> Result<i64, E>,
) -> Result<(Vec<Duration>, i64), E> {
    let (mut trips, mut ahead) = (Vec::new(), 0);
    for _ in 0..calls {
        let sent = Instant::now();
        let there = ask().await?;
        let (trip, here) = (sent.elapsed(), own.now().0.cast_signed());
        if trips.iter().all(|known| trip < *known) {
            ahead = there + i64::try_from(trip.as_micros() / 2).unwrap_or(0) - here;
        }
        trips.push(trip);
    }
    trips.sort_unstable();
    Ok((trips, ahead))
}

/// The server's clock, as far as it is known from its answers.
///
/// Limits hold over a fleet only if all sidecars speak of one time, so the store stamps each start by its own clock, and
/// a sidecar merely guesses what that clock shows between two answers. Each sidecar could stamp its starts itself, and a
/// call would need no time in its answer; but then a host whose clock is a second ahead would start a second early in
/// every window of the fleet. Nobody would notice that, while a guess that is a little off costs one more question.
pub(super) struct ServerClock {
    /// What the server is told to go by, in tests.
    pub(super) given: Option<Clock>,
    pub(super) own: Clock,
    /// Microseconds from ours to the server's.
    ahead: AtomicI64,
    /// How sure that is: the round trip of the answer it is from, and when that was.
    sure: Mutex<Option<(Duration, Instant)>>,
    /// Microseconds from the clock of the server's host to the server's time; below zero: it has not said.
    set_back: AtomicI64,
}

impl ServerClock {
    /// `own` is this host's, for the time before the first answer.
    pub(super) fn new(own: Clock) -> ServerClock {
        ServerClock {
            given: matches!(own.0, ClockSource::Given(_)).then(|| own.clone()),
            own,
            ahead: AtomicI64::new(0),
            sure: Mutex::default(),
            set_back: AtomicI64::new(-1),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    pub(super) fn at(&self, moment: Instant) -> Timestamp {
        let own = self.own.at(moment).0;
        Timestamp(own.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    /// How far [`ServerClock::at`] may be from the server's, in microseconds: half the round trip of the
    /// answer that it is from. `u64::MAX`: there was none yet.
    pub(super) fn doubt(&self) -> u64 {
        if self.given.is_some() {
            return 0;
        }
        let sure = self.sure.lock();
        let trip = sure.map(|(trip, _)| u64::try_from(trip.as_micros()).unwrap_or(u64::MAX));
        trip.map_or(u64::MAX, |trip| trip.div_ceil(2))
    }

    /// The server said `now` in an answer to something sent at `sent`: in between, as far as we know in
    /// the middle. The quickest of the last answers says it best.
    pub(super) fn told(&self, now: Timestamp, sent: Instant) {
        if let Some(given) = &self.given {
            // It can only have been set back; what we have moved it by since is nothing new.
            let ahead = now.since(given.now());
            self.ahead.store(ahead.cast_signed(), Ordering::Relaxed);
            return;
        }
        let trip = sent.elapsed();
        let mut sure = self.sure.lock();
        let there = now.0.cast_signed() + i64::try_from(trip.as_micros() / 2).unwrap_or(0);
        let ahead = there - self.own.now().0.cast_signed();
        let off = ahead.abs_diff(self.ahead.load(Ordering::Relaxed));
        let stands = sure.is_some_and(|(known, at)| {
            // Unless its clock was set meanwhile: that is not possible otherwise.
            let possible = u128::from(off) <= (known + trip).as_micros();
            known < trip && possible && at.elapsed() < Duration::from_secs(10)
        });
        if !stands {
            *sure = Some((trip, Instant::now()));
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// The server said by how much, in microseconds, its time is ahead of its host's clock, which was set back.
    pub(super) fn is_ahead(&self, micros: u64) {
        let known = self.set_back.swap(micros.cast_signed(), Ordering::Relaxed);
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        let ahead = seconds(micros);
        match u64::try_from(known) {
            Ok(known) if micros > known => tracing::warn!(
                id = %"store_clock_set_back",
                "the clock of the store's server was set back by {:.1} s: limits go on from where their time was, \
                 which is {ahead:.1} s ahead of that clock from now on",
                seconds(micros - known)
            ),
            Err(_) if micros > 0 => tracing::warn!(
                id = %"store_clock_behind",
                "the clock of the store's server was set back earlier: the time of limits is {ahead:.1} s ahead of it"
            ),
            _ => {}
        }
    }
}
