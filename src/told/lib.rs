//! What the sidecar tells others: events to whoever listens, and numbers to whoever scrapes them.

pub mod events;
pub mod metrics;
