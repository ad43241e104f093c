//! ACK and nack. They never fail on the sidecar's account: SDKs turn a failed ACK into a nack, and a
//! job that succeeded would run again. So the body is read whole before anything is sent, a backend
//! that is down or cuts its reply is asked again in here, and a request whose worker never got its answer is
//! answered, when it comes again, by what has become of the job.

mod beside;
pub(super) mod feedback;
mod unheard;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

use super::body::{Body, Watch as _};
use super::lookup::{Lookup, job_in};
use super::outlive::{Client, to_the_end};
use super::prove::attempt_since;
use super::refuse;
use super::respond::{self, Fault};
use super::{Proxy, REPLY_DEPTH, Sidecar, mirror};
use crate::boxed::boxed;
use crate::json::{Json, Reader, Splice, quote};
use crate::metrics::Counted;
use crate::store::{Known, Place, Row, StoreError};
use crate::tick;
use crate::upstream::{Call, Path, Reply, UpstreamError};
use unheard::Request;

pub(super) use unheard::Unheard;

/// The first and the longest pause between tries.
pub(super) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Verb {
    Ack,
    Nack,
}

/// An ACK or nack of a job.
#[derive(Clone, Copy)]
struct Settling<'a> {
    call: &'a Call,
    scope: u64,
    verb: Verb,
    job: &'a str,
    /// Its row, as it was before anything was sent.
    row: Option<&'a Row>,
    /// The store said that it has none.
    without_row: bool,
    /// It was held, and is hidden until it is known how this ends.
    hidden: bool,
}

/// Why it may have been carried out before the backend refused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    /// A try of ours got no answer.
    Tried,
    /// Its worker asked before, and got no answer.
    Again,
    /// A sidecar before this one may have sent it.
    Inherited,
}

/// What is known of a job after a try whose answer was lost.
enum Ended {
    /// It ended as asked: the answer that was lost must have said this. Or it was claimed anew since: what was
    /// asked is of a claim that is over.
    Done(Reply),
    /// It did not happen, or something else did: asking again gets the backend's verdict.
    Open,
    /// The backend does not answer.
    Unheard,
}

/// What a worker said under its own id, under the id with which the job was claimed.
fn under(row: &Row, said: &Bytes, id: Range<usize>) -> Bytes {
    let mut splice = Splice::new();
    splice.replace(id, quote(&row.claimed.claim_id));
    splice.apply(said).into()
}

impl Proxy {
    /// Answers one ACK or nack.
    pub(super) async fn settle(
        &self,
        mut parts: Box<Parts>,
        body: Bytes,
        verb: Verb,
    ) -> Response<Body> {
        let sidecar = &self.sidecar;
        let scope = sidecar.scopes.of(&parts.headers);
        let request = Request::begin(sidecar, verb, scope, &body);
        let mut call = Call {
            method: parts.method.clone(),
            target: Path::Read(parts.uri.clone()),
            headers: respond::take_headers(&mut parts),
            body,
            timeout: sidecar.live().settings.upstream_timeout,
        };
        let proxy = self.clone();
        let work = boxed(|| async move {
            let answer = proxy.settle_through(&mut call, scope, verb, request.again);
            Ok((answer.await?, request))
        });
        // A worker that hangs up asks again.
        match to_the_end(&sidecar.settling, Client::default(), work).await {
            Ok((reply, request)) => answer(reply, request),
            Err(error) => refuse(&parts, Fault::backend(&error, false)),
        }
    }

    /// Sends it, again if need be, and ends the job's slot when it is over. `again`: its worker asked before,
    /// and got no answer.
    async fn settle_through(
        &self,
        call: &mut Call,
        scope: u64,
        verb: Verb,
        again: bool,
    ) -> Result<Reply, UpstreamError> {
        let sidecar = &self.sidecar;
        let Some((job, worker_id)) = named(&call.body) else {
            return self.upstream.call(call.clone()).await;
        };
        let deadline = tick::now() + sidecar.live().settings.settle_retry_for;
        let (said, mut as_said) = (call.body.clone(), false);
        let mut hiding = sidecar.hide_here(&job);
        let mut known = sidecar.row_of(&job).await;
        let doubt = match again {
            true => Some(Doubt::Again),
            // What a sidecar before this one sent, and did not live to answer, may have been carried out.
            false => (sidecar.unheard.inherited(&job)).then_some(Doubt::Inherited),
        };
        loop {
            let failed = known.is_err();
            let without_row = matches!(known, Ok(None)) && !sidecar.store.may_miss_rows();
            let row = known.ok().flatten();
            if row.as_ref().is_some_and(|row| row.place == Place::Held) {
                hiding = sidecar.hide(&job).await.or(hiding);
            }
            call.body = match (&row, &worker_id, as_said) {
                (Some(row), Some(range), false) => under(row, &said, range.clone()),
                _ => said.clone(),
            };
            let settling = Settling {
                call,
                scope,
                verb,
                job: &job,
                row: row.as_ref(),
                without_row,
                hidden: hiding.is_some(),
            };
            let answer = self.insist(&settling, doubt, deadline).await;
            let says_no = |reply: &Reply| !reply.status.is_success();
            let is_refused = answer.as_ref().is_ok_and(says_no);
            let may_have_row = row.is_none() && (failed || sidecar.store.may_miss_rows());
            // Refused, perhaps, because it went up under the worker's own id.
            if is_refused
                && may_have_row
                && worker_id.is_some()
                && let Some(found) = boxed(|| self.row_after_all(&job, deadline)).await
            {
                sidecar.metrics.count(Counted::SettleRetried);
                known = Ok(Some(found));
                continue;
            }
            // Of a job that nothing limits the row may be an earlier worker's: it goes to the next one past us.
            let is_free = |row: &Row| row.claimed.limited.is_empty();
            if is_refused && !as_said && worker_id.is_some() && row.as_ref().is_some_and(is_free) {
                as_said = true;
                sidecar.metrics.count(Counted::SettleRetried);
                known = Ok(row);
                continue;
            }
            let over = self.heard(&settling, &answer).await;
            if let Some(hiding) = hiding.filter(|_| !over) {
                hiding.show().await;
            }
            return answer;
        }
    }

    /// The row of a job of which the store could not say whether it has one, as soon as it can.
    async fn row_after_all(&self, job: &str, deadline: Instant) -> Option<Row> {
        let sidecar = &self.sidecar;
        let unsure = |row: &Result<Option<Row>, StoreError>| match row {
            Ok(row) => row.is_none() && sidecar.store.may_miss_rows(),
            Err(_) => true,
        };
        sidecar.row_by(job, deadline, unsure).await.ok().flatten()
    }

    /// What the backend's answer means here: its feedback is heeded, and what is over is ended. Says whether it is.
    async fn heard(&self, settled: &Settling<'_>, answer: &Result<Reply, UpstreamError>) -> bool {
        let (sidecar, verb, row) = (&self.sidecar, settled.verb, settled.row);
        if let (Verb::Nack, Ok(reply)) = (verb, answer) {
            sidecar.nacked(reply, settled.job, row);
        }
        let carried_out = answer.as_ref().is_ok_and(|reply| reply.status.is_success());
        if carried_out && let Some(row) = row {
            match verb {
                Verb::Ack => {
                    sidecar.named.left(std::iter::once(settled.job));
                    self.succeeded(row).await;
                }
                Verb::Nack => Box::pin(self.heed(row, &settled.call.body)).await,
            }
        }
        let over = carried_out
            || match (answer, row) {
                (Ok(_), Some(row)) => Box::pin(self.ended_otherwise(row)).await,
                _ => false,
            };
        if over {
            self.release(settled, carried_out && verb == Verb::Ack)
                .await;
        }
        over
    }

    /// Ends what the job has here: all of it where it is over `for_good`, else what it had when the request
    /// came. It may have been claimed anew since, and that claim is another's.
    async fn release(&self, settled: &Settling<'_>, for_good: bool) {
        let (sidecar, job) = (&self.sidecar, settled.job);
        let claim = settled.row.map(|row| row.claimed.generation);
        if let Some(claim) = claim.filter(|_| !for_good) {
            sidecar.hold.forget_claim(job, claim);
            sidecar.end(job, Some(claim)).await;
            return;
        }
        if (for_good || settled.hidden)
            && let Some(lane) = sidecar.hold.forget(job)
        {
            sidecar.held_is_over(&lane.queue, job);
        }
        if settled.without_row && (sidecar.store.is_shared() || !for_good) {
            sidecar.note_end(job);
            // What is not limited costs no call more. It may have been adopted meanwhile.
            if for_good && let Known::Out(row) = sidecar.store.known(job) {
                sidecar.end(job, Some(row.claimed.generation)).await;
            }
        } else {
            sidecar.end(job, None).await;
        }
    }

    /// Whether a job whose ACK or nack the backend refused is over all the same: its verdict passes as it is,
    /// and the slot follows what it says of the job to those who claimed it. To others it may say that there is none.
    async fn ended_otherwise(&self, row: &Row) -> bool {
        let of = &row.claimed;
        self.sidecar.scopes.knows(of.scope) && self.shown_active(of).await == Some(false)
    }

    /// Until the backend answers, GET tells how it ended, or time is up.
    async fn insist(
        &self,
        settling: &Settling<'_>,
        mut doubt: Option<Doubt>,
        deadline: Instant,
    ) -> Result<Reply, UpstreamError> {
        let mut pause = PAUSES.0;
        loop {
            let (answer, twice) = self.try_once(settling, deadline).await;
            if twice {
                doubt = Some(Doubt::Tried);
            }
            let error = match answer {
                Ok(reply) if reply.status.is_success() => return Ok(reply),
                // An error after a try that may have been carried out: perhaps it was.
                Ok(reply) => {
                    let Some(doubt) = doubt else {
                        return Ok(reply);
                    };
                    return Ok(match Box::pin(self.seen(settling, doubt)).await {
                        Ended::Done(done) => {
                            if doubt == Doubt::Again {
                                self.sidecar.metrics.count(Counted::SettleReplayed);
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
            // Once it may have been carried out another may run the job, under the same claim id, and a nack would
            // end that run.
            let ends_another = settling.verb == Verb::Nack && doubt == Some(Doubt::Tried);
            let looks = error.in_doubt() || ends_another;
            loop {
                let over = Instant::now() + pause >= deadline;
                if !over {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                let seen = match looks {
                    true => Box::pin(self.seen(settling, Doubt::Tried)).await,
                    false => Ended::Open,
                };
                match seen {
                    Ended::Done(done) => return Ok(done),
                    _ if over => return Err(error),
                    Ended::Unheard if ends_another => {}
                    Ended::Open | Ended::Unheard => break,
                }
            }
            self.sidecar.metrics.count(Counted::SettleRetried);
        }
    }

    /// What GET tells, and what is known here.
    async fn seen(&self, settling: &Settling<'_>, doubt: Doubt) -> Ended {
        let Settling {
            call,
            scope,
            verb,
            job,
            row,
            ..
        } = *settling;
        let reply = match self.look_up(scope, job).await {
            Lookup::Found(reply) => Some(reply),
            Lookup::Gone | Lookup::Unknown => None,
            Lookup::Unanswered => return Ended::Unheard,
        };
        let found = reply.as_deref().and_then(job_in);
        let state = found.and_then(|found| found.get("state")?.text());
        let done = match (verb, state.as_deref()) {
            (Verb::Ack, Some("completed")) => true,
            (
                Verb::Nack,
                Some("retryable" | "available" | "scheduled" | "discarded" | "pending"),
            ) => true,
            (Verb::Nack, Some("active") | None) => match row {
                Some(row) => {
                    let since = found.and_then(|job| attempt_since(row.claimed.attempt, job));
                    since.is_some_and(Ordering::is_gt) || self.sidecar.claimed_again(row).await
                }
                None => false,
            },
            _ => false,
        };
        // One that was never sent from here: a nack counts as carried out only if the job shows its error.
        let shows_error = || found.is_some_and(|found| shows_error_of(found, &call.body));
        let its_own = verb == Verb::Ack || doubt != Doubt::Inherited || shows_error();
        if !done || !its_own {
            return Ended::Open;
        }
        let mut headers = HeaderMap::new();
        super::ours(&call.headers, &mut headers);
        Ended::Done(Reply {
            status: StatusCode::OK,
            headers,
            body: told(verb, job, state.as_deref().unwrap_or("active"), found).into(),
        })
    }
}

impl Sidecar {
    /// Whether a job that was out has been claimed anew since, by anybody of whom is known here.
    async fn claimed_again(&self, row: &Row) -> bool {
        let (job, claim) = (&row.claimed.job, row.claimed.generation);
        if row.place != Place::Out {
            return false;
        }
        if self.hold.has(job) && !self.hold.has_claim(job, claim) {
            return true;
        }
        let now = self.store.row(job).await.ok().flatten();
        now.is_some_and(|now| now.claimed.generation > claim)
    }
}

/// What a backend would have answered, from the job as it shows it.
fn told(verb: Verb, job: &str, state: &str, found: Option<Json<'_>>) -> Vec<u8> {
    let (id, state) = (quote(job), quote(state));
    let mut body = format!(r#"{{"id":{id},"job_id":{id},"state":{state}"#).into_bytes();
    if verb == Verb::Ack {
        body.extend_from_slice(br#","acknowledged":true"#);
    }
    if let Some(found) = found {
        tell_found(found, &mut body);
    }
    body.push(b'}');
    body
}

fn tell_found(found: Json<'_>, body: &mut Vec<u8>) {
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
    // Its mirror is read here, and hidden on the way out.
    body.extend_from_slice(found.raw());
}

/// The backend's reply, which tells whether it left.
fn answer(mut reply: Reply, mut request: Request) -> Response<Body> {
    let bytes = std::mem::take(&mut reply.body);
    let bytes = mirror::hide_all(&bytes).map_or(bytes, Bytes::from);
    let mut response = respond::reply(reply);
    if bytes.is_empty() {
        // Nothing of it is polled, so nobody would tell that it left.
        request.sent();
    } else {
        *response.body_mut() = Body::watched(bytes, request);
    }
    response
}

/// Whether a job's last error is the one that a nack brings.
fn shows_error_of(job: Json<'_>, nack: &[u8]) -> bool {
    let message = |from: Json<'_>| {
        from.get("error")?
            .get("message")?
            .text()
            .map(|m| m.into_owned())
    };
    let sent = Json::parse(nack, REPLY_DEPTH).ok().and_then(message);
    sent.is_some() && sent == message(job)
}

/// The job that an ACK or nack names, and where its `worker_id` stands, if it says one.
fn named(body: &[u8]) -> Option<(Arc<str>, Option<Range<usize>>)> {
    // How deep a result may nest is the backend's to say: its job has run.
    let mut reader = Reader::new(body, REPLY_DEPTH);
    let (_, [job, worker_id]) = reader.pick(["job_id", "worker_id"]).ok()?;
    // Of two jobs nobody knows whose slot would be free.
    let is_clear = !reader.repeats();
    reader.end().ok().filter(|()| is_clear)?;
    let job = Arc::from(job?.text()?.as_ref());
    Some((job, worker_id.map(|id| id.range())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_named_however_deep_its_result_is() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let ack = format!(r#"{{"job_id":"a","result":{deep},"worker_id":"w"}}"#);
        let (job, worker) = named(ack.as_bytes()).unwrap();
        assert_eq!(&*job, "a");
        assert_eq!(ack.get(worker.unwrap()), Some("\"w\""));
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
