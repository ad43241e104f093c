//! ACK and nack. They never fail on the sidecar's account: SDKs turn a failed ACK into a nack, and a
//! job that succeeded would run again. So the body is read whole before anything is sent, a backend
//! that is down or cuts its reply is asked again in here, and a request whose worker never got its answer is
//! answered, when it comes again, by what has become of the job.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tokio::time::Instant;

use super::insist::insist;
use super::settling::{RowFound, Settling, named};
use super::speaker::Speaker;
use super::unheard::{Request, Verb};
use crate::answers::body::{Body, Watch as _};
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, edges, hiding};
use crate::inquiry::calls::is_for_now;
use crate::inquiry::{passing, prove, rows};
use crate::store::{Claimed, End, Gen, KnownRow, LedgerExt, Row, StoreError};
use crate::subqueues::mirror;
use crate::told::metrics::Counted;
use crate::wire::boxed::boxed;
use crate::wire::tick;
use crate::wire::upstream::{Call, Path, Reply, UpstreamError};

/// How an ACK or nack ended.
enum Settled {
    /// The backend's answer, or what it must have been.
    Answered(Reply),
    /// Another worker has the job: nothing was sent.
    WithAnother,
    /// The backend refused it, perhaps because a sibling has claimed the job. The store did not say so.
    Unsure(StoreError),
}

/// Answers one ACK or nack.
pub(crate) async fn settle(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Bytes,
    verb: Verb,
) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let scope = sidecar.scopes.of(&parts.headers);
    let request = Request::begin(sidecar, verb, scope, &body);
    let call = Call {
        method: parts.method.clone(),
        target: Path::Read(parts.uri.clone()),
        headers: respond::take_headers(&mut parts),
        body,
        timeout: sidecar.live().settings.upstream.timeout,
    };
    let proxy = proxy.clone();
    let work = boxed(|| async move {
        let settled = settle_through(&proxy, &call, scope, verb, &request).await;
        (settled, request)
    });
    // Why it goes on when the worker hangs up. The job has run, and a worker that hung up sends the same ACK again: had
    // we stopped in between, nobody would know whether the backend has carried the first one out, and a nack of the
    // second one would run the job twice. Ending with the connection would be simpler and would give the place of the
    // request back at once. It would trade that for a job that runs twice, so the request keeps its place until it ends.
    match to_the_end(&sidecar.tasks.settling, work).await {
        // It may come again, and may have been carried out.
        (Ok(Settled::Answered(reply)), _) if is_for_now(reply.status) => respond::theirs(reply),
        (Ok(Settled::Answered(reply)), request) => answer(reply, request),
        (Ok(Settled::WithAnother), mut request) => {
            // Workers say no name, so it may be that other one who asks. Told so once, it is believed the next time: else
            // its job would run again and again.
            request.sent();
            refuse(&parts, with_another())
        }
        (Ok(Settled::Unsure(error)), _) => refuse(&parts, Fault::from(error)),
        (Err(error), _) => refuse(&parts, Fault::backend(&error)),
    }
}

/// Sends it, again if need be, and ends the job's slot when it is over.
async fn settle_through(
    proxy: &Proxy,
    call: &Call,
    scope: u64,
    verb: Verb,
    request: &Request,
) -> Result<Settled, UpstreamError> {
    let sidecar = &proxy.sidecar;
    let Some(names) = named(&call.body) else {
        let answer = proxy.upstream.call(call.clone()).await;
        return answer.map(Settled::Answered);
    };
    let deadline = tick::now() + sidecar.live().settings.settle.retry_for;
    let _hiding = hiding::hide(sidecar, &names.job);
    let row = rows::row_of(sidecar, &names.job).await;
    let mut settling = Settling {
        call,
        scope,
        verb,
        names: &names,
        found: RowFound::of(sidecar, &names.job, row),
        begun: Gen(sidecar.store.now().0),
        deadline,
    };
    let mut sent = send(proxy, &settling, request).await;
    // Refused, perhaps, because it went up under the worker's own id.
    if matches!(&sent, Ok(Settled::Answered(reply)) if is_refused(reply))
        && names.worker_id().is_some()
        && matches!(settling.found, RowFound::Unsure { held: None })
    {
        match boxed(|| row_after_all(proxy, &names.job, deadline)).await {
            Ok(Some(row)) => {
                sidecar.metrics.count(Counted::SettleRetried);
                settling.found = RowFound::Row(row);
                sent = send(proxy, &settling, request).await;
            }
            Ok(None) => {}
            Err(error) => return Ok(Settled::Unsure(error)),
        }
    }
    if let Ok(Settled::Answered(reply)) = &sent
        && !is_for_now(reply.status)
    {
        follow_answer(proxy, &settling, reply).await;
    }
    sent
}

/// Sends it under each id that may have claimed the job, until one of them is not refused. Nothing is sent if another
/// worker has the job.
async fn send(
    proxy: &Proxy,
    settling: &Settling<'_>,
    request: &Request,
) -> Result<Settled, UpstreamError> {
    if settling.note_run(request) {
        return Ok(Settled::WithAnother);
    }
    let sidecar = &proxy.sidecar;
    let (said, worker_id) = (&settling.call.body, settling.names.worker_id());
    let our_id = &sidecar.fetching.worker_id;
    let claimed = match settling.verb {
        // No worker has had the claim that is held: the run that failed is an older one, and the backend says what
        // becomes of that.
        Verb::Nack => settling.found.run().map(|row| &row.claimed),
        Verb::Ack => settling.found.claimed(),
    };
    let (first, others) = Speaker::of(claimed, worker_id, our_id);
    let body = first.say(said, worker_id);
    let mut answer = insist(proxy, settling, body, request.doubt()).await;
    for speaker in others {
        if !matches!(&answer, Ok(reply) if is_refused(reply)) {
            break;
        }
        sidecar.metrics.count(Counted::SettleRetried);
        let body = speaker.say(said, worker_id);
        answer = insist(proxy, settling, body, request.doubt()).await;
    }
    answer.map(Settled::Answered)
}

/// Whether the backend says no.
fn is_refused(reply: &Reply) -> bool {
    !reply.status.is_success() && !is_for_now(reply.status)
}

/// Waits until the store can say which row a job has, because it could not before.
async fn row_after_all(
    proxy: &Proxy,
    job: &str,
    deadline: Instant,
) -> Result<Option<Row>, StoreError> {
    let sidecar = &proxy.sidecar;
    let unsure = |row: &Result<Option<Row>, StoreError>| match row {
        Ok(row) => row.is_none() && sidecar.store.may_miss_rows(),
        Err(_) => true,
    };
    match rows::row_by(sidecar, job, deadline, unsure).await {
        Ok(None) if sidecar.store.may_miss_rows() => Err(StoreError::Unavailable(
            "it does not say which sidecar has the job".to_owned(),
        )),
        row => row,
    }
}

/// Heeds the feedback in a nack, and ends the slots of a job that is over.
async fn follow_answer(proxy: &Proxy, settling: &Settling<'_>, reply: &Reply) {
    let (sidecar, found) = (&proxy.sidecar, &settling.found);
    if is_refused(reply) {
        if let Some(claimed) = found.claimed()
            && Box::pin(ended_otherwise(proxy, claimed)).await
        {
            release_claim(proxy, settling).await;
        }
        return;
    }
    sidecar.shadow.ended(&settling.names.job, tick::now());
    if let Some(run) = found.run() {
        sidecar.settle.runs.note(run, sidecar.store.now());
    }
    match settling.verb {
        Verb::Ack => {
            if found.claimed().is_some() {
                let job = std::iter::once(&*settling.names.job);
                sidecar.control.named.left(job);
            }
            if let Some(run) = found.run() {
                super::feedback::succeeded(proxy, run);
            }
            release_job(proxy, settling).await;
        }
        Verb::Nack => {
            let claimed = found.claimed();
            passing::nacked(sidecar, reply, &settling.names.job, claimed);
            if let Some(claimed) = claimed {
                let started = found.run().and_then(|run| run.started);
                Box::pin(super::feedback::heed(
                    proxy,
                    claimed,
                    started,
                    &settling.call.body,
                ))
                .await;
            }
            release_claim(proxy, settling).await;
        }
    }
}

/// Ends all that the job has here: it is completed, so nobody gets it again.
///
/// Why only now, after the backend's answer. A slot that is free lets the next job start, so a row that ended when the
/// ACK came in would let one job too many run whenever the backend refuses the ACK or never gets it. Ending the row
/// first would save the time of one call for each job of a full limit. A limit that is exceeded breaks what it protects,
/// while a slot that is free some milliseconds later only costs those milliseconds.
async fn release_job(proxy: &Proxy, settling: &Settling<'_>) {
    let (sidecar, job) = (&proxy.sidecar, &settling.names.job);
    if let Some(lane) = sidecar.hold.forget(job) {
        (sidecar.admit.pressure).gone(&lane.queue, job, edges::now(sidecar));
    }
    if sidecar.store.is_shared() && matches!(settling.found, RowFound::NoRow { .. }) {
        sidecar.keeper.adoption.note_end(job);
        // A job that nothing limits costs no further call. It may have been adopted meanwhile.
        if let KnownRow::Out(row) = sidecar.store.known(job) {
            sidecar.end(job, Some(row.claimed.generation)).await;
        }
        return;
    }
    let end = match settling.found.claimed() {
        Some(claimed) => super::cost::end(sidecar, claimed, &settling.call.body),
        None => End::of(Arc::clone(job), None),
    };
    if let Some(ended) = sidecar.end_by(&end).await {
        super::cost::count(sidecar, &ended, end.used());
    }
}

/// Ends the claim that the request was of. The job may have been claimed anew since.
async fn release_claim(proxy: &Proxy, settling: &Settling<'_>) {
    let (sidecar, job) = (&proxy.sidecar, &settling.names.job);
    match (&settling.found, settling.found.claimed()) {
        (_, Some(claimed)) => {
            sidecar.hold.forget_claim(job, claimed.generation);
            sidecar.end_by(&End::of_claim(claimed)).await;
        }
        (RowFound::NoRow { .. }, None) => sidecar.keeper.adoption.note_end(job),
        // Nobody knows which it was. One that a sibling made since the backend has the job again is none of those.
        (_, None) => drop(sidecar.end(job, Some(settling.begun)).await),
    }
}

/// Whether a job whose ACK or nack the backend refused is over all the same. The backend is asked under the
/// credentials that claimed the job, because to a stranger it may say that there is none.
async fn ended_otherwise(proxy: &Proxy, claimed: &Claimed) -> bool {
    proxy.sidecar.scopes.knows(claimed.scope)
        && prove::shown_active(proxy, claimed).await == Some(false)
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

/// 409, as backends that bind claims to workers say it.
fn with_another() -> Fault {
    let message = "another worker has this job now";
    let mut fault = Fault::new("conflict", message);
    fault.hint = "let the job go: its run here was over before this came";
    fault
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::equipment::claims::TestClaim as _;
    use crate::settle::settling::NamedJob;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::{Claim, Ledger as _, Store};

    /// The store could not say which claim a nack ended, and a sibling has the job by now: its slot stays.
    #[tokio::test(start_paused = true)]
    async fn a_nack_of_an_unknown_claim_ends_none_that_came_later() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let guard = Guard::new(inner.clone(), OnStoreError::Share);
        let proxy = Proxy::on(Store::shared(Arc::new(guard)));
        let body = Bytes::from_static(br#"{"job_id":"j"}"#);
        let names: NamedJob = named(&body).unwrap();
        let call = Call {
            method: http::Method::POST,
            target: Path::Read(http::Uri::from_static("/ojs/v1/workers/nack")),
            headers: http::HeaderMap::new(),
            body,
            timeout: Duration::from_secs(1),
        };
        let settling = Settling {
            call: &call,
            scope: 0,
            verb: Verb::Nack,
            names: &names,
            found: RowFound::Unsure { held: None },
            begun: Gen(inner.now().0),
            deadline: tick::now(),
        };
        for (later, stays) in [(1, true), (0, false)] {
            let claim = Claim {
                generation: Gen(settling.begun.0 + later),
                ..Claim::limited("j")
            };
            inner.end("j", None).await.unwrap();
            inner.take(&[&claim.into()], 1).await.unwrap();
            release_claim(&proxy, &settling).await;
            assert_eq!(inner.row("j").await.unwrap().is_some(), stays);
        }
    }
}
