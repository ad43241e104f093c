//! What people set and read over HTTP: limits of keys, queues and tenants, and the state of both.

mod host;
pub(super) mod limits;
pub(super) mod named;
mod overrides;
mod queue_config;
mod settings;
pub(super) mod shape;
mod tenants;
mod verbs;
mod waiting;
