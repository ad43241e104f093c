//! The depth of bounded queues: looks at the backend, and what passes through here and changes the depth.

pub(super) mod share;
pub(super) mod told;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::StatusCode;
use memchr::memmem::Finder;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::admit::Admit;
use super::calls::{self, job_in};
use super::control::named;
use super::load::Seldom;
use super::{BackendFacts, Proxy, REPLY_DEPTH, Sidecar, mirror};
use crate::duration;
use crate::events::{NewEvent, Value};
use crate::json::Json;
use crate::limit::Timestamp;
use crate::log::cut;
use crate::pressure::{
    Bounds, Edge, Level, LookKind, Looking, Mark, NewJob, Now, StatsTold, TakenTo, Untold,
};
use crate::store::{LedgerExt, Row};
use crate::tick;
use crate::upstream::Reply;

/// How long a look waits for enqueues that are on their way.
const SETTLE: Duration = Duration::from_millis(250);
/// The most looks that are on their way at once: each has a connection.
pub(super) const AT_ONCE: usize = 16;
/// The most queues that are looked at at the start.
const MET: usize = 1_000;
/// More queues without bounds than this are not warned of one by one.
const MOST_WARNED: usize = 1_000;
/// The most queues that one line names.
const NAMED: usize = 20;

/// Stands in the reply to an enqueue of a job that waits for a time. Nearly no reply has it.
static SCHEDULED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"scheduled\""));

/// This moment on both clocks.
pub(super) fn now(sidecar: &Sidecar) -> Now {
    let at = tick::now();
    Now {
        at,
        stamp: sidecar.store.at(at),
    }
}

/// Where a queue stands. Tells of an edge that was crossed.
pub(super) fn tell_level(sidecar: &Sidecar, queue: &str) -> Option<Level> {
    let level = sidecar.admit.pressure.level(queue)?;
    tell_edge(sidecar, queue, &level);
    Some(level)
}

/// Tells of edges that were crossed.
pub(super) fn tell_edges(sidecar: &Sidecar, levels: &[(Arc<str>, Level)]) {
    for (queue, level) in levels {
        tell_edge(sidecar, queue, level);
    }
}

/// Tells of an edge that was crossed.
fn tell_edge(sidecar: &Sidecar, queue: &str, level: &Level) {
    if let (Some(crossed), Some(most)) = (level.crossed, level.most) {
        let (depth, bound, unit) = (most.used, most.bound, most.unit.as_str());
        let kind = match crossed.edge {
            Edge::Warning => "backpressure.warning",
            Edge::Cleared => "backpressure.cleared",
        };
        match crossed.edge {
            _ if !crossed.loud => {}
            Edge::Warning => {
                tracing::warn!(id = %"near_bound", queue, depth, bound, unit, "the queue is near its bound");
            }
            Edge::Cleared => {
                tracing::info!(queue, depth, bound, unit, "the queue has room again");
            }
        }
        let mut data = vec![
            ("queue", Value::Text(queue)),
            ("depth", Value::Number(depth)),
            ("bound", Value::Number(bound)),
        ];
        // Numbers that are no depth of the queue say what they are.
        data.extend(unit.map(|unit| ("unit", Value::Text(unit))));
        if crossed.anew {
            tell_pressure(sidecar, kind, queue, None, &data);
        }
    }
}

/// Sends an event about a queue.
pub(super) fn tell_pressure(
    sidecar: &Sidecar,
    kind: &'static str,
    queue: &str,
    job: Option<(&str, &str)>,
    data: &[(&'static str, Value<'_>)],
) {
    let event = NewEvent {
        kind,
        subject: job.map_or(queue, |(id, _)| id),
        queue: Some(queue),
        job: job.map(|(id, _)| id),
        job_type: job.map(|(_, kind)| kind),
        scope: None,
        data,
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}

/// Notes how many jobs of each queue a FETCH got.
pub(super) fn fetched(sidecar: &Sidecar, jobs: &[(Arc<str>, u64)], sent: Mark, to: TakenTo) {
    let pressure = &sidecar.admit.pressure;
    for (queue, jobs) in jobs {
        pressure.left(queue, *jobs, sent, to, now(sidecar));
    }
}

/// Notes that jobs were claimed. Returns how many of them are of each bounded queue.
pub(super) fn claimed(sidecar: &Sidecar, held: &[crate::hold::Held]) -> Vec<(Arc<str>, u64)> {
    let pressure = &sidecar.admit.pressure;
    let mut counts: HashMap<&Arc<str>, u64> = HashMap::new();
    for held in held {
        let queue = &held.claimed.queue;
        if pressure.bounds(queue).is_some() {
            pressure.waits_no_longer(queue, &held.claimed.job, sidecar.store.now());
            *counts.entry(queue).or_default() += 1;
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|(queue, jobs)| (Arc::clone(queue), jobs))
        .collect()
}

/// Notes the jobs in a reply to a FETCH that passes as it is.
pub(super) fn passed(
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
        // Some backends show a queue that a producer made up: one that was not asked for is not it.
        let queue = match queues {
            [only] => Arc::clone(only),
            several => {
                let shown = mirror::queue(job);
                let shown = shown.as_deref().unwrap_or("default");
                let real = several.iter().find(|queue| ***queue == *shown);
                real.map_or_else(|| Arc::from(shown), Arc::clone)
            }
        };
        gone(sidecar, &queue, job);
        *counts.entry(queue).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().collect();
    fetched(sidecar, &counts, sent, TakenTo::Worker);
    if let ([only], true) = (queues, came < asked) {
        pressure.ran_dry(only, sent, now(sidecar));
    }
}

/// Notes what the backend says of a job that failed: it may wait again.
pub(super) fn nacked(sidecar: &Sidecar, reply: &Reply, id: &str, row: Option<&Row>) {
    if !reply.status.is_success() || (row.is_none() && !sidecar.admit.pressure.any()) {
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
    if let Some(row) = row.filter(|_| state.as_deref().is_some_and(|s| again.contains(&s))) {
        named::waits_again(sidecar, &row.claimed);
    }
    let queue = row.map(|row| &*row.claimed.queue).or(shown.as_deref());
    let Some(queue) = queue.filter(|_| sidecar.admit.pressure.any()) else {
        return;
    };
    let pressure = &sidecar.admit.pressure;
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
pub(super) fn revived(sidecar: &Sidecar, reply: &Reply, id: &str) {
    let pressure = &sidecar.admit.pressure;
    if !reply.status.is_success() || !pressure.any() {
        return;
    }
    let queue = job_in(&reply.body).and_then(mirror::queue);
    if let Some(queue) = queue
        && !pressure.waits_no_longer(&queue, id, sidecar.store.now())
    {
        pressure.came(&queue);
    }
}

/// Notes that a job was cancelled by a request that was `sent` then: it waits no longer, if it never started or
/// waited for its next attempt. `None`: it was held, and left the backend's number when it was claimed.
pub(super) fn cancelled(sidecar: &Sidecar, reply: &Reply, sent: Option<Mark>) {
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
    let Some(queue) = mirror::queue(job).filter(|_| pressure.any()) else {
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
pub(super) fn may_wait(reply: &Reply) -> bool {
    SCHEDULED.find(&reply.body).is_some()
}

/// The jobs in the reply to an enqueue.
pub(super) fn stored_jobs(reply: &Reply) -> Vec<NewJob> {
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return Vec::new();
    };
    let jobs = whole.get_exact("jobs").into_iter().flat_map(|j| j.items());
    let each = jobs.chain(whole.get_exact("job")).filter_map(|job| {
        let waits = job.says("state", "scheduled");
        let due = job.text_of("scheduled_at").filter(|_| waits);
        Some(NewJob {
            queue: Arc::from(mirror::queue(job).as_deref().unwrap_or("default")),
            id: Box::from(&*job.text_of("id")?),
            due: due.and_then(|at| moment(&at)),
        })
    });
    each.collect()
}

/// Queues without bounds of their own: each is warned of once, for it can grow until the backend fails (backpressure
/// text, 6.3).
#[derive(Debug, Default)]
pub(super) struct Unbounded {
    queues: Mutex<UnboundedQueues>,
    told: Seldom,
}

#[derive(Debug, Default)]
struct UnboundedQueues {
    known: HashSet<Box<str>>,
    /// Those that were not warned of yet.
    new: Vec<String>,
}

impl Unbounded {
    /// Notes a queue, to warn of it later. One that a probe left behind is nobody's.
    pub(super) fn note(&self, queue: &str) {
        if queue.starts_with(BackendFacts::PROBED) {
            return;
        }
        let UnboundedQueues { known, new } = &mut *self.queues.lock();
        if !known.contains(queue) && known.len() < MOST_WARNED {
            known.insert(queue.into());
            new.push(cut(queue).into_owned());
        }
    }

    /// Warns of those that were noted, in one line.
    fn tell(&self) {
        let new = std::mem::take(&mut self.queues.lock().new);
        let more = if new.len() > NAMED { ", …" } else { "" };
        let shown: Vec<_> = new.into_iter().take(NAMED).collect();
        if !shown.is_empty() {
            let queue = format!("{}{more}", shown.join(", "));
            tracing::warn!(
                id = %"no_bound",
                queue,
                "no bound: such a queue can grow until the backend fails"
            );
        }
    }

    /// The same, once a minute at most.
    fn tell_seldom(&self) {
        if !self.queues.lock().new.is_empty() && self.told.now() {
            self.tell();
        }
    }
}

/// The time that a reply names.
fn moment(at: &str) -> Option<Timestamp> {
    duration::moment(at).map(Timestamp)
}

/// Asks the backend how deep a queue is, for all who wait for it, in a task of its own. The look has begun.
pub(super) fn look_soon(proxy: &Proxy, queue: Arc<str>, scope: u64) {
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    let _task = sidecar
        .tasks
        .spawn(async move { look(&proxy, &queue, scope).await });
}

/// Waits for looks, and asks where nobody else does.
pub(super) async fn see(proxy: &Proxy, looks: Vec<Looking>, scope: u64) {
    for look in looks.iter().filter(|look| look.begin) {
        look_soon(proxy, Arc::clone(&look.queue), scope);
    }
    for look in looks {
        look.done.await;
    }
}

/// Reads the backend's list of queues. Warns of those without a bound, and looks at those with one: a full queue
/// may get no enqueue for long, and is to be measured all the same.
pub(super) async fn meet_queues(proxy: &Proxy) {
    let names = listed_queues(proxy).await;
    let sidecar = &proxy.sidecar;
    let Admit {
        pressure,
        unbounded,
        ..
    } = &sidecar.admit;
    let has_none = |name: &&String| pressure.bounds(name).is_none_or(|b| !b.has_own());
    (names.iter().filter(has_none)).for_each(|name| unbounded.note(name));
    unbounded.tell();
    let proxy = proxy.clone();
    let _task = sidecar.tasks.spawn(async move {
        for queue in names.iter().take(MET) {
            meet(&proxy, queue).await;
        }
    });
}

async fn listed_queues(proxy: &Proxy) -> Vec<String> {
    let call = calls::get(proxy, 0, "/ojs/v1/queues".to_owned());
    let Ok(reply) = calls::call(proxy, "queues", call).await else {
        return Vec::new();
    };
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return Vec::new();
    };
    let lists = ["queues", "items"].into_iter();
    let each = lists
        .filter_map(|name| whole.get_exact(name))
        .flat_map(|list| list.items());
    each.filter_map(|queue| Some(queue.text_of("name")?.into_owned()))
        .collect()
}

async fn meet(proxy: &Proxy, queue: &str) {
    let sidecar = &proxy.sidecar;
    let pressure = &sidecar.admit.pressure;
    let bounds = pressure.bounds(queue);
    let bounded = |bounds: &Bounds| bounds.max_depth.is_some() || bounds.max_bytes.is_some();
    if !bounds.as_deref().is_some_and(bounded) || sidecar.tasks.draining.is_cancelled() {
        return;
    }
    // Asked before anything is kept of it: without the credentials of a producer the backend may have
    // nothing to say, and that says nothing of what it tells others.
    let waits = matches!(told::depth_told(proxy, queue, 0).await, StatsTold::Counts(counts) if counts.total() > 0);
    if waits && pressure.meet(queue, Instant::now()) {
        look(proxy, queue, 0).await;
    }
}

/// Looks at queues near their bound although nobody enqueues, to see when they have room again.
pub(super) fn watch_bounds(proxy: &Proxy) {
    let pressure = &proxy.sidecar.admit.pressure;
    proxy.sidecar.admit.unbounded.tell_seldom();
    if !pressure.any() {
        return;
    }
    for (queue, scope) in pressure.pressed(Instant::now()) {
        if pressure.begin_look(&queue, LookKind::Closed) {
            look_soon(proxy, queue, scope);
        }
    }
}

async fn look(proxy: &Proxy, queue: &str, scope: u64) {
    let sidecar = &proxy.sidecar;
    let Admit {
        pressure, stats, ..
    } = &sidecar.admit;
    if let Some(settled) = pressure.in_flight(queue)
        && timeout(SETTLE, settled).await.is_err()
    {
        pressure.note_stuck(queue);
    }
    let _turn = sidecar.admit.look_turn().await;
    // Read before the question: what is added later stays in the number.
    let number = share::read_number(sidecar, queue).await;
    pressure.asking(queue, scope);
    let told = told::depth_told(proxy, queue, scope).await;
    stats.failing.note(queue, &told);
    let fleet = match (&told, number) {
        (StatsTold::Counts(counts), Some(number)) => {
            share::correct_number(sidecar, queue, counts, number).await
        }
        _ => None,
    };
    let untold = pressure.looked(queue, told, fleet, now(sidecar));
    let first = |flag: &AtomicBool| !flag.swap(true, Ordering::Relaxed);
    match untold {
        Some(Untold::All) if first(&stats.warned) => match stats.refused.load(Ordering::Relaxed) {
            0 => tracing::warn!(
                id = %"stats_missing",
                queue,
                "the backend has no statistics for us: the depth of bounded queues is what passes through here"
            ),
            status => tracing::warn!(
                id = %"stats_refused",
                queue,
                status,
                "the backend refuses us its statistics: the depth of bounded queues is what passes through \
                     here; set upstream.token to one that may read them"
            ),
        },
        Some(Untold::States) if first(&stats.warned_of_states) => {
            tracing::warn!(
                id = %"stats_partial",
                queue,
                "the backend's statistics leave out jobs that are scheduled or to be tried again: \
                 only those that passed through here count towards the bounds of queues"
            )
        }
        _ => {}
    }
    let _level = tell_level(sidecar, queue);
}
