//! ojs-throttle
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
