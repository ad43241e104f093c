//! The names under which usage is counted.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

/// A checked rate-limit key: `^[a-zA-Z0-9][a-zA-Z0-9._:-]*$`, at most 256 bytes (rate-limiting
/// text, section 6.2). Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(Arc<str>);

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl Key {
    /// The longest key in bytes.
    pub const MAX: usize = 256;

    /// Checks `text` against the pattern and the length.
    ///
    /// # Errors
    /// The text is empty, too long, or has a character outside the pattern.
    pub fn new(text: &str) -> Result<Key, BadKey> {
        let first = text.as_bytes().first().ok_or(BadKey::Empty)?;
        if text.len() > Key::MAX {
            return Err(BadKey::Long(text.len()));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(BadKey::Character(text.chars().next().unwrap_or('?')));
        }
        match text
            .chars()
            .find(|c| !(c.is_ascii_alphanumeric() || "._:-".contains(*c)))
        {
            Some(c) => Err(BadKey::Character(c)),
            None => Ok(Key(Arc::from(text))),
        }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no [`Key`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadKey {
    /// Nothing was given.
    #[error("a key must not be empty")]
    Empty,
    /// Longer than [`Key::MAX`].
    #[error("a key has at most 256 bytes, this one has {0}")]
    Long(usize),
    /// Outside the pattern.
    #[error(
        "a key is letters, digits and `.` `_` `:` `-`, beginning with a letter or digit; {0:?} is not allowed here"
    )]
    Character(char),
}

/// What a key names. Queue-level limits live in a space of their own: a job key `email` is not queue `email`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Space {
    /// Keys of job policies and `[[policy]]` entries.
    Job,
    /// Queue-level limits (`[[queue]]`, admin API); the key's text is the queue's name.
    Queue,
    /// What is set by hand for all keys of a policy, whose name the key is. It has no counters, and limits no job by
    /// itself.
    Policy,
}

impl Space {
    /// What a key of this space is called where keys of all spaces stand side by side: a queue's own
    /// limits are `_queue:NAME`, and those of all keys of a policy `_policy:NAME`, which no [`Key`] can be.
    pub fn name_of(self, key: &Key) -> Cow<'_, str> {
        match self {
            Space::Job => Cow::Borrowed(key.as_str()),
            Space::Queue => Cow::Owned(format!("_queue:{key}")),
            Space::Policy => Cow::Owned(format!("_policy:{key}")),
        }
    }
}
