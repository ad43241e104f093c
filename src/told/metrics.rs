//! Every metric: its name, help and labels, declared once in [`SERIES`], and its buckets. The recorder is a value of
//! ours and not the process's global one, so that two sidecars in one process (tests) do not share counts.
//!
//! Label values come from the config (policies) or from fixed words. Keys come from users, so only the first
//! [`Metrics::new`]`(top_keys)` of them have series of their own; the rest share `_other`.

mod activity;
mod names;
mod page;
mod recorder;
mod registry;

pub use activity::{Activity, Band, Point, STEP, SpacedKey};
pub use names::{Counted, SERIES, Series};
pub use recorder::Labels;
pub use registry::{Metrics, Settlement, StartKind};
