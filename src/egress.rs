//! Egress: the calls that programs make to services, under keys of jobs or under their own.
//!
//! A call is a claim without a job. It asks the store for a start as a job does, waits in the line of its key, and has
//! its slots for as long as its reply streams. No backend is asked about it: while it lives here its row is renewed, and
//! that of a sidecar that died ends with its lease. What it uses of budgets is known when its answer has ended.

mod amazon;
mod ask;
mod key;
mod meter;
mod overdue;
mod pass;
mod redirect;
mod service;
mod services;
mod start;
mod wait;

pub(crate) use overdue::look_after;
pub use service::Egress;
