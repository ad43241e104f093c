//! What bytes on a connection do: framing, headers, slow and broken sides, protocols that pass.
//! Over real sockets, against a scripted backend.

#[path = "sidecar/port.rs"]
mod port;

#[path = "framing/rig.rs"]
mod rig;

#[path = "framing/requests.rs"]
mod requests;

#[path = "framing/replies.rs"]
mod replies;

#[path = "framing/slow.rs"]
mod slow;

#[path = "framing/streams.rs"]
mod streams;
