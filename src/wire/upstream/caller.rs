//! Makes calls: cleans their heads, waits for the reply, and makes one again only if nothing of it was written.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use memchr::memmem;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::base_url::BaseUrl;
use super::body::{NotCollected, RequestBody, RequestLeft, collect};
use super::call::{Call, CallBounds, ECHO, FEW_HEADER_LINES, HEADER_LINES, IDENTITY, Reply};
use super::coding;
use super::error::{NO_HTTP, NO_HTTP_OF_CALL, SendError, UpstreamError, unsendable, whole};
use super::gate::at_once;
use super::headers::{SpecialHeaders, says_length, strip_hop_by_hop, wants_websocket};
use super::link::{BUFFER as HEAD, ExchangeFailure, HttpLink, Patience};
use super::outage::Outage;
use super::pool::{CalledByName, ConnectionPool};
use super::reply_body::ReplyBody;
use super::target::{BadTarget, Target};
use crate::boxed::boxed;
use crate::tick;
use crate::traces;
use ojs_net::Net;

/// What a reply that crosses says in `Via`.
const VIA: HeaderValue = HeaderValue::from_static("1.1 ojs-throttle");

/// A reply whose body comes later, and when the request began on the connection that answered.
type BegunReply = (Response<ReplyBody>, Instant);

/// One thread's connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream(Arc<ConnectionPool>);

impl Upstream {
    /// Calls `target`. Nothing is opened before the first request.
    pub fn new(target: Target, net: Net, limits: CallBounds) -> Upstream {
        Upstream(Arc::new(ConnectionPool {
            target,
            called: None,
            net,
            limits,
            via: None,
            idle: Mutex::default(),
            outage: Some(Arc::default()),
            long_heads: Arc::default(),
        }))
    }

    /// Says nothing in the log of whether it answers.
    pub fn untold(mut self) -> Upstream {
        if let Some(pool) = Arc::get_mut(&mut self.0) {
            pool.outage = None;
        }
        self
    }

    /// Calls the service of a way out and no backend: the log says so, and no path of a call is in a trace.
    pub fn of_egress(mut self, name: Arc<str>) -> Upstream {
        if let Some(pool) = Arc::get_mut(&mut self.0) {
            pool.outage = Some(Arc::new(Outage::of_egress(name)));
        }
        self
    }

    /// Whether it calls the service of a way out.
    fn is_egress(&self) -> bool {
        let outage = self.0.outage.as_ref();
        outage.is_some_and(|outage| outage.egress().is_some())
    }

    /// Opens a connection as for a request, and ends it.
    ///
    /// # Errors
    /// There is none.
    pub fn reach(&self) -> Pin<Box<dyn Future<Output = Result<(), UpstreamError>> + Send + '_>> {
        boxed(|| async move { self.0.connect().await.map(drop) })
    }

    /// Calls this backend from another thread, with connections of its own.
    pub fn another(&self) -> Upstream {
        self.like(self.0.target.clone(), None, self.0.via.clone())
    }

    /// Calls the host at `url`, which calls name, as this service is called; over the same TLS if it speaks it.
    ///
    /// # Errors
    /// No certificate can bear the name.
    pub fn at(&self, url: BaseUrl, called: CalledByName) -> Result<Upstream, BadTarget> {
        let target = self.0.target.at(url)?;
        Ok(self.like(target, Some(called), self.0.via.clone()))
    }

    /// Says in each message that it came through a proxy, in requests under this name (RFC 9110, 7.6.3): by that a
    /// request is known that comes round again.
    pub fn via(&self, name: &str) -> Upstream {
        // What can stand in no header is no name.
        let via = HeaderValue::try_from(format!("1.1 {name}")).ok();
        self.like(self.0.target.clone(), None, via)
    }

    fn like(
        &self,
        target: Target,
        called: Option<CalledByName>,
        via: Option<HeaderValue>,
    ) -> Upstream {
        let ConnectionPool {
            net,
            limits,
            outage,
            long_heads,
            ..
        } = &*self.0;
        Upstream(Arc::new(ConnectionPool {
            target,
            called,
            net: net.clone(),
            limits: *limits,
            via,
            idle: Mutex::default(),
            outage: outage.clone(),
            long_heads: Arc::clone(long_heads),
        }))
    }

    /// Whether a request with these headers came from here, and has come round.
    pub fn has_sent(&self, headers: &HeaderMap) -> bool {
        let Some(via) = &self.0.via else {
            return false;
        };
        let mut lines = headers.get_all(header::VIA).iter();
        lines.any(|line| memmem::find(line.as_bytes(), via.as_bytes()).is_some())
    }

    /// Whether the backend is away, as of the last [`Upstream::end_outage_if_over`]: a request of any thread got no answer, and
    /// since then none was answered or others failed within the last 5 s. Of a service: since then none was answered.
    pub fn is_away(&self) -> bool {
        self.0.outage.as_ref().is_some_and(|outage| outage.is_on())
    }

    /// Ends an outage that is over, with a line in the log; nothing else ends one of the backend. Returns `true` if it goes
    /// on and nobody has asked within the last 5 s.
    pub fn end_outage_if_over(&self) -> bool {
        let outage = self.0.outage.as_ref();
        outage.is_some_and(|outage| outage.end_if_over())
    }

    /// The backend's address.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// Sends a request and reads the whole reply. A call whose idle connection was closed before anything was written
    /// is sent on another one; nothing else is repeated.
    ///
    /// # Errors
    /// See [`UpstreamError`]: each variant says what the backend may have done.
    pub fn call(
        &self,
        call: Call,
    ) -> Pin<Box<dyn Future<Output = Result<Reply, UpstreamError>> + Send + '_>> {
        let time = call.timeout;
        let most = call.body.len().saturating_mul(ECHO);
        let most = most.max(self.0.limits.reply);
        let request = self.request(call);
        // Boxed, so that the futures of callers stay small.
        boxed(|| async move {
            let answer = match request {
                Ok(request) => self.call_whole(request, time, most).await,
                Err(error) => Err(error),
            };
            self.note(answer.as_ref().err());
            answer
        })
    }

    async fn call_whole(
        &self,
        request: Box<Request<RequestBody>>,
        time: Duration,
        most: usize,
    ) -> Result<Reply, UpstreamError> {
        let answered = self.exchange(request, time).await;
        let (reply, since) = answered.map_err(|error| match error {
            SendError::Backend(error) => error,
            // A whole body neither breaks off nor stalls.
            SendError::Broken | SendError::Stalled(_) => UpstreamError::Lost(error.to_string()),
        })?;
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = "it switched protocols unasked".to_owned();
            return Err(UpstreamError::Lost(why));
        }
        let (parts, body) = reply.into_parts();
        let (status, mut headers) = (parts.status, parts.headers);
        let body = self.read(body, since, time, most).await?;
        let body = coding::unpack(&mut headers, body, most).await?;
        Ok(Reply {
            status,
            headers,
            body,
        })
    }

    async fn exchange(
        &self,
        request: Box<Request<RequestBody>>,
        time: Duration,
    ) -> Result<BegunReply, SendError> {
        let path = (!self.is_egress()).then(|| request.uri().path());
        let span = traces::upstream(request.method(), self.0.target.host(), path);
        let exchange = pin!(self.exchange_once(request, time));
        let answer = traces::within(&span, exchange).await;
        match &answer {
            Ok((reply, _)) => traces::answered(&span, reply.status()),
            Err(SendError::Backend(error)) => traces::failed(&span, error),
            Err(SendError::Broken | SendError::Stalled(_)) => {}
        }
        answer
    }

    /// Sends a request on an idle connection, or on a new one, and waits at most `time` for the head of the reply.
    /// The request is only sent again when nothing of it was written.
    async fn exchange_once(
        &self,
        mut request: Box<Request<RequestBody>>,
        time: Duration,
    ) -> Result<BegunReply, SendError> {
        let progress = request.body().progress();
        let mut since = tick::now();
        let mut idle = self.0.pop(since);
        loop {
            let (mut link, fresh) = match idle.take() {
                Some(link) => (link, false),
                // Boxed: it is rare and large, and every request in progress would have room for it.
                None => (Box::pin(self.0.connect()).await?, true),
            };
            if fresh {
                since = Instant::now();
            }
            let stall = self.0.limits.body;
            let patience = Patience {
                time,
                body: stall,
                since,
                progress: progress.clone(),
            };
            RequestLeft::begin(&request);
            match link.exchange(request, patience).await {
                Ok(head) => return Ok((self.streamed(head, link), since)),
                Err(ExchangeFailure::Unwritten(again, error)) => {
                    RequestLeft::undo(&again);
                    if fresh {
                        return Err(UpstreamError::Unreachable(whole(&error)).into());
                    }
                    request = again;
                    idle = self.0.pop(since);
                }
                Err(ExchangeFailure::Broken(Some(error))) if error.is_user() => {
                    return Err(SendError::Broken);
                }
                Err(ExchangeFailure::Broken(error)) => return Err(self.broken(error).into()),
                Err(ExchangeFailure::Stalled) => return Err(SendError::Stalled(stall)),
                Err(ExchangeFailure::Late) => return Err(UpstreamError::Timeout(time).into()),
            }
        }
    }

    /// Sends a request and returns the head of its reply; bodies stream both ways. Both heads are cleaned of
    /// hop-by-hop headers, and `Host` becomes the backend's, unless it names the service of a call. A request for
    /// another protocol keeps its `Upgrade`; see [`ReplyBody`] for its reply.
    ///
    /// # Errors
    /// The backend gave no head of a reply, or the client's body broke off or stalled.
    pub fn send(
        &self,
        request: Box<Request<RequestBody>>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, SendError>> + Send + '_>> {
        boxed(|| async move {
            let answer = self.stream(request).await;
            match &answer {
                Ok(_) => self.note(None),
                Err(SendError::Backend(error)) => self.note(Some(error)),
                Err(SendError::Broken | SendError::Stalled(_)) => {}
            }
            answer
        })
    }

    async fn stream(
        &self,
        mut request: Box<Request<RequestBody>>,
    ) -> Result<Response<ReplyBody>, SendError> {
        let seen = SpecialHeaders::of(request.headers());
        let websocket = seen.upgrade && wants_websocket(request.headers());
        self.clean(&mut request, seen)?;
        if websocket {
            let headers = request.headers_mut();
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        // Of a GET the library below leaves out a body of unknown length, unless the head says how it comes.
        if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
            let chunked = HeaderValue::from_static("chunked");
            let headers = request.headers_mut();
            headers.insert(header::TRANSFER_ENCODING, chunked);
        }
        let progress = request.body().progress();
        let (mut reply, _) = self.exchange(request, self.0.limits.head).await?;
        if progress.is_some_and(|sent| !sent.ended.load(Ordering::Relaxed)) {
            // What the client still sends is not read as a request.
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(reply)
    }

    /// Notes whether there was an answer.
    fn note(&self, error: Option<&UpstreamError>) {
        let Some(outage) = &self.0.outage else { return };
        match error {
            Some(UpstreamError::TooLarge(_) | UpstreamError::Unreadable(_)) => {}
            Some(error) if error.is_refused() => {}
            Some(error) => outage.failed(error),
            None => outage.answered(),
        }
    }

    /// A call as a request.
    fn request(&self, call: Call) -> Result<Box<Request<RequestBody>>, UpstreamError> {
        let target = call.target.into_uri().map_err(unsendable)?;
        let length = call.body.len();
        let mut request = Box::new(Request::new(RequestBody::from(call.body)));
        *request.method_mut() = call.method;
        *request.uri_mut() = target;
        *request.headers_mut() = call.headers;
        let seen = SpecialHeaders::of(request.headers());
        self.clean(&mut request, seen)?;
        let stores = matches!(
            *request.method(),
            Method::POST | Method::PUT | Method::PATCH
        );
        let headers = request.headers_mut();
        // A reply that we read shall not be compressed.
        headers.insert(header::ACCEPT_ENCODING, IDENTITY);
        // A correct length from the client stays: hyper would make the same one anew.
        let fits = seen.content_length && says_length(headers, length);
        if seen.content_length && !fits {
            headers.remove(header::CONTENT_LENGTH);
        }
        // Some servers answer a POST without any length with 411.
        if length == 0 && stores && !fits {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(request)
    }

    /// Rewrites a head for the backend: its request line and `Host`, without the headers that were meant for the
    /// client's connection.
    fn clean(
        &self,
        request: &mut Request<RequestBody>,
        seen: SpecialHeaders,
    ) -> Result<(), UpstreamError> {
        let asked = std::mem::take(request.uri_mut());
        // A call by a whole URL has the base path in it, and names the service by itself, which may be signed.
        let is_whole = self.is_egress() && asked.authority().is_some();
        let is_named = self.0.called.is_some() || is_whole;
        *request.uri_mut() = (self.0.target.line(asked, is_whole)).map_err(unsendable)?;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        if seen.hop_by_hop {
            strip_hop_by_hop(headers);
        }
        if seen.expect {
            // Already answered on the client's connection, when its body was first read.
            headers.remove(header::EXPECT);
        }
        let host = self.0.target.authority();
        // Replaced in place, because inserting could grow the map first.
        match headers.get_mut(header::HOST) {
            Some(_) if is_named => {}
            Some(theirs) => *theirs = host,
            None => drop(headers.insert(header::HOST, host)),
        }
        if let Some(via) = &self.0.via {
            headers.append(header::VIA, via.clone());
        }
        Ok(())
    }

    /// Why a connection broke within an exchange.
    fn broken(&self, error: Option<hyper::Error>) -> UpstreamError {
        let Some(error) = error else {
            return UpstreamError::Lost("the connection ended".to_owned());
        };
        if error.is_parse_too_large() {
            let later = format!("; those of later replies may have {HEADER_LINES} lines");
            let (most, more) = match self.0.long_heads.swap(true, Ordering::Relaxed) {
                true => (HEADER_LINES, ""),
                false => (FEW_HEADER_LINES, &*later),
            };
            let why = format!("its head has more than {most} lines or {HEAD} bytes{more}");
            return UpstreamError::Lost(why);
        }
        let why = whole(&error);
        // What has a version of HTTP is HTTP, whatever is wrong behind it.
        let is_no_http = error.is_parse() && why.starts_with("invalid HTTP version");
        let hint = match is_no_http && self.0.target.tls().is_none() {
            true if self.0.called.is_some() => NO_HTTP_OF_CALL,
            true => NO_HTTP,
            false => "",
        };
        UpstreamError::Lost(format!("{why}{hint}"))
    }

    /// Makes a reply whose body is streamed.
    fn streamed(&self, head: Response<Incoming>, link: Box<HttpLink>) -> Response<ReplyBody> {
        let mut reply = head.map(|body| ReplyBody::new(body, link, Arc::clone(&self.0)));
        *reply.version_mut() = Version::HTTP_11;
        if self.0.via.is_some() {
            reply.headers_mut().append(header::VIA, VIA);
        }
        if reply.status() != StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_by_hop(reply.headers_mut());
            reply.body_mut().release_at_end();
        }
        reply
    }

    /// Reads the whole body of a reply, of at most `cap` bytes, for a call that began at `since` and may take `time`.
    async fn read(
        &self,
        body: ReplyBody,
        since: Instant,
        time: Duration,
        cap: usize,
    ) -> Result<Bytes, UpstreamError> {
        let mut whole = pin!(collect(body, cap, |_| true));
        // Most bodies have come with their heads, and need no timer.
        let body = match at_once(whole.as_mut()).await {
            Poll::Ready(body) => body,
            Poll::Pending => match Box::pin(timeout_at(since + time, whole)).await {
                Ok(body) => body,
                Err(_) => return Err(UpstreamError::Timeout(time)),
            },
        };
        body.map_err(|error| match error {
            NotCollected::TooLarge | NotCollected::NoRoom => UpstreamError::TooLarge(cap),
            NotCollected::Broken(error) => UpstreamError::Lost(error.to_string()),
        })
    }
}
