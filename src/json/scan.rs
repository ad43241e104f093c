//! The scanner: one pass that checks a text, and a quicker one that finds the ends of values in
//! a text that was checked.
//!
//! Both look at strings sixteen bytes at a time. Neither recurses.

use std::iter;
use std::ops::Range;

use super::JsonError;
use super::lane::{ByteLane, LANE};

/// Checks that `text` is one value with whitespace around it, and says where.
pub(super) fn document(text: &[u8], depth: usize) -> Result<Range<usize>, JsonError> {
    let start = blank(text, 0);
    let end = value(text, start, depth)?;
    let rest = blank(text, end);
    if rest == text.len() {
        Ok(start..end)
    } else {
        Err(JsonError::Trailing(rest))
    }
}

/// Checks the value that begins at `pos`; returns its end.
#[inline]
pub(super) fn value(text: &[u8], pos: usize, depth: usize) -> Result<usize, JsonError> {
    match text.get(pos) {
        // Most values.
        Some(b'"') => string(text, pos),
        Some(b'{' | b'[') => nest(text, pos, depth),
        _ => word(text, pos),
    }
}

/// Checks a number, `true`, `false` or `null`; returns its end.
#[inline(never)]
fn word(text: &[u8], pos: usize) -> Result<usize, JsonError> {
    match text.get(pos) {
        Some(b't') => literal(text, pos, b"true"),
        Some(b'f') => literal(text, pos, b"false"),
        Some(b'n') => literal(text, pos, b"null"),
        _ => number(text, pos),
    }
}

/// Checks the array or object that begins at `pos`; returns its end.
#[inline(never)]
fn nest(text: &[u8], mut pos: usize, depth: usize) -> Result<usize, JsonError> {
    let mut open = Nesting::default();
    loop {
        pos = match text.get(pos) {
            Some(b'"') => string(text, pos)?,
            Some(opener @ (b'{' | b'[')) => {
                if open.levels >= depth {
                    return Err(JsonError::Deep(depth));
                }
                let closer = if *opener == b'{' { b'}' } else { b']' };
                let first = blank(text, pos + 1);
                if text.get(first) != Some(&closer) {
                    open.push(closer);
                    pos = if closer == b'}' {
                        name(text, first)?.value
                    } else {
                        first
                    };
                    continue;
                }
                first + 1
            }
            _ => word(text, pos)?,
        };
        // A value has ended: close what ends with it, up to the next value.
        loop {
            if open.levels == 0 {
                return Ok(pos);
            }
            let in_object = open.in_object();
            pos = blank(text, pos);
            match text.get(pos) {
                Some(b',') => {
                    pos = blank(text, pos + 1);
                    if in_object {
                        pos = name(text, pos)?.value;
                    }
                    break;
                }
                Some(b'}') if in_object => {
                    open.pop();
                    pos += 1;
                }
                Some(b']') if !in_object => {
                    open.pop();
                    pos += 1;
                }
                _ => return Err(JsonError::Malformed(pos)),
            }
        }
    }
}

/// The nesting around a place: one bit for each level, set for an object. Nearly every text fits into one word.
#[derive(Default)]
struct Nesting {
    levels: usize,
    /// The innermost lowest.
    objects: u64,
    /// The levels further out, 64 in each.
    outer: Vec<u64>,
}

impl Nesting {
    #[inline]
    fn push(&mut self, closer: u8) {
        if self.levels > 0 && self.levels.is_multiple_of(64) {
            self.outer.push(self.objects);
        }
        self.objects = self.objects << 1 | u64::from(closer == b'}');
        self.levels += 1;
    }

    #[inline]
    fn pop(&mut self) {
        self.levels -= 1;
        self.objects >>= 1;
        if self.levels > 0 && self.levels.is_multiple_of(64) {
            self.objects = self.outer.pop().unwrap_or_default();
        }
    }

    #[inline]
    fn in_object(&self) -> bool {
        self.objects & 1 != 0
    }
}

/// A member's name, checked.
pub(super) struct CheckedName<'a> {
    /// The name without its quotes.
    pub(super) inside: &'a [u8],
    /// Whether it has escapes or characters beyond ASCII.
    pub(super) disguised: bool,
    /// Where the member's value begins.
    pub(super) value: usize,
}

/// A quote, a lane, and behind the longest name in it a quote, a colon and the first of a value.
const NEAR: usize = 1 + LANE + 3;

/// Checks a member's name and colon.
#[inline(always)]
pub(super) fn name(text: &[u8], pos: usize) -> Result<CheckedName<'_>, JsonError> {
    // Nearly all are short, and stand close to their values.
    if let Some([b'"', near @ ..]) = text.get(pos..).and_then(<[u8]>::first_chunk::<NEAR>)
        && let Some(lane) = near.first_chunk().map(ByteLane::of)
        && let length = lane.stop()
        && let Some((inside, [b'"', b':', value, ..])) = near.split_at_checked(length)
        && *value > b' '
    {
        return Ok(CheckedName {
            inside,
            disguised: lane.beyond() < length,
            value: pos + 1 + length + 2,
        });
    }
    any_name(text, pos)
}

#[inline(never)]
fn any_name(text: &[u8], pos: usize) -> Result<CheckedName<'_>, JsonError> {
    if text.get(pos) != Some(&b'"') {
        return Err(JsonError::Malformed(pos));
    }
    let end = string(text, pos)?;
    let inside = text.get(pos + 1..end - 1).unwrap_or_default();
    let colon = blank(text, end);
    if text.get(colon) != Some(&b':') {
        return Err(JsonError::Malformed(colon));
    }
    Ok(CheckedName {
        inside,
        disguised: !inside.is_ascii() || inside.contains(&b'\\'),
        value: blank(text, colon + 1),
    })
}

/// Checks the string whose quote is at `pos`; returns its end.
#[inline(always)]
fn string(text: &[u8], pos: usize) -> Result<usize, JsonError> {
    short(text, pos + 1).or_else(|rest| long_string(text, rest))
}

/// The end of a string of which `pos` is the inside, if that is near and nothing special comes before it:
/// ids, times and most names are that short.
///
/// # Errors
/// How far it looked and found nothing special.
#[inline(always)]
pub(super) fn short(text: &[u8], mut pos: usize) -> Result<usize, usize> {
    for _ in 0..3 {
        let at = lane_at(text, pos).ok_or(pos)?.stop();
        pos += at;
        if at < LANE {
            let closed = text.get(pos) == Some(&b'"');
            return closed.then_some(pos + 1).ok_or(pos);
        }
    }
    Err(pos)
}

/// Checks the string of which `pos` is the inside; returns its end.
#[inline(never)]
fn long_string(text: &[u8], mut pos: usize) -> Result<usize, JsonError> {
    loop {
        pos = stop(text, pos);
        match text.get(pos) {
            Some(b'"') => return Ok(pos + 1),
            Some(b'\\') => pos = escape(text, pos + 1)?,
            _ => return Err(JsonError::Malformed(pos)),
        }
    }
}

/// Checks an escape after its backslash; returns its end.
fn escape(text: &[u8], pos: usize) -> Result<usize, JsonError> {
    match text.get(pos) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(pos + 1),
        Some(b'u') => {
            let end = pos + 5;
            let bad = (pos + 1..end).find(|&at| !text.get(at).is_some_and(u8::is_ascii_hexdigit));
            bad.map_or(Ok(end), |at| Err(JsonError::Malformed(at)))
        }
        _ => Err(JsonError::Malformed(pos)),
    }
}

fn literal(text: &[u8], pos: usize, word: &[u8]) -> Result<usize, JsonError> {
    let same = text
        .iter()
        .skip(pos)
        .zip(word)
        .take_while(|(a, b)| a == b)
        .count();
    if same == word.len() {
        Ok(pos + same)
    } else {
        Err(JsonError::Malformed(pos + same))
    }
}

/// Checks the number that begins at `pos`; returns its end.
fn number(text: &[u8], mut pos: usize) -> Result<usize, JsonError> {
    if text.get(pos) == Some(&b'-') {
        pos += 1;
    }
    // A zero stands alone: what follows it is then found not to belong here.
    pos = if text.get(pos) == Some(&b'0') {
        pos + 1
    } else {
        digits(text, pos)?
    };
    if text.get(pos) == Some(&b'.') {
        pos = digits(text, pos + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(pos) {
        pos += 1;
        if let Some(b'+' | b'-') = text.get(pos) {
            pos += 1;
        }
        pos = digits(text, pos)?;
    }
    Ok(pos)
}

/// The end of the digits at `pos`, of which there is at least one.
fn digits(text: &[u8], start: usize) -> Result<usize, JsonError> {
    let mut pos = start;
    while text.get(pos).is_some_and(u8::is_ascii_digit) {
        pos += 1;
    }
    if pos > start {
        Ok(pos)
    } else {
        Err(JsonError::Malformed(start))
    }
}

/// The first byte at or after `pos` that is not whitespace.
#[inline]
pub(super) fn blank(text: &[u8], pos: usize) -> usize {
    match text.get(pos) {
        // Programs write hardly any.
        Some(byte) if *byte <= b' ' => blanks(text, pos),
        _ => pos,
    }
}

#[inline(never)]
fn blanks(text: &[u8], mut pos: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(pos) {
        pos += 1;
    }
    pos
}

/// Where a member's name and value are.
pub(super) struct MemberRange {
    /// The name with its quotes.
    pub(super) name: Range<usize>,
    /// Whether the name has escapes or characters beyond ASCII.
    pub(super) disguised: bool,
    /// The value.
    pub(super) value: Range<usize>,
}

/// The members of the object that begins at `start` of a checked text; none if that is not one.
pub(super) fn members(text: &[u8], start: usize) -> impl Iterator<Item = MemberRange> + use<'_> {
    let mut place = (text.get(start) == Some(&b'{')).then_some(start + 1);
    iter::from_fn(move || {
        let start = next(text, place?)?;
        // It was found well-formed.
        let named = name(text, start).ok()?;
        let value = named.value..skip(text, named.value);
        place = Some(value.end);
        Some(MemberRange {
            name: start..start + named.inside.len() + 2,
            disguised: named.disguised,
            value,
        })
    })
}

/// The item that comes next in an array of which `pos` is the inside, right after its bracket or after
/// an item.
#[inline]
pub(super) fn next_item(text: &[u8], pos: usize) -> Option<Range<usize>> {
    let start = next(text, pos)?;
    Some(start..skip(text, start))
}

/// Where the next item or member begins.
#[inline]
fn next(text: &[u8], pos: usize) -> Option<usize> {
    let mut start = blank(text, pos);
    if text.get(start) == Some(&b',') {
        start = blank(text, start + 1);
    }
    match text.get(start)? {
        b']' | b'}' => None,
        _ => Some(start),
    }
}

/// The end of the value that begins at `pos` of a checked text.
#[inline]
fn skip(text: &[u8], mut pos: usize) -> usize {
    match text.get(pos) {
        Some(b'"') => short(text, pos + 1).unwrap_or_else(|rest| closing_quote(text, rest)),
        Some(b'{' | b'[') => closing_bracket(text, pos + 1),
        _ => {
            while !matches!(
                text.get(pos),
                None | Some(b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t')
            ) {
                pos += 1;
            }
            pos
        }
    }
}

/// The end of the array or object of which `pos` is the inside.
///
/// Goes by blocks of 64 bytes as sets of bits, without a branch for each byte: such branches are
/// what skipping costs.
fn closing_bracket(text: &[u8], mut pos: usize) -> usize {
    let mut open = 1_usize;
    // The state after the last block: whether its last byte escapes the next one, and all bits set inside a string.
    let mut escape = false;
    let mut inside = 0_u64;
    loop {
        let rest = text.get(pos..).unwrap_or_default();
        let lanes = lanes(rest);
        let bits = |found: fn(ByteLane) -> u64| {
            let all = lanes.iter().rev();
            all.fold(0, |bits, lane| bits << LANE | found(*lane))
        };
        let backslashes = bits(|lane| lane.is(b'\\'));
        let quotes = bits(|lane| lane.is(b'"')) & !escaped(backslashes, &mut escape);
        let strings = up_to_next(quotes) ^ inside;
        inside = if strings >> (BLOCK - 1) == 0 {
            0
        } else {
            u64::MAX
        };
        let mut brackets = bits(ByteLane::brackets) & !strings;

        // Brackets are few: one at a time is quicker than counting both kinds.
        while brackets != 0 {
            let at = brackets.trailing_zeros() as usize;
            match rest.get(at) {
                Some(b'{' | b'[') => open += 1,
                _ if open > 1 => open -= 1,
                _ => return pos + at + 1,
            }
            brackets &= brackets - 1;
        }
        if rest.len() <= BLOCK {
            return text.len();
        }
        pos += BLOCK;
    }
}

/// How many bytes are looked at together as the bits of a word.
const BLOCK: usize = 64;

/// The next bytes of a text, with blanks behind it.
#[inline]
fn lanes(rest: &[u8]) -> [ByteLane; BLOCK / LANE] {
    let mut padded = [b' '; BLOCK];
    let block = rest.first_chunk().unwrap_or_else(|| {
        let both = padded.iter_mut().zip(rest);
        both.for_each(|(to, from)| *to = *from);
        &padded
    });
    let (lanes, _) = block.as_chunks();
    std::array::from_fn(|nth| ByteLane::of(lanes.get(nth).unwrap_or(&[b' '; LANE])))
}

/// The bytes after a backslash that is not itself escaped. `carry` says whether the first byte
/// is one, and then whether the first of the next block is.
#[inline]
fn escaped(backslashes: u64, carry: &mut bool) -> u64 {
    let mut found = u64::from(*carry);
    *carry = false;
    let mut backslashes = backslashes & !found;
    while backslashes != 0 {
        let first = backslashes & backslashes.wrapping_neg();
        *carry = first >> (BLOCK - 1) != 0;
        found |= first << 1;
        backslashes &= !(first | first << 1);
    }
    found
}

/// For each pair of bits: the first and all between it and the second; with an odd one, also all
/// from that one on.
#[inline]
fn up_to_next(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// The end of the string of which `pos` is the inside.
#[inline(never)]
fn closing_quote(text: &[u8], mut pos: usize) -> usize {
    loop {
        pos = stop(text, pos);
        match text.get(pos) {
            Some(b'\\') => pos += 2,
            _ => return pos + 1,
        }
    }
}

/// The first byte at or after `pos` at which a string ends or must not go on, or the text's length.
#[inline]
pub(super) fn stop(text: &[u8], pos: usize) -> usize {
    let pos = pos + quiet(text.get(pos..).unwrap_or_default());
    let rest = text.get(pos..).unwrap_or_default();
    let (lanes, end) = rest.as_chunks();
    for (nth, lane) in lanes.iter().enumerate() {
        let at = ByteLane::of(lane).stop();
        if at < LANE {
            return pos + nth * LANE + at;
        }
    }
    let mut padded = [b' '; LANE];
    padded
        .iter_mut()
        .zip(end)
        .for_each(|(to, from)| *to = *from);
    pos + lanes.len() * LANE + ByteLane::of(&padded).stop().min(end.len())
}

/// How many bytes at the beginning are whole blocks without a place at which a string ends or must not go on.
#[inline]
fn quiet(rest: &[u8]) -> usize {
    let (blocks, _) = rest.as_chunks::<BLOCK>();
    let stops = |block: &&[u8; BLOCK]| {
        let (lanes, _) = block.as_chunks();
        ByteLane::any_stops(lanes)
    };
    BLOCK * blocks.iter().take_while(|block| !stops(block)).count()
}

#[inline]
fn lane_at(text: &[u8], pos: usize) -> Option<ByteLane> {
    text.get(pos..)?.first_chunk().map(ByteLane::of)
}
