//! Why a text is not JSON.

/// Why a text is not JSON that we read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JsonError {
    /// The text breaks RFC 8259 at this byte, counted from 0; at the text's length it is cut off.
    #[error("not valid JSON at byte {0}")]
    Malformed(usize),
    /// The text is a whole value and something behind it, which begins at this byte: for some readers JSON, for
    /// others not.
    #[error("a JSON value with something behind it, at byte {0}")]
    Trailing(usize),
    /// More than this many arrays and objects inside each other.
    #[error("nested deeper than {0} levels")]
    Deep(usize),
}
