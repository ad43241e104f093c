//! What sidecars that share a store tell each other through it. With the memory store there is one
//! sidecar, and nothing to tell.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use ojs_limit::{Key, Space, Timestamp, fingerprint};

/// How long a sidecar may say nothing before it counts as gone, in microseconds.
pub(crate) const SILENCE: u64 = 5_000_000;

/// How often a sidecar says that it lives, in microseconds. The sweep looks twice a second, so the word comes every
/// 1.5 s, and an idle sidecar makes less than one call a second.
pub(super) const BEAT: u64 = 1_200_000;

/// How long everyone has to put back what they know before anything starts, in data that begin anew. A sidecar notices
/// that with its next word, 1.5 s later at most, and puts its rows back in the same look.
pub(super) const SETTLING: u64 = 2_000_000;

/// Where nobody has spoken for so long, in microseconds, nobody could: words come more often.
pub(super) const SILENT: u64 = 1_700_000;

/// How long it is believed, in microseconds, how many jobs of a queue a sidecar holds: a claim is over by then whose
/// holder is gone.
pub const HOLDS_LAST: u64 = 60_000_000;

/// How the names of sidecars begin, unless the settings say otherwise.
pub const NAMES: &str = "ojs-throttle-";

/// The sidecar that made a claim under this id: its name, behind which some claims have the time in microseconds.
pub fn sidecar_of(claim_id: &str) -> Option<&str> {
    let own = claim_id.strip_prefix(NAMES)?;
    let is_time = |text: &str| text.len() >= 15 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = own.rsplit_once('-').filter(|(_, number)| is_time(number));
    let behind = number.map_or(0, |(_, number)| number.len() + 1);
    claim_id.get(..claim_id.len() - behind)
}

/// What a sibling did that matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Limits or settings were set by hand. They are known here by now.
    Set,
    /// Slots of these keys ended.
    Freed(Vec<(Space, Key)>),
    /// A held job of this lane waits for a sidecar that has a worker for it: see
    /// [`RowsOf::Offered`](super::RowsOf::Offered).
    Offered {
        /// The scope it was claimed in.
        scope: u64,
        /// Its queue.
        queue: Arc<str>,
    },
    /// A sibling ended a row of ours or took it over, or a call that may end the job came through it: the hold must
    /// follow.
    Row {
        /// The job.
        job: Arc<str>,
    },
    /// Jobs came to some of a queue's subqueues through a sibling.
    Came {
        /// The queue.
        queue: Arc<str>,
        /// A bit for each subqueue.
        subqueues: Arc<[u64]>,
    },
    /// Jobs came to subqueues of a queue and left them at a sibling.
    Moved {
        /// The queue.
        queue: Arc<str>,
        /// What the sibling wrote.
        moved: Box<str>,
    },
    /// A queue was paused or resumed through a sibling.
    Paused {
        /// The queue.
        queue: Arc<str>,
        /// Whether it is paused.
        paused: bool,
    },
    /// Messages may have been missed: look at everything.
    All,
}

/// A step on a number that all sidecars share, such as a queue's depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Only read it.
    Read,
    /// Add to it, which may be less than zero, unless that would bring it above `most`.
    Add {
        /// How much.
        by: i64,
        /// `None`: whatever comes of it.
        most: Option<i64>,
    },
    /// The same, and take off what has gone, unless the number was replaced since it went.
    AddLess {
        /// How much is added.
        by: i64,
        /// As for [`Step::Add`].
        most: Option<i64>,
        /// How much is taken off.
        gone: i64,
        /// [`Number::put_at`] as known.
        since: Timestamp,
    },
    /// Replace it, if it is still at this version: nothing was added since it was read.
    Put {
        /// The new value.
        value: i64,
        /// [`Number::version`] as read; `None`: whatever was done to it since.
        version: Option<u64>,
    },
}

/// The number that says how many jobs were ever adopted.
pub(super) const ADOPTED: &str = "adopted";

/// The name of the number that says whether a queue is paused.
pub(super) fn paused(queue: &str) -> String {
    kept_name(&format!("paused:{queue}")).into_owned()
}

/// The number that says whether a queue is paused, and the step that sets it.
pub(super) fn pause(queue: &str, paused_now: bool) -> (String, Step) {
    let step = Step::Put {
        value: i64::from(paused_now),
        version: None,
    };
    (paused(queue), step)
}

/// Longer names have no place in a database's index.
const LONGEST_NAME: usize = 1_000;

/// The name under which a database keeps a number, whatever clients named: for one that is too long, or has a NUL,
/// which Postgres has none for, a hash of it.
pub(super) fn kept_name(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_NAME && !name.contains('\0') {
        return Cow::Borrowed(name);
    }
    let hash = fingerprint([name.as_bytes()]);
    Cow::Owned(format!("hashed:{hash:032x}"))
}

/// A shared number after a step.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Number {
    /// What it is now; 0 if it was never set.
    pub value: i64,
    /// Goes up with every change; 0 if it was never set.
    pub version: u64,
    /// When it was last replaced by [`Step::Put`], by the store's clock.
    pub put_at: Timestamp,
    /// Whether the step was done. Reading is always done.
    pub done: bool,
}

/// Shared numbers are forgotten this many microseconds after the last change: names come from
/// requests.
pub const NUMBER_LASTS: u64 = 24 * 3600 * 1_000_000;

/// More numbers than this are not kept in one process.
const MOST_NUMBERS: usize = 100_000;

impl Number {
    /// What a step makes of it at `now`.
    #[must_use]
    pub fn stepped(self, step: Step, now: Timestamp) -> Number {
        let version = self.version + 1;
        let refused = Number {
            done: false,
            ..self
        };
        match step {
            Step::Read => Number { done: true, ..self },
            Step::Add { by, most } => match self.value.checked_add(by) {
                Some(value) if by <= 0 || most.is_none_or(|most| value <= most) => Number {
                    value,
                    version,
                    done: true,
                    ..self
                },
                _ => refused,
            },
            Step::AddLess {
                by,
                most,
                gone,
                since,
            } => {
                let gone = if self.put_at == since { gone } else { 0 };
                let by = by.saturating_sub(gone);
                self.stepped(Step::Add { by, most }, now)
            }
            Step::Put { version: seen, .. } if seen.is_some_and(|seen| seen != self.version) => {
                refused
            }
            Step::Put { value, .. } => Number {
                value,
                version,
                put_at: now,
                done: true,
            },
        }
    }
}

/// The numbers of one process.
#[derive(Default, Debug)]
pub(super) struct Numbers(HashMap<Box<str>, (Number, Timestamp)>);

impl Numbers {
    pub(super) fn step(&mut self, name: &str, step: Step, now: Timestamp) -> Number {
        let known = self.0.get(name).filter(|(_, until)| *until > now);
        let before = known.map(|(number, _)| *number).unwrap_or_default();
        let after = before.stepped(step, now);
        if after.version == before.version {
            return after;
        }
        if self.0.len() >= MOST_NUMBERS && !self.0.contains_key(name) {
            self.0.retain(|_, (_, until)| *until > now);
        }
        if self.0.len() < MOST_NUMBERS || self.0.contains_key(name) {
            self.0.insert(name.into(), (after, now.plus(NUMBER_LASTS)));
        }
        after
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp(1_000);

    #[test]
    fn a_claim_is_its_sidecars_with_or_without_a_number() {
        for own in ["0000000000000001", "web-7d9f-8080", "web-7d9f-8081", "1"] {
            let own = format!("{NAMES}{own}");
            assert_eq!(sidecar_of(&own), Some(&*own));
            let numbered = format!("{own}-1764172800000000");
            assert_eq!(sidecar_of(&numbered), Some(&*own));
        }
        assert_eq!(sidecar_of("worker-1"), None);
    }

    #[test]
    fn a_name_that_no_database_has_room_for_is_the_same_hash_in_every_version() {
        assert_eq!(kept_name("q\n"), "q\n");
        let kept = "hashed:f2eae95e31033dff8ebc879cb6730a80";
        assert_eq!(kept_name(&"q".repeat(1_001)), kept);
    }

    #[test]
    fn numbers_are_forgotten_after_a_day() {
        let mut numbers = Numbers::default();
        numbers.step("n", Step::Add { by: 1, most: None }, T);
        let later = T.plus(NUMBER_LASTS);
        assert_eq!(numbers.step("n", Step::Read, later).value, 0);
    }
}
