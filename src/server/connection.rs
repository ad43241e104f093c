//! One connection, from its handshake to its end.

use std::convert::Infallible;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::DerefMut;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::request::Parts;
use http::uri::Scheme;
use http::{Method, Request, Response, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::bounds::ListenerBounds;
use super::io::Guarded;
use super::requests::Listening;
use super::watchdog::{Flags, GivenPart, OnEnd, Watchdog};
use super::{forwarded, rules};
use ojs_answers::body::{Body, BodyError, Tunnel};
use ojs_answers::load::{BearsAdminName, Service};
use ojs_answers::respond::{self, Fault, Own};
use ojs_net::Stream;
use ojs_tls::{self as tls, PROTOCOLS};
use ojs_wire::ojs;
use ojs_wire::tick;
use ojs_wire::upstream::{HEADER_LINES, WakeGate};

/// The largest head of a request, in bytes. A larger one is answered 431.
const HEAD: usize = 32 * 1024;
/// The most bytes that one connection buffers; over HTTP/2 each of its requests and replies.
const BUFFER: usize = 64 * 1024;
/// The most bytes of a reply that are given at once over HTTP/2: the usual size of a frame.
const FRAME: usize = 16 * 1024;
/// The most requests at once on a connection over HTTP/2; more wait at the client.
const STREAMS: u32 = 128;

/// A connection whose requests are served.
struct ConnectionService<S> {
    shared: Arc<Listening<S>>,
    flags: Arc<Flags>,
    client: IpAddr,
    scheme: Scheme,
    /// The names in the certificate that the client showed.
    names: Vec<String>,
    /// What the connection is for after a reply that switched protocols.
    tunnel: Mutex<Option<Tunnel>>,
}

/// Serves one connection to its end.
pub(super) async fn connection<S: Service>(
    stream: Stream,
    peer: SocketAddr,
    shared: Arc<Listening<S>>,
    flags: Arc<Flags>,
) {
    let Some(stream) = secured(stream, peer, &shared, &flags).await else {
        return;
    };
    let limits = shared.limits;
    let agreed = stream.agreed();
    let speaks_h2 = agreed.and_then(|tls| tls.alpn_protocol()) == Some(PROTOCOLS[0]);
    let chain = agreed.and_then(|tls| tls.peer_certificates());
    let shown = chain.and_then(|chain| chain.first());
    flags.shows(chain.map(<[_]>::to_vec).unwrap_or_default());
    let here = Arc::new(ConnectionService {
        shared,
        flags: Arc::clone(&flags),
        client: peer.ip(),
        scheme: agreed.map_or(Scheme::HTTP, |_| Scheme::HTTPS),
        names: shown.map_or_else(Vec::new, |shown| tls::names(shown)),
        tunnel: Mutex::new(None),
    });
    let service = {
        let here = Arc::clone(&here);
        service_fn(move |request| Arc::clone(&here).answer(request))
    };
    let stream = TokioIo::new(Guarded::new(stream, Arc::clone(&flags)));
    if speaks_h2 {
        flags.multiplexes();
        let connection = Box::pin(http2().serve_connection(stream, service));
        // Every failure was answered or logged where it happened.
        let _ended = drive(connection, |it| it.graceful_shutdown(), limits, &flags).await;
        return;
    }
    {
        // The HTTP connection ends here, also when the tunnel failed to begin: such a tunnel waits for this end.
        let long = here.shared.long_heads.load(Ordering::Relaxed);
        let connection = http1(long).serve_connection(stream, service);
        let connection = pin!(connection.with_upgrades());
        let ended = drive(connection, |it| it.graceful_shutdown(), limits, &flags).await;
        if ended.is_err_and(|error| error.is_parse_too_large()) {
            here.shared.long_heads.store(true, Ordering::Relaxed);
        }
    }
    let tunnel = here.tunnel.lock().take();
    if let Some(tunnel) = tunnel {
        // The tunnel runs in this task, so it counts as a connection and ends with the others.
        carry(tunnel, &flags).await;
    }
}

/// The stream with TLS, where that is wanted. Its handshake must be as quick as a head, and a drain ends it.
async fn secured<S: Service>(
    stream: Stream,
    peer: SocketAddr,
    shared: &Listening<S>,
    flags: &Flags,
) -> Option<Stream> {
    let Some(tls) = shared.service.tls() else {
        return Some(stream);
    };
    // Boxed: it is large, and otherwise each connection would keep memory for it until its end.
    let mut handshake = Box::pin(timeout(shared.limits.header, stream.secured(tls.config())));
    let secured = std::future::poll_fn(|cx| {
        flags.register(cx.waker());
        match flags.draining() {
            true => Poll::Ready(None),
            false => handshake.as_mut().poll(cx).map(Some),
        }
    });
    let why = match secured.await? {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => error.to_string(),
        Err(late) => late.to_string(),
    };
    if shared.unsecured.now() {
        tracing::warn!(id = %"tls_refused", listen = %shared.listen, %peer, why, "a client connects without the TLS that this port wants");
    }
    None
}

/// Serves requests until the connection ends, its time is up, or the listener drains.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<impl DerefMut<Target = C>>,
    end: impl Fn(Pin<&mut C>),
    limits: ListenerBounds,
    flags: &Flags,
) -> hyper::Result<()> {
    let mut watchdog = Watchdog::new(limits);
    let mut ending = false;
    let mut waker: Option<Waker> = None;
    std::future::poll_fn(|cx| {
        // A spawned task has one waker for life.
        let waker = waker.get_or_insert_with(|| {
            flags.register(cx.waker());
            // Over HTTP/2 each request is a task of its own: a wake that it holds back would be missed here.
            match flags.is_multiplexed() {
                true => cx.waker().clone(),
                false => WakeGate::before(cx.waker()),
            }
        });
        let cx = &mut Context::from_waker(waker);
        tick::within(|| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            // Not before: what has come by now is answered.
            if flags.draining() && !mem::replace(&mut ending, true) {
                end(connection.as_mut());
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
            }
            watchdog.poll(flags, cx).map(Ok)
        })
    })
    .await
}

impl<S: Service> ConnectionService<S> {
    /// Answers one request.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Tracked>, Infallible>> + Send + use<S> {
        let (head, body) = request.into_parts();
        let mut head = Box::new(head);
        let nth = self
            .flags
            .begin(match self.shared.service.stops_with_client() {
                true => OnEnd::Stop,
                false => on_end(&head),
            });
        let busy = Busy {
            flags: Arc::clone(&self.flags),
            nth,
            given: None,
        };
        let plain_json = self.shared.service.wants_plain_json(&head);
        let has_body = !body.is_end_stream();
        async move {
            if self.flags.is_given_up() {
                // The connection ends, and this with it.
                std::future::pending::<()>().await;
            }
            let service = &self.shared.service;
            let mut reply = match self.prepare(&mut head) {
                Ok(()) => self.shared.traced(head, body).await,
                Err(fault) => fault.reply(respond::request_id(&head.headers)),
            };
            service.leaving(&mut reply);
            if has_body && reply.extensions().get::<Own>().is_some() {
                // hyper sees whether the body was left unread, and says so: the connection ends.
                tokio::task::yield_now().await;
            }
            if reply.body().size_hint().exact().is_none() {
                self.flags.streams();
            }
            if plain_json {
                service.make_plain(&mut reply);
            }
            if let Some(begun) = reply.body_mut().take_tunnel() {
                *self.tunnel.lock() = Some(begun);
            }
            self.flags.leaves(reply.headers_mut());
            Ok(reply.map(|body| Tracked {
                body,
                rest: Bytes::new(),
                busy,
            }))
        }
    }

    /// Has the head say what the connection knows.
    fn prepare(&self, head: &mut Parts) -> Result<(), Fault> {
        if head.version == Version::HTTP_2 {
            rules::as_http1(head)?;
        }
        if self.shared.limits.adds_forwarded {
            forwarded::add(&mut head.headers, self.client, &self.scheme);
        }
        // The listener's names may have changed since the connection began.
        if !self.names.is_empty()
            && let Some(tls) = self.shared.service.tls()
            && self
                .names
                .iter()
                .any(|name| tls.admin_names().contains(name))
        {
            head.extensions.insert(BearsAdminName);
        }
        Ok(())
    }
}

/// What becomes of a request if its client ends its half of the connection. Whoever asks for work or waits for room
/// may be gone, and hyper cannot tell: those requests end there.
fn on_end(head: &Parts) -> OnEnd {
    let path = head.uri.path();
    let stores = matches!(path, "/ojs/v1/jobs" | "/ojs/v1/jobs/batch")
        && !head.headers.contains_key(ojs::BLOCK_TIMEOUT);
    match head.method != Method::POST || stores || ojs::is_urgent(path) {
        true => OnEnd::Finish,
        false => OnEnd::Stop,
    }
}

/// HTTP/2 for clients, which TLS lets them choose.
fn http2() -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD as u32)
        .initial_stream_window_size(BUFFER as u32)
        .max_send_buf_size(BUFFER);
    http
}

/// HTTP/1.1 for clients, of whom some have `long` heads.
fn http1(long: bool) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Our watchdog does this: hyper would set and unset a timer for each request.
    http.header_read_timeout(None)
        .half_close(false)
        .max_header_size(HEAD)
        .max_buf_size(BUFFER);
    if long {
        http.max_headers(HEADER_LINES);
    }
    http
}

/// Runs a tunnel until it ends or the server drains.
async fn carry(mut tunnel: Tunnel, flags: &Flags) {
    flags.no_more_http();
    std::future::poll_fn(|cx| match flags.draining() {
        true => Poll::Ready(()),
        false => tunnel.as_mut().poll(cx),
    })
    .await;
}

/// A request in progress, from its head to the last byte of its reply.
struct Busy {
    flags: Arc<Flags>,
    /// Which request of the connection it is.
    nth: u32,
    /// The part of the reply that the client is to take before it gets more.
    given: Option<GivenPart>,
}

impl Busy {
    /// The client took what it was given.
    fn is_taken(&mut self) {
        if let Some(part) = self.given.take() {
            self.flags.is_taken(&part);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_taken();
        self.flags.end();
    }
}

/// A reply's body that marks its connection as free when it is dropped.
struct Tracked {
    body: Body,
    /// What is left of its last frame.
    rest: Bytes,
    busy: Busy,
}

impl Tracked {
    /// Over HTTP/2 a reply goes in parts, and hyper asks for the next one when the client has room for it.
    fn part(&mut self, mut bytes: Bytes) -> Frame<Bytes> {
        self.rest = bytes.split_off(bytes.len().min(FRAME));
        if !self.is_end_stream() {
            let part = *self.busy.given.insert((Instant::now(), self.busy.nth));
            self.busy.flags.gives(part);
        }
        Frame::data(bytes)
    }
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.busy.flags.is_half_closed() {
            // It may arrive nowhere, so it is kept for who asks again.
            this.body.forget_watch();
        }
        this.busy.is_taken();
        let rest = mem::take(&mut this.rest);
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(this.part(rest))));
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if !this.busy.flags.is_multiplexed() {
            return polled;
        }
        polled.map_ok(|frame| match frame.into_data() {
            Ok(bytes) => this.part(bytes),
            Err(trailers) => trailers,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // It is asked for with the head.
        self.body.size_hint()
    }
}
