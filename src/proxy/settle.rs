//! ACK and nack. They never fail on the sidecar's account: SDKs turn a failed ACK into a nack, and a
//! job that succeeded would run again. So the body is read whole before anything is sent, a backend
//! that is down or cuts its reply is asked again in here, and a request whose worker never got its answer is
//! answered, when it comes again, by what has become of the job.

mod cost;
mod feedback;
mod unheard;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::body::{Body, Watch as _};
use super::calls::{self, Lookup, PAUSES, job_in};
use super::hiding::{self, Hidden};
use super::outlive::to_the_end;
use super::prove::{self, attempt_since};
use super::respond::{self, Fault};
use super::runs::RunTimes;
use super::{Proxy, REPLY_DEPTH, Sidecar, depth, mirror, refuse, rows};
use crate::boxed::boxed;
use crate::json::{Json, Reader, Splice, quote};
use crate::limit::Key;
use crate::metrics::Counted;
use crate::store::{End, Known, LedgerExt, OFFERED, Place, Row, StoreError};
use crate::tick;
use crate::upstream::{Call, Path, Reply, UpstreamError};
use feedback::Refusals;
pub(super) use unheard::Verb;
use unheard::{Doubt, Request, Unheard};

/// What settling remembers: requests that were not answered, what the services behind keys refused, and held jobs
/// that may be about to end.
#[derive(Default, Debug)]
pub(super) struct Settle {
    unheard: Unheard,
    refusals: Refusals,
    /// How long the last jobs ran.
    pub(super) runs: RunTimes,
    /// Held jobs that go out nowhere, because a call that may end them is under way.
    pub(super) hidden: Mutex<Hidden>,
}

impl Settle {
    /// Forgets how often the service behind a key refused.
    pub(super) fn forget_refusals(&self, key: &Key) {
        self.refusals.forget(key);
    }

    /// Forgets all requests.
    pub(super) fn clear(&self) {
        self.unheard.clear();
        self.runs.clear();
    }
}

/// An ACK or nack of a job.
#[derive(Clone, Copy)]
struct Settling<'a> {
    call: &'a Call,
    scope: u64,
    verb: Verb,
    job: &'a str,
    /// The job's row, as it was before anything was sent.
    row: Option<&'a Row>,
    /// Whether the store said that the job has no row.
    without_row: bool,
    /// Whether the job was held: it is hidden until it is known how this ends.
    hidden: bool,
}

/// How an ACK or nack ended.
enum Settled {
    /// The backend's answer, or what it must have been.
    Answered(Reply),
    /// Another worker has the job: nothing was sent.
    WithAnother,
}

/// Under whose id a request goes to the backend.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Speaker {
    /// As the worker sent it.
    Worker,
    /// Under no id: the job may have been claimed without one.
    Nobody,
    /// Under the id that claimed the job.
    Claimant(Arc<str>),
}

impl Speaker {
    /// The ids under which a job of this row may have been claimed. The next one is tried where the backend refuses.
    /// `worker` is where the request names its worker.
    fn of(row: Option<&Row>, worker: Option<&Range<usize>>, our_id: &Arc<str>) -> Vec<Speaker> {
        let Some(claimed) = row.map(|row| &row.claimed).filter(|_| worker.is_some()) else {
            return vec![Speaker::Worker];
        };
        match claimed.claimant() {
            // Before a restart it may have run under our id.
            None => vec![
                Speaker::Worker,
                Speaker::Nobody,
                Speaker::Claimant(Arc::clone(our_id)),
            ],
            Some(id) => {
                let ours = Speaker::Claimant(Arc::clone(id));
                match claimed.limited.is_empty() {
                    // The row may be of an earlier claim: without limits the next one passes by us.
                    true => vec![ours, Speaker::Worker],
                    false => vec![ours],
                }
            }
        }
    }

    /// The worker's request as this speaker says it; `id` is where the worker's own id stands.
    fn say(&self, said: &Bytes, id: Option<&Range<usize>>) -> Bytes {
        let mut splice = Splice::new();
        match (self, id) {
            (Speaker::Claimant(claimant), Some(id)) => splice.replace(id.clone(), quote(claimant)),
            (Speaker::Nobody, Some(_)) => {
                let Ok(request) = Json::parse(said, REPLY_DEPTH) else {
                    return said.clone();
                };
                for member in request
                    .members()
                    .filter(|member| member.is_named("worker_id"))
                {
                    splice.remove_member(request, member);
                }
            }
            _ => return said.clone(),
        }
        splice.apply(said).into()
    }
}

/// How much of a job an ACK or nack ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReleaseScope {
    /// The job is completed: nobody gets it again.
    ForGood,
    /// The claim that the request was of. The job may have been claimed anew since.
    OfThisClaim,
}

/// What is known of a job after a try whose answer was lost.
enum RetryFate {
    /// The job ended as asked, or it was claimed anew since. This is the answer that was lost.
    Done(Reply),
    /// The request was not carried out, or the job ended otherwise: the backend is to be asked again.
    Open,
    /// The backend does not answer.
    Unheard,
}

/// Notes the run that this row is of for the next time that the same request comes. Returns `true` if the job is out
/// with another worker than the one that asks, or in a later run.
fn note_run(row: &Row, worker: Option<&str>, request: &Request) -> bool {
    if row.place != Place::Out {
        return false;
    }
    request.note_run(&row.claimed);
    row.claimed.is_with_another(worker) || request.is_of_earlier_run(&row.claimed)
}

/// Answers one ACK or nack.
pub(super) async fn settle(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Bytes,
    verb: Verb,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let scope = sidecar.scopes.of(&parts.headers);
    let request = Request::begin(sidecar, verb, scope, &body);
    let mut call = Call {
        method: parts.method.clone(),
        target: Path::Read(parts.uri.clone()),
        headers: respond::take_headers(&mut parts),
        body,
        timeout: sidecar.live().settings.upstream.timeout,
    };
    let proxy = proxy.clone();
    let work = boxed(|| async move {
        let settled = settle_through(&proxy, &mut call, scope, verb, &request).await;
        (settled, request)
    });
    // It goes on when the worker hangs up, because the worker sends it again.
    match to_the_end(&sidecar.tasks.settling, work).await {
        (Ok(Settled::Answered(reply)), request) => answer(reply, request),
        (Ok(Settled::WithAnother), _) => refuse(&parts, with_another()),
        (Err(error), _) => refuse(&parts, Fault::backend(&error)),
    }
}

/// Sends it, again if need be, and ends the job's slot when it is over.
async fn settle_through(
    proxy: &Proxy,
    call: &mut Call,
    scope: u64,
    verb: Verb,
    request: &Request,
) -> Result<Settled, UpstreamError> {
    let sidecar = &proxy.sidecar;
    let Some(NamedJob { job, worker }) = named(&call.body) else {
        let answer = proxy.upstream.call(call.clone()).await;
        return answer.map(Settled::Answered);
    };
    let (worker, worker_id) = worker.unzip();
    let deadline = tick::now() + sidecar.live().settings.settle.retry_for;
    let said = call.body.clone();
    let hiding = hiding::hide(sidecar, &job);
    let mut known = rows::row_of(sidecar, &job).await;
    loop {
        let failed = known.is_err();
        let without_row = matches!(known, Ok(None)) && !sidecar.store.may_miss_rows();
        // It is held here under a claim that is newer than the worker's: the job is done all the same.
        let held_here = || Some(Row::of(sidecar.hold.claimed(&job)?, Place::Held, OFFERED));
        let row = known.ok().flatten().or_else(held_here);
        if (row.as_ref()).is_some_and(|row| note_run(row, worker.as_deref(), request)) {
            return Ok(Settled::WithAnother);
        }
        let our_id = &sidecar.fetching.worker_id;
        let speakers = Speaker::of(row.as_ref(), worker_id.as_ref(), our_id);
        let mut speakers = speakers.into_iter().peekable();
        let (settling, answer) = loop {
            let speaker = speakers.next().unwrap_or(Speaker::Worker);
            call.body = speaker.say(&said, worker_id.as_ref());
            let settling = Settling {
                call,
                scope,
                verb,
                job: &job,
                row: row.as_ref(),
                without_row,
                hidden: hiding.is_some(),
            };
            let answer = insist(proxy, &settling, request.doubt(), deadline).await;
            if !is_refused(&answer) || speakers.peek().is_none() {
                break (settling, answer);
            }
            sidecar.metrics.count(Counted::SettleRetried);
        };
        let may_have_row = row.is_none() && (failed || sidecar.store.may_miss_rows());
        // Refused, perhaps, because it went up under the worker's own id.
        if is_refused(&answer)
            && may_have_row
            && worker_id.is_some()
            && let Some(found) = boxed(|| row_after_all(proxy, &job, deadline)).await
        {
            sidecar.metrics.count(Counted::SettleRetried);
            known = Ok(Some(found));
            continue;
        }
        follow_answer(proxy, &settling, &answer).await;
        return answer.map(Settled::Answered);
    }
}

/// Waits until the store can say which row a job has, because it could not before.
async fn row_after_all(proxy: &Proxy, job: &str, deadline: Instant) -> Option<Row> {
    let sidecar = &proxy.sidecar;
    let unsure = |row: &Result<Option<Row>, StoreError>| match row {
        Ok(row) => row.is_none() && sidecar.store.may_miss_rows(),
        Err(_) => true,
    };
    rows::row_by(sidecar, job, deadline, unsure)
        .await
        .ok()
        .flatten()
}

/// Heeds the feedback in a nack, and ends the slots of a job that is over.
async fn follow_answer(
    proxy: &Proxy,
    settled: &Settling<'_>,
    answer: &Result<Reply, UpstreamError>,
) {
    let (sidecar, verb, row) = (&proxy.sidecar, settled.verb, settled.row);
    if let (Verb::Nack, Ok(reply)) = (verb, answer) {
        depth::nacked(sidecar, reply, settled.job, row);
    }
    let carried_out = answer.as_ref().is_ok_and(|reply| reply.status.is_success());
    if carried_out && let Some(row) = row {
        sidecar.settle.runs.note(row, sidecar.store.now());
        match verb {
            Verb::Ack => {
                sidecar.control.named.left(std::iter::once(settled.job));
                feedback::succeeded(proxy, row);
            }
            Verb::Nack => Box::pin(feedback::heed(proxy, row, &settled.call.body)).await,
        }
    }
    let over = carried_out
        || match (answer, row) {
            (Ok(_), Some(row)) => Box::pin(ended_otherwise(proxy, row)).await,
            _ => false,
        };
    if over {
        let ended = match (carried_out, verb) {
            (true, Verb::Ack) => ReleaseScope::ForGood,
            _ => ReleaseScope::OfThisClaim,
        };
        release(proxy, settled, ended).await;
    }
}

/// Ends what the job has here: everything, or only the claim that the request was of.
async fn release(proxy: &Proxy, settled: &Settling<'_>, end: ReleaseScope) {
    let (sidecar, job) = (&proxy.sidecar, settled.job);
    let for_good = end == ReleaseScope::ForGood;
    if let Some(row) = settled.row.filter(|_| !for_good) {
        sidecar.hold.forget_claim(job, row.claimed.generation);
        sidecar.end_by(&End::of_claim(&row.claimed)).await;
        return;
    }
    if (for_good || settled.hidden)
        && let Some(lane) = sidecar.hold.forget(job)
    {
        (sidecar.admit.pressure).gone(&lane.queue, job, depth::now(sidecar));
    }
    if settled.without_row && (sidecar.store.is_shared() || !for_good) {
        sidecar.keeper.adoption.note_end(job);
        // A job that nothing limits costs no further call. It may have been adopted meanwhile.
        if for_good && let Known::Out(row) = sidecar.store.known(job) {
            sidecar.end(job, Some(row.claimed.generation)).await;
        }
    } else {
        let end = match settled.row.filter(|_| for_good) {
            Some(row) => cost::end(row, &settled.call.body),
            None => End::of(Arc::from(job), None),
        };
        if let Some(ended) = sidecar.end_by(&end).await {
            cost::count(sidecar, &ended, end.used());
        }
    }
}

/// Whether a job whose ACK or nack the backend refused is over all the same. The backend is asked under the
/// credentials that claimed the job, because to a stranger it may say that there is none.
async fn ended_otherwise(proxy: &Proxy, row: &Row) -> bool {
    let of = &row.claimed;
    proxy.sidecar.scopes.knows(of.scope) && prove::shown_active(proxy, of).await == Some(false)
}

/// Sends the request until the backend answers, GET tells how the job ended, or the time is up.
async fn insist(
    proxy: &Proxy,
    settling: &Settling<'_>,
    mut doubt: Option<Doubt>,
    deadline: Instant,
) -> Result<Reply, UpstreamError> {
    let mut pause = PAUSES.0;
    loop {
        let answer = calls::call(proxy, "settle", settling.call.clone()).await;
        let error = match answer {
            Ok(reply) if reply.status.is_success() => return Ok(reply),
            // A request that was carried out before is refused the second time.
            Ok(reply) => {
                let Some(doubt) = doubt else {
                    return Ok(reply);
                };
                return Ok(match Box::pin(seen(proxy, settling)).await {
                    RetryFate::Done(done) => {
                        if doubt == Doubt::Again {
                            proxy.sidecar.metrics.count(Counted::SettleReplayed);
                        }
                        done
                    }
                    _ => reply,
                });
            }
            Err(error) => error,
        };
        if error.in_doubt() {
            doubt = Some(Doubt::Tried);
        }
        // If the first nack was carried out, another worker may run the job under the same claim id, and a second
        // nack would end that run.
        let ends_another = settling.verb == Verb::Nack && doubt == Some(Doubt::Tried);
        let looks = error.in_doubt() || ends_another;
        loop {
            let over = Instant::now() + pause >= deadline;
            if !over {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            let seen = match looks {
                true => Box::pin(seen(proxy, settling)).await,
                false => RetryFate::Open,
            };
            match seen {
                RetryFate::Done(done) => return Ok(done),
                _ if over => return Err(error),
                RetryFate::Unheard if ends_another => {}
                RetryFate::Open | RetryFate::Unheard => break,
            }
        }
        proxy.sidecar.metrics.count(Counted::SettleRetried);
    }
}

/// Looks at the job to find out whether the request was carried out.
async fn seen(proxy: &Proxy, settling: &Settling<'_>) -> RetryFate {
    let Settling {
        call,
        scope,
        verb,
        job,
        row,
        ..
    } = *settling;
    let reply = match calls::look_up(proxy, scope, job).await {
        Lookup::Found(reply) => Some(reply),
        Lookup::Gone | Lookup::Unknown => None,
        Lookup::Unanswered => return RetryFate::Unheard,
    };
    let found = reply.as_deref().and_then(job_in);
    let state = found.and_then(|found| found.get("state")?.text());
    let done = match (verb, state.as_deref()) {
        (Verb::Ack, Some("completed")) => true,
        (Verb::Nack, Some("retryable" | "available" | "scheduled" | "discarded" | "pending")) => {
            true
        }
        (Verb::Nack, Some("active") | None) => match row {
            Some(row) => {
                let since = found.and_then(|job| attempt_since(row.claimed.attempt, job));
                since.is_some_and(Ordering::is_gt) || claimed_again(&proxy.sidecar, row).await
            }
            None => false,
        },
        _ => false,
    };
    if !done {
        return RetryFate::Open;
    }
    let mut headers = HeaderMap::new();
    super::ours(&call.headers, &mut headers);
    RetryFate::Done(Reply {
        status: StatusCode::OK,
        headers,
        body: done_body(verb, job, state.as_deref().unwrap_or("active"), found).into(),
    })
}

/// Whether a job that was out has been claimed anew since, as far as this sidecar and the store know.
async fn claimed_again(sidecar: &Sidecar, row: &Row) -> bool {
    let (job, claim) = (&row.claimed.job, row.claimed.generation);
    if row.place != Place::Out {
        return false;
    }
    if sidecar.hold.has(job) && !sidecar.hold.has_claim(job, claim) {
        return true;
    }
    let now = sidecar.store.row(job).await.ok().flatten();
    now.is_some_and(|now| now.claimed.generation > claim)
}

/// The body that the backend would have answered with, made from the job as it shows it.
fn done_body(verb: Verb, job: &str, state: &str, found: Option<Json<'_>>) -> Vec<u8> {
    let (id, state) = (quote(job), quote(state));
    let mut body = format!(r#"{{"id":{id},"job_id":{id},"state":{state}"#).into_bytes();
    if verb == Verb::Ack {
        body.extend_from_slice(br#","acknowledged":true"#);
    }
    if let Some(found) = found {
        add_found(found, &mut body);
    }
    body.push(b'}');
    body
}

fn add_found(found: Json<'_>, body: &mut Vec<u8>) {
    for name in [
        "attempt",
        "max_attempts",
        "completed_at",
        "next_attempt_at",
        "discarded_at",
    ] {
        if let Some(value) = found.get(name) {
            body.extend_from_slice(format!(",\"{name}\":").as_bytes());
            body.extend_from_slice(value.raw());
        }
    }
    body.extend_from_slice(b",\"job\":");
    // The mirror in it is hidden on the way out.
    body.extend_from_slice(found.raw());
}

/// The backend's reply as a response that notes whether it was sent.
fn answer(mut reply: Reply, mut request: Request) -> Response<Body> {
    let bytes = std::mem::take(&mut reply.body);
    let bytes = mirror::hide_all(&bytes).map_or(bytes, Bytes::from);
    let mut response = respond::reply(reply);
    if bytes.is_empty() {
        // An empty body is never polled, so nothing would note that it was sent.
        request.sent();
    } else {
        *response.body_mut() = Body::watched(bytes, request);
    }
    response
}

fn is_refused(answer: &Result<Reply, UpstreamError>) -> bool {
    matches!(answer, Ok(reply) if !reply.status.is_success())
}

/// 409, as backends that bind claims to workers say it.
fn with_another() -> Fault {
    let message = "another worker has this job now";
    let mut fault = Fault::new("conflict", message);
    fault.hint = "let the job go: its run here was over before this came";
    fault
}

/// What an ACK or nack names.
struct NamedJob {
    job: Arc<str>,
    /// Its worker, and where that name stands in the body.
    worker: Option<(Box<str>, Range<usize>)>,
}

/// The job that an ACK or nack names, and its worker if it says one.
fn named(body: &[u8]) -> Option<NamedJob> {
    // The backend says how deep a result may nest: the job has run already.
    let mut reader = Reader::new(body, REPLY_DEPTH);
    let (_, [job, worker_id]) = reader.pick(["job_id", "worker_id"]).ok()?;
    // Where two jobs are named, nobody knows whose slot would be free.
    let is_clear = !reader.repeats();
    reader.end().ok().filter(|()| is_clear)?;
    let job = Arc::from(job?.text()?.as_ref());
    // What is no text is no name; it stands there all the same.
    let worker = worker_id.map(|id| (id.text().unwrap_or_default().into(), id.range()));
    Some(NamedJob { job, worker })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_named_however_deep_its_result_is() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let ack = format!(r#"{{"job_id":"a","result":{deep},"worker_id":"w"}}"#);
        let NamedJob { job, worker } = named(ack.as_bytes()).unwrap();
        assert_eq!(&*job, "a");
        let (name, at) = worker.unwrap();
        assert_eq!((&*name, ack.get(at)), ("w", Some("\"w\"")));
        for ack in [
            r#"{"job_id":"a","job_id":"b"}"#,
            r#"{"job_id":"a","Job_ID":"b","worker_id":"w"}"#,
            r#"{"job_id":"a","worker_id":"w","WORKER_ID":"v"}"#,
            r#"{"job_id":7}"#,
            r#"{"worker_id":"w"}"#,
        ] {
            assert!(named(ack.as_bytes()).is_none(), "{ack}");
        }
    }
}
