//! What the sidecar asks the backend by itself, and what it makes of the answers.
//!
//! | file | what it is |
//! |---|---|
//! | `calls`, `rows` | calls of the sidecar's own; rows of jobs that are out, as requests find them |
//! | `job`, `in_force` | what a job brings, and which limits are in force for it now |
//! | `adopt`, `overdue`, `prove`, `drop` | jobs that run already, whose slots are overdue, that may be ours no more, that are ended |
//! | `stats`, `passing`, `waiting` | how many jobs wait in a queue: as the backend says, as it changes here, and for a limit |
//! | `lookahead` | whether jobs fill what may be held of a queue |
//! | `shape` | limits and usage as JSON |
//! | `bases`, `news` | keeps names of subqueues from being seen; tells siblings to which subqueues jobs came |
//! | `publish` | other settings while the sidecar runs |

pub(crate) mod adopt;
pub(crate) mod bases;
pub(crate) mod calls;
pub(crate) mod done;
pub(crate) mod drop;
pub(crate) mod in_force;
pub(crate) mod job;
pub(crate) mod lookahead;
pub(crate) mod news;
pub(crate) mod overdue;
pub(crate) mod passing;
pub(crate) mod prove;
pub(crate) mod publish;
pub(crate) mod rows;
pub(crate) mod shape;
pub(crate) mod stats;
pub(crate) mod waiting;
