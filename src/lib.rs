//! ojs-throttle
<<<<<<< HEAD
pub mod hold;
=======
pub mod duration;
>>>>>>> config
pub mod json;
pub mod limit;
pub mod metrics;
pub mod net;
pub mod policy;
pub mod store;
pub mod upstream;
