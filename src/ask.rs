//! Asks the admin port of a running sidecar, for the commands that look at it or change something there.
#![expect(
    clippy::indexing_slicing,
    reason = "JSON is null where it lacks a name"
)]

mod by_hand;
mod commands;
mod port;
mod subqueues;
mod top;
mod why;

pub use by_hand::{clear, limit, pause, resume};
pub use commands::addressed;
pub use port::{AdminPlace, AdminPort, AskError, DEFAULT, place_of};
pub use subqueues::{subqueues, subqueues_line, unread_subqueue};
pub use top::{keys, top};
pub use why::{slots, why_path, why_text};
