//! ojs-throttle
pub mod backend;
pub mod json;
pub mod limit;
pub mod net;
pub mod policy;
pub mod store;
pub mod upstream;
