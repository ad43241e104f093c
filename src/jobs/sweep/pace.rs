//! How often what is done unasked looks whether there is something to do.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The longest time between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Ticks now and then; whoever is late for a tick gets the next one a whole time later.
pub(super) fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
