//! ojs-throttle
pub mod cli;
pub mod config;
pub mod duration;
pub mod json;
pub mod limit;
pub mod net;
pub mod policy;
pub mod store;
pub mod upstream;
