//! `ojs-throttle demo`: limits at work, in one process and over real HTTP.
//!
//! It starts an embedded backend, the sidecar in front of it, and producers and workers that know only the sidecar's
//! URL ([`traffic`]). It says each second what counts against the limits. The verdict at the end ([`judge`]) comes from
//! what workers and backend wrote down ([`records`]), never from the sidecar's own counters.

pub mod backpressure;
pub mod cost;
pub mod depth;
pub mod egress;
pub mod judge;
mod limits;
pub mod plot;
pub mod records;
pub mod report;
mod stage;
pub mod streams;
pub mod traffic;

pub use limits::{Options, run};
pub use streams::Enforcement;
