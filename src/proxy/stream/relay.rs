//! The backend's own events, as part of a stream of ours: asked for with the client's request, passed on
//! frame by frame, and asked for again when they break off.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::super::{Proxy, REPLY_DEPTH, mirror};
use crate::events::frames::{data, field, with_data};
use crate::events::{Channel, Filter, Frames};
use crate::json::Json;
use crate::ojs;
use crate::upstream::{Path, ReplyBody};

/// How long the backend may take to begin a stream. The client's own begins meanwhile at the latest.
const PATIENCE: Duration = Duration::from_secs(3);
/// From the first end of the backend's stream to the next attempt; it doubles with each.
const SOON: Duration = Duration::from_millis(500);
/// The longest time between attempts.
const LATE: Duration = Duration::from_secs(30);
/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(5);
/// Backends say every 15 s that they are alive (real-time text, 2.4). One that is silent for so long may have
/// vanished without a word, and the client would not notice: it hears our own signs of life.
const SILENCE: Duration = Duration::from_secs(60);

/// What came of asking the backend.
pub(super) enum Begun {
    /// It streams.
    Open(Box<ReplyBody>),
    /// It has no such stream.
    Absent,
    /// It will be asked again.
    Later,
    /// It does not let this client in: its answer.
    Refused(Response<ReplyBody>),
}

/// Why nothing more comes from the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// There is nothing more to be had.
    Over,
    /// The client is not let in any more.
    Refused,
}

/// What comes from the backend.
pub(super) struct Relayed {
    /// A frame, fit to be shown; `None`: one that the client does not want, or the stream has begun.
    pub(super) frame: Option<Bytes>,
    /// The backend's last id so far.
    pub(super) last_id: Option<String>,
}

/// How a stream of the backend's ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    InOrder,
    Broken,
    Silent,
}

/// Where a backend may have its events.
struct BackendStream {
    target: Path,
    /// Whether a clean end is the end: those of one job end with the job.
    ends: bool,
}

/// The backend's side of one stream.
pub(super) struct Relay {
    proxy: Proxy,
    headers: HeaderMap,
    /// Those that the backend is not known to lack; the last is asked first.
    sources: Vec<BackendStream>,
    filter: Filter,
    /// The backend's last id that the client has, or had when it came.
    last_id: Option<String>,
    /// Whether the backend has streamed.
    streamed: bool,
    /// The time before the next attempt.
    wait: Duration,
}

impl Relay {
    /// The backend's side of the stream that a request asks for. Nothing is sent yet. `last_id`: the backend's
    /// last id that the client has.
    pub(super) fn new(
        proxy: Proxy,
        parts: &Parts,
        filter: Filter,
        last_id: Option<String>,
    ) -> Relay {
        let mut headers = parts.headers.clone();
        // What is read must not come packed.
        for name in [
            header::ACCEPT_ENCODING,
            header::UPGRADE,
            header::CONTENT_LENGTH,
            header::TRANSFER_ENCODING,
        ] {
            headers.remove(name);
        }
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        let query = parts.uri.query().map(|query| format!("?{query}"));
        let query = query.unwrap_or_default();
        // Where real backends have theirs today.
        let other = match &filter.channel {
            Channel::Job(id) => Some(BackendStream {
                target: format!("/ojs/v1/jobs/{}/events{query}", ojs::encoded(id)).into(),
                ends: true,
            }),
            Channel::Queue(name) => Some(BackendStream {
                target: format!("/ojs/v1/queues/{}/events{query}", ojs::encoded(name)).into(),
                ends: false,
            }),
            Channel::All | Channel::Other(_) => None,
        };
        let same = BackendStream {
            target: proxy.target(&parts.uri),
            ends: false,
        };
        Relay {
            proxy,
            headers,
            sources: other.into_iter().chain([same]).collect(),
            filter,
            last_id,
            streamed: false,
            wait: SOON,
        }
    }

    /// Asks each source in turn until one is there.
    pub(super) async fn begin(&mut self) -> Begun {
        while let Some(source) = self.sources.last() {
            match self.ask(source).await {
                // One that has streamed is being changed, not missing.
                Begun::Absent if self.streamed => return Begun::Later,
                Begun::Absent => drop(self.sources.pop()),
                begun => return begun,
            }
        }
        Begun::Absent
    }

    /// Passes on what comes from the backend after it `begun` so, and asks it again when its stream breaks off.
    pub(super) async fn run(mut self, mut begun: Begun, to: mpsc::Sender<Relayed>) -> RelayEnd {
        loop {
            match begun {
                Begun::Absent => return RelayEnd::Over,
                Begun::Refused(_) => return RelayEnd::Refused,
                Begun::Later => self.pause().await,
                Begun::Open(body) => {
                    let since = Instant::now();
                    self.streamed = true;
                    self.tell(None, &to).await;
                    let end = self.pass(body, &to).await;
                    let is_whole = self.sources.last().is_some_and(|source| source.ends);
                    if is_whole && end == StreamEnd::InOrder {
                        return RelayEnd::Over;
                    }
                    // After silence at once: what is told meanwhile may be lost.
                    if end != StreamEnd::Silent {
                        if since.elapsed() >= GOOD {
                            self.wait = SOON;
                        }
                        self.pause().await;
                    }
                }
            }
            begun = self.begin().await;
        }
    }

    /// Makes one attempt at a source.
    async fn ask(&self, source: &BackendStream) -> Begun {
        let mut request = Request::new(Bytes::new().into());
        *request.method_mut() = Method::GET;
        *request.headers_mut() = self.headers.clone();
        let last = self.last_id.as_deref().map(HeaderValue::try_from);
        match last {
            Some(Ok(last)) => request.headers_mut().insert("last-event-id", last),
            _ => request.headers_mut().remove("last-event-id"),
        };
        let Ok(target) = source.target.clone().into_uri() else {
            return Begun::Absent;
        };
        *request.uri_mut() = target;
        match timeout(PATIENCE, self.proxy.upstream.send(Box::new(request))).await {
            Ok(Ok(reply)) => judged(reply),
            Ok(Err(_)) | Err(_) => Begun::Later,
        }
    }

    /// Passes on what a stream brings until it ends.
    async fn pass(&mut self, mut body: Box<ReplyBody>, to: &mpsc::Sender<Relayed>) -> StreamEnd {
        let mut frames = Frames::default();
        loop {
            match frames.next() {
                Ok(Some(frame)) => {
                    let shown = self.shown(frame);
                    self.tell(shown, to).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "an event of the backend's is left out of its stream");
                    continue;
                }
                Ok(None) => {}
            }
            match timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(part))) => {
                    if let Some(bytes) = part.data_ref() {
                        frames.push(bytes);
                    }
                }
                Ok(Some(Err(_))) => return StreamEnd::Broken,
                Ok(None) => return StreamEnd::InOrder,
                Err(_) => return StreamEnd::Silent,
            }
        }
    }

    async fn tell(&self, frame: Option<Bytes>, to: &mpsc::Sender<Relayed>) {
        let last_id = self.last_id.clone();
        // Who does not listen any more drops this too.
        let _heard = to.send(Relayed { frame, last_id }).await;
    }

    /// Waits before the next attempt.
    async fn pause(&mut self) {
        // Streams that ended together do not all come back together.
        let jitter = self.wait.mul_f64(rand::random_range(0.0..0.25));
        sleep(self.wait + jitter).await;
        self.wait = (self.wait * 2).min(LATE);
    }

    /// A frame as the client gets it: without mirrors, and only if it is of a type that it wants.
    fn shown(&mut self, frame: Bytes) -> Option<Bytes> {
        if let Some(id) = field(&frame, "id").last() {
            self.last_id = std::str::from_utf8(id).ok().map(str::to_owned);
        }
        let Some(data) = data(&frame) else {
            return Some(frame);
        };
        let names = field(&frame, "event").filter_map(|name| std::str::from_utf8(name).ok());
        let json = Json::parse(&data, REPLY_DEPTH).ok();
        let inside = json.map_or([None; 2], |json| json.pick_exact(["type", "event"]));
        let inside = inside.map(|name| name.and_then(|name| name.text()));
        let names = names.chain(inside.iter().flatten().map(|name| &**name));
        if !self.filter.wants_type(names) {
            return None;
        }
        Some(without_mirrors(frame))
    }
}

/// A frame as it may be shown.
pub(super) fn without_mirrors(frame: Bytes) -> Bytes {
    let hidden = data(&frame).and_then(|data| mirror::hide_all(&data));
    match hidden {
        Some(data) => with_data(&frame, &data),
        None => frame,
    }
}

/// Whether the head of a reply says that events follow.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// What a reply to an attempt means.
fn judged(reply: Response<ReplyBody>) -> Begun {
    match reply.status() {
        StatusCode::OK if is_stream(reply.headers()) => Begun::Open(Box::new(reply.into_body())),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Begun::Refused(reply),
        StatusCode::NOT_IMPLEMENTED => Begun::Absent,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Begun::Later,
        status if status.is_server_error() => Begun::Later,
        // The same request would be answered in the same way again.
        _ => Begun::Absent,
    }
}
