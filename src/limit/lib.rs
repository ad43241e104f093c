//! The limiter core: what a key's limits are, and the one step that asks all of them before it
//! takes from any. Pure: time is a number that is passed in, nothing here waits, locks or does I/O.
//!
//! The words are those of the OJS rate-limiting text: a **start** is the moment a job goes to a
//! worker, a **slot** is a start that has not ended, `rate` is a window, `throttle` is even spacing
//! (GCRA, by `governor`).

mod beside;
mod block;
mod calendar;
mod cost;
mod fingerprint;
mod key;
mod limited;
mod limits;
mod pace;
mod packed;
mod refusal;
mod reserve;
mod ring;
mod shares;
mod state;
mod time;
mod window;
mod windows;

pub use beside::{Beside, counted_beside};
pub use calendar::{Edges, Unit, UnknownZone, Zone};
pub use cost::{Cost, CostRule, Served, Share, most_paid};
pub use fingerprint::fingerprint;
pub use key::{BadKey, Key, Space};
pub use limited::{
    Limited, PolicyAndKey, each_job_key, each_key, each_paid_key, is_priced, share_of,
};
pub use limits::{Limits, Measure, OnLimit, Rate, Throttle, WindowKind};
pub use pace::Pace;
pub use refusal::{Refusal, Room, Strategy};
pub use reserve::{Reserved, Turn};
pub use shares::{AWAY, Shares};
pub use state::{Bill, KeyState, LINE, Undo, each_window};
pub use time::{EARLY, Timestamp};
pub use window::Window;
pub use windows::MOST as MOST_WINDOWS;
