//! What comes in: each request is named, and the function of its operation is called. What is nobody's streams through.
//!
//! `service` names operations; `outside` shows jobs and queues as if nothing were held; `about` shows the manifest and
//! health; `stream` passes events.

mod about;
mod outside;
pub(crate) mod service;
mod stream;
