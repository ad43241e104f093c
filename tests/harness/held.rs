//! Held jobs for unit tests of several crates.

use std::time::Duration;

use bytes::Bytes;
use ojs_hold::{Held, Proof};
use ojs_store::{Claim, Claimed};
use tokio::time::Instant;

/// A job that was claimed just now, under the limits of its claim.
pub fn held_of(claim: Claim) -> Held {
    let (now, visibility) = (Instant::now(), Duration::from_micros(claim.visibility));
    let body = Bytes::from(format!("{{\"id\":\"{}\"}}", claim.job));
    let proof = Proof::new(now, visibility);
    Held::new(Claimed::from(claim), 0, body, proof, now)
}
