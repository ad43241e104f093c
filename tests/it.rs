//! All tests but two, as one program: what they share is compiled and linked once, and tests that wait
//! overlap with those that compute. `tests/house.rs` and `tests/metrics.rs` are programs of their own.
//!
//! `cargo test --test it process::` runs the tests of one module.

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod faulty;
mod harness;
mod servers;
mod sidecar;

mod backpressure;
mod config;
mod conformance;
mod demo;
mod docs;
mod egress;
mod framing;
mod fuzz;
mod model;
mod page;
mod process;
mod protocol;
mod rate_limiting;
mod scenarios;
mod sdks;
mod ship;
mod stores;
mod traffic;
