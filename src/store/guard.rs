//! A store that may be lost: what happens then is declared, is what happens, and heals by itself.
//!
//! The guard knows the rows of this sidecar beside the store. When a call to the store fails, and so does one
//! that was begun after it, the store is taken for lost: from then on no call waits for it, and questions are
//! answered as [`OnStoreError`] says. The sweep asks twice a second whether it is back; then it is told of our
//! rows and of what ended, until it knows all that happened meanwhile too, and only then it decides again.
//!
//! Of a start that was cut off nobody knows whether it was done. It is undone before the job is asked
//! for again; the store refuses what arrives after its time.
//!
//! # What was held at the loss
//!
//! A held job is its holder's alone, and has no row: it starts here without the store as it would with it. A job that
//! was offered before the loss may be a sibling's by now. It goes out nowhere here before the store says again whose
//! it is, or its claim is over. Where the store's data began anew, it is told of our offers again.

mod ask;
mod guarded;
mod ledger;
mod lost;
mod mode;
mod recover;
mod state;

pub use guarded::Guard;
pub use mode::{Declared, LostMode, OnStoreError};

#[cfg(test)]
mod tests;
