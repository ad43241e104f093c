//! Looking: what the backend says of a bounded queue's depth, and what passes through here and changes
//! it.

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

use super::load::Seldom;
use super::lookup::job_in;
use super::{Backend, Proxy, REPLY_DEPTH, Sidecar, mirror};
use crate::duration;
use crate::events::{Event, Value};
use crate::json::Json;
use crate::limit::Timestamp;
use crate::log::cut;
use crate::pressure::{Bounds, Edge, Level, Looking, Mark, Now, Told, Untold, Whose};
use crate::store::Row;
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

/// What the reply to an enqueue says of a job that does not wait yet. Nearly none does.
static SCHEDULED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"scheduled\""));

impl Sidecar {
    /// This moment on both clocks.
    pub(super) fn now(&self) -> Now {
        let at = tick::now();
        Now {
            at,
            stamp: self.store.at(at),
        }
    }

    /// Says once which of these queues have no bound: they can grow until the backend fails (backpressure
    /// text, 6.3).
    fn warn_of_unbounded(&self, names: &[String]) {
        let is_new = |name: &str| !self.pressure.is_bounded(name) && self.unbounded.is_new(name);
        let names = names.iter().filter(|name| is_new(name)).cloned();
        warn_of(&names.collect::<Vec<String>>());
    }

    /// Where a queue stands, told if an edge was crossed.
    pub(super) fn tell_level(&self, queue: &str) -> Option<Level> {
        let level = self.pressure.level(queue)?;
        self.tell_edge(queue, &level);
        Some(level)
    }

    /// Tells of edges that were crossed.
    pub(super) fn tell_edges(&self, levels: &[(Arc<str>, Level)]) {
        for (queue, level) in levels {
            self.tell_edge(queue, level);
        }
    }

    /// Tells of an edge that was crossed.
    fn tell_edge(&self, queue: &str, level: &Level) {
        for whose in &level.over {
            match whose {
                Whose::All => tracing::info!(queue, "enqueues are accepted again"),
                Whose::Key(key) => {
                    tracing::info!(
                        queue,
                        key = &**key,
                        "enqueues of this key are accepted again"
                    );
                }
                Whose::Tenant(tenant) => {
                    tracing::info!(
                        queue,
                        tenant = &**tenant,
                        "enqueues of this tenant are accepted again"
                    );
                }
            }
        }
        if let (Some(crossed), Some(most)) = (level.crossed, level.most) {
            let (depth, bound, unit) = (most.used, most.bound, most.unit.as_str());
            let kind = match crossed.edge {
                Edge::Warning => "backpressure.warning",
                Edge::Cleared => "backpressure.cleared",
            };
            match crossed.edge {
                _ if !crossed.loud => {}
                Edge::Warning => {
                    tracing::warn!(queue, depth, bound, unit, "the queue is near its bound");
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
                self.tell_pressure(kind, queue, None, &data);
            }
        }
    }

    /// Tells those who listen of something that befell a queue.
    pub(super) fn tell_pressure(
        &self,
        kind: &'static str,
        queue: &str,
        job: Option<(&str, &str)>,
        data: &[(&'static str, Value<'_>)],
    ) {
        let event = Event {
            kind,
            subject: job.map_or(queue, |(id, _)| id),
            queue: Some(queue),
            job: job.map(|(id, _)| id),
            job_type: job.map(|(_, kind)| kind),
            scope: None,
            data,
        };
        self.events.tell(self.store.now(), &event);
    }

    /// A held job has gone to a worker, or has ended: there may be room.
    pub(super) fn made_room(&self) {
        if self.pressure.blocked() > 0 {
            self.pressure.wake(self.now());
        }
    }

    /// A backend's reply to a FETCH of these queues passes through: its jobs wait no longer. `out`: they go
    /// to a worker, else into the hold.
    pub(super) fn fetched(&self, jobs: &[(Arc<str>, u64)], sent: Mark, out: bool) {
        for (queue, jobs) in jobs {
            self.pressure.left(queue, *jobs, sent, out, self.now());
        }
    }

    /// Jobs were claimed: those that were to be tried again wait for that no longer.
    pub(super) fn given_again(&self, held: &[crate::hold::Held]) {
        if self.pressure.any_retries() {
            for held in held {
                let (queue, job) = (&held.claimed.queue, &held.claimed.job);
                self.pressure.given_again(queue, job);
            }
        }
    }

    /// How many of these jobs each bounded queue has.
    pub(super) fn by_queue(&self, held: &[crate::hold::Held]) -> Vec<(Arc<str>, u64)> {
        let bounded = |run: &[crate::hold::Held]| {
            let queue = run.first().map(|held| &held.claimed.queue);
            queue.is_some_and(|queue| self.pressure.bounds_any(std::slice::from_ref(queue)))
        };
        let mut runs = held.chunk_by(|a, b| a.claimed.queue == b.claimed.queue);
        if !runs.any(bounded) {
            return Vec::new();
        }
        let mut counts: HashMap<Arc<str>, u64> = HashMap::new();
        for held in held {
            *counts.entry(Arc::clone(&held.claimed.queue)).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    /// The same, of a reply that passes as it is.
    pub(super) fn passed(&self, reply: &Reply, queues: &[Arc<str>], asked: usize, sent: Mark) {
        if reply.status != StatusCode::OK || !self.pressure.bounds_any(queues) {
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
            self.gone(&queue, job);
            if self.pressure.any_retries()
                && let Some(id) = job.text_of("id")
            {
                self.pressure.given_again(&queue, &id);
            }
            *counts.entry(queue).or_default() += 1;
        }
        for (queue, jobs) in counts {
            self.pressure.left(&queue, jobs, sent, true, self.now());
        }
        if let ([only], true) = (queues, came < asked) {
            self.pressure.ran_dry(only, sent, self.now());
        }
    }

    /// What the backend says of a job that failed: it may wait again.
    pub(super) fn nacked(&self, reply: &Reply, id: &str, row: Option<&Row>) {
        if !reply.status.is_success() || (row.is_none() && !self.pressure.any()) {
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
            self.waits_again(&row.claimed);
        }
        let queue = row.map(|row| &*row.claimed.queue).or(shown.as_deref());
        let Some(queue) = queue.filter(|_| self.pressure.any()) else {
            return;
        };
        match state.as_deref() {
            Some("available") => self.pressure.came(queue, None),
            Some("retryable" | "scheduled") => {
                let at = text("next_attempt_at").and_then(|at| moment(&at));
                let at = at.unwrap_or_else(|| self.store.now());
                self.pressure.came(queue, Some((id, at)));
            }
            _ => {}
        }
    }

    /// What the backend says of a job that was made available by hand: it waited for its next attempt, or it
    /// had ended.
    pub(super) fn revived(&self, reply: &Reply, id: &str) {
        if !reply.status.is_success() || !self.pressure.any() {
            return;
        }
        let Some(job) = job_in(&reply.body) else {
            return;
        };
        if let Some(queue) = mirror::queue(job)
            && !self.pressure.unretried(&queue, id, self.store.now())
        {
            self.pressure.came(&queue, None);
        }
    }

    /// What the backend says of a job that was cancelled by what was `sent` then: it waits no longer, if it
    /// never started or waited for its next attempt. One that was held (`None`) left the backend's number when
    /// it was claimed.
    pub(super) fn cancelled(&self, reply: &Reply, sent: Option<Mark>) {
        if !reply.status.is_success() {
            return;
        }
        let Some(job) = job_in(&reply.body) else {
            return;
        };
        self.named.left(job.text_of("id").as_deref().into_iter());
        let Some(queue) = mirror::queue(job).filter(|_| self.pressure.any()) else {
            return;
        };
        let started = job.get_exact("started_at").is_some_and(|at| !at.is_null());
        let retried = || {
            let id = job.text_of("id");
            id.is_some_and(|id| self.pressure.unretried(&queue, &id, self.store.now()))
        };
        match sent {
            Some(sent) if started => {
                if retried() {
                    self.pressure.left(&queue, 1, sent, true, self.now());
                }
                return;
            }
            Some(sent) => {
                self.pressure.left(&queue, 1, sent, true, self.now());
                if let Some(due) = job.text_of("scheduled_at").and_then(|at| moment(&at)) {
                    self.pressure.unscheduled(&queue, due);
                }
            }
            None => {}
        }
        self.gone(&queue, job);
    }

    /// A held job of a queue is over, and no worker had it: it waits no longer.
    pub(super) fn held_is_over(&self, queue: &str, job: &str) {
        if self.pressure.is_keyed(queue) {
            self.pressure.gone(queue, job, self.now());
        }
    }

    /// This job waits no longer, which matters where a queue tells its jobs apart.
    fn gone(&self, queue: &str, job: Json<'_>) {
        if self.pressure.is_keyed(queue)
            && let Some(id) = job.text_of("id")
        {
            self.pressure.gone(queue, &id, self.now());
        }
    }

    /// The ids of the jobs in the reply to an enqueue, each with its queue.
    pub(super) fn stored_ids(reply: &[u8]) -> Vec<(Arc<str>, Box<str>)> {
        let Ok(whole) = Json::parse(reply, REPLY_DEPTH) else {
            return Vec::new();
        };
        let jobs = whole.get_exact("jobs").into_iter().flat_map(|j| j.items());
        let each = jobs.chain(whole.get_exact("job")).filter_map(|job| {
            let id = job.text_of("id")?;
            Some((
                Arc::from(mirror::queue(job).as_deref().unwrap_or("default")),
                Box::from(&*id),
            ))
        });
        each.collect()
    }

    /// Jobs were stored: those that wait for a time are noted, for backends that do not tell of them.
    pub(super) fn note_scheduled(&self, reply: &Reply) {
        for (queue, due) in Sidecar::scheduled_in(&reply.body) {
            if let Some(due) = due {
                self.pressure.scheduled(&queue, due);
            }
        }
    }

    /// The queues of the jobs in the reply to an enqueue that wait for a time, each with that time.
    pub(super) fn scheduled_in(reply: &[u8]) -> Vec<(Box<str>, Option<Timestamp>)> {
        if SCHEDULED.find(reply).is_none() {
            return Vec::new();
        }
        let Ok(whole) = Json::parse(reply, REPLY_DEPTH) else {
            return Vec::new();
        };
        let jobs = whole.get_exact("jobs").into_iter().flat_map(|j| j.items());
        let each = jobs.chain(whole.get_exact("job"));
        let later = each.filter(|job| job.says("state", "scheduled"));
        let named = later.map(|job| {
            let due = job.text_of("scheduled_at").and_then(|at| moment(&at));
            let queue = mirror::queue(job);
            (Box::from(queue.as_deref().unwrap_or("default")), due)
        });
        named.collect()
    }
}

/// Queues without bounds of their own: each is warned of once.
#[derive(Debug, Default)]
pub(super) struct Unbounded {
    known: Mutex<HashSet<Box<str>>>,
    /// Those that were met and not warned of yet.
    met: Mutex<Vec<String>>,
    told: Seldom,
}

impl Unbounded {
    /// A queue is used.
    pub(super) fn note(&self, queue: &str) {
        if self.is_new(queue) {
            self.met.lock().push(queue.to_owned());
        }
    }

    /// Whether a queue is seen for the first time. One that a probe left behind is nobody's.
    fn is_new(&self, queue: &str) -> bool {
        if queue.starts_with(Backend::PROBED) {
            return false;
        }
        let mut known = self.known.lock();
        !known.contains(queue) && known.len() < MOST_WARNED && known.insert(queue.into())
    }

    /// Warns of those that were met: in one line, once a minute at most.
    fn tell(&self) {
        let mut met = self.met.lock();
        if !met.is_empty() && self.told.now() {
            warn_of(&std::mem::take(&mut *met));
        }
    }
}

/// Warns of queues without bounds.
fn warn_of(queues: &[String]) {
    let shown: Vec<_> = queues.iter().take(NAMED).map(|queue| cut(queue)).collect();
    let more = if queues.len() > NAMED { ", …" } else { "" };
    let names = format!("{}{more}", shown.join(", "));
    match queues.len() {
        0 => {}
        1 => tracing::warn!(
            queue = names,
            "the queue has no bound: it can grow until the backend fails"
        ),
        many => tracing::warn!(
            queues = names,
            "{many} queues have no bound: they can grow until the backend fails"
        ),
    }
}

/// The time that a reply names.
fn moment(at: &str) -> Option<Timestamp> {
    duration::moment(at).map(Timestamp)
}

impl Proxy {
    /// Asks the backend how deep a queue is, for all who wait for that; the look has begun. It goes on
    /// whoever hangs up.
    pub(super) fn look_soon(&self, queue: Arc<str>, scope: u64) {
        let proxy = self.clone();
        let _task = self
            .sidecar
            .tasks
            .spawn(async move { proxy.look(&queue, scope).await });
    }

    /// Waits for looks, and asks where nobody else does.
    pub(super) async fn see(&self, looks: Vec<Looking>, scope: u64) {
        for look in looks.iter().filter(|look| look.begin) {
            self.look_soon(Arc::clone(&look.queue), scope);
        }
        for look in looks {
            look.done.await;
        }
    }

    /// Meets the queues that the backend lists: those without a bound are warned of, and those with one are
    /// looked at once, for one that is full may get no enqueue for long.
    pub(super) async fn meet_queues(&self) {
        let names = self.listed_queues().await;
        self.sidecar.warn_of_unbounded(&names);
        let proxy = self.clone();
        let _task = self.sidecar.tasks.spawn(async move {
            for queue in names.iter().take(MET) {
                proxy.meet(queue).await;
            }
        });
    }

    async fn listed_queues(&self) -> Vec<String> {
        let call = super::get(self, 0, "/ojs/v1/queues".to_owned());
        let Ok(reply) = super::call(self, "queues", call).await else {
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

    async fn meet(&self, queue: &str) {
        let sidecar = &self.sidecar;
        let bounds = sidecar.pressure.bounds(queue);
        let bounded = |bounds: &Bounds| bounds.max_depth.is_some() || bounds.max_bytes.is_some();
        if !bounds.as_deref().is_some_and(bounded) || sidecar.draining.is_cancelled() {
            return;
        }
        // Asked before anything is kept of it: without the credentials of a producer the backend may have
        // nothing to say, and that says nothing of what it tells others.
        let waits =
            matches!(self.depth_told(queue, 0).await, Told::Counts(counts) if counts.total() > 0);
        if waits
            && sidecar.pressure.meet(queue, Instant::now())
            && sidecar.pressure.begin_look(queue, false)
        {
            self.look(queue, 0).await;
        }
    }

    /// Queues near their bound are looked at although nobody enqueues, so that it is known when they are
    /// well again.
    pub(super) fn watch_bounds(&self) {
        let pressure = &self.sidecar.pressure;
        self.sidecar.unbounded.tell();
        if !pressure.any() {
            return;
        }
        for (queue, scope) in pressure.pressed(Instant::now()) {
            if pressure.begin_look(&queue, true) {
                self.look_soon(queue, scope);
            }
        }
    }

    async fn look(&self, queue: &str, scope: u64) {
        let sidecar = &self.sidecar;
        let stuck = match sidecar.pressure.in_flight(queue) {
            Some(settled) => timeout(SETTLE, settled).await.is_err(),
            None => false,
        };
        // They are never closed.
        let _turn = sidecar.looks.acquire().await.ok();
        // Before the question: what comes later is granted later.
        let shared = sidecar.read_shared(queue).await;
        let asked = Instant::now();
        let follows = sidecar.pressure.asking(queue, stuck, scope, asked);
        let told = self.depth_told(queue, scope).await;
        sidecar.stats.failing.note(queue, &told);
        let others = match (&told, shared) {
            (Told::Counts(_), Some(_)) => sidecar.read_others(queue, follows).await,
            _ => None,
        };
        let counted = match &told {
            Told::Counts(counts) => Some(*counts),
            _ => None,
        };
        let now = sidecar.now();
        let untold = sidecar.pressure.looked(queue, told, (shared, others), now);
        if let Some(counts) = counted.filter(|_| sidecar.pressure.recounts(queue, now.at)) {
            self.recount(queue, counts, scope).await;
        }
        let first = |flag: &AtomicBool| !flag.swap(true, Ordering::Relaxed);
        match untold {
            Some(Untold::All) if first(&sidecar.stats.warned) => {
                match sidecar.stats.refused.load(Ordering::Relaxed) {
                    0 => tracing::warn!(
                        queue,
                        "the backend has no statistics for us: the depth of bounded queues is what passes through here"
                    ),
                    status => tracing::warn!(
                        queue,
                        status,
                        "the backend refuses us its statistics: the depth of bounded queues is what passes through \
                         here; set upstream.token to one that may read them"
                    ),
                }
            }
            Some(Untold::States) if first(&sidecar.stats.warned_of_states) => tracing::warn!(
                queue,
                "the backend's statistics leave out jobs that are scheduled or to be tried again: \
                 only those that passed through here count towards the bounds of queues"
            ),
            _ => {}
        }
        let _level = sidecar.tell_level(queue);
    }
}
