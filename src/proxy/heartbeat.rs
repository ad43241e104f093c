//! Heartbeats. A worker names the jobs it runs; those that the sidecar claimed go upstream under the
//! sidecar's id, the rest under the worker's own. They never fail on the sidecar's account: a worker
//! whose heartbeat fails may be taken for dead, or retry four times as often.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::body::Body;
use super::outlive::{Client, to_the_end};
use super::prove::{Extension, named};
use super::sweep::heard;
use super::{DEFAULT_VISIBILITY, Proxy, REPLY_DEPTH};
use super::{ours, respond};
use crate::boxed::boxed;
use crate::json::{Json, Kind, Splice, quote};
use crate::metrics::Counted;
use crate::store::{Change, Known, Place, Row};
use crate::tick;
use crate::upstream::{Call, Reply};

/// The longest that a worker waits for the backend's answers to its heartbeat, and what is left of that at the
/// least when jobs had to be looked up first.
const LONGEST: Duration = Duration::from_secs(10);
const LEAST: Duration = Duration::from_secs(1);
/// How long a store that fails is asked again about the jobs of a heartbeat. By then it has answered or is lost.
const LOOKS: Duration = Duration::from_secs(1);
/// So many jobs of which nothing is known here are asked of the store for one heartbeat. No worker runs more, and a
/// body has room for some 700,000 made-up ids.
const MOST: usize = 1_000;
/// So many heartbeats are on their way at once for one of a worker's.
const AT_ONCE: usize = 16;

/// A heartbeat, read.
struct Beat {
    /// The jobs it names.
    jobs: Vec<Arc<str>>,
    /// The visibility it asks for.
    visibility: Option<Duration>,
    /// Whether `active_jobs` is something else than a list, beside a list of ids.
    crooked: bool,
}

/// Whose the jobs of a heartbeat are.
#[derive(Default)]
struct Split {
    /// The worker's own claims.
    own: Vec<Arc<str>>,
    /// Those of sidecars.
    ours: BTreeMap<Extension, Group>,
    /// Some of the worker's own may be a sibling's: the store could not say.
    unsure: bool,
}

/// Jobs that go upstream in one heartbeat.
#[derive(Default)]
struct Group {
    ids: Vec<Arc<str>>,
    rows: Vec<Row>,
}

impl Proxy {
    /// Answers one heartbeat.
    pub(super) async fn heartbeat(&self, mut parts: Box<Parts>, body: Bytes) -> Response<Body> {
        let begun = tick::now();
        let scope = self.sidecar.scopes.of(&parts.headers);
        let Some(beat) = read(&body) else {
            return self.beat_as_it_is(&mut parts, body, begun, false).await;
        };
        if self.sidecar.adopts_from_heartbeats() {
            self.adopt_named(scope, &beat.jobs).await;
        }
        let mend = beat.crooked && self.sidecar.live().settings.repair_heartbeat;
        if beat.crooked && !mend {
            // Who switched the repair off gets the backend's own verdict, whosever the jobs are.
            return self.beat_as_it_is(&mut parts, body, begun, false).await;
        }
        let Split { own, ours, unsure } = self.split(&beat).await;
        if mend {
            self.sidecar.metrics.count(Counted::HeartbeatMended);
        }
        if ours.is_empty() && !mend {
            let reply = self.beat_as_it_is(&mut parts, body, begun, unsure).await;
            return reply;
        }
        let own_body = if mend || !ours.is_empty() {
            with_jobs(&body, &own)
        } else {
            body
        };
        let proxy = self.clone();
        let work = boxed(|| async move {
            let own = (parts, own_body);
            proxy.beat_all(scope, own, ours, begun, unsure).await
        });
        // If the worker hangs up, its other jobs are kept all the same.
        to_the_end(&self.sidecar.settling, Client::default(), work).await
    }

    /// Sends the worker's own heartbeat, and those for jobs that sidecars claimed beside it.
    async fn beat_all(
        &self,
        scope: u64,
        own: (Box<Parts>, Bytes),
        ours: BTreeMap<Extension, Group>,
        begun: Instant,
        unsure: bool,
    ) -> Response<Body> {
        let (mut parts, own_body) = own;
        // Side by side, so that one which hangs keeps no other back.
        let (mut ours, mut beats) = (ours.into_iter(), JoinSet::new());
        self.send_some(scope, &mut ours, &mut beats, AT_ONCE);
        let reply = self.own_beat(&mut parts, own_body, begun, unsure).await;
        if reply.status != StatusCode::OK {
            self.send_some(scope, &mut ours, &mut beats, MOST);
            beats.detach_all();
            return respond::theirs(reply);
        }
        let mut extended = named(&reply.body);
        let mut told = reply.body.clone();
        loop {
            match timeout_at(begun + LONGEST, beats.join_next()).await {
                Ok(Some(Ok(Some(theirs)))) => {
                    extended.extend(named(&theirs));
                    told = stricter(told, theirs);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    // The worker is told of what is known, and the others go on to their ends.
                    self.send_some(scope, &mut ours, &mut beats, MOST);
                    beats.detach_all();
                    break;
                }
            }
            self.send_some(scope, &mut ours, &mut beats, AT_ONCE);
        }
        let body = united(&reply.body, &told, &extended);
        respond::theirs(Reply {
            body: body.into(),
            ..reply
        })
    }

    /// Sends heartbeats for jobs that sidecars claimed until `most` are on their way.
    fn send_some(
        &self,
        scope: u64,
        ours: &mut impl Iterator<Item = (Extension, Group)>,
        beats: &mut JoinSet<Option<Bytes>>,
        most: usize,
    ) {
        while beats.len() < most
            && let Some((extension, group)) = ours.next()
        {
            let proxy = self.clone();
            beats.spawn(async move { proxy.beat_for(scope, &extension, &group).await });
        }
    }

    /// Which jobs are the worker's own claims, and which ours, by what to ask for them.
    async fn split(&self, beat: &Beat) -> Split {
        let mut split = Split::default();
        let deadline = Instant::now() + LOOKS;
        let mut asked = 0;
        for job in &beat.jobs {
            if matches!(self.sidecar.store.known(job), Known::Unsure) {
                asked += 1;
                if asked > MOST {
                    split.own.push(job.clone());
                    continue;
                }
            }
            // A call that failed says nothing of the job, and under the worker's own id its claim is not extended.
            match self.sidecar.row_by(job, deadline, Result::is_err).await {
                Ok(Some(row)) if row.place == Place::Out => {
                    let (asks, backend) = (Self::asks(beat, &row), &self.sidecar.backend);
                    // Time in the hold was none of the worker's, and counts where claims last from their start.
                    let extension = Extension::of(&row.claimed, asks, backend);
                    let group = split.ours.entry(extension).or_default();
                    group.ids.push(job.clone());
                    group.rows.push(row);
                }
                row => {
                    let found = matches!(row, Ok(Some(_)));
                    split.unsure |= !found && (row.is_err() || self.sidecar.store.may_miss_rows());
                    split.own.push(job.clone());
                }
            }
        }
        split
    }

    /// The visibility to ask for a job that the sidecar claimed: what the worker says. Where it says none, it is the
    /// job's own, but not less than backends give by themselves: less may be the job's than lies between two
    /// heartbeats.
    fn asks(beat: &Beat, row: &Row) -> Duration {
        let its_own = Duration::from_micros(row.claimed.visibility);
        beat.visibility.unwrap_or(its_own.max(DEFAULT_VISIBILITY))
    }

    /// One heartbeat for jobs that the sidecar claimed; the backend's answer, if it is one.
    async fn beat_for(&self, scope: u64, extension: &Extension, group: &Group) -> Option<Bytes> {
        let sidecar = &self.sidecar;
        let body = extension.heartbeat(group.ids.iter().map(|id| &**id), sidecar);
        let call = super::post(self, scope, "/ojs/v1/workers/heartbeat", body);
        let reply = match super::call(self, "heartbeat", call).await {
            Ok(reply) if reply.status.is_success() => reply.body,
            _ => return None,
        };
        let extended = named(&reply);
        // A list that is only an echo proves nothing: those slots wait until the backend is asked.
        if !sidecar.backend.worker_liveness() {
            let now = sidecar.store.now();
            let lasts = super::job::micros(extension.lasts);
            let is_extended = |row: &&Row| extended.iter().any(|id| **id == *row.claimed.job);
            let renewals = group.rows.iter().filter(is_extended);
            let renewals = renewals.map(|row| Change::Until {
                job: row.claimed.job.clone(),
                generation: row.claimed.generation,
                until: heard(row, now.plus(lasts)),
                visibility: lasts,
            });
            sidecar.renew_rows(renewals.collect()).await;
        }
        Some(reply)
    }

    async fn beat_as_it_is(
        &self,
        parts: &mut Parts,
        body: Bytes,
        begun: Instant,
        unsure: bool,
    ) -> Response<Body> {
        respond::theirs(self.own_beat(parts, body, begun, unsure).await)
    }

    /// The worker's own heartbeat. A backend that is lost, fails or is overloaded is answered for: the
    /// worker goes on, and nothing is extended. Its time runs since the worker asked. `unsure`: a refusal may be of a job that a sibling claimed, and is answered for too.
    async fn own_beat(
        &self,
        parts: &mut Parts,
        body: Bytes,
        begun: Instant,
        unsure: bool,
    ) -> Reply {
        let time = self.sidecar.live().settings.upstream_timeout.min(LONGEST);
        let call = Call {
            method: parts.method.clone(),
            target: self.target(&parts.uri),
            headers: respond::take_headers(parts),
            body,
            timeout: time.saturating_sub(begun.elapsed()).max(LEAST.min(time)),
        };
        let is_verdict = |status: StatusCode| {
            let refused = matches!(status, StatusCode::CONFLICT | StatusCode::NOT_FOUND);
            !status.is_server_error()
                && status != StatusCode::TOO_MANY_REQUESTS
                && !(unsure && refused)
        };
        match super::call(self, "heartbeat", call).await {
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
}

/// Reads a heartbeat; `None`: it names no jobs that we understand.
fn read(body: &[u8]) -> Option<Beat> {
    let request = Json::parse(body, REPLY_DEPTH).ok()?;
    let [active, ids, one, visibility] = request.pick([
        "active_jobs",
        "active_job_ids",
        "job_id",
        "visibility_timeout_ms",
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
        visibility: visibility.filter(|ms| *ms > 0).map(Duration::from_millis),
        crooked: active.is_some_and(|active| !is_list(&active)),
    })
}

/// The heartbeat with `active_jobs` as this list, and nothing else that names jobs to the backend.
fn with_jobs(body: &Bytes, jobs: &[Arc<str>]) -> Bytes {
    let Ok(request) = Json::parse(body, REPLY_DEPTH) else {
        return body.clone();
    };
    let ids: Vec<String> = jobs.iter().map(|id| quote(id)).collect();
    let list = format!("[{}]", ids.join(","));
    let mut splice = Splice::new();
    let mut found = false;
    for member in request
        .members()
        .filter(|member| member.is_named("active_jobs"))
    {
        splice.replace(member.value.range(), list.clone());
        found = true;
    }
    if !found {
        splice.add_member(request, "active_jobs", list.as_bytes());
    }
    // A single one, which some send in place of a list.
    for member in request.members().filter(|member| member.is_named("job_id")) {
        splice.remove_member(request, member);
    }
    splice.apply(body).into()
}

/// Of two heartbeat answers the one that asks more of the worker: to end, or to fetch no more. What a
/// backend says about the jobs that we claimed for a worker is meant for that worker.
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

/// The reply with all that was extended, with `state` and `directive` as told, and with a `state` that
/// every SDK can read.
fn united(reply: &[u8], told: &[u8], extended: &[String]) -> Vec<u8> {
    let (Ok(whole), Ok(told)) = (
        Json::parse(reply, REPLY_DEPTH),
        Json::parse(told, REPLY_DEPTH),
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
    match told
        .get("state")
        .filter(|state| state.kind() == Kind::String)
    {
        Some(state) => set("state", state.raw()),
        None => set("state", b"\"active\""),
    }
    if let Some(directive) = told.get("directive") {
        set("directive", directive.raw());
    }
    splice.apply(reply)
}
