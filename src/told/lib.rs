//! What the sidecar tells others: events to whoever listens, numbers to whoever scrapes them, and to people why jobs wait.

pub mod causes;
pub mod events;
pub mod metrics;
