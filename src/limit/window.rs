//! A sliding window over one key's starts.

use super::packed::{PackedReader, Writer};
use super::ring::Ring;
use super::time::{EARLY, Timestamp};

/// The most starts that are kept one by one.
const EXACT: usize = 128;

/// The starts of one key that count towards windows of one `period`.
///
/// No limit is kept: each question brings its own number. A start counts for the period and
/// [`EARLY`], because a hand-out may come that much after its decision. Up to 128 starts are kept
/// as they are; when more count at once, or one that costs more than 1, by sub-window (see [`Window::is_exact`]),
/// until none is left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    period: u64,
    starts: Starts,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Starts {
    /// Every start, oldest first; some may have left.
    Each(Vec<Timestamp>),
    Many(Box<Ring>),
}

impl Window {
    /// An empty window of `period` microseconds.
    pub fn new(period: u64) -> Window {
        Window {
            period,
            starts: Starts::Each(Vec::new()),
        }
    }

    /// The window's length in microseconds.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Whether every start is kept as it was. If not, starts count up to 1 % of the period longer.
    pub fn is_exact(&self) -> bool {
        matches!(self.starts, Starts::Each(_))
    }

    /// Its body, without the period.
    pub(super) fn pack(&self, to: &mut Writer) {
        match &self.starts {
            Starts::Each(log) => log.iter().for_each(|start| to.time(*start)),
            Starts::Many(ring) => ring.pack(to),
        }
    }

    pub(super) fn unpack(
        period: u64,
        is_exact: bool,
        from: &mut PackedReader<'_>,
    ) -> Option<Window> {
        let starts = if is_exact {
            let mut log = Vec::with_capacity(from.0.len() / 7);
            while !from.0.is_empty() {
                log.push(from.time()?);
            }
            Starts::Each(log)
        } else {
            Starts::Many(Box::new(Ring::unpack(period, from)?))
        };
        Some(Window { period, starts })
    }

    /// What the starts that count at `now` cost.
    pub fn count(&self, now: Timestamp) -> u32 {
        match &self.starts {
            // At most EXACT.
            Starts::Each(log) => (log.len() - self.gone(log, now)) as u32,
            Starts::Many(ring) => ring.count(now),
        }
    }

    /// When the start with `nth` older ones beside it at `now` leaves the window, each taken as often as it costs.
    pub fn leaves(&self, nth: u32, now: Timestamp) -> Option<Timestamp> {
        match &self.starts {
            Starts::Each(log) => {
                let start = log.get(self.gone(log, now) + nth as usize)?;
                Some(start.plus(self.keep()))
            }
            Starts::Many(ring) => ring.leaves(nth, now),
        }
    }

    /// The time from which a window of `limit` starts has a free place, if it has none at `now`. What asks for more
    /// than one place brings a limit that is so much lower.
    pub fn opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        let count = self.count(now);
        self.leaves(count.checked_sub(limit)?, now)
    }

    /// The last start that is known, to tell which window has been idle for longest.
    pub fn newest(&self) -> Timestamp {
        match &self.starts {
            Starts::Each(log) => log.last().copied().unwrap_or_default(),
            // Busy windows are not compared.
            Starts::Many(_) => Timestamp::NEVER,
        }
    }

    /// Counts a start of this cost at `at`.
    pub fn add(&mut self, at: Timestamp, cost: u32, now: Timestamp) {
        if let Starts::Many(ring) = &mut self.starts
            && ring.forget(now) == 0
        {
            self.starts = Starts::Each(Vec::new());
        }
        let gone = match &self.starts {
            Starts::Each(log) if log.len() == log.capacity().min(EXACT) => self.gone(log, now),
            _ => 0,
        };
        match &mut self.starts {
            Starts::Many(ring) => ring.add(at, cost),
            Starts::Each(_) if cost > 1 => self.add_to_ring(at, cost, now),
            Starts::Each(log) => {
                log.drain(..gone);
                match log.len() {
                    // Most keys have one start in a window, and there may be a million keys.
                    0 => log.reserve_exact(1),
                    EXACT => return self.add_to_ring(at, cost, now),
                    _ => {}
                }
                let place = match log.last() {
                    Some(newest) if *newest > at => log.partition_point(|start| *start <= at),
                    _ => log.len(),
                };
                log.insert(place, at);
            }
        }
    }

    /// Uncounts so much of a start at `at`, the newest or not, if it is there still.
    pub fn remove(&mut self, at: Timestamp, cost: u32) {
        match &mut self.starts {
            Starts::Many(ring) => ring.remove(at, cost),
            Starts::Each(log) => {
                if let Ok(place) = log.binary_search(&at) {
                    log.remove(place);
                }
            }
        }
    }

    /// Moves the starts from the log to a ring, and counts one more.
    fn add_to_ring(&mut self, at: Timestamp, cost: u32, now: Timestamp) {
        let Starts::Each(log) = &self.starts else {
            return;
        };
        let first = log.first().copied().unwrap_or(at);
        let mut ring = Box::new(Ring::new(self.period, first));
        for start in log {
            ring.add(*start, 1);
        }
        ring.forget(now);
        ring.add(at, cost);
        self.starts = Starts::Many(ring);
    }

    /// How many of the log have left by `now`.
    fn gone(&self, log: &[Timestamp], now: Timestamp) -> usize {
        match log.first() {
            Some(first) if first.plus(self.keep()) <= now => {
                log.partition_point(|start| start.plus(self.keep()) <= now)
            }
            _ => 0,
        }
    }

    fn keep(&self) -> u64 {
        self.period.saturating_add(EARLY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp(1_800_000_000_000_000);
    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_start_counts_for_the_period_and_five_milliseconds() {
        let mut window = Window::new(SECOND);
        window.add(T, 1, T);
        assert_eq!(window.opens(1, T), Some(T.plus(1_005_000)));
        assert_eq!(window.opens(2, T), None);
        assert_eq!(window.count(T.plus(1_004_999)), 1);
        assert_eq!(window.count(T.plus(1_005_000)), 0);
        assert_eq!(window.opens(1, T.plus(1_005_000)), None);
    }

    #[test]
    fn a_lowered_limit_waits_for_as_many_as_are_too_many() {
        let mut window = Window::new(SECOND);
        for n in 0..5 {
            window.add(T.plus(n), 1, T.plus(n));
        }
        assert_eq!(window.opens(2, T.plus(5)), Some(T.plus(1_005_003)));
    }

    #[test]
    fn starts_out_of_order_are_kept_in_order() {
        let mut window = Window::new(SECOND);
        window.add(T.plus(5_000), 1, T);
        window.add(T, 1, T);
        assert_eq!(window.opens(2, T), Some(T.plus(1_005_000)));
        window.remove(T.plus(1), 1);
        assert_eq!(window.count(T), 2, "there was none");
        window.remove(T, 1);
        assert_eq!(window.opens(1, T), Some(T.plus(1_010_000)));
    }

    #[test]
    fn many_starts_become_a_ring_and_an_idle_ring_a_log() {
        let mut window = Window::new(SECOND);
        for n in 0..128 {
            window.add(T.plus(n), 1, T.plus(n));
        }
        assert!(window.is_exact());
        window.add(T.plus(200), 1, T.plus(200));
        assert!(!window.is_exact());
        assert_eq!(window.count(T.plus(200)), 129);
        let opens = window.opens(129, T.plus(200)).unwrap();
        assert!(opens >= T.plus(1_005_000) && opens <= T.plus(1_015_000));
        assert_eq!(window.count(T.plus(3 * SECOND)), 0);
        window.add(T.plus(3 * SECOND), 1, T.plus(3 * SECOND));
        assert!(window.is_exact());
        assert_eq!(window.count(T.plus(3 * SECOND)), 1);
    }

    #[test]
    fn a_steady_log_does_not_grow() {
        let mut window = Window::new(SECOND);
        for n in 0..100_000 {
            let at = T.plus(n * 10_000);
            window.add(at, 1, at);
        }
        assert!(
            window.is_exact(),
            "a hundred a second never count 128 at once"
        );
    }
}
