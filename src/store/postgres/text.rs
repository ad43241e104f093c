//! What is written into a statement itself: names and texts, and the numbers of locks.

/// Locks that no other program is likely to use: rows, then numbers, then keys, then the tables.
pub(super) const LOCKS: i32 = 0x6f6a_7300;

/// A name as an identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as it stands in a statement.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
