//! Edges: a queue comes near its bound, is full, and has room again. Between two edges the log has nothing again, or
//! the lines of a full queue would hide all others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::want::{BoundMet, Crossed, Edge, Full};

/// The least time between two lines of the log about the same edge. A queue that is full while workers take its jobs
/// crosses it all the time, and that is the normal overload.
const LOG_GAP: Duration = Duration::from_secs(10);

/// The last enqueue that was refused although the queue was not full: by a bound of a part of its jobs (of a tenant, of a
/// key, or of a time), or because it needed more than was left.
#[derive(Clone, Debug)]
pub struct LastRefusal {
    /// Which bound.
    pub met: BoundMet,
    /// The tenant or the key.
    pub key: Option<Arc<str>>,
    /// Whether it could ever fit.
    pub may_ever_fit: bool,
    /// What the producer was told.
    pub why: Arc<str>,
    /// When.
    pub at: Instant,
}

impl LastRefusal {
    /// It is shown for so long.
    const SHOWN: Duration = Duration::from_secs(60);

    /// `None`: how full the queue is says it all.
    pub(super) fn of(full: &Full, why: &str, at: Instant) -> Option<LastRefusal> {
        (!full.is_of_queue() || full.depth < full.bound).then(|| LastRefusal {
            met: full.met,
            key: full.key.clone(),
            may_ever_fit: full.may_ever_fit(),
            why: Arc::from(why),
            at,
        })
    }

    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < LastRefusal::SHOWN
    }
}

/// Where a queue stands between its edges.
#[derive(Clone, Default, Debug)]
pub struct QueueEdges {
    above: bool,
    /// Whether the last warning was worth a line, and when one was.
    loud: bool,
    warned: Option<Instant>,
    /// The last lines of the log that it refuses all enqueues, or some.
    all: LastSaid,
    some: LastSaid,
}

/// Whether something was said since the last enqueue was accepted, and when it was said last.
#[derive(Clone, Copy, Default, Debug)]
struct LastSaid {
    said: bool,
    at: Option<Instant>,
}

impl LastSaid {
    /// Notes that it is said at `now`, if that is due. It is due once until an enqueue is accepted, and not within
    /// [`LOG_GAP`] of the last time.
    fn say(&mut self, now: Instant) -> bool {
        let say = !self.said && is_due(&mut self.at, LOG_GAP, now);
        self.said |= say;
        say
    }
}

/// Whether the last time is so long ago; then the last time is now.
fn is_due(last: &mut Option<Instant>, gap: Duration, now: Instant) -> bool {
    let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= gap);
    if is_due {
        *last = Some(now);
    }
    is_due
}

impl QueueEdges {
    /// Notes the depth. Returns the edge that it crosses; the time is only asked for then.
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
            self.loud = is_due(&mut self.warned, LOG_GAP, now());
        }
        let loud = self.loud;
        (anew || loud).then_some(Crossed { edge, anew, loud })
    }

    /// Whether the last depth was at the threshold or beyond.
    pub fn is_above(&self) -> bool {
        self.above
    }

    /// Notes that an enqueue was refused. Returns whether the log has a line of it.
    pub fn refused(&mut self, full: &Full, now: Instant) -> bool {
        // Another tenant, another key or a smaller batch may fit.
        let line = match full.met {
            BoundMet::Tenant | BoundMet::Key => &mut self.some,
            _ if !full.may_ever_fit() => &mut self.some,
            _ => &mut self.all,
        };
        line.say(now)
    }

    /// Notes that an enqueue was accepted.
    pub fn accepted(&mut self) {
        (self.all.said, self.some.said) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::OverflowStrategy;
    use super::*;

    fn full(met: BoundMet, wanted: u64) -> Full {
        Full {
            queue: "q".into(),
            met,
            depth: 1,
            bound: 1,
            period: None,
            wanted,
            strategy: OverflowStrategy::Reject,
            after: None,
            drain: None,
            key: None,
        }
    }

    #[test]
    fn a_threshold_is_crossed_once_each_way() {
        let (mut edges, now) = (QueueEdges::default(), Instant::now());
        let said: Vec<_> = [0, 7, 8, 9, 10, 8, 7, 8, 0]
            .into_iter()
            .map(|depth| edges.at(depth, 10, 0.8, || now))
            .map(|crossed| crossed.map(|crossed| crossed.edge))
            .collect();
        let (up, down) = (Some(Edge::Warning), Some(Edge::Cleared));
        assert_eq!(said, [None, None, up, None, None, None, down, up, down]);
        assert_eq!(
            QueueEdges::default().at(0, 10, 0.0, || now),
            None,
            "an empty queue is well"
        );
    }

    #[test]
    fn a_queue_that_comes_and_goes_is_a_pair_of_lines_in_ten_seconds() {
        let (mut edges, now) = (QueueEdges::default(), Instant::now());
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
    fn a_queue_that_is_full_and_flaps_has_a_line_in_ten_seconds() {
        let (mut edges, now) = (QueueEdges::default(), Instant::now());
        let loud = |edges: &mut QueueEdges, second, met, wanted| {
            let at = now + Duration::from_secs(second);
            edges.refused(&full(met, wanted), at)
        };
        let mut lines = Vec::new();
        for second in 0..25 {
            edges.accepted();
            if loud(&mut edges, second, BoundMet::Depth, 1) {
                lines.push(second);
            }
        }
        assert_eq!(lines, [0, 10, 20]);
        assert!(loud(&mut edges, 30, BoundMet::Depth, 1), "it stays full");
        assert!(!loud(&mut edges, 60, BoundMet::Depth, 1), "it was said");
        assert!(loud(&mut edges, 60, BoundMet::Tenant, 1), "that was not");
        assert!(!loud(&mut edges, 90, BoundMet::Depth, 2), "nor do all fit");
    }
}
