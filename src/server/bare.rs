//! Heads that hyper cannot read it refuses by itself, with a status and nothing else. Clients get that in the envelope
//! of all other refusals.

use bytes::Bytes;
use http::StatusCode;

use crate::proxy::respond::Fault;

/// How such a refusal begins. A reply that crosses has a `Via`, and one of ours has a body.
const BEGIN: &[u8] = b"HTTP/1.1 4";
const END: &[u8] = b"\r\n\r\n";

/// Our refusal in place of hyper's; `None`: what is written is none of those.
pub(super) fn refusal(written: &[u8]) -> Option<Bytes> {
    let head = written.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let status = lines.next()?.get(..2)?;
    let status: u16 = format!("4{status}").parse().ok()?;
    let mut date = String::new();
    for line in lines {
        match line.split_once(": ")? {
            ("content-length", "0") | ("connection", "close") => {}
            ("date", _) => date = format!("{line}\r\n"),
            _ => return None,
        }
    }
    Some(text(
        &Fault::head(StatusCode::from_u16(status).ok()?),
        &date,
    ))
}

/// A refusal as it is written.
fn text(fault: &Fault, date: &str) -> Bytes {
    let (head, body) = fault.reply(None).into_parts();
    let body = body.as_whole();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {}\r\n{date}content-length: {length}\r\n",
        head.status
    );
    let mut text = text.into_bytes();
    for (name, value) in &head.headers {
        for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.extend_from_slice(piece);
        }
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(body);
    text.into()
}
