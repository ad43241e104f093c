//! What is used of a key, for people.

use ojs_limit::{KeyState, Limits, Timestamp};

/// A key's state, for inspection (section 10.1). Numbers only; limits come from the config.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Slots taken.
    pub active: u32,
    /// Per asked window: starts counted, and when the oldest of them leaves.
    pub windows: Vec<(u32, Option<Timestamp>)>,
    /// The next start's time under the asked throttle, if it is in the future.
    pub next_start: Option<Timestamp>,
    /// Shut until then, if that is in the future.
    pub shut_until: Option<Timestamp>,
}

impl Usage {
    /// What a key's state says under these limits; `None`: nothing is used.
    pub fn of(state: &KeyState, limits: &Limits, now: Timestamp) -> Option<Usage> {
        if state.is_unused(now) {
            return None;
        }
        let throttle = limits.throttle.as_ref();
        Some(Usage {
            active: state.active(),
            windows: limits
                .rates
                .iter()
                .map(|rate| state.counted(rate, now))
                .collect(),
            next_start: throttle.and_then(|throttle| state.next_start(throttle, now)),
            shut_until: state.shut_until(now),
        })
    }
}
