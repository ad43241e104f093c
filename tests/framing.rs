//! What bytes on a connection do: framing, headers, slow and broken sides, protocols that pass.
//! Over real sockets, against a scripted backend.

mod replies;
mod requests;
mod rig;
mod slow;
mod streams;
