//! The scanner: it checks a text and finds the ends of values. It looks at strings sixteen bytes at a time, and does not
//! recurse.

use smallvec::SmallVec;

use super::error::JsonError;
use super::lane::{ByteLane, LANE};
use super::name::Name;

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
    // What closes the arrays and objects around the place, the innermost last.
    let mut open = SmallVec::<[u8; 64]>::new();
    loop {
        pos = match text.get(pos) {
            Some(b'"') => string(text, pos)?,
            Some(opener @ (b'{' | b'[')) => {
                if open.len() >= depth {
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
            let Some(closer) = open.last().copied() else {
                return Ok(pos);
            };
            pos = blank(text, pos);
            match text.get(pos) {
                Some(b',') => {
                    pos = blank(text, pos + 1);
                    if closer == b'}' {
                        pos = name(text, pos)?.value;
                    }
                    break;
                }
                Some(byte) if *byte == closer => {
                    open.pop();
                    pos += 1;
                }
                _ => return Err(JsonError::Malformed(pos)),
            }
        }
    }
}

/// A member's name, checked.
pub(super) struct CheckedName<'a> {
    /// The name as it is written.
    pub(super) written: Name<'a>,
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
        let disguised = lane.beyond() < length;
        return Ok(CheckedName {
            written: Name { inside, disguised },
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
    let disguised = !inside.is_ascii() || inside.contains(&b'\\');
    Ok(CheckedName {
        written: Name { inside, disguised },
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
    let there = text.iter().skip(pos);
    let same = there.zip(word).take_while(|(a, b)| a == b).count();
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

/// Where the next item or member begins in an array or object of which `pos` is the inside, right after its bracket or
/// after one of them.
#[inline]
pub(super) fn next(text: &[u8], pos: usize) -> Option<usize> {
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
pub(super) fn skip(text: &[u8], pos: usize) -> usize {
    // It was found well-formed.
    value(text, pos, usize::MAX).unwrap_or(text.len())
}

/// The first byte at or after `pos` at which a string ends or must not go on, or the text's length.
#[inline]
pub(super) fn stop(text: &[u8], pos: usize) -> usize {
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

#[inline]
fn lane_at(text: &[u8], pos: usize) -> Option<ByteLane> {
    text.get(pos..)?.first_chunk().map(ByteLane::of)
}
