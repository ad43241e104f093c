//! The HTTP service: recognise the operation, call one function for it, stream everything else.
//!
//! Two types go through all parts. There is one [`Sidecar`] in a process: its state. There is one [`Proxy`] in each
//! thread: the sidecar, and that thread's connections to the backend.
//!
//! | part | what it does |
//! |---|---|
//! | `sidecar`, `live` | the state of this sidecar; what its file says now |
//! | `service` | names the operation and calls its function; streams what is nobody's |
//! | `fetch` | gathers, grants, goes; waits where that may help |
//! | `settle`, `heartbeat` | ends jobs and keeps them alive, and never fails on the sidecar's account |
//! | `enqueue`, `depth` | checks and mirrors what jobs bring; admits them to bounded queues, whose depth is found out |
//! | `control` | what people set and read over HTTP |
//! | `outside`, `about`, `stream`, `tell`, `measure` | what readers are shown: jobs and queues, manifest and health, events, gauges |
//! | `news` | tells siblings to which subqueues jobs came |
//! | `bases` | keeps the names of subqueues from being seen |
//! | `sweep`, `siblings`, `prove`, `drop` | what must be done unasked: claims kept, proven, adopted, ended |
//! | `waiting`, `why`, `runs` | how many jobs wait for a limit; why they wait, and how long jobs run |
//! | `shadow` | what entries would have done that are only tried |
//! | `egress` | calls that workers make to a service, under the keys of their jobs |
//! | `process` | whether the process takes work, and whether its file is in force |
//! | `hiding`, `paused` | what keeps held jobs from going out, beside their limits |
//! | `calls`, `rows`, `job`, `scope`, … | what the others share |

mod about;
mod admit;
mod backend;
mod bases;
mod calls;
pub(crate) mod control;
mod depth;
mod drop;
mod egress;
mod enqueue;
mod enqueued;
mod fetch;
mod heartbeat;
mod hiding;
mod job;
mod live;
pub(crate) mod measure;
mod news;
mod outlive;
mod outside;
mod paused;
mod process;
mod prove;
mod rows;
mod runs;
mod scope;
mod service;
mod settle;
mod shadow;
mod siblings;
mod sidecar;
pub mod state;
mod stream;
pub(crate) mod sweep;
mod tell;
mod waiting;
pub mod why;

pub(crate) use backend::ADMIN;
pub use backend::{BackendFacts, Stranger};
pub use control::settings::publish;
pub use egress::Egress;
pub use live::{Live, ProxySettings};
pub use process::{FollowedFile, Readiness};
pub use service::Proxy;
pub use sidecar::Sidecar;

use crate::answers::respond::{ours, refuse};
pub(crate) use job::DEFAULT_VISIBILITY;
