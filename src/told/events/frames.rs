//! Cuts an event stream into frames, and reads their fields.

use bytes::{Buf as _, Bytes, BytesMut};

/// The largest frame, in bytes.
const LARGEST: usize = 1 << 20;

/// A frame is too large, and was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an event of more than {LARGEST} bytes")]
pub struct TooLong;

/// Cuts a stream into frames. Line ends become `\n`, because some readers know no other.
#[derive(Default, Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// No frame ends before this place.
    searched: usize,
    /// Whether the last byte was a carriage return, whose line feed may follow.
    returned: bool,
    /// Whether the rest of a frame that is too long is being skipped.
    skips: bool,
}

impl Frames {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.reserve(bytes.len());
        for byte in bytes {
            match (byte, std::mem::replace(&mut self.returned, *byte == b'\r')) {
                (b'\n', true) => {}
                (b'\r', _) => self.buffer.extend_from_slice(b"\n"),
                _ => self.buffer.extend_from_slice(&[*byte]),
            }
        }
    }

    /// The next whole frame, with its empty line. Bytes left at the end of a stream are no frame.
    ///
    /// # Errors
    /// The next frame is too long: it is left out, and the one after it comes next.
    #[expect(clippy::should_implement_trait, reason = "more may come after None")]
    pub fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        loop {
            let from = self.searched.saturating_sub(1);
            let rest = self.buffer.get(from..).unwrap_or_default();
            let Some(at) = memchr::memmem::find(rest, b"\n\n") else {
                break;
            };
            self.searched = 0;
            let frame = self.buffer.split_to(from + at + 2);
            if !std::mem::take(&mut self.skips) {
                return Ok(Some(frame.freeze()));
            }
        }
        let too_long = !self.skips && self.buffer.len() > LARGEST;
        self.skips |= too_long;
        if self.skips {
            // The last byte may be half of its end.
            let gone = self.buffer.len().saturating_sub(1);
            self.buffer.advance(gone);
        }
        self.searched = self.buffer.len();
        match too_long {
            true => Err(TooLong),
            false => Ok(None),
        }
    }

    /// The whole lines before the next frame that carry no event: comments, which are signs of life, and empty lines.
    pub fn comments(&mut self) -> Bytes {
        if self.skips {
            return Bytes::new();
        }
        let lines = self.buffer.split_inclusive(|byte| *byte == b'\n');
        let silent = lines.take_while(|line| line.starts_with(b":") || line.starts_with(b"\n"));
        let whole = silent.filter(|line| line.ends_with(b"\n"));
        let length = whole.map(<[u8]>::len).sum();
        self.searched = self.searched.saturating_sub(length);
        self.buffer.split_to(length).freeze()
    }
}

/// The values of a frame's field, in order.
pub fn field<'a>(frame: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = frame.split(|byte| *byte == b'\n');
    lines.filter_map(move |line| {
        let rest = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        Some(rest.strip_prefix(b" ").unwrap_or(rest))
    })
}

/// The frame's data as one text, if it has any.
pub fn data(frame: &[u8]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = field(frame, "data").collect();
    (!lines.is_empty()).then(|| lines.join(&b'\n'))
}

/// Replaces the frame's data.
pub fn with_data(frame: &[u8], data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(frame.len() + data.len());
    for line in frame.split(|byte| *byte == b'\n') {
        if !line.is_empty() && !line.starts_with(b"data:") {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\n");
        }
    }
    for line in data.split(|byte| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"\n");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&str]) -> Vec<String> {
        let mut frames = Frames::default();
        let mut out = Vec::new();
        for piece in pieces {
            frames.push(piece.as_bytes());
            while let Some(frame) = frames.next().unwrap() {
                out.push(String::from_utf8(frame.to_vec()).unwrap());
            }
        }
        out
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let text = "retry: 3000\n\nid: 1\nevent: a\ndata: {\"x\":1}\n\n:heartbeat\n\nid: 2\nda";
        let whole = [
            "retry: 3000\n\n",
            "id: 1\nevent: a\ndata: {\"x\":1}\n\n",
            ":heartbeat\n\n",
        ];
        assert_eq!(all(&[text]), whole);
        for at in 1..text.len() {
            let (before, behind) = text.split_at(at);
            assert_eq!(all(&[before, behind]), whole, "cut at {at}");
        }
        let bytes: Vec<String> = text.chars().map(String::from).collect();
        let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
        assert_eq!(all(&bytes), whole);
    }

    #[test]
    fn comments_need_no_empty_line() {
        let mut frames = Frames::default();
        let mut after = |bytes: &[u8]| {
            frames.push(bytes);
            let whole = frames.next().unwrap();
            (whole, frames.comments())
        };
        assert_eq!(after(b":ping\n:po"), (None, Bytes::from(":ping\n")));
        assert_eq!(after(b"ng\r"), (None, Bytes::from(":pong\n")));
        assert_eq!(after(b"\n\ndata: 1\n:in it\n"), (None, Bytes::from("\n")));
        let frame = Bytes::from("data: 1\n:in it\n\n");
        assert_eq!(
            after(b"\n:behind it\n"),
            (Some(frame), Bytes::from(":behind it\n"))
        );
    }

    #[test]
    fn line_ends_of_all_three_kinds() {
        assert_eq!(
            all(&["data: 1\r\n\r\ndata: 2\r\r"]),
            ["data: 1\n\n", "data: 2\n\n"]
        );
        assert_eq!(
            all(&["data: 1\r\n\r", "\ndata: 2\r", "\n\r\n"]),
            ["data: 1\n\n", "data: 2\n\n"]
        );
    }

    #[test]
    fn a_frame_that_is_too_long_is_left_out() {
        for end in ["\n\n", "\r\n\r\n", ":no comment\n\n"] {
            let mut frames = Frames::default();
            for _ in 0..LARGEST / 1024 {
                frames.push(&[b'x'; 1024]);
                assert_eq!(frames.next(), Ok(None));
            }
            frames.push(b"x");
            assert_eq!(frames.next(), Err(TooLong));
            for byte in end.bytes() {
                assert_eq!((frames.next(), frames.comments()), (Ok(None), Bytes::new()));
                frames.push(&[byte]);
            }
            assert!(frames.buffer.len() < 1024, "it is not kept");
            frames.push(b"data: 1\n\n:ping\n");
            assert_eq!(
                frames.next(),
                Ok(Some(Bytes::from("data: 1\n\n"))),
                "{end:?}"
            );
            assert_eq!(
                (frames.next(), frames.comments()),
                (Ok(None), Bytes::from(":ping\n"))
            );
        }
    }

    #[test]
    fn fields_and_other_data() {
        let frame = b"id:7\nevent: e\ndata: a\ndata:b\n\n";
        assert_eq!(field(frame, "id").collect::<Vec<_>>(), [b"7"]);
        assert_eq!(data(frame).unwrap(), b"a\nb");
        assert_eq!(data(b":heartbeat\n\n"), None);
        let other = with_data(frame, b"{\n}");
        assert_eq!(&other[..], b"id:7\nevent: e\ndata: {\ndata: }\n\n");
    }
}
