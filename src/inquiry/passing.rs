//! What passes through here and changes the depth of a bounded queue.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use http::StatusCode;
use memchr::memmem::Finder;

use super::calls::job_in;
use crate::bounds::{Mark, NewJob, TakenTo};
use crate::desk::edges::now;
use crate::desk::{Sidecar, named};
use crate::duration;
use crate::hold::Held;
use crate::json::Json;
use crate::limit::Timestamp;
use crate::store::{Claimed, LedgerExt};
use crate::subqueues::mirror;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::Reply;

/// Stands in the reply to an enqueue of a job that waits for a time. Nearly no reply has it.
static SCHEDULED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"scheduled\""));

/// Notes how many jobs of each queue a FETCH got.
pub(crate) fn fetched(sidecar: &Sidecar, jobs: &HashMap<Arc<str>, u64>, sent: Mark, to: TakenTo) {
    let pressure = &sidecar.admit.pressure;
    for (queue, jobs) in jobs {
        pressure.left(queue, *jobs, sent, to, now(sidecar));
    }
}

/// Notes that jobs were claimed. Returns how many of them are of each bounded queue.
pub(crate) fn claimed(sidecar: &Sidecar, held: &[Held]) -> HashMap<Arc<str>, u64> {
    let pressure = &sidecar.admit.pressure;
    let mut counts = HashMap::new();
    for held in held {
        let queue = &held.claimed.queue;
        if pressure.bounds(queue).is_some() {
            pressure.waits_no_longer(queue, &held.claimed.job, sidecar.store.now());
            *counts.entry(Arc::clone(queue)).or_default() += 1;
        }
    }
    counts
}

/// Notes the jobs in a reply to a FETCH that passes as it is.
pub(crate) fn passed(
    sidecar: &Sidecar,
    reply: &Reply,
    queues: &[Arc<str>],
    asked: usize,
    sent: Mark,
) {
    let pressure = &sidecar.admit.pressure;
    let is_bounded = |queue: &Arc<str>| pressure.bounds(queue).is_some();
    if reply.status != StatusCode::OK || !queues.iter().any(is_bounded) {
        return;
    }
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return;
    };
    let jobs = whole.get_exact("jobs").into_iter().flat_map(|j| j.items());
    let mut counts: HashMap<Arc<str>, u64> = HashMap::new();
    let mut came = 0;
    for job in jobs {
        came += 1;
        // Some backends show a queue that a producer made up: one that was not asked for is not it. Which one is,
        // nobody says then, and of none it is sure that it has got shorter.
        let queue = match queues {
            [only] => Some(only),
            several => {
                let shown = mirror::queue(job, &sidecar.subqueues);
                let shown = shown.as_deref().unwrap_or("default");
                several.iter().find(|queue| ***queue == *shown)
            }
        };
        if let Some(queue) = queue {
            gone(sidecar, queue, job);
            *counts.entry(Arc::clone(queue)).or_default() += 1;
        }
    }
    fetched(sidecar, &counts, sent, TakenTo::Worker);
    if let ([only], true) = (queues, came < asked) {
        pressure.ran_dry(only, sent, now(sidecar));
    }
}

/// Notes what the backend says of a job that failed: it may wait again.
pub(crate) fn nacked(sidecar: &Sidecar, reply: &Reply, id: &str, claimed: Option<&Claimed>) {
    if !reply.status.is_success() || (claimed.is_none() && !sidecar.admit.pressure.any()) {
        return;
    }
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return;
    };
    let job = whole.get_exact("job");
    let of_job = |name: &str| whole.get_exact(name).or_else(|| job?.get_exact(name));
    let text = |name: &str| of_job(name).and_then(|value| value.text());
    let filed = job.and_then(mirror::filed);
    let (shown, state) = (filed.or_else(|| text("queue")), text("state"));
    let again = ["available", "retryable", "scheduled"];
    if let Some(claimed) = claimed.filter(|_| state.as_deref().is_some_and(|s| again.contains(&s)))
    {
        named::waits_again(sidecar, claimed);
        sidecar.subqueues.may_be_back(claimed);
    }
    let base_of = |shown| sidecar.subqueues.base_of(shown);
    let shown = shown.as_deref().map(base_of);
    let queue = claimed.map(|claimed| &*claimed.queue).or(shown);
    let pressure = &sidecar.admit.pressure;
    let Some(queue) = queue.filter(|_| pressure.any()) else {
        // Some backends do not say of which queue it is.
        if queue.is_none() && state.as_deref().is_none_or(|s| again.contains(&s)) {
            pressure.doubt_all();
        }
        return;
    };
    match state.as_deref() {
        Some("available") => pressure.came(queue),
        Some("retryable" | "scheduled") => {
            let at = text("next_attempt_at").and_then(|at| moment(&at));
            let at = at.unwrap_or_else(|| sidecar.store.now());
            pressure.came_to_retry(queue, id, at);
        }
        _ => {}
    }
}

/// Notes that a job was made available by hand: it waited for its next attempt, or had ended.
pub(crate) fn revived(sidecar: &Sidecar, reply: &Reply, id: &str) {
    let pressure = &sidecar.admit.pressure;
    if !reply.status.is_success() || !pressure.any() {
        return;
    }
    let job = job_in(&reply.body);
    let queue = job.and_then(|job| mirror::queue(job, &sidecar.subqueues));
    if let Some(queue) = queue
        && !pressure.waits_no_longer(&queue, id, sidecar.store.now())
    {
        pressure.came(&queue);
    }
}

/// Notes that a job was cancelled by a request that was `sent` then: it waits no longer, if it never started or
/// waited for its next attempt. `None`: it was held, and left the backend's number when it was claimed.
pub(crate) fn cancelled(sidecar: &Sidecar, reply: &Reply, sent: Option<Mark>) {
    if !reply.status.is_success() {
        return;
    }
    let Some(job) = job_in(&reply.body) else {
        return;
    };
    let id = job.text_of("id");
    let named = &sidecar.control.named;
    named.left(id.as_deref().into_iter());
    let pressure = &sidecar.admit.pressure;
    let queue = mirror::queue(job, &sidecar.subqueues);
    let Some(queue) = queue.filter(|_| pressure.any()) else {
        return;
    };
    let waited = pressure.waits_no_longer(&queue, &id.unwrap_or_default(), sidecar.store.now());
    let started = job.get_exact("started_at").is_some_and(|at| !at.is_null());
    if let Some(sent) = sent.filter(|_| waited || !started) {
        pressure.left(&queue, 1, sent, TakenTo::Worker, now(sidecar));
    }
    if sent.is_none() || !started {
        gone(sidecar, &queue, job);
    }
}

/// Notes that this job is in its queue no longer.
fn gone(sidecar: &Sidecar, queue: &str, job: Json<'_>) {
    let pressure = &sidecar.admit.pressure;
    if let Some(id) = job.text_of("id") {
        pressure.waits_no_longer(queue, &id, sidecar.store.now());
        pressure.gone(queue, &id, now(sidecar));
    }
}

/// Whether a job in the reply to an enqueue may wait for a time; `false` is certain.
pub(crate) fn may_wait(reply: &Reply) -> bool {
    SCHEDULED.find(&reply.body).is_some()
}

/// The jobs in the reply to an enqueue. Some backends answer with the job itself.
pub(crate) fn stored_jobs(sidecar: &Sidecar, reply: &Reply) -> Vec<NewJob> {
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return Vec::new();
    };
    let jobs = whole.get_exact("jobs");
    let alone = whole.get_exact("job").or(jobs.is_none().then_some(whole));
    let jobs = jobs.into_iter().flat_map(|jobs| jobs.items());
    let each = jobs.chain(alone).filter_map(|job| {
        let waits = job.says("state", "scheduled");
        let due = job.text_of("scheduled_at").filter(|_| waits);
        let queue = mirror::queue(job, &sidecar.subqueues);
        Some(NewJob {
            queue: Arc::from(queue.as_deref().unwrap_or("default")),
            id: Box::from(&*job.text_of("id")?),
            due: due.and_then(|at| moment(&at)),
        })
    });
    each.collect()
}

/// The time that a reply names.
fn moment(at: &str) -> Option<Timestamp> {
    duration::moment(at).map(Timestamp)
}
