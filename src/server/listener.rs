//! One listener: it accepts connections, serves each in a task of its own, and ends in order.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::Scheme;
use http::{Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::bounds::ListenerBounds;
use super::io::Guarded;
use super::watchdog::{Flags, OnEnd, Watchdog};
use super::{forwarded, rules};
use crate::net::{Listener, Stream};
use crate::ojs;
use crate::proxy::body::{Body, BodyError, Tunnel};
use crate::proxy::load::{Load, Seldom, Service, Urgency};
use crate::proxy::respond::{self, Fault};
use crate::tick;
use crate::traces;
use crate::upstream::{HEADER_LINES, WakeGate};

/// The largest head of a request, in bytes. A larger one is answered 431.
const HEAD: usize = 32 * 1024;
/// The most bytes that one connection buffers.
const BUFFER: usize = 64 * 1024;
/// The pause after a failed accept. A process without free file descriptors would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `listener` until `drain` is cancelled. Then it accepts nothing, closes idle connections, and returns when
/// the last request is answered. Dropping the future ends all connections at once.
pub async fn serve<S: Service>(
    mut listener: Listener,
    service: S,
    limits: ListenerBounds,
    drain: CancellationToken,
) {
    let load = service.load();
    let shared = Arc::new(Listening {
        service,
        limits,
        load: Arc::clone(&load),
        overloaded: Seldom::default(),
    });
    let full = Seldom::default();
    let mut connections = JoinSet::new();
    let mut flags = HashMap::new();
    let failing = Seldom::default();
    loop {
        tokio::select! {
            () = drain.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                flags.remove(&id);
                load.connections.store(connections.len(), Ordering::Relaxed);
            }
            accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                Ok((stream, peer)) => {
                    let flag = Arc::<Flags>::default();
                    let task = connections.spawn(connection(stream, peer, Arc::clone(&shared), Arc::clone(&flag)));
                    flags.insert(task.id(), flag);
                    load.connections.store(connections.len(), Ordering::Relaxed);
                    if connections.len() >= limits.connections && full.now() {
                        let open = connections.len();
                        tracing::warn!(id = %"connections_full", open, "as many connections as server.max_connections allows: more wait until some close");
                    }
                }
                Err(error) => {
                    if failing.now() {
                        tracing::warn!(id = %"accept_failed", %error, "cannot accept connections; trying on");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    flags.values().for_each(|flag| flag.drain());
    while connections.join_next().await.is_some() {
        load.connections.store(connections.len(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Listening<S> {
    service: S,
    limits: ListenerBounds,
    load: Arc<Load>,
    /// Limits the log line about requests that were refused because there were too many.
    overloaded: Seldom,
}

/// Serves one connection to its end.
async fn connection<S: Service>(
    stream: Stream,
    peer: SocketAddr,
    shared: Arc<Listening<S>>,
    flags: Arc<Flags>,
) {
    let limits = shared.limits;
    let tunnel = Mutex::new(None);
    let handler = service_fn(|request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let mut head = Box::new(head);
        flags.begin(on_end(&head));
        if limits.adds_forwarded {
            forwarded::add(&mut head.headers, peer.ip(), Scheme::HTTP);
        }
        let busy = Busy(Arc::clone(&flags));
        let shared = Arc::clone(&shared);
        let tunnel = &tunnel;
        let plain_json = shared.service.wants_plain_json(&head);
        async move {
            let mut reply = shared.traced(head, body).await;
            shared.service.leaving(&mut reply);
            if reply.body().size_hint().exact().is_none() {
                busy.0.streams();
            }
            if plain_json {
                shared.service.make_plain(&mut reply);
            }
            if let Some(begun) = reply.body_mut().take_tunnel() {
                *tunnel.lock() = Some(begun);
            }
            Ok::<_, Infallible>(reply.map(|body| Tracked { body, busy }))
        }
    });
    let stream = TokioIo::new(Guarded::new(stream, Arc::clone(&flags)));
    let connection = http().serve_connection(stream, handler).with_upgrades();
    {
        // The HTTP connection ends here, also when the tunnel failed to begin: such a tunnel waits for this end.
        let mut connection = pin!(connection);
        let mut watchdog = Watchdog::new(limits);
        let mut ending = false;
        let mut waker: Option<Waker> = None;
        std::future::poll_fn(|cx| {
            // A spawned task has one waker for life.
            let waker = waker.get_or_insert_with(|| {
                flags.register(cx.waker());
                WakeGate::before(cx.waker())
            });
            let cx = &mut Context::from_waker(waker);
            tick::within(|| {
                // The result does not matter: every failure was answered or logged where it happened.
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                // Not before: what has come by now is answered.
                if flags.draining() && !std::mem::replace(&mut ending, true) {
                    connection.as_mut().graceful_shutdown();
                    if connection.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                }
                watchdog.poll(&flags, cx)
            })
        })
        .await;
    }
    let tunnel = tunnel.lock().take();
    if let Some(tunnel) = tunnel {
        // The tunnel runs in this task, so it counts as a connection and ends with the others.
        carry(tunnel, &flags).await;
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

/// The HTTP settings for clients.
fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    // Our watchdog does this: hyper would set and unset a timer for each request.
    http.header_read_timeout(None)
        .half_close(false)
        .max_header_size(HEAD)
        .max_headers(HEADER_LINES)
        .max_buf_size(BUFFER);
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

impl<S: Service> Listening<S> {
    /// The answer, in a span of its own.
    async fn traced(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        let span = traces::request(&head);
        let answer = self.answer(head, body);
        let reply = answer.instrument(span.clone()).await;
        traces::answered(&span, reply.status());
        reply
    }

    async fn answer(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        if let Err(fault) = rules::check(&head) {
            return fault.reply(respond::request_id(&head.headers));
        }
        let urgency = self.service.urgency(&head);
        let places = match urgency {
            Urgency::Urgent => &self.load.urgent,
            Urgency::Ordinary => &self.load.ordinary,
        };
        let before = places.fetch_add(1, Ordering::Relaxed);
        let _place = RequestPlace(places);
        let taken = before + self.service.left_behind(urgency);
        if taken >= self.limits.in_flight {
            if self.overloaded.now() {
                tracing::warn!(
                    id = %"requests_full",
                    requests = taken,
                    "more requests at once than server.max_in_flight allows: answered 503 `overloaded`"
                );
            }
            return Fault::overloaded().reply(respond::request_id(&head.headers));
        }
        let mut answer = pin!(self.service.call(head, body));
        std::future::poll_fn(|cx| {
            // The request is not touched again after a panic, so nobody sees half-done state.
            match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                Ok(polled) => polled,
                Err(_) => Poll::Ready(Fault::internal().closing().reply(None)),
            }
        })
        .await
    }
}

/// One request in flight; dropping it frees the place.
struct RequestPlace<'a>(&'a AtomicUsize);

impl Drop for RequestPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in progress, from its head to the last byte of its reply.
struct Busy(Arc<Flags>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A reply's body that marks its connection as free when it is dropped.
struct Tracked {
    body: Body,
    busy: Busy,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.busy.0.is_half_closed() {
            // It may arrive nowhere, so it is kept for who asks again.
            this.body.forget_watch();
        }
        Pin::new(&mut this.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
