//! The listener: connections in, one task each, requests to a [`Service`], and an orderly end.

mod bounds;
mod connection;
mod forwarded;
mod io;
mod listener;
mod requests;
mod rules;
mod watchdog;

pub use bounds::ListenerBounds;
pub use listener::serve;
pub use ojs_answers::load::Service;
