//! The backpressure text (`urn:ojs:ext:backpressure`), sentence by sentence, with its examples.

mod block;
mod bounds;
mod cost;
pub mod depth;
mod drop;
mod examples;
mod flat;
mod fleet;
mod keys;
mod oracle;
mod rig;
mod settings;
mod several;
mod tenants;
mod told;
mod words;

/// What most of these tests use.
mod prelude {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub use std::sync::{Arc, Mutex};
    pub use std::time::Duration;

    pub use http::Method;
    pub use ojs_throttle::backend::Lax;
    pub use ojs_throttle::bounds::{
        Admission, Counts, EnqueueOutcome, FileBounds, Given, HeldCount, Now, Pressure, Want,
    };
    pub use ojs_throttle::limit::Timestamp;
    pub use ojs_throttle::net::{Net, sim};
    pub use ojs_throttle::policy::Pattern;
    pub use ojs_throttle::store::memory::MemoryStore;
    pub use serde_json::{Value, json};
    pub use tokio::time::{Instant, sleep};

    pub use super::depth::logged;
    pub use super::rig::{config, directly, full, job, number, told, waiting};
    pub use crate::sidecar::client::{Client, Reply, id, plain};
    pub use crate::sidecar::simulated::simulated;
}
