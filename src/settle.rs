//! ACK, nack and heartbeat: `ack` ends jobs, `heartbeat` keeps them alive, and `feedback` shuts the keys of services that
//! say that they limit us. None of them fails on the sidecar's account.

mod ack;
pub(crate) mod cost;
pub(crate) mod feedback;
pub(crate) mod heartbeat;
mod insist;
mod settling;
mod speaker;
mod unheard;

pub(crate) use ack::settle;
pub(crate) use unheard::Verb;
