//! HTTP/1.1 messages on a connection, for both ends of the bench: as little work as can be, because
//! what is measured stands between them.

use anyhow::{Context, Result, bail};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One end of a connection.
pub struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
}

/// A message that has come whole: the first `head` bytes of the buffer are its head, the bytes up
/// to `end` its body.
#[derive(Clone, Copy)]
pub struct Message {
    /// The status of a reply; 0 for a request.
    pub status: u16,
    /// Where the body begins.
    pub head: usize,
    /// Where the next message begins.
    pub end: usize,
}

impl Wire {
    /// Takes a connection over.
    pub fn new(stream: TcpStream) -> Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire {
            stream,
            buffer: BytesMut::with_capacity(32 * 1024),
        })
    }

    /// Writes bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Waits for a request; `None`: the other side has closed.
    pub async fn request(&mut self) -> Result<Option<Message>> {
        self.message(|bytes| {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Request::new(&mut headers);
            let parsed = head.parse(bytes)?;
            Ok((parsed, 0, length(head.headers)?))
        })
        .await
    }

    /// Waits for a reply.
    pub async fn reply(&mut self) -> Result<Message> {
        let reply = self.message(|bytes| {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Response::new(&mut headers);
            let parsed = head.parse(bytes)?;
            Ok((parsed, head.code.unwrap_or_default(), length(head.headers)?))
        });
        reply.await?.context("the proxy closed the connection")
    }

    /// The bytes of a message that has come.
    pub fn bytes(&self, message: Message) -> (&[u8], &[u8]) {
        let whole = self.buffer.get(..message.end).unwrap_or_default();
        whole.split_at_checked(message.head).unwrap_or_default()
    }

    /// Forgets a message.
    pub fn done(&mut self, message: Message) {
        self.buffer.advance(message.end);
    }

    async fn message(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<(httparse::Status<usize>, u16, usize)>,
    ) -> Result<Option<Message>> {
        loop {
            if !self.buffer.is_empty()
                && let (httparse::Status::Complete(head), status, length) = parse(&self.buffer)?
            {
                let end = head + length;
                while self.buffer.len() < end {
                    if self.stream.read_buf(&mut self.buffer).await? == 0 {
                        bail!("the connection ended within a message");
                    }
                }
                return Ok(Some(Message { status, head, end }));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

fn length(headers: &[httparse::Header<'_>]) -> Result<usize> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            return Ok(std::str::from_utf8(header.value)?.parse()?);
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            bail!("the bench reads no chunked bodies");
        }
    }
    Ok(0)
}
