//! A backend's numbers of a queue: how they are asked for and read, and how ours stand in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::json::{Json, Kind, Splice, quote};
use crate::pressure::{Away, Bounds, Counts, StatsTold};
use crate::proxy::calls;
use crate::proxy::load::Seldom;
use crate::proxy::paused::read_paused;
use crate::proxy::{Proxy, REPLY_DEPTH};
use crate::upstream::Reply;

/// How long the backend may take to say how deep a queue is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was learnt of the backend's statistics.
#[derive(Debug, Default)]
pub(in crate::proxy) struct BackendStats {
    /// There are none under `/ojs/v1/admin`.
    plain_only: AtomicBool,
    /// The last 401 or 403 to a question of ours, else 0.
    pub(super) refused: AtomicU16,
    /// What was warned of.
    pub(super) warned: AtomicBool,
    pub(super) warned_of_states: AtomicBool,
    pub(super) failing: Failing,
}

/// The queue whose numbers the backend fails to tell, as the log has it. Its other answers may be good, so nothing
/// else says why enqueues get 502.
#[derive(Debug, Default)]
pub(super) struct Failing {
    queue: Mutex<Option<Arc<str>>>,
    told: Seldom,
}

impl Failing {
    /// Logs what came of a question about a bounded queue: a line when it fails, one each minute while that goes on,
    /// and one when it is over.
    pub(super) fn note(&self, queue: &str, told: &StatsTold) {
        let mut failing = self.queue.lock();
        match told {
            StatsTold::Away(Away::Failing(status)) if self.told.now() => {
                *failing = Some(Arc::from(queue));
                tracing::warn!(
                    id = %"depth_untold",
                    queue,
                    status,
                    "the backend does not tell how many jobs wait: enqueues into a bounded queue get 502 where it \
                     may be full"
                );
            }
            StatsTold::Away(_) => {}
            _ if failing.as_deref() == Some(queue) => {
                *failing = None;
                tracing::info!(queue, "the backend tells again how many jobs wait");
            }
            _ => {}
        }
    }
}

/// A bounded queue's numbers with `stats` in them: its depth, how full it is and its bounds, beside what is
/// there already. What they leave out is known from the last look, which is made anew where it is due.
/// `None`: they stay as they are.
pub(in crate::proxy) async fn with_depth(
    proxy: &Proxy,
    text: &[u8],
    queue: &str,
) -> Option<Vec<u8>> {
    let sidecar = &proxy.sidecar;
    let pressure = &sidecar.admit.pressure;
    let bounds = pressure.bounds(queue)?;
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let counts = counts(whole)?;
    let tells_all = pressure.tells_all(&counts);
    if !tells_all && let Some((look, scope)) = pressure.look_for_reader(queue, Instant::now()) {
        super::see(proxy, vec![look], scope).await;
    }
    let level = super::tell_level(sidecar, queue);
    let told = counts.total();
    let ours = level.as_ref().filter(|_| !tells_all);
    let depth = ours.map_or(told, |level| level.depth.max(told));
    let bytes = level.as_ref().map_or(0, |level| level.bytes);
    let mut splice = Splice::new();
    splice.set_in(whole, "stats", &members(queue, &bounds, depth, bytes));
    Some(splice.apply(text))
}

/// The members of `stats` of a queue.
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

/// What the backend says of a queue: under `admin`, where all states are told, or else the plain
/// statistics.
pub(in crate::proxy) async fn depth_told(proxy: &Proxy, queue: &str, scope: u64) -> StatsTold {
    let stats = &proxy.sidecar.admit.stats;
    let name = crate::ojs::encoded(queue);
    let mut absent = None;
    if !stats.plain_only.load(Ordering::Relaxed) {
        match asked(proxy, queue, format!("/ojs/v1/admin/queues/{name}"), scope).await {
            Ok(reply) => match read(&reply) {
                StatsReply::Counts(counts) => return StatsTold::Counts(counts),
                StatsReply::Away => return StatsTold::Away(Away::Failing(reply.status.as_u16())),
                read => absent = Some(read),
            },
            Err(away) => return StatsTold::Away(away),
        }
    }
    match asked(proxy, queue, format!("/ojs/v1/queues/{name}/stats"), scope).await {
        Ok(reply) => match read(&reply) {
            StatsReply::Counts(counts) => {
                // The queue is there, and `admin` does not know it: there is no such route.
                let known = counts.total() > 0;
                if absent == Some(StatsReply::NoRoute)
                    || (absent == Some(StatsReply::Unknown) && known)
                {
                    stats.plain_only.store(true, Ordering::Relaxed);
                }
                StatsTold::Counts(counts)
            }
            // No queue of that name yet.
            StatsReply::Unknown => StatsTold::Counts(Counts::default()),
            StatsReply::NoRoute | StatsReply::Denied => StatsTold::Nothing,
            StatsReply::Away => StatsTold::Away(Away::Failing(reply.status.as_u16())),
        },
        Err(away) => StatsTold::Away(away),
    }
}

async fn asked(proxy: &Proxy, queue: &str, target: String, scope: u64) -> Result<Reply, Away> {
    let mut call = calls::get(proxy, scope, target);
    call.timeout = call.timeout.min(PATIENCE);
    let reply = calls::call(proxy, "queue_stats", call).await;
    if let Ok(reply) = &reply
        && matches!(
            reply.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        )
    {
        let refused = &proxy.sidecar.admit.stats.refused;
        refused.store(reply.status.as_u16(), Ordering::Relaxed);
    }
    if let Ok(reply) = &reply
        && let Some(is_paused) = read_paused(&reply.body)
    {
        (proxy.sidecar.fetching.backlogs).note_paused(queue, is_paused);
    }
    reply.map_err(Away::Unanswered)
}

/// A reply about a queue's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StatsReply {
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

fn read(reply: &Reply) -> StatsReply {
    match reply.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return StatsReply::Denied,
        StatusCode::NOT_IMPLEMENTED => return StatsReply::NoRoute,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => return StatsReply::Away,
        status if status.is_server_error() => return StatsReply::Away,
        // A route that is not there is answered with plain text.
        StatusCode::NOT_FOUND if Json::parse(&reply.body, REPLY_DEPTH).is_ok() => {
            return StatsReply::Unknown;
        }
        _ => return StatsReply::NoRoute,
    }
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    whole
        .and_then(counts)
        .map_or(StatsReply::NoRoute, StatsReply::Counts)
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
