//! Servers that tests start for themselves, and their ports.

pub mod pgbouncer;
pub mod port;
pub mod postgres;
pub mod prometheus;
pub mod redis;
pub mod redises;
