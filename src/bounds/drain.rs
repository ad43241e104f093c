//! How fast a queue empties, from when jobs were seen to leave it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How far back departures count.
const MEMORY: Duration = Duration::from_secs(30);
/// Departures within this time of each other are one entry: a queue that empties at 10,000/s costs no
/// more than one at 10/s.
const GRAIN: Duration = Duration::from_millis(50);

/// Departures of the last 30 s.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    left: VecDeque<(Instant, u64)>,
}

impl Drain {
    /// Notes that `jobs` were seen to have left at `now`.
    pub fn note(&mut self, jobs: u64, now: Instant) {
        if jobs == 0 {
            return;
        }
        let is_old = |at: &Instant| now.saturating_duration_since(*at) > MEMORY;
        while self.left.front().is_some_and(|(at, _)| is_old(at)) {
            self.left.pop_front();
        }
        match self.left.back_mut() {
            Some((at, count)) if now.saturating_duration_since(*at) < GRAIN => *count += jobs,
            _ => self.left.push_back((now, jobs)),
        }
    }

    /// Jobs a second; `None`: fewer than two departures are known.
    ///
    /// What came with the first entry left before the time that is looked at, so it only marks where
    /// that time begins. A queue that has stopped slows down as soon as the next departure is overdue.
    pub fn rate(&self, now: Instant) -> Option<f64> {
        let recent = |entry: &&(Instant, u64)| now.saturating_duration_since(entry.0) <= MEMORY;
        let mut known = self.left.iter().filter(recent);
        let (begun, _) = known.next()?;
        let (mut jobs, mut last) = (0, *begun);
        for (at, count) in known {
            jobs += count;
            last = *at;
        }
        let span = last.saturating_duration_since(*begun).as_secs_f64();
        if jobs == 0 || span <= 0.0 {
            return None;
        }
        let jobs = jobs as f64;
        let silence = now.saturating_duration_since(*begun).as_secs_f64();
        // One more may be due: only when it is late does the silence count.
        Some((jobs / span).min((jobs + 1.0) / silence.max(span)))
    }

    /// The time until `places` more are free; `None`: nobody knows.
    pub fn time_for(&self, places: u64, now: Instant) -> Option<Duration> {
        let rate = self.rate(now)?;
        let (last, _) = self.left.back()?;
        let gone = now.saturating_duration_since(*last).as_secs_f64();
        // Some of the time since the last departure has passed already, but never all of it.
        let credit = gone.min(1.0 / rate);
        let time = places as f64 / rate - credit;
        Some(Duration::from_secs_f64(time.clamp(0.0, 1e6)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue that empties evenly, seen every `look` from the beginning on.
    fn even(per_second: f64, look: Duration, until: Duration) -> (Drain, Instant) {
        let begun = Instant::now();
        let (mut drain, mut seen, mut now) = (Drain::default(), 0, Duration::ZERO);
        while now < until {
            now += look;
            let left = (now.as_secs_f64() * per_second) as u64;
            drain.note(left - seen, begun + now);
            seen = left;
        }
        (drain, begun + now)
    }

    #[test]
    fn even_drains_are_told_within_a_quarter() {
        for per_second in [0.2, 1.0, 10.0, 400.0] {
            for look in [1, 100, 1_000, 3_700].map(Duration::from_millis) {
                let (drain, now) = even(per_second, look, Duration::from_secs(40));
                let told = drain.rate(now).unwrap();
                let off = (told / per_second - 1.0).abs();
                assert!(off < 0.25, "{per_second}/s seen every {look:?}: {told}/s");
            }
        }
    }

    #[test]
    fn the_time_for_some_places() {
        for (per_second, places) in [(1.0, 5), (1.0, 20), (10.0, 15), (10.0, 200)] {
            let (drain, now) = even(
                per_second,
                Duration::from_millis(10),
                Duration::from_secs(20),
            );
            let told = drain.time_for(places, now).unwrap().as_secs_f64();
            let true_time = places as f64 / per_second;
            let off = (told / true_time - 1.0).abs();
            assert!(off < 0.25, "{places} places at {per_second}/s: {told} s");
        }
    }

    #[test]
    fn a_queue_that_stops_slows_down_and_is_forgotten() {
        let (drain, now) = even(10.0, Duration::from_millis(100), Duration::from_secs(5));
        let after = |secs| drain.rate(now + Duration::from_secs(secs));
        assert!(after(0).unwrap() > 9.0);
        assert!(after(5).unwrap() < 6.0);
        assert!(after(20).unwrap() < 2.5);
        assert_eq!(after(31), None);
    }

    #[test]
    fn one_departure_tells_nothing() {
        let (mut drain, now) = (Drain::default(), Instant::now());
        assert_eq!(drain.time_for(1, now), None);
        drain.note(5, now);
        assert_eq!(drain.rate(now + Duration::from_secs(1)), None);
    }
}
