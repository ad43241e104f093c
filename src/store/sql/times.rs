//! How long a sidecar may be silent, and what it has may stay.

pub(crate) use super::super::fleet::SILENCE;

/// How late the owner of a row may be.
pub(super) const PATIENCE: u64 = 3_000_000;

/// For how long, in microseconds, a sidecar has a held job at a time, at most; it sees to that again when a
/// third of it is over, by a second at the latest.
pub(super) const KEPT: u64 = 30_000_000;

pub(super) const LATE: u64 = 1_000_000;

/// So long after a held job's claim must be over nobody makes anything of its row any more.
pub(super) const LONG_OVER: u64 = 60_000_000;
