//! Reads a job from an enqueue, checks it, and shows it.

use std::sync::Arc;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use super::lax::Lax;
use super::retry::{JobError, Retry};
use super::wire::{ErrorReply, Members, Moment, Raw, WallClock};

/// The states of a job's life.
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

/// The number of phases.
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

/// A job, as it was enqueued and as it is now.
#[derive(Debug)]
pub(super) struct StoredJob {
    pub id: Arc<str>,
    pub queue: Arc<str>,
    pub kind: Arc<str>,
    args: Raw,
    meta: Option<Raw>,
    schema: Option<Raw>,
    tags: Option<Raw>,
    unknown: Vec<(String, Raw)>,
    /// The directive that heartbeats give to its worker (a conformance convention).
    pub directive: Option<String>,
    pub priority: i32,
    pub retry: Option<Retry>,
    pub timeout: Option<Duration>,
    pub visibility: Option<Duration>,
    pub scheduled: Option<Moment>,
    pub expires: Option<Moment>,
    pub phase: Phase,
    pub attempt: u32,
    /// Its place among the jobs of its priority.
    pub order: u64,
    /// When its next deadline passes.
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
    pub errors: Vec<JobError>,
    /// In the dead-letter list.
    pub dead: bool,
}

/// The top-level members with a meaning in an enqueue.
const KNOWN: [&str; 6] = ["id", "type", "args", "meta", "schema", "options"];

/// The members of a job that only the backend sets.
const OWN: &str = "queue state priority attempt max_attempts timeout_ms tags created_at enqueued_at \
    scheduled_at expires_at started_at completed_at cancelled_at next_attempt_at retry_delay_ms \
    worker_id result error errors";

impl StoredJob {
    /// Reads and checks one enqueue, one member after the other; `fresh` is its id if none was sent.
    pub(super) fn parse(
        members: Members,
        lax: &Lax,
        clock: &WallClock,
        now: Instant,
        fresh: String,
    ) -> Result<StoredJob, ErrorReply> {
        let invalid = |message| Err(ErrorReply::invalid(message));
        let id = id(&members)?;
        let kind = kind(&members)?;
        let args = members.raw("args").cloned();
        let Some(args) = args.filter(|args| args.get().starts_with('[')) else {
            return invalid("The field 'args' must be an array.");
        };
        let options = members.members("options")?.unwrap_or_default();
        let queue = options.read::<String>("queue")?;
        let queue = queue.unwrap_or_else(|| "default".into());
        if !is_queue(&queue) {
            return invalid("The field 'options.queue' is not a queue name.");
        }
        let priority: i32 = options.read("priority")?.unwrap_or(0);
        if !(-100..=100).contains(&priority) {
            return invalid("The field 'options.priority' must be from -100 to 100.");
        }
        check_rate_limit(&options)?;
        let (meta, directive) = meta(&members, &options)?;
        let scheduled = match time(&options, "delay_until", lax, clock, now)? {
            Some(when) => Some(when),
            None => time(&options, "scheduled_at", lax, clock, now)?,
        };
        let at = scheduled.as_ref().map(|when| when.at);
        let due = at.filter(|at| *at > now);
        let tags = options.read::<Vec<String>>("tags")?;
        let retry = options.members("retry")?;
        Ok(StoredJob {
            id: id.unwrap_or(fresh).into(),
            queue: queue.into(),
            kind: kind.into(),
            args,
            meta,
            schema: members.read("schema")?,
            tags: tags.and(options.raw("tags").cloned()),
            directive,
            priority,
            retry: retry.map(|retry| Retry::parse(&retry)).transpose()?,
            timeout: options.millis("timeout_ms")?,
            visibility: options.millis("visibility_timeout_ms")?,
            due,
            scheduled,
            expires: time(&options, "expires_at", lax, clock, now)?,
            phase: due.map_or(Phase::Available, |_| Phase::Scheduled),
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

    /// How often the job may be attempted.
    pub(super) fn max_attempts(&self) -> u32 {
        self.retry
            .as_ref()
            .map_or(Retry::default().max_attempts, |retry| retry.max_attempts)
    }
}

/// The id that was sent with the job.
fn id(members: &Members) -> Result<Option<String>, ErrorReply> {
    let id = members.read::<String>("id")?;
    match id.as_ref().is_some_and(|id| !is_uuid_v7(id)) {
        true => Err(ErrorReply::invalid(
            "The field 'id' must be a lower-case UUIDv7.",
        )),
        false => Ok(id),
    }
}

/// The type of the job.
fn kind(members: &Members) -> Result<String, ErrorReply> {
    let kind = members.read::<String>("type")?.unwrap_or_default();
    match kind.len() <= 255 && kind.split('.').all(is_type_part) {
        true => Ok(kind),
        false => Err(ErrorReply::invalid(
            "The field 'type' is required: lower-case words joined by dots.",
        )),
    }
}

/// The unknown members, which are echoed.
fn kept(members: Members, lax: &Lax) -> Vec<(String, Raw)> {
    let mut unknown: Vec<(String, Raw)> = Vec::new();
    for (name, value) in members.all {
        let own = !lax.unknown_wins && OWN.split(' ').any(|own| own == name);
        if own || KNOWN.contains(&name.as_str()) {
            continue;
        }
        unknown.retain(|(earlier, _)| *earlier != name);
        unknown.push((name, value));
    }
    unknown
}

/// Checks the one whole number that backends read out of a rate limit, and forget.
fn check_rate_limit(options: &Members) -> Result<(), ErrorReply> {
    if let Some(limit) = options.members("rate_limit")? {
        limit.read::<i64>("max_per_second")?;
    }
    Ok(())
}

/// The metadata, and the directive in it. Metadata in the options wins over the member beside them.
fn meta(members: &Members, options: &Members) -> Result<(Option<Raw>, Option<String>), ErrorReply> {
    let own = options.object("metadata")?;
    let meta = match own.filter(|(_, inner)| !inner.all.is_empty()) {
        Some(meta) => Some(meta),
        None => members.object("meta")?,
    };
    let Some((raw, inner)) = meta else {
        return Ok((None, None));
    };
    let directive = inner.read::<serde_json::Value>("test_directive")?;
    let directive = directive.and_then(|directive| directive.as_str().map(str::to_owned));
    Ok((Some(raw), directive))
}

fn time(
    options: &Members,
    name: &str,
    lax: &Lax,
    clock: &WallClock,
    now: Instant,
) -> Result<Option<Moment>, ErrorReply> {
    let Some(text) = options.read::<String>(name)? else {
        return Ok(None);
    };
    match clock.when(&text, now) {
        None if !lax.accepts_any_time => Err(ErrorReply::invalid(format!(
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
    let uuid = uuid::Uuid::try_parse(id);
    uuid.is_ok_and(|uuid| {
        uuid.get_version_num() == 7
            && uuid.get_variant() == uuid::Variant::RFC4122
            && uuid.to_string() == id
    })
}

/// A job, as replies show it.
#[derive(Clone, Copy)]
pub(super) struct ShownJob<'a> {
    pub job: &'a StoredJob,
    pub clock: &'a WallClock,
    pub shows_claimer: bool,
}

impl Serialize for ShownJob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (job, clock) = (self.job, self.clock);
        let mut shown = JobMap {
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
            job.worker
                .as_deref()
                .filter(|_| self.shows_claimer && job.phase == Phase::Active),
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

/// Writes an object in which unknown members replace the members of their name.
struct JobMap<'a, M> {
    map: M,
    unknown: &'a [(String, Raw)],
}

impl<M: SerializeMap> JobMap<'_, M> {
    fn put(&mut self, name: &str, value: Option<impl Serialize>) -> Result<(), M::Error> {
        match value {
            Some(value) if !self.unknown.iter().any(|(other, _)| other == name) => {
                self.map.serialize_entry(name, &value)
            }
            _ => Ok(()),
        }
    }
}
