//! Strings: escapes undone and made.

use std::borrow::Cow;

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
pub(super) fn unescape(inside: &[u8]) -> Option<String> {
    serde_json::from_str(&format!("\"{}\"", plain(inside))).ok()
}

/// `text` as a JSON string, quoted.
pub fn quote(text: &str) -> String {
    // A text can always be written.
    serde_json::to_string(text).unwrap_or_default()
}

/// Appends `text` as a JSON string, quoted.
pub fn quote_to(text: &str, to: &mut Vec<u8>) {
    let _written = serde_json::to_writer(to, text);
}
