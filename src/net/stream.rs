//! One connection, whatever it goes over.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use rustls::{CommonState, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::sim;
use super::socket::Socket;

/// One connection.
#[derive(Debug)]
pub enum Stream {
    /// A socket.
    Tcp(Socket),
    /// A socket with TLS.
    Tls(Box<TlsStream<Socket>>),
    /// One end of a pipe in memory.
    Sim(sim::Pipe),
    /// Any of these whose other end may answer before it has everything, and close. Then HTTP would give up over a failed
    /// write with the answer unread. So what cannot be written is thrown away: reading says what became of it.
    Asking(Box<Stream>),
}

impl Stream {
    /// The server's end of TLS over a socket. A pipe stays as it is.
    ///
    /// # Errors
    /// The client shows no certificate that is wanted, or does not speak TLS.
    pub async fn secured(self, config: Arc<ServerConfig>) -> io::Result<Stream> {
        match self {
            Stream::Tcp(socket) => {
                let secured = TlsAcceptor::from(config).accept(socket).await?;
                Ok(Stream::Tls(Box::new(secured.into())))
            }
            other => Ok(other),
        }
    }

    /// A stream on which we ask by HTTP. Whoever keeps the flag that comes with it sets it before each exchange.
    pub fn asking(mut self) -> (Stream, Arc<AtomicBool>) {
        let begins = Arc::default();
        match &mut self {
            Stream::Tcp(socket) => socket.heeds(Arc::downgrade(&begins)),
            Stream::Tls(stream) => stream.get_mut().0.heeds(Arc::downgrade(&begins)),
            _ => {}
        }
        (Stream::Asking(Box::new(self)), begins)
    }

    /// Whether it leads to one of these ports of this host.
    pub fn leads_to(&self, ports: &[u16]) -> bool {
        let Stream::Tcp(socket) = self else {
            return false;
        };
        matches!((socket.local_addr(), socket.peer_addr()), (Ok(own), Ok(peer))
            if own.ip() == peer.ip() && ports.contains(&peer.port()))
    }

    /// What the two ends agreed on; `None`: they speak without TLS.
    pub fn agreed(&self) -> Option<&CommonState> {
        match self {
            Stream::Tls(stream) => Some(stream.get_ref().1),
            _ => None,
        }
    }
}

/// The most bytes that are joined into one write: a head, and a body that shows a job twice.
const JOINED: usize = 4096;

thread_local! {
    /// The buffer in which pieces are joined.
    static WHOLE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(JOINED));
}

/// Writes small pieces as one: copying some hundred bytes costs less than a write in pieces. Large pieces are written
/// where they lie.
fn write_joined(
    stream: Pin<&mut Socket>,
    cx: &mut Context<'_>,
    pieces: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [piece] = pieces {
        return stream.poll_write(cx, piece);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > JOINED {
        return stream.poll_write_vectored(cx, pieces);
    }
    WHOLE.with_borrow_mut(|whole| {
        whole.clear();
        pieces
            .iter()
            .for_each(|piece| whole.extend_from_slice(piece));
        stream.poll_write(cx, whole)
    })
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Sim(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Asking(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Sim(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Asking(s) => {
                let written = Pin::new(s).poll_write(cx, buf);
                written.map(|done| done.or(Ok(buf.len())))
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => write_joined(Pin::new(s), cx, bufs),
            Stream::Tls(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Sim(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Asking(s) => {
                let written = Pin::new(s).poll_write_vectored(cx, bufs);
                written.map(|done| done.or_else(|_| Ok(bufs.iter().map(|buf| buf.len()).sum())))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(s) => s.is_write_vectored(),
            Stream::Tls(s) => s.is_write_vectored(),
            Stream::Sim(s) => s.is_write_vectored(),
            Stream::Asking(s) => s.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
            Stream::Sim(s) => Pin::new(s).poll_flush(cx),
            Stream::Asking(s) => Pin::new(s).poll_flush(cx).map(|_| Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Sim(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Asking(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
