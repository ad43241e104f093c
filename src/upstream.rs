//! The way to the backend: idle connections kept per thread, heads cleaned on both sides, replies
//! read whole or streamed, and the one question that decides whether a call may be made again:
//! was it written?

mod body;
mod gate;
mod headers;
mod link;
mod target;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use tokio::time::timeout;

pub use body::{BodyError, NotCollected, ReplyBody, RequestBody, collect};
pub use gate::Gate;
pub use headers::{named_by_connection, strip_hop_by_hop};
pub use target::{BadTarget, Path, Target};

use crate::net::{Net, Stream};
use link::{Failure, Idle, Link, Patience};

/// One request whose body is known, and whose reply is read whole.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query, without the upstream's base path.
    pub target: Path,
    /// End-to-end headers; framing and hop-by-hop ones are ignored.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// From the first byte sent to the last byte read.
    pub timeout: Duration,
}

/// A reply read whole. Hop-by-hop and framing headers are gone.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The end-to-end headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// The backend did not answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No byte of the request left: it may be sent again.
    #[error("the backend cannot be reached: {0}")]
    Unreachable(String),
    /// The request may have been carried out; its reply did not come whole.
    #[error("the backend's reply was lost: {0}")]
    Lost(String),
    /// The request may have been carried out; its reply did not come in time.
    #[error("the backend did not answer within {0:?}")]
    Timeout(Duration),
    /// The reply is larger than we read.
    #[error("the backend's reply is larger than {0} bytes")]
    TooLarge(usize),
}

impl UpstreamError {
    /// Whether the backend may have carried the call out.
    pub fn in_doubt(&self) -> bool {
        !matches!(self, UpstreamError::Unreachable(_))
    }
}

/// A streamed request got no reply.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The backend did not answer.
    #[error(transparent)]
    Backend(#[from] UpstreamError),
    /// The client's body broke off; the backend saw a request that is not whole.
    #[error("the client's body did not come whole")]
    Broken,
    /// The client sent no more of its body for this long.
    #[error("the client sent nothing of its body for {0:?}")]
    Stalled(Duration),
}

/// Times and sizes on the way to the backend.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To open a connection, TLS included. Default 2 s.
    pub connect: Duration,
    /// How long a connection stays idle. Default 4 s: Node closes after 5 s, and closing first
    /// is what keeps a request from meeting a close.
    pub idle: Duration,
    /// From the last byte of a streamed request to the head of its reply. Default 30 s.
    pub head: Duration,
    /// The largest reply read whole, in bytes. Default 8 MiB.
    pub reply: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(2),
            idle: Duration::from_secs(4),
            head: Duration::from_secs(30),
            reply: 8 * 1024 * 1024,
        }
    }
}

/// A handle on one thread's connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    target: Target,
    net: Net,
    limits: Limits,
    idle: Mutex<Idle>,
    /// The last request got no answer.
    away: AtomicBool,
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upstream {
    /// The way to `target`. Nothing is opened before the first request.
    pub fn new(target: Target, net: Net, limits: Limits) -> Upstream {
        Upstream(Arc::new(Shared {
            target,
            net,
            limits,
            idle: Mutex::default(),
            away: AtomicBool::new(false),
        }))
    }

    /// Where it leads.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// Sends and reads whole. A call that found its idle connection closed before anything was
    /// written is sent once more on a new one; nothing else is repeated.
    ///
    /// # Errors
    /// See [`UpstreamError`]: each variant says what the backend may have done.
    pub async fn call(&self, call: Call) -> Result<Reply, UpstreamError> {
        let answer = self.call_whole(call).await;
        self.note(answer.as_ref().err());
        answer
    }

    async fn call_whole(&self, call: Call) -> Result<Reply, UpstreamError> {
        let patience = call.timeout;
        let mut request = self.request(call)?;
        let mut idle = self.pop();
        loop {
            let (mut link, fresh) = match idle.take() {
                Some(link) => (link, false),
                None => (self.connect_boxed().await?, true),
            };
            let whole = async {
                let head = link.exchange(request, None).await?;
                Ok(self.read(head, link).await)
            };
            match timeout(patience, whole).await {
                Err(_) => return Err(UpstreamError::Timeout(patience)),
                Ok(Ok(reply)) => return reply,
                Ok(Err(Failure::Unwritten(again, _))) if !fresh => request = *again,
                Ok(Err(failure)) => return Err(failed(failure)),
            }
        }
    }

    /// Sends a request and answers with the head of its reply; bodies stream both ways. Both
    /// heads are cleaned of what belongs to one connection, and `Host` becomes the backend's.
    /// A request for another protocol keeps its `Upgrade`; see [`ReplyBody`] for the reply to it.
    ///
    /// # Errors
    /// The backend gave no head of a reply, or the client's body broke off or stalled.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<ReplyBody>, SendError> {
        let answer = self.stream(request).await;
        match &answer {
            Ok(_) => self.note(None),
            Err(SendError::Backend(error)) => self.note(Some(error)),
            Err(SendError::Broken | SendError::Stalled(_)) => {}
        }
        answer
    }

    async fn stream(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ReplyBody>, SendError> {
        self.clean(&mut request)?;
        let time = self.0.limits.head;
        let progress = request.body().progress();
        let mut idle = self.pop();
        loop {
            let (mut link, fresh) = match idle.take() {
                Some(link) => (link, false),
                None => (self.connect_boxed().await?, true),
            };
            let patience = Patience {
                time,
                progress: progress.clone(),
            };
            match link.exchange(request, Some(patience)).await {
                Ok(head) => return Ok(self.streamed(head, link)),
                Err(Failure::Unwritten(again, _)) if !fresh => request = *again,
                Err(Failure::Broken(Some(error))) if error.is_user() => {
                    return Err(SendError::Broken);
                }
                Err(Failure::Stalled) => return Err(SendError::Stalled(time)),
                Err(Failure::Late) => return Err(UpstreamError::Timeout(time).into()),
                Err(failure) => return Err(failed(failure).into()),
            }
        }
    }

    /// Says once that the backend stopped answering, and once that it answers again: a line for each
    /// request would hide everything else just when it is needed.
    fn note(&self, error: Option<&UpstreamError>) {
        let away = &self.0.away;
        match error {
            Some(UpstreamError::TooLarge(_)) => {}
            Some(error) if !away.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "no answer from the backend; asking on");
            }
            Some(error) => tracing::debug!(%error, "no answer from the backend"),
            None if away.load(Ordering::Relaxed) => {
                away.store(false, Ordering::Relaxed);
                tracing::info!("the backend answers again");
            }
            None => {}
        }
    }

    /// A call as a request.
    fn request(&self, call: Call) -> Result<Request<RequestBody>, UpstreamError> {
        let target = call.target.into_uri().map_err(unsendable)?;
        let empty = call.body.is_empty();
        let mut request = Request::new(RequestBody::from(call.body));
        *request.method_mut() = call.method;
        *request.uri_mut() = target;
        *request.headers_mut() = call.headers;
        request.headers_mut().remove(header::CONTENT_LENGTH);
        request.headers_mut().remove(header::UPGRADE);
        // What is read must not come packed.
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        self.clean(&mut request)?;
        // A POST without any length is answered with 411 by some servers.
        if empty
            && matches!(
                *request.method(),
                Method::POST | Method::PUT | Method::PATCH
            )
        {
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(request)
    }

    /// Makes a head ours: the backend's request line and `Host`, and nothing that was meant for
    /// the connection it came on.
    fn clean(&self, request: &mut Request<RequestBody>) -> Result<(), UpstreamError> {
        let line = self.0.target.line(request.uri()).map_err(unsendable)?;
        *request.uri_mut() = line;
        *request.version_mut() = Version::HTTP_11;
        let websocket = wants_websocket(request.headers());
        let headers = request.headers_mut();
        strip_hop_by_hop(headers);
        if websocket {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        // Answered on the client's connection already, when its body was first asked for.
        headers.remove(header::EXPECT);
        headers.insert(header::HOST, self.0.target.authority());
        Ok(())
    }

    /// A connection that was idle.
    fn pop(&self) -> Option<Box<Link>> {
        self.0.idle().pop(self.0.limits.idle)
    }

    /// Takes a connection back.
    fn put(&self, link: Box<Link>) {
        if self.0.idle().push(link) {
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }

    /// [`Upstream::connect`] out of the way: it is rare and large, and every request in progress would
    /// have room for it.
    fn connect_boxed(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<Box<Link>, UpstreamError>> + Send + '_>> {
        Box::pin(self.connect())
    }

    /// Opens a connection.
    async fn connect(&self) -> Result<Box<Link>, UpstreamError> {
        let Shared {
            target,
            net,
            limits,
            ..
        } = &*self.0;
        let open = async {
            let stream = net.connect(target.host(), target.port()).await?;
            match (target.tls(), stream) {
                (Some(tls), Stream::Tcp(stream)) => {
                    let stream = tls.connector.connect(tls.name.clone(), stream).await?;
                    Ok(Stream::Tls(Box::new(stream)))
                }
                (_, stream) => Ok::<Stream, std::io::Error>(stream),
            }
        };
        match timeout(limits.connect, open).await {
            Ok(Ok(stream)) => Link::open(stream).await.map_err(unsendable),
            Ok(Err(error)) => Err(UpstreamError::Unreachable(format!("{target:?}: {error}"))),
            Err(_) => {
                let waited = limits.connect;
                Err(UpstreamError::Unreachable(format!(
                    "{target:?}: no connection within {waited:?}"
                )))
            }
        }
    }

    /// A reply whose body comes later.
    fn streamed(
        &self,
        head: Response<hyper::body::Incoming>,
        link: Box<Link>,
    ) -> Response<ReplyBody> {
        let mut reply = head.map(|body| ReplyBody::new(body, link, self.clone()));
        *reply.version_mut() = Version::HTTP_11;
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            return reply;
        }
        strip_hop_by_hop(reply.headers_mut());
        reply.map(ReplyBody::release_if_empty)
    }

    /// A reply read whole.
    async fn read(
        &self,
        head: Response<hyper::body::Incoming>,
        link: Box<Link>,
    ) -> Result<Reply, UpstreamError> {
        let cap = self.0.limits.reply;
        if head.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(UpstreamError::Lost(
                "it switched protocols unasked".to_owned(),
            ));
        }
        let (mut parts, body) = self.streamed(head, link).into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        let body = collect(body, cap).await.map_err(|error| match error {
            NotCollected::TooLarge => UpstreamError::TooLarge(cap),
            NotCollected::Broken(error) => UpstreamError::Lost(error.to_string()),
        })?;
        Ok(Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }
}

/// Closes connections that nobody came back for, until there are none.
async fn sweep(shared: Weak<Shared>) {
    let Some(idle) = shared.upgrade().map(|shared| shared.limits.idle) else {
        return;
    };
    loop {
        tokio::time::sleep(idle).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if !shared.idle().sweep(idle) {
            return;
        }
    }
}

/// Whether the client asks to go on in the WebSocket protocol; the other that is seen, Java's
/// `h2c`, is an offer that nobody need take.
pub fn wants_websocket(headers: &HeaderMap) -> bool {
    let protocol = headers.get(header::UPGRADE).map(HeaderValue::as_bytes);
    protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && named_by_connection(headers).any(|name| name == header::UPGRADE)
}

/// What cannot even be written.
fn unsendable(error: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::Unreachable(error.to_string())
}

fn failed(failure: Failure) -> UpstreamError {
    match failure {
        Failure::Unwritten(_, error) => UpstreamError::Unreachable(error.to_string()),
        Failure::Broken(Some(error)) => UpstreamError::Lost(error.to_string()),
        Failure::Broken(None) => UpstreamError::Lost("the connection ended".to_owned()),
        Failure::Late | Failure::Stalled => UpstreamError::Lost("it came too late".to_owned()),
    }
}
