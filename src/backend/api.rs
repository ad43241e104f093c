//! The routes of the backend.

mod answer;
mod operations;
mod views;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::state::BackendState;
use super::wire::ErrorReply;
use answer::{ApiAnswer, NO_METHOD, NO_ROUTE, ok, text};
use operations::wrapped;

/// The media type of every answer but those of unknown routes.
const OJS: &str = "application/openjobspec+json";
/// The longest body that is read.
pub(super) const LONGEST_BODY: usize = 1024 * 1024;

/// Answers `request` as of `now`.
pub(super) fn answer(
    state: &mut BackendState,
    request: &Request<Bytes>,
    now: Instant,
) -> Response<Bytes> {
    state.tick(now);
    let path = request.uri().path();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let id = request_id(state, request, now);
    let mut response = match check(request).and_then(|()| route(state, request, &segments, now)) {
        Ok((status, body)) => reply(status, body),
        Err(refusal) if refusal.code == NO_ROUTE => plain_404(),
        Err(refusal) if refusal.code == NO_METHOD => reply(405, Vec::new()),
        Err(refusal) => reply(refusal.status, envelope(&refusal, &id)),
    };
    let location = location(&segments, &response);
    let headers = response.headers_mut();
    headers.insert("ojs-version", HeaderValue::from_static(state.lax.version));
    headers.insert("x-request-id", id);
    if let Some(location) = location {
        headers.insert(header::LOCATION, location);
    }
    response
}

fn reply(status: u16, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(OJS));
    response
}

fn plain_404() -> Response<Bytes> {
    let mut response = reply(404, b"404 page not found\n".to_vec());
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

#[expect(clippy::indexing_slicing, reason = "a JSON object takes any name")]
fn envelope(refusal: &ErrorReply, id: &HeaderValue) -> Vec<u8> {
    let mut error = json!({
        "code": refusal.code,
        "message": refusal.message,
        "type": refusal.code,
        "retryable": refusal.status >= 500,
        "request_id": id.to_str().unwrap_or_default(),
        "hint": "Look at the message; the OJS text tells what each operation wants.",
        "docs_url": "https://openjobspec.org/",
    });
    if let Some(index) = refusal.index {
        error["details"] = json!({ "index": index });
    }
    text(&json!({ "error": error }))
}

fn request_id(state: &mut BackendState, request: &Request<Bytes>, now: Instant) -> HeaderValue {
    let sent = request.headers().get("x-request-id");
    let sent = sent.filter(|id| !id.is_empty()).cloned();
    sent.unwrap_or_else(|| {
        let id = format!("req_{}", state.fresh_id(now));
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("req"))
    })
}

/// The `Location` of a job that was enqueued alone.
#[expect(
    clippy::indexing_slicing,
    reason = "what a JSON value does not have is null"
)]
fn location(segments: &[&str], response: &Response<Bytes>) -> Option<HeaderValue> {
    if *segments != ["ojs", "v1", "jobs"] || response.status() != StatusCode::CREATED {
        return None;
    }
    let body: Value = serde_json::from_slice(response.body()).ok()?;
    HeaderValue::from_str(&format!("/ojs/v1/jobs/{}", body["job"]["id"].as_str()?)).ok()
}

/// Checks that hold for every request.
fn check(request: &Request<Bytes>) -> Result<(), ErrorReply> {
    let writes = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
    let media = request
        .headers()
        .get(header::CONTENT_TYPE)
        .filter(|_| writes);
    let media = media.map(|media| String::from_utf8_lossy(media.as_bytes()).to_ascii_lowercase());
    let media = media
        .as_deref()
        .map(|media| media.split(';').next().unwrap_or_default().trim());
    if media.is_some_and(|media| media != OJS && media != "application/json") {
        return Err(ErrorReply::invalid("Unsupported Content-Type."));
    }
    if request.body().len() > LONGEST_BODY {
        return Err(ErrorReply::invalid("Failed to read request body."));
    }
    Ok(())
}

fn route(
    state: &mut BackendState,
    request: &Request<Bytes>,
    segments: &[&str],
    now: Instant,
) -> ApiAnswer {
    let rest = match segments {
        ["ojs", "manifest"] if request.method() == Method::GET => return views::manifest(state),
        ["ojs", "manifest"] => return Err(ErrorReply::new(405, NO_METHOD, "")),
        ["ojs", "v1", rest @ ..] => rest,
        _ => return Err(ErrorReply::new(404, NO_ROUTE, "")),
    };
    let (method, body) = (request.method().as_str(), request.body());
    match (method, rest) {
        ("GET", ["health"]) => views::health(state, now),
        ("POST", ["jobs"]) => operations::enqueue(state, body, now),
        ("POST", ["jobs", "batch"]) => operations::batch(state, body, now),
        ("GET", ["jobs", id]) => wrapped(state, state.find(id)?.0),
        ("DELETE", ["jobs", id]) => state
            .cancel(id, now)
            .and_then(|number| wrapped(state, number)),
        ("POST", ["workers", "fetch"]) => operations::fetch(state, body, now),
        ("POST", ["workers", "ack"]) => operations::ack(state, body, now),
        ("POST", ["workers", "nack"]) => operations::nack(state, body, now),
        ("POST", ["workers", "heartbeat"]) => operations::heartbeat(state, body, now),
        ("GET", ["queues"]) => views::queues(state),
        ("GET", ["queues", name, "stats"]) => views::stats(state, name),
        ("POST", ["queues", name, verb @ ("pause" | "resume")]) => {
            ok(&json!({ "queue": views::pause_or_resume(state, name, verb, now) }))
        }
        ("GET", ["queues" | "jobs", _, "events"]) => Ok((200, b"retry: 3000\n\n".to_vec())),
        ("GET", ["events"]) => views::events(state, request.uri().query()),
        ("GET", ["dead-letter"]) => views::dead_letters(state),
        ("POST", ["dead-letter", id, "retry"]) => state
            .revive_dead(id, now)
            .and_then(|number| wrapped(state, number)),
        ("DELETE", ["dead-letter", id]) => state
            .bury(id)
            .and_then(|()| ok(&json!({ "deleted": true, "job_id": id }))),
        (_, ["admin", rest @ ..]) => views::admin(state, request, rest, now),
        _ => Err(unrouted(rest)),
    }
}

/// 405 where another method would do, else 404.
fn unrouted(rest: &[&str]) -> ErrorReply {
    let known = matches!(
        rest,
        ["health" | "jobs" | "queues" | "events" | "dead-letter"]
            | ["jobs" | "dead-letter", _]
            | ["workers", "fetch" | "ack" | "nack" | "heartbeat"]
            | ["queues", _, "stats" | "pause" | "resume" | "events"]
            | ["jobs", _, "events"]
            | ["dead-letter", _, "retry"]
    );
    if known {
        ErrorReply::new(405, NO_METHOD, "")
    } else {
        ErrorReply::new(404, NO_ROUTE, "")
    }
}
