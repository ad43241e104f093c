//! Looks: the backend is asked how deep a bounded queue is, once for all who wait for it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::fleet;
use crate::bounds::{Awaited, Bounds, MissingStats, Pressure, StatsAnswer};
use crate::desk::admit::Admit;
use crate::desk::edges::{now, tell_level};
use crate::desk::{Proxy, settings};
use crate::inquiry::calls;
use crate::inquiry::stats::{ToldOfAll, ask_stats, ask_stats_of_all};
use crate::json::Json;
use crate::policy::subqueue::split;
use crate::subqueues::mirror;
use crate::wire::ojs::REPLY_DEPTH;

/// How long a look waits for enqueues that are on their way.
const SETTLE: Duration = Duration::from_millis(250);
/// How often the store is told again of subqueues that it did not take.
const MARK_AGAIN: Duration = Duration::from_secs(30);
/// The most pages of the list of queues that are read at the start.
const MOST_PAGES: usize = 100;
/// The most names that nobody reads of which it is asked whether jobs wait there.
const MOST_UNREAD: usize = 64;
/// The most queues that are looked at at once where nobody asks. The others are in the next round.
const MOST_PRESSED: usize = 64;
/// The most queues that are looked at at the start.
const MOST_MEASURED: usize = 1_000;

/// Asks the backend how deep a queue is, unless somebody does.
pub(in crate::admit) fn look_soon(proxy: &Proxy, queue: Arc<str>, scope: u64) {
    if proxy.sidecar.admit.pressure.begin_look(&queue) {
        ask_for_all(proxy, queue, scope);
    }
}

/// Asks the backend where it is the caller who must.
pub(in crate::admit) fn make_looks(proxy: &Proxy, looks: &[Awaited], scope: u64) {
    for look in looks.iter().filter(|look| look.begin) {
        ask_for_all(proxy, Arc::clone(&look.queue), scope);
    }
}

/// Looks at a queue for all who wait for it, in a task of its own. The look has begun.
fn ask_for_all(proxy: &Proxy, queue: Arc<str>, scope: u64) {
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    let _task = sidecar
        .tasks
        .spawn(async move { look(&proxy, &queue, scope).await });
}

/// Waits for looks and answers of the store, and asks the backend where nobody else does.
pub(in crate::admit) async fn await_all(proxy: &Proxy, awaited: Vec<Awaited>, scope: u64) {
    make_looks(proxy, &awaited, scope);
    for one in awaited {
        one.done.await;
    }
}

/// Reads the backend's list of queues. Warns of those without a bound, and looks at those with one: a full queue
/// may get no enqueue for long, and is to be measured all the same.
pub(crate) async fn measure_queues(proxy: &Proxy) {
    let listed = listed_queues(proxy).await;
    let names = bases_of(&listed);
    let sidecar = &proxy.sidecar;
    let Admit {
        pressure,
        unbounded,
        ..
    } = &sidecar.admit;
    let free = names.iter().filter(|name| !is_bounded(pressure, name));
    free.for_each(|name| unbounded.note(name));
    unbounded.tell(|queue| is_bounded(pressure, queue));
    let proxy = proxy.clone();
    let _task = sidecar.tasks.spawn(async move {
        let mut are_known = find_subqueues(&proxy, &listed).await;
        measure_all(&proxy, &names).await;
        let draining = &proxy.sidecar.tasks.draining;
        while !are_known && (draining.run_until_cancelled(sleep(MARK_AGAIN)).await).is_some() {
            are_known = find_subqueues(&proxy, &listed).await;
        }
    });
}

fn is_bounded(pressure: &Pressure, queue: &str) -> bool {
    (pressure.bounds(queue)).is_some_and(|bounds| bounds.has_own())
}

/// The queues of this list, each once: subqueues stand for the queue that they belong to.
fn bases_of(listed: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    let base_of = |name: &String| split(name).map_or(&**name, |(base, _)| base).to_owned();
    let bases = listed.iter().map(base_of);
    bases.filter(|name| seen.insert(name.clone())).collect()
}

/// Looks at those of these queues that are bounded and of which nothing is known.
async fn measure_all(proxy: &Proxy, names: &[String]) {
    let known = proxy.sidecar.admit.pressure.names().into_iter();
    let known: HashSet<Arc<str>> = known.collect();
    let is_new = |name: &&String| !known.contains(name.as_str());
    for queue in names.iter().filter(is_new).take(MOST_MEASURED) {
        measure(proxy, queue).await;
    }
}

/// Marks queues of which jobs lie in subqueues, and the store does not know it: it was emptied, or it was the memory of
/// another life of this sidecar. A file that says nothing of subqueues any more would strand them. `false`: the store did
/// not take a mark.
async fn find_subqueues(proxy: &Proxy, listed: &[String]) -> bool {
    let sidecar = &proxy.sidecar;
    let (mut found, mut are_known) = (HashSet::new(), true);
    for name in listed {
        let Some((base, subqueue)) = split(name) else {
            continue;
        };
        let is_read = |base| subqueue.0 < sidecar.subqueues.count(base);
        if is_read(base) && !found.iter().any(|(of, _)| *of == base) {
            continue;
        }
        if waiting_in(proxy, name).await == 0 || is_strangers(proxy, name, base).await {
            continue;
        }
        let mark = settings::mark_with(sidecar, base, subqueue);
        if !is_read(base) && found.insert((base, mark.most)) {
            if settings::mark_subqueues(sidecar, base, &mark).await {
                tracing::warn!(
                    id = %"subqueues_found",
                    queue = base,
                    "jobs wait in subqueues of this queue, which the store did not know: they are asked for from now on"
                );
            } else {
                are_known = false;
            }
        }
        sidecar.subqueues.mark(base, subqueue, None);
    }
    are_known
}

/// How many names of subqueues the backend lists; and those that nobody reads and where jobs wait, with how many.
pub(crate) async fn unread_subqueues(proxy: &Proxy) -> (usize, Vec<(String, u64)>) {
    let (mut names, mut unread) = (listed_queues(proxy).await, Vec::new());
    names.retain(|name| split(name).is_some());
    let is_read = |name: &String| *proxy.sidecar.subqueues.base_of(name) != **name;
    for name in names.iter().filter(|name| !is_read(name)).take(MOST_UNREAD) {
        let waiting = waiting_in(proxy, name).await;
        if waiting > 0 {
            unread.push((name.clone(), waiting));
        }
    }
    (names.len(), unread)
}

/// How many jobs wait in a queue, as far as the backend tells those who have no credentials.
async fn waiting_in(proxy: &Proxy, queue: &str) -> u64 {
    let counts = ask_stats(proxy, queue, 0).await.counts();
    counts.map_or(0, |counts| counts.total())
}

/// Whether a queue of such a name is known to be none of a sidecar's: of each job that it sends to a subqueue a sidecar
/// notes the base.
async fn is_strangers(proxy: &Proxy, name: &str, base: &str) -> bool {
    let of = crate::wire::ojs::encoded(name);
    let target = format!("/ojs/v1/admin/jobs?queue={of}&state=available&per_page=1");
    let Ok(reply) = calls::call(proxy, "queues", calls::get(proxy, 0, target)).await else {
        return false;
    };
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    let jobs = whole.and_then(|whole| whole.get_exact("items"));
    let job = jobs.and_then(|jobs| jobs.items().next());
    job.is_some_and(|job| job.says("queue", name) && mirror::filed(job).as_deref() != Some(base))
}

/// The queues that the backend lists, subqueues among them.
async fn listed_queues(proxy: &Proxy) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..MOST_PAGES {
        let page = match names.len() {
            0 => String::new(),
            offset => format!("?offset={offset}"),
        };
        let Some(mut page) = list_queues(proxy, &page).await else {
            break;
        };
        let has_any = !page.names.is_empty();
        names.append(&mut page.names);
        if !page.has_more || !has_any {
            break;
        }
    }
    names
}

/// One page of the backend's list of queues.
pub(crate) struct QueuesPage {
    pub(crate) names: Vec<String>,
    pub(crate) has_more: bool,
}

/// Asks the backend for the page of its list of queues that this query names. `None`: it did not tell.
pub(crate) async fn list_queues(proxy: &Proxy, query: &str) -> Option<QueuesPage> {
    let call = calls::get(proxy, 0, format!("/ojs/v1/queues{query}"));
    let reply = calls::call(proxy, "queues", call).await.ok()?;
    if !reply.status.is_success() {
        return None;
    }
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok()?;
    let lists = ["queues", "items", "data"].into_iter();
    let each = lists
        .filter_map(|name| whole.get_exact(name))
        .flat_map(|list| list.items());
    let name = |queue: Json<'_>| {
        let named = queue.text().or_else(|| queue.get("name")?.text());
        named.map(Cow::into_owned)
    };
    let pages = whole.get("pagination");
    Some(QueuesPage {
        names: each.filter_map(name).collect(),
        has_more: pages.and_then(|pages| pages.get("has_more")?.boolean()) == Some(true),
    })
}

async fn measure(proxy: &Proxy, queue: &str) {
    let sidecar = &proxy.sidecar;
    let pressure = &sidecar.admit.pressure;
    let bounds = pressure.bounds(queue);
    let bounded = |bounds: &Bounds| bounds.max_depth.is_some() || bounds.max_bytes.is_some();
    if !bounds.as_deref().is_some_and(bounded) || sidecar.tasks.draining.is_cancelled() {
        return;
    }
    // Asked before anything is kept of it: without the credentials of a producer the backend may have
    // nothing to say, and that says nothing of what it tells others.
    if waiting_in(proxy, queue).await > 0 && pressure.begin_keeping(queue, Instant::now()) {
        look(proxy, queue, 0).await;
    }
}

/// Looks at queues near their bound although nobody enqueues, to see when they have room again, and at those that have
/// just got a bound.
pub(crate) fn watch_bounds(proxy: &Proxy) {
    let pressure = &proxy.sidecar.admit.pressure;
    let unbounded = &proxy.sidecar.admit.unbounded;
    unbounded.tell_seldom(|queue| is_bounded(pressure, queue));
    if !pressure.any() {
        return;
    }
    if pressure.take_bounded_anew() {
        let proxy = proxy.clone();
        let _task = proxy.sidecar.clone().tasks.spawn(async move {
            let listed = listed_queues(&proxy).await;
            measure_all(&proxy, &bases_of(&listed)).await;
        });
    }
    let pressed = pressure.pressed(Instant::now()).into_iter();
    for (queue, scope) in pressed.take(MOST_PRESSED) {
        look_soon(proxy, queue, scope);
    }
}

/// Whether the backend lists its queues, and not this one: some forget those in which nothing waits.
async fn is_forgotten(proxy: &Proxy, queue: &str) -> bool {
    let page = list_queues(proxy, "").await;
    page.is_some_and(|page| !page.has_more && !page.names.iter().any(|name| name == queue))
}

/// Asks with the credentials of a scope. Whoever enqueues may look, and what the backend refuses to one is no word about the
/// queue: then those ask that were told last.
async fn ask(proxy: &Proxy, queue: &str, scope: u64) -> ToldOfAll {
    let Admit {
        pressure, stats, ..
    } = &proxy.sidecar.admit;
    let told = ask_stats_of_all(proxy, queue, scope).await;
    match &told.answer {
        StatsAnswer::Counts(_) => pressure.note_told(queue, scope),
        StatsAnswer::Nothing if stats.told.load(Ordering::Relaxed) => {
            if let Some(known) = pressure.told_another(queue, scope) {
                return ask_stats_of_all(proxy, queue, known).await;
            }
        }
        _ => {}
    }
    told
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
    // It is never closed.
    let _permit = sidecar.admit.looks.acquire().await;
    // Read before the question: what is added later stays in the number.
    let number = fleet::read_number(sidecar, queue).await;
    pressure.note_asked(queue);
    let mut told = ask(proxy, queue, scope).await;
    // It never told any number, so it said that it knows no such queue. With statistics it would know one in which jobs
    // were stored.
    if told.answer.counts().is_some()
        && !stats.told.load(Ordering::Relaxed)
        && pressure.has_stored(queue)
        && !is_forgotten(proxy, queue).await
    {
        told.answer = StatsAnswer::Never;
    }
    stats.failing.note(queue, &told.answer);
    let fleet = match (&told.answer, number) {
        (StatsAnswer::Counts(_), Some(number)) => {
            fleet::correct_number(sidecar, queue, &told, number).await
        }
        _ => None,
    };
    let missing = pressure.end_look(queue, told.answer, fleet, now(sidecar));
    let first = |flag: &AtomicBool| !flag.swap(true, Ordering::Relaxed);
    match missing {
        Some(MissingStats::All) if first(&stats.warned) => {
            match stats.refused.load(Ordering::Relaxed) {
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
            }
        }
        Some(MissingStats::States) if first(&stats.warned_of_states) => {
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
