//! A job: how it is read from an enqueue, checked, and shown.

use std::sync::Arc;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use super::Lax;
use super::retry::{Failure, Retry};
use super::wire::{Clock, Members, Raw, Refusal, When, millis};

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
const OWN: &str = "queue state priority attempt max_attempts timeout_ms tags created_at enqueued_at \
    scheduled_at expires_at started_at completed_at cancelled_at next_attempt_at retry_delay_ms \
    worker_id result error errors";

impl Job {
    /// Reads and checks one enqueue; `fresh` makes an id where none was sent.
    #[expect(
        clippy::too_many_lines,
        reason = "one member after the other, in the order of the text"
    )]
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
        let own = !lax.unknown_wins && OWN.split(' ').any(|own| own == name);
        if own || KNOWN.contains(&name.as_str()) {
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
#[derive(Clone, Copy)]
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
        shown.put("id", Some(&*job.id))?;
        shown.put("type", Some(&*job.kind))?;
        shown.put("queue", Some(&*job.queue))?;
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
