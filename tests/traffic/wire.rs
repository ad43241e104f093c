//! HTTP/1.1 messages as they stand on the wire: order and case of headers, reason, framing.

use tokio::io::{AsyncRead, AsyncReadExt};

/// A request or a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The first line.
    pub start: String,
    /// Names and values in their order and case.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Message {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |(n, _): &&(String, String)| n.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(named)
            .map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }
}

/// The bytes of a message, framed as its headers say.
pub fn framed(message: &Message) -> Vec<u8> {
    let mut bytes = format!("{}\r\n", message.start).into_bytes();
    for (name, value) in &message.headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    if message.is_chunked() {
        // In two pieces, as what is long comes.
        let (one, two) = message.body.split_at(message.body.len() / 2);
        for piece in [one, two].into_iter().filter(|piece| !piece.is_empty()) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        bytes.extend_from_slice(&message.body);
    }
    bytes
}

async fn more(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> bool {
    matches!(stream.read_buf(buffer).await, Ok(n) if n > 0)
}

/// Takes everything up to `end` off the buffer, reading as much as it takes; without `end` itself.
async fn until(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    end: &[u8],
) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|window| window == end) {
            let rest = buffer.split_off(at + end.len());
            let mut taken = std::mem::replace(buffer, rest);
            taken.truncate(at);
            return Some(taken);
        }
        if !more(stream, buffer).await {
            return None;
        }
    }
}

async fn exactly(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
) -> Option<Vec<u8>> {
    while buffer.len() < length {
        if !more(stream, buffer).await {
            return None;
        }
    }
    let rest = buffer.split_off(length);
    Some(std::mem::replace(buffer, rest))
}

/// The next message on a connection; nothing if it ends first.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<Message> {
    let head = String::from_utf8(until(stream, buffer, b"\r\n\r\n").await?).ok()?;
    let mut lines = head.split("\r\n");
    let start = lines.next()?.to_owned();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        (name.to_owned(), value.trim().to_owned())
    });
    let mut message = Message {
        start,
        headers: headers.collect(),
        body: Vec::new(),
    };
    if message.is_chunked() {
        loop {
            let size = until(stream, buffer, b"\r\n").await?;
            let size = usize::from_str_radix(std::str::from_utf8(&size).ok()?, 16).ok()?;
            message.body.extend(exactly(stream, buffer, size).await?);
            exactly(stream, buffer, 2).await?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = message.header("content-length") {
        message.body = exactly(stream, buffer, length.parse().ok()?).await?;
    }
    Some(message)
}
