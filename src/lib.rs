//! ojs-throttle
pub mod json;
pub mod limit;
pub mod net;
pub mod ojs;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod store;
pub mod upstream;
