//! The rate-limiting text (`urn:ojs:ext:rate-limiting`), sentence by sentence, where the official
//! cases do not look: they accept any FETCH that answers 200.

mod actions;
mod admin;
mod around;
mod bases;
mod cost;
mod enqueue;
mod events;
mod examples;
mod flat;
mod gated;
mod input;
mod large;
mod learning;
mod limits;
mod lookahead;
mod metrics;
mod names;
mod overrides;
mod pollers;
mod queue_limits;
mod required;
mod rig;
mod seen;
mod signals;
mod slower;
mod spellings;
mod state;
mod strangers;
mod subqueues;
mod surface;
mod templates;
mod tried;
mod unread;
mod unshared;
mod upstream;
mod via;
mod waiting;
mod why;
mod workglow;

/// What most of these tests use.
mod prelude {
    pub use std::sync::Arc;
    pub use std::time::Duration;

    pub use bytes::Bytes;
    pub use http::Method;
    pub use ojs_throttle::backend::{EventKind, Lax};
    pub use ojs_throttle::net::{Net, sim};
    pub use ojs_throttle::store::memory::MemoryStore;
    pub use serde_json::{Value, json};
    pub use tokio::io::{AsyncReadExt, AsyncWriteExt};
    pub use tokio::time::{Instant, sleep};

    pub use super::rig::{Rig, work};
    pub use crate::faulty::{Fault, Faulty};
    pub use crate::sidecar::NOON;
    pub use crate::sidecar::client::{Client, Reply, id, ids, plain};
    pub use crate::sidecar::listen::Listener;
    pub use crate::sidecar::simulated::{Sidecar, Start, backend, simulated};
}
