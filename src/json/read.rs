//! Reads while it checks, so that each byte of a text is looked at once.
//!
//! [`Json::parse`] checks a text, and every walk over it afterwards looks at it again. Where one walk is
//! enough, and the text is large or comes with every request, a [`Reader`] does both in one pass.

use super::error::JsonError;
use super::name::{Lengths, Name};
use super::scan;
use super::value::{Json, Kind};

/// A place in a text that is being read from front to back. Until [`Reader::end`] has said so, what
/// follows that place may be malformed.
#[derive(Debug)]
pub struct Reader<'a> {
    text: &'a [u8],
    pos: usize,
    /// How many arrays and objects may still be opened inside each other.
    depth: usize,
    most: usize,
    /// Whether a picked member was there before.
    repeats: bool,
}

/// A value, with the members of it that were looked for.
type Picked<'a, const N: usize> = Result<(Json<'a>, [Option<Json<'a>>; N]), JsonError>;

impl<'a> Json<'a> {
    /// Checks that `text` is exactly one JSON value (RFC 8259), with at most `depth` arrays and objects
    /// inside each other: with a `depth` of 0 only a scalar passes.
    ///
    /// As in Go, numbers may be of any size, an escaped surrogate may stand alone, and what is not UTF-8
    /// in a string is no fault: a backend that stores such a job must not be gone round by it. Stack use
    /// does not grow with the nesting.
    ///
    /// # Errors
    ///
    /// The first place that is malformed or too deep, whichever comes first in the text.
    pub fn parse(text: &'a [u8], depth: usize) -> Result<Json<'a>, JsonError> {
        let mut reader = Reader::new(text, depth);
        let whole = reader.value()?;
        reader.end()?;
        Ok(whole)
    }
}

impl<'a> Reader<'a> {
    /// At the beginning of `text`, of which at most `depth` arrays and objects may be inside each other.
    pub fn new(text: &'a [u8], depth: usize) -> Reader<'a> {
        Reader {
            text,
            pos: scan::blank(text, 0),
            depth,
            most: depth,
            repeats: false,
        }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// The first place in it that is malformed or too deep.
    pub fn value(&mut self) -> Result<Json<'a>, JsonError> {
        let start = self.pos;
        let end = scan::value(self.text, start, self.depth);
        self.pos = end.map_err(|error| self.deep(error))?;
        Ok(Json::at(self.text, start..self.pos))
    }

    /// What the next value is, by its first byte.
    pub fn kind(&self) -> Kind {
        Json::at(self.text, self.pos..self.pos).kind()
    }

    /// Reads one value; of an object also members, as [`Json::pick`] finds them.
    ///
    /// # Errors
    /// See [`Reader::value`].
    pub fn pick<const N: usize>(&mut self, names: [&str; N]) -> Picked<'a, N> {
        self.pick_by(names, |written, name| written.folds_to(name))
    }

    /// Reads one value; of an object also members, as [`Json::pick_exact`] finds them.
    ///
    /// # Errors
    /// See [`Reader::value`].
    pub fn pick_exact<const N: usize>(&mut self, names: [&str; N]) -> Picked<'a, N> {
        self.pick_by(names, |written, name| written.is(name))
    }

    #[inline]
    fn pick_by<const N: usize>(
        &mut self,
        names: [&str; N],
        is: impl Fn(Name<'_>, &str) -> bool,
    ) -> Picked<'a, N> {
        let (mut found, mut repeats) = ([None; N], false);
        let lengths = Lengths::of(&names);
        let whole = self.members(|name, reader| {
            let value = reader.value()?;
            if lengths.may_have(name) {
                for (slot, wanted) in found.iter_mut().zip(&names) {
                    if is(name, wanted) {
                        repeats |= slot.replace(value).is_some();
                    }
                }
            }
            Ok(())
        })?;
        self.repeats |= repeats;
        Ok((whole, found))
    }

    /// Whether a picked member was there more than once, in whatever spelling: the last was picked, and others may
    /// take another.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Reads one value; of an array `item` reads each item.
    ///
    /// # Errors
    /// See [`Reader::value`].
    pub fn items(
        &mut self,
        mut item: impl FnMut(&mut Reader<'a>) -> Result<(), JsonError>,
    ) -> Result<Json<'a>, JsonError> {
        self.inside(b'[', b']', |reader| item(reader))
    }

    /// Reads one value; of an object `member` reads the value of each member, the last of a name last.
    ///
    /// # Errors
    /// See [`Reader::value`].
    pub fn members(
        &mut self,
        mut member: impl FnMut(Name<'a>, &mut Reader<'a>) -> Result<(), JsonError>,
    ) -> Result<Json<'a>, JsonError> {
        self.inside(b'{', b'}', |reader| {
            let text = reader.text;
            let name = scan::name(text, reader.pos)?;
            reader.pos = name.value;
            member(name.written, reader)
        })
    }

    /// Reads to the end of the text, where nothing may follow.
    ///
    /// # Errors
    /// Something follows.
    pub fn end(self) -> Result<(), JsonError> {
        let rest = scan::blank(self.text, self.pos);
        match rest == self.text.len() {
            true => Ok(()),
            false => Err(JsonError::Trailing(rest)),
        }
    }

    /// Reads the pieces between `open` and `close`. A value that begins otherwise is read as a whole.
    fn inside(
        &mut self,
        open: u8,
        close: u8,
        mut piece: impl FnMut(&mut Reader<'a>) -> Result<(), JsonError>,
    ) -> Result<Json<'a>, JsonError> {
        let (bytes, start) = (self.text, self.pos);
        if bytes.get(start) != Some(&open) {
            return self.value();
        }
        self.depth = (self.depth.checked_sub(1)).ok_or(JsonError::Deep(self.most))?;
        self.pos = scan::blank(bytes, start + 1);
        if bytes.get(self.pos) != Some(&close) {
            loop {
                piece(self)?;
                let next = scan::blank(bytes, self.pos);
                match bytes.get(next) {
                    Some(b',') => self.pos = scan::blank(bytes, next + 1),
                    Some(byte) if *byte == close => {
                        self.pos = next;
                        break;
                    }
                    _ => return Err(JsonError::Malformed(next)),
                }
            }
        }
        self.pos += 1;
        self.depth += 1;
        Ok(Json::at(self.text, start..self.pos))
    }

    /// The error with the depth that the caller named.
    fn deep(&self, error: JsonError) -> JsonError {
        match error {
            JsonError::Deep(_) => JsonError::Deep(self.most),
            other => other,
        }
    }
}
