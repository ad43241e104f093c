//! The parts of requests: JSON whose bytes survive, and times. Also why a request is refused.

use std::time::Duration;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::lax::Lax;

/// A JSON value as it was sent, byte for byte.
pub(super) type Raw = Box<RawValue>;

/// An error reply, as the error envelope shows it.
#[derive(Debug)]
pub(super) struct ErrorReply {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
    /// The job's place in the batch.
    pub index: Option<usize>,
}

impl ErrorReply {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> ErrorReply {
        ErrorReply {
            status,
            code,
            message: message.into(),
            index: None,
        }
    }

    pub(super) fn not_found(message: impl Into<String>) -> ErrorReply {
        ErrorReply::new(404, "not_found", message)
    }

    pub(super) fn invalid(message: impl Into<String>) -> ErrorReply {
        ErrorReply::new(400, "invalid_request", message)
    }
}

/// The members of a JSON object in their order; of equal names the last one counts.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub all: Vec<(String, Raw)>,
    /// Whether names match whatever their case ([`Lax::folds_case`]).
    folds_case: bool,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members {
                    all: members,
                    folds_case: false,
                })
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Members {
    /// The one JSON object in `body`.
    pub(super) fn parse(body: &[u8], lax: &Lax) -> Result<Members, ErrorReply> {
        let value: &RawValue = serde_json::from_slice(body)
            .map_err(|_| ErrorReply::new(400, lax.bad_json, "Invalid JSON in request body."))?;
        let members: Members = serde_json::from_str(value.get())
            .map_err(|_| ErrorReply::invalid("The body must be a JSON object."))?;
        Ok(Members {
            folds_case: lax.folds_case,
            ..members
        })
    }

    pub(super) fn raw(&self, name: &str) -> Option<&Raw> {
        let same = |key: &str| key == name || (self.folds_case && key.eq_ignore_ascii_case(name));
        self.all
            .iter()
            .rev()
            .find(|(key, _)| same(key))
            .map(|(_, value)| value)
    }

    /// The member `name` as a `T`; `null` is absent.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ErrorReply> {
        match self.raw(name) {
            None => Ok(None),
            Some(value) if value.get() == "null" => Ok(None),
            Some(value) => serde_json::from_str(value.get())
                .map(Some)
                .map_err(|e| ErrorReply::invalid(format!("The field '{name}' is malformed: {e}"))),
        }
    }

    /// The members of the member `name`.
    pub(super) fn members(&self, name: &str) -> Result<Option<Members>, ErrorReply> {
        Ok(self.read(name)?.map(|inner| self.fold_like_this(inner)))
    }

    /// The members of each object in the list `name`.
    pub(super) fn each(&self, name: &str) -> Result<Vec<Members>, ErrorReply> {
        let list: Vec<Members> = self.read(name)?.unwrap_or_default();
        let list = list.into_iter().map(|inner| self.fold_like_this(inner));
        Ok(list.collect())
    }

    fn fold_like_this(&self, inner: Members) -> Members {
        Members {
            folds_case: self.folds_case,
            ..inner
        }
    }

    /// The member `name` as it was sent, if it is an object.
    pub(super) fn object(&self, name: &str) -> Result<Option<(Raw, Members)>, ErrorReply> {
        let members = self.members(name)?;
        Ok(members.and_then(|members| Some((self.raw(name)?.clone(), members))))
    }

    /// The member `name` as a number of milliseconds; 0 is absent, and more than a hundred years are a hundred
    /// years.
    pub(super) fn millis(&self, name: &str) -> Result<Option<Duration>, ErrorReply> {
        const LONGEST: u64 = 100 * 365 * 86_400_000;
        let millis = self.read::<u64>(name)?.filter(|millis| *millis > 0);
        Ok(millis.map(|millis| Duration::from_millis(millis.min(LONGEST))))
    }
}

/// A moment as it was given (or as it prints, if it was given relative to now).
#[derive(Debug)]
pub(super) struct Moment {
    pub at: Instant,
    pub text: String,
}

/// Turns this process's monotonic time into dates for printing, and back.
#[derive(Clone, Debug)]
pub(super) struct WallClock {
    start: Instant,
    wall: jiff::Timestamp,
}

impl WallClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "a backend is a process of its own"
    )]
    pub(super) fn new() -> WallClock {
        WallClock {
            start: Instant::now(),
            wall: jiff::Timestamp::now(),
        }
    }

    /// Time since the backend was made.
    pub(super) fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    fn date(&self, at: Instant) -> jiff::Timestamp {
        self.wall
            .checked_add(self.since_start(at))
            .unwrap_or(jiff::Timestamp::MAX)
    }

    /// RFC 3339, to the millisecond.
    pub(super) fn print(&self, at: Instant) -> String {
        format!("{:.3}", self.date(at))
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn unix_ms(&self, at: Instant) -> u64 {
        u64::try_from(self.date(at).as_millisecond()).unwrap_or(0)
    }

    /// A date, or `+` and a duration from `now`.
    pub(super) fn when(&self, text: &str, now: Instant) -> Option<Moment> {
        if let Some(relative) = text.strip_prefix('+') {
            let at = now.checked_add(duration(relative)?)?;
            return Some(Moment {
                at,
                text: self.print(at),
            });
        }
        let date: jiff::Timestamp = text.parse().ok()?;
        let ahead =
            Duration::try_from(date.duration_since(self.date(now))).unwrap_or(Duration::ZERO);
        Some(Moment {
            at: now.checked_add(ahead)?,
            text: text.to_owned(),
        })
    }
}

/// An ISO 8601 duration; a day has 24 hours.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .ok()?;
    Duration::try_from(exact).ok()
}
