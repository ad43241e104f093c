//! ojs-throttle
pub mod hold;
pub mod json;
pub mod limit;
pub mod metrics;
pub mod net;
pub mod policy;
pub mod store;
pub mod upstream;
