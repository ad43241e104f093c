//! Reads limits that are set over HTTP: overrides of a key, limits of a queue, and a queue's config. Unknown
//! members are refused, so that an operator's word that is not understood changes nothing.

use std::sync::Arc;

use crate::duration;
use crate::json::{Json, Kind};
use crate::limit::{Limits, Timestamp};
use crate::policy::Currency;
use crate::policy::fields::{Fields, JsonObject, Strangers};
use crate::policy::limits::{self, limits_in_json};
use crate::policy::numbers::LARGEST_NUMBER;
use crate::policy::words::RATES_IN_JSON;
use crate::policy::{FieldError, numbers};
use crate::store::Override;

/// The longest `reason` and `by`, in bytes.
const LONGEST_TEXT: usize = 1_000;

/// The members of a body that sets limits.
const SET: [&[&str]; 3] = [
    &["concurrency"],
    &RATES_IN_JSON,
    &["expires_at", "reason", "by"],
];

/// What a queue's config says of limits. A part is `None` where the config does not name it, and
/// `Some(None)` where it is null, which takes it away.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct QueueConfig {
    /// Slots.
    pub(super) concurrency: Option<Option<u32>>,
    /// Windows and spacing.
    pub(super) rate_limit: Option<Option<Limits>>,
}

/// Reads the body of `PUT /ojs/v1/rate-limits/{key}` and its like at the time `now`: `concurrency`,
/// `rate`, `throttle`, or `limit` and `period` flat, or `max_per_second`, in the spellings of job
/// policies; with `expires_at`, `reason` and `by`. Limits of money are texts.
///
/// # Errors
/// The first member that is wrong, unknown, or missing; a body that sets no limit; an end that is over 366
/// days away.
pub(super) fn read_override(
    body: Json<'_>,
    currency: Option<&Currency>,
    now: Timestamp,
) -> Result<Override, FieldError> {
    let mut from = JsonObject::new(body, "", Strangers::Refuse, &SET)?;
    from.currency = currency.cloned();
    let limits = limits_in_json(&mut from)?;
    if limits == Limits::default() {
        let message = "is missing, and so are rate and throttle: give at least one of them; \
                       DELETE takes a limit away";
        return Err(from.error("concurrency", message));
    }
    let expires_at = time(&mut from, "expires_at", now)?;
    if expires_at.is_some_and(|end| is_far(end, now)) {
        let message = format!("{FAR}; leave it out for limits that stay");
        return Err(from.error("expires_at", message));
    }
    Ok(Override {
        limits,
        expires_at,
        reason: note(&mut from, "reason")?,
        by: note(&mut from, "by")?,
    })
}

/// Reads the body of `PUT /throttle/v1/keys/{key}/next-start`, which is `{"at": TIME}` or `{"after": DURATION}`, at the
/// time `now`: no start before the time that is returned.
///
/// # Errors
/// The member that is wrong, unknown or missing; a time that has passed or is over 366 days away.
pub(super) fn read_next_start(body: Json<'_>, now: Timestamp) -> Result<Timestamp, FieldError> {
    let mut from = JsonObject::new(body, "", Strangers::Refuse, &[&["at", "after"]])?;
    let (name, next) = match (time(&mut from, "at", now)?, from.period("after")?) {
        (Some(next), None) => ("at", next),
        (None, Some(wait)) => ("after", now.plus(wait)),
        (Some(_), Some(_)) => {
            return Err(from.error("after", "stands by itself; leave out at"));
        }
        (None, None) => {
            let message =
                "is missing, and so is after: give one of them, such as {\"after\": \"PT30S\"}";
            return Err(from.error("at", message));
        }
    };
    if next <= now {
        let message = "must be more than nothing; DELETE opens a key";
        return Err(from.error(name, message));
    }
    if is_far(next, now) {
        return Err(from.error(name, FAR));
    }
    Ok(next)
}

/// Reads the body of `PUT /throttle/v1/keys/{key}/usage`, which is `{"used": N}`, or an amount where money is counted.
///
/// # Errors
/// The member that is wrong, unknown or missing.
pub(super) fn read_used(body: Json<'_>, currency: Option<&Currency>) -> Result<u32, FieldError> {
    let mut from = JsonObject::new(body, "", Strangers::Refuse, &[&["used"]])?;
    from.currency = currency.cloned();
    let used = from.amount("used")?;
    let used = used.ok_or_else(|| from.error("used", "is required"))?;
    let units = u32::try_from(used).ok();
    let units = units.filter(|_| used <= LARGEST_NUMBER);
    units.ok_or_else(|| {
        let message = format!("must be from 0 to {LARGEST_NUMBER}, found {used}");
        from.error("used", message)
    })
}

/// What bounds or limits nothing at the top of a queue's config, and where it does.
const ELSEWHERE: [(&[&str], &str); 2] = [
    (
        &[
            "strategy",
            "warning_threshold",
            "block_timeout_max",
            "enqueue_rate",
            "per_key",
        ],
        "backpressure",
    ),
    (&["rate", "throttle"], "rate_limit"),
];

impl QueueConfig {
    /// Reads the body of `PUT …/queues/{name}/config`. What is not about limits is the backend's.
    ///
    /// # Errors
    /// The first member about limits that is wrong.
    pub(super) fn read(body: Json<'_>) -> Result<QueueConfig, FieldError> {
        let Ok(mut from) = JsonObject::new(body, "", Strangers::Pass, &[]) else {
            return Ok(QueueConfig::default());
        };
        for (names, place) in ELSEWHERE {
            let said = |name: &&&str| body.get(name).is_some_and(|value| !value.is_null());
            if let Some(name) = names.iter().find(said) {
                return Err(from.error(name, format!("belongs in `{place}`")));
            }
        }
        let concurrency = match body.get("concurrency") {
            None => None,
            Some(_) => Some(limits::concurrency(&mut from)?),
        };
        let rate_limit = match body.get("rate_limit") {
            None => None,
            Some(none) if none.is_null() => Some(None),
            Some(given) => Some(Some(queue_rate_limit(given)?)),
        };
        Ok(QueueConfig {
            concurrency,
            rate_limit,
        })
    }

    /// Whether it says nothing of limits.
    pub(super) fn is_silent(&self) -> bool {
        *self == QueueConfig::default()
    }

    /// `limits` as this config leaves them.
    pub(super) fn over(&self, limits: Limits) -> Limits {
        let concurrency = self.concurrency.unwrap_or(limits.concurrency);
        match &self.rate_limit {
            None => Limits {
                concurrency,
                ..limits
            },
            Some(given) => Limits {
                concurrency,
                ..given.clone().unwrap_or_default()
            },
        }
    }
}

/// `rate_limit` of a queue's config: an object, or a number of starts a second.
fn queue_rate_limit(given: Json<'_>) -> Result<Limits, FieldError> {
    let at = "rate_limit";
    if given.kind() == Kind::Number {
        let error = |message: &str| FieldError {
            field: at.into(),
            message: message.into(),
        };
        let limit = given.int();
        let limit = limit.ok_or_else(|| error("must be a whole number or an object"))?;
        let rate = numbers::starts(limit)
            .and_then(|limit| numbers::rate(limit, 1_000_000, numbers::WindowWord::Sliding))
            .map_err(|wrong| error(&wrong.message))?;
        return Ok(Limits {
            rates: vec![rate],
            ..Limits::default()
        });
    }
    let mut from = JsonObject::new(given, at, Strangers::Refuse, &[&RATES_IN_JSON])?;
    let limits = limits_in_json(&mut from)?;
    if limits == Limits::default() {
        return Err(from.missing("limit", ""));
    }
    Ok(limits)
}

/// The message about a time that [`is_far`].
const FAR: &str = "is more than 366 days away";

/// Whether a time is farther away than the longest period: more likely a slip than meant.
fn is_far(time: Timestamp, now: Timestamp) -> bool {
    time.since(now) > numbers::LONGEST
}

/// A time to come.
fn time(
    from: &mut JsonObject<'_>,
    name: &'static str,
    now: Timestamp,
) -> Result<Option<Timestamp>, FieldError> {
    let example = "such as \"2026-02-13T13:00:00Z\"";
    let Some(text) = from.text(name)? else {
        return Ok(None);
    };
    let time = duration::moment(&text).map(Timestamp).ok_or_else(|| {
        let message = format!("must be a time with its zone, {example}, found {text:?}");
        from.error(name, message)
    })?;
    if time <= now {
        let message = format!("has passed: it must be a time to come, {example}");
        return Err(from.error(name, message));
    }
    Ok(Some(time))
}

/// A text for people.
fn note(from: &mut JsonObject<'_>, name: &'static str) -> Result<Option<Arc<str>>, FieldError> {
    match from.text(name)? {
        Some(text) if text.len() > LONGEST_TEXT => {
            let length = text.len();
            let message = format!("has at most {LONGEST_TEXT} bytes, this one has {length}");
            Err(from.error(name, message))
        }
        text => Ok(text.map(Arc::from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_770_000_000_000_000);

    fn set(body: &str) -> Result<Override, FieldError> {
        read_override(Json::parse(body.as_bytes(), 16).unwrap(), None, NOW)
    }

    /// Limits in one line: slots, windows, spacing.
    fn line(limits: &Limits) -> String {
        let mut words = Vec::new();
        words.extend(limits.concurrency.map(|slots| format!("{slots} slots")));
        let seconds = |micros: u64| micros as f64 / 1e6;
        for rate in &limits.rates {
            words.push(format!("{}/{}s", rate.limit, seconds(rate.period.get())));
        }
        words.extend(limits.throttle.map(|t| {
            let period = seconds(t.period.get());
            format!("spaced {}/{period}s/{}", t.limit, t.burst)
        }));
        words.join(" ")
    }

    #[test]
    fn spellings() {
        for (body, want) in [
            (r#"{"concurrency":0}"#, "0 slots"),
            (r#"{"Concurrency":3,"rate":null}"#, "3 slots"),
            (r#"{"limit":100,"period":"1m"}"#, "100/60s"),
            (r#"{"rate":5,"period":"second"}"#, "5/1s"),
            (r#"{"rate":{"limit":9,"period":"PT1H"}}"#, "9/3600s"),
            (
                r#"{"rate":[{"limit":1,"period":"1s"},{"limit":2,"period":"1d"}]}"#,
                "1/1s 2/86400s",
            ),
            (
                r#"{"throttle":{"limit":10,"period":"PT1S","burst":2}}"#,
                "spaced 10/1s/2",
            ),
            (r#"{"throttle":{"interval":"PT0.1S"}}"#, "spaced 1/0.1s/1"),
            (r#"{"max_per_second":4}"#, "spaced 4/1s/1"),
            (
                r#"{"concurrency":1,"limit":2,"period":"1s","throttle":{"interval":"1s"}}"#,
                "1 slots 2/1s spaced 1/1s/1",
            ),
        ] {
            let set = set(body).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(line(&set.limits), want, "{body}");
        }
        let whole = r#"{"concurrency":1,"expires_at":"2026-02-13T14:00:00+01:00","reason":"INC-1","by":"eve"}"#;
        let whole = set(whole).unwrap();
        assert_eq!(whole.expires_at, Some(Timestamp(1_770_987_600_000_000)));
        assert_eq!(
            (whole.reason.as_deref(), whole.by.as_deref()),
            (Some("INC-1"), Some("eve"))
        );
    }

    /// What is wrong beside something else: `tests/rate_limiting/input.rs` has each field by itself.
    #[test]
    fn what_is_wrong_beside_others_is_named() {
        for (body, field, word) in [
            ("[]", "body", "an object"),
            ("{}", "concurrency", "give at least one"),
            (r#"{"reason":"x"}"#, "concurrency", "give at least one"),
            (r#"{"limit":0,"period":"1s"}"#, "limit", "to pause"),
            (r#"{"limit":5}"#, "period", "is required"),
            (r#"{"period":"1s"}"#, "period", "a limit beside it"),
            (
                r#"{"limit":5,"period":"1s","rate":{"limit":1,"period":"1s"}}"#,
                "limit",
                "leave one",
            ),
            (r#"{"rate":[],"period":"1s"}"#, "rate", "empty"),
            (r#"{"rate":true,"limit":5}"#, "rate", "an object"),
            (r#"{"rate":0}"#, "rate", "to pause"),
            (
                r#"{"rate":[{"limit":1,"period":"1s"},{"limit":1,"per":"1s"}]}"#,
                "rate[1].per",
                "`period`",
            ),
            (r#"{"concurrency":5,"until":"x"}"#, "until", "known are"),
            (
                r#"{"concurrency":5,"expires_at":"2030-01-01T00:00:00"}"#,
                "expires_at",
                "with its zone",
            ),
            (
                r#"{"concurrency":5,"expires_at":"2027-02-03T02:40:01Z"}"#,
                "expires_at",
                "is more than 366 days away",
            ),
        ] {
            let error = set(body).expect_err(body);
            assert_eq!(error.field, field, "{body}: {error}");
            assert!(error.message.contains(word), "{body}: {error}");
        }
        let farthest = set(r#"{"concurrency":5,"expires_at":"2027-02-03T02:40:00Z"}"#);
        assert!(farthest.is_ok(), "{farthest:?}");
        let long = format!(r#"{{"concurrency":5,"reason":"{}"}}"#, "x".repeat(1_001));
        assert_eq!(set(&long).unwrap_err().field, "reason");
    }

    #[test]
    fn a_queue_s_config() {
        let read = |body: &str| QueueConfig::read(Json::parse(body.as_bytes(), 16).unwrap());
        assert!(
            read(r#"{"backpressure":{"max_depth":2},"retention":{}}"#).is_ok_and(|c| c.is_silent())
        );
        let before = set(r#"{"concurrency":1,"max_per_second":5}"#)
            .unwrap()
            .limits;
        for (body, want) in [
            (r#"{"concurrency":3,"other":1}"#, "3 slots spaced 5/1s/1"),
            (r#"{"concurrency":null}"#, "spaced 5/1s/1"),
            (
                r#"{"rate_limit":{"limit":10,"period":"1m"}}"#,
                "1 slots 10/60s",
            ),
            (r#"{"rate_limit":7}"#, "1 slots 7/1s"),
            (
                r#"{"rate_limit":{"max_per_second":2}}"#,
                "1 slots spaced 2/1s/1",
            ),
            (r#"{"rate_limit":null,"concurrency":0}"#, "0 slots"),
        ] {
            let config = read(body).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(line(&config.over(before.clone())), want, "{body}");
        }
    }

    #[test]
    fn next_starts_and_what_is_wrong_with_them() {
        let read = |body: &str| read_next_start(Json::parse(body.as_bytes(), 16).unwrap(), NOW);
        let later = |seconds: u64| Ok(NOW.plus(seconds * 1_000_000));
        assert_eq!(read(r#"{"after":"PT30S"}"#), later(30));
        assert_eq!(read(r#"{"after":"30s","at":null}"#), later(30));
        assert_eq!(read(r#"{"at":"2026-02-02T02:41:00Z"}"#), later(60));
        let wrong = [
            ("[]", "body", "an object"),
            ("{}", "at", "is missing"),
            (r#"{"after":"30"}"#, "after", "unit"),
            (
                r#"{"after":"1s","at":"2026-02-02T02:41:00Z"}"#,
                "after",
                "by itself",
            ),
            (r#"{"afterwards":"1s"}"#, "afterwards", "`after`"),
        ];
        for (body, field, says) in wrong {
            let error = read(body).unwrap_err();
            assert_eq!(error.field, field, "{body}");
            assert!(error.message.contains(says), "{body}: {}", error.message);
        }
    }
}
