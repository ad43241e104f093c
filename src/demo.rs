//! `ojs-throttle demo`: limits at work, in one process and over real HTTP.
//!
//! It starts an embedded backend, the sidecar in front of it, and producers and workers that know only the sidecar's
//! URL (`traffic`). It says each second how things stand. The verdict at the end comes from what workers, backend and
//! vendor wrote down (`records`), never from the sidecar's own counters. All scenes are played on one `stage`; what
//! is its own in each is a `scene::SceneData`.

mod backpressure;
mod cost;
mod depth;
mod egress;
mod judge;
mod limits;
mod plot;
mod records;
mod scene;
mod stage;
mod streams;
mod tokens;
mod traffic;

pub use scene::Enforcement;
pub use stage::{Options, run};
