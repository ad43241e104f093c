//! A client's stream. It tells the watchdog what happens, reads on behind a request in progress, and closes in a way that
//! lets the last reply arrive.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use http::header::CONNECTION;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::watchdog::Flags;
use ojs_answers::respond::Fault;
use ojs_net::Stream;

/// The most bytes that are read behind a request in progress. With more there, it is not seen that its client hangs up.
const AHEAD: usize = 4 * 1024;

/// The most that is read and thrown away before a connection is closed, and the longest time for it: for all, without a
/// byte, and for all while the sidecar stops.
const LINGER_BYTES: usize = 512 << 20;
const LINGER: Duration = Duration::from_secs(30);
const LINGER_SILENT: Duration = Duration::from_secs(5);
const LINGER_STOPPING: Duration = Duration::from_secs(1);

/// A client's stream.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: Stream,
    flags: Arc<Flags>,
    /// What was read ahead.
    ahead: BytesMut,
    linger: Option<Linger>,
}

/// Reads what the client still sends after our side is shut. Closing over unread bytes resets the connection, and the
/// client would lose a reply that it has not read yet. Many read none before they have sent all of their request.
#[derive(Debug)]
struct Linger {
    left: usize,
    begun: Instant,
    until: Pin<Box<Sleep>>,
}

impl Guarded {
    pub(super) fn new(stream: Stream, flags: Arc<Flags>) -> Guarded {
        Guarded {
            stream,
            flags,
            ahead: BytesMut::new(),
            linger: None,
        }
    }

    /// Writes this, or our refusal where it is hyper's.
    fn poll_put(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let refusal = match self.flags.is_unasked() {
            true => refusal(bytes),
            false => None,
        };
        // Ours fits into the buffers of a client that reads.
        let put = refusal.as_deref().unwrap_or(bytes);
        let put = Pin::new(&mut self.stream).poll_write(cx, put);
        match refusal {
            Some(_) => put.map_ok(|_| bytes.len()),
            None => put,
        }
    }

    /// Looks whether the client has hung up. hyper does not where bytes behind the request in progress have come.
    fn look_ahead(&mut self, cx: &mut Context<'_>) {
        while self.ahead.len() < AHEAD && !self.flags.is_half_closed() {
            let mut bytes = [MaybeUninit::uninit(); AHEAD];
            let mut room = ReadBuf::uninit(&mut bytes);
            let mut buf = room.take(AHEAD - self.ahead.len());
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.ahead.put(buf.filled());
                    // hyper may wait for what was just taken from under it.
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(_) => drop(self.flags.half_closes()),
            }
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            let some = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead.split_to(some));
            this.flags.read();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(read) = &polled {
            let is_end = read.is_ok() && buf.filled().len() == before && buf.remaining() > 0;
            if is_end && this.flags.half_closes() {
                // The end of the request wakes the task.
                return Poll::Pending;
            }
            this.flags.read();
            if read.is_ok() && !is_end && buf.remaining() > 0 && this.flags.has_turns() {
                // Whoever is gone by now is not to be served.
                this.look_ahead(cx);
            }
        }
        polled
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = this.poll_put(cx, buf);
        this.flags.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match bufs {
            [only] => this.poll_put(cx, only),
            _ => Pin::new(&mut this.stream).poll_write_vectored(cx, bufs),
        };
        this.flags.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper calls this each time that it has looked at the connection and has nothing to write.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.flags.flushes();
        let is_over = this.linger.is_some();
        if this.flags.is_busy() && this.flags.has_turns() && !is_over {
            this.look_ahead(cx);
            if this.flags.is_given_up() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Guarded {
            stream,
            linger,
            flags,
            ..
        } = self.get_mut();
        if flags.is_tunnel() {
            // The tunnel reads what the client still sends.
            return Pin::new(stream).poll_shutdown(cx);
        }
        if linger.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            flags.lingers();
        }
        let rest = linger.get_or_insert_with(|| Linger {
            left: LINGER_BYTES,
            begun: Instant::now(),
            until: Box::pin(tokio::time::sleep(LINGER_SILENT)),
        });
        rest.poll(stream, flags.draining(), cx).map(Ok)
    }
}

impl Linger {
    /// Ready at the end of the client's bytes, on an error, or when bytes or time are used up.
    fn poll(&mut self, stream: &mut Stream, stops: bool, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [MaybeUninit::uninit(); 16 * 1024];
        let mut buf = ReadBuf::uninit(&mut bytes);
        let mut until = self.until.deadline();
        while let Poll::Ready(read) = Pin::new(&mut *stream).poll_read(cx, &mut buf) {
            self.left = self.left.saturating_sub(buf.filled().len());
            if read.is_err() || buf.filled().is_empty() || self.left == 0 {
                return Poll::Ready(());
            }
            until = Instant::now() + LINGER_SILENT;
            buf.clear();
        }
        let most = if stops { LINGER_STOPPING } else { LINGER };
        let until = until.min(self.begun + most);
        if until != self.until.deadline() {
            self.until.as_mut().reset(until);
        }
        self.until.as_mut().poll(cx)
    }
}

/// Our refusal in place of hyper's, which has a status and nothing else; `None`: that is written otherwise than is known.
fn refusal(written: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(written)
        .ok()?
        .strip_suffix("\r\n\r\n")?;
    let status = head.get("HTTP/1.1 ".len()..)?.get(..3)?.parse().ok()?;
    let (ours, body) = Fault::head(status).reply(None).into_parts();
    let mut head = head.replace("\r\ncontent-length: 0", "");
    head += &format!("\r\ncontent-length: {}", body.as_whole().len());
    // hyper says by itself that it closes.
    let more = ours.headers.iter().filter(|(name, _)| **name != CONNECTION);
    for (name, value) in more {
        head += &format!("\r\n{name}: {}", value.to_str().ok()?);
    }
    Some([head.as_bytes(), b"\r\n\r\n", body.as_whole()].concat())
}
