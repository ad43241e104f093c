//! Strings: escapes undone and made.

use std::borrow::Cow;
use std::fmt::Write;
use std::iter;
use std::str::Chars;

/// The text between the quotes of a checked string without escapes.
pub(super) fn plain(inside: &[u8]) -> Cow<'_, str> {
    // Much quicker than the lossy way, which is hardly ever needed.
    match std::str::from_utf8(inside) {
        Ok(whole) => Cow::Borrowed(whole),
        Err(_) => String::from_utf8_lossy(inside),
    }
}

/// The text of a checked string with escapes, from the text between its quotes. `None` if a surrogate has no
/// partner, which no text can hold.
pub(super) fn unescape(inside: &[u8]) -> Option<Cow<'_, str>> {
    let text: Option<String> = unescaped(&plain(inside)).collect();
    text.map(Cow::Owned)
}

/// The characters of a checked string from what is between its quotes; `None` stands for a
/// surrogate without its partner.
pub(super) fn unescaped(inside: &str) -> impl Iterator<Item = Option<char>> {
    let mut rest = inside.chars();
    iter::from_fn(move || match rest.next()? {
        '\\' => Some(escape(&mut rest)),
        plain => Some(Some(plain)),
    })
}

/// The character that an escape stands for; `rest` is after the backslash.
fn escape(rest: &mut Chars<'_>) -> Option<char> {
    match rest.next()? {
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'u' => unicode(rest),
        same => Some(same),
    }
}

/// The character of one `\u` escape, or of two that are a surrogate pair.
fn unicode(rest: &mut Chars<'_>) -> Option<char> {
    let first = unit(rest)?;
    if let Some(alone) = char::from_u32(u32::from(first)) {
        return Some(alone);
    }
    // Only a pair takes the second escape away.
    let mut after = rest.as_str().strip_prefix("\\u")?.chars();
    let pair = [first, unit(&mut after)?];
    let paired = char::decode_utf16(pair).next()?.ok()?;
    *rest = after;
    Some(paired)
}

/// The UTF-16 unit of four hexadecimal digits.
fn unit(rest: &mut Chars<'_>) -> Option<u16> {
    let (digits, after) = rest.as_str().split_at_checked(4)?;
    *rest = after.chars();
    u16::from_str_radix(digits, 16).ok()
}

/// `text` as a JSON string, quoted.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    // Ids and names hardly ever need an escape.
    if is_plain(text) {
        quoted.push_str(text);
    } else {
        text.chars()
            .for_each(|character| write(character, &mut quoted));
    }
    quoted.push('"');
    quoted
}

/// Appends `text` as a JSON string, quoted.
pub fn quote_to(text: &str, to: &mut Vec<u8>) {
    if !is_plain(text) {
        return to.extend_from_slice(quote(text).as_bytes());
    }
    to.push(b'"');
    to.extend_from_slice(text.as_bytes());
    to.push(b'"');
}

/// Whether nothing in it needs an escape.
fn is_plain(text: &str) -> bool {
    let special = |byte: u8| byte < b' ' || matches!(byte, b'"' | b'\\');
    // Without an early end this takes many bytes at a time.
    !text.bytes().fold(false, |any, byte| any | special(byte))
}

fn write(character: char, quoted: &mut String) {
    match character {
        '"' => quoted.push_str("\\\""),
        '\\' => quoted.push_str("\\\\"),
        '\n' => quoted.push_str("\\n"),
        '\r' => quoted.push_str("\\r"),
        '\t' => quoted.push_str("\\t"),
        '\0'..' ' => {
            // Writing to a String does not fail.
            let _ = write!(quoted, "\\u{:04x}", u32::from(character));
        }
        plain => quoted.push(plain),
    }
}
