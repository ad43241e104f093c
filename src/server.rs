//! The listener: connections in, one task each, requests to a [`Service`], and an orderly end.

mod io;
mod rules;
mod watchdog;

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::net::{Listener, Stream};
use crate::proxy::body::{Body, BodyError, Tunnel};
use crate::proxy::load::{Load, Seldom};
use crate::proxy::respond::{self, Fault};
use crate::tick;
use crate::upstream::Gate;
use io::Guarded;
use watchdog::{Flags, Watchdog};

/// The largest head of a request, in bytes (431).
const HEAD: usize = 32 * 1024;
/// What one connection may buffer, in bytes.
const BUFFER: usize = 64 * 1024;
/// The pause after an accept that failed: without file descriptors it fails again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What answers requests. One clone serves all connections of a listener.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. The future is dropped when the client hangs up. The head comes in a box,
    /// because each layer that it goes through would copy it.
    fn call(&self, head: Box<Parts>, body: Incoming)
    -> impl Future<Output = Response<Body>> + Send;

    /// Whether a request ends or keeps what was begun. Such requests have places of their own, which no
    /// others take.
    fn is_urgent(&self, _head: &Parts) -> bool {
        false
    }

    /// How many requests, of the urgent or of the others, are still being worked on although their clients
    /// hung up. They keep their places.
    fn left_behind(&self, _urgent: bool) -> usize {
        0
    }

    /// Where the listener counts what it has in hand.
    fn load(&self) -> Arc<Load> {
        Arc::default()
    }

    /// Whether the client reads no replies labelled in the OJS media type, by the head of its request.
    fn wants_plain_json(&self, _head: &Parts) -> bool {
        false
    }

    /// A reply is on its way: the last look at it. `plain_json`: what [`Self::wants_plain_json`] said.
    fn leaving(&self, _reply: &mut Response<Body>, _plain_json: bool) {}
}

/// Times and numbers of a listener. Each thread has one of its own.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a head to come whole, from its first byte; for the first one from the connection's
    /// beginning. Default 5 s.
    pub header: Duration,
    /// Between requests. Default 125 s: longer than the client pools seen and than the backends'
    /// 120 s, so that it is not we who close under a request.
    pub idle: Duration,
    /// Without the client taking a byte of its reply. Default 60 s.
    pub write: Duration,
    /// Connections at once, WebSockets among them; more wait in the listener's backlog. Default 10,000.
    pub connections: usize,
    /// Requests at once that have no reply yet; more are answered 503. As many urgent ones beside them. What
    /// clients that hung up have left counts too, of all threads in each. Default 1,024.
    pub in_flight: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            header: Duration::from_secs(5),
            idle: Duration::from_secs(125),
            write: Duration::from_secs(60),
            connections: 10_000,
            in_flight: 1_024,
        }
    }
}

/// Serves `listener` until `drain` is cancelled: then nothing is accepted, idle connections close,
/// and it returns when the last request in progress is answered. Dropped, it ends all of them.
pub async fn serve<S: Service>(
    mut listener: Listener,
    service: S,
    limits: Limits,
    drain: CancellationToken,
) {
    let load = service.load();
    let shared = Arc::new(Shared {
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
                Ok((stream, _)) => {
                    let flag = Arc::<Flags>::default();
                    let task = connections.spawn(connection(stream, Arc::clone(&shared), Arc::clone(&flag)));
                    flags.insert(task.id(), flag);
                    load.connections.store(connections.len(), Ordering::Relaxed);
                    if connections.len() >= limits.connections && full.now() {
                        let open = connections.len();
                        tracing::warn!(open, "as many connections as server.max_connections allows: more wait until some close");
                    }
                }
                Err(error) => {
                    if failing.now() {
                        tracing::warn!(%error, "cannot accept connections; trying on");
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
struct Shared<S> {
    service: S,
    limits: Limits,
    load: Arc<Load>,
    /// That requests are refused because there are too many.
    overloaded: Seldom,
}

/// Serves one connection to its end.
async fn connection<S: Service>(stream: Stream, shared: Arc<Shared<S>>, flags: Arc<Flags>) {
    let limits = shared.limits;
    let tunnel = Mutex::new(None);
    let handler = service_fn(|request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let head = Box::new(head);
        flags.begin();
        let busy = Busy(Arc::clone(&flags));
        let shared = Arc::clone(&shared);
        let tunnel = &tunnel;
        let plain_json = shared.service.wants_plain_json(&head);
        async move {
            let mut reply = shared.answer(head, body).await;
            shared.service.leaving(&mut reply, plain_json);
            if let Some(begun) = reply.body_mut().take_tunnel() {
                *tunnel.lock() = Some(begun);
            }
            Ok::<_, Infallible>(reply.map(|body| Tracked { body, _busy: busy }))
        }
    });
    let connection = http()
        .serve_connection(
            TokioIo::new(Guarded::new(stream, Arc::clone(&flags))),
            handler,
        )
        .with_upgrades();
    {
        // It ends here whatever becomes of the tunnel: one whose beginning failed waits for that.
        let mut connection = pin!(connection);
        let mut watchdog = Watchdog::new(limits);
        let mut ending = false;
        let mut waker: Option<Waker> = None;
        std::future::poll_fn(|cx| {
            // A spawned task has one waker for life.
            let waker = waker.get_or_insert_with(|| {
                flags.register(cx.waker());
                Gate::before(cx.waker())
            });
            let cx = &mut Context::from_waker(waker);
            if flags.draining() && !ending {
                if flags.is_idle() {
                    return Poll::Ready(());
                }
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            tick::within(|| {
                // How a client's connection ended is of no interest: what failed was answered or noted.
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                watchdog.poll(&flags, cx)
            })
        })
        .await;
    }
    let tunnel = tunnel.lock().take();
    if let Some(tunnel) = tunnel {
        // Here, so that it counts among the connections, and ends when they do.
        carry(tunnel, &flags).await;
    }
}

/// How HTTP is spoken with clients.
fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    // Ours is the watchdog: hyper's would set and unset a timer for each request.
    http.header_read_timeout(None)
        .half_close(false)
        .max_header_size(HEAD)
        .max_buf_size(BUFFER);
    http
}

/// Carries another protocol to its end, or to ours.
async fn carry(mut tunnel: Tunnel, flags: &Flags) {
    flags.no_more_http();
    std::future::poll_fn(|cx| match flags.draining() {
        true => Poll::Ready(()),
        false => tunnel.as_mut().poll(cx),
    })
    .await;
}

impl<S: Service> Shared<S> {
    async fn answer(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        if let Err(fault) = rules::check(&head) {
            return fault.reply(respond::request_id(&head.headers));
        }
        let urgent = self.service.is_urgent(&head);
        let places = match urgent {
            true => &self.load.urgent,
            false => &self.load.ordinary,
        };
        let before = places.fetch_add(1, Ordering::Relaxed);
        let _place = Place(places);
        let taken = before + self.service.left_behind(urgent);
        if taken >= self.limits.in_flight {
            if self.overloaded.now() {
                tracing::warn!(
                    requests = taken,
                    "more requests at once than server.max_in_flight allows: answered 503 `overloaded`"
                );
            }
            return Fault::overloaded().reply(respond::request_id(&head.headers));
        }
        let mut answer = pin!(self.service.call(head, body));
        std::future::poll_fn(|cx| {
            // Nothing of the request is looked at after a panic, so nothing half done is seen.
            match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                Ok(polled) => polled,
                Err(_) => Poll::Ready(Fault::internal().closing().reply(None)),
            }
        })
        .await
    }
}

/// A place among the requests in flight.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
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

/// A reply's body that knows when it is over.
struct Tracked {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
