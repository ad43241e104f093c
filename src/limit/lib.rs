//! The limiter core: what a key's limits are, and the one step that asks all of them before it
//! takes from any. Pure: time is a number that is passed in, nothing here waits, locks or does I/O.
//!
//! The words are those of the OJS rate-limiting text: a **start** is the moment a job goes to a
//! worker, a **slot** is a start that has not ended, `rate` is a window, `throttle` is even spacing
//! (GCRA, by `governor`).

mod block;
mod calendar;
mod cost;
mod fingerprint;
mod pace;
mod packed;
mod reserve;
mod ring;
mod shares;
mod state;
mod window;
mod windows;

pub use calendar::{Edges, Unit, UnknownZone, Zone};
pub use cost::{Cost, CostRule, Served, Share, is_priced, most_paid, share_of};
pub use fingerprint::fingerprint;
pub use pace::Pace;
pub use reserve::{Reserved, Turn};
pub use shares::Shares;
pub use state::{KeyState, Undo, each_window};
pub use window::Window;
pub use windows::MOST as MOST_WINDOWS;

use std::borrow::Cow;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

/// How much earlier than its time a spaced start may leave, and how much longer than its period a
/// window keeps a start, in microseconds: timers wake a little late, and without this a limit of
/// 1,000/s would lose half of itself.
pub const EARLY: u64 = 5_000;

/// How long a job that needs more room than there is stays first in line, in microseconds: workers poll every second
/// or two, and each of them that asks for it keeps its place.
pub const LINE: u64 = 5_000_000;

/// The longest job id that stands in line, in bytes.
const LONGEST_IN_LINE: usize = 256;

/// Microseconds since the Unix epoch, on the store's clock. The only time the core knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// A time that never comes.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// This time less `micros`, stopping at 0.
    pub fn minus(self, micros: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros))
    }

    /// This time plus `micros`, stopping at [`Timestamp::NEVER`].
    pub fn plus(self, micros: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to this time; zero if it is not later.
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A checked rate-limit key: `^[a-zA-Z0-9][a-zA-Z0-9._:-]*$`, at most 256 bytes (rate-limiting
/// text, section 6.2). Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(Arc<str>);

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl Key {
    /// The longest key in bytes.
    pub const MAX: usize = 256;

    /// Checks `text` against the pattern and the length.
    ///
    /// # Errors
    /// The text is empty, too long, or has a character outside the pattern.
    pub fn new(text: &str) -> Result<Key, BadKey> {
        let first = text.as_bytes().first().ok_or(BadKey::Empty)?;
        if text.len() > Key::MAX {
            return Err(BadKey::Long(text.len()));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(BadKey::Character(text.chars().next().unwrap_or('?')));
        }
        match text
            .chars()
            .find(|c| !(c.is_ascii_alphanumeric() || "._:-".contains(*c)))
        {
            Some(c) => Err(BadKey::Character(c)),
            None => Ok(Key(Arc::from(text))),
        }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no [`Key`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadKey {
    /// Nothing was given.
    #[error("a key must not be empty")]
    Empty,
    /// Longer than [`Key::MAX`].
    #[error("a key has at most 256 bytes, this one has {0}")]
    Long(usize),
    /// Outside the pattern.
    #[error(
        "a key is letters, digits and `.` `_` `:` `-`, beginning with a letter or digit; {0:?} is not allowed here"
    )]
    Character(char),
}

/// Whose counters a key names. Queue-level limits live in a space of their own: a job key
/// `email` is not queue `email`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Space {
    /// Keys of job policies and `[[policy]]` entries.
    Job,
    /// Queue-level limits (`[[queue]]`, admin API); the key's text is the queue's name.
    Queue,
}

impl Space {
    /// What a key of this space is called where keys of both spaces stand side by side: a queue's own
    /// limits are `_queue:NAME`, which no [`Key`] can be.
    pub fn name_of(self, key: &Key) -> Cow<'_, str> {
        match self {
            Space::Job => Cow::Borrowed(key.as_str()),
            Space::Queue => Cow::Owned(format!("_queue:{key}")),
        }
    }
}

/// At most `limit` starts in a window. Usage lies under (key, period, kind of window); the limit is
/// not part of that, so a changed one finds the starts that were.
///
/// In a store: a sliding window is its starts (see [`Window`]). A fixed or calendar one is `ends` (the
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

impl Throttle {
    /// Whether a whole burst is earned back within about 73 years. Beyond that the arithmetic in
    /// nanoseconds would not fit; a throttle that is longer is held to that span instead.
    pub fn fits(&self) -> bool {
        let exact = u128::from(self.period.get()) * 1000 * u128::from(self.burst.get());
        exact.div_ceil(u128::from(self.limit.get())) <= u128::from(pace::LONGEST)
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

/// One key that a job must pass, with the numbers it brings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Limited {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// The numbers this job is checked against.
    pub limits: Limits,
    /// What to do when this key refuses.
    pub on_limit: OnLimit,
    /// The policy the numbers come from, for logs and metrics: a `[[policy]]` name, `job`, or `queue`.
    pub policy: Arc<str>,
    /// What this job pays to the key.
    pub cost: Cost,
    /// Whose share of the key it takes; `None`: turns go round.
    pub share: Option<Share>,
}

impl Limited {
    /// Whether both are of one key.
    pub fn shares_key(&self, other: &Limited) -> bool {
        self.space == other.space && self.key == other.key
    }

    /// By what it is named.
    pub fn names(&self) -> PolicyAndKey {
        (self.policy.clone(), self.space, self.key.clone())
    }
}

/// The policy of a limit, and its key.
pub type PolicyAndKey = (Arc<str>, Space, Key);

/// The first limit of each different key, with its place: however many policies name a key, a job takes one
/// slot of it.
pub fn each_key(limited: &[Limited]) -> impl Iterator<Item = (usize, &Limited)> {
    let is_first = |(nth, one): &(usize, &Limited)| {
        let mut earlier = limited.iter().take(*nth);
        !earlier.any(|earlier| earlier.shares_key(one))
    };
    limited.iter().enumerate().filter(is_first)
}

/// Which of a key's limits refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Strategy {
    /// All slots are taken (5.1).
    Concurrency,
    /// The window is full (5.2).
    Rate,
    /// The next start's time has not come (5.3).
    Throttle,
    /// The key is shut until a time (9.1).
    Shut,
    /// There is room, and it is kept: for a job that is first in line, or for a group whose turn it is.
    Line,
}

impl Strategy {
    /// The word used in events, metrics and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Concurrency => "concurrency",
            Strategy::Rate => "rate",
            Strategy::Throttle => "throttle",
            Strategy::Shut => "shut",
            Strategy::Line => "line",
        }
    }
}

/// Why one key says no, and when to come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Which limit.
    pub strategy: Strategy,
    /// Its number; 0 for a shut key, and for a line.
    pub limit: u32,
    /// How much of it is used; for spacing, all of it.
    pub current: u32,
    /// The time of the start as far as time goes. The start is granted from [`EARLY`] before it, and not
    /// sooner: that is when to ask again. `None`: nothing but a slot is missing.
    pub at: Option<Timestamp>,
    /// Whether a slot must end too, whatever the time.
    pub slot: bool,
}

impl Refusal {
    /// Whether this refusal lets go later than `other`. One that waits for a slot outlasts any
    /// that waits for a time.
    pub fn outlasts(&self, other: &Refusal) -> bool {
        (self.slot, self.at) > (other.slot, other.at)
    }
}

/// What may still start under some limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// How many starts all the limits together allow right now; `u32::MAX` when nothing limits.
    pub starts: u32,
    /// When there will be more as far as time goes; as in [`Refusal::at`], granted from [`EARLY`] before.
    /// `None`: time brings no more.
    pub at: Option<Timestamp>,
    /// Whether a slot must end before there is more.
    pub slot: bool,
    /// Which of the limits that were asked about leaves so few; of several, the one that lets go last.
    pub by: usize,
}

impl Room {
    /// No limit.
    pub const OPEN: Room = Room {
        starts: u32::MAX,
        at: None,
        slot: false,
        by: 0,
    };

    /// The room under all of these, each that of one limit.
    pub fn of_all(each: impl Iterator<Item = Room>) -> Room {
        let each = each.enumerate().map(|(by, room)| Room { by, ..room });
        each.fold(Room::OPEN, Room::and)
    }

    /// The room under both: the smaller one, and more only when every limit that binds has more.
    #[must_use]
    pub fn and(self, other: Room) -> Room {
        match self.starts.cmp(&other.starts) {
            std::cmp::Ordering::Less => self,
            std::cmp::Ordering::Greater => other,
            std::cmp::Ordering::Equal => Room {
                starts: self.starts,
                // Time must have come for both, unless it is only a slot that one of them waits for.
                at: match (self.at, other.at) {
                    (None, at) if self.slot => at,
                    (at, None) if other.slot => at,
                    (mine, theirs) => mine.zip(theirs).map(|(mine, theirs)| mine.max(theirs)),
                },
                slot: self.slot || other.slot,
                by: match (other.slot, other.at) > (self.slot, self.at) {
                    true => other.by,
                    false => self.by,
                },
            },
        }
    }
}
