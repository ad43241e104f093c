//! The backend's statistics of a queue: how they are asked for and read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::calls;
use crate::bounds::{Away, Counts, StatsAnswer};
use crate::desk::Proxy;
use crate::desk::backend_stats::rest_after;
use crate::desk::paused::read_paused;
use crate::hold::Lane;
use crate::json::{Json, Kind};
use crate::policy::subqueue::Subqueue;
use crate::subqueues::{BesideWaiting, ToldNumbers};
use crate::wire::boxed;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::Reply;
use http::StatusCode;
use http::header::AUTHORIZATION;

/// So many subqueues are asked about at once.
const AT_ONCE: usize = 8;

/// How long the backend may take to say how deep a queue is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the backend says of a queue: under `admin`, where all states are told, or else the plain
/// statistics.
pub(crate) async fn ask_stats(proxy: &Proxy, queue: &str, scope: u64) -> StatsAnswer {
    let begun = Instant::now();
    let answer = ask_numbers(proxy, queue, scope).await;
    proxy.sidecar.admit.stats.time.spend(begun.elapsed());
    match answer {
        Ok(Some(told)) => StatsAnswer::Counts(told.counts),
        Ok(None) => StatsAnswer::Nothing,
        Err(away) => StatsAnswer::Away(away),
    }
}

/// The numbers of a queue, with those of jobs that wait no longer; `None`: the backend has none for us.
async fn ask_numbers(proxy: &Proxy, queue: &str, scope: u64) -> Result<Option<ToldNumbers>, Away> {
    let stats = &proxy.sidecar.admit.stats;
    let name = crate::wire::ojs::encoded(queue);
    let mut absent = None;
    if !stats.plain_only.load(Ordering::Relaxed) {
        match asked(proxy, queue, format!("/ojs/v1/admin/queues/{name}"), scope).await? {
            StatsReply::Numbers(told) => return Ok(Some(told)),
            read => absent = Some(read),
        }
    }
    match asked(proxy, queue, format!("/ojs/v1/queues/{name}/stats"), scope).await? {
        StatsReply::Numbers(told) => {
            // The queue is there, and `admin` does not know it: there is no such route.
            let is_known = told.counts.total() > 0;
            if absent == Some(StatsReply::NoRoute)
                || (absent == Some(StatsReply::Unknown) && is_known)
            {
                stats.plain_only.store(true, Ordering::Relaxed);
            }
            Ok(Some(told))
        }
        // No queue of that name yet; or no such route: a look tells that by what was stored.
        StatsReply::Unknown => Ok(Some(ToldNumbers::default())),
        StatsReply::NoRoute | StatsReply::Denied => Ok(None),
    }
}

/// Which questions about subqueues are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Questions {
    /// All.
    All,
    /// As many as the time for them allows.
    InTime,
}

/// What a look is told.
#[derive(Debug)]
pub(crate) struct ToldOfAll {
    /// Of the queue and of its subqueues together.
    pub(crate) answer: StatsAnswer,
    /// Of the queue itself.
    pub(crate) base: Counts,
    /// Whether the backend told of each subqueue lately.
    pub(crate) is_whole: bool,
}

/// What the backend says of a queue and of its subqueues. A few of these are asked each time, and the others are as they
/// were told last and as what came and left since has changed them, here and at siblings, until this question.
pub(crate) async fn ask_stats_of_all(proxy: &Proxy, queue: &str, scope: u64) -> ToldOfAll {
    let subqueues = &proxy.sidecar.subqueues;
    let (names, book) = subqueues.to_look_at(queue);
    let begun = Instant::now();
    let answer = ask_stats(proxy, queue, scope).await;
    let rest = rest_after(begun.elapsed());
    proxy.sidecar.admit.pressure.rests(queue, rest);
    let (StatsAnswer::Counts(base), Some(mut book)) = (&answer, book) else {
        let base = answer.counts().unwrap_or_default();
        return ToldOfAll {
            answer,
            base,
            is_whole: true,
        };
    };
    // Without all of them once, a bound would be passed after each start.
    let questions = match names.len() == usize::from(book.count()) {
        true => Questions::All,
        false => Questions::InTime,
    };
    for (subqueue, told) in ask_stats_of_some(proxy, queue, names, scope, questions).await {
        book.sees(subqueue, told);
    }
    ToldOfAll {
        answer: StatsAnswer::Counts(base.and(&book.sum())),
        base: *base,
        is_whole: book.is_whole(Instant::now()),
    }
}

/// Asks the backend about the subqueues in which jobs wait, for somebody who reads their numbers.
pub(crate) async fn refresh_subqueues(proxy: &Proxy, queue: &str, scope: u64) {
    let names = proxy.sidecar.subqueues.to_read(queue);
    ask_stats_of_some(proxy, queue, names, scope, Questions::InTime).await;
}

/// Asks the backend beside a FETCH how many jobs wait in these subqueues: their held jobs may start no job, and it is not
/// known what stands behind them. Whoever waits for a job of the queue looks again then.
pub(crate) fn ask_what_waits(proxy: &Proxy, lane: &Lane, names: Vec<Subqueue>) {
    if names.is_empty() {
        return;
    }
    let sidecar = Arc::clone(&proxy.sidecar);
    let (proxy, lane) = (proxy.clone(), lane.clone());
    let _task = sidecar.tasks.spawn(async move {
        let asked = ask_stats_of_some(&proxy, &lane.queue, names, lane.scope, Questions::InTime);
        if asked.await.iter().any(|(_, told)| told.available > 0) {
            proxy.sidecar.hold.arrived(&lane.queue);
        }
    });
}

/// How many jobs wait in all subqueues of a queue, as far as the backend tells; `None`: it did not tell of each.
pub(crate) async fn count_subqueues(proxy: &Proxy, queue: &str) -> Option<u64> {
    let all: Vec<Subqueue> = Subqueue::first(proxy.sidecar.subqueues.count(queue)).collect();
    let count = all.len();
    let told = ask_stats_of_some(proxy, queue, all, 0, Questions::All).await;
    let waiting = proxy.sidecar.subqueues.waiting(queue).total();
    (told.len() == count).then_some(waiting)
}

/// Asks the backend about these subqueues, and says what it told.
async fn ask_stats_of_some(
    proxy: &Proxy,
    queue: &str,
    names: Vec<Subqueue>,
    scope: u64,
    questions: Questions,
) -> Vec<(Subqueue, Counts)> {
    let (queue, mut asking): (Arc<str>, _) = (Arc::from(queue), JoinSet::new());
    let (mut names, mut told) = (names.into_iter(), Vec::new());
    let (time, mut since) = (&proxy.sidecar.admit.stats.time, Instant::now());
    loop {
        while asking.len() < AT_ONCE
            && (questions == Questions::All || time.has_some(asking.len()))
            && let Some(subqueue) = names.next()
        {
            let (proxy, queue) = (proxy.clone(), Arc::clone(&queue));
            let about = async move { ask_about(&proxy, &queue, subqueue, scope).await };
            asking.spawn(boxed::work(about));
        }
        let Some(of_one) = asking.join_next().await else {
            return told;
        };
        told.extend(of_one.ok().flatten());
        if questions == Questions::InTime {
            time.spend(since.elapsed());
        }
        since = Instant::now();
    }
}

/// Asks the backend about one subqueue.
async fn ask_about(
    proxy: &Proxy,
    queue: &str,
    subqueue: Subqueue,
    scope: u64,
) -> Option<(Subqueue, Counts)> {
    let sidecar = &proxy.sidecar;
    let left = sidecar.subqueues.asks(queue, subqueue)?;
    let Ok(Some(told)) = ask_numbers(proxy, &subqueue.name_in(queue), scope).await else {
        sidecar.subqueues.asked_in_vain(queue, subqueue);
        return None;
    };
    sidecar.subqueues.told(queue, subqueue, told, left);
    Some((subqueue, told.counts))
}

async fn asked(proxy: &Proxy, queue: &str, target: String, scope: u64) -> Result<StatsReply, Away> {
    let mut call = calls::get(proxy, scope, target);
    // Numbers count here and are shown to nobody, so the sidecar's own token will do where there is no login.
    if let Some(token) = proxy.sidecar.live().settings.token.clone() {
        call.headers.entry(AUTHORIZATION).or_insert(token);
    }
    call.timeout = call.timeout.min(PATIENCE);
    let reply = calls::call(proxy, "queue_stats", call).await;
    let reply = reply.map_err(Away::Unanswered)?;
    if let Some(is_paused) = read_paused(&reply) {
        (proxy.sidecar.fetching.backlogs).note_paused(queue, is_paused);
    }
    let (read, stats) = (read(&reply)?, &proxy.sidecar.admit.stats);
    match read {
        StatsReply::Numbers(_) => stats.told.store(true, Ordering::Relaxed),
        StatsReply::Denied => (stats.refused).store(reply.status.as_u16(), Ordering::Relaxed),
        StatsReply::Unknown | StatsReply::NoRoute => {}
    }
    Ok(read)
}

/// A reply about a queue's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StatsReply {
    Numbers(ToldNumbers),
    /// There is no such queue.
    Unknown,
    /// There are no such numbers.
    NoRoute,
    /// Whoever asked may not know them; others may.
    Denied,
}

/// Reads a reply. It fails where the backend, or something between us and it, has no answer this time.
fn read(reply: &Reply) -> Result<StatsReply, Away> {
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    Ok(match reply.status {
        StatusCode::OK => {
            let told = whole.and_then(numbers);
            told.map_or(StatsReply::NoRoute, StatsReply::Numbers)
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => StatsReply::Denied,
        // A route that is not there is answered with plain text, by the backends that are known.
        StatusCode::NOT_FOUND if whole.is_some() => StatsReply::Unknown,
        StatusCode::NOT_IMPLEMENTED => StatsReply::NoRoute,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            return Err(Away::Failing(reply.status.as_u16()));
        }
        status if status.is_server_error() => return Err(Away::Failing(status.as_u16())),
        _ => StatsReply::NoRoute,
    })
}

/// The numbers of a queue in an answer, wherever they stand in it.
pub(crate) fn numbers(whole: Json<'_>) -> Option<ToldNumbers> {
    let inside = ["counts", "queue", "stats", "jobs"];
    let inside = inside.into_iter().filter_map(|name| whole.get_exact(name));
    let inside = inside.filter(|place| place.kind() == Kind::Object);
    inside.chain([whole]).find_map(|place| {
        let number = |name| place.get_exact(name)?.int();
        let count = |name| u64::try_from(number(name)?).ok();
        Some(ToldNumbers {
            counts: Counts {
                available: count("available")?,
                scheduled: count("scheduled"),
                retryable: count("retryable"),
            },
            beside: BesideWaiting(BesideWaiting::NAMES.map(|name| number(name).unwrap_or(0))),
        })
    })
}
