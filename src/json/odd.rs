//! What some readers take for JSON and others do not, and numbers that not everybody can hold.

use memchr::memchr2_iter;

use super::error::JsonError;
use super::scan;

/// The byte order marks of UTF-8 and of UTF-16; that of UTF-32 begins as one of them or with NUL.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xEF\xBB\xBF", b"\xFE\xFF", b"\xFF\xFE"];

/// Numbers that JSON does not have, as some write and read them: Python does by default.
const NO_NUMBERS: [&[u8]; 2] = [b"nan", b"inf"];

/// A number with fewer digits and an exponent of two digits is within a double, of which the largest has 309 digits.
const DIGITS: usize = 210;

/// What a text that is malformed may be to other readers, in words that follow its name; `None`: JSON to nobody.
pub fn oddity(text: &[u8], error: JsonError) -> Option<&'static str> {
    let JsonError::Malformed(at) = error else {
        return None;
    };
    if BYTE_ORDER_MARKS.iter().any(|mark| text.starts_with(mark)) {
        Some("begins with a byte order mark")
    } else if is_wide(text) {
        Some("is in UTF-16 or UTF-32")
    } else if is_no_number(text.get(at..).unwrap_or_default()) {
        Some("has a number in it that JSON does not have, such as NaN or Infinity")
    } else {
        None
    }
}

/// Whether a text is JSON in UTF-16 or UTF-32: then a character of its first two has a NUL byte.
pub fn is_wide(text: &[u8]) -> bool {
    text.iter().take(4).any(|byte| *byte == 0)
}

/// Whether a text begins with such a number, or with what follows its sign.
fn is_no_number(rest: &[u8]) -> bool {
    let rest = rest.strip_prefix(b"-").unwrap_or(rest);
    NO_NUMBERS.iter().any(|word| {
        let begin = rest.get(..word.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(word))
    })
}

/// Whether a text may have a number in it that JSON does not have or that no double holds; `false` is certain.
pub fn may_have_odd_number(text: &[u8]) -> bool {
    let digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    // Hexadecimal names are full of such places, but a number ends before a comma, a bracket or a space.
    let ends = |at: usize| text.get(at).is_none_or(|byte| b",]} \t\n\r".contains(byte));
    let is_exponent = |at: usize| {
        let after = at + 1 + usize::from(text.get(at + 1) == Some(&b'+'));
        let is_large = at > 0 && digit(at - 1) && (after..after + 3).all(digit);
        is_large && (after + 3..).find(|at| !digit(*at)).is_some_and(ends)
    };
    // A run of so many digits has one at each place that is so far from the last.
    let is_long = |at: usize| {
        let before = (0..=at).rev().take_while(|at| digit(*at)).count();
        before > 0 && before + (at + 1..).take_while(|at| digit(*at)).count() >= DIGITS
    };
    let is_no_number = |at: usize| {
        let from = text.get(at..).unwrap_or_default();
        NO_NUMBERS_AS_WRITTEN
            .iter()
            .any(|word| from.starts_with(word))
    };
    memchr2_iter(b'e', b'E', text).any(is_exponent)
        || (0..text.len()).step_by(DIGITS).any(is_long)
        || memchr2_iter(b'N', b'I', text).any(is_no_number)
}

/// As Python writes them.
const NO_NUMBERS_AS_WRITTEN: [&[u8]; 2] = [b"NaN", b"Infinity"];

/// Where a well-formed text has a number that no double holds.
pub fn overflow(text: &[u8]) -> Option<usize> {
    let mut pos = 0;
    while let Some(byte) = text.get(pos) {
        pos = match byte {
            b'"' | b'-' | b'0'..=b'9' => {
                // It was found well-formed.
                let end = scan::value(text, pos, 0).ok()?;
                if *byte != b'"' && is_infinite(text.get(pos..end).unwrap_or_default()) {
                    return Some(pos);
                }
                end
            }
            _ => pos + 1,
        }
    }
    None
}

fn is_infinite(number: &[u8]) -> bool {
    let number = std::str::from_utf8(number).ok();
    number.is_some_and(|number| number.parse().is_ok_and(f64::is_infinite))
}
