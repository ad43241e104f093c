//! Edges: when a queue comes near its bound, is full, and is well again. What happens between two edges
//! is not said again, or a full queue would drown everything else.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::want::{Met, Resumes};

/// Those who listen hear that a queue refuses once in this time at most.
const AGAIN: Duration = Duration::from_secs(1);
/// A queue that crosses an edge there and back all the time has a line of the log for one of these times in so
/// long. That one is full while workers take jobs of it is the normal overload.
const QUIET: Duration = Duration::from_secs(10);
/// Of more keys and tenants of a queue than this only the last are remembered as refused by the log: their names come
/// from requests.
const MOST: usize = 32;

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

/// Where that an enqueue was refused is worth telling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// To those who listen.
    pub told: bool,
    /// In the log.
    pub loud: bool,
}

/// Whose enqueues were refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// Everybody's.
    All,
    /// Those of a key.
    Key(Arc<str>),
    /// Those of a tenant.
    Tenant(Arc<str>),
}

impl Whose {
    /// Whether an enqueue of these keys and tenants is one of these. Where jobs are told apart no more, each is.
    fn is_among(&self, keys: &[Arc<str>], tenants: &[Arc<str>]) -> bool {
        match self {
            Whose::All => true,
            Whose::Key(key) => keys.is_empty() || keys.contains(key),
            Whose::Tenant(tenant) => tenants.is_empty() || tenants.contains(tenant),
        }
    }
}

/// Where a queue stands between its edges.
#[derive(Clone, Default, Debug)]
pub struct Edges {
    above: bool,
    /// Whether the last warning was worth a line, and when one was.
    loud: bool,
    warned: Option<Instant>,
    /// That it refuses was told since an enqueue was accepted, and when, the last time.
    refusal: Last,
    /// That it takes nothing had a line of the log, and that it does not take some of what comes.
    all: Last,
    some: Last,
    /// Whose enqueues the log has as refused where no level of the queue will tell that this is over.
    refused: Vec<Whose>,
    /// Those of which it is to be said that this is over.
    over: Vec<Whose>,
}

/// Whether something was said since an enqueue was accepted, and when, the last time.
#[derive(Clone, Copy, Default, Debug)]
struct Last {
    said: bool,
    at: Option<Instant>,
}

impl Last {
    /// Whether it is worth saying at `now`, which says it: once until an enqueue is accepted, and once in so long.
    fn say(&mut self, now: Instant, again: Duration) -> bool {
        let is_quiet = |at| now.saturating_duration_since(at) >= again;
        let say = !self.said && self.at.is_none_or(is_quiet);
        if say {
            (self.said, self.at) = (true, Some(now));
        }
        say
    }
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

    /// An enqueue was refused at `now` by this bound, for its `key` or tenant if it has one; `ever`: it could fit at
    /// another time. Where that is worth telling.
    pub fn refused(&mut self, met: Met, key: Option<&Arc<str>>, ever: bool, now: Instant) -> Said {
        // Another tenant, another key or a smaller batch may fit.
        let line = match met {
            Met::Tenant | Met::Key => &mut self.some,
            _ if !ever => &mut self.some,
            _ => &mut self.all,
        };
        let loud = line.say(now, QUIET);
        let whose = match (met, key) {
            (Met::Age | Met::Wait, _) => Some(Whose::All),
            (Met::Key, Some(key)) => Some(Whose::Key(Arc::clone(key))),
            (Met::Tenant, Some(tenant)) => Some(Whose::Tenant(Arc::clone(tenant))),
            _ => None,
        };
        let anew = |whose: &Whose| loud && ever && !self.refused.contains(whose);
        if let Some(whose) = whose.filter(anew) {
            // Those that stay away must not keep out others.
            self.refused
                .drain(..(self.refused.len() + 1).saturating_sub(MOST));
            self.refused.push(whose);
        }
        let told = self.refusal.say(now, AGAIN);
        Said { told, loud }
    }

    /// An enqueue of jobs of these keys and tenants was accepted.
    pub fn accepted(&mut self, keys: &[Arc<str>], tenants: &[Arc<str>]) {
        let each = [&mut self.refusal, &mut self.all, &mut self.some];
        each.into_iter().for_each(|last| last.said = false);
        let accepted = |whose: &mut Whose| whose.is_among(keys, tenants);
        self.over.extend(self.refused.extract_if(.., accepted));
    }

    /// Whose enqueues are accepted again, where that is worth a line; once.
    pub fn over(&mut self) -> Vec<Whose> {
        std::mem::take(&mut self.over)
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

    /// When it accepts again, if it still refuses.
    pub(super) fn resumes(&mut self, used: u64, bound: u64, resume: f64) -> Option<Resumes> {
        let below = (bound as f64 * resume).ceil() as u64;
        self.still(used, bound, resume).then(|| Resumes {
            at: below.saturating_sub(1),
            threshold: resume,
        })
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
    fn a_full_queue_is_told_once_until_it_accepts() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let told = |edges: &mut Edges, ms| {
            let at = now + Duration::from_millis(ms);
            edges.refused(Met::Depth, None, true, at).told
        };
        assert!(told(&mut edges, 0));
        assert!(!told(&mut edges, 5_000));
        edges.accepted(&[], &[]);
        assert!(told(&mut edges, 5_100));
        edges.accepted(&[], &[]);
        assert!(!told(&mut edges, 5_200), "it flaps");
        assert!(told(&mut edges, 6_200), "it is full still");
        assert!(!told(&mut edges, 9_000));
    }

    #[test]
    fn a_queue_that_is_full_and_flaps_has_a_line_in_ten_seconds() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let loud = |edges: &mut Edges, second, met, ever| {
            let at = now + Duration::from_secs(second);
            edges.refused(met, None, ever, at).loud
        };
        let mut lines = Vec::new();
        for second in 0..25 {
            edges.accepted(&[], &[]);
            if loud(&mut edges, second, Met::Depth, true) {
                lines.push(second);
            }
        }
        assert_eq!(lines, [0, 10, 20]);
        assert!(loud(&mut edges, 30, Met::Depth, true), "it stays full");
        assert!(!loud(&mut edges, 60, Met::Depth, true), "it was said");
        assert!(loud(&mut edges, 60, Met::Tenant, true), "that was not");
        assert!(!loud(&mut edges, 90, Met::Depth, false), "nor do all fit");
        edges.accepted(&[], &[]);
        assert_eq!(edges.over(), [], "its level tells");
    }

    #[test]
    fn what_no_level_tells_is_said_to_be_over() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        assert!(edges.refused(Met::Age, None, true, now).loud);
        assert_eq!(edges.over(), []);
        edges.accepted(&[], &[]);
        assert_eq!((edges.over(), edges.over()), (vec![Whose::All], vec![]));
        let soon = now + Duration::from_secs(5);
        assert!(!edges.refused(Met::Wait, None, true, soon).loud);
        edges.accepted(&[], &[]);
        assert_eq!(edges.over(), [], "it was not said to be full");
    }

    #[test]
    fn what_is_over_for_some_is_over_when_one_of_theirs_is_accepted() {
        let (mut edges, now) = (Edges::default(), Instant::now());
        let [a, b]: [Arc<str>; 2] = ["a", "b"].map(Arc::from);
        let of = std::slice::from_ref;
        let refuse = |edges: &mut Edges, second, met, key: &Arc<str>, ever| {
            let at = now + Duration::from_secs(second);
            assert!(edges.refused(met, Some(key), ever, at).loud);
            edges.accepted(of(&b), of(&b));
        };
        refuse(&mut edges, 0, Met::Tenant, &a, true);
        refuse(&mut edges, 10, Met::Tenant, &a, true);
        assert_eq!(edges.over(), [], "another's");
        edges.accepted(of(&b), of(&a));
        assert_eq!(edges.over(), [Whose::Tenant(a.clone())], "once");
        refuse(&mut edges, 20, Met::Tenant, &a, false);
        edges.accepted(of(&b), of(&a));
        assert_eq!(edges.over(), [], "it never fits");
        refuse(&mut edges, 30, Met::Key, &a, true);
        edges.accepted(of(&b), of(&a));
        assert_eq!(edges.over(), [], "a tenant of that name");
        edges.accepted(&[], of(&b));
        assert_eq!(edges.over(), [Whose::Key(a)], "no key is told apart");
        for nth in 0..2 * MOST as u64 {
            let key = Arc::from(nth.to_string());
            refuse(&mut edges, 40 + nth * 10, Met::Tenant, &key, true);
        }
        assert_eq!(edges.refused.len(), MOST);
        assert_eq!(edges.refused[0], Whose::Tenant(MOST.to_string().into()));
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
