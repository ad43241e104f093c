//! Where names of queues stand in replies: there the base stands in place of a subqueue, and no other byte changes. Only
//! bases with subqueues count, and what is a job's own is never looked into.
//!
//! One reader goes over replies that are known whole and over streams, of JSON and of events. Of a stream it keeps back a
//! text that has not come whole, where that may be a name, and nothing else.

use std::ops::Range;

use bytes::Bytes;
use memchr::memchr3;
use smallvec::SmallVec;

use super::Subqueues;
use super::mirror;
use ojs_json::{Json, Splice, quote};

/// The longest text that is kept back, in bytes: no queue's name is longer, with each of its 128 characters escaped.
const LONGEST: usize = 1_024;
/// So many objects and lists may be open around a name. What stands deeper is not looked into.
const DEEPEST: usize = 64;
/// Before the data of an event.
const DATA: &[u8] = b"data:";

/// What is known of a reply before it is read.
#[derive(Clone, Copy, Default, Debug)]
pub struct ReplyKind {
    /// Its `error` is the backend's, and not that of a job.
    pub is_failure: bool,
    /// It lists queues.
    pub lists_queues: bool,
    /// It is an event stream.
    pub is_stream: bool,
}

/// What a value is, by where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamePlace {
    /// The whole reply.
    Top,
    /// A job's own, whatever it looks like.
    Own,
    /// A list of queues, or a table by queue.
    Queues,
    /// One of a list of queues: its name, or an object with that.
    Queue,
    /// The name of a queue.
    Name,
    /// The name of a queue, or of its channel.
    Channel,
    /// What went wrong: an object, or a sentence.
    Error,
    /// A sentence that may name queues.
    Sentence,
    /// Facts to an error, which may be names.
    Details,
    /// Nothing that names a queue.
    Other,
}

impl NamePlace {
    /// What a member of this name is.
    pub fn member(self, name: &str, kind: ReplyKind) -> NamePlace {
        match (self, name) {
            (NamePlace::Own | NamePlace::Details, _) => self,
            (NamePlace::Top, "error") if kind.is_failure => NamePlace::Error,
            (NamePlace::Top | NamePlace::Error, "message") if kind.is_failure => {
                NamePlace::Sentence
            }
            (NamePlace::Top | NamePlace::Error, "details") if kind.is_failure => NamePlace::Details,
            (_, "payload" | "results") => NamePlace::Own,
            (_, name) if mirror::OWN.contains(&name) => NamePlace::Own,
            (_, "queue") | (NamePlace::Queue, "name") => NamePlace::Name,
            (_, "subject" | "channel") => NamePlace::Channel,
            (NamePlace::Top, "items") if kind.lists_queues => NamePlace::Queues,
            (_, name) if name.contains("queue") => NamePlace::Queues,
            _ => NamePlace::Other,
        }
    }

    /// What an item of a list is.
    pub fn item(self, kind: ReplyKind) -> NamePlace {
        match self {
            NamePlace::Own | NamePlace::Details => self,
            NamePlace::Queues => NamePlace::Queue,
            NamePlace::Top if kind.lists_queues => NamePlace::Queue,
            _ => NamePlace::Other,
        }
    }

    /// A text that stands there, with bases in it; `None`: no name stands there.
    fn shown(self, text: &str, subqueues: &Subqueues) -> Option<String> {
        match self {
            NamePlace::Name | NamePlace::Queue | NamePlace::Details => {
                Some(subqueues.base_of(text).to_owned())
            }
            NamePlace::Channel => {
                let (before, name) = text.split_at(if text.starts_with("queue:") { 6 } else { 0 });
                Some([before, subqueues.base_of(name)].concat())
            }
            NamePlace::Error | NamePlace::Sentence => {
                let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
                let words = text.split_inclusive(|c| !is_of_name(c)).map(|word| {
                    let name = word.trim_end_matches(|c: char| !c.is_alphanumeric());
                    let (name, after) = word.split_at(name.len());
                    [subqueues.base_of(name), after].concat()
                });
                Some(words.collect())
            }
            NamePlace::Top | NamePlace::Own | NamePlace::Queues | NamePlace::Other => None,
        }
    }
}

/// A reply that is known whole, with bases in it; `None`: it names no subqueue.
pub fn changed(text: &[u8], kind: ReplyKind, subqueues: &Subqueues) -> Option<Vec<u8>> {
    let mut splice = Splice::new();
    NameReader::new(kind).read(text, subqueues, &mut splice);
    (!splice.is_empty()).then(|| splice.apply(text))
}

/// Reads a reply from front to back.
#[derive(Debug)]
pub struct NameReader {
    kind: ReplyKind,
    line: EventLine,
    /// What is open, the innermost last, without what is within [`NameReader::own`]; and whether it is an object.
    open: SmallVec<[(NamePlace, bool); 16]>,
    /// How many objects and lists are open in what is not looked into.
    own: usize,
    /// The next text is a member's name.
    is_name: bool,
    /// What comes next, if it is no name.
    next: NamePlace,
    /// A text goes on in the next part, where so many bytes of it are no end of it: none, or the second of an escape.
    inside: Option<usize>,
    /// A text that may be a name, as far as it came.
    kept: Bytes,
}

/// Where in a line of an event stream it reads.
#[derive(Clone, Copy, Debug)]
enum EventLine {
    /// At so many bytes of [`DATA`].
    Begin(usize),
    Data,
    Other,
}

impl NameReader {
    /// Begins with a reply of this kind.
    pub fn new(kind: ReplyKind) -> NameReader {
        NameReader {
            kind,
            line: EventLine::Begin(0),
            open: SmallVec::new(),
            own: 0,
            is_name: false,
            next: NamePlace::Top,
            inside: None,
            kept: Bytes::new(),
        }
    }

    /// What to pass on of a stream, of which this part came; nothing: that was the end.
    pub fn part(&mut self, part: Bytes, subqueues: &Subqueues) -> Bytes {
        let is_end = part.is_empty();
        let mut text = match self.kept.is_empty() {
            true => part,
            false => [&*std::mem::take(&mut self.kept), &*part].concat().into(),
        };
        let mut splice = Splice::new();
        let read = self.read(&text, subqueues, &mut splice);
        if !is_end {
            self.kept = text.split_off(read);
        }
        match splice.is_empty() {
            true => text,
            false => splice.apply(&text).into(),
        }
    }

    /// Reads on. Returns how far, which is to the end or to a text of which more is needed.
    fn read(&mut self, text: &[u8], subqueues: &Subqueues, splice: &mut Splice) -> usize {
        let mut at = match self.inside.take().map(|skipped| text_end(text, skipped)) {
            Some(Err(skipped)) => {
                self.inside = Some(skipped);
                text.len()
            }
            ended => ended.map_or(0, Result::unwrap_or_default),
        };
        while let Some(byte) = text.get(at).copied() {
            if self.kind.is_stream && !self.is_data(byte) {
                at += 1;
            } else if byte != b'"' {
                self.structure(byte);
                at += 1;
            } else {
                match text_end(text, at + 1) {
                    Ok(end) => {
                        self.text(text, at..end, subqueues, splice);
                        at = end;
                    }
                    Err(_) if self.matters() && text.len() - at < LONGEST => return at,
                    Err(skipped) => {
                        self.text(text, 0..0, subqueues, splice);
                        self.inside = Some(skipped);
                        return text.len();
                    }
                }
            }
        }
        text.len()
    }

    /// Whether a text that comes next may be a name, or name a member.
    fn matters(&self) -> bool {
        let no_name = matches!(
            self.next,
            NamePlace::Top | NamePlace::Own | NamePlace::Queues | NamePlace::Other
        );
        self.own == 0 && (self.is_name || !no_name)
    }

    /// A text, with its quotes. One that is none names nothing.
    fn text(&mut self, all: &[u8], at: Range<usize>, subqueues: &Subqueues, splice: &mut Splice) {
        if !self.matters() {
            return;
        }
        let raw = all.get(at.clone()).unwrap_or_default();
        let text = Json::parse(raw, 0).ok().and_then(|text| text.text());
        let text = text.unwrap_or_default();
        let mut place = self.next;
        if self.is_name {
            let (of, _) = self.open.last().copied().unwrap_or((NamePlace::Top, true));
            self.next = of.member(&text, self.kind);
            place = if of == NamePlace::Queues {
                NamePlace::Name
            } else {
                NamePlace::Other
            };
        }
        if let Some(shown) = place.shown(&text, subqueues).filter(|shown| *shown != text) {
            splice.replace(at, quote(&shown));
        }
    }

    /// A byte outside of texts.
    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' if self.own > 0 => self.own += 1,
            b'}' | b']' if self.own > 0 => self.own -= 1,
            b'{' | b'[' if self.next == NamePlace::Own || self.open.len() >= DEEPEST => {
                self.own = 1
            }
            b'{' | b'[' => {
                self.open.push((self.next, byte == b'{'));
                self.piece();
            }
            b'}' | b']' => {
                self.open.pop();
                self.is_name = false;
                if self.open.is_empty() {
                    self.next = NamePlace::Top;
                }
            }
            b',' if self.own == 0 => self.piece(),
            b':' if self.own == 0 => self.is_name = false,
            _ => {}
        }
    }

    /// The next member or item comes.
    fn piece(&mut self) {
        if let Some((place, is_object)) = self.open.last() {
            (self.is_name, self.next) = (*is_object, place.item(self.kind));
        }
    }

    /// Whether a byte of an event stream is part of an event's data, which is read as JSON.
    fn is_data(&mut self, byte: u8) -> bool {
        self.line = match (self.line, byte) {
            (EventLine::Begin(0), b'\n') => {
                *self = NameReader::new(self.kind);
                EventLine::Begin(0)
            }
            (_, b'\n') | (EventLine::Begin(0), b'\r') => EventLine::Begin(0),
            (EventLine::Data, _) => return true,
            (EventLine::Begin(at), byte) if DATA.get(at) == Some(&byte) => {
                match at + 1 < DATA.len() {
                    true => EventLine::Begin(at + 1),
                    false => EventLine::Data,
                }
            }
            _ => EventLine::Other,
        };
        false
    }
}

/// Where a text ends whose inside goes on at this place, or the line in which it has no end.
///
/// # Errors
/// It goes on in the next part, of which so many bytes are no end of it.
fn text_end(text: &[u8], mut at: usize) -> Result<usize, usize> {
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let Some(found) = memchr3(b'"', b'\\', b'\n', rest) else {
            return Err(at.saturating_sub(text.len()));
        };
        at += found;
        match rest.get(found) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\n') => return Ok(at),
            _ => at += 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever comes, little of it is kept.
    #[test]
    fn what_is_kept_has_a_bound() {
        let subqueues = Subqueues::of_file(&["mail"]);
        for begin in [
            r#"{"queue":""#,
            r#"{""#,
            &"[".repeat(100_000),
            r#"{"args":""#,
        ] {
            let mut reader = NameReader::new(ReplyKind::default());
            let mut out = reader.part(Bytes::from(begin.to_owned()), &subqueues).len();
            for _ in 0..100 {
                let more = Bytes::from("mail-ojst-7f".repeat(10));
                out += reader.part(more, &subqueues).len();
                assert!(reader.kept.len() < LONGEST && reader.open.len() <= DEEPEST);
            }
            assert!(begin.len() + 12_000 - out < LONGEST);
        }
    }
}
