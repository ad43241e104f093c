//! A scanner that is fed a text in pieces and keeps nothing of it but some numbers and short texts: what a service says
//! that a call has cost, in an answer of any size, while its bytes go on.

use std::mem;
use std::sync::Arc;

use memchr::{memchr, memchr2};

use super::{scan, string};

/// How many arrays and objects may be inside each other.
const DEPTH: u8 = 64;
/// How long a number or a text may be, in bytes.
const NUMBER: usize = 256;
/// How long a byte of a name may be, as an escape.
const ESCAPED: usize = "\\u0061".len();

/// Below these members of an event's root a path begins too: Anthropic's first event has `message.usage`, the last one of
/// OpenAI's Responses has `response.usage`. A text that is no event has only its root.
const BELOW: [Option<&str>; 3] = [None, Some("message"), Some("response")];

/// How a line begins that has text of an event.
const DATA: &[u8] = b"data:";
/// So may the first line.
const MARKED: &[u8] = b"\xEF\xBB\xBFdata:";

/// Follows some paths through a JSON text, or through the events of a stream (`text/event-stream`), that comes in pieces.
///
/// It takes little memory, whatever comes. No path goes through an array, and names are exact.
#[derive(Clone, Debug)]
pub struct Scanner {
    paths: Arc<[Box<[Box<str>]>]>,
    found: Box<[Option<u64>]>,
    texts: Box<[Option<Box<str>>]>,
    /// How many of its names each path has around the place, for each of [`BELOW`] that may be.
    matched: Box<[[u8; BELOW.len()]]>,
    may_be: usize,
    state: Expects,
    depth: u8,
    /// Whether each array or object around the place is an object, the innermost lowest.
    objects: u64,
    is_name: bool,
    /// Whether the string around the place is a text that is wanted.
    is_wanted: bool,
    /// A name or a text as it is written, a number or a literal, up to `most` bytes.
    token: Vec<u8>,
    most: usize,
    /// Where it stands in a line, if there are events.
    line: Option<StreamLine>,
    /// Whether a carriage return ended the last line: a line feed may belong to it.
    is_returned: bool,
}

/// How JSON texts stand in what comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// It is one text.
    Json,
    /// Each event has one as its data, as [`text/event-stream`] says. What is no JSON ends with its event.
    ///
    /// [`text/event-stream`]: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
    Events,
}

#[derive(Clone, Copy, Debug)]
enum StreamLine {
    /// Nothing of it came but the beginning of [`DATA`] or [`MARKED`], of which this is left.
    Begins(&'static [u8]),
    Data,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expects {
    /// A value begins.
    Value,
    /// The same, or its array ends.
    FirstItem,
    Name,
    /// The same, or its object ends.
    FirstName,
    Colon,
    /// A value has ended.
    After,
    String,
    /// So many hexadecimal digits are to come; 0: the letter behind a backslash.
    Escape(u8),
    /// A number or a literal.
    Word,
    Broken,
}

impl Scanner {
    /// `paths`: names from the root, such as `["usage", "total_tokens"]`.
    pub fn new(paths: Arc<[Box<[Box<str>]>]>, framing: Framing) -> Scanner {
        let longest = paths.iter().flatten().map(|name| name.len()).max();
        let (may_be, line) = match framing {
            Framing::Json => (1, None),
            Framing::Events => (BELOW.len(), Some(StreamLine::Begins(MARKED))),
        };
        Scanner {
            found: vec![None; paths.len()].into(),
            texts: vec![None; paths.len()].into(),
            matched: vec![[0; BELOW.len()]; paths.len()].into(),
            may_be,
            // A longer name is none of them, however it is written.
            most: NUMBER.max(ESCAPED * (longest.unwrap_or(0) + 1)),
            paths,
            state: Expects::Value,
            depth: 0,
            objects: 0,
            is_name: false,
            is_wanted: false,
            token: Vec::new(),
            line,
            is_returned: false,
        }
    }

    /// The last number at this path (by its place in `paths`), capped, and rounded up to a whole one. What is negative is
    /// none. `None`: there was none, or what came is no JSON.
    pub fn found(&self, nth: usize) -> Option<u64> {
        *self.found.get(nth).filter(|_| !self.is_broken())?
    }

    /// The last text at this path that is short.
    pub fn text_at(&self, nth: usize) -> Option<&str> {
        self.texts
            .get(nth)?
            .as_deref()
            .filter(|_| !self.is_broken())
    }

    /// Whether the text that began last is whole.
    pub fn is_between(&self) -> bool {
        self.depth == 0 && matches!(self.state, Expects::Value | Expects::After)
    }

    /// Whether the text is no JSON that we read. Events never are: what was found before still stands.
    pub fn is_broken(&self) -> bool {
        self.line.is_none() && self.state == Expects::Broken
    }

    /// Takes the next piece.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let Some(mut line) = self.line else {
            return self.text(bytes);
        };
        while let Some((first, after)) = bytes.split_first() {
            let was_returned = mem::take(&mut self.is_returned);
            (line, bytes) = match line {
                _ if was_returned && *first == b'\n' => (line, after),
                _ if matches!(first, b'\r' | b'\n') => {
                    self.is_returned = *first == b'\r';
                    if matches!(line, StreamLine::Begins(DATA)) {
                        self.restart();
                    }
                    (StreamLine::Begins(DATA), after)
                }
                StreamLine::Begins(left) => match left.split_first() {
                    Some((next, [])) if next == first => {
                        // The lines of an event are one text.
                        self.text(b"\n");
                        (StreamLine::Data, after)
                    }
                    Some((next, left)) if next == first => (StreamLine::Begins(left), after),
                    _ if left == MARKED => (StreamLine::Begins(DATA), bytes),
                    _ => (StreamLine::Other, after),
                },
                StreamLine::Data | StreamLine::Other => {
                    let end = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    let (piece, behind) = bytes.split_at(end);
                    if let StreamLine::Data = line {
                        self.text(piece);
                    }
                    (line, behind)
                }
            };
        }
        self.line = Some(line);
    }

    /// An event has ended.
    fn restart(&mut self) {
        (self.state, self.depth, self.objects) = (Expects::Value, 0, 0);
        self.matched.fill([0; BELOW.len()]);
    }

    fn text(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at = match self.state {
                Expects::Broken => return,
                Expects::String => self.string(bytes, at),
                Expects::Word => self.word(bytes, at),
                state => {
                    self.state = self.next(state, *byte);
                    at + 1
                }
            }
        }
    }

    fn next(&mut self, state: Expects, byte: u8) -> Expects {
        match (state, byte) {
            (Expects::Escape(left), _) => {
                self.keep(&[byte]);
                match (left, byte) {
                    (0, b'u') => Expects::Escape(4),
                    (0, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Expects::String,
                    (1.., _) if !byte.is_ascii_hexdigit() => Expects::Broken,
                    (1, _) => Expects::String,
                    (2.., _) => Expects::Escape(left - 1),
                    _ => Expects::Broken,
                }
            }
            (state, b' ' | b'\n' | b'\r' | b'\t') => state,
            (Expects::Value | Expects::FirstItem | Expects::Name | Expects::FirstName, b'"') => {
                self.is_name = matches!(state, Expects::Name | Expects::FirstName);
                self.is_wanted = !self.is_name && self.wanted().next().is_some();
                self.token.clear();
                Expects::String
            }
            (Expects::Colon, b':') => Expects::Value,
            (Expects::After, b',') if self.depth > 0 && self.is_object() => Expects::Name,
            (Expects::After, b',') if self.depth > 0 => Expects::Value,
            (Expects::After | Expects::FirstItem | Expects::FirstName, b']' | b'}')
                if self.depth > 0 && self.is_object() == (byte == b'}') =>
            {
                self.depth -= 1;
                self.objects >>= 1;
                Expects::After
            }
            (Expects::Value | Expects::FirstItem, b'{' | b'[') if self.depth < DEPTH => {
                self.depth += 1;
                self.objects = self.objects << 1 | u64::from(byte == b'{');
                match byte {
                    b'{' => Expects::FirstName,
                    _ => Expects::FirstItem,
                }
            }
            (Expects::Value | Expects::FirstItem, _) => {
                self.token.clear();
                self.keep(&[byte]);
                Expects::Word
            }
            _ => Expects::Broken,
        }
    }

    fn is_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = self.most - self.token.len();
        let piece = piece.get(..room).unwrap_or(piece);
        self.token.extend_from_slice(piece);
    }

    /// Goes on in a string; returns how far.
    fn string(&mut self, bytes: &[u8], from: usize) -> usize {
        let to = scan::stop(bytes, from);
        if self.is_name || self.is_wanted {
            self.keep(bytes.get(from..to).unwrap_or_default());
        }
        self.state = match bytes.get(to) {
            None => return to,
            Some(b'"') if self.is_name => self.name_ends(),
            Some(b'"') => {
                if self.is_wanted {
                    self.text_ends();
                }
                Expects::After
            }
            Some(b'\\') => {
                self.keep(b"\\");
                Expects::Escape(0)
            }
            Some(_) => Expects::Broken,
        };
        to + 1
    }

    /// Notes a text that has ended, unless it is too long.
    fn text_ends(&mut self) {
        if self.token.len() >= self.most {
            return;
        }
        // Most events of a stream say what the one before them did.
        let is_known = |nth: &usize| {
            let known = self.texts.get(*nth).and_then(Option::as_deref);
            known.is_some_and(|known| known.as_bytes() == self.token)
        };
        let news: Vec<_> = self.wanted().filter(|nth| !is_known(nth)).collect();
        for nth in news {
            if let Some(found) = self.texts.get_mut(nth) {
                *found = string::unescape(&self.token)
                    .map(Box::from)
                    .or(found.take());
            }
        }
    }

    fn name_ends(&mut self) -> Expects {
        let unescaped = memchr(b'\\', &self.token).map(|_| string::unescape(&self.token));
        let name = match &unescaped {
            None => Some(&*self.token),
            Some(text) => text.as_ref().map(String::as_bytes),
        };
        let before = self.depth - 1;
        for (path, matched) in self.paths.iter().zip(&mut self.matched) {
            for (matched, below) in matched.iter_mut().zip(BELOW).take(self.may_be) {
                if *matched >= before {
                    let next = next_name(path, below, before).map(str::as_bytes);
                    *matched = before + u8::from(next.is_some() && next == name);
                }
            }
        }
        Expects::Colon
    }

    /// Goes on in a number or a literal; returns how far.
    fn word(&mut self, bytes: &[u8], from: usize) -> usize {
        let rest = bytes.get(from..).unwrap_or_default();
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
        let end = rest.iter().position(is_end);
        let (piece, _) = rest.split_at(end.unwrap_or(rest.len()));
        self.keep(piece);
        if end.is_some() {
            let is_whole = self.token.len() < self.most;
            let read = scan::value(&self.token, 0, 0);
            self.state = match read == Ok(self.token.len()) && is_whole {
                true => Expects::After,
                false => Expects::Broken,
            };
            self.finds();
        }
        from + piece.len()
    }

    /// The paths that end at the place.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        let paths = self.paths.iter().zip(&self.matched).enumerate();
        let ends = paths.filter(|(_, (path, matched))| {
            let ends = |(matched, below): (&u8, _)| {
                *matched == self.depth && next_name(path, below, self.depth).is_none()
            };
            matched.iter().zip(BELOW).take(self.may_be).any(ends)
        });
        ends.map(|(nth, _)| nth)
    }

    /// Notes a number that has ended, if it is wanted.
    fn finds(&mut self) {
        let is_number = self.state == Expects::After;
        let wanted: Vec<_> = self.wanted().filter(|_| is_number).collect();
        for nth in wanted {
            if let Some(found) = self.found.get_mut(nth) {
                *found = whole(&self.token).or(*found);
            }
        }
    }
}

/// The name that follows on so many others.
fn next_name<'p>(path: &'p [Box<str>], below: Option<&'p str>, before: u8) -> Option<&'p str> {
    match below {
        Some(first) if before == 0 => Some(first),
        _ => path
            .get(usize::from(before) - usize::from(below.is_some()))
            .map(|name| &**name),
    }
}

/// A number that is not negative, as the next whole one that fits.
fn whole(number: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(number).ok()?;
    number.parse().ok().or_else(|| {
        let number = number.parse::<f64>().ok()?;
        number.is_sign_positive().then_some(number.ceil() as u64)
    })
}

#[cfg(test)]
mod tests;
