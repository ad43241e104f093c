//! A value as a range of the text in which it stands.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use super::name::{Lengths, Name};
use super::{scan, string};

/// One JSON value inside a text that [`Json::parse`] found well-formed.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a> {
    pub(super) text: &'a [u8],
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The kinds of JSON values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// Any number, of whatever size.
    Number,
    /// A string.
    String,
    /// An array, which has [`Json::items`].
    Array,
    /// An object, which has [`Json::members`].
    Object,
}

/// One member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The name, as a JSON string value (quotes included in its range).
    pub name: Json<'a>,
    /// The value.
    pub value: Json<'a>,
    /// Whether the name has escapes or characters beyond ASCII.
    disguised: bool,
}

impl<'a> Json<'a> {
    pub(super) fn at(text: &'a [u8], Range { start, end }: Range<usize>) -> Json<'a> {
        Json { text, start, end }
    }

    /// The kind of this value.
    pub fn kind(&self) -> Kind {
        match self.first() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// The value's bytes, without the whitespace around it.
    pub fn raw(&self) -> &'a [u8] {
        self.text.get(self.range()).unwrap_or_default()
    }

    /// Where the value is in the parsed text.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The members of an object in order; none for any other kind.
    pub fn members(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        members(self.text, self.start)
    }

    /// The items of an array in order; none for any other kind.
    pub fn items(&self) -> impl Iterator<Item = Json<'a>> + use<'a> {
        let text = self.text;
        let mut place = (self.first() == b'[').then_some(self.start + 1);
        iter::from_fn(move || {
            let start = scan::next(text, place?)?;
            let item = Json::at(text, start..scan::skip(text, start));
            place = Some(item.end);
            Some(item)
        })
    }

    /// The member that Go's decoder would use: names match without regard to case
    /// ([`Member::is_named`]), the last wins. `None` too for what is not an object.
    pub fn get(&self, name: &str) -> Option<Json<'a>> {
        let [found] = self.pick([name]);
        found
    }

    /// Several members at once, in one pass over the object: what [`Json::get`] says for each.
    pub fn pick<const N: usize>(&self, names: [&str; N]) -> [Option<Json<'a>>; N] {
        self.pick_by(names, |written, name| written.folds_to(name))
    }

    /// The last member of exactly this name.
    pub fn get_exact(&self, name: &str) -> Option<Json<'a>> {
        let [found] = self.pick_exact([name]);
        found
    }

    /// The text of the last member of exactly this name ([`Json::text`]).
    pub fn text_of(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get_exact(name)?.text()
    }

    /// Whether the last member of exactly this name is a string of this text.
    pub fn says(&self, name: &str, text: &str) -> bool {
        self.text_of(name).is_some_and(|said| said == text)
    }

    /// Several members at once, in one pass over the object: what [`Json::get_exact`] says for each.
    pub fn pick_exact<const N: usize>(&self, names: [&str; N]) -> [Option<Json<'a>>; N] {
        self.pick_by(names, |written, name| written.is(name))
    }

    /// For each name the last member that `is` says it names.
    #[inline]
    fn pick_by<const N: usize>(
        &self,
        names: [&str; N],
        is: impl Fn(Name<'_>, &str) -> bool,
    ) -> [Option<Json<'a>>; N] {
        let mut found = [None; N];
        let lengths = Lengths::of(&names);
        for member in self.members() {
            let written = member.written();
            if !lengths.may_have(written) {
                continue;
            }
            for (slot, name) in found.iter_mut().zip(&names) {
                if is(written, name) {
                    *slot = Some(member.value);
                }
            }
        }
        found
    }

    /// A string's text, escapes undone, with U+FFFD for what is not UTF-8; `None` for any other kind or an
    /// unpaired surrogate.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        if self.kind() != Kind::String {
            return None;
        }
        let (text, inside) = (self.text, self.start + 1);
        let end = scan::short(text, inside).unwrap_or_else(|rest| scan::stop(text, rest) + 1);
        match end == self.end {
            true => Some(string::plain(self.inside())),
            false => string::unescape(self.inside()).map(Cow::Owned),
        }
    }

    /// A number that is a whole one and fits (also `5.0`, `5e0`), else `None`. Exact: nothing
    /// goes through a floating-point number.
    pub fn int(&self) -> Option<i64> {
        if self.kind() != Kind::Number {
            return None;
        }
        // Nearly all have a digit or a few.
        let raw = self.raw();
        if raw.len() < 10 && raw.iter().all(u8::is_ascii_digit) {
            let digits = raw.iter().map(|digit| i64::from(digit - b'0'));
            return Some(digits.fold(0, |number, digit| number * 10 + digit));
        }
        whole(std::str::from_utf8(raw).ok()?)
    }

    /// Like [`Json::int`], for a number that is not negative and fits.
    pub fn u32(&self) -> Option<u32> {
        u32::try_from(self.int()?).ok()
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }

    /// The value of a boolean; `None` for any other kind.
    pub fn boolean(&self) -> Option<bool> {
        match self.first() {
            b't' => Some(true),
            b'f' => Some(false),
            _ => None,
        }
    }

    /// The bytes between a string's quotes.
    fn inside(&self) -> &'a [u8] {
        self.text
            .get(self.start + 1..self.end - 1)
            .unwrap_or_default()
    }

    fn first(&self) -> u8 {
        self.text.get(self.start).copied().unwrap_or_default()
    }
}

impl Member<'_> {
    /// Whether Go's decoder would take this member for its field `name` (which is ASCII): escapes
    /// undone, without regard to ASCII case, the Kelvin sign U+212A being a k and the long s
    /// U+017F an s.
    pub fn is_named(&self, name: &str) -> bool {
        self.written().folds_to(name)
    }

    #[inline]
    fn written(&self) -> Name<'_> {
        Name {
            inside: self.name.inside(),
            disguised: self.disguised,
        }
    }
}

/// The members of the object that begins at `start` of a checked text; none if that is not one.
pub(super) fn members(text: &[u8], start: usize) -> impl Iterator<Item = Member<'_>> + use<'_> {
    let mut place = (text.get(start) == Some(&b'{')).then_some(start + 1);
    iter::from_fn(move || {
        let start = scan::next(text, place?)?;
        // It was found well-formed.
        let named = scan::name(text, start).ok()?;
        let value = named.value..scan::skip(text, named.value);
        place = Some(value.end);
        Some(Member {
            name: Json::at(text, start..start + named.written.inside.len() + 2),
            value: Json::at(text, value),
            disguised: named.written.disguised,
        })
    })
}

/// The value of a JSON number that is whole and fits.
fn whole(number: &str) -> Option<i64> {
    if let Ok(plain) = number.parse() {
        return Some(plain);
    }
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let unsigned = before.strip_prefix('-').unwrap_or(before);
    // The number is `digits` times ten to some power; without zeros at either end of `digits` it
    // is whole exactly when that power is not negative.
    let all = [unsigned, after].concat();
    let digits = all.trim_end_matches('0');
    let zeros = all.len() - digits.len();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let power = exponent.parse::<i64>().ok()?;
    let power = power.checked_sub(i64::try_from(after.len()).ok()?)?;
    let power = u32::try_from(power.checked_add(i64::try_from(zeros).ok()?)?).ok()?;
    let size = digits
        .parse::<i128>()
        .ok()?
        .checked_mul(10_i128.checked_pow(power)?)?;
    i64::try_from(if before.starts_with('-') { -size } else { size }).ok()
}
