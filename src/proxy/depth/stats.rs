//! The backend's statistics of a queue: how they are asked for and read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::json::{Json, Kind};
use crate::policy::subqueue::{COUNT, Subqueue};
use crate::pressure::{Away, Counts, StatsAnswer};
use crate::proxy::calls;
use crate::proxy::paused::read_paused;
use crate::proxy::{Proxy, REPLY_DEPTH};
use crate::upstream::Reply;
use http::StatusCode;

/// So many subqueues are asked about at once.
const AT_ONCE: usize = 8;

/// How long the backend may take to say how deep a queue is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the backend says of a queue: under `admin`, where all states are told, or else the plain
/// statistics.
pub(in crate::proxy) async fn ask_stats(proxy: &Proxy, queue: &str, scope: u64) -> StatsAnswer {
    let stats = &proxy.sidecar.admit.stats;
    let name = crate::ojs::encoded(queue);
    let mut absent = None;
    if !stats.plain_only.load(Ordering::Relaxed) {
        match asked(proxy, queue, format!("/ojs/v1/admin/queues/{name}"), scope).await {
            Ok(reply) => match read(&reply) {
                StatsReply::Counts(counts) => return StatsAnswer::Counts(counts),
                StatsReply::Away => return StatsAnswer::Away(Away::Failing(reply.status.as_u16())),
                read => absent = Some(read),
            },
            Err(away) => return StatsAnswer::Away(away),
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
                StatsAnswer::Counts(counts)
            }
            // No queue of that name yet.
            StatsReply::Unknown => StatsAnswer::Counts(Counts::default()),
            StatsReply::NoRoute | StatsReply::Denied => StatsAnswer::Nothing,
            StatsReply::Away => StatsAnswer::Away(Away::Failing(reply.status.as_u16())),
        },
        Err(away) => StatsAnswer::Away(away),
    }
}

/// What the backend says of a queue and of its subqueues. Of those a few are asked each time, and the others are as they
/// were told last and as what passed through here since has changed them.
pub(in crate::proxy) async fn ask_stats_of_all(
    proxy: &Proxy,
    queue: &str,
    scope: u64,
) -> StatsAnswer {
    let answer = ask_stats(proxy, queue, scope).await;
    let StatsAnswer::Counts(counts) = answer else {
        return answer;
    };
    let subqueues = &proxy.sidecar.subqueues;
    ask_stats_of_some(proxy, queue, subqueues.to_count(queue), scope).await;
    StatsAnswer::Counts(counts.and(&subqueues.waiting(queue)))
}

/// How many jobs wait in all subqueues of a queue, as far as the backend tells; `None`: it did not tell of each.
pub(in crate::proxy) async fn count_subqueues(proxy: &Proxy, queue: &str) -> Option<u64> {
    let all = (0..=u8::MAX).map(Subqueue).collect();
    let told = ask_stats_of_some(proxy, queue, all, 0).await;
    let waiting = proxy.sidecar.subqueues.waiting(queue).total();
    (told == COUNT).then_some(waiting)
}

/// Asks the backend about these subqueues; says of how many it told.
async fn ask_stats_of_some(proxy: &Proxy, queue: &str, names: Vec<Subqueue>, scope: u64) -> usize {
    let (queue, mut asking): (Arc<str>, _) = (Arc::from(queue), JoinSet::new());
    let (mut names, mut told) = (names.into_iter(), 0);
    loop {
        while asking.len() < AT_ONCE
            && let Some(subqueue) = names.next()
        {
            let (proxy, queue) = (proxy.clone(), Arc::clone(&queue));
            asking.spawn(async move {
                let name = subqueue.name_in(&queue);
                let answer = ask_stats(&proxy, &name, scope).await;
                let StatsAnswer::Counts(counts) = answer else {
                    return false;
                };
                proxy.sidecar.subqueues.counted(&queue, subqueue, counts);
                true
            });
        }
        match asking.join_next().await {
            Some(is_told) => told += usize::from(is_told.unwrap_or(false)),
            None => return told,
        }
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
        && let Some(is_paused) = read_paused(reply)
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
