//! Four clients of our own that send what the official SDKs send, when they send it, and take answers
//! as they do. They produce and work through the sidecar, before backends of each kind.
//!
//! `cargo test --test it sdks::simulated::python_day` runs one; `SEED=7` in the environment picks its
//! backend.

mod backends;
mod client;
mod days;
mod full;
mod go;
mod javascript;
mod office;
mod python;
mod reactions;
mod recorded;
mod rust;
pub mod sdk;
mod stage;
mod told;
mod worker;

/// What most of these tests use.
mod prelude {
    pub use std::sync::{Arc, Mutex};
    pub use std::time::Duration;

    pub use ojs_throttle::net::Net;
    pub use serde_json::Value;
    pub use tokio::time::{Instant, sleep};

    pub use super::client::{Client, Failed};
    pub use super::go::GO;
    pub use super::javascript::JAVASCRIPT;
    pub use super::python::PYTHON;
    pub use super::rust::RUST;
    pub use super::sdk::{Beat, Call, Fetch, MEDIA, NewJob, OnSignal, Reads, Sdk, Thrown, list};
    pub use super::worker::Signal;
}

// Each seed is a backend: the days of all SDKs together try all of them, those of each the real kinds.
crate::scenarios! {
    days::javascript_day: 14 limit real;
    days::python_day: 14 limit real;
    days::go_day: 14 limit real;
    days::rust_day: 14 limit real;
    days::javascript_sigterm: 12 limit real;
    days::python_sigterm: 12 limit real;
    days::go_sigterm: 12 limit real;
    days::rust_sigterm: 12 limit real;
    days::javascript_sigint: 5;
    days::python_sigint: 5;
    days::go_sigint: 5;
    days::rust_sigint: 12 limit real;
    days::javascript_trouble: 5 limit;
    days::python_trouble: 5 limit;
    days::go_trouble: 5 limit;
    days::rust_trouble: 5 limit;
    days::javascript_restart: 10 limit;
    days::python_half_an_ack: 5;
    days::javascript_unrepaired: 1;
    days::python_restart: 10 limit;
    days::python_unrepaired: 1;
    days::go_restart: 10 limit;
    days::go_unrepaired: 1;
    days::rust_restart: 10 limit;
    days::rust_unrepaired: 1;
}
