//! The admin port: liveness, readiness, metrics, the page for people, and `/throttle/v1`. Loopback by default; it
//! never proxies.

mod page;
mod port;

pub use port::Admin;
