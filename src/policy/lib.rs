//! Which limits apply to a job, and which can apply to a queue. Immutable once built; usage lives
//! in the store under the key, never here.
//!
//! Three sources, all of which a job must satisfy: the queue's own limits (`[[queue]]`), every
//! `[[policy]]` that matches, and what the job itself brings. Identity is the key: whatever
//! renders the same key shares its counters.

mod cache;
mod entry;
pub mod feedback;
pub mod fields;
mod gate;
pub mod job;
mod job_view;
pub mod json_path;
pub mod limits;
pub mod matcher;
pub mod money;
pub mod numbers;
pub mod price;
mod set;
mod spelling;
pub mod subqueue;
pub mod template;
mod vendor;
pub mod words;

pub use cache::LimitCache;
pub use entry::{Accept, KeyMissing, Policy, QueueLimits, of_queue, queue_key, queue_of};
pub use feedback::{Backoff, Feedback, Pause, unread_signal};
pub use fields::FieldError;
pub use gate::Gate;
pub use job::{BROUGHT, META, MIRROR, ON_LIMIT, Sent, own_policies, sent_policies};
pub use job_view::JobView;
pub use limits::strictest;
pub use matcher::{Match, Pattern, Sample};
pub use money::Currency;
pub use price::{Fair, Prices};
pub use set::PolicySet;
pub use spelling::nearest;
pub use template::{BadTemplate, CallValue, Rendered, Template};
pub use vendor::{VENDORS, Vendor, back_at, tells_of_limits};
