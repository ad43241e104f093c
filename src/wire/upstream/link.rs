//! A connection to the backend, and the stack of idle ones.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep};

use super::body::{Progress, RequestBody};
use super::gate::hold;
use crate::boxed::boxed;
use ojs_net::Stream;

/// The most bytes that one connection buffers, and so of a head.
pub(super) const BUFFER: usize = 64 * 1024;

/// When the timer of a new connection fires first. Later it moves to where it is needed.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// An HTTP/1.1 connection. No task of its own drives it: whoever waits for a reply polls it, so a
/// request costs no switch between tasks, and giving up on a request is dropping its connection.
#[derive(Debug)]
pub(super) struct HttpLink {
    sender: SendRequest<RequestBody>,
    /// `None` once it has ended and given back a request that it had not taken up.
    connection: Option<Connection<TokioIo<Stream>, RequestBody>>,
    /// Tells the stream that an exchange begins.
    begins: Arc<AtomicBool>,
    /// The connection has ended; it must not be polled again.
    over: bool,
    /// Fires when a head does not come. It stays set from request to request and moves only when it fires or would
    /// fire too late, so most requests touch no timer.
    timer: Pin<Box<Sleep>>,
    /// When its last request began. Idle time counts from there, which saves one reading of the clock for each
    /// request.
    since: Instant,
}

/// How long to wait for a head.
pub(super) struct Patience {
    /// How long to wait for the backend.
    pub(super) time: Duration,
    /// How long to wait for the client, where the next part of the body must come from it.
    pub(super) body: Duration,
    /// When the wait begins, which is now; later when the body was last seen to have moved.
    pub(super) since: Instant,
    /// The body, if it is streamed.
    pub(super) progress: Option<Arc<Progress>>,
}

/// Why there is no head of a reply.
pub(super) enum ExchangeFailure {
    /// Nothing of the request was written, so it is returned for another try.
    Unwritten(Box<Request<RequestBody>>, hyper::Error),
    /// The request may have been read; without an error the connection just ended.
    Broken(Option<hyper::Error>),
    /// No head came in time; the whole request was on its way.
    Late,
    /// The client did not go on with its body in time.
    Stalled,
}

impl HttpLink {
    /// Begins HTTP on a fresh stream. `lines`: how many a head may have, if more than most.
    pub(super) async fn open(stream: Stream, lines: Option<usize>) -> hyper::Result<Box<HttpLink>> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER);
        if let Some(lines) = lines {
            builder.max_headers(lines);
        }
        let (stream, begins) = stream.asking();
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let timer = Box::pin(tokio::time::sleep(FIRST_LOOK));
        Ok(Box::new(HttpLink {
            sender,
            connection: Some(connection),
            begins,
            over: false,
            timer,
            since: Instant::now(),
        }))
    }

    /// Moves bytes both ways. Returns `true` when the connection has ended.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        self.over = self.over || poll(&mut self.connection, cx).is_ready();
        self.over
    }

    /// Whether it is time to look how a reply goes on. The next look is due after `time`.
    pub(super) fn is_time(&mut self, time: Duration, cx: &mut Context<'_>) -> bool {
        let mut is_time = false;
        while self.timer.as_mut().poll(cx).is_ready() {
            self.timer.as_mut().reset(Instant::now() + time);
            is_time = true;
        }
        is_time
    }

    /// Sends a request and waits for the head of its reply for as long as `patience` says. Nothing is written to a
    /// connection on which something came while it was idle, above all its end.
    ///
    /// Large parts of this future are boxed: futures grow with every layer that awaits them, and are copied each time
    /// one starts.
    pub(super) fn exchange(
        &mut self,
        request: Box<Request<RequestBody>>,
        patience: Patience,
    ) -> impl Future<Output = Result<Response<Incoming>, ExchangeFailure>> + Send + '_ {
        let HttpLink {
            sender,
            connection,
            begins,
            over,
            timer,
            since,
        } = self;
        begins.store(true, Ordering::Relaxed);
        *since = patience.since;
        let mut waiting = LinkWait::begin(patience, timer.as_mut());
        // The held wake is for the task that polled the connection last, and that is polled right after this.
        let (mut head, _nobody) = hold(|| boxed(|| sender.try_send_request(*request)));
        std::future::poll_fn(move |cx| {
            *over = *over || poll(connection, cx).is_ready();
            // Only the connection can bring the head, and it was just polled, so no waker is needed.
            loop {
                let polled = head.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                return match polled {
                    Poll::Ready(Ok(head)) => Poll::Ready(Ok(head)),
                    Poll::Ready(Err(mut error)) => Poll::Ready(Err(match error.take_message() {
                        Some(request) => {
                            ExchangeFailure::Unwritten(Box::new(request), error.into_error())
                        }
                        None if connection.is_none() => ExchangeFailure::Broken(None),
                        None => ExchangeFailure::Broken(Some(error.into_error())),
                    })),
                    Poll::Pending if *over && connection.is_some() => {
                        // Dropping the connection returns a request that it had not taken up.
                        *connection = None;
                        continue;
                    }
                    Poll::Pending => waiting.poll(timer.as_mut(), cx).map(Err),
                };
            }
        })
    }

    /// The raw stream, and the bytes read past the head, after a reply that switched protocols.
    pub(super) async fn into_stream(mut self: Box<Self>) -> Option<(Stream, Bytes)> {
        std::future::poll_fn(|cx| {
            if self.drive(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let parts = self.connection?.into_parts();
        let stream = match parts.io.into_inner() {
            Stream::Asking(stream) => *stream,
            stream => stream,
        };
        Some((stream, parts.read_buf))
    }
}

/// Moves bytes both ways; ready when the connection has ended.
fn poll(
    connection: &mut Option<Connection<TokioIo<Stream>, RequestBody>>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    match connection {
        // The pending request or body shows how the connection ended.
        Some(connection) => Pin::new(connection).poll(cx).map(drop),
        None => Poll::Ready(()),
    }
}

/// A wait for a head.
struct LinkWait {
    patience: Patience,
    /// When to look.
    deadline: Instant,
    /// What the last look saw of the body: its progress, and whether the client must send the next part.
    seen: (u32, bool),
}

impl LinkWait {
    fn begin(patience: Patience, timer: Pin<&mut Sleep>) -> LinkWait {
        // A client may stop soon, while the backend may still have much time.
        let first = match patience.progress {
            Some(_) => patience.time.min(patience.body),
            None => patience.time,
        };
        let deadline = patience.since + first;
        if deadline < timer.deadline() {
            timer.reset(deadline);
        }
        LinkWait {
            patience,
            deadline,
            seen: (0, true),
        }
    }

    /// Ready when the time is up.
    fn poll(&mut self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<ExchangeFailure> {
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.deadline <= now
                && let Some(failure) = self.look(now)
            {
                return Poll::Ready(failure);
            }
            timer.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }

    /// Why to give up, if the time is up; else it says when to look again.
    fn look(&mut self, now: Instant) -> Option<ExchangeFailure> {
        let Patience {
            time,
            body,
            since,
            progress,
        } = &mut self.patience;
        let Some(progress) = progress else {
            return Some(ExchangeFailure::Late);
        };
        let waits = progress.waiting.load(Ordering::Relaxed);
        let seen = (progress.frames.load(Ordering::Relaxed), waits);
        // Whose turn it is may have changed only just now.
        if seen != self.seen {
            self.seen = seen;
            *since = now;
        }
        let (time, failure) = match waits {
            true => (*body, ExchangeFailure::Stalled),
            false => (*time, ExchangeFailure::Late),
        };
        let end = *since + time;
        self.deadline = end.min(now + *body);
        (end <= now).then_some(failure)
    }
}

/// Idle connections, with the last used one on top. The backend closes connections that it has not heard from for a
/// while, so the old ones at the bottom go first.
#[derive(Debug, Default)]
pub(super) struct Idle {
    links: VecDeque<Box<HttpLink>>,
    /// Whether a task comes to close the old ones, for times without requests.
    swept: bool,
}

impl Idle {
    /// Takes the youngest connection if it was used within `idle`. Whether it still works shows when it is used.
    pub(super) fn pop(&mut self, now: Instant, idle: Duration) -> Option<Box<HttpLink>> {
        self.expire(now, idle);
        self.links.pop_back()
    }

    /// Keeps a connection whose reply has come whole. It closes one that is not ready for the next request, because
    /// the backend answered too early or closes. Returns whether somebody must begin to sweep.
    pub(super) fn push(&mut self, link: Box<HttpLink>) -> bool {
        if link.over || !link.sender.is_ready() {
            return false;
        }
        self.links.push_back(link);
        !std::mem::replace(&mut self.swept, true)
    }

    /// Closes connections that were idle for too long. Returns whether to go on sweeping.
    pub(super) fn sweep(&mut self, idle: Duration) -> bool {
        self.expire(Instant::now(), idle);
        self.swept = !self.links.is_empty();
        self.swept
    }

    /// Closes connections that were idle for too long.
    fn expire(&mut self, now: Instant, idle: Duration) {
        while self
            .links
            .front()
            .is_some_and(|link| now.duration_since(link.since) >= idle)
        {
            self.links.pop_front();
        }
    }
}
