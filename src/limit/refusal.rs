//! What the limits of a key answer: which of them refuses and until when, and how much may still start.

use super::time::Timestamp;

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
    /// The time of the start as far as time goes. The start is granted from [`EARLY`](crate::EARLY) before it, and not
    /// sooner: that is when to ask again. `None`: nothing but a slot is missing.
    pub at: Option<Timestamp>,
    /// Whether a slot must end too, whatever the time.
    pub slot: bool,
}

impl Refusal {
    /// There is room, and it is kept until then for somebody who is before.
    pub(super) fn of_line(until: Timestamp) -> Refusal {
        Refusal {
            strategy: Strategy::Line,
            limit: 0,
            current: 0,
            at: Some(until),
            slot: false,
        }
    }

    /// Whether the key is paused: it has no slots until somebody gives it some.
    pub fn is_pause(&self) -> bool {
        self.strategy == Strategy::Concurrency && self.limit == 0
    }

    /// Whether nothing of the key starts, whatever is used: it is shut or paused.
    pub fn is_closed(&self) -> bool {
        self.strategy == Strategy::Shut || self.is_pause()
    }

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
    /// When there will be more as far as time goes; as in [`Refusal::at`], granted from [`EARLY`](crate::EARLY) before.
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
