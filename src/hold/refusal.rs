//! Why jobs may not be asked for, and until when.

use ojs_limit::{PolicyAndKey, Timestamp};

/// A refusal of a picked job: it holds for its whole group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why, and until when.
    pub refused: Refused,
    /// When it was refused.
    pub at: Timestamp,
    /// The limit that refused, if one did.
    pub by: Option<PolicyAndKey>,
    /// The time of the refusal, if the group's jobs are to be seen as scheduled until they may start
    /// (`on_limit = "reschedule"`).
    pub rescheduled: Option<Timestamp>,
}

/// A point in the order of the hold's wakes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Wakes(pub(super) u64);

/// Why a job may not be asked for, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its limits say no until then.
    Until(Timestamp),
    /// A slot must end first, and this time must have come.
    ForSlot(Timestamp),
    /// A key has no slots at all: no time brings one.
    Paused,
}

impl Refused {
    /// What a limit's refusal means; `at`: when the job may start, where that is known.
    pub fn by(why: &ojs_limit::Refusal, at: Option<Timestamp>) -> Refused {
        match at.unwrap_or_default() {
            _ if why.is_pause() => Refused::Paused,
            at if why.slot => Refused::ForSlot(at),
            at => Refused::Until(at),
        }
    }
}
