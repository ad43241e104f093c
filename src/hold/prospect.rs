//! What waiting could bring.

use ojs_limit::Timestamp;

/// What waiting could bring a FETCH; by default nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prospect {
    /// When the soonest of what waits for a time could start.
    pub at: Option<Timestamp>,
    /// From when the end of a slot, which may come at any moment, could let something start.
    pub slot: Option<Timestamp>,
}

impl Prospect {
    /// Something could start at this time.
    pub fn at(at: Timestamp) -> Prospect {
        Prospect {
            at: Some(at),
            slot: None,
        }
    }

    /// Something could start when a slot ends, from this time on.
    pub fn slot_from(at: Timestamp) -> Prospect {
        Prospect {
            at: None,
            slot: Some(at),
        }
    }

    /// Something could start when a slot ends.
    pub fn slot() -> Prospect {
        Prospect::slot_from(Timestamp(0))
    }

    /// Whether waiting until `end` may help.
    pub fn is_by(self, end: Timestamp) -> bool {
        self.at.into_iter().chain(self.slot).any(|at| at <= end)
    }

    /// What both bring.
    pub fn or(self, other: Prospect) -> Prospect {
        let sooner = |a: Option<Timestamp>, b: Option<Timestamp>| a.into_iter().chain(b).min();
        Prospect {
            at: sooner(self.at, other.at),
            slot: sooner(self.slot, other.slot),
        }
    }
}
