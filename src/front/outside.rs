//! Held jobs as they are seen from outside: what the OJS text says they are, `available` (or
//! `scheduled`, where `on_limit` is `reschedule`), with the attempt they had before the claim. Pausing,
//! cancelling and deleting them works at once.
//!
//! The backend answers as of one moment, and the hold is read as of another. A job that is claimed in between would be
//! counted twice, or as running though no worker has it. So numbers count only if no job moved meanwhile; else the
//! backend is asked again. To keep claims waiting instead would cost workers time whenever somebody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::time::{Instant, sleep};

use crate::admit::depth;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::outlive::to_the_end;
use crate::desk::scope::Sight;
use crate::desk::{Proxy, Sidecar, edges, hiding, paused};
use crate::hold::Tally;
use crate::inquiry::shape::rfc3339;
use crate::inquiry::{adopt, calls, passing, stats};
use crate::jobs::siblings;
use crate::json::{Json, Kind, Splice, quote};
use crate::limit::Timestamp;
use crate::store::LedgerExt;
use crate::subqueues::merged::merged;
use crate::subqueues::names::ReplyKind;
use crate::subqueues::{BesideWaiting, ToldNumbers, mirror};
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::{Call, Reply, UpstreamError};

/// How often the backend is asked for numbers at most while jobs move.
const TRIES: usize = 4;
/// How long a reader waits at most for claims that are on their way, and between two looks.
const SETTLES: Duration = Duration::from_millis(200);
const RECHECK: Duration = Duration::from_millis(5);

/// `GET` of one job: a held one is shown as it was before its claim.
pub(super) async fn show_job(proxy: &Proxy, parts: Box<Parts>) -> Response<Body> {
    let call = calls::plain_call(proxy, &parts, Bytes::new());
    let mut reply = match proxy.upstream.call(call).await {
        Ok(reply) => reply,
        Err(error) => return refuse(&parts, Fault::backend(&error)),
    };
    if reply.status == StatusCode::OK {
        await_claim_of(&proxy.sidecar, &reply.body).await;
    }
    let scope = proxy.sidecar.scopes.of(&parts.headers);
    if reply.status == StatusCode::OK {
        let elsewhere = held_elsewhere(proxy, scope, &reply.body).await;
        if let Some(shown) = elsewhere.or_else(|| relabelled(proxy, &reply.body)) {
            reply.body = shown.into();
        }
    }
    respond::theirs(reply)
}

/// `GET` of one queue's numbers or of all.
pub(super) async fn show_queues(
    proxy: &Proxy,
    parts: Box<Parts>,
    queue: Option<&str>,
) -> Response<Body> {
    let answer = queues(proxy, &parts, queue).await;
    respond::answer(&parts, answer, Fault::backend)
}

/// The backend's reply with its counts put right.
pub(crate) async fn queues(
    proxy: &Proxy,
    parts: &Parts,
    queue: Option<&str>,
) -> Result<Reply, UpstreamError> {
    let sight = proxy.sidecar.scopes.sight(&parts.headers);
    let (mut reply, mut tallies) = as_of_one_moment(proxy, parts, queue, &sight).await?;
    if reply.status != StatusCode::OK {
        return Ok(reply);
    }
    let subqueues = &proxy.sidecar.subqueues;
    let mut more = ToldNumbers::default();
    if let Some(queue) = queue {
        // The backend's numbers of the base leave out what waits in its subqueues.
        let scope = proxy.sidecar.scopes.of(&parts.headers);
        stats::refresh_subqueues(proxy, queue, scope).await;
        more = ToldNumbers {
            counts: subqueues.waiting(queue),
            beside: subqueues.beside_waiting(queue),
        };
        if sight.is_whole() {
            let elsewhere = siblings::held_by_siblings(&proxy.sidecar, queue).await;
            if elsewhere > 0 {
                tallies.entry(Arc::from(queue)).or_default().held += elsewhere;
            }
        }
    } else {
        let all = ReplyKind {
            lists_queues: true,
            ..ReplyKind::default()
        };
        let merged = merged(&reply.body, all, subqueues);
        reply.body = merged.map_or(reply.body, Bytes::from);
    }
    if (!tallies.is_empty() || more != ToldNumbers::default())
        && let Some(body) = recounted(&reply.body, queue, &tallies, more)
    {
        reply.body = body.into();
    }
    if let Some(queue) = queue
        && let Some(body) = depth::with_depth(proxy, &reply.body, queue).await
    {
        reply.body = body.into();
    }
    Ok(reply)
}

/// The backend's numbers, and how many jobs of each queue were held as they were true. Where jobs move all the time, the
/// last try counts as it is.
async fn as_of_one_moment(
    proxy: &Proxy,
    parts: &Parts,
    queue: Option<&str>,
    sight: &Sight,
) -> Result<(Reply, HashMap<Arc<str>, Tally>), UpstreamError> {
    let sidecar = &proxy.sidecar;
    let until = Instant::now() + SETTLES;
    let mut tries = TRIES;
    loop {
        let before = settled(sidecar, queue, until).await;
        let reply = (proxy.upstream)
            .call(calls::plain_call(proxy, parts, Bytes::new()))
            .await?;
        let tallies = sidecar
            .hold
            .tallies(sidecar.store.now(), |scope| sight.sees(scope));
        tries -= 1;
        let is_whole = before.is_some() && sidecar.hold.moves(queue) == before;
        if is_whole || tries == 0 || Instant::now() >= until {
            return Ok((reply, tallies));
        }
    }
}

/// Waits until no job of the queue is on its way into the hold or out of it, and gives the number of moves until then.
async fn settled(sidecar: &Sidecar, queue: Option<&str>, until: Instant) -> Option<u64> {
    loop {
        let moves = sidecar.hold.moves(queue);
        if moves.is_some() || Instant::now() >= until {
            return moves;
        }
        sleep(RECHECK).await;
    }
}

/// The backend shows a job as active that may be in the reply to a claim which is on its way: it is seen here once that
/// has come.
async fn await_claim_of(sidecar: &Sidecar, reply: &[u8]) {
    if sidecar.hold.in_flight() == 0 {
        return;
    }
    let job = Json::parse(reply, REPLY_DEPTH).ok().and_then(one_job);
    let active = job.filter(|job| job.says("state", "active"));
    if let Some(queue) = active.and_then(|job| mirror::queue(job, &sidecar.subqueues)) {
        settled(sidecar, Some(&queue), Instant::now() + SETTLES).await;
    }
}

/// Cancel or delete of a job: a held one is hidden first, then the call goes on.
pub(crate) async fn cancel(
    proxy: &Proxy,
    parts: Box<Parts>,
    body: Bytes,
    job: &str,
) -> Response<Body> {
    let name: Arc<str> = Arc::from(job);
    // A job that is hidden for a client that hangs up must be shown again.
    to_its_end(proxy, &parts, body, move |proxy, call| async move {
        let hiding = hiding::hide(&proxy.sidecar, &name);
        let hidden = hiding.is_some();
        siblings::doubt_elsewhere(&proxy.sidecar, &name).await;
        let mark = proxy.sidecar.admit.pressure.mark();
        let mut answer = calls::call(&proxy, "cancel", call).await;
        let shown = match &answer {
            Ok(reply) if hidden => relabelled(&proxy, &reply.body),
            _ => None,
        };
        // Gone or in another state: the next proof tells, if it is still ours.
        if let Ok(reply) = &answer
            && reply.status.is_success()
        {
            proxy.sidecar.hold.forget(&name);
            proxy.sidecar.end(&name, None).await;
            let sent = (!hidden).then_some(mark);
            passing::cancelled(&proxy.sidecar, reply, sent);
            (proxy.sidecar.admit.pressure).wake(edges::now(&proxy.sidecar));
        }
        siblings::doubt_elsewhere(&proxy.sidecar, &name).await;
        if let (Ok(reply), Some(shown)) = (&mut answer, shown) {
            reply.body = shown.into();
        }
        answer
    })
    .await
}

/// Retry of a job by hand: it waits again, or is available before its time.
pub(super) async fn revive(proxy: &Proxy, parts: &Parts, body: Bytes, job: &str) -> Response<Body> {
    let name = job.to_owned();
    to_its_end(proxy, parts, body, move |proxy, call| async move {
        let answer = proxy.upstream.call(call).await;
        if let Ok(reply) = &answer {
            passing::revived(&proxy.sidecar, reply, &name);
        }
        answer
    })
    .await
}

/// Retry of whatever has failed: the answer says how many jobs wait again, but not where.
pub(super) async fn revive_many(proxy: &Proxy, parts: &Parts, body: Bytes) -> Response<Body> {
    to_its_end(proxy, parts, body, move |proxy, call| async move {
        let answer = proxy.upstream.call(call).await;
        if calls::may_be_done(&answer) {
            proxy.sidecar.admit.pressure.doubt_all();
        }
        answer
    })
    .await
}

/// Pause: held jobs of the queue stay from the moment the call comes, or the backend has carried it out where it does not
/// know yet whose call it is.
pub(crate) async fn pause(
    proxy: &Proxy,
    parts: Box<Parts>,
    body: Bytes,
    queue: &str,
) -> Response<Body> {
    let queue = Arc::from(queue);
    let scope = proxy.sidecar.scopes.of(&parts.headers);
    to_its_end(proxy, &parts, body, move |proxy, call| async move {
        paused(&proxy, call, scope, &queue).await
    })
    .await
}

/// Resume: held jobs of the queue go on when the backend has carried it out.
pub(crate) async fn resume(
    proxy: &Proxy,
    parts: Box<Parts>,
    body: Bytes,
    queue: &str,
) -> Response<Body> {
    let queue = Arc::from(queue);
    to_its_end(proxy, &parts, body, move |proxy, call| async move {
        resumed(&proxy, call, &queue).await
    })
    .await
}

/// Sends the request on as it came, with what belongs to that here, and answers. What comes of it counts here, whether
/// the client hears of it or not.
async fn to_its_end<F>(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    send: impl FnOnce(Proxy, Call) -> F,
) -> Response<Body>
where
    F: Future<Output = Result<Reply, UpstreamError>> + Send + 'static,
{
    let work = Box::pin(send(proxy.clone(), calls::plain_call(proxy, parts, body)));
    let answer = to_the_end(&proxy.sidecar.tasks.left, work).await;
    respond::answer(parts, answer, Fault::backend)
}

async fn paused(
    proxy: &Proxy,
    call: Call,
    scope: u64,
    queue: &Arc<str>,
) -> Result<Reply, UpstreamError> {
    let sidecar = &proxy.sidecar;
    let begin = async || {
        sidecar.fetching.paused.begin(queue);
        siblings::tell_paused(sidecar, queue, true).await;
    };
    // Nobody whom the backend refuses keeps jobs from starting.
    let is_known = sidecar.scopes.has_accepted(scope);
    if is_known {
        begin().await;
    }
    let answer = calls::call(proxy, "pause", call).await;
    let stands = match &answer {
        Ok(reply) if reply.status.is_success() => true,
        Ok(reply) if !reply.status.is_server_error() => false,
        Err(error) if !error.in_doubt() => false,
        // It may have been carried out.
        _ => says_paused(proxy, scope, queue).await,
    };
    if !is_known && !stands {
        return answer;
    }
    if !is_known {
        begin().await;
    }
    let _nobody_reads = sidecar.fetching.paused.reading.write().await;
    if stands {
        sidecar.fetching.paused.end_done(queue);
        // A resume that came between may have told them otherwise.
        siblings::tell_paused(sidecar, queue, true).await;
    } else {
        sidecar.fetching.paused.end_failed(queue);
        if !sidecar.fetching.paused.has(queue) {
            siblings::tell_paused(sidecar, queue, false).await;
            sidecar.hold.wake_all();
        }
    }
    answer
}

async fn resumed(proxy: &Proxy, call: Call, queue: &Arc<str>) -> Result<Reply, UpstreamError> {
    let sidecar = &proxy.sidecar;
    let answer = calls::call(proxy, "pause", call).await;
    if answer.as_ref().is_ok_and(|reply| reply.status.is_success()) {
        let _nobody_reads = sidecar.fetching.paused.reading.write().await;
        sidecar.fetching.paused.resume(queue);
        siblings::tell_paused(sidecar, queue, false).await;
        sidecar.hold.wake_all();
    }
    answer
}

/// Whether the backend's numbers of a queue say that it is paused.
async fn says_paused(proxy: &Proxy, scope: u64, queue: &str) -> bool {
    let path = crate::wire::ojs::encoded(queue);
    let call = calls::get(proxy, scope, format!("/ojs/v1/queues/{path}/stats"));
    let stats = calls::call(proxy, "queue_stats", call).await;
    stats.is_ok_and(|stats| paused::read_paused(&stats) == Some(true))
}

/// `POST /ojs/v1/admin/reset` of the embedded backend, which clears the sidecar too.
pub(crate) async fn reset(proxy: &Proxy, parts: Box<Parts>, body: Bytes) -> Response<Body> {
    proxy.sidecar.clear().await;
    let call = calls::plain_call(proxy, &parts, body);
    let answer = proxy.upstream.call(call).await;
    proxy.sidecar.clear().await;
    respond::answer(&parts, answer, Fault::backend)
}

/// The job of a reply as it was before its claim, if it is held, and without its mirror. `None`: as it came.
fn relabelled(proxy: &Proxy, text: &[u8]) -> Option<Vec<u8>> {
    if proxy.sidecar.hold.is_empty() {
        return mirror::hide_all(text);
    }
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let mut splice = Splice::new();
    for job in whole.get_exact("job").into_iter().chain([whole]) {
        mirror::hide(job, &mut splice);
        let id = job.text_of("id");
        let now = proxy.sidecar.store.now();
        if let Some((attempt, at)) = id.and_then(|id| proxy.sidecar.hold.seen(&id, now)) {
            relabel(proxy, job, attempt, at, &mut splice);
        }
    }
    (!splice.is_empty()).then(|| splice.apply(text))
}

/// Shows an active job as `available`, or as `scheduled` at this time, as it was before its claim.
pub(super) fn relabel(
    proxy: &Proxy,
    job: Json<'_>,
    attempt: Option<u32>,
    scheduled_at: Option<Timestamp>,
    splice: &mut Splice,
) {
    let is_active = |job: Json<'_>| {
        job.get_exact("state")?
            .text()
            .map(|state| state == "active")
    };
    let scheduled_at = scheduled_at.filter(|_| is_active(job) == Some(true));
    let (state, at) = match scheduled_at {
        Some(at) => ("\"scheduled\"", Some(quote(&rfc3339(at)))),
        None => ("\"available\"", None),
    };
    if let Some(at) = &at
        && job.get("scheduled_at").is_none()
    {
        splice.add_member(job, "scheduled_at", at.as_bytes());
    }
    for member in job.members() {
        if member.is_named("state") {
            if member.value.text().as_deref() == Some("active") {
                splice.replace(member.value.range(), state);
            }
        } else if let (true, Some(at)) = (member.is_named("scheduled_at"), &at) {
            splice.replace(member.value.range(), at.clone());
        } else if member.is_named("attempt") {
            // Its claim may have shown none.
            if let Some(attempt) = attempt.or_else(|| member.value.u32()) {
                let before = proxy.sidecar.backend.before_claim(attempt);
                splice.replace(member.value.range(), before.to_string());
            }
        } else if member.is_named("started_at") || member.is_named("worker_id") {
            splice.remove_member(job, member);
        }
    }
}

/// Queue numbers with held jobs as available or scheduled instead of active: of one queue with so many `more` that are
/// in its subqueues, of a list (`items`, `queues`), or totals. `None`: no numbers were found.
fn recounted(
    text: &[u8],
    queue: Option<&str>,
    tallies: &HashMap<Arc<str>, Tally>,
    more: ToldNumbers,
) -> Option<Vec<u8>> {
    let of = |name: &str| {
        let tally = tallies.get(name).copied().unwrap_or_default();
        match queue {
            Some(_) => tally,
            // Lists have what runs in subqueues too.
            None => Tally { heads: 0, ..tally },
        }
    };
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let mut splice = Splice::new();
    if let Some(queue) = queue {
        shift(whole, of(queue), more, &mut splice);
    } else {
        let lists = ["items", "queues"]
            .into_iter()
            .filter_map(|name| whole.get_exact(name));
        let mut found = false;
        for entry in lists.flat_map(|list| list.items()) {
            found = true;
            if let Some(name) = entry.text_of("name") {
                shift(entry, of(&name), more, &mut splice);
            }
        }
        if !found {
            let all = Tally {
                held: tallies.values().map(|tally| tally.held).sum(),
                scheduled: tallies.values().map(|tally| tally.scheduled).sum(),
                heads: 0,
            };
            shift(whole, all, more, &mut splice);
        }
    }
    (!splice.is_empty()).then(|| splice.apply(text))
}

/// Moves jobs from `active` to `available` and `scheduled`, in the object or one level into it, and adds so many `more`.
/// Heads of subqueues are no part of the base's `active`.
fn shift(object: Json<'_>, moved: Tally, more: ToldNumbers, splice: &mut Splice) {
    if moved.held == 0 && more == ToldNumbers::default() {
        return;
    }
    let ToldNumbers {
        counts: more,
        beside,
    } = more;
    let many = |jobs: u64| i64::try_from(jobs).unwrap_or(i64::MAX);
    let [held, later, heads] =
        [moved.held, moved.scheduled, moved.heads].map(|jobs| many(jobs as u64));
    // Heads are active in subqueues, and are held.
    let [running, ..] = beside.0;
    let running = running.saturating_sub(heads).max(0);
    let inner = ["queue", "stats", "counts", "jobs"]
        .into_iter()
        .filter_map(|name| object.get_exact(name));
    for place in inner
        .filter(|inner| inner.kind() == Kind::Object)
        .chain([object])
    {
        let number = |name: &str| {
            let number = place.get_exact(name)?;
            Some((number.range(), number.int()?))
        };
        let (Some(_), Some((at, active))) = (number("available"), number("active")) else {
            continue;
        };
        let left = active.saturating_sub(held.saturating_sub(heads)).max(0);
        splice.replace(at, left.saturating_add(running).to_string());
        let mut add = |name: &str, more: i64| {
            if let Some((at, now)) = number(name) {
                splice.replace(at, now.saturating_add(more).to_string());
            }
        };
        let now = held.saturating_sub(later).max(0);
        add("available", now.saturating_add(many(more.available)));
        let later = later.saturating_add(many(more.scheduled.unwrap_or(0)));
        add("scheduled", later);
        add("retryable", many(more.retryable.unwrap_or(0)));
        for (name, more) in BesideWaiting::NAMES.into_iter().zip(beside.0).skip(1) {
            add(name, more);
        }
    }
}

/// One job, which the backend shows as active, as what it is if a sibling holds it; `None`: none does.
async fn held_elsewhere(proxy: &Proxy, scope: u64, reply: &[u8]) -> Option<Vec<u8>> {
    let job = one_job(Json::parse(reply, REPLY_DEPTH).ok()?)?;
    let claimed = adopt::held_by_sibling(&proxy.sidecar, scope, job).await?;
    let job = one_job(Json::parse(reply, REPLY_DEPTH).ok()?)?;
    let mut splice = Splice::new();
    mirror::hide(job, &mut splice);
    relabel(proxy, job, claimed.attempt, None, &mut splice);
    Some(splice.apply(reply))
}

/// The job of a reply that shows one; `None`: it shows many, or none.
fn one_job(whole: Json<'_>) -> Option<Json<'_>> {
    let job = whole.get_exact("job");
    job.or_else(|| whole.get_exact("id").map(|_| whole))
}
