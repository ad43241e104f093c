//! What people set and read over HTTP: limits of keys, queues and tenants, and the state of both.

pub(crate) mod guard;
pub(super) mod in_force;
pub(super) mod limits;
pub(super) mod named;
pub(super) mod overrides;
pub(super) mod queue_config;
mod sent;
pub(super) mod settings;
pub(super) mod shape;
mod subqueues;
pub(super) mod tenants;
pub(crate) mod verbs;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::live::Live;
use crate::answers::load::Seldom;
use named::KnownKeys;

/// What is set: by the config, by people over HTTP, and by jobs.
#[derive(Debug)]
pub(super) struct Control {
    /// What the config says now.
    pub(super) live: ArcSwap<Live>,
    /// The keys that were named.
    pub(super) named: KnownKeys,
    /// The edition of the store's settings that is followed.
    followed: Mutex<u64>,
    /// Whether it is to be said that the store has too many subqueues.
    subqueues_full: Seldom,
}

impl Control {
    /// Begins with what the config says. Nothing else is set yet.
    pub(super) fn new(live: Live) -> Control {
        Control {
            live: ArcSwap::from_pointee(live),
            named: KnownKeys::default(),
            followed: Mutex::default(),
            subqueues_full: Seldom::default(),
        }
    }
}
