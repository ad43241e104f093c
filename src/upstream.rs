//! The way to the backend: idle connections kept per thread, heads cleaned on both sides, replies
//! read whole or streamed, and the one question that decides whether a call may be made again:
//! was it written?

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use std::time::Duration;

/// One request whose body is known, and whose reply is read whole.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    /// Path and query as the client wrote them, without the upstream's base path.
    pub target: String,
    /// End-to-end headers; framing and hop-by-hop ones are ignored.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// From the first byte sent to the last byte read.
    pub timeout: Duration,
}

/// A reply read whole. Hop-by-hop and framing headers are gone.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
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

/// A handle on one thread's connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {}

impl Upstream {
    /// Sends and reads whole. A call that found its idle connection closed before anything was
    /// written is sent once more on a new one; nothing else is repeated.
    pub async fn call(&self, _call: Call) -> Result<Reply, UpstreamError> {
        todo!()
    }
}
