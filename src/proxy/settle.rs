//! ACK and nack. They never fail on the sidecar's account: SDKs turn a failed ACK into a nack, and a
//! job that succeeded would run again. So the body is read whole before anything is sent, a backend
//! that is down or cuts its reply is asked again in here, and an answer that its worker never got is
//! kept for the same request.

pub(super) mod feedback;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

use super::body::{Body, Watch};
use super::outlive::{Client, to_the_end};
use super::refuse;
use super::respond::{self, Fault};
use super::{DEPTH, Proxy, mirror};
use crate::json::{Json, Reader, Splice, quote};
use crate::metrics::Event;
use crate::store::{Place, Row};
use crate::upstream::{Call, Path, Reply, UpstreamError};

/// How long an answer that did not reach its worker is kept.
const KEEP: Duration = Duration::from_secs(60);
/// The most answers kept.
const KEPT: usize = 1024;
/// The most jobs remembered as asked about.
const ASKED: usize = 10_000;
/// The first and the longest pause between tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Verb {
    Ack,
    Nack,
}

/// What makes an ACK or nack the same as another.
#[derive(Clone)]
struct Request {
    verb: Verb,
    scope: u64,
    body: Bytes,
}

/// What the backend said to an ACK or nack that it carried out. Any other answer it gives again.
#[derive(Clone, Debug)]
struct Success {
    status: StatusCode,
    body: Bytes,
}

impl Success {
    fn of(reply: &Reply) -> Option<Success> {
        let (status, body) = (reply.status, &reply.body);
        status.is_success().then(|| Success {
            status,
            body: body.clone(),
        })
    }
}

/// Successes that did not reach their workers, by the request they answer.
#[derive(Debug)]
pub(super) struct Undelivered {
    hasher: RandomState,
    answers: Mutex<HashMap<u64, (Instant, Success)>>,
    born: Instant,
    /// Its first minute is not over, as far as was looked.
    young: AtomicBool,
    /// What this sidecar was asked to settle in its first minute.
    asked: Mutex<HashSet<Box<str>>>,
}

impl Default for Undelivered {
    fn default() -> Undelivered {
        Undelivered {
            hasher: RandomState::new(),
            answers: Mutex::default(),
            born: Instant::now(),
            young: AtomicBool::new(true),
            asked: Mutex::default(),
        }
    }
}

impl Undelivered {
    fn key(&self, request: &Request) -> u64 {
        let Request { verb, scope, body } = request;
        self.hasher.hash_one((verb, scope, &body[..]))
    }

    fn keep(&self, request: &Request, success: &Success) {
        let key = self.key(request);
        let now = Instant::now();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (since, _)| now.duration_since(*since) < KEEP);
        if answers.len() < KEPT {
            let kept = Success {
                status: success.status,
                // In memory of its own: what it is a part of may be much larger.
                body: Bytes::copy_from_slice(&success.body),
            };
            answers.insert(key, (now, kept));
        }
    }

    /// Whether an earlier sidecar may have settled the job and died before it could answer: this one is
    /// young, and was not asked to settle it before.
    fn inherited(&self, job: &str) -> bool {
        if !self.young.load(Ordering::Relaxed) {
            return false;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.born.elapsed() >= KEEP {
            *asked = HashSet::new();
            self.young.store(false, Ordering::Relaxed);
            return false;
        }
        asked.len() < ASKED && asked.insert(job.into())
    }

    /// The answer to this very request, once.
    fn take(&self, request: &Request) -> Option<Success> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.is_empty() {
            return None;
        }
        let (since, success) = answers.remove(&self.key(request))?;
        (since.elapsed() < KEEP).then_some(success)
    }

    pub(super) fn clear(&self) {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// A success on its way; kept for the next identical request unless its body is polled.
struct Delivery {
    proxy: Proxy,
    request: Request,
    success: Option<Success>,
}

impl Watch for Delivery {
    fn sent(&mut self) {
        self.success = None;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(success) = self.success.take() {
            self.proxy.sidecar.settled.keep(&self.request, &success);
        }
    }
}

/// A job as GET shows it, after a try whose answer was lost.
enum Seen {
    /// It ended as asked: the answer that was lost must have said this.
    Done(Reply),
    /// It did not happen, or something else did: asking again gets the backend's verdict.
    Open,
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
        let request = Request {
            verb,
            scope,
            body: body.clone(),
        };
        if let Some(success) = sidecar.settled.take(&request) {
            sidecar.metrics.count(Event::SettleReplayed);
            let mut headers = HeaderMap::new();
            super::ours(&parts.headers, &mut headers);
            let reply = Reply {
                status: success.status,
                headers,
                body: success.body,
            };
            let delivery = self.delivery(request, &reply);
            return self.delivered(&parts, reply, delivery);
        }
        let mut call = Call {
            method: parts.method.clone(),
            target: Path::Read(parts.uri.clone()),
            headers: respond::take_headers(&mut parts),
            body,
            timeout: sidecar.live().settings.upstream_timeout,
        };
        let proxy = self.clone();
        let work = Box::pin(async move {
            let reply = proxy.settle_through(&mut call, scope, verb).await?;
            let delivery = proxy.delivery(request, &reply);
            Ok((reply, delivery))
        });
        // A worker that hangs up asks again: the answer, dropped, is kept for it.
        match to_the_end(&sidecar.tasks, Client::default(), work).await {
            Ok((reply, delivery)) => self.delivered(&parts, reply, delivery),
            Err(error) => refuse(&parts, Fault::backend(&error, false)),
        }
    }

    fn delivery(&self, request: Request, reply: &Reply) -> Delivery {
        Delivery {
            proxy: self.clone(),
            request,
            success: Success::of(reply),
        }
    }

    fn delivered(&self, parts: &Parts, mut reply: Reply, delivery: Delivery) -> Response<Body> {
        let bytes = std::mem::take(&mut reply.body);
        let bytes = mirror::hide_all(&bytes).map_or(bytes, Bytes::from);
        let mut response = self.theirs(parts, reply);
        *response.body_mut() = Body::watched(bytes, delivery);
        response
    }

    /// Sends it, again if need be, and ends the job's slot when it is over.
    async fn settle_through(
        &self,
        call: &mut Call,
        scope: u64,
        verb: Verb,
    ) -> Result<Reply, UpstreamError> {
        let sidecar = &self.sidecar;
        let Some((job, worker_id)) = named(&call.body) else {
            return self.upstream.call(call.clone()).await;
        };
        let mut hidden = sidecar.hold.hide(&job);
        let known = sidecar.row_of(&job).await;
        let without_row = matches!(known, Ok(None));
        let row = known.ok().flatten();
        if row.as_ref().is_some_and(|row| row.place == Place::Held) {
            hidden |= sidecar.hide_there(&job, true).await;
        }
        if let Some(row) = &row
            && let Some(range) = worker_id
        {
            // The id under which the job was claimed, where the worker says its own.
            let mut splice = Splice::new();
            splice.replace(range, quote(&row.claimed.claim_id));
            call.body = splice.apply(&call.body).into();
        }
        let answer = self.insist(call, scope, verb, &job, row.as_ref()).await;
        if let (Verb::Nack, Ok(reply)) = (verb, &answer) {
            let queue = row.as_ref().map(|row| &*row.claimed.queue);
            sidecar.nacked(reply, queue);
        }
        let carried_out = answer.as_ref().is_ok_and(|reply| reply.status.is_success());
        if carried_out && let Some(row) = &row {
            match verb {
                Verb::Ack => self.succeeded(row).await,
                Verb::Nack => Box::pin(self.heed(row, &call.body)).await,
            }
        }
        let over = carried_out
            || match (&answer, &row) {
                (Ok(_), Some(row)) => Box::pin(self.ended_otherwise(scope, row)).await,
                _ => false,
            };
        if over {
            sidecar.hold.forget(&job);
            // What is not limited costs no call more.
            if without_row && sidecar.store.is_shared() {
                sidecar.note_end(&job);
            } else {
                sidecar.end(&job, None).await;
            }
        } else if hidden {
            sidecar.show(&job).await;
        }
        answer
    }

    /// Whether a job whose ACK or nack the backend refused is over all the same: its verdict passes as it is,
    /// and the slot follows what it says of the job.
    async fn ended_otherwise(&self, scope: u64, row: &Row) -> bool {
        let of = &row.claimed;
        self.still_active(scope, &of.job, Some(of.attempt)).await == Some(false)
    }

    /// Until the backend answers, GET tells how it ended, or time is up.
    async fn insist(
        &self,
        call: &Call,
        scope: u64,
        verb: Verb,
        job: &str,
        row: Option<&Row>,
    ) -> Result<Reply, UpstreamError> {
        let deadline = Instant::now() + self.sidecar.live().settings.settle_retry_for;
        let mut pause = PAUSES.0;
        // What a sidecar before this one sent, and did not live to answer, may have been carried out.
        let mut inherited = self.sidecar.settled.inherited(job);
        let mut doubt = inherited;
        loop {
            let mut next = call.clone();
            next.timeout = next
                .timeout
                .min(deadline.saturating_duration_since(Instant::now()));
            let error = match super::call(self, "settle", next).await {
                Ok(reply) if reply.status.is_success() || !doubt => return Ok(reply),
                // An error after a try that may have been carried out: perhaps it was.
                Ok(reply) => {
                    let sent = inherited.then_some(&call.body[..]);
                    return Ok(
                        match Box::pin(self.seen(scope, verb, job, row, sent)).await {
                            Some(Seen::Done(done)) => done,
                            _ => reply,
                        },
                    );
                }
                Err(error) => error,
            };
            if error.in_doubt() {
                doubt = true;
                inherited = false;
                let seen = Box::pin(self.seen(scope, verb, job, row, None)).await;
                if let Some(Seen::Done(done)) = seen {
                    return Ok(done);
                }
            }
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            self.sidecar.metrics.count(Event::SettleRetried);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// What GET tells. `sent`: a request that was never sent from here; a nack of it counts as carried
    /// out only if the job shows its error.
    async fn seen(
        &self,
        scope: u64,
        verb: Verb,
        job: &str,
        row: Option<&Row>,
        sent: Option<&[u8]>,
    ) -> Option<Seen> {
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(job));
        let reply = super::call(self, "get_job", super::get(self, scope, target))
            .await
            .ok()?;
        if reply.status != StatusCode::OK {
            return None;
        }
        let whole = Json::parse(&reply.body, DEPTH).ok()?;
        let found = whole.get_exact("job").unwrap_or(whole);
        let state = found.get("state")?.text()?;
        let attempt = found.get("attempt").and_then(|a| a.int());
        let moved_on =
            row.is_some_and(|row| attempt.is_some_and(|a| a > i64::from(row.claimed.attempt)));
        let done = match (verb, &*state) {
            (Verb::Ack, "completed") => true,
            (Verb::Nack, "retryable" | "available" | "scheduled" | "discarded" | "pending") => true,
            (Verb::Nack, "active") => moved_on,
            _ => false,
        };
        let its_own = verb == Verb::Ack || sent.is_none_or(|sent| shows_error_of(found, sent));
        if !done || !its_own {
            return Some(Seen::Open);
        }
        let mut body = format!(
            r#"{{"id":{0},"job_id":{0},"state":{1}"#,
            quote(job),
            quote(&state)
        )
        .into_bytes();
        if verb == Verb::Ack {
            body.extend_from_slice(br#","acknowledged":true"#);
        }
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
        body.extend_from_slice(&mirror::shown(found));
        body.push(b'}');
        Some(Seen::Done(Reply {
            status: StatusCode::OK,
            headers: reply.headers.clone(),
            body: body.into(),
        }))
    }
}

/// Whether a job's last error is the one that a nack brings.
fn shows_error_of(job: Json<'_>, nack: &[u8]) -> bool {
    let message = |from: Json<'_>| {
        from.get("error")?
            .get("message")?
            .text()
            .map(|m| m.into_owned())
    };
    let sent = Json::parse(nack, DEPTH).ok().and_then(message);
    sent.is_some() && sent == message(job)
}

/// The job that an ACK or nack names, and where its `worker_id` stands, if it says one.
fn named(body: &[u8]) -> Option<(Arc<str>, Option<Range<usize>>)> {
    let mut reader = Reader::new(body, DEPTH).ok()?;
    let (_, [job, worker_id]) = reader.pick(["job_id", "worker_id"]).ok()?;
    reader.end().ok()?;
    let job = Arc::from(job?.text()?.as_ref());
    Some((job, worker_id.map(|id| id.range())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_keeps_nothing_of_what_was_read() {
        let read = Bytes::from(b"{} ".repeat(100));
        let reply = |status| Reply {
            status,
            headers: HeaderMap::new(),
            body: read.slice(..2),
        };
        let settled = Undelivered::default();
        let request = Request {
            verb: Verb::Ack,
            scope: 1,
            body: Bytes::from_static(b"{}"),
        };
        settled.keep(&request, &Success::of(&reply(StatusCode::CREATED)).unwrap());
        assert!(read.is_unique());
        let kept = settled.take(&request).unwrap();
        assert_eq!(
            (kept.status, &kept.body[..]),
            (StatusCode::CREATED, &b"{}"[..])
        );
        assert!(settled.take(&request).is_none(), "once");
        assert!(Success::of(&reply(StatusCode::CONFLICT)).is_none());
    }
}
