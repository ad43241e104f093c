//! The operations of producers and workers.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Answer, ok, text};
use crate::backend::Extended;
use crate::backend::job::{Job, Phase, View};
use crate::backend::retry::Failure;
use crate::backend::state::{Beat, Fetch, State};
use crate::backend::wire::{Members, Raw, Refusal, millis};

/// The most that a FETCH claims.
const MOST: u64 = 1000;

/// An answer that shows jobs beside what else it tells.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    #[serde(flatten)]
    pub(super) told: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<View<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jobs: Option<Vec<View<'a>>>,
}

fn gone() -> Refusal {
    Refusal::new(404, "not_found", "Job not found.")
}

pub(super) fn wrapped(state: &State, number: u64) -> Answer {
    let job = state.view(number).ok_or_else(gone)?;
    ok(&Told {
        told: json!({}),
        job: Some(job),
        jobs: None,
    })
}

pub(super) fn bare(state: &State, number: u64) -> Answer {
    ok(&state.view(number).ok_or_else(gone)?)
}

fn read_job(state: &mut State, members: Members, now: Instant) -> Result<Job, Refusal> {
    let fresh = state.fresh_id(now);
    Job::parse(members, &state.lax, &state.clock, now, || fresh)
}

pub(super) fn enqueue(state: &mut State, body: &[u8], now: Instant) -> Answer {
    let members = Members::parse(body, &state.lax)?;
    let job = read_job(state, members, now)?;
    let stored = state.store(vec![job], now).map_err(|refusal| Refusal {
        index: None,
        ..refusal
    })?;
    let (_, body) = wrapped(state, stored.first().copied().unwrap_or_default())?;
    Ok((201, body))
}

pub(super) fn batch(state: &mut State, body: &[u8], now: Instant) -> Answer {
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
        text(&Told {
            told: json!({ "count": jobs.len() }),
            job: None,
            jobs: Some(jobs),
        }),
    ))
}

pub(super) fn fetch(state: &mut State, body: &[u8], now: Instant) -> Answer {
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
    ok(&Told {
        told: json!({}),
        job: jobs.first().copied(),
        jobs: Some(jobs),
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

pub(super) fn ack(state: &mut State, body: &[u8], now: Instant) -> Answer {
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members, state)?, worker_id(&members, state)?);
    let result: Option<Raw> = members.read("result", &state.lax)?;
    let number = state.ack(&id, worker.as_deref(), result, now)?;
    let told = json!({
        "acknowledged": true,
        "id": id,
        "state": Phase::Completed.name(),
        "completed_at": state.clock.print(now),
    });
    let job = state.view(number).filter(|_| state.lax.settle_shows_job);
    ok(&Told {
        told,
        job,
        jobs: None,
    })
}

#[expect(clippy::indexing_slicing, reason = "a JSON object takes any name")]
pub(super) fn nack(state: &mut State, body: &[u8], now: Instant) -> Answer {
    let members = Members::parse(body, &state.lax)?;
    let (id, worker) = (job_id(&members, state)?, worker_id(&members, state)?);
    let error: Members = members.read("error", &state.lax)?.unwrap_or_default();
    let error = Failure::parse(&error, &state.lax)?;
    let requeue = members.read("requeue", &state.lax)?.unwrap_or(false);
    let number = state.nack(&id, worker.as_deref(), error, requeue, now)?;
    let view = state.view(number).ok_or_else(gone)?;
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
    ok(&Told {
        told,
        job,
        jobs: None,
    })
}

#[expect(clippy::indexing_slicing, reason = "a JSON object takes any name")]
pub(super) fn heartbeat(state: &mut State, body: &[u8], now: Instant) -> Answer {
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
