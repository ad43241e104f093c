//! JSON as byte ranges: one scanner that finds members and items without building anything, so
//! that what is not changed keeps its bytes and what is changed is spliced.

use std::borrow::Cow;
use std::ops::Range;

/// One JSON value inside a text that [`Json::parse`] found well-formed.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a> {
    text: &'a [u8],
    start: usize,
    end: usize,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

/// One member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The name, as a JSON string value (quotes included in its range).
    pub name: Json<'a>,
    /// The value.
    pub value: Json<'a>,
}

/// Why a text is not JSON that we read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JsonError {
    #[error("not valid JSON at byte {0}")]
    Malformed(usize),
    #[error("nested deeper than {0} levels")]
    Deep(usize),
}

impl<'a> Json<'a> {
    /// Checks that `text` is exactly one JSON value, at most `depth` levels deep.
    pub fn parse(_text: &'a [u8], _depth: usize) -> Result<Json<'a>, JsonError> {
        todo!()
    }
    pub fn kind(&self) -> Kind {
        todo!()
    }
    /// The value's bytes.
    pub fn raw(&self) -> &'a [u8] {
        &self.text[self.start..self.end]
    }
    /// Where the value is in the parsed text.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
    /// The members of an object in order; none for any other kind.
    pub fn members(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        std::iter::empty()
    }
    /// The items of an array in order; none for any other kind.
    pub fn items(&self) -> impl Iterator<Item = Json<'a>> + use<'a> {
        std::iter::empty()
    }
    /// The member that Go's decoder would use: names match without regard to case, the last wins.
    pub fn get(&self, _name: &str) -> Option<Json<'a>> {
        todo!()
    }
    /// The last member of exactly this name.
    pub fn get_exact(&self, _name: &str) -> Option<Json<'a>> {
        todo!()
    }
    /// A string's text, escapes undone; `None` for any other kind or an unpaired surrogate.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        todo!()
    }
    /// A number that is a whole one and fits (also `5.0`, `5e0`), else `None`.
    pub fn int(&self) -> Option<i64> {
        todo!()
    }
    pub fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }
    pub fn boolean(&self) -> Option<bool> {
        todo!()
    }
}

/// Replacements in a text, applied in one pass.
#[derive(Default, Debug)]
pub struct Splice {
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Splice {
    pub fn new() -> Splice {
        Splice::default()
    }
    /// Puts `bytes` in place of `range`; an empty range inserts. Ranges must not overlap.
    pub fn replace(&mut self, range: Range<usize>, bytes: impl Into<Vec<u8>>) {
        self.edits.push((range, bytes.into()));
    }
    /// Removes an object's member with the comma that belongs to it.
    pub fn remove_member(&mut self, _object: Json<'_>, _member: Member<'_>) {
        todo!()
    }
    /// Adds a member at an object's end: `name` plain, `value` as JSON.
    pub fn add_member(&mut self, _object: Json<'_>, _name: &str, _value: &[u8]) {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }
    /// The text with all replacements made.
    pub fn apply(self, _text: &[u8]) -> Vec<u8> {
        todo!()
    }
}

/// `text` as a JSON string, quoted.
pub fn quote(_text: &str) -> String {
    todo!()
}
