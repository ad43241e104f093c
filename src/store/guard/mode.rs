//! What is declared for the time when the store is lost.

use std::collections::HashMap;
use std::sync::Arc;

/// What happens while the store is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStoreError {
    /// This sidecar goes on alone with its share: the slots that it had, and of windows and spacing the
    /// part that it has among the sidecars that lived. Where no other was there, its share is the whole. The default.
    #[default]
    Share,
    /// Nothing that is limited starts.
    Closed,
    /// Everything starts, but for keys that a service has shut through this sidecar.
    Open,
}

impl OnStoreError {
    /// All of them with their words.
    pub fn words() -> [(&'static str, OnStoreError); 3] {
        let all = [
            OnStoreError::Share,
            OnStoreError::Closed,
            OnStoreError::Open,
        ];
        all.map(|mode| (mode.as_str(), mode))
    }

    /// The word of the config.
    pub fn as_str(self) -> &'static str {
        match self {
            OnStoreError::Share => "share",
            OnStoreError::Closed => "closed",
            OnStoreError::Open => "open",
        }
    }
}

/// What single policies declare, by their names.
pub type Declared = HashMap<Arc<str>, OnStoreError>;

/// What happens under a limit while the store is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostMode {
    /// It has never answered, so nothing that is limited starts.
    NeverThere,
    /// What the limit's policy declares.
    As(OnStoreError),
}
