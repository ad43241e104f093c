//! The operations of producers and workers.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::{ApiAnswer, ok, text};
use crate::job::{Phase, ShownJob, StoredJob};
use crate::lax::Extended;
use crate::retry::JobError;
use crate::state::BackendState;
use crate::state::claims::FetchRequest;
use crate::wire::{ErrorReply, Members, Raw};

/// The most jobs that one FETCH claims.
const MOST: usize = 1000;

/// An answer that shows jobs beside its other members.
#[derive(Serialize)]
pub(super) struct JobsAnswer<'a> {
    #[serde(flatten)]
    others: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<ShownJob<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<Vec<ShownJob<'a>>>,
}

impl<'a> JobsAnswer<'a> {
    fn one(others: Value, job: Option<ShownJob<'a>>) -> JobsAnswer<'a> {
        JobsAnswer {
            others,
            job,
            jobs: None,
        }
    }

    pub(super) fn all(others: Value, jobs: Vec<ShownJob<'a>>) -> JobsAnswer<'a> {
        JobsAnswer {
            others,
            job: None,
            jobs: Some(jobs),
        }
    }
}

fn shown(state: &BackendState, number: u64) -> Result<ShownJob<'_>, ErrorReply> {
    let gone = || ErrorReply::not_found("Job not found.");
    state.view(number).ok_or_else(gone)
}

fn all_shown<'a>(state: &'a BackendState, numbers: &[u64]) -> Vec<ShownJob<'a>> {
    let views = numbers.iter().filter_map(|number| state.view(*number));
    views.collect()
}

pub(super) fn wrapped(state: &BackendState, number: u64) -> ApiAnswer {
    ok(&JobsAnswer::one(json!({}), Some(shown(state, number)?)))
}

pub(super) fn bare(state: &BackendState, number: u64) -> ApiAnswer {
    ok(&shown(state, number)?)
}

fn read_job(
    state: &mut BackendState,
    members: Members,
    now: Instant,
) -> Result<StoredJob, ErrorReply> {
    let fresh = state.fresh_id(now);
    StoredJob::parse(members, &state.lax, &state.clock, now, fresh)
}

pub(super) fn enqueue(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let members = Members::parse(body, &state.lax)?;
    let job = read_job(state, members, now)?;
    let stored = state.store(vec![job], now).map_err(|refusal| ErrorReply {
        index: None,
        ..refusal
    })?;
    let (_, body) = wrapped(state, stored.first().copied().unwrap_or_default())?;
    Ok((201, body))
}

pub(super) fn batch(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let items = Members::parse(body, &state.lax)?.each("jobs")?;
    if items.is_empty() {
        return Err(ErrorReply::invalid(
            "The field 'jobs' must hold at least one job.",
        ));
    }
    let mut jobs = Vec::with_capacity(items.len());
    for (index, members) in items.into_iter().enumerate() {
        let job = read_job(state, members, now).map_err(|refusal| ErrorReply {
            index: Some(index),
            ..refusal
        })?;
        jobs.push(job);
    }
    let stored = state.store(jobs, now)?;
    let jobs = all_shown(state, &stored);
    let count = json!({ "count": jobs.len() });
    Ok((201, text(&JobsAnswer::all(count, jobs))))
}

pub(super) fn fetch(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let members = Members::parse(body, &state.lax)?;
    let queues: Vec<String> = members.read("queues")?.unwrap_or_default();
    if queues.is_empty() {
        return Err(ErrorReply::invalid(
            "The field 'queues' must name at least one queue.",
        ));
    }
    members.read::<Vec<String>>("capabilities")?;
    let count: i64 = members.read("count")?.unwrap_or(1);
    let fetch = FetchRequest {
        queues,
        count: usize::try_from(count).unwrap_or(1).clamp(1, MOST),
        worker: worker_id(&members)?,
        visibility: members.millis("visibility_timeout_ms")?,
    };
    let claimed = state.fetch(&fetch, now);
    let jobs = all_shown(state, &claimed);
    ok(&JobsAnswer {
        job: jobs.first().copied(),
        ..JobsAnswer::all(json!({}), jobs)
    })
}

fn worker_id(members: &Members) -> Result<Option<Arc<str>>, ErrorReply> {
    let id: Option<String> = members.read("worker_id")?;
    Ok(id.filter(|id| !id.is_empty()).map(Arc::from))
}

fn job_id(members: &Members) -> Result<String, ErrorReply> {
    let id: Option<String> = members.read("job_id")?;
    id.filter(|id| !id.is_empty())
        .ok_or_else(|| ErrorReply::invalid("The field 'job_id' is required."))
}

pub(super) fn ack(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members)?, worker_id(&members)?);
    let result: Option<Raw> = members.read("result")?;
    let number = state.ack(&id, worker.as_deref(), result, now)?;
    let told = json!({
        "acknowledged": true,
        "id": id,
        "state": Phase::Completed.name(),
        "completed_at": state.clock.print(now),
    });
    let job = state.view(number).filter(|_| state.lax.settle_shows_job);
    ok(&JobsAnswer::one(told, job))
}

#[expect(clippy::indexing_slicing, reason = "a JSON object takes any name")]
pub(super) fn nack(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members)?, worker_id(&members)?);
    let error = JobError::parse(&members.members("error")?.unwrap_or_default())?;
    let requeue = members.read("requeue")?.unwrap_or(false);
    let error = Some(error).filter(|_| !requeue);
    let number = state.nack(&id, worker.as_deref(), error, now)?;
    let view = shown(state, number)?;
    let job = view.job;
    let mut told = json!({
        "id": id,
        "state": job.phase.name(),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts(),
    });
    if job.phase == Phase::Discarded {
        told["discarded_at"] = state.clock.print(now).into();
        told["completed_at"] = state.clock.print(now).into();
    }
    if let (Phase::Retryable, Some(delay), Some(due)) = (job.phase, job.delay, job.due) {
        told["retry_delay_ms"] = json!(delay.as_millis());
        told["next_attempt_at"] = state.clock.print(due).into();
    }
    let job = Some(view).filter(|_| state.lax.settle_shows_job);
    ok(&JobsAnswer::one(told, job))
}

#[expect(clippy::indexing_slicing, reason = "a JSON object takes any name")]
pub(super) fn heartbeat(state: &mut BackendState, body: &[u8], now: Instant) -> ApiAnswer {
    let members = Members::parse(body, &state.lax)?;
    let worker = worker_id(&members)?;
    let worker = worker.ok_or_else(|| ErrorReply::invalid("The field 'worker_id' is required."))?;
    let mut named: Vec<String> = members.read("active_jobs")?.unwrap_or_default();
    named.extend(members.read::<String>("job_id")?);
    let visibility = members.millis("visibility_timeout_ms")?;
    let (extended, directive) = state.beat(&worker, named, visibility, now)?;
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
