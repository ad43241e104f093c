//! Which file, and what an error of it means.

use std::path::{Path, PathBuf};

use rusqlite::{Error, ErrorCode};

use crate::{StoreConfig, StoreError};

/// What a store on SQLite is told. The folder of its file must exist, and two more files lie beside it while it is open.
/// A file is of one namespace.
pub type SqliteConfig = StoreConfig<PathBuf>;

/// The path in a `sqlite:PATH`.
///
/// # Errors
/// Why it is none, in words.
pub fn path(url: &str) -> Result<PathBuf, &'static str> {
    let path = url
        .strip_prefix("sqlite:")
        .ok_or("it is no `sqlite:PATH`")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    match path {
        "" => Err("a path has to follow `sqlite:`"),
        ":memory:" => Err("a file is needed; `memory:` is the store in memory"),
        _ => Ok(PathBuf::from(path)),
    }
}

/// What an error of SQLite means here.
pub(super) fn fault(path: &Path, error: &Error) -> StoreError {
    let folder = path.parent().filter(|of| !of.as_os_str().is_empty());
    let text = match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => format!(
            "{}: there is no folder {}",
            path.display(),
            folder.display()
        ),
        None if path.is_dir() => format!("{}: that is a folder", path.display()),
        None => format!("{}: {error}", path.display()),
    };
    match error.sqlite_error_code() {
        Some(
            ErrorCode::NotADatabase
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::DatabaseCorrupt,
        ) => StoreError::Unusable(text),
        _ => StoreError::Unavailable(text),
    }
}
