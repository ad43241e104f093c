//! The numbers of a limit: slots, windows and spacing.

use std::num::{NonZeroU32, NonZeroU64};

use super::calendar::{Edges, Unit, Zone};
use super::time::Timestamp;

/// At most `limit` starts in a window. Usage lies under (key, period, kind of window); the limit is
/// not part of that, so a changed one finds the starts that were.
///
/// In a store: a sliding window is its starts (see [`Window`](crate::Window)). A fixed or calendar one is `ends` (the
/// window's, in microseconds), `count` and `next`, which are all 0 at first. To ask or take at `now`:
///
/// 1. At `now >= ends`, the window of `now` ([`WindowKind::edges`]) takes its place: its `count` is
///    `next` if it begins at the old `ends`, else 0; its `next` is 0.
/// 2. A start is refused when `count >= limit`. The time to come back is `ends`, or the end of the
///    window after that if `next >= limit`.
/// 3. A start that counts at `at` adds 1 to `count`, and to `next` too when `at + EARLY >= ends`.
/// 4. One that is undone takes from both what it added, if that window is still there.
///
/// A store with a clock of its own is given the edges of the windows around the time that its caller
/// expects: that one, the one before, and two after.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    /// The most starts in one window.
    pub limit: NonZeroU32,
    /// The window's length in microseconds; the longest that it can have, for a calendar window.
    pub period: NonZeroU64,
    /// Where windows begin and end.
    pub window: WindowKind,
}

impl Rate {
    /// Whether both are one window of a key.
    pub fn is_like(&self, other: &Rate) -> bool {
        (self.period, &self.window) == (other.period, &other.window)
    }
}

/// In microseconds.
const HOUR: u64 = 3_600_000_000;

/// Where windows begin and end.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum WindowKind {
    /// Every interval of the period's length is one. The default, and the only one that is kept across
    /// all edges.
    #[default]
    Sliding,
    /// One after the other, at multiples of the period since 1970 (UTC).
    Fixed,
    /// Those of a calendar on the wall.
    Calendar(Unit, Zone),
}

impl WindowKind {
    /// The window of `period` microseconds around `now`; `None` for a sliding one.
    pub fn edges(&self, period: u64, now: Timestamp) -> Option<Edges> {
        match self {
            WindowKind::Sliding => None,
            WindowKind::Fixed => Some(Edges::fixed(period, now)),
            WindowKind::Calendar(unit, zone) => Some(Edges::calendar(*unit, zone, now)),
        }
    }

    /// The longest time that a window of `period` microseconds may last: a calendar's has an hour more where
    /// clocks go back in it.
    pub fn longest(&self, period: u64) -> u64 {
        match self {
            WindowKind::Sliding | WindowKind::Fixed => period,
            WindowKind::Calendar(..) => period + HOUR,
        }
    }

    /// All that tells it from other kinds, for stores: `""`, `fixed`, `P1D Europe/Oslo`.
    pub fn code(&self) -> String {
        match self {
            WindowKind::Sliding => String::new(),
            WindowKind::Fixed => "fixed".to_owned(),
            WindowKind::Calendar(unit, zone) => format!("{} {}", unit.iso(), zone.name()),
        }
    }

    /// The kind of a [`WindowKind::code`].
    pub fn of_code(code: &str) -> Option<WindowKind> {
        match code {
            "" => return Some(WindowKind::Sliding),
            "fixed" => return Some(WindowKind::Fixed),
            _ => {}
        }
        let (unit, zone) = code.split_once(' ')?;
        let unit = Unit::ALL.into_iter().find(|known| known.iso() == unit)?;
        Some(WindowKind::Calendar(unit, Zone::new(zone).ok()?))
    }

    /// Its name in settings and bodies.
    pub fn as_str(&self) -> &'static str {
        match self {
            WindowKind::Sliding => "sliding",
            WindowKind::Fixed => "fixed",
            WindowKind::Calendar(..) => "calendar",
        }
    }
}

/// Even spacing: `limit` starts in `period` microseconds, `period / limit` apart; `burst` of them
/// may come at once (1 unless said otherwise).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Throttle {
    /// Starts in one period.
    pub limit: NonZeroU32,
    /// The period in microseconds.
    pub period: NonZeroU64,
    /// Starts that may come at once after a pause.
    pub burst: NonZeroU32,
    /// Whether the time in which a job runs counts towards the wait for the next start.
    pub measure: Measure,
}

impl Throttle {
    /// Whether it has no more than a limit and a period.
    pub fn is_plain(&self) -> bool {
        self.burst.get() == 1 && self.measure == Measure::Start
    }
}

/// What the spacing of a throttle is measured by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Measure {
    /// From start to start. The default.
    #[default]
    Start,
    /// When a job ends, what is left of the wait for the next start is shortened by as long as the job
    /// has run: a job that took 0.3 s of an interval of 1 s leaves 0.7 s from start to start. Any n + 1
    /// consecutive starts then span at least n intervals less the running times of the jobs that ended
    /// meanwhile.
    Completion,
}

/// The longest time in nanoseconds in which a burst may be earned back: 2^61, some 73 years. A
/// time of ours (below 2^62), a burst and one more interval then fit into 64 bits, which `governor`
/// does not check.
pub(super) const LONGEST: u64 = 1 << 61;

impl Throttle {
    /// Whether a whole burst is earned back within about 73 years. Beyond that the arithmetic in
    /// nanoseconds would not fit; a throttle that is longer is held to that span instead.
    pub fn fits(&self) -> bool {
        let exact = u128::from(self.period.get()) * 1000 * u128::from(self.burst.get());
        exact.div_ceil(u128::from(self.limit.get())) <= u128::from(LONGEST)
    }
}

/// The limits that one job brings to one key. Absent means: not limited in that way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Limits {
    /// The most slots taken at once; 0 pauses the key.
    pub concurrency: Option<u32>,
    /// Windows; each period has its own count.
    pub rates: Vec<Rate>,
    /// Spacing.
    pub throttle: Option<Throttle>,
}

impl Limits {
    /// Whether some of them count starts by time: a window or spacing.
    pub fn counts_time(&self) -> bool {
        !self.rates.is_empty() || self.throttle.is_some()
    }

    /// Whether one of these allows less than its like in `other`, which is never reached beside it.
    pub fn is_less(&self, other: &Limits) -> bool {
        let mut rates = (self.rates.iter())
            .flat_map(|rate| other.rates.iter().map(move |other| (rate, other)))
            .filter(|(rate, other)| rate.is_like(other));
        let slots = self.concurrency.zip(other.concurrency);
        slots.is_some_and(|(slots, other)| slots < other)
            || rates.any(|(rate, other)| rate.limit < other.limit)
    }
}

/// What happens to a job that may not start (rate-limiting text, section 6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum OnLimit {
    /// It waits, and starts when the limit allows. The default.
    #[default]
    Wait,
    /// It is shown as `scheduled` until then.
    Reschedule,
    /// It is discarded.
    Drop,
}
