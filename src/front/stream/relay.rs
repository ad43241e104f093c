//! The backend's own events, as part of a stream of ours: asked for with the client's request, and passed on
//! frame by frame until they break off. Then the client's stream ends too, and the client comes back for both.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::desk::{Proxy, Sidecar};
use crate::json::Json;
use crate::subqueues::mirror;
use crate::subqueues::names::{self, ReplyKind};
use crate::told::events::frames::{data, field, with_data};
use crate::told::events::{Channel, Filter, Frames};
use crate::wire::ojs::{self, REPLY_DEPTH};
use crate::wire::upstream::{IDENTITY, Path, ReplyBody};

/// How long the backend may take to begin a stream. The client's own begins meanwhile at the latest.
const PATIENCE: Duration = Duration::from_secs(3);
/// Backends say every 15 s that they are alive (real-time text, 2.4). One that is silent for so long may have
/// vanished without a word, and the client would not notice: it hears our own signs of life. A client that came while
/// the backend was away has ours alone for as long.
const SILENCE: Duration = Duration::from_secs(60);

/// What came of asking the backend.
enum Source {
    /// It streams.
    Open(Box<ReplyBody>),
    /// It has no such stream.
    Absent,
    /// It did not answer, or cannot now.
    Away,
}

/// The backend's side of one stream.
pub(super) struct Relay {
    source: Source,
    frames: Frames,
    filter: Filter,
    /// When the backend said something last.
    heard: Instant,
    /// The backend's last id that the client has, or had when it came.
    pub(super) last_id: Option<String>,
}

impl Relay {
    /// Asks the backend for the stream that a request asks for, wherever it may have it. `last_id`: the backend's
    /// last id that the client has.
    ///
    /// # Errors
    /// The backend does not let this client in: its answer.
    pub(super) async fn open(
        proxy: &Proxy,
        parts: &Parts,
        filter: Filter,
        last_id: Option<String>,
    ) -> Result<Relay, Response<ReplyBody>> {
        let headers = asking(&parts.headers, last_id.as_deref());
        let query = parts.uri.query().map(|query| format!("?{query}"));
        let query = query.unwrap_or_default();
        // Where real backends have theirs today.
        let other = match &filter.channel {
            Channel::Job(id) => Some(("jobs", id)),
            Channel::Queue(name) => Some(("queues", name)),
            Channel::All | Channel::Other(_) => None,
        };
        let other = other.map(|(of, name)| {
            Path::from(format!("/ojs/v1/{of}/{}/events{query}", ojs::encoded(name)))
        });
        let mut source = Source::Absent;
        for target in [proxy.target(&parts.uri)].into_iter().chain(other) {
            if matches!(source, Source::Absent) {
                source = open_stream(proxy, headers.clone(), target).await?;
            }
        }
        Ok(Relay {
            source,
            frames: Frames::default(),
            filter,
            heard: Instant::now(),
            last_id,
        })
    }

    /// Whether the backend streams.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.source, Source::Open(_))
    }

    /// Whether the backend has no such stream.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.source, Source::Absent)
    }

    /// Waits for the next frame that the client wants; `None`: the backend is to be asked anew. Dropping the future
    /// loses nothing.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.frames.next() {
                Ok(Some(frame)) if self.wants(&frame) => return Some(frame),
                Ok(Some(_)) => continue,
                Err(error) => {
                    tracing::warn!(id = %"event_left_out", %error, "an event of the backend's is left out of its stream");
                    continue;
                }
                Ok(None) => {}
            }
            let part = match &mut self.source {
                Source::Open(body) => timeout_at(self.heard + SILENCE, body.frame()).await,
                Source::Away => timeout_at(self.heard + SILENCE, std::future::pending()).await,
                Source::Absent => std::future::pending().await,
            };
            let part = part.ok()??.ok()?;
            self.heard = Instant::now();
            if let Some(bytes) = part.data_ref() {
                self.frames.push(bytes);
            }
        }
    }

    /// Whether the client gets a frame: only if it is of a type that it wants.
    fn wants(&mut self, frame: &Bytes) -> bool {
        if let Some(id) = field(frame, "id").last() {
            self.last_id = std::str::from_utf8(id).ok().map(str::to_owned);
        }
        let Some(data) = data(frame) else {
            return true;
        };
        let names = field(frame, "event").filter_map(|name| std::str::from_utf8(name).ok());
        let json = Json::parse(&data, REPLY_DEPTH).ok();
        let inside = json.map_or([None; 2], |json| json.pick_exact(["type", "event"]));
        let inside = inside.map(|name| name.and_then(|name| name.text()));
        let names = names.chain(inside.iter().flatten().map(|name| &**name));
        self.filter.wants_type(names)
    }
}

/// A frame as it may be shown: without mirrors and subqueues.
pub(super) fn shown_frame(sidecar: &Sidecar, frame: Bytes) -> Bytes {
    let hidden = data(&frame).and_then(|data| mirror::hide_all(&data));
    let frame = match hidden {
        Some(data) => with_data(&frame, &data),
        None => frame,
    };
    if !sidecar.subqueues.any() {
        return frame;
    }
    let kind = ReplyKind {
        is_stream: true,
        ..ReplyKind::default()
    };
    names::changed(&frame, kind, &sidecar.subqueues).map_or(frame, Bytes::from)
}

/// Whether the head of a reply says that events follow which can be read: packed ones pass as they are, or not at all.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return false;
    }
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// The headers with which the backend is asked.
fn asking(sent: &HeaderMap, last_id: Option<&str>) -> HeaderMap {
    let mut headers = sent.clone();
    // What is read must not come packed.
    headers.insert(header::ACCEPT_ENCODING, IDENTITY);
    for name in [
        header::UPGRADE,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
    ] {
        headers.remove(name);
    }
    let accept = HeaderValue::from_static("text/event-stream");
    headers.insert(header::ACCEPT, accept);
    match last_id.map(HeaderValue::try_from) {
        Some(Ok(last)) => headers.insert("last-event-id", last),
        _ => headers.remove("last-event-id"),
    };
    headers
}

/// Asks the backend for its stream at one place.
///
/// # Errors
/// It does not let this client in: its answer.
async fn open_stream(
    proxy: &Proxy,
    headers: HeaderMap,
    target: Path,
) -> Result<Source, Response<ReplyBody>> {
    let mut request = Request::new(Bytes::new().into());
    *request.method_mut() = Method::GET;
    *request.headers_mut() = headers;
    let Ok(target) = target.into_uri() else {
        return Ok(Source::Absent);
    };
    *request.uri_mut() = target;
    let Ok(Ok(reply)) = timeout(PATIENCE, proxy.upstream.send(Box::new(request))).await else {
        return Ok(Source::Away);
    };
    match reply.status() {
        StatusCode::OK if is_stream(reply.headers()) => {
            Ok(Source::Open(Box::new(reply.into_body())))
        }
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(reply),
        // To a page that asks for a login.
        status if status.is_redirection() => Err(reply),
        StatusCode::NOT_IMPLEMENTED => Ok(Source::Absent),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Ok(Source::Away),
        status if status.is_server_error() => Ok(Source::Away),
        // The same request would be answered in the same way again.
        _ => Ok(Source::Absent),
    }
}
