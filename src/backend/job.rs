//! A job: how it is read from an enqueue, checked, and shown.

use std::sync::Arc;
use std::time::Duration;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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

    fn raw(&self, name: &str, lax: &Lax) -> Option<&Raw> {
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
    fn object(&self, name: &str, lax: &Lax) -> Result<Option<(Raw, Members)>, Refusal> {
        let members = self.read::<Members>(name, lax)?;
        Ok(members.and_then(|members| Some((self.raw(name, lax)?.clone(), members))))
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Scheduled,
    Available,
    Active,
    Retryable,
    Completed,
    Discarded,
    Cancelled,
}

/// How many phases there are.
pub(super) const PHASES: usize = 7;

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Scheduled => "scheduled",
            Phase::Available => "available",
            Phase::Active => "active",
            Phase::Retryable => "retryable",
            Phase::Completed => "completed",
            Phase::Discarded => "discarded",
            Phase::Cancelled => "cancelled",
        }
    }

    pub(super) fn terminal(self) -> bool {
        matches!(self, Phase::Completed | Phase::Discarded | Phase::Cancelled)
    }
}

/// `options.retry`.
#[derive(Debug)]
pub(super) struct Retry {
    pub max_attempts: u32,
    initial: Duration,
    longest: Duration,
    coefficient: f64,
    linear: bool,
    pub jitter: bool,
    fatal: Vec<String>,
    pub keeps_dead: bool,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            max_attempts: 3,
            initial: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            coefficient: 2.0,
            linear: false,
            jitter: true,
            fatal: Vec::new(),
            keeps_dead: false,
        }
    }
}

impl Retry {
    fn parse(members: &Members, lax: &Lax) -> Result<Retry, Refusal> {
        let invalid = |message: String| Refusal::new(422, "validation_error", message);
        let mut retry = Retry::default();
        if let Some(max) = members.read::<i64>("max_attempts", lax)? {
            retry.max_attempts = u32::try_from(max)
                .map_err(|_| invalid(format!("retry.max_attempts must not be {max}")))?;
        }
        if let Some(coefficient) = members.read::<f64>("backoff_coefficient", lax)? {
            if coefficient < 1.0 {
                return Err(invalid(
                    "retry.backoff_coefficient must be at least 1.0".into(),
                ));
            }
            retry.coefficient = coefficient;
        }
        for (name, field) in [
            ("initial_interval", &mut retry.initial),
            ("max_interval", &mut retry.longest),
        ] {
            if let Some(text) = members.read::<String>(name, lax)? {
                *field = duration(&text)
                    .ok_or_else(|| invalid(format!("retry.{name} is not a duration")))?;
            }
        }
        retry.linear =
            members.read::<String>("backoff_strategy", lax)?.as_deref() == Some("linear");
        retry.jitter = members.read("jitter", lax)?.unwrap_or(true);
        retry.fatal = members
            .read("non_retryable_errors", lax)?
            .unwrap_or_default();
        retry.keeps_dead =
            members.read::<String>("on_exhaustion", lax)?.as_deref() == Some("dead_letter");
        Ok(retry)
    }

    /// The wait after the `attempt`th failure, before jitter.
    pub(super) fn delay(&self, attempt: u32) -> Duration {
        let initial = self.initial.as_secs_f64();
        let wait = match self.linear {
            true => initial * f64::from(attempt.max(1)),
            false => initial * self.coefficient.powf(f64::from(attempt.max(1) - 1)),
        };
        Duration::from_secs_f64(wait.min(self.longest.as_secs_f64()))
    }

    /// Whether `error` is one that the policy names as not worth another attempt; `Auth.*` names
    /// all that begin with `Auth.`.
    pub(super) fn is_fatal(&self, error: &Failure) -> bool {
        let class = error.details.as_ref().and_then(|details| {
            let details: serde_json::Value = serde_json::from_str(details.get()).ok()?;
            Some(details.get("error_class")?.as_str()?.to_owned())
        });
        let names = [
            error.kind.as_str(),
            error.code.as_str(),
            class.as_deref().unwrap_or_default(),
        ];
        self.fatal
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => names.iter().any(|name| name.starts_with(prefix)),
                None => names.iter().any(|name| name == pattern),
            })
    }
}

/// One failed attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    pub code: String,
    pub kind: String,
    pub message: String,
    pub retryable: Option<bool>,
    pub details: Option<Raw>,
    pub attempt: u32,
    pub at: String,
}

impl Failure {
    /// The `error` of a nack; one that is missing is a failure without a name.
    pub(super) fn parse(members: &Members, lax: &Lax) -> Result<Failure, Refusal> {
        let code: Option<String> = members.read("code", lax)?;
        let kind: Option<String> = members.read("type", lax)?;
        Ok(Failure {
            kind: kind
                .or_else(|| code.clone())
                .unwrap_or_else(|| "error".into()),
            code: code.unwrap_or_else(|| "handler_error".into()),
            message: members.read("message", lax)?.unwrap_or_default(),
            retryable: members.read("retryable", lax)?,
            details: members.read("details", lax)?,
            ..Failure::default()
        })
    }
}

impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", &self.code)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("message", &self.message)?;
        if let Some(retryable) = self.retryable {
            map.serialize_entry("retryable", &retryable)?;
        }
        if let Some(details) = &self.details {
            map.serialize_entry("details", details)?;
        }
        map.serialize_entry("attempt", &self.attempt)?;
        map.serialize_entry("occurred_at", &self.at)?;
        map.end()
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
    fn when(&self, text: &str, now: Instant) -> Option<When> {
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
fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .ok()?;
    Duration::try_from(exact).ok()
}

/// A job and all that is known of it.
#[derive(Debug)]
pub(super) struct Job {
    pub id: Arc<str>,
    pub queue: Arc<str>,
    pub kind: Arc<str>,
    args: Raw,
    meta: Option<Raw>,
    schema: Option<Raw>,
    tags: Option<Raw>,
    unknown: Vec<(String, Raw)>,
    /// What the worker that runs it shall be told at its heartbeats (a conformance convention).
    pub directive: Option<String>,
    pub priority: i32,
    pub retry: Option<Retry>,
    pub timeout: Option<Duration>,
    pub visibility: Option<Duration>,
    pub scheduled: Option<When>,
    pub expires: Option<When>,
    pub phase: Phase,
    pub attempt: u32,
    /// Place among its equals in priority.
    pub order: u64,
    /// When something happens to it by itself.
    pub due: Option<Instant>,
    pub created: Instant,
    pub started: Option<Instant>,
    pub completed: Option<Instant>,
    pub cancelled: Option<Instant>,
    pub worker: Option<Arc<str>>,
    /// Visibility of the claim.
    pub lease: Duration,
    /// Wait before the next attempt.
    pub delay: Option<Duration>,
    pub result: Option<Raw>,
    pub errors: Vec<Failure>,
    /// In the dead-letter list.
    pub dead: bool,
}

/// The top-level members that an enqueue gives a meaning.
const KNOWN: [&str; 6] = ["id", "type", "args", "meta", "schema", "options"];

/// Names of a job's members that only the backend sets.
const OWN: [&str; 20] = [
    "queue",
    "state",
    "priority",
    "attempt",
    "max_attempts",
    "timeout_ms",
    "tags",
    "created_at",
    "enqueued_at",
    "scheduled_at",
    "expires_at",
    "started_at",
    "completed_at",
    "cancelled_at",
    "next_attempt_at",
    "retry_delay_ms",
    "worker_id",
    "result",
    "error",
    "errors",
];

impl Job {
    /// Reads and checks one enqueue; `fresh` makes an id where none was sent.
    pub(super) fn parse(
        members: Members,
        lax: &Lax,
        clock: &Clock,
        now: Instant,
        fresh: impl FnOnce() -> String,
    ) -> Result<Job, Refusal> {
        let id = members.read::<String>("id", lax)?;
        if id.as_ref().is_some_and(|id| !is_uuid_v7(id)) {
            return Err(Refusal::invalid(
                "The field 'id' must be a lower-case UUIDv7.",
            ));
        }
        let kind = members.read::<String>("type", lax)?.unwrap_or_default();
        if kind.len() > 255 || !kind.split('.').all(is_type_part) {
            return Err(Refusal::invalid(
                "The field 'type' is required: lower-case words joined by dots.",
            ));
        }
        let args = members
            .raw("args", lax)
            .filter(|args| args.get().starts_with('['));
        let args = args
            .cloned()
            .ok_or_else(|| Refusal::invalid("The field 'args' must be an array."))?;
        let options = members.read::<Members>("options", lax)?.unwrap_or_default();
        let queue = options
            .read::<String>("queue", lax)?
            .unwrap_or_else(|| "default".into());
        if !is_queue(&queue) {
            return Err(Refusal::invalid(
                "The field 'options.queue' is not a queue name.",
            ));
        }
        let priority: i32 = options.read("priority", lax)?.unwrap_or(0);
        if !(-100..=100).contains(&priority) {
            return Err(Refusal::invalid(
                "The field 'options.priority' must be from -100 to 100.",
            ));
        }
        check_rate_limit(&options, lax)?;
        let meta = options
            .object("metadata", lax)?
            .filter(|(_, inner)| !inner.0.is_empty());
        let meta = meta.map_or_else(|| members.object("meta", lax), |meta| Ok(Some(meta)))?;
        let directive = match &meta {
            Some((_, inner)) => inner.read::<serde_json::Value>("test_directive", lax)?,
            None => None,
        };
        let scheduled = match time(&options, "delay_until", lax, clock, now)? {
            Some(when) => Some(when),
            None => time(&options, "scheduled_at", lax, clock, now)?,
        };
        let later = scheduled.as_ref().is_some_and(|when| when.at > now);
        Ok(Job {
            id: id.unwrap_or_else(fresh).into(),
            queue: queue.into(),
            kind: kind.into(),
            args,
            meta: meta.map(|(raw, _)| raw),
            schema: members.read("schema", lax)?,
            tags: options
                .read::<Vec<String>>("tags", lax)?
                .and(options.raw("tags", lax).cloned()),
            directive: directive
                .as_ref()
                .and_then(|d| d.as_str())
                .map(str::to_owned),
            priority,
            retry: options
                .read::<Members>("retry", lax)?
                .map(|retry| Retry::parse(&retry, lax))
                .transpose()?,
            timeout: millis(&options, "timeout_ms", lax)?,
            visibility: millis(&options, "visibility_timeout_ms", lax)?,
            due: scheduled.as_ref().filter(|_| later).map(|when| when.at),
            scheduled,
            expires: time(&options, "expires_at", lax, clock, now)?,
            phase: if later {
                Phase::Scheduled
            } else {
                Phase::Available
            },
            attempt: 0,
            order: 0,
            created: now,
            started: None,
            completed: None,
            cancelled: None,
            worker: None,
            lease: Duration::ZERO,
            delay: None,
            result: None,
            errors: Vec::new(),
            dead: false,
            unknown: kept(members, lax),
        })
    }

    /// Attempts in all.
    pub(super) fn max_attempts(&self) -> u32 {
        self.retry
            .as_ref()
            .map_or(Retry::default().max_attempts, |retry| retry.max_attempts)
    }
}

/// What is echoed though it means nothing.
fn kept(members: Members, lax: &Lax) -> Vec<(String, Raw)> {
    let mut unknown: Vec<(String, Raw)> = Vec::new();
    for (name, value) in members.0 {
        if KNOWN.contains(&name.as_str()) || (!lax.unknown_wins && OWN.contains(&name.as_str())) {
            continue;
        }
        unknown.retain(|(earlier, _)| *earlier != name);
        unknown.push((name, value));
    }
    unknown
}

/// Backends read one whole number out of a rate limit, and forget it.
fn check_rate_limit(options: &Members, lax: &Lax) -> Result<(), Refusal> {
    if let Some(limit) = options.read::<Members>("rate_limit", lax)? {
        limit.read::<i64>("max_per_second", lax)?;
    }
    Ok(())
}

fn time(
    options: &Members,
    name: &str,
    lax: &Lax,
    clock: &Clock,
    now: Instant,
) -> Result<Option<When>, Refusal> {
    let Some(text) = options.read::<String>(name, lax)? else {
        return Ok(None);
    };
    match clock.when(&text, now) {
        None if !lax.accepts_any_time => Err(Refusal::invalid(format!(
            "The field 'options.{name}' is not a time."
        ))),
        when => Ok(when),
    }
}

fn is_type_part(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_lowercase())
        && part
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

fn is_queue(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=128).contains(&name.len())
        && name.bytes().next().is_some_and(alphanumeric)
        && name
            .bytes()
            .all(|b| alphanumeric(b) || b == b'.' || b == b'-')
}

fn is_uuid_v7(id: &str) -> bool {
    id.len() == 36
        && id.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            14 => b == b'7',
            19 => matches!(b, b'8' | b'9' | b'a' | b'b'),
            _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
        })
}

/// A job as it is shown.
pub(super) struct View<'a> {
    pub job: &'a Job,
    pub clock: &'a Clock,
}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (job, clock) = (self.job, self.clock);
        let mut shown = Shown {
            map: serializer.serialize_map(None)?,
            unknown: &job.unknown,
        };
        let date = |at: Option<Instant>| at.map(|at| clock.print(at));
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        shown.put("id", Some(&job.id[..]))?;
        shown.put("type", Some(&job.kind[..]))?;
        shown.put("queue", Some(&job.queue[..]))?;
        shown.put("state", Some(job.phase.name()))?;
        shown.put("args", Some(&job.args))?;
        shown.put("meta", job.meta.as_ref())?;
        shown.put("schema", job.schema.as_ref())?;
        shown.put("priority", Some(job.priority))?;
        shown.put("attempt", Some(job.attempt))?;
        shown.put("max_attempts", Some(job.max_attempts()))?;
        shown.put("timeout_ms", job.timeout.map(millis))?;
        shown.put("tags", job.tags.as_ref())?;
        shown.put("created_at", date(Some(job.created)))?;
        shown.put("enqueued_at", date(Some(job.created)))?;
        shown.put(
            "scheduled_at",
            job.scheduled.as_ref().map(|when| &when.text),
        )?;
        shown.put("expires_at", job.expires.as_ref().map(|when| &when.text))?;
        shown.put("started_at", date(job.started))?;
        shown.put("completed_at", date(job.completed))?;
        shown.put("cancelled_at", date(job.cancelled))?;
        shown.put(
            "next_attempt_at",
            date(job.due.filter(|_| job.phase == Phase::Retryable)),
        )?;
        shown.put("retry_delay_ms", job.delay.map(millis))?;
        shown.put(
            "worker_id",
            job.worker.as_deref().filter(|_| job.phase == Phase::Active),
        )?;
        shown.put("result", job.result.as_ref())?;
        shown.put(
            "error",
            job.errors.last().filter(|_| job.phase != Phase::Completed),
        )?;
        shown.put(
            "errors",
            Some(&job.errors).filter(|errors| !errors.is_empty()),
        )?;
        for (name, value) in &job.unknown {
            shown.map.serialize_entry(name, value)?;
        }
        shown.map.end()
    }
}

/// An object in the making, in which unknown members take the place of those of their name.
struct Shown<'a, M> {
    map: M,
    unknown: &'a [(String, Raw)],
}

impl<M: SerializeMap> Shown<'_, M> {
    fn put(&mut self, name: &str, value: Option<impl Serialize>) -> Result<(), M::Error> {
        match value {
            Some(value) if !self.unknown.iter().any(|(other, _)| other == name) => {
                self.map.serialize_entry(name, &value)
            }
            _ => Ok(()),
        }
    }
}
