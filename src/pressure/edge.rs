//! Edges: when a queue comes near its bound, is full, and is well again. What happens between two edges
//! is not said again, or a full queue would drown everything else.

use std::time::Duration;

use tokio::time::Instant;

/// A queue that is refused over and over is said to be full once in this time at most.
const AGAIN: Duration = Duration::from_secs(1);
/// One that comes near its bound and goes again all the time has a line of the log for one of these times in so
/// long; those who listen are told of each.
const QUIET: Duration = Duration::from_secs(10);

/// What is worth saying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// The depth has come to the warning threshold.
    Warning,
    /// It is below it again.
    Cleared,
}

/// An edge that was crossed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossed {
    /// Which.
    pub edge: Edge,
    /// Whether that was just now. Else it has stayed there so long that it is worth a line after all.
    pub anew: bool,
    /// Whether it is worth a line of the log; a warning is if what clears it will be.
    pub loud: bool,
}

/// Where a queue stands between its edges.
#[derive(Clone, Copy, Default, Debug)]
pub struct Edges {
    above: bool,
    /// Whether the last warning was worth a line, and when one was.
    loud: bool,
    warned: Option<Instant>,
    /// That it refuses was said since an enqueue was accepted, and when, the last time.
    refused: bool,
    said: Option<Instant>,
}

impl Edges {
    /// The depth is `depth` of `bound`, at a time that is only asked for if that crosses an edge.
    pub fn at(
        &mut self,
        depth: u64,
        bound: u64,
        threshold: f64,
        now: impl FnOnce() -> Instant,
    ) -> Option<Crossed> {
        let above = depth > 0 && depth as f64 >= bound as f64 * threshold;
        let was = std::mem::replace(&mut self.above, above);
        let (edge, anew) = match (was, above) {
            (false, true) => (Edge::Warning, true),
            (true, false) => (Edge::Cleared, true),
            (true, true) if !self.loud => (Edge::Warning, false),
            _ => return None,
        };
        if edge == Edge::Warning {
            let now = now();
            let is_quiet = |warned| now.saturating_duration_since(warned) >= QUIET;
            self.loud = self.warned.is_none_or(is_quiet);
            if self.loud {
                self.warned = Some(now);
            }
        }
        let loud = self.loud;
        (anew || loud).then_some(Crossed { edge, anew, loud })
    }

    /// Whether the last depth was at the threshold or beyond.
    pub fn is_above(&self) -> bool {
        self.above
    }

    /// An enqueue was refused at `now`; whether that is worth saying: none was said since one was accepted.
    pub fn refused(&mut self, now: Instant) -> bool {
        let quiet = self
            .said
            .is_none_or(|said| now.saturating_duration_since(said) >= AGAIN);
        let say = !self.refused && quiet;
        if say {
            (self.refused, self.said) = (true, Some(now));
        }
        say
    }

    /// An enqueue was accepted.
    pub fn accepted(&mut self) {
        self.refused = false;
    }
}

/// Whether a queue that was full by one of its bounds has not come below its resume threshold since.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Shut(bool);

impl Shut {
    /// It is full: not one more job fits.
    pub(super) fn shut(&mut self) {
        self.0 = true;
    }

    /// Whether it still refuses, with `used` of `bound` and `resume` the fraction below which it accepts
    /// again: 1 is at once, 0 when it is empty.
    pub(super) fn still(&mut self, used: u64, bound: u64, resume: f64) -> bool {
        let below = used == 0 || (used as f64) < bound as f64 * resume;
        self.0 &= resume < 1.0 && !below;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_crossed_once_each_way() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let said: Vec<_> = [0, 7, 8, 9, 10, 8, 7, 8, 0]
            .into_iter()
            .map(|depth| edges.at(depth, 10, 0.8, || now))
            .map(|crossed| crossed.map(|crossed| crossed.edge))
            .collect();
        let (up, down) = (Some(Edge::Warning), Some(Edge::Cleared));
        assert_eq!(said, [None, None, up, None, None, None, down, up, down]);
        assert_eq!(
            Edges::default().at(0, 10, 0.0, || now),
            None,
            "an empty queue is well"
        );
    }

    #[test]
    fn a_queue_that_comes_and_goes_is_a_pair_of_lines_in_ten_seconds() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let mut loud = |second: u64, depth: u64| {
            let now = || now + Duration::from_secs(second);
            edges.at(depth, 10, 0.8, now).unwrap().loud
        };
        let seconds = [(0, 1), (2, 3), (5, 9), (10, 30), (31, 32)];
        let lines = seconds.map(|(up, down)| (loud(up, 8), loud(down, 7)));
        let (both, none) = ((true, true), (false, false));
        assert_eq!(lines, [both, none, none, both, both]);

        // One that stays is told of after all, once.
        let mut at = |second: u64| {
            let now = || now + Duration::from_secs(second);
            edges
                .at(8, 10, 0.8, now)
                .map(|crossed| (crossed.anew, crossed.loud))
        };
        let told = [33, 40, 41, 42].map(&mut at);
        assert_eq!(told, [Some((true, false)), None, Some((false, true)), None]);
    }

    #[test]
    fn a_full_queue_is_said_once_until_it_accepts() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(edges.refused(at(0)));
        assert!(!edges.refused(at(5_000)));
        edges.accepted();
        assert!(edges.refused(at(5_100)));
        edges.accepted();
        assert!(!edges.refused(at(5_200)), "it flaps");
        assert!(edges.refused(at(6_200)), "it is full still");
        assert!(!edges.refused(at(9_000)));
    }

    #[test]
    fn it_resumes_below_its_threshold_only() {
        let mut shut = Shut::default();
        assert!(!shut.still(10, 10, 0.5));
        shut.shut();
        assert!(shut.still(6, 10, 0.5));
        assert!(!shut.still(4, 10, 0.5));
        assert!(!shut.still(9, 10, 0.5), "until it is full again");
        shut.shut();
        assert!(!shut.still(10, 10, 1.0), "off");
        shut.shut();
        assert!(shut.still(1, 10, 0.0));
        assert!(!shut.still(0, 10, 0.0), "empty");
    }
}
