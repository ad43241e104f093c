//! What a store that sidecars share is told, and why a URL names none.

use std::time::Duration;

/// What a store that sidecars share is told.
#[derive(Clone, Debug)]
pub struct StoreConfig<T> {
    /// Where it is.
    pub target: T,
    /// Sidecars with the same one share their budgets.
    pub namespace: String,
    /// The sidecar's name, which no other has.
    pub owner: String,
    /// The longest that an operation may take.
    pub timeout: Duration,
}

/// Why a URL names no store. Never repeats it: it may have a password in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(pub(super) String);

/// Refuses a fragment in a URL: some clients take one as an order to trust any certificate.
pub(super) fn refuse_fragment(url: &str) -> Result<(), BadUrl> {
    match url.contains('#') {
        true => {
            let why = "it has a `#`: certificates are always checked (ca_file names those to trust), and a `#` \
                       that belongs to a name or a password is %23";
            Err(BadUrl(why.to_owned()))
        }
        false => Ok(()),
    }
}

/// What went wrong with a connection, and what to do where it was the server's certificate.
pub(super) fn distrusted(why: String) -> String {
    match why.contains("invalid peer certificate") {
        true => format!("{why} (store.ca_file names the certificates that are trusted)"),
        false => why,
    }
}
