//! The files that fields name.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::table::TomlTable;

/// The largest file of a token, in bytes.
const MOST_TOKEN: u32 = 64 << 10;

impl TomlTable<'_> {
    /// A text as written, from the environment, or from a file that it names; `None`: there is none, or it cannot be
    /// read, which is reported.
    pub fn secret(&mut self, name: &'static str) -> Option<String> {
        let given = self.expanded(name)?;
        let Some(path) = given.strip_prefix("file:") else {
            return Some(given);
        };
        match content(self.note_file(Path::new(path)), MOST_TOKEN) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) => {
                let title = format!("`{}`: cannot read {path}: {error}", self.path_of(name));
                self.error(&self.span_of(name), title, "the path of a file");
                None
            }
        }
    }
}

/// What is in a regular file of at most so many bytes: the name of a device may stand there, which has no end.
///
/// # Errors
/// It cannot be read, is no regular file, or is larger.
pub fn content(path: &Path, most: u32) -> io::Result<Vec<u8>> {
    // First, because to open a pipe waits for whoever writes into it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    let read = file.take(u64::from(most) + 1).read_to_end(&mut bytes)?;
    if read > most as usize {
        let why = format!("it is larger than {} KiB", most >> 10);
        return Err(io::Error::other(why));
    }
    Ok(bytes)
}
