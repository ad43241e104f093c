//! What a backend tells of a queue's depth, in whatever form it does, and what of it is believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::json::{Json, Kind, Splice, quote};
use crate::log::cut;
use crate::pressure::{Away, Bounds, Counts, Told};
use crate::proxy::load::Seldom;
use crate::proxy::lookup::job_in;
use crate::proxy::{Proxy, REPLY_DEPTH, Sidecar, mirror};
use crate::upstream::{Reply, UpstreamError};

/// How long the backend may take to say how deep a queue is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was learnt of the backend's statistics.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Stats {
    /// There are none under `/ojs/v1/admin`.
    plain_only: AtomicBool,
    /// A queue was said to hold something: they are no row of zeros.
    count: AtomicBool,
    /// A queue was said to be empty while a job waited in it, and nothing was ever said to hold one.
    lie: AtomicBool,
    /// The last reply to an enqueue into one bounded queue, until it is known that they count.
    stored: Mutex<Option<(Arc<str>, Bytes)>>,
    /// The last 401 or 403 to a question of ours, else 0.
    pub(super) refused: AtomicU16,
    /// What was warned of.
    pub(super) warned: AtomicBool,
    pub(super) warned_of_states: AtomicBool,
    pub(super) failing: Failing,
}

/// The queue whose numbers the backend was last said to fail to tell, until it tells them. Its other answers
/// may be as they should be, so nothing else says why enqueues get 502.
#[derive(Debug, Default)]
pub(super) struct Failing {
    queue: Mutex<Option<Arc<str>>>,
    told: Seldom,
}

impl Failing {
    /// What came of a question about a bounded queue: a line at once when it fails, and once a minute while that
    /// goes on, and one when it is over.
    pub(super) fn note(&self, queue: &str, told: &Told) {
        let mut failing = self.queue.lock();
        match told {
            Told::Away(Away::Failing(status)) if self.told.now() => {
                *failing = Some(Arc::from(queue));
                tracing::warn!(
                    queue,
                    status,
                    "the backend does not tell how many jobs wait: enqueues into a bounded queue get 502 where it \
                     may be full"
                );
            }
            Told::Away(_) => {}
            _ if failing.as_deref() == Some(queue) => {
                *failing = None;
                tracing::info!(queue, "the backend tells again how many jobs wait");
            }
            _ => {}
        }
    }
}

impl Stats {
    /// Keeps the reply to an enqueue: should the backend say that the queue is empty, its job tells.
    pub(in crate::proxy) fn keep(&self, queue: &Arc<str>, reply: &Reply) {
        if !self.count.load(Ordering::Relaxed) {
            let kept = (Arc::clone(queue), reply.body.clone());
            *self.stored.lock() = Some(kept);
        }
    }

    /// The reply to the last enqueue, if it was into this queue.
    fn kept(&self, queue: &str) -> Option<Bytes> {
        let stored = self.stored.lock();
        let kept = stored.as_ref().filter(|(name, _)| **name == *queue);
        kept.map(|(_, body)| body.clone())
    }

    /// Whether these are no row of zeros of a backend that was never seen to count.
    pub(in crate::proxy) fn is_believed(&self, counts: Counts) -> bool {
        counts != Counts::default() || self.count.load(Ordering::Relaxed)
    }

    fn counts(&self) {
        if !self.count.swap(true, Ordering::Relaxed) {
            self.lie.store(false, Ordering::Relaxed);
            *self.stored.lock() = None;
        }
    }
}

impl Proxy {
    /// A bounded queue's numbers with `stats` in them: its depth, how full it is and its bounds, beside what is
    /// there already. What they leave out is known from the last look, which is made anew where it is due.
    /// `None`: they stay as they are.
    pub(in crate::proxy) async fn with_depth(&self, text: &[u8], queue: &str) -> Option<Vec<u8>> {
        let sidecar = &self.sidecar;
        let bounds = sidecar.pressure.bounds(queue)?;
        let whole = Json::parse(text, REPLY_DEPTH).ok()?;
        let counts = counts(whole)?;
        let tells_all = sidecar.pressure.tells_all(&counts);
        if !tells_all {
            let look = sidecar.pressure.look_for_reader(queue, Instant::now());
            if let Some((look, scope)) = look {
                self.see(vec![look], scope).await;
            }
        }
        let level = sidecar.tell_level(queue);
        let told = counts.total();
        let lies = told == 0 && sidecar.stats.lie.load(Ordering::Relaxed);
        let ours = level
            .as_ref()
            .filter(|_| !tells_all || lies || sidecar.pressure.is_short(queue));
        let depth = ours.map_or(told, |level| level.depth.max(told));
        let bytes = level.as_ref().map_or(0, |level| level.bytes);
        let mut splice = Splice::new();
        splice.set_in(whole, "stats", &members(queue, &bounds, depth, bytes));
        Some(splice.apply(text))
    }
}

/// What `stats` says of a queue.
fn members(queue: &str, bounds: &Bounds, depth: u64, bytes: u64) -> Vec<(&'static str, String)> {
    let mut members = vec![("queue", quote(queue)), ("depth", depth.to_string())];
    if let Some(bound) = bounds.max_depth {
        members.push(("bound", bound.to_string()));
        members.push(("max_depth", bound.to_string()));
    }
    if let Some(bound) = bounds.max_bytes {
        members.push(("bytes", bytes.to_string()));
        members.push(("max_size_bytes", bound.to_string()));
    }
    let share = |used: u64, bound: Option<u64>| Some((used as f64 / bound? as f64).min(1.0));
    let both = [
        share(depth, bounds.max_depth),
        share(bytes, bounds.max_bytes),
    ];
    if let Some(pressure) = both.into_iter().flatten().max_by(f64::total_cmp) {
        let pressure = (pressure * 1e4).round() / 1e4;
        members.push(("pressure", pressure.to_string()));
    }
    members
}

impl Proxy {
    /// What is to be believed of a queue's depth. Some backends say 0 of everything, which is no answer:
    /// a job of the queue that waits in it tells one of them from an empty queue.
    pub(in crate::proxy) async fn depth_told(&self, queue: &str, scope: u64) -> Told {
        let stats = &self.sidecar.stats;
        // What was stored before the question is in the answer.
        let stored = stats.kept(queue);
        let told = self.depth_asked(queue, scope).await;
        match told {
            Told::Counts(counts) if counts.total() > 0 => {
                stats.counts();
                return told;
            }
            Told::Counts(_) if !stats.count.load(Ordering::Relaxed) => {}
            _ => return told,
        }
        if stats.lie.load(Ordering::Relaxed) {
            return Told::Lie;
        }
        let waits = match stored {
            Some(reply) if self.sidecar.pressure.believes_any(queue) => {
                self.still_waits(&reply, queue, scope).await
            }
            _ => None,
        };
        let Some(job) = waits else { return told };
        stats.lie.store(true, Ordering::Relaxed);
        if !stats.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue,
                job = &*cut(&job),
                "the backend's statistics say that a queue is empty in which a job waits: the depth of \
                 bounded queues is what passes through here"
            );
        }
        Told::Lie
    }

    /// Asks the backend's list of jobs how many of a queue wait, where its statistics leave out much of what
    /// should be there.
    pub(super) async fn recount(&self, queue: &str, counts: Counts, scope: u64) {
        let listed = self.listed(queue, scope).await;
        let listed = listed.map(|listed| listed + counts.later());
        let told = counts.total();
        let now = Instant::now();
        if self.sidecar.pressure.recounted(queue, listed, told, now) {
            tracing::warn!(
                queue,
                counted = told,
                listed,
                "the backend's statistics leave out jobs that its list of jobs has: the depth of this queue is \
                 what passes through here, and the list once in 30 s"
            );
        }
    }

    /// How many jobs of a queue are available, by the list of jobs.
    async fn listed(&self, queue: &str, scope: u64) -> Option<u64> {
        let name = crate::ojs::encoded(queue);
        let target = format!("/ojs/v1/admin/jobs?queue={name}&state=available&per_page=1");
        let reply = self.asked(target, scope).await.ok()?;
        let whole = Json::parse(&reply.body, REPLY_DEPTH).ok()?;
        let mut lists = ["items", "jobs"].into_iter();
        let items = lists.find_map(|name| whole.get_exact(name))?;
        let mut shown = items.items().peekable();
        shown.peek()?;
        // Where it does not know these filters it counts something else.
        if !shown.all(|job| waits_in(job, queue)) {
            return None;
        }
        let pages = whole.get_exact("pagination").unwrap_or(whole);
        u64::try_from(pages.get_exact("total")?.int()?).ok()
    }

    /// The last job in the reply to an enqueue, if it waits in this queue and no worker ever had it.
    async fn still_waits(&self, reply: &[u8], queue: &str, scope: u64) -> Option<Box<str>> {
        let (_, id) = Sidecar::stored_ids(reply).pop()?;
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(&id));
        let reply = self.asked(target, scope).await.ok()?;
        let job = job_in(&reply.body)?;
        let started = job.get_exact("started_at").is_some_and(|at| !at.is_null());
        (waits_in(job, queue) && !started).then_some(id)
    }

    /// What the backend says of a queue: under `admin`, where all states are told, or else the plain
    /// statistics.
    async fn depth_asked(&self, queue: &str, scope: u64) -> Told {
        let stats = &self.sidecar.stats;
        let name = crate::ojs::encoded(queue);
        let mut absent = None;
        if !stats.plain_only.load(Ordering::Relaxed) {
            match self
                .asked(format!("/ojs/v1/admin/queues/{name}"), scope)
                .await
            {
                Ok(reply) => match read(&reply) {
                    Read::Counts(counts) => return Told::Counts(counts),
                    Read::Away => return Told::Away(Away::Failing(reply.status.as_u16())),
                    read => absent = Some(read),
                },
                Err(away) => return Told::Away(away),
            }
        }
        match self
            .asked(format!("/ojs/v1/queues/{name}/stats"), scope)
            .await
        {
            Ok(reply) => match read(&reply) {
                Read::Counts(counts) => {
                    // The queue is there, and `admin` does not know it: there is no such route.
                    let known = counts.total() > 0;
                    if absent == Some(Read::NoRoute) || (absent == Some(Read::Unknown) && known) {
                        stats.plain_only.store(true, Ordering::Relaxed);
                    }
                    Told::Counts(counts)
                }
                // No queue of that name yet.
                Read::Unknown => Told::Counts(Counts::default()),
                Read::NoRoute | Read::Denied => Told::Nothing,
                Read::Away => Told::Away(Away::Failing(reply.status.as_u16())),
            },
            Err(away) => Told::Away(away),
        }
    }

    async fn asked(&self, target: String, scope: u64) -> Result<Reply, Away> {
        let mut call = crate::proxy::get(self, scope, target);
        call.timeout = call.timeout.min(PATIENCE);
        let reply = crate::proxy::call(self, "queue_stats", call).await;
        if let Ok(reply) = &reply
            && matches!(
                reply.status,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
            )
        {
            let refused = &self.sidecar.stats.refused;
            refused.store(reply.status.as_u16(), Ordering::Relaxed);
        }
        reply.map_err(|error| match error {
            UpstreamError::Unreachable(why) => Away::Unreachable(why),
            UpstreamError::Lost(why) => Away::Silent(why),
            UpstreamError::TooLarge(_) => Away::Silent(error.to_string()),
            UpstreamError::Timeout(time) => Away::Late(time),
        })
    }
}

/// Whether a job is available in this queue.
pub(in crate::proxy) fn waits_in(job: Json<'_>, queue: &str) -> bool {
    job.says("state", "available") && mirror::queue(job).is_some_and(|name| name == queue)
}

/// A reply about a queue's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    Counts(Counts),
    /// There is no such queue.
    Unknown,
    /// There are no such numbers.
    NoRoute,
    /// Whoever asked may not know them; others may.
    Denied,
    /// It, or something between us and it, has no answer this time.
    Away,
}

fn read(reply: &Reply) -> Read {
    match reply.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Read::Denied,
        StatusCode::NOT_IMPLEMENTED => return Read::NoRoute,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => return Read::Away,
        status if status.is_server_error() => return Read::Away,
        // A route that is not there is answered with plain text.
        StatusCode::NOT_FOUND if Json::parse(&reply.body, REPLY_DEPTH).is_ok() => {
            return Read::Unknown;
        }
        _ => return Read::NoRoute,
    }
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    whole.and_then(counts).map_or(Read::NoRoute, Read::Counts)
}

/// The numbers of a queue in an answer, wherever they stand in it.
pub(super) fn counts(whole: Json<'_>) -> Option<Counts> {
    let inside = ["counts", "queue", "stats", "jobs"];
    let inside = inside.into_iter().filter_map(|name| whole.get_exact(name));
    let mut places = inside
        .filter(|place| place.kind() == Kind::Object)
        .chain([whole]);
    places.find_map(|place| {
        let number = |name: &str| {
            let number = place.get_exact(name)?.int()?;
            u64::try_from(number).ok()
        };
        Some(Counts {
            available: number("available")?,
            scheduled: number("scheduled"),
            retryable: number("retryable"),
        })
    })
}
