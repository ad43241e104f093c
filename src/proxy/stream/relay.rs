//! The backend's own events, as part of a stream of ours: asked for with the client's request, passed on
//! frame by frame, and asked for again when they break off.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

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

/// What the backend answered to the first attempt.
pub(super) enum Begun {
    /// It streams.
    Open,
    /// It has no such stream.
    Absent,
    /// It will be asked again.
    Later,
    /// It does not let this client in: its answer.
    Refused(Response<ReplyBody>),
}

/// What comes from the backend.
pub(super) enum Relayed {
    /// A frame, fit to be shown.
    Frame(Bytes),
    /// The client is not let in any more.
    Refused,
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
    /// Those that the backend is not known to lack; the first is used.
    sources: Vec<BackendStream>,
    filter: Filter,
    /// The backend's last id that the client has, or had when it came.
    last_id: Option<String>,
    /// That is sure to be one of the backend's.
    sure: bool,
    /// Whether the backend has streamed.
    streamed: bool,
    wait: Duration,
    state: RelayState,
}

enum RelayState {
    /// There is nothing to be had.
    Off,
    Waiting(Instant),
    Opening(Pin<Box<dyn Future<Output = Opened> + Send>>),
    Open {
        body: Box<ReplyBody>,
        frames: Frames,
        since: Instant,
        /// When anything came last.
        heard: Instant,
    },
}

/// How one attempt came out.
enum Opened {
    Stream(Box<ReplyBody>),
    Absent,
    Lost,
    Refused(Response<ReplyBody>),
}

impl Relay {
    /// The backend's side of the stream that a request asks for. Nothing is sent yet. `last`: the backend's
    /// last id that the client has, and whether it is sure to be one of the backend's.
    pub(super) fn new(
        proxy: Proxy,
        parts: &Parts,
        filter: Filter,
        last: Option<(String, bool)>,
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
        let mut sources = vec![BackendStream {
            target: proxy.target(&parts.uri),
            ends: false,
        }];
        // Where real backends have theirs today.
        match &filter.channel {
            Channel::Job(id) => sources.push(BackendStream {
                target: format!("/ojs/v1/jobs/{}/events{query}", ojs::encoded(id)).into(),
                ends: true,
            }),
            Channel::Queue(name) => sources.push(BackendStream {
                target: format!("/ojs/v1/queues/{}/events{query}", ojs::encoded(name)).into(),
                ends: false,
            }),
            Channel::All | Channel::Other(_) => {}
        }
        // The first is asked for first.
        sources.reverse();
        let (last_id, sure) = last.map_or((None, false), |(id, sure)| (Some(id), sure));
        Relay {
            proxy,
            headers,
            sources,
            filter,
            last_id,
            sure,
            streamed: false,
            wait: SOON,
            state: RelayState::Off,
        }
    }

    /// Makes the first attempt, at each source in turn.
    pub(super) async fn begin(&mut self) -> Begun {
        self.open();
        while let RelayState::Opening(attempt) = &mut self.state {
            let opened = attempt.await;
            if let Some(refused) = self.opened(opened) {
                return Begun::Refused(refused);
            }
        }
        match self.state {
            RelayState::Open { .. } => Begun::Open,
            RelayState::Waiting(_) | RelayState::Opening(_) => Begun::Later,
            RelayState::Off => Begun::Absent,
        }
    }

    /// The next frame, whenever it comes. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Relayed {
        loop {
            match &mut self.state {
                RelayState::Off => std::future::pending().await,
                RelayState::Waiting(until) => {
                    sleep_until(*until).await;
                    self.open();
                }
                RelayState::Opening(attempt) => {
                    let opened = attempt.await;
                    if self.opened(opened).is_some() {
                        return Relayed::Refused;
                    }
                }
                RelayState::Open {
                    body,
                    frames,
                    heard,
                    ..
                } => match frames.next() {
                    Ok(Some(frame)) => {
                        if let Some(frame) = self.shown(frame) {
                            return Relayed::Frame(frame);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "an event of the backend's is left out of its stream");
                    }
                    Ok(None) => match timeout_at(*heard + SILENCE, body.frame()).await {
                        Ok(Some(Ok(part))) => {
                            *heard = Instant::now();
                            if let Some(bytes) = part.data_ref() {
                                frames.push(bytes);
                            }
                        }
                        Ok(Some(Err(_))) => self.broke(),
                        Ok(None) => self.ended(),
                        // At once: what is told meanwhile may be lost.
                        Err(_) => self.open(),
                    },
                },
            }
        }
    }

    /// The backend's last id that the client has. One that may be ours counts once the backend has taken it.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id
            .as_deref()
            .filter(|_| self.sure || self.streamed)
    }

    /// Begins an attempt at the first source.
    fn open(&mut self) {
        let Some(source) = self.sources.last() else {
            self.state = RelayState::Off;
            return;
        };
        let mut request = Request::new(Bytes::new().into());
        *request.method_mut() = Method::GET;
        *request.headers_mut() = self.headers.clone();
        let last = self.last_id.as_deref().map(HeaderValue::try_from);
        match last {
            Some(Ok(last)) => request.headers_mut().insert("last-event-id", last),
            _ => request.headers_mut().remove("last-event-id"),
        };
        let Ok(target) = source.target.clone().into_uri() else {
            self.state = RelayState::Off;
            return;
        };
        *request.uri_mut() = target;
        let upstream = self.proxy.upstream.clone();
        self.state = RelayState::Opening(Box::pin(async move {
            match timeout(PATIENCE, upstream.send(Box::new(request))).await {
                Ok(Ok(reply)) => judged(reply),
                Ok(Err(_)) | Err(_) => Opened::Lost,
            }
        }));
    }

    /// Goes on after an attempt; returns the backend's answer if it refuses the client.
    fn opened(&mut self, opened: Opened) -> Option<Response<ReplyBody>> {
        match opened {
            Opened::Stream(body) => {
                self.streamed = true;
                let now = Instant::now();
                self.state = RelayState::Open {
                    body,
                    frames: Frames::default(),
                    since: now,
                    heard: now,
                };
            }
            // One that has streamed is being changed, not missing.
            Opened::Lost => self.later(),
            Opened::Absent if self.streamed => self.later(),
            Opened::Absent => {
                self.sources.pop();
                self.open();
            }
            Opened::Refused(reply) => {
                self.state = RelayState::Off;
                return Some(reply);
            }
        }
        None
    }

    /// The stream ended in order.
    fn ended(&mut self) {
        match self.sources.last() {
            Some(source) if source.ends => self.state = RelayState::Off,
            _ => self.broke(),
        }
    }

    fn broke(&mut self) {
        if let RelayState::Open { since, .. } = &self.state
            && since.elapsed() >= GOOD
        {
            self.wait = SOON;
        }
        self.later();
    }

    fn later(&mut self) {
        // Streams that ended together do not all come back together.
        let jitter = self.wait.mul_f64(rand::random_range(0.0..0.25));
        self.state = RelayState::Waiting(Instant::now() + self.wait + jitter);
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
        let inside: Vec<_> = inside
            .into_iter()
            .flatten()
            .filter_map(|name| name.text())
            .collect();
        let names = names.chain(inside.iter().map(|name| &**name));
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
fn judged(reply: Response<ReplyBody>) -> Opened {
    match reply.status() {
        StatusCode::OK if is_stream(reply.headers()) => Opened::Stream(Box::new(reply.into_body())),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Opened::Refused(reply),
        StatusCode::NOT_IMPLEMENTED => Opened::Absent,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Opened::Lost,
        status if status.is_server_error() => Opened::Lost,
        // The same request would be answered in the same way again.
        _ => Opened::Absent,
    }
}
