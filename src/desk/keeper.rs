//! What is remembered for what is done unasked.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::adoption::Adoption;
use super::evaded::Evaded;
use super::offered::Offered;

/// What is remembered for what is done unasked.
#[derive(Default, Debug)]
pub(crate) struct Keeper {
    /// Jobs that ran before limits applied to them.
    pub(crate) adoption: Adoption,
    /// Where siblings have held jobs for workers of ours.
    pub(crate) offered: Offered,
    /// Held jobs that the backend took back.
    pub(crate) given_back: AtomicU64,
    /// Other sidecars that limit the same jobs with a store of their own.
    pub(crate) unshared: AtomicUsize,
    /// Workers that go around the sidecar, and entries that limit nothing.
    pub(crate) evaded: Evaded,
}
