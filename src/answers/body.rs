//! The one body type of every reply, and reading a request's body whole.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

pub use ojs_wire::upstream::BodyError;
use ojs_wire::upstream::{NotCollected, ReplyBody, collect, hold};

/// Is told when a reply leaves. Dropped untold, the reply never left: undo in `Drop`.
pub trait Watch: Send {
    /// The connection has taken the first bytes of the body. Called at most once.
    fn sent(&mut self);
}

/// Looks on while a body passes, and is dropped when it has ended or is dropped.
pub trait Attend: Send {
    /// A part passes.
    fn part(&mut self, _bytes: &Bytes) {}

    /// The whole body has passed.
    fn ended(&mut self) {}
}

/// What goes on over a connection once its client and the backend have switched protocols.
pub type Tunnel = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A reply's body.
pub struct Body(BodyKind);

enum BodyKind {
    Empty,
    Whole(Bytes, Option<Box<dyn Watch>>),
    Stream(ReplyBody, Option<Box<dyn Attend>>),
    Frames(mpsc::Receiver<Bytes>),
    Changed(ReplyBody, Box<BodyChange>),
    /// It broke off, which the connection is told when it asks again.
    Broken(Option<BodyError>),
    Tunnel(Option<Tunnel>),
}

/// Makes of what came what is passed on, which may be nothing yet. Nothing came: that was the end.
type BodyChange = dyn FnMut(Bytes) -> Bytes + Send;

impl Body {
    /// No body.
    pub fn empty() -> Body {
        Body(BodyKind::Empty)
    }

    /// A whole body whose leaving is watched: `watch` is told when the connection polls it first, and is
    /// dropped either way. Not for an empty one, which no connection polls.
    pub fn watched(bytes: Bytes, watch: impl Watch + 'static) -> Body {
        Body(BodyKind::Whole(bytes, Some(Box::new(watch))))
    }

    /// A body that goes on until the sender is dropped. Its length is not told before.
    pub fn frames(frames: mpsc::Receiver<Bytes>) -> Body {
        Body(BodyKind::Frames(frames))
    }

    /// A body that streams, with each of its parts changed on the way: into nothing where more is needed
    /// first. At the end `change` is given nothing, for what it has kept. One that does not stream stays as it is.
    pub fn changed(self, change: impl FnMut(Bytes) -> Bytes + Send + 'static) -> Body {
        match self.0 {
            BodyKind::Stream(body, None) => Body(BodyKind::Changed(body, Box::new(change))),
            _ => self,
        }
    }

    /// A body that streams, with who looks on.
    pub fn attended(mut self, mut by: impl Attend + 'static) -> Body {
        match &mut self.0 {
            // Nobody asks it for a part.
            BodyKind::Stream(body, _) if body.is_end_stream() => by.ended(),
            BodyKind::Stream(_, attends) => *attends = Some(Box::new(by)),
            _ => {}
        }
        self
    }

    /// Puts what `change` makes of the bytes of one that is known in their place; `false`: it made nothing of them.
    pub fn change_whole(&mut self, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> bool {
        let BodyKind::Whole(bytes, _) = &mut self.0 else {
            return false;
        };
        let changed = change(bytes);
        let is_changed = changed.is_some();
        if let Some(changed) = changed {
            *bytes = changed.into();
        }
        is_changed
    }

    /// Passes on what it has as if it never left: whoever watches it is not told.
    pub fn forget_watch(&mut self) {
        if let BodyKind::Whole(_, watch) = &mut self.0 {
            *watch = None;
        }
    }

    /// Whether something comes part by part from the backend, and nobody changes it.
    pub fn streams(&self) -> bool {
        matches!(&self.0, BodyKind::Stream(body, None) if !body.is_end_stream())
    }

    /// The bytes of one that is known.
    pub fn as_whole(&self) -> &[u8] {
        match &self.0 {
            BodyKind::Whole(bytes, _) => bytes,
            _ => &[],
        }
    }

    /// No body, and what the connection is for after it.
    pub fn before(tunnel: Tunnel) -> Body {
        Body(BodyKind::Tunnel(Some(tunnel)))
    }

    /// What the connection is for after this reply, if it is not for more requests.
    pub fn take_tunnel(&mut self) -> Option<Tunnel> {
        match &mut self.0 {
            BodyKind::Tunnel(tunnel) => tunnel.take(),
            _ => None,
        }
    }

    /// The next part, or why there is none.
    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (bytes, watch) = match &mut self.0 {
            BodyKind::Stream(body, by) => {
                let part = ready!(Pin::new(&mut *body).poll_frame(cx));
                if let (Some(by), Some(Ok(part))) = (&mut *by, &part) {
                    part.data_ref().into_iter().for_each(|bytes| by.part(bytes));
                }
                let is_over = part.is_none() || body.is_end_stream();
                if let Some(mut by) = by.take_if(|_| is_over)
                    && !matches!(part, Some(Err(_)))
                {
                    by.ended();
                }
                return Poll::Ready(part);
            }
            BodyKind::Changed(body, change) => {
                let part = ready!(poll_changed(body, change, cx));
                if part.is_some() {
                    return Poll::Ready(part);
                }
                let rest = change(Bytes::new());
                self.0 = BodyKind::Empty;
                return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
            }
            BodyKind::Frames(frames) => {
                return frames
                    .poll_recv(cx)
                    .map(|next| next.map(|bytes| Ok(Frame::data(bytes))));
            }
            BodyKind::Empty | BodyKind::Broken(_) | BodyKind::Tunnel(_) => {
                return Poll::Ready(None);
            }
            BodyKind::Whole(bytes, watch) => (bytes, watch),
        };
        if let Some(mut watch) = watch.take() {
            watch.sent();
        }
        let bytes = std::mem::take(bytes);
        self.0 = BodyKind::Empty;
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            BodyKind::Empty => f.write_str("Empty"),
            BodyKind::Whole(bytes, _) => write!(f, "Whole({} bytes)", bytes.len()),
            BodyKind::Stream(..) => f.write_str("Stream"),
            BodyKind::Frames(_) => f.write_str("Frames"),
            BodyKind::Changed(..) => f.write_str("Changed"),
            BodyKind::Broken(_) => f.write_str("Broken"),
            BodyKind::Tunnel(_) => f.write_str("Tunnel"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(BodyKind::Whole(bytes, None))
    }
}

impl From<ReplyBody> for Body {
    fn from(body: ReplyBody) -> Body {
        Body(BodyKind::Stream(body, None))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let BodyKind::Broken(why) = &mut this.0 {
            return Poll::Ready(why.take().map(Err));
        }
        match this.next(cx) {
            Poll::Ready(Some(Err(why))) => {
                // At an error hyper throws away what it has not written yet, which may be the head and all that came. It
                // writes that while it waits for more.
                this.0 = BodyKind::Broken(Some(why));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            next => next,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Empty | BodyKind::Tunnel(_) => true,
            // With a watch not before it was polled: that is what the watch waits for.
            BodyKind::Whole(bytes, watch) => bytes.is_empty() && watch.is_none(),
            BodyKind::Frames(_) | BodyKind::Changed(..) | BodyKind::Broken(_) => false,
            BodyKind::Stream(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Empty | BodyKind::Tunnel(_) => SizeHint::with_exact(0),
            BodyKind::Whole(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            BodyKind::Stream(body, _) => body.size_hint(),
            BodyKind::Frames(_) | BodyKind::Changed(..) | BodyKind::Broken(_) => {
                SizeHint::default()
            }
        }
    }
}

/// The next part of a body that is changed on its way.
fn poll_changed(
    body: &mut ReplyBody,
    change: &mut BodyChange,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    loop {
        let part = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(part)) => part,
            end => return Poll::Ready(end),
        };
        let Ok(came) = part.into_data() else { continue };
        let bytes = match came.is_empty() {
            true => came,
            false => change(came),
        };
        if !bytes.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
    }
}

/// Why a request's body was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is larger than the cap (413).
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The bodies of other requests leave no room for it (503).
    #[error("the bodies of requests in progress are as many bytes as server.max_bodies allows")]
    NoRoom,
    /// It did not come whole in time (408).
    #[error("the body did not come whole within {0:?}")]
    Slow(Duration),
    /// The connection broke, or the framing is wrong (400).
    #[error("the body did not come whole: {0}")]
    Broken(#[source] hyper::Error),
}

/// Reads a request's body of at most `cap` bytes within `patience` for all of it, so that a
/// client cannot hold us by sending a byte at a time. One that comes in one piece is not copied.
/// Each byte takes one from `room`, until what is returned with the body is dropped.
///
/// # Errors
/// Too large (nothing is read if its length says so), without room, too slow, or broken.
pub async fn read(
    body: Incoming,
    cap: usize,
    patience: Duration,
    room: &Semaphore,
) -> Result<(Bytes, SemaphorePermit<'_>), ReadError> {
    let mut taken = room.try_acquire_many(0).map_err(|_| ReadError::NoRoom)?;
    let takes = |bytes: usize| {
        let more = u32::try_from(bytes)
            .ok()
            .map(|bytes| room.try_acquire_many(bytes));
        more.and_then(Result::ok)
            .map(|more| taken.merge(more))
            .is_some()
    };
    let read = {
        let mut whole = pin!(collect(body, cap, takes));
        // Most bodies have come with their heads, and need no timer. Taking one wakes the connection to
        // read on, which it does anyway once this request is answered.
        let (polled, held) = poll_fn(|cx| Poll::Ready(hold(|| whole.as_mut().poll(cx)))).await;
        if let Some(held) = held.filter(|_| !matches!(polled, Poll::Ready(Ok(_)))) {
            held.wake();
        }
        match polled {
            Poll::Ready(read) => Ok(read),
            Poll::Pending => tokio::time::timeout(patience, whole).await,
        }
    };
    match read {
        Ok(Ok(bytes)) => Ok((bytes, taken)),
        Ok(Err(NotCollected::TooLarge)) => Err(ReadError::TooLarge(cap)),
        Ok(Err(NotCollected::NoRoom)) => Err(ReadError::NoRoom),
        Ok(Err(NotCollected::Broken(error))) => Err(ReadError::Broken(error)),
        Err(_) => Err(ReadError::Slow(patience)),
    }
}
