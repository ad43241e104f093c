//! A call, its reply, and what bounds both: plain data.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, StatusCode};

use super::target::Path;
use ojs_net::Probes;

/// How many times longer than its request a reply may be in any case. A batch is echoed job by job, each with more
/// members than were sent.
pub const ECHO: usize = 32;

/// The most header lines of a message, in either direction.
pub const HEADER_LINES: usize = 256;

/// So many are read without a look at how many there are. To be ready for [`HEADER_LINES`] costs a tenth of a request, so
/// the first message with more is refused, and from then on all that come over new connections may have as many.
pub const FEW_HEADER_LINES: usize = 100;

/// What is asked for where a reply is to be read.
pub const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// One request whose body is known, and whose reply is read whole.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query, without the upstream's base path.
    pub target: Path,
    /// End-to-end headers; framing and hop-by-hop ones are ignored.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// From the first byte sent to the last byte read.
    pub timeout: Duration,
}

/// A reply read whole. Hop-by-hop headers are gone, but its original length may still be in the head.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The end-to-end headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Timeouts and sizes for calls to the backend.
#[derive(Clone, Copy, Debug)]
pub struct CallBounds {
    /// How long opening a connection may take, TLS included. Default 2 s.
    pub connect: Duration,
    /// How a connection shows that its other end has vanished. Default: as the backend's.
    pub probes: Probes,
    /// How long a connection stays idle. Default 4 s: Node closes after 5 s, and closing first
    /// is what keeps a request from meeting a close.
    pub idle: Duration,
    /// How long the head of a reply may take. For a streamed request this starts anew whenever more of the body is seen
    /// to have gone out. Default 30 s.
    pub head: Duration,
    /// How long a client may send nothing of a streamed body; it is noticed within twice as long. Default 30 s.
    pub body: Duration,
    /// How long a streamed reply may bring nothing; it is noticed within twice as long. Default: for ever.
    pub silence: Option<Duration>,
    /// The largest reply read whole, in bytes, or [`ECHO`] times the request's body if that is more. It only bounds
    /// memory, and no honest reply should meet it: the backend has acted by then, so a reply thrown away means jobs
    /// that nobody runs and enqueues in doubt. Default 256 MiB.
    pub reply: usize,
}

impl Default for CallBounds {
    fn default() -> CallBounds {
        CallBounds {
            connect: Duration::from_secs(2),
            probes: Probes::OF_BACKEND,
            idle: Duration::from_secs(4),
            head: Duration::from_secs(30),
            body: Duration::from_secs(30),
            silence: None,
            reply: 256 << 20,
        }
    }
}
