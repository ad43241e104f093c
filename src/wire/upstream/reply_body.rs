//! The body of a reply, which keeps its connection until it has come whole.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::body::BodyError;
use super::gate::hold;
use super::link::HttpLink;
use super::pool::ConnectionPool;
use ojs_net::Stream;

/// A reply's body with the connection that it comes on. At its end the connection becomes idle; dropped earlier, the
/// connection is closed.
#[derive(Debug)]
pub struct ReplyBody {
    body: Incoming,
    link: Option<Box<HttpLink>>,
    home: Arc<ConnectionPool>,
    /// Whether something came since its silence was looked at last.
    moved: bool,
}

impl ReplyBody {
    /// The body of a reply whose head came over `link`.
    pub(super) fn new(body: Incoming, link: Box<HttpLink>, home: Arc<ConnectionPool>) -> ReplyBody {
        ReplyBody {
            body,
            link: Some(link),
            home,
            moved: true,
        }
    }

    /// The raw stream, and the bytes read past the head, once the backend has switched protocols.
    pub async fn into_stream(mut self) -> Option<(Stream, Bytes)> {
        self.link.take()?.into_stream().await
    }

    /// Takes the part that has been read. Only the connection brings more, and we poll it ourselves: so the body needs
    /// no waker, and the wake that taking causes is not needed either.
    fn take(&mut self) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut quiet = Context::from_waker(Waker::noop());
        hold(|| Pin::new(&mut self.body).poll_frame(&mut quiet)).0
    }

    /// Gives the connection back at the end of the body. A reply that switched protocols must not do this, because its
    /// connection is no longer ours.
    pub(super) fn release_at_end(&mut self) {
        if self.body.is_end_stream()
            && let Some(link) = self.link.take()
        {
            self.home.put(link);
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut polled = this.take();
        if polled.is_pending()
            && let Some(link) = &mut this.link
        {
            let mut over = link.drive(cx);
            if let Some(silence) = this.home.limits.silence {
                over |= link.is_time(silence, cx) && !std::mem::take(&mut this.moved);
            }
            polled = this.take();
            if over && polled.is_pending() {
                // Dropping the connection ends the body, with an error if it is not whole.
                this.link = None;
                polled = this.take();
            }
        }
        match &polled {
            Poll::Ready(Some(Err(_))) => this.link = None,
            Poll::Ready(None) => {
                if let Some(link) = this.link.take() {
                    this.home.put(link);
                }
            }
            Poll::Ready(Some(Ok(_))) => {
                this.moved = true;
                this.release_at_end();
            }
            Poll::Pending => {}
        }
        polled.map_err(BodyError::Backend)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
