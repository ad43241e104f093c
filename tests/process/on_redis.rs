//! Sidecars on a Redis of the test's own.

mod by_policy;
mod calls;
mod depth;
mod doctor;
mod evicted;
mod failover;
pub mod fleet;
pub mod outages;
mod reload;
mod reshard;
pub mod settled;
mod shadow;
mod subqueues;
mod trace;
