//! What a nack says of the service behind a job, or that service itself in its answer to a call: "not before then".
//! When to believe it is `[policy.feedback]`.

use std::borrow::Cow;

use super::json_path::scalar;
use super::matcher::Pattern;
use super::vendor::{GENERIC, Vendor, VendorHead, date, seconds};
use ojs_duration as duration;
use ojs_json::{Json, Kind};
use ojs_limit::{Timestamp, fingerprint};

/// `[policy.feedback]`: which signals of a nack shut the policy's keys, and for how long.
#[derive(Clone, PartialEq, Debug)]
pub struct Feedback {
    /// Whether `rate_limit_until` is heeded (rate-limiting text, 9.1).
    pub until: bool,
    /// Whether `retry_after` is heeded.
    pub retry_after: bool,
    /// Whether the headers of a vendor's answer are heeded: to a call, or as a nack's `details` have them.
    pub headers: bool,
    /// What errors are called that mean "too many requests" and say no time, and the statuses of such answers to calls.
    /// 429 always is.
    pub codes: Vec<Pattern>,
    /// How long one of those shuts the key, in microseconds.
    pub default_pause: u64,
    /// The longest that any signal shuts it, in microseconds.
    pub max_pause: u64,
    /// Which part of `default_pause` may be added to it, 0 to 1: keys that were shut together do not
    /// open together.
    pub jitter: f64,
    /// How pauses grow while a key is refused again and again; `None`: they do not.
    pub backoff: Option<Backoff>,
}

/// `[policy.feedback.backoff]`: exponential, with full jitter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backoff {
    /// The pause of the first refusal in microseconds, without jitter.
    pub initial: u64,
    /// By how much each further refusal in a row multiplies it, from 1.
    pub multiplier: f64,
    /// Where it stops to grow, in microseconds.
    pub max: u64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            initial: 1_000_000,
            multiplier: 2.0,
            max: 600_000_000,
        }
    }
}

impl Backoff {
    /// The pause after `times` refusals in a row, in microseconds: its length, and up to as much again
    /// by `dice` (0 to 1), so that keys which were shut together do not open together.
    fn pause(&self, times: u32, dice: f64) -> u64 {
        let grown = self
            .multiplier
            .powi(times.saturating_sub(1).min(1_000) as i32);
        // A float that is too large becomes infinite, and the largest number after that.
        let whole = ((self.initial as f64 * grown) as u64).min(self.max);
        whole.saturating_add((whole as f64 * dice) as u64)
    }
}

impl Default for Feedback {
    fn default() -> Feedback {
        Feedback {
            until: true,
            retry_after: true,
            headers: true,
            codes: Vec::new(),
            default_pause: 10_000_000,
            max_pause: 900_000_000,
            jitter: 0.1,
            backoff: None,
        }
    }
}

/// How long a key is to be shut, and what said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// No starts before this time.
    pub until: Timestamp,
    /// The later time that was asked for; `None`: it is not cut.
    pub asked: Option<Timestamp>,
    /// The signal: `rate_limit_until`, `retry_after`, `headers` or `codes`.
    pub reason: &'static str,
    /// Until when another refusal is one more in a row; `None`: they are not counted.
    pub counts_until: Option<Timestamp>,
}

impl Feedback {
    /// What the `error` of a nack asks for at `now`: the latest time that any signal names, at most
    /// `max_pause` away, so that a worker with a wrong clock shuts nothing for years. Times that have
    /// passed and values that cannot be read are no signals. `times` is how often in a row the key was
    /// refused, now included; it and `job` seed the jitter.
    pub fn pause(
        &self,
        error: Json<'_>,
        key: &str,
        now: Timestamp,
        (job, times): (&str, u32),
    ) -> Option<Pause> {
        let details = error.get("details");
        let places = || [Some(error), details].into_iter().flatten();
        let until = places().filter_map(|place| moment(place.get("rate_limit_until")?));
        let after = places().filter_map(|place| later(place.get("retry_after")?, now));
        let headers = || {
            let head = VendorHead::read(&GENERIC, header_lines(details?));
            let spent = match head.is_of_another_part(key) {
                true => None,
                false => head.spent(now, 429, self.default_pause),
            };
            head.retry_after(now).max(spent)
        };
        let named = [
            (self.until, "rate_limit_until", until.max()),
            (self.retry_after, "retry_after", after.max()),
            (self.headers, "headers", headers()),
        ];
        let told = named
            .into_iter()
            .filter(|(heeded, ..)| *heeded)
            .filter_map(|(_, reason, until)| Some((until?, reason)))
            .filter(|(until, _)| *until > now)
            .max_by_key(|(until, _)| *until);
        self.until(told, || self.knows(error).then_some(0), now, (job, times))
    }

    /// What the reply of a service to a call of this key asks for, likewise. With a status that refuses calls
    /// `Retry-After` is heeded; with others it is about something else. Any reply may say that nothing is left. Without a
    /// vendor no header is read.
    pub fn pause_by_reply<'h>(
        &self,
        vendor: Option<&'static Vendor>,
        (status, lines): (u16, impl Iterator<Item = (&'h str, &'h str)>),
        key: &str,
        now: Timestamp,
        (call, times): (&str, u32),
    ) -> Option<Pause> {
        let (vendor, is_read) = (vendor.unwrap_or(&GENERIC), self.headers && vendor.is_some());
        let lines = lines.filter(|_| is_read);
        let head = VendorHead::read(
            vendor,
            lines.map(|(name, value)| (name, Cow::Borrowed(value))),
        );
        let refuses = matches!(status, 403 | 429 | 503 | 529);
        let after = refuses.then(|| head.retry_after(now)).flatten();
        let is_of_another = head.is_of_another_part(key);
        let is_of_few = is_read && status == 429 && head.is_of_few();
        let spent = match is_of_another {
            true => None,
            false => head.spent(now, status, self.default_pause),
        };
        let told = after.max(spent).filter(|until| *until > now && !is_of_few);
        let told = told.map(|until| (until, "headers"));
        let named = || {
            self.codes
                .iter()
                .any(|code| code.matches(&status.to_string()))
        };
        let known = || match status {
            429 if !(is_of_few || is_of_another && head.is_spent()) => Some(head.least()),
            400.. if named() => Some(0),
            _ => None,
        };
        self.until(told, known, now, (call, times))
    }

    /// How long a first refusal without a time shuts the key at least, in microseconds.
    pub fn unnamed_pause(&self) -> u64 {
        let first = self.backoff.map(|backoff| backoff.initial);
        first.unwrap_or(self.default_pause).min(self.max_pause)
    }

    /// Until when a key is shut for which a time was `told`, or for which the error is `known` to mean that, for so long
    /// at least.
    fn until(
        &self,
        told: Option<(Timestamp, &'static str)>,
        known: impl FnOnce() -> Option<u64>,
        now: Timestamp,
        (job, times): (&str, u32),
    ) -> Option<Pause> {
        let (told, reason, least) = match told {
            Some((until, reason)) => (Some(until), reason, 0),
            None => (None, "codes", known()?),
        };
        let dice = dice(job, times);
        let grown = self
            .backoff
            .map(|backoff| now.plus(backoff.pause(times, dice)));
        let until = told.max(grown);
        let until = until.unwrap_or_else(|| now.plus(self.unnamed(dice)));
        let until = until.max(now.plus(least)).min(now.plus(self.max_pause));
        Some(Pause {
            until,
            asked: told.filter(|told| *told > until),
            reason,
            counts_until: self.backoff.map(|backoff| until.plus(backoff.max)),
        })
    }

    /// `default_pause` and its jitter.
    fn unnamed(&self, dice: f64) -> u64 {
        let more = self.default_pause as f64 * self.jitter * dice;
        self.default_pause.saturating_add(more as u64)
    }

    /// Whether one of the codes names the error: its type or code, a value of its details, or its
    /// message.
    fn knows(&self, error: Json<'_>) -> bool {
        if self.codes.is_empty() {
            return false;
        }
        let details = error.get("details");
        let of_details = details
            .into_iter()
            .flat_map(|details| details.members())
            .map(|member| member.value);
        let own = ["type", "code", "message"]
            .into_iter()
            .filter_map(|name| error.get(name));
        own.chain(of_details)
            .filter_map(scalar)
            .any(|text| self.codes.iter().any(|code| names(code, &text)))
    }
}

/// A number from 0 to 1. Job ids differ, and the same run gives the same pauses.
fn dice(job: &str, times: u32) -> f64 {
    let hash = fingerprint([job.as_bytes(), &times.to_be_bytes()]);
    f64::from(hash as u32) / f64::from(u32::MAX)
}

/// Whether a code is the text, or names the error that the text tells of. Stock SDKs can say no more
/// than a stack trace: JavaScript's begins with `RateLimitError: …`, Python's ends with
/// `vendor.RateLimitError: …`, and the frames between are indented.
fn names(code: &Pattern, text: &str) -> bool {
    if code.matches(text) {
        return true;
    }
    let lines = text
        .lines()
        .filter(|line| !line.starts_with(char::is_whitespace));
    lines.filter_map(class).any(|class| {
        let last = class.rsplit(['.', ':', '\\']).next().unwrap_or(class);
        code.matches(class) || code.matches(last)
    })
}

/// The error's class in a line such as `vendor.RateLimitError: too many requests`.
fn class(line: &str) -> Option<&str> {
    let (class, _) = line.split_once(": ").unwrap_or((line, ""));
    let class = class.trim_end().trim_end_matches(':');
    (!class.is_empty() && !class.contains(' ')).then_some(class)
}

/// The signal of an error that is none of its forms, and what it says: it shuts nothing, and its worker thinks that it does.
pub fn unread_signal(error: Json<'_>) -> Option<(&'static str, String)> {
    let places = || [Some(error), error.get("details")].into_iter().flatten();
    let unread = |name: &'static str, is_read: fn(Json<'_>) -> bool| {
        let mut said = places().filter_map(|place| place.get(name));
        let unread = said.find(|value| !value.is_null() && !is_read(*value))?;
        let text = scalar(unread).map(|text| text.chars().take(64).collect());
        Some((name, text.unwrap_or_else(|| "no text".to_owned())))
    };
    unread("rate_limit_until", |value| moment(value).is_some())
        .or_else(|| unread("retry_after", is_delay))
}

/// Whether it is a number, no wait too, or one of the other forms.
fn is_delay(value: Json<'_>) -> bool {
    let number = || scalar(value)?.trim().parse::<f64>().ok();
    number().is_some_and(f64::is_finite) || later(value, Timestamp(0)).is_some()
}

/// An RFC 3339 time.
fn moment(value: Json<'_>) -> Option<Timestamp> {
    duration::moment(&value.text()?).map(Timestamp)
}

/// A number of seconds from now, as a number or text, a duration, or a date of HTTP.
fn later(value: Json<'_>, now: Timestamp) -> Option<Timestamp> {
    let text = scalar(value)?;
    let wait = seconds(&text).or_else(|| duration::parse(&text).ok());
    wait.map(|wait| now.plus(wait)).or_else(|| date(&text))
}

/// The headers of an answer in `details` themselves and in `details.headers`; a list has the values of several lines.
fn header_lines(details: Json<'_>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let places = [Some(details), details.get("headers")]
        .into_iter()
        .flatten();
    places.flat_map(|place| place.members()).flat_map(|member| {
        let (name, value) = (member.name.text().unwrap_or_default(), member.value);
        let one = (value.kind() != Kind::Array).then_some(value);
        let all = value.items().chain(one);
        all.filter_map(move |value| Some((name.clone(), scalar(value)?)))
    })
}
