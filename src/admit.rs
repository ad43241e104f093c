//! Enqueues (`enqueue`): what jobs bring is checked and mirrored, and bounded queues admit them. How deep those queues
//! are is found out by `depth`.

pub(crate) mod depth;
pub(crate) mod enqueue;
