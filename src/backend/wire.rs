//! What requests are made of: JSON whose bytes survive, times, and why a request is refused.

use std::time::Duration;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Lax;

/// A JSON value as it was sent, byte for byte.
pub(super) type Raw = Box<RawValue>;

/// Why a request was refused, as the error envelope tells it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
    /// Place in the batch.
    pub index: Option<usize>,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            code,
            message: message.into(),
            index: None,
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "invalid_request", message)
    }
}

/// The members of a JSON object in their order; of equal names the last one counts.
#[derive(Debug, Default)]
pub(super) struct Members(pub Vec<(String, Raw)>);

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
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Members {
    /// The one JSON object in `body`.
    pub(super) fn parse(body: &[u8], lax: &Lax) -> Result<Members, Refusal> {
        let value: &RawValue = serde_json::from_slice(body)
            .map_err(|_| Refusal::new(400, lax.bad_json, "Invalid JSON in request body."))?;
        serde_json::from_str(value.get())
            .map_err(|_| Refusal::invalid("The body must be a JSON object."))
    }

    pub(super) fn raw(&self, name: &str, lax: &Lax) -> Option<&Raw> {
        let same = |key: &str| key == name || (lax.folds_case && key.eq_ignore_ascii_case(name));
        self.0
            .iter()
            .rev()
            .find(|(key, _)| same(key))
            .map(|(_, value)| value)
    }

    /// The member `name` as a `T`; `null` is absent.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        name: &str,
        lax: &Lax,
    ) -> Result<Option<T>, Refusal> {
        match self.raw(name, lax) {
            None => Ok(None),
            Some(value) if value.get() == "null" => Ok(None),
            Some(value) => serde_json::from_str(value.get())
                .map(Some)
                .map_err(|e| Refusal::invalid(format!("The field '{name}' is malformed: {e}"))),
        }
    }

    /// The member `name` as it was sent, if it is an object.
    pub(super) fn object(&self, name: &str, lax: &Lax) -> Result<Option<(Raw, Members)>, Refusal> {
        let members = self.read::<Members>(name, lax)?;
        Ok(members.and_then(|members| Some((self.raw(name, lax)?.clone(), members))))
    }
}

/// A moment as it was given (or as it prints, if it was given relative to now).
#[derive(Debug)]
pub(super) struct When {
    pub at: Instant,
    pub text: String,
}

/// Turns this process's monotonic time into dates for printing, and back.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    start: Instant,
    wall: jiff::Timestamp,
}

impl Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "a backend is a process of its own"
    )]
    pub(super) fn new() -> Clock {
        Clock {
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
    pub(super) fn when(&self, text: &str, now: Instant) -> Option<When> {
        if let Some(relative) = text.strip_prefix('+') {
            let at = now.checked_add(duration(relative)?)?;
            return Some(When {
                at,
                text: self.print(at),
            });
        }
        let date: jiff::Timestamp = text.parse().ok()?;
        let ahead =
            Duration::try_from(date.duration_since(self.date(now))).unwrap_or(Duration::ZERO);
        Some(When {
            at: now.checked_add(ahead)?,
            text: text.to_owned(),
        })
    }
}

/// A number of milliseconds; 0 is absent, and more than a hundred years are a hundred years.
pub(super) fn millis(
    members: &Members,
    name: &str,
    lax: &Lax,
) -> Result<Option<Duration>, Refusal> {
    const LONGEST: u64 = 100 * 365 * 86_400_000;
    let millis = members.read::<u64>(name, lax)?.filter(|millis| *millis > 0);
    Ok(millis.map(|millis| Duration::from_millis(millis.min(LONGEST))))
}

/// An ISO 8601 duration; a day has 24 hours.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .ok()?;
    Duration::try_from(exact).ok()
}
