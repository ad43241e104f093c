//! One connection to the backend, and the stack of those that are idle.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::body::RequestBody;
use crate::net::Stream;

/// What one connection may buffer, in bytes.
const BUFFER: usize = 64 * 1024;

/// An HTTP/1.1 connection. No task of its own drives it: whoever waits for a reply polls it, so a
/// request costs no switch between tasks, and giving up on a request is dropping its connection.
#[derive(Debug)]
pub(super) struct Link {
    sender: SendRequest<RequestBody>,
    connection: Connection<TokioIo<Stream>, RequestBody>,
    /// The connection has ended; it must not be polled again.
    over: bool,
}

/// Why there is no head of a reply.
pub(super) enum Failure {
    /// Nothing of the request was written; here it is again.
    Unwritten(Box<Request<RequestBody>>, hyper::Error),
    /// The request may have been read; without an error the connection just ended.
    Broken(Option<hyper::Error>),
}

impl Link {
    /// Begins HTTP on a fresh stream.
    pub(super) async fn open(stream: Stream) -> hyper::Result<Box<Link>> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Box::new(Link {
            sender,
            connection,
            over: false,
        }))
    }

    /// Moves bytes both ways; true when the connection has ended.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.over && Pin::new(&mut self.connection).poll(cx).is_ready() {
            self.over = true;
        }
        self.over
    }

    /// Whether an idle connection is still good: nothing came on it, the end neither. Also takes
    /// the place of the waker that its last request left.
    fn is_idle(&mut self) -> bool {
        !self.drive(&mut Context::from_waker(Waker::noop())) && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its reply.
    pub(super) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        let Link {
            sender,
            connection,
            over,
        } = self;
        let mut head = pin!(sender.try_send_request(request));
        std::future::poll_fn(|cx| {
            if !*over && Pin::new(&mut *connection).poll(cx).is_ready() {
                *over = true;
            }
            // Only the connection can bring the head, and it was just polled: no waker needed.
            match head.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(head)) => Poll::Ready(Ok(head)),
                Poll::Ready(Err(mut error)) => Poll::Ready(Err(match error.take_message() {
                    Some(request) => Failure::Unwritten(Box::new(request), error.into_error()),
                    None => Failure::Broken(Some(error.into_error())),
                })),
                Poll::Pending if *over => Poll::Ready(Err(Failure::Broken(None))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// The stream itself and what was read past the head, after a reply that switched protocols.
    pub(super) async fn into_stream(mut self: Box<Self>) -> (Stream, Bytes) {
        std::future::poll_fn(|cx| {
            if self.drive(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}

/// Idle connections, the last used on top. The backend closes those that it has not heard from
/// for a while, so the old ones at the bottom go first.
#[derive(Debug, Default)]
pub(super) struct Idle {
    links: VecDeque<(Instant, Box<Link>)>,
}

impl Idle {
    /// The youngest connection that is still good, if it was used within `idle`.
    pub(super) fn pop(&mut self, idle: Duration) -> Option<Box<Link>> {
        self.expire(idle);
        while let Some((_, mut link)) = self.links.pop_back() {
            if link.is_idle() {
                return Some(link);
            }
        }
        None
    }

    /// Keeps a connection whose reply has come whole. One that is not ready for the next request
    /// (the backend answered before it had read all of this one, or closes) is closed.
    pub(super) fn push(&mut self, link: Box<Link>, idle: Duration) {
        if !link.over && link.sender.is_ready() {
            self.expire(idle);
            self.links.push_back((Instant::now(), link));
        }
    }

    /// Closes what has been idle for too long; says how many are left.
    pub(super) fn expire(&mut self, idle: Duration) -> usize {
        let now = Instant::now();
        while self
            .links
            .front()
            .is_some_and(|(since, _)| now.duration_since(*since) >= idle)
        {
            self.links.pop_front();
        }
        self.links.len()
    }
}
