//! Calls of the sidecar's own to the backend: what it says of jobs that it claimed, and what the backend says of a job.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;

use crate::desk::{Proxy, scope};
use crate::json::{Json, quote};
use crate::wire::ojs::{REPLY_DEPTH, speaks_ojs};
use crate::wire::tick;
use crate::wire::upstream::{Call, Reply, UpstreamError};

/// The first and the longest pause between tries.
pub(crate) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));

/// One call of the sidecar's own, measured.
pub(crate) async fn call(
    proxy: &Proxy,
    op: &'static str,
    call: Call,
) -> Result<Reply, UpstreamError> {
    if proxy.sidecar.config().calls_only() {
        return Err(UpstreamError::Unreachable("there is none".to_owned()));
    }
    let begun = tick::now();
    let answer = proxy.upstream.call(call).await;
    proxy.sidecar.note_call(op, &answer, tick::now() - begun);
    answer
}

/// A POST of JSON under a scope's credentials.
pub(crate) fn post(proxy: &Proxy, scope: u64, target: &str, body: impl Into<Bytes>) -> Call {
    Call {
        method: http::Method::POST,
        target: target.into(),
        headers: scope::json_headers(&proxy.sidecar, scope),
        body: body.into(),
        timeout: proxy.sidecar.live().settings.upstream.timeout,
    }
}

/// A GET under a scope's credentials.
pub(crate) fn get(proxy: &Proxy, scope: u64, target: String) -> Call {
    let timeout = proxy.sidecar.live().settings.upstream.timeout;
    Call {
        method: http::Method::GET,
        target: target.into(),
        headers: scope::own_headers(&proxy.sidecar, scope),
        body: Bytes::new(),
        timeout: timeout.min(Duration::from_secs(5)),
    }
}

/// The request as it came, for a reply that is read whole.
pub(crate) fn plain_call(proxy: &Proxy, parts: &Parts, body: Bytes) -> Call {
    Call {
        method: parts.method.clone(),
        target: proxy.target(&parts.uri),
        headers: parts.headers.clone(),
        body,
        timeout: proxy.sidecar.live().settings.upstream.timeout,
    }
}

/// A heartbeat for jobs of a claim, which shall last so many milliseconds more.
pub(crate) fn heartbeat<'a>(
    claim_id: &str,
    jobs: impl Iterator<Item = &'a str>,
    ms: u128,
) -> String {
    let ids: Vec<String> = jobs.map(quote).collect();
    format!(
        r#"{{"worker_id":{},"active_jobs":[{}],"visibility_timeout_ms":{ms}}}"#,
        quote(claim_id),
        ids.join(",")
    )
}

/// A nack that gives a job back unstarted.
pub(crate) fn requeue(job: &str, claim_id: &str) -> String {
    format!(
        r#"{{"job_id":{},"worker_id":{},"requeue":true,"error":{{"code":"requeued","message":"given back unstarted by ojs-throttle","retryable":true}}}}"#,
        quote(job),
        quote(claim_id),
    )
}

/// So begins what a nack says that discards a job.
pub(crate) const DROPPED: &str = "dropped by ojs-throttle: ";

/// A nack that ends a job for good.
pub(crate) fn discard(job: &str, claim_id: &str, code: &str, message: &str) -> String {
    format!(
        r#"{{"job_id":{},"worker_id":{},"error":{{"code":"{code}","type":"{code}","message":{},"retryable":false}}}}"#,
        quote(job),
        quote(claim_id),
        quote(&[DROPPED, message].concat()),
    )
}

/// What the backend says of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// A reply in which the job is, beside others or alone.
    Found(Bytes),
    /// It knows no such job.
    Gone,
    /// It says something else, or something else answered.
    Unknown,
    /// It did not answer, or not now, or a gateway had no way to it.
    Unanswered,
}

/// Asks for a job under a scope's credentials.
pub(crate) async fn look_up(proxy: &Proxy, scope: u64, job: &str) -> Lookup {
    let target = format!("/ojs/v1/jobs/{}", crate::wire::ojs::encoded(job));
    let Ok(reply) = call(proxy, "get_job", get(proxy, scope, target)).await else {
        return Lookup::Unanswered;
    };
    match reply.status {
        StatusCode::OK => Lookup::Found(reply.body),
        StatusCode::NOT_FOUND | StatusCode::GONE => absent(&reply),
        status if is_for_now(status) => Lookup::Unanswered,
        _ => Lookup::Unknown,
    }
}

/// What it means that a job is said not to be there.
fn absent(reply: &Reply) -> Lookup {
    // A backend without this route says so in plain text.
    let Ok(whole) = Json::parse(&reply.body, REPLY_DEPTH) else {
        return Lookup::Unknown;
    };
    let code = whole.get("error").and_then(|error| error.get("code"));
    // A gateway that has no route for a moment says so in JSON of its own, and knows nothing of jobs.
    match speaks_ojs(&reply.headers) || code.is_some_and(|code| code.text().is_some()) {
        true => Lookup::Gone,
        false => Lookup::Unanswered,
    }
}

/// Whether the backend may have done what it was asked for: it says so, or nobody knows.
pub(crate) fn may_be_done(answer: &Result<Reply, UpstreamError>) -> bool {
    match answer {
        Ok(reply) => reply.status.is_success() || reply.status.is_server_error(),
        Err(error) => error.in_doubt(),
    }
}

/// Whether a reply is of somebody before the backend, or for now: what was asked may have been done or not.
pub(crate) fn is_for_now(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The job in such a reply: in `job`, or the whole.
pub(crate) fn job_in(reply: &[u8]) -> Option<Json<'_>> {
    let whole = Json::parse(reply, REPLY_DEPTH).ok()?;
    Some(whole.get_exact("job").unwrap_or(whole))
}
