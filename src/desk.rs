//! What all rooms share. There is one [`Sidecar`] in a process: its state, each part of it with a file of its own. There
//! is one [`Proxy`] in each thread: the sidecar, and that thread's connections to the backend.
//!
//! | file | what it is |
//! |---|---|
//! | `sidecar`, `thread` | the two types |
//! | `live`, `control`, `settings`, `process` | what the file says now; what is set over HTTP; whether work is taken |
//! | `backend`, `backend_stats`, `backlogs`, `paused`, `unbounded` | what was learnt of the backend and of its queues |
//! | `scope`, `outlive` | credentials as numbers; work that outlives its request |
//! | `fetching`, `claims`, `pollers`, `asks`, `way`, `enqueued` | for FETCH: claims under way, who polls, what enqueues told |
//! | `keeper`, `adoption`, `offered`, `evaded` | for the sweep: jobs that ran already, offers of siblings, who goes around us |
//! | `settle`, `refusals`, `unheard`, `runs`, `hiding` | for ACKs: what services refused, who got no answer, how long jobs run |
//! | `admit`, `edges`, `discarded` | for enqueues: looks under way, and where queues stand; jobs for which there was no room |
//! | `calling` | calls that wait, and calls that are out |
//! | `shadow` | what entries that are only tried would have done |
//! | `snapshot`, `whole` | one picture of what is, for all who show it; what is wrong with the sidecar as a whole |
//! | `named`, `tell`, `guard` | keys by name, events, and who may look or change |

pub(crate) mod admit;
pub(crate) mod adoption;
mod asks;
mod backend;
pub(crate) mod backend_stats;
mod backlogs;
pub(crate) mod calling;
pub(crate) mod claims;
mod control;
mod discarded;
pub(crate) mod edges;
pub(crate) mod enqueued;
mod evaded;
mod fetching;
pub(crate) mod guard;
pub(crate) mod hiding;
mod keeper;
pub(crate) mod live;
pub(crate) mod named;
mod offered;
pub(crate) mod outlive;
pub(crate) mod paused;
mod pollers;
pub(crate) mod process;
mod refusals;
pub(crate) mod runs;
pub(crate) mod scope;
pub(crate) mod settings;
mod settle;
pub(crate) mod shadow;
mod sidecar;
pub(crate) mod snapshot;
pub(crate) mod tell;
mod thread;
mod unbounded;
pub(crate) mod unheard;
mod way;
pub(crate) mod whole;

pub(crate) use backend::ADMIN;
pub use backend::{BackendFacts, Stranger};
pub(crate) use live::micros;
pub use live::{Live, ProxySettings};
pub use process::{FileRefusal, FollowedFile, Readiness};
pub use sidecar::Sidecar;
pub use thread::Proxy;
