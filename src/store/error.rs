//! How an operation of a store fails.

/// The store could not answer. The memory store never says this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It is not reachable, or refused.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// It answers, and cannot be used as it is: the user lacks rights, it is too old, something else is
    /// under our keys.
    #[error("the store cannot be used: {0}")]
    Unusable(String),
    /// It answers, and cannot keep or compare what was said: a text is too long for it, or has a character for which
    /// it has none. Nothing was done.
    #[error("the store cannot keep this: {0}")]
    Unfit(String),
    /// It took too long; the operation may still have been done.
    #[error("the store did not answer in time")]
    Timeout,
    /// Its data began anew, and all have to put back what they know before anything starts. Nothing was done.
    #[error("the store's data began anew: others have to put back what they know first")]
    Settling,
    /// It lost what it knew, or was away for so long that it may have: nothing starts before
    /// [`Ledger::announce`](crate::Ledger::announce).
    #[error("the store was emptied or replaced")]
    Wiped,
}
