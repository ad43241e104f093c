//! The pages that show state, and the admin view.

use bytes::Bytes;
use http::Request;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::{ApiAnswer, NO_ROUTE, ok};
use super::operations::{JobsAnswer, bare};
use crate::event::{Event, EventKind};
use crate::job::{Phase, StoredJob};
use crate::state::{BackendState, JobQueue};
use crate::wire::ErrorReply;

pub(super) fn admin(
    state: &mut BackendState,
    request: &Request<Bytes>,
    rest: &[&str],
    now: Instant,
) -> ApiAnswer {
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
            None => Err(no_queue(name)),
        },
        ("POST", ["queues", name, verb @ ("pause" | "resume")]) if has_queues => {
            ok(&pause_or_resume(state, name, verb, now))
        }
        ("GET", ["jobs"]) => {
            let wanted = |name: &str, value: &str| {
                parameter(query, name).is_none_or(|wanted| wanted == value)
            };
            let fits = |job: &StoredJob| {
                wanted("queue", &job.queue)
                    && wanted("state", job.phase.name())
                    && wanted("type", &job.kind)
            };
            page(&state.views(fits), query)
        }
        ("GET", ["jobs", id]) => bare(state, state.find(id)?.0),
        ("POST", ["jobs", id, "cancel"]) => {
            state.cancel(id, now).and_then(|number| bare(state, number))
        }
        ("POST", ["jobs", id, "retry"]) => {
            state.revive(id, now).and_then(|number| bare(state, number))
        }
        ("GET", ["dead-letter"]) => page(&state.views(|job| job.dead), query),
        ("GET", ["dead-letter", "stats"]) => {
            ok(&json!({ "total": state.views(|job| job.dead).len() }))
        }
        ("POST", ["dead-letter", id, "retry"]) => state
            .revive_dead(id, now)
            .and_then(|number| bare(state, number)),
        ("DELETE", ["dead-letter", id]) => state.bury(id).map(|()| (204, Vec::new())),
        _ => Err(ErrorReply::new(404, NO_ROUTE, "")),
    }
}

/// The value of a query parameter; none of those that are used here needs decoding.
fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query.unwrap_or_default().split('&');
    let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name)?.1;
    Some(value).filter(|value| !value.is_empty())
}

/// One page of `items`.
fn page(items: &[impl Serialize], query: Option<&str>) -> ApiAnswer {
    #[derive(Serialize)]
    struct ListPage<T> {
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
    let items = items.iter().skip(per_page.saturating_mul(at - 1));
    let items = items.take(per_page).collect();
    ok(&ListPage { items, pagination })
}

pub(super) fn manifest(state: &BackendState) -> ApiAnswer {
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

pub(super) fn health(state: &BackendState, now: Instant) -> ApiAnswer {
    ok(&json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": state.clock.since_start(now).as_secs(),
        "backend": { "type": "memory", "status": "connected", "latency_ms": 0 },
    }))
}

pub(super) fn queues(state: &BackendState) -> ApiAnswer {
    let queues: Vec<Value> = state.queues.iter().map(|(name, queue)| {
        let status = if queue.paused { "paused" } else { "active" };
        json!({ "name": &**name, "status": status, "created_at": state.clock.print(queue.created) })
    }).collect();
    let pagination = json!({ "total": queues.len(), "limit": 50, "offset": 0, "has_more": false });
    ok(&json!({ "queues": queues, "pagination": pagination }))
}

pub(super) fn stats(state: &BackendState, name: &str) -> ApiAnswer {
    let queue = state.queues.get(name);
    if queue.is_none() && state.lax.unknown_queue_is_404 {
        return Err(no_queue(name));
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

pub(super) fn pause_or_resume(
    state: &mut BackendState,
    name: &str,
    verb: &str,
    now: Instant,
) -> Value {
    let queue = state.queue(name, now);
    queue.paused = verb == "pause";
    json!({ "name": name, "paused": queue.paused })
}

fn no_queue(name: &str) -> ErrorReply {
    ErrorReply::not_found(format!("Queue '{name}' not found."))
}

fn admin_queue(state: &BackendState, name: &str, queue: &JobQueue) -> Value {
    let known = |phase: Phase| match state.lax.counts_all {
        true => queue.count(phase),
        false => 0,
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

pub(super) fn dead_letters(state: &BackendState) -> ApiAnswer {
    let jobs = state.views(|job| job.dead);
    let pagination = json!({ "total": jobs.len(), "limit": 50, "offset": 0, "has_more": false });
    ok(&JobsAnswer::all(json!({ "pagination": pagination }), jobs))
}

/// The ledger in the words of the OJS event catalogue, oldest first.
pub(super) fn events(state: &BackendState, query: Option<&str>) -> ApiAnswer {
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
