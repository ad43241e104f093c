//! A key that is closed until a time, because the service behind it has said so.

use std::num::NonZeroU64;

use super::packed::{PackedReader, Writer};
use super::{Room, Timestamp};

/// No starts until a time, but for probes where they are wanted.
///
/// In a store: `since`, `until`, `probe` (0 where there is none) and `next`, all in microseconds. A
/// start is allowed at `now >= until`, or at `now >= next` where `probe` is not 0; such a start then
/// makes `next` its own time plus `probe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shut {
    /// When it was shut.
    pub since: Timestamp,
    /// When it opens.
    pub until: Timestamp,
    /// How far apart starts are that may find out, in microseconds, whether the service is back.
    pub probe: Option<NonZeroU64>,
    /// The time of the next of them.
    next: Timestamp,
}

impl Shut {
    /// Shut at `now`, with the first probe one interval from now.
    pub fn new(now: Timestamp, until: Timestamp, probe: Option<NonZeroU64>) -> Shut {
        Shut {
            since: now,
            until,
            probe,
            next: probe.map_or(Timestamp::NEVER, |every| now.plus(every.get())),
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.time(self.since);
        to.time(self.until);
        to.long(self.probe.map_or(0, NonZeroU64::get));
        to.time(self.next);
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Shut> {
        Some(Shut {
            since: from.time()?,
            until: from.time()?,
            probe: NonZeroU64::new(from.long()?),
            next: from.time()?,
        })
    }

    /// When something may start, if nothing may at `now`.
    pub(super) fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let opens = self.until.min(self.next);
        (opens > now).then_some(opens)
    }

    /// A start at `at`: the next probe is an interval away.
    pub(super) fn started(&mut self, at: Timestamp) {
        if let Some(every) = self.probe {
            self.next = at.plus(every.get());
        }
    }

    /// The start at `at` did not happen.
    pub(super) fn back(&mut self, at: Timestamp) {
        if self
            .probe
            .is_some_and(|every| at.plus(every.get()) == self.next)
        {
            self.next = at;
        }
    }

    /// What may start at `now`, before it opens.
    pub(super) fn room(&self, now: Timestamp) -> Room {
        let due = self.next <= now;
        Room {
            starts: u32::from(due),
            at: Some(if due {
                self.until
            } else {
                self.until.min(self.next)
            }),
            ..Room::OPEN
        }
    }
}
