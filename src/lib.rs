//! ojs-throttle
#![warn(
    clippy::disallowed_methods,
    clippy::exit,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::string_slice,
    clippy::too_many_lines,
    clippy::unreachable,
    clippy::unwrap_used,
    unreachable_pub
)]
pub mod admin;
pub mod backend;
pub mod cli;
pub mod config;
pub mod duration;
pub mod hold;
pub mod json;
pub mod limit;
pub mod metrics;
pub mod net;
pub mod ojs;
pub mod policy;
pub mod proxy;
pub mod run;
pub mod server;
pub mod store;
pub mod upstream;
