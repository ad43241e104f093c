//! Replies of our own: the one place that turns what went wrong into status, envelope and headers.

mod codes;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use codes::declared;
pub use codes::{CODES, Code};

use super::body::{Body, ReadError};
use ojs_config::MediaType;
use ojs_store::StoreError;
use ojs_subqueues::mirror;
use ojs_wire::ojs::{self, BadPath};
use ojs_wire::upstream::{FEW_HEADER_LINES, HEADER_LINES, Reply, SendError, UpstreamError};

/// What went wrong, as the client is told. Answered in the envelope of OJS backends:
/// `{"error":{"code","message","retryable","request_id","hint",…}}`.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// The status.
    pub status: StatusCode,
    /// A word for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub message: String,
    /// Whether the same request may succeed later. SDKs repeat a POST on it.
    pub retryable: bool,
    /// What to do about it.
    pub hint: &'static str,
    /// When to come back; said in whole seconds from 1.
    pub retry_after: Option<Duration>,
    /// Facts for programs.
    pub details: Map<String, Value>,
    /// What else a text wants in the answer.
    pub more: Option<Box<More>>,
    /// The connection cannot be used after this.
    pub close: bool,
}

/// Marks a reply that is made of a [`Fault`], with its code.
#[derive(Clone, Copy, Debug)]
pub struct Own(pub &'static str);

/// What else stands in an answer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct More {
    /// Members of `error`.
    pub members: Map<String, Value>,
    /// Headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    code: &'a str,
    message: &'a str,
    retryable: bool,
    request_id: &'a str,
    hint: &'a str,
    #[serde(flatten)]
    members: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    details: &'a Map<String, Value>,
}

/// For how long SDKs of OJS listen to `Retry-After`.
const LONGEST: Duration = Duration::from_secs(30);

/// Makes the fault of a backend that did not answer: [`Fault::backend`] or [`Fault::storing`].
pub type BackendFault = fn(&UpstreamError) -> Fault;

impl Fault {
    /// A fault with a declared code; not retryable, nothing else said.
    pub fn new(code: &'static str, message: impl Into<String>) -> Fault {
        let of = declared(code);
        Fault {
            status: of.map_or(StatusCode::INTERNAL_SERVER_ERROR, |of| of.status),
            code,
            message: message.into(),
            retryable: false,
            hint: of.map_or("see what the message says", |of| of.hint),
            retry_after: None,
            details: Map::new(),
            more: None,
            close: false,
        }
    }

    /// What it says, and what to do.
    pub fn words(&self) -> (&str, &'static str) {
        (&self.message, self.hint)
    }

    /// 400: a field of the body is wrong.
    pub fn field(field: &str, message: &str) -> Fault {
        let message = format!("{field}: {message}");
        Fault::bad_request(message)
            .with("field", field)
            .hinting("mend this field and send it again; nothing was stored or changed")
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Fault {
        Fault::new("invalid_request", message)
    }

    /// 400: deeper than is read.
    pub fn deep() -> Fault {
        let most = ojs_wire::ojs::DEPTH;
        Fault::bad_request(format!("the body is nested deeper than {most} levels"))
            .hinting("leave levels out, or send what is nested as the text of one string")
    }

    /// 405; `allow` are the methods that may be used, as the header names them.
    pub fn not_allowed(allow: &'static str, message: impl Into<String>) -> Fault {
        Fault::new("method_not_allowed", message).with_header(header::ALLOW, allow)
    }

    /// 400 or 431: a head that cannot be read at all.
    pub fn head(status: StatusCode) -> Fault {
        let fault = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                let most = format!(
                    "the head has more than {HEADER_LINES} lines, or is too long; with over {FEW_HEADER_LINES} lines only \
                     the first of all requests is refused"
                );
                Fault::new("head_too_large", most)
            }
            _ => Fault::bad_request("the head is no HTTP/1.1: its first line or a header has what may not stand there")
                .hinting("encode what a path or query may not have, such as %22 for a quotation mark and %20 for a space"),
        };
        fault.closing()
    }

    /// 508: a request that has been here before.
    pub fn comes_round() -> Fault {
        Fault::new(
            "loop_detected",
            "this request went out from here and came back: see its Via headers",
        )
    }

    /// 500: something of ours broke.
    pub fn internal() -> Fault {
        let message = "ojs-throttle failed on this request; its log says how";
        Fault::new("internal_error", message)
    }

    /// 503: more requests at once than may be.
    pub fn overloaded() -> Fault {
        let message = "ojs-throttle has too many requests in progress";
        Fault::new("overloaded", message).later(Duration::from_secs(1))
    }

    /// 503: the sidecar stops.
    pub fn draining() -> Fault {
        let message = "this sidecar stops, and nothing waits in it any more";
        Fault::new("draining", message).later(Duration::from_secs(1))
    }

    /// The backend did not answer a request that may have made it store a job. Where it may be stored: 500 in place of 502
    /// to 504, on which SDKs replay a POST.
    pub fn storing(error: &UpstreamError) -> Fault {
        match error.in_doubt() {
            true => Fault::new(
                "in_doubt",
                format!("the job may or may not be stored: {error}"),
            ),
            false => Fault::backend(error),
        }
    }

    /// The backend did not answer a request that stores no job.
    pub fn backend(error: &UpstreamError) -> Fault {
        let code = match error {
            UpstreamError::Unreachable(_) | UpstreamError::Closed(_) | UpstreamError::LeadsBack => {
                "backend_unreachable"
            }
            UpstreamError::Lost(_) | UpstreamError::TooLarge(_) => "backend_reply_lost",
            UpstreamError::Timeout(_) => "backend_timeout",
            UpstreamError::Unreadable(_) => "backend_reply_unreadable",
        };
        let mut fault = Fault::new(code, error.to_string());
        if matches!(error, UpstreamError::TooLarge(_)) {
            fault.hint = "ask for less at once";
        }
        fault.later(Duration::from_secs(1))
    }

    /// A streamed request got no reply: the fault is the side's whose body or reply failed. `backends` is the fault
    /// where that is the backend.
    pub fn sending(error: &SendError, backends: impl FnOnce(&UpstreamError) -> Fault) -> Fault {
        match error {
            SendError::Backend(error) => backends(error),
            SendError::Broken => Fault::broken(error.to_string()),
            SendError::Stalled(_) => Fault::slow(error.to_string()),
        }
    }

    /// Says when to come back, in 30 s at most, and that it is worth it.
    pub fn later(self, after: Duration) -> Fault {
        self.later_exactly(after.min(LONGEST))
    }

    /// The same, however long it takes.
    pub fn later_exactly(mut self, after: Duration) -> Fault {
        self.retryable = true;
        self.retry_after = Some(after);
        self
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Fault {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a header.
    pub fn with_header(mut self, name: HeaderName, value: &'static str) -> Fault {
        let headers = &mut self.more.get_or_insert_default().headers;
        headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// Says what to do about it.
    pub fn hinting(mut self, hint: &'static str) -> Fault {
        self.hint = hint;
        self
    }

    /// Ends the connection after the reply.
    pub fn closing(mut self) -> Fault {
        self.close = true;
        self
    }

    /// 408.
    fn slow(message: String) -> Fault {
        Fault::new("request_timeout", message).closing()
    }

    /// 400: a body that did not come whole.
    fn broken(message: String) -> Fault {
        Fault::bad_request(message)
            .closing()
            .hinting("send the whole body, as long as its head says")
    }

    /// The reply to a request with this `X-Request-Id` (see [`request_id`]).
    pub fn reply(&self, request_id: Option<HeaderValue>) -> Response<Body> {
        let id = request_id.or_else(fresh_id);
        let retry_after = self.retry_after.map(retry_seconds);
        let mut details = Cow::Borrowed(&self.details);
        if let Some(seconds) = retry_after.filter(|_| self.status == StatusCode::TOO_MANY_REQUESTS)
        {
            // Python's SDK shows the details and hides the header.
            details
                .to_mut()
                .insert("retry_after".to_owned(), seconds.into());
        }
        let body = serde_json::to_vec(&Envelope {
            error: Inner {
                code: self.code,
                message: &self.message,
                retryable: self.retryable,
                request_id: id
                    .as_ref()
                    .and_then(|id| id.to_str().ok())
                    .unwrap_or_default(),
                hint: self.hint,
                members: self.more.as_ref().map(|more| &more.members),
                details: &details,
            },
        });
        // Maps with text as keys always serialize; were it otherwise, the status says enough.
        let mut response = Response::new(Body::from(Bytes::from(body.unwrap_or_default())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, self.media_type());
        headers.insert(ojs::OJS_VERSION, ojs::VERSION);
        if let Some(id) = id {
            headers.insert(ojs::REQUEST_ID, id);
        }
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(more) = &self.more {
            headers.extend(more.headers.iter().cloned());
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.log(response.headers().get(ojs::REQUEST_ID));
        response.extensions_mut().insert(Own(self.code));
        response
    }

    /// What a client reports can be found by its id. A 4xx may quote the body, whose words are nobody's business:
    /// of that only the field is named.
    fn log(&self, id: Option<&HeaderValue>) {
        let quotes = self.status.is_client_error() && self.status != StatusCode::TOO_MANY_REQUESTS;
        let field = self.details.get("field").and_then(Value::as_str);
        tracing::debug!(
            status = self.status.as_u16(),
            code = self.code,
            request_id = id.and_then(|id| id.to_str().ok()),
            field,
            why = (!quotes).then_some(&*self.message),
            "answered by the sidecar"
        );
    }

    fn media_type(&self) -> HeaderValue {
        // Clients find the code of these two by status first, and some read no other type.
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ojs::JSON,
            _ => ojs::MEDIA_TYPE,
        }
    }
}

impl From<BadPath> for Fault {
    fn from(bad: BadPath) -> Fault {
        Fault::bad_request(bad.to_string())
            .hinting("write the path plainly, with %XX only inside a segment")
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::new("store_unavailable", error.to_string()).later(Duration::from_secs(1))
    }
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Fault {
        let message = error.to_string();
        match error {
            ReadError::TooLarge(_) => Fault::new("payload_too_large", message).closing(),
            ReadError::NoRoom => Fault::new("overloaded", message)
                .hinting("come back after Retry-After; if it lasts, raise server.max_bodies")
                .later(Duration::from_secs(1)),
            ReadError::Slow(_) => Fault::slow(message),
            ReadError::Broken(_) => Fault::broken(message),
        }
    }
}

/// `Retry-After` as every SDK reads it: whole seconds, rounded up, from 1 (0 is replayed at once, and panics in one SDK).
fn retry_seconds(after: Duration) -> u64 {
    let up = after
        .as_secs()
        .saturating_add(u64::from(after.subsec_nanos() > 0));
    up.max(1)
}

/// The id that the client gave its request.
pub fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(ojs::REQUEST_ID).cloned()
}

/// Takes the headers of a request to send them on, and leaves what its reply depends on: its id.
pub fn take_headers(parts: &mut Parts) -> HeaderMap {
    let mut left = HeaderMap::new();
    if let Some(id) = request_id(&parts.headers) {
        left.insert(ojs::REQUEST_ID, id);
    }
    std::mem::replace(&mut parts.headers, left)
}

/// An id for a request that has none.
pub fn fresh_id() -> Option<HeaderValue> {
    HeaderValue::try_from(format!("req_{}", Uuid::now_v7().simple())).ok()
}

/// A backend's reply that was read whole, as it goes to the client; whatever job it shows, it shows no mirror.
pub fn theirs(mut reply: Reply) -> Response<Body> {
    if let Some(hidden) = mirror::hide_all(&reply.body) {
        reply.body = hidden.into();
    }
    self::reply(reply)
}

/// What came of a call, as it goes to the client. `fault`: what it is told where the backend did not answer.
pub fn answer(
    parts: &Parts,
    answer: Result<Reply, UpstreamError>,
    fault: BackendFault,
) -> Response<Body> {
    match answer {
        Ok(reply) => theirs(reply),
        Err(error) => refuse(parts, fault(&error)),
    }
}

/// A success of our own.
pub fn json(parts: &Parts, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    ours(&parts.headers, response.headers_mut());
    response
}

/// A backend's reply that was read whole and shows no mirror, as it goes to the client.
pub fn reply(mut reply: Reply) -> Response<Body> {
    // It may not be as long as it was.
    reply.headers.remove(header::CONTENT_LENGTH);
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// Whether replies to a request with these headers are labelled `application/json`.
pub fn wants_plain_json(when: MediaType, request: &HeaderMap) -> bool {
    match when {
        MediaType::Off => false,
        MediaType::Always => true,
        // The Python SDK, known by its user agent, reads nothing else.
        MediaType::Auto => request
            .get(header::USER_AGENT)
            .is_some_and(|agent| agent.as_bytes().starts_with(b"python-httpx")),
    }
}

/// Labels a reply in the OJS media type as JSON, which it is; says whether it had to.
pub fn relabel(headers: &mut HeaderMap) -> bool {
    let ours = ojs::MEDIA_TYPE;
    let labelled = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let mut words = kind.as_bytes().split(|byte| *byte == b';');
        let kind = words.next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(ours.as_bytes())
    });
    if labelled {
        headers.insert(header::CONTENT_TYPE, ojs::JSON);
    }
    labelled
}

/// A reply of our own that is no success.
pub fn refuse(parts: &Parts, fault: Fault) -> Response<Body> {
    fault.reply(request_id(&parts.headers))
}

/// The headers of a success of our own.
pub fn ours(request: &HeaderMap, reply: &mut HeaderMap) {
    reply.insert(header::CONTENT_TYPE, ojs::MEDIA_TYPE);
    reply.insert(ojs::OJS_VERSION, ojs::VERSION);
    if let Some(id) = request_id(request).or_else(fresh_id) {
        reply.insert(ojs::REQUEST_ID, id);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn json(fault: &Fault, id: Option<&'static str>) -> (HeaderMap, Value) {
        let (parts, body) = fault.reply(id.map(HeaderValue::from_static)).into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.headers, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn the_envelope() {
        let fault = Fault::field("options.rate_limit", "is no object");
        let (headers, body) = json(&fault, Some("req_7")).await;
        assert_eq!(
            headers[header::CONTENT_TYPE],
            "application/openjobspec+json"
        );
        assert_eq!(headers[ojs::REQUEST_ID], "req_7");
        assert_eq!(headers[ojs::OJS_VERSION], "1.0");
        assert_eq!(
            body,
            serde_json::json!({"error": {
                "code": "invalid_request",
                "message": "options.rate_limit: is no object",
                "retryable": false,
                "request_id": "req_7",
                "hint": "mend this field and send it again; nothing was stored or changed",
                "details": {"field": "options.rate_limit"},
            }})
        );
    }

    #[tokio::test]
    async fn a_request_without_an_id_gets_one() {
        let (headers, body) = json(&Fault::overloaded(), None).await;
        let id = headers[ojs::REQUEST_ID].to_str().unwrap();
        assert!(id.starts_with("req_"), "{id}");
        assert_eq!(body["error"]["request_id"], id);
        assert_eq!(headers[header::RETRY_AFTER], "1");
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
    }

    #[test]
    fn headers_that_went_on_leave_what_the_reply_needs() {
        let request = || {
            let request = http::Request::builder()
                .header(ojs::REQUEST_ID, "req_7")
                .header(header::AUTHORIZATION, "Bearer a");
            request.body(()).unwrap().into_parts().0
        };
        let mut parts = request();
        let taken = take_headers(&mut parts);
        assert_eq!(taken, request().headers);
        assert_eq!(request_id(&parts.headers).unwrap(), "req_7");
        assert_eq!(parts.headers.len(), 1);
    }

    #[test]
    fn retry_after_is_whole_and_from_1_to_30() {
        let later = |millis| Fault::overloaded().later(Duration::from_millis(millis));
        let seconds = |millis| retry_seconds(later(millis).retry_after.unwrap());
        assert_eq!([0, 1, 1000, 1001, 90_000].map(seconds), [1, 1, 1, 2, 30]);
    }

    #[test]
    fn whether_a_job_may_be_stored_decides() {
        let timeout = UpstreamError::Timeout(Duration::from_secs(1));
        let gone = UpstreamError::Unreachable("refused".into());
        let status = |fault: Fault| (fault.status.as_u16(), fault.retryable);
        assert_eq!(status(Fault::backend(&timeout)), (504, true));
        assert_eq!(status(Fault::storing(&timeout)), (500, false));
        assert_eq!(status(Fault::storing(&gone)), (502, true));
        assert_eq!(
            status(Fault::backend(&UpstreamError::Lost(String::new()))),
            (502, true)
        );
    }

    #[test]
    fn relabelling_is_for_those_who_need_it() {
        let mut request = HeaderMap::new();
        assert!(!wants_plain_json(MediaType::Auto, &request));
        assert!(wants_plain_json(MediaType::Always, &request));
        request.insert(
            header::USER_AGENT,
            HeaderValue::from_static("python-httpx/0.28.1"),
        );
        assert!(wants_plain_json(MediaType::Auto, &request));
        assert!(!wants_plain_json(MediaType::Off, &request));
        let mut reply = HeaderMap::new();
        assert!(!relabel(&mut reply));
        reply.insert(header::CONTENT_TYPE, ojs::MEDIA_TYPE);
        assert!(relabel(&mut reply));
        assert_eq!(reply[header::CONTENT_TYPE], "application/json");
        reply.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        assert!(!relabel(&mut reply));
    }
}
