//! The bodies of requests to the backend, and how a body is read whole.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::gate::hold;

/// Why a body did not come whole. Every body here has only this error, so the reader knows whose fault it is.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client's connection broke, or its framing is wrong.
    #[error("the client's body did not come whole: {0}")]
    Client(#[source] hyper::Error),
    /// The backend's connection broke, or its framing is wrong.
    #[error("the backend's body did not come whole: {0}")]
    Backend(#[source] hyper::Error),
}

/// A request's body on its way to the backend.
#[derive(Debug)]
pub struct RequestBody(BodySource);

#[derive(Debug)]
enum BodySource {
    Whole(Bytes),
    Stream {
        body: Incoming,
        progress: Arc<Progress>,
    },
}

/// Whether the backend may have seen something of a request. A request that bears it among its extensions says it by this,
/// also to those who do not wait for its end.
#[derive(Clone, Debug, Default)]
pub struct RequestLeft(Arc<AtomicBool>);

impl RequestLeft {
    /// Whether it may.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The request is about to be written.
    pub(super) fn begin<B>(request: &Request<B>) {
        if let Some(left) = request.extensions().get::<RequestLeft>() {
            left.0.store(true, Ordering::Relaxed);
        }
    }

    /// Nothing of it was written.
    pub(super) fn undo<B>(request: &Request<B>) {
        if let Some(left) = request.extensions().get::<RequestLeft>() {
            left.0.store(false, Ordering::Relaxed);
        }
    }
}

/// The progress of a streamed request body, shared with the task that waits for the reply.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The frames passed on so far. It may wrap: only changes matter.
    pub(super) frames: AtomicU32,
    /// Whether the client must send the next part.
    pub(super) waiting: AtomicBool,
    /// Whether all of the body was passed on.
    pub(super) ended: AtomicBool,
}

impl RequestBody {
    /// The progress of a streamed body; a whole one needs none.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        match &self.0 {
            BodySource::Whole(_) => None,
            BodySource::Stream { progress, .. } => Some(Arc::clone(progress)),
        }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> RequestBody {
        RequestBody(BodySource::Whole(bytes))
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> RequestBody {
        if body.is_end_stream() {
            return RequestBody(BodySource::Whole(Bytes::new()));
        }
        RequestBody(BodySource::Stream {
            body,
            progress: Arc::default(),
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            BodySource::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodySource::Stream { body, progress } => {
                let (polled, held) = hold(|| Pin::new(&mut *body).poll_frame(cx));
                // The task that reads the client's connection must go on, unless this was the last part.
                if let Some(held) = held.filter(|_| !body.is_end_stream()) {
                    held.wake();
                }
                progress
                    .waiting
                    .store(polled.is_pending(), Ordering::Relaxed);
                if polled.is_ready() {
                    progress.frames.fetch_add(1, Ordering::Relaxed);
                    // Over HTTP/2 the end may stand in an empty frame of its own.
                    let is_over = body.is_end_stream() || body.size_hint().exact() == Some(0);
                    let is_part = |frame: &Frame<Bytes>| frame.is_data() && !is_over;
                    let goes_on = matches!(&polled, Poll::Ready(Some(Ok(part))) if is_part(part));
                    progress.ended.store(!goes_on, Ordering::Relaxed);
                }
                polled.map_err(BodyError::Client)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Whole(bytes) => bytes.is_empty(),
            BodySource::Stream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Stream { body, .. } => body.size_hint(),
        }
    }
}

/// Why a body was not read whole.
#[derive(Debug)]
pub enum NotCollected<E> {
    /// It is larger than the cap. If its length says so nothing was read.
    TooLarge,
    /// There is no room for it.
    NoRoom,
    /// It broke off.
    Broken(E),
}

/// So many bytes are reserved at most for what is announced.
const ANNOUNCED: usize = 1 << 20;

/// Reads a body of at most `cap` bytes, while `takes` has room for its parts. One that comes in one piece is not copied.
///
/// # Errors
/// It is too large, breaks off, or has no room.
pub async fn collect<B>(
    mut body: B,
    cap: usize,
    mut takes: impl FnMut(usize) -> bool,
) -> Result<Bytes, NotCollected<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > cap as u64 {
        return Err(NotCollected::TooLarge);
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else {
            break;
        };
        let Ok(data) = frame.map_err(NotCollected::Broken)?.into_data() else {
            continue;
        };
        if first.len().max(whole.len()) + data.len() > cap {
            return Err(NotCollected::TooLarge);
        }
        if !takes(data.len()) {
            return Err(NotCollected::NoRoom);
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            // What is announced and no more, so that it is copied once; a length that lies costs little.
            let rest = usize::try_from(body.size_hint().lower()).unwrap_or(0);
            whole.reserve(first.len() + data.len() + rest.min(ANNOUNCED));
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() {
        first
    } else {
        whole.freeze()
    })
}
