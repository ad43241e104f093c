//! What people set and read over HTTP: limits of keys, queues and tenants, and the state of both.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::live::Live;
use super::named::KnownKeys;
use crate::answers::load::Seldom;
use crate::limit::Key;

/// What is set: by the config, by people over HTTP, and by jobs.
#[derive(Debug)]
pub(crate) struct Control {
    /// What the config says now.
    pub(crate) live: ArcSwap<Live>,
    /// The keys that were named.
    pub(crate) named: KnownKeys,
    /// The edition of the store's settings that is followed.
    pub(crate) followed: Mutex<u64>,
    /// Held from the look at a queue's limits until others are set: who sets a part keeps the rest, and two who do so
    /// at once through this sidecar must not undo each other.
    pub(crate) setting: tokio::sync::Mutex<()>,
    /// The edition of the file with which the limits were compared that are set.
    pub(super) compared: AtomicU64,
    /// The policies of which it was said that the file does not have them, and that something is set for them.
    pub(super) unbound: Mutex<BTreeSet<Key>>,
    /// Whether it is to be said that the store has too many subqueues.
    pub(super) subqueues_full: Seldom,
    /// Whether it is to be said that the store cannot be told of some.
    pub(super) subqueues_unmarked: Seldom,
    /// Tells of tenants that only an untrusted header names.
    pub(super) tenant_untrusted: Seldom,
}

impl Control {
    /// Begins with what the config says. Nothing else is set yet.
    pub(crate) fn new(live: Live) -> Control {
        Control {
            live: ArcSwap::from_pointee(live),
            named: KnownKeys::default(),
            followed: Mutex::default(),
            setting: tokio::sync::Mutex::default(),
            compared: AtomicU64::new(u64::MAX),
            unbound: Mutex::default(),
            subqueues_full: Seldom::default(),
            subqueues_unmarked: Seldom::default(),
            tenant_untrusted: Seldom::default(),
        }
    }
}
