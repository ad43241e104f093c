//! A socket, and how long the system lets its peer leave bytes of ours unacknowledged.

use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The most bytes that a peer has room for although it does not read. Under a larger body the system does not show that
/// a host has vanished.
pub const SMALL_BODY: usize = 32 * 1024;

/// A socket. One that we opened shows in time that its host vanished, as long as little is under way.
///
/// Linux counts a peer that lives and has no room just as one that vanished. So the bound is taken off once more than
/// 32 KiB were written since something was read: what reads a large body may pause, and the exchange has timeouts of
/// its own. What is read next sets it again. Of HTTP the next exchange does: an answer may begin before its request was
/// read.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    /// How long the other host may leave bytes of ours unacknowledged. Probes do not run while bytes are under way, and by
    /// itself the system would send those again for a quarter of an hour.
    unacknowledged: Duration,
    /// The bytes that were written since something was read; `None`: it has no bound.
    unread: Option<usize>,
    /// Whether an exchange begins, as long as HTTP is spoken.
    begins: Weak<AtomicBool>,
}

impl Socket {
    /// One that a listener accepted.
    pub(super) fn accepted(stream: TcpStream) -> Socket {
        Socket {
            stream,
            unacknowledged: Duration::ZERO,
            unread: None,
            begins: Weak::new(),
        }
    }

    /// One that we opened, and whose host may leave bytes unacknowledged for so long.
    pub(super) fn opened(stream: TcpStream, unacknowledged: Duration) -> io::Result<Socket> {
        bound_silence(&stream, Some(unacknowledged))?;
        Ok(Socket {
            stream,
            unacknowledged,
            unread: Some(0),
            begins: Weak::new(),
        })
    }

    /// Has HTTP say by this, before it writes, that an exchange begins.
    pub(super) fn heeds(&mut self, begins: Weak<AtomicBool>) {
        self.begins = begins;
    }

    /// Takes the bound off when what was written is no longer small. A socket on which that fails shows its end itself.
    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        let begins = self.begins.upgrade();
        if begins.is_some_and(|begins| begins.swap(false, Ordering::Relaxed)) {
            self.bind_again();
        }
        if let (Some(unread), Poll::Ready(Ok(bytes))) = (&mut self.unread, written) {
            let before = *unread;
            *unread = before.saturating_add(*bytes);
            if (before..*unread).contains(&SMALL_BODY) {
                let _ended = bound_silence(&self.stream, None);
            }
        }
    }

    /// Sets the bound again if it was taken off.
    fn bind_again(&mut self) {
        if self.unread.as_mut().map(std::mem::take) > Some(SMALL_BODY) {
            let _ended = bound_silence(&self.stream, Some(self.unacknowledged));
        }
    }
}

/// Bounds how long bytes may stay unacknowledged; `None`: as long as the system likes.
#[cfg_attr(
    not(target_os = "linux"),
    expect(unused_variables, reason = "only Linux has this option")
)]
fn bound_silence(stream: &TcpStream, time: Option<Duration>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(time)?;
    Ok(())
}

impl Deref for Socket {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before && this.begins.strong_count() == 0 {
            this.bind_again();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
