//! A client's stream. It tells the watchdog what happens, and closes in a way that lets the last reply arrive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::bare;
use super::watchdog::Flags;
use crate::net::Stream;

/// The most bytes that are read from a client before its connection is closed, and the longest time for it.
const LINGER_BYTES: usize = 256 * 1024;
const LINGER: Duration = Duration::from_secs(1);

/// A client's stream.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: Stream,
    flags: Arc<Flags>,
    linger: Option<Linger>,
    /// What is still to be written in place of a refusal by hyper.
    refusal: Bytes,
}

/// Reads what the client still sends after our side is shut. Closing over unread bytes resets the connection, and the
/// client would lose a reply that it has not read yet.
#[derive(Debug)]
struct Linger {
    left: usize,
    until: Pin<Box<Sleep>>,
}

impl Guarded {
    pub(super) fn new(stream: Stream, flags: Arc<Flags>) -> Guarded {
        Guarded {
            stream,
            flags,
            linger: None,
            refusal: Bytes::new(),
        }
    }

    /// Writes our refusal in place of hyper's, which `written` may be; `None`: it is none.
    fn poll_refuse(
        &mut self,
        cx: &mut Context<'_>,
        written: &[u8],
    ) -> Option<Poll<io::Result<usize>>> {
        if self.refusal.is_empty() {
            self.refusal = bare::refusal(written)?;
        }
        while !self.refusal.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.refusal) {
                Poll::Ready(Ok(some @ 1..)) => self.refusal.advance(some),
                other => return Some(other),
            }
        }
        Some(Poll::Ready(Ok(written.len())))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(read) = &polled {
            let is_end = read.is_ok() && buf.filled().len() == before && buf.remaining() > 0;
            if is_end && this.flags.half_closes() {
                // The end of the request wakes the task.
                return Poll::Pending;
            }
            this.flags.read();
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
        let refused = this.poll_refuse(cx, buf);
        let polled = refused.unwrap_or_else(|| Pin::new(&mut this.stream).poll_write(cx, buf));
        this.flags.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let refused = match bufs {
            [only] => this.poll_refuse(cx, only),
            _ => None,
        };
        let stream = Pin::new(&mut this.stream);
        let polled = refused.unwrap_or_else(|| stream.poll_write_vectored(cx, bufs));
        this.flags.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
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
        }
        let rest = linger.get_or_insert_with(|| Linger {
            left: LINGER_BYTES,
            until: Box::pin(tokio::time::sleep(LINGER)),
        });
        rest.poll(stream, cx)
    }
}

impl Linger {
    /// Ready at the end of the client's bytes, on an error, or when bytes or time are used up.
    fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
        loop {
            let mut buf = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {
                    let read = buf.filled().len();
                    self.left = self.left.saturating_sub(read);
                    if read == 0 || self.left == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
        self.until.as_mut().poll(cx).map(Ok)
    }
}
