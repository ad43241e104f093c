//! Routes, and what each of them reads and answers.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::job::{Failure, Job, Members, Phase, Raw, Refusal, View, millis};
use super::state::{Beat, Fetch, Queue, State};
use super::{Event, EventKind, Extended};

/// The media type of every answer but those of unknown routes.
const OJS: &str = "application/openjobspec+json";
/// The longest body that is read.
pub(super) const LONGEST_BODY: usize = 1024 * 1024;
/// The most that a FETCH claims.
const MOST: u64 = 1000;

/// A status and the value to answer, or why not.
type Answer = Result<(u16, Vec<u8>), Refusal>;

/// Answers `request` as of `now`.
pub(super) fn answer(state: &mut State, request: &Request<Bytes>, now: Instant) -> Response<Bytes> {
    state.tick(now);
    let path = request.uri().path();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let id = request_id(state, request, now);
    let mut response = match check(request).and_then(|()| route(state, request, &segments, now)) {
        Ok((status, body)) => reply(status, body),
        Err(refusal) if refusal.code == NO_ROUTE => plain_404(),
        Err(refusal) if refusal.code == NO_METHOD => reply(405, Vec::new()),
        Err(refusal) => reply(refusal.status, envelope(&refusal, &id)),
    };
    let location = location(&segments, &response);
    let headers = response.headers_mut();
    headers.insert("ojs-version", HeaderValue::from_static(state.lax.version));
    headers.insert("x-request-id", id);
    if let Some(location) = location {
        headers.insert(header::LOCATION, location);
    }
    response
}

/// Codes that never leave: such answers have no envelope.
const NO_ROUTE: &str = "no_route";
const NO_METHOD: &str = "no_method";

fn reply(status: u16, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(OJS));
    response
}

fn plain_404() -> Response<Bytes> {
    let mut response = reply(404, b"404 page not found\n".to_vec());
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

fn envelope(refusal: &Refusal, id: &HeaderValue) -> Vec<u8> {
    let mut error = json!({
        "code": refusal.code,
        "message": refusal.message,
        "type": refusal.code,
        "retryable": refusal.status >= 500,
        "request_id": id.to_str().unwrap_or_default(),
        "hint": "Look at the message; the OJS text tells what each operation wants.",
        "docs_url": "https://openjobspec.org/",
    });
    if let Some(index) = refusal.index {
        error["details"] = json!({ "index": index });
    }
    text(&json!({ "error": error }))
}

fn text(value: &impl Serialize) -> Vec<u8> {
    // What is written here are strings, numbers and JSON that was parsed before: it cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

fn ok(value: &impl Serialize) -> Answer {
    Ok((200, text(value)))
}

fn request_id(state: &mut State, request: &Request<Bytes>, now: Instant) -> HeaderValue {
    let sent = request
        .headers()
        .get("x-request-id")
        .filter(|id| !id.is_empty())
        .cloned();
    sent.unwrap_or_else(|| {
        let id = format!("req_{}", state.fresh_id(now));
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("req"))
    })
}

/// A single enqueue tells where the job is.
fn location(segments: &[&str], response: &Response<Bytes>) -> Option<HeaderValue> {
    if *segments != ["ojs", "v1", "jobs"] || response.status() != StatusCode::CREATED {
        return None;
    }
    let body: Value = serde_json::from_slice(response.body()).ok()?;
    HeaderValue::from_str(&format!("/ojs/v1/jobs/{}", body["job"]["id"].as_str()?)).ok()
}

/// What holds for every request.
fn check(request: &Request<Bytes>) -> Result<(), Refusal> {
    let writes = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
    let media = request
        .headers()
        .get(header::CONTENT_TYPE)
        .filter(|_| writes);
    let media = media.map(|media| String::from_utf8_lossy(media.as_bytes()).to_ascii_lowercase());
    let media = media
        .as_deref()
        .map(|media| media.split(';').next().unwrap_or_default().trim());
    if media.is_some_and(|media| media != OJS && media != "application/json") {
        return Err(Refusal::invalid("Unsupported Content-Type."));
    }
    if request.body().len() > LONGEST_BODY {
        return Err(Refusal::invalid("Failed to read request body."));
    }
    Ok(())
}

fn route(state: &mut State, request: &Request<Bytes>, segments: &[&str], now: Instant) -> Answer {
    let rest = match segments {
        ["ojs", "manifest"] => return only(request, &Method::GET, || manifest(state)),
        ["ojs", "v1", rest @ ..] => rest,
        _ => return Err(Refusal::new(404, NO_ROUTE, "")),
    };
    let (method, body) = (request.method().as_str(), request.body());
    match (method, rest) {
        ("GET", ["health"]) => health(state, now),
        ("POST", ["jobs"]) => enqueue(state, body, now),
        ("POST", ["jobs", "batch"]) => batch(state, body, now),
        ("GET", ["jobs", id]) => wrapped(state, state.find(id)?.0),
        ("DELETE", ["jobs", id]) => state
            .cancel(id, now)
            .and_then(|number| wrapped(state, number)),
        ("POST", ["workers", "fetch"]) => fetch(state, body, now),
        ("POST", ["workers", "ack"]) => ack(state, body, now),
        ("POST", ["workers", "nack"]) => nack(state, body, now),
        ("POST", ["workers", "heartbeat"]) => heartbeat(state, body, now),
        ("GET", ["queues"]) => queues(state),
        ("GET", ["queues", name, "stats"]) => stats(state, name),
        ("POST", ["queues", name, "pause"]) => {
            ok(&json!({ "queue": pause(state, name, true, now) }))
        }
        ("POST", ["queues", name, "resume"]) => {
            ok(&json!({ "queue": pause(state, name, false, now) }))
        }
        ("GET", ["queues" | "jobs", _, "events"]) => Ok((200, b"retry: 3000\n\n".to_vec())),
        ("GET", ["events"]) => events(state, request.uri().query()),
        ("GET", ["dead-letter"]) => dead_letters(state),
        ("POST", ["dead-letter", id, "retry"]) => state
            .revive(id, true, now)
            .and_then(|number| wrapped(state, number)),
        ("DELETE", ["dead-letter", id]) => state
            .bury(id)
            .and_then(|()| ok(&json!({ "deleted": true, "job_id": id }))),
        (_, ["admin", rest @ ..]) => admin(state, request, rest, now),
        _ => Err(unrouted(rest)),
    }
}

fn only(request: &Request<Bytes>, method: &Method, then: impl FnOnce() -> Answer) -> Answer {
    if request.method() == method {
        then()
    } else {
        Err(Refusal::new(405, NO_METHOD, ""))
    }
}

/// 405 where another method would do, else 404.
fn unrouted(rest: &[&str]) -> Refusal {
    let known = matches!(
        rest,
        ["health" | "jobs" | "queues" | "events" | "dead-letter"]
            | ["jobs" | "dead-letter", _]
            | ["workers", "fetch" | "ack" | "nack" | "heartbeat"]
            | ["queues", _, "stats" | "pause" | "resume" | "events"]
            | ["jobs", _, "events"]
            | ["dead-letter", _, "retry"]
    );
    if known {
        Refusal::new(405, NO_METHOD, "")
    } else {
        Refusal::new(404, NO_ROUTE, "")
    }
}

fn admin(state: &mut State, request: &Request<Bytes>, rest: &[&str], now: Instant) -> Answer {
    let query = request.uri().query();
    let has_queues = state.lax.admin_queues;
    match (request.method().as_str(), rest) {
        ("POST", ["reset"]) => {
            state.clear();
            ok(&json!({ "status": "ok" }))
        }
        ("GET", ["queues"]) if has_queues => {
            let items: Vec<Value> = state
                .queues
                .iter()
                .map(|(name, queue)| admin_queue(state, name, queue))
                .collect();
            page(&items, query)
        }
        ("GET", ["queues", name]) if has_queues => match state.queues.get(*name) {
            Some(queue) => ok(&admin_queue(state, name, queue)),
            None => Err(Refusal::new(
                404,
                "not_found",
                format!("Queue '{name}' not found."),
            )),
        },
        ("POST", ["queues", name, "pause"]) if has_queues => ok(&pause(state, name, true, now)),
        ("POST", ["queues", name, "resume"]) if has_queues => ok(&pause(state, name, false, now)),
        ("GET", ["jobs"]) => {
            let wanted = |name: &str, value: &str| {
                parameter(query, name).is_none_or(|wanted| wanted == value)
            };
            let fits = |job: &Job| {
                wanted("queue", &job.queue)
                    && wanted("state", job.phase.name())
                    && wanted("type", &job.kind)
            };
            page(&views(state, fits), query)
        }
        ("GET", ["jobs", id]) => bare(state, state.find(id)?.0),
        ("POST", ["jobs", id, "cancel"]) => {
            state.cancel(id, now).and_then(|number| bare(state, number))
        }
        ("POST", ["jobs", id, "retry"]) => state
            .revive(id, false, now)
            .and_then(|number| bare(state, number)),
        ("GET", ["dead-letter"]) => page(&views(state, |job| job.dead), query),
        ("GET", ["dead-letter", "stats"]) => {
            ok(&json!({ "total": views(state, |job| job.dead).len() }))
        }
        ("POST", ["dead-letter", id, "retry"]) => state
            .revive(id, true, now)
            .and_then(|number| bare(state, number)),
        ("DELETE", ["dead-letter", id]) => state.bury(id).map(|()| (204, Vec::new())),
        _ => Err(Refusal::new(404, NO_ROUTE, "")),
    }
}

fn views(state: &State, fits: impl Fn(&Job) -> bool) -> Vec<View<'_>> {
    state
        .all()
        .filter(|job| fits(job))
        .map(|job| View {
            job,
            clock: &state.clock,
        })
        .collect()
}

/// The value of a query parameter; none of those that are used here needs decoding.
fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query.unwrap_or_default().split('&');
    let value = pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)?
        .1;
    Some(value).filter(|value| !value.is_empty())
}

/// One page of `items`.
fn page(items: &[impl Serialize], query: Option<&str>) -> Answer {
    #[derive(Serialize)]
    struct Page<T> {
        items: Vec<T>,
        pagination: Value,
    }
    let number = |name: &str, default: usize| {
        parameter(query, name)
            .and_then(|n| n.parse().ok())
            .unwrap_or(default)
    };
    let (at, per_page) = (
        number("page", 1).max(1),
        number("per_page", 20).clamp(1, 100),
    );
    let pagination = json!({ "total": items.len(), "page": at, "per_page": per_page });
    let items = items
        .iter()
        .skip(per_page.saturating_mul(at - 1))
        .take(per_page)
        .collect();
    ok(&Page { items, pagination })
}

fn manifest(state: &State) -> Answer {
    ok(&json!({
        "specversion": "1.0",
        "implementation": { "name": state.lax.name, "version": env!("CARGO_PKG_VERSION"), "backend": "memory" },
        "conformance_level": 1,
        "protocols": ["http"],
        "capabilities": {
            "batch_enqueue": true, "delayed_jobs": true, "priority_queues": true, "dead_letter": true,
            "cron_jobs": false, "workflows": false, "unique_jobs": false, "rate_limiting": false,
        },
        "extensions": { "official": [] },
    }))
}

fn health(state: &State, now: Instant) -> Answer {
    ok(&json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": state.clock.since_start(now).as_secs(),
        "backend": { "type": "memory", "status": "connected", "latency_ms": 0 },
    }))
}

/// `{"job": …}`
#[derive(Serialize)]
struct Wrapped<'a> {
    job: View<'a>,
}

fn gone() -> Refusal {
    Refusal::new(404, "not_found", "Job not found.")
}

fn wrapped(state: &State, number: u64) -> Answer {
    ok(&Wrapped {
        job: state.view(number).ok_or_else(gone)?,
    })
}

fn bare(state: &State, number: u64) -> Answer {
    ok(&state.view(number).ok_or_else(gone)?)
}

fn read_job(state: &mut State, members: Members, now: Instant) -> Result<Job, Refusal> {
    let fresh = state.fresh_id(now);
    Job::parse(members, &state.lax, &state.clock, now, || fresh)
}

fn enqueue(state: &mut State, body: &[u8], now: Instant) -> Answer {
    let members = Members::parse(body, &state.lax)?;
    let job = read_job(state, members, now)?;
    let stored = state.store(vec![job], now).map_err(|refusal| Refusal {
        index: None,
        ..refusal
    })?;
    let (_, body) = wrapped(state, stored.first().copied().unwrap_or_default())?;
    Ok((201, body))
}

fn batch(state: &mut State, body: &[u8], now: Instant) -> Answer {
    #[derive(Serialize)]
    struct Batch<'a> {
        jobs: Vec<View<'a>>,
        count: usize,
    }
    let items: Vec<Members> = Members::parse(body, &state.lax)?
        .read("jobs", &state.lax)?
        .unwrap_or_default();
    if items.is_empty() {
        return Err(Refusal::invalid(
            "The field 'jobs' must hold at least one job.",
        ));
    }
    let mut jobs = Vec::with_capacity(items.len());
    for (index, members) in items.into_iter().enumerate() {
        let job = read_job(state, members, now).map_err(|refusal| Refusal {
            index: Some(index),
            ..refusal
        })?;
        jobs.push(job);
    }
    let stored = state.store(jobs, now)?;
    let jobs: Vec<View<'_>> = stored
        .iter()
        .filter_map(|number| state.view(*number))
        .collect();
    Ok((
        201,
        text(&Batch {
            count: jobs.len(),
            jobs,
        }),
    ))
}

fn fetch(state: &mut State, body: &[u8], now: Instant) -> Answer {
    #[derive(Serialize)]
    struct Fetched<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<&'a View<'a>>,
        jobs: &'a [View<'a>],
    }
    let (members, lax) = (Members::parse(body, &state.lax)?, &state.lax);
    let queues: Vec<String> = members.read("queues", lax)?.unwrap_or_default();
    if queues.is_empty() {
        return Err(Refusal::invalid(
            "The field 'queues' must name at least one queue.",
        ));
    }
    members.read::<Vec<String>>("capabilities", lax)?;
    let count: i64 = members.read("count", lax)?.unwrap_or(1);
    let count = u64::try_from(count).unwrap_or(1).clamp(1, MOST);
    let fetch = Fetch {
        queues,
        count: usize::try_from(count).unwrap_or(1),
        worker: worker_id(&members, state)?,
        visibility: millis(&members, "visibility_timeout_ms", lax)?,
    };
    let claimed = state.fetch(&fetch, now);
    let jobs: Vec<View<'_>> = claimed
        .iter()
        .filter_map(|number| state.view(*number))
        .collect();
    ok(&Fetched {
        job: jobs.first(),
        jobs: &jobs,
    })
}

fn worker_id(members: &Members, state: &State) -> Result<Option<Arc<str>>, Refusal> {
    let id: Option<String> = members.read("worker_id", &state.lax)?;
    Ok(id.filter(|id| !id.is_empty()).map(Arc::from))
}

fn job_id(members: &Members, state: &State) -> Result<String, Refusal> {
    let id: Option<String> = members.read("job_id", &state.lax)?;
    id.filter(|id| !id.is_empty())
        .ok_or_else(|| Refusal::invalid("The field 'job_id' is required."))
}

fn ack(state: &mut State, body: &[u8], now: Instant) -> Answer {
    #[derive(Serialize)]
    struct Acked<'a> {
        acknowledged: bool,
        id: &'a str,
        state: &'static str,
        completed_at: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<View<'a>>,
    }
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members, state)?, worker_id(&members, state)?);
    let result: Option<Raw> = members.read("result", &state.lax)?;
    let number = state.ack(&id, worker.as_deref(), result, now)?;
    ok(&Acked {
        acknowledged: true,
        id: &id,
        state: Phase::Completed.name(),
        completed_at: state.clock.print(now),
        job: state.view(number).filter(|_| state.lax.settle_shows_job),
    })
}

fn nack(state: &mut State, body: &[u8], now: Instant) -> Answer {
    #[derive(Serialize)]
    struct Nacked<'a> {
        id: &'a str,
        state: &'static str,
        attempt: u32,
        max_attempts: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_delay_ms: Option<u128>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_attempt_at: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        discarded_at: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        completed_at: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<View<'a>>,
    }
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members, state)?, worker_id(&members, state)?);
    let error: Members = members.read("error", &state.lax)?.unwrap_or_default();
    let error = Failure::parse(&error, &state.lax)?;
    let requeue = members.read("requeue", &state.lax)?.unwrap_or(false);
    let number = state.nack(&id, worker.as_deref(), error, requeue, now)?;
    let view = state.view(number).ok_or_else(gone)?;
    let (job, printed) = (view.job, |yes: bool, at: Instant| {
        yes.then(|| state.clock.print(at))
    });
    let waits = job.phase == Phase::Retryable;
    ok(&Nacked {
        id: &id,
        state: job.phase.name(),
        attempt: job.attempt,
        max_attempts: job.max_attempts(),
        retry_delay_ms: job.delay.filter(|_| waits).map(|delay| delay.as_millis()),
        next_attempt_at: job.due.and_then(|due| printed(waits, due)),
        discarded_at: printed(job.phase == Phase::Discarded, now),
        completed_at: printed(job.phase == Phase::Discarded, now),
        job: Some(view).filter(|_| state.lax.settle_shows_job),
    })
}

fn heartbeat(state: &mut State, body: &[u8], now: Instant) -> Answer {
    let (members, lax) = (Members::parse(body, &state.lax)?, &state.lax);
    let worker = worker_id(&members, state)?;
    let worker = worker.ok_or_else(|| Refusal::invalid("The field 'worker_id' is required."))?;
    let mut named: Vec<String> = members.read("active_jobs", lax)?.unwrap_or_default();
    named.extend(members.read::<String>("job_id", lax)?);
    let visibility = millis(&members, "visibility_timeout_ms", lax)?;
    let Beat {
        extended,
        directive,
    } = state.beat(&worker, named, visibility, now)?;
    let directive = directive.unwrap_or_else(|| "continue".into());
    let running = if directive == "continue" {
        "running"
    } else {
        &directive
    };
    let mut reply = json!({
        "state": state.lax.heartbeat_state.unwrap_or(running),
        "directive": directive,
        "server_time": state.clock.print(now),
    });
    if state.lax.extended != Extended::AbsentIfNone || !extended.is_empty() {
        reply["jobs_extended"] = json!(extended);
    }
    ok(&reply)
}

fn queues(state: &State) -> Answer {
    let queues: Vec<Value> = state.queues.iter().map(|(name, queue)| {
        let status = if queue.paused { "paused" } else { "active" };
        json!({ "name": &**name, "status": status, "created_at": state.clock.print(queue.created) })
    }).collect();
    let pagination = json!({ "total": queues.len(), "limit": 50, "offset": 0, "has_more": false });
    ok(&json!({ "queues": queues, "pagination": pagination }))
}

fn stats(state: &State, name: &str) -> Answer {
    let queue = state.queues.get(name);
    if queue.is_none() && state.lax.unknown_queue_is_404 {
        return Err(Refusal::new(
            404,
            "not_found",
            format!("Queue '{name}' not found."),
        ));
    }
    let count = |phase: Phase| queue.map_or(0, |queue| queue.count(phase));
    ok(&json!({ "queue": {
        "name": name,
        "available": count(Phase::Available),
        "active": count(Phase::Active),
        "completed": count(Phase::Completed),
        "paused": queue.is_some_and(|queue| queue.paused),
    }}))
}

fn pause(state: &mut State, name: &str, paused: bool, now: Instant) -> Value {
    state.queue(name, now).paused = paused;
    json!({ "name": name, "paused": paused })
}

fn admin_queue(state: &State, name: &str, queue: &Queue) -> Value {
    let known = |phase: Phase| {
        if state.lax.counts_all {
            queue.count(phase)
        } else {
            0
        }
    };
    json!({ "name": name, "paused": queue.paused, "counts": {
        "available": queue.count(Phase::Available),
        "active": queue.count(Phase::Active),
        "completed": queue.count(Phase::Completed),
        "scheduled": known(Phase::Scheduled),
        "retryable": known(Phase::Retryable),
        "discarded": known(Phase::Discarded),
        "cancelled": 0,
    }})
}

fn dead_letters(state: &State) -> Answer {
    #[derive(Serialize)]
    struct Dead<'a> {
        jobs: Vec<View<'a>>,
        pagination: Value,
    }
    let jobs = views(state, |job| job.dead);
    let pagination = json!({ "total": jobs.len(), "limit": 50, "offset": 0, "has_more": false });
    ok(&Dead { jobs, pagination })
}

/// The ledger in the words of the OJS event catalogue, oldest first.
fn events(state: &State, query: Option<&str>) -> Answer {
    let listed = |name: &str, value: &str| {
        parameter(query, name).is_none_or(|all| all.split(',').any(|v| v == value))
    };
    let limit = parameter(query, "limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(50);
    let events: Vec<Value> = state
        .ledger
        .iter()
        .filter(|event| listed("types", event_type(event.kind)) && listed("queues", &event.queue))
        .take(limit)
        .map(event_json)
        .collect();
    ok(&json!({ "events": events }))
}

fn event_json(event: &Event) -> Value {
    json!({ "type": event_type(event.kind), "subject": &*event.job, "data": {
        "job_id": &*event.job,
        "job_type": &*event.job_type,
        "queue": &*event.queue,
        "attempt": event.attempt,
        "duration_ms": event.ran.unwrap_or_default().as_millis(),
    }})
}

fn event_type(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Stored => "job.enqueued",
        EventKind::Claimed => "job.started",
        EventKind::Acked => "job.completed",
        EventKind::Nacked => "job.failed",
        EventKind::Requeued => "job.requeued",
        EventKind::Expired => "job.expired",
        EventKind::Discarded => "job.discarded",
        EventKind::Cancelled => "job.cancelled",
        EventKind::Extended => "job.heartbeat",
        EventKind::Promoted => "job.available",
        EventKind::Revived => "job.retried",
    }
}

/// One frame of an event stream.
pub(super) fn frame(number: u64, change: &super::Change) -> Bytes {
    let data = json!({
        "event": "job.state_changed",
        "job_id": &*change.job,
        "queue": &*change.queue,
        "type": &*change.job_type,
        "from": change.from.unwrap_or_default(),
        "to": change.to,
        "timestamp": change.at,
    });
    let mut frame = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        frame,
        "id: evt_{number:04}\nevent: job.state_changed\ndata: {data}\n\n"
    );
    frame.into()
}
