//! How a step on a connection fails.

use tokio_postgres::Error;

/// How a step failed.
pub(super) enum Failed {
    Postgres(Error),
    /// In words: it cannot be used as it is.
    Unusable(String),
    /// In words: not now.
    Unavailable(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Postgres(error)
    }
}
