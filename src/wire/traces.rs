//! The spans of a request: what it waits for, and how long. Other modules begin them here, and the program sends
//! them to a collector. Where none is sent, none is made: each beginning is one look at a flag.

use std::sync::OnceLock;

use http::request::Parts;
use http::{Method, StatusCode};
use tokio_util::either::Either;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use crate::ojs;

/// The target of all spans here: by it the log leaves them out and the exporter takes them.
pub const TARGET: &str = "ojs_throttle::traces";

/// Has a span continue the trace of a `traceparent`.
pub type Follow = fn(&Span, &str);

static FOLLOW: OnceLock<Follow> = OnceLock::new();

/// Spans are made from now on. Whoever sends them says how one continues the trace of a client.
pub fn begin(follow: Follow) {
    FOLLOW.get_or_init(|| follow);
}

/// Whether spans are made.
fn is_on() -> bool {
    FOLLOW.get().is_some()
}

/// The span of a request from its head to the head of its reply. Where a `traceparent` names the trace that it belongs
/// to, lines of the log show that as `trace_id`, whether or not spans are sent.
/// Without `tells_path` its path is left out.
pub fn request(head: &Parts, tells_path: bool) -> Span {
    let mut parents = head.headers.get_all(ojs::TRACEPARENT).iter();
    let parent = match (parents.next(), parents.next()) {
        (Some(parent), None) => parent.to_str().ok(),
        _ => None,
    };
    let trace_id = parent.and_then(ojs::trace_id);
    let logged = trace_id.map_or_else(
        Span::none,
        |trace_id| tracing::error_span!("request", %trace_id),
    );
    let Some(follow) = FOLLOW.get() else {
        return logged;
    };
    let span = tracing::error_span!(
        target: TARGET,
        parent: &logged,
        "request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = %head.method,
        http.response.status_code = Empty,
        url.path = tells_path.then(|| head.uri.path()),
    );
    if let Some(parent) = parent.filter(|_| trace_id.is_some()) {
        follow(&span, parent);
    }
    span
}

/// The reply to a request, or to a call, has this status.
pub fn answered(span: &Span, status: StatusCode) {
    if is_on() {
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// The span in which a FETCH has jobs claimed.
pub fn gather() -> Span {
    match is_on() {
        true => tracing::error_span!(target: TARGET, "gather"),
        false => Span::none(),
    }
}

/// The span in which the store is asked whether so many jobs may start.
pub fn take(jobs: usize) -> Span {
    match is_on() {
        true => tracing::error_span!(
            target: TARGET,
            "take",
            jobs,
            started = Empty,
            limit.policy = Empty,
            limit.key = Empty,
        ),
        false => Span::none(),
    }
}

/// What the store said: how many may start, and the limit that bound the first of those that may not.
pub fn taken(span: &Span, started: usize, bound: Option<(&str, &str)>) {
    if is_on() {
        span.record("started", started);
        if let Some((policy, key)) = bound {
            span.record("limit.policy", policy);
            span.record("limit.key", key);
        }
    }
}

/// The span of a call to the backend, to the head of its reply, where that is part of a request. What the sidecar does
/// by itself, such as sending these spans, has none.
pub fn upstream(method: &Method, host: &str, path: Option<&str>) -> Span {
    match is_on() && !Span::current().is_none() {
        true => tracing::error_span!(
            target: TARGET,
            "upstream",
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.method = %method,
            http.response.status_code = Empty,
            server.address = host,
            url.path = path,
            error.message = Empty,
        ),
        false => Span::none(),
    }
}

/// A call to the backend got no answer.
pub fn failed(span: &Span, error: &dyn std::error::Error) {
    if is_on() {
        span.record("otel.status_code", "ERROR");
        span.record("error.message", display(error));
    }
}

/// Does this within a span; where nothing is sent, as if there were none. It is no `async fn`, because the future of one
/// would hold the work twice. Large work comes pinned: it would be copied here.
pub fn within<F: Future + Send>(
    span: &Span,
    work: F,
) -> impl Future<Output = F::Output> + Send + use<F> {
    match span.is_none() {
        true => Either::Left(work),
        // Boxed: the future of each request would have room for it.
        false => Either::Right(Box::pin(work.instrument(span.clone()))),
    }
}
