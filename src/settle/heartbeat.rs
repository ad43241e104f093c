//! Heartbeats. A worker names the jobs it runs. Jobs that the sidecar claimed go to the backend under the
//! sidecar's id, all others under the worker's own. A heartbeat never fails because of the sidecar: a worker
//! whose heartbeat fails may be taken for dead, or send four times as many.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument as _;

use crate::answers::body::Body;
use crate::answers::respond::{self, ours};
use crate::desk::Proxy;
use crate::desk::outlive::to_the_end;
use crate::inquiry::job::DEFAULT_VISIBILITY;
use crate::inquiry::prove::{Extension, named};
use crate::inquiry::{calls, rows};
use crate::json::{Json, Kind, Splice, quote};
use crate::store::{Change, KnownRow, LedgerExt, Row};
use crate::told::metrics::Counted;
use crate::wire::boxed::{self, boxed};
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::tick;
use crate::wire::upstream::{Call, Reply};

/// The longest that a worker waits for the backend's answers to its heartbeat, and the least time that the backend
/// gets where the store was slow.
const LONGEST: Duration = Duration::from_secs(10);
const LEAST: Duration = Duration::from_secs(1);
/// How long a store that fails is asked again about the jobs of a heartbeat. After that time it counts as lost.
const LOOKS: Duration = Duration::from_secs(1);
/// The most unknown jobs that the store is asked about for one heartbeat. No worker runs more, and a body has room for
/// some 700,000 made-up ids.
const MOST_JOBS: usize = 1_000;
/// The most heartbeats that are under way at once for one of a worker's.
const AT_ONCE: usize = 16;

/// A heartbeat, read.
struct Beat {
    /// The jobs it names.
    jobs: Vec<Arc<str>>,
    /// The worker that sends it.
    worker: Option<Box<str>>,
    /// The visibility it asks for.
    visibility: Option<Duration>,
    /// Whether `active_jobs` is no list, beside a list of ids.
    crooked: bool,
}

/// Whose the jobs of a heartbeat are.
#[derive(Default)]
struct Split {
    /// The worker's own claims, and jobs of which nobody knows who claimed them.
    own: Vec<Arc<str>>,
    /// The rows of those that have one.
    own_rows: Vec<(Row, Duration)>,
    /// Those of sidecars, and once more jobs of which nobody knows who claimed them.
    ours: BTreeMap<Extension, BeatGroup>,
    /// Whether it names jobs that other workers have. They are left out.
    names_others: bool,
    /// Whether some of the worker's own may be a sibling's.
    claimants: Claimants,
}

/// Whether it is known who claimed the jobs that a worker names.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Claimants {
    #[default]
    KnownRow,
    /// The store could not say.
    Unsure,
}

/// Jobs that go upstream in one heartbeat.
#[derive(Default)]
struct BeatGroup {
    ids: Vec<Arc<str>>,
    rows: Vec<Row>,
}

/// Answers one heartbeat.
pub(crate) async fn heartbeat(proxy: &Proxy, mut parts: Box<Parts>, body: Bytes) -> Response<Body> {
    let begun = tick::now();
    let scope = proxy.sidecar.scopes.of(&parts.headers);
    let mends = proxy.sidecar.live().settings.repairs.heartbeat_active_jobs;
    // With the repair switched off the backend answers a crooked one, whoever claimed the jobs.
    let Some(beat) = read(&body).filter(|beat| mends || !beat.crooked) else {
        let reply = own_beat(proxy, &mut parts, body, begun, Claimants::KnownRow).await;
        return respond::theirs(reply);
    };
    let lasts = beat.visibility.unwrap_or(DEFAULT_VISIBILITY);
    proxy.sidecar.shadow.heard(&beat.jobs, lasts, begun);
    let split = split(proxy, &beat).await;
    if beat.crooked {
        proxy.sidecar.metrics.count(Counted::HeartbeatMended);
    }
    if split.ours.is_empty() && !split.names_others && !beat.crooked {
        let reply = own_beat(proxy, &mut parts, body, begun, split.claimants).await;
        return respond::theirs(reply);
    }
    let own_body = with_jobs(&body, &split.own);
    let sidecar = &proxy.sidecar;
    let proxy = proxy.clone();
    let work = boxed(|| async move {
        let own = (parts, own_body);
        beat_all(&proxy, scope, own, split, begun).await
    });
    // It goes on when the worker hangs up, so that all its jobs are kept.
    to_the_end(&sidecar.tasks.settling, work).await
}

/// Sends the worker's own heartbeat, and those for jobs that sidecars claimed beside it.
async fn beat_all(
    proxy: &Proxy,
    scope: u64,
    own: (Box<Parts>, Bytes),
    split: Split,
    begun: Instant,
) -> Response<Body> {
    let (mut parts, own_body) = own;
    // All are sent side by side, so that one that hangs does not delay the others.
    let (places, mut beats) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for (extension, group) in split.ours {
        let (proxy, places) = (proxy.clone(), Arc::clone(&places));
        let beat = async move {
            let _place = places.acquire().await;
            beat_for(&proxy, scope, &extension, &group).await
        };
        beats.spawn(boxed::work(beat).in_current_span());
    }
    let claimants = match split.own_rows.is_empty() {
        true => split.claimants,
        false => Claimants::Unsure,
    };
    let reply = own_beat(proxy, &mut parts, own_body, begun, claimants).await;
    if reply.status != StatusCode::OK {
        beats.detach_all();
        return respond::theirs(reply);
    }
    let mut extended = named(&reply.body);
    for (row, lasts) in split.own_rows {
        note_extended(proxy, std::slice::from_ref(&row), &extended, lasts).await;
    }
    let mut directions = reply.body.clone();
    loop {
        match timeout_at(begun + LONGEST, beats.join_next()).await {
            Ok(Some(Ok(Some(theirs)))) => {
                let more = named(&theirs);
                let more = more.into_iter().filter(|id| !extended.contains(id));
                let more: Vec<_> = more.map(|id| Cow::Owned(id.into_owned())).collect();
                extended.extend(more);
                directions = stricter(directions, theirs);
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => {
                // The worker gets the answers that came so far, and the other heartbeats go on.
                beats.detach_all();
                break;
            }
        }
    }
    let body = united(&reply.body, &directions, &extended);
    respond::theirs(Reply {
        body: body.into(),
        ..reply
    })
}

/// Which jobs are the worker's own claims, and which ours, by what to ask for them.
async fn split(proxy: &Proxy, beat: &Beat) -> Split {
    let mut split = Split::default();
    let deadline = Instant::now() + LOOKS;
    let mut asked = 0;
    for job in &beat.jobs {
        let store = &proxy.sidecar.store;
        // In memory a look costs nothing.
        if store.is_shared() && matches!(store.known(job), KnownRow::Unsure) {
            asked += 1;
            if asked > MOST_JOBS {
                split.own.push(job.clone());
                continue;
            }
        }
        // A failed call says nothing about the job, and under the worker's own id our claim is not extended.
        match rows::row_by(&proxy.sidecar, job, deadline, Result::is_err).await {
            Ok(Some(row)) if row.is_out() => {
                if row.claimed.is_with_another(beat.worker.as_deref()) {
                    split.names_others = true;
                    continue;
                }
                let (asks, backend) = (asks(beat, &row), &proxy.sidecar.backend);
                // Where claims last from their start, the time in the hold counts too: more is asked for.
                let mut extension = Extension::of(&row.claimed, asks, backend);
                if row.claimed.claimant().is_none() {
                    split.own.push(job.clone());
                    split.own_rows.push((row.clone(), asks));
                    // The job may have been claimed under our id before a restart.
                    extension = extension.under(&proxy.sidecar.fetching.worker_id);
                }
                let group = split.ours.entry(extension).or_default();
                group.ids.push(job.clone());
                group.rows.push(row);
            }
            row => {
                let found = matches!(row, Ok(Some(_)));
                if !found && (row.is_err() || proxy.sidecar.store.may_miss_rows()) {
                    split.claimants = Claimants::Unsure;
                }
                split.own.push(job.clone());
            }
        }
    }
    split
}

/// The visibility to ask for a job that the sidecar claimed: the one that the worker says, else the job's own. It
/// is not less than backends give by themselves, because the job's own may be shorter than the time between two
/// heartbeats.
fn asks(beat: &Beat, row: &Row) -> Duration {
    let its_own = Duration::from_micros(row.claimed.visibility);
    beat.visibility.unwrap_or(its_own.max(DEFAULT_VISIBILITY))
}

/// One heartbeat for jobs that the sidecar claimed; the backend's answer, if it is one.
async fn beat_for(
    proxy: &Proxy,
    scope: u64,
    extension: &Extension,
    group: &BeatGroup,
) -> Option<Bytes> {
    let sidecar = &proxy.sidecar;
    let body = extension.heartbeat(group.ids.iter().map(|id| &**id), sidecar);
    let call = calls::post(proxy, scope, "/ojs/v1/workers/heartbeat", body);
    let reply = match calls::call(proxy, "heartbeat", call).await {
        Ok(reply) if reply.status.is_success() => reply.body,
        _ => return None,
    };
    note_extended(proxy, &group.rows, &named(&reply), extension.lasts).await;
    Some(reply)
}

/// Moves the times of those rows whose jobs the backend named as extended.
async fn note_extended(proxy: &Proxy, rows: &[Row], extended: &[Cow<'_, str>], lasts: Duration) {
    let sidecar = &proxy.sidecar;
    if sidecar.backend.worker_liveness() {
        // This backend's list is only an echo and proves nothing. The backend is asked about these slots later.
        return;
    }
    let now = sidecar.store.now();
    let lasts = crate::desk::micros(lasts);
    let is_extended = |row: &&Row| extended.iter().any(|id| **id == *row.claimed.job);
    let renewals = rows.iter().filter(is_extended).filter_map(|row| {
        Some(Change::Until {
            job: row.claimed.job.clone(),
            generation: row.claimed.generation,
            until: row.due()?.after_heartbeat(now.plus(lasts)),
            visibility: lasts,
        })
    });
    rows::renew_rows(sidecar, renewals.collect()).await;
}

/// Sends the worker's own heartbeat. Where the backend is lost, fails or is overloaded, the worker is told to go on,
/// and nothing is extended. So is it where a refusal may be of a job that a
/// sibling claimed.
async fn own_beat(
    proxy: &Proxy,
    parts: &mut Parts,
    body: Bytes,
    begun: Instant,
    claimants: Claimants,
) -> Reply {
    let time = proxy.sidecar.live().settings.upstream.timeout.min(LONGEST);
    let call = Call {
        method: parts.method.clone(),
        target: proxy.target(&parts.uri),
        headers: respond::take_headers(parts),
        body,
        timeout: time.saturating_sub(begun.elapsed()).max(LEAST.min(time)),
    };
    let is_verdict = |status: StatusCode| {
        let refused = matches!(status, StatusCode::CONFLICT | StatusCode::NOT_FOUND);
        !status.is_server_error()
            && status != StatusCode::TOO_MANY_REQUESTS
            && !(claimants == Claimants::Unsure && refused)
    };
    match calls::call(proxy, "heartbeat", call).await {
        Ok(reply) if is_verdict(reply.status) => reply,
        _ => {
            let mut headers = http::HeaderMap::new();
            ours(&parts.headers, &mut headers);
            let body = Bytes::from_static(
                br#"{"state":"active","directive":"continue","jobs_extended":[]}"#,
            );
            Reply {
                status: StatusCode::OK,
                headers,
                body,
            }
        }
    }
}

/// Reads a heartbeat; `None`: it names no jobs that we understand.
fn read(body: &[u8]) -> Option<Beat> {
    let request = Json::parse(body, REPLY_DEPTH).ok()?;
    let [active, ids, one, visibility, worker] = request.pick([
        "active_jobs",
        "active_job_ids",
        "job_id",
        "visibility_timeout_ms",
        "worker_id",
    ]);
    let is_list = |list: &Json<'_>| list.kind() == Kind::Array;
    let list = active.filter(is_list).or(ids.filter(is_list));
    let one = one.filter(|id| id.kind() == Kind::String);
    let items = list.into_iter().flat_map(|list| list.items());
    let jobs: Option<Vec<Arc<str>>> = items
        .chain(one)
        .map(|id| id.text().map(|id| Arc::from(id.as_ref())))
        .collect();
    let visibility = visibility
        .and_then(|ms| ms.int())
        .and_then(|ms| u64::try_from(ms).ok());
    Some(Beat {
        jobs: jobs.filter(|_| list.or(one).is_some())?,
        worker: worker.and_then(|id| Some(id.text()?.into())),
        visibility: visibility.filter(|ms| *ms > 0).map(Duration::from_millis),
        crooked: active.is_some_and(|active| !is_list(&active)),
    })
}

/// The heartbeat with this list as `active_jobs`, and as `active_job_ids` where that is sent. Nothing else names jobs.
fn with_jobs(body: &Bytes, jobs: &[Arc<str>]) -> Bytes {
    let Ok(request) = Json::parse(body, REPLY_DEPTH) else {
        return body.clone();
    };
    let ids: Vec<String> = jobs.iter().map(|id| quote(id)).collect();
    let list = format!("[{}]", ids.join(","));
    let (mut splice, mut found) = (Splice::new(), false);
    for member in request.members() {
        let is_first = member.is_named("active_jobs");
        let is_second = member.is_named("active_job_ids") && member.value.kind() == Kind::Array;
        if is_first || is_second {
            splice.replace(member.value.range(), list.clone());
        } else if member.is_named("job_id") {
            // A single one, which some send in place of a list.
            splice.remove_member(request, member);
        }
        found |= is_first;
    }
    if !found {
        splice.add_member(request, "active_jobs", list.as_bytes());
    }
    splice.apply(body).into()
}

/// Picks the heartbeat answer that asks more of the worker: to end, or to fetch no more. The backend's word about jobs
/// that we claimed for a worker is meant for that worker.
fn stricter(one: Bytes, other: Bytes) -> Bytes {
    let asks = |reply: &[u8]| {
        let Ok(whole) = Json::parse(reply, REPLY_DEPTH) else {
            return 0;
        };
        let words = [whole.get("directive"), whole.get("state")];
        let asks = words.iter().flatten().map(|word| match word.text() {
            Some(word) if word == "terminate" => 2,
            Some(word) if word == "quiet" => 1,
            _ => 0,
        });
        asks.max().unwrap_or(0)
    };
    if asks(&other) > asks(&one) {
        other
    } else {
        one
    }
}

/// The reply with all extended jobs, with the `directive` of the stricter answer, and with a `state` that every SDK can
/// read.
fn united(reply: &[u8], directions: &[u8], extended: &[Cow<'_, str>]) -> Vec<u8> {
    let (Ok(whole), Ok(directions)) = (
        Json::parse(reply, REPLY_DEPTH),
        Json::parse(directions, REPLY_DEPTH),
    ) else {
        return reply.to_vec();
    };
    let ids: Vec<String> = extended.iter().map(|id| quote(id)).collect();
    let mut splice = Splice::new();
    let mut set = |name: &str, value: &[u8]| match whole.get(name) {
        Some(there) => splice.replace(there.range(), value),
        None => splice.add_member(whole, name, value),
    };
    set("jobs_extended", format!("[{}]", ids.join(",")).as_bytes());
    match directions
        .get("state")
        .filter(|state| state.kind() == Kind::String)
    {
        Some(state) => set("state", state.raw()),
        None => set("state", b"\"active\""),
    }
    if let Some(directive) = directions.get("directive") {
        set("directive", directive.raw());
    }
    splice.apply(reply)
}
