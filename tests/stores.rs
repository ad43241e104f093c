//! One contract, one list of checks, every store.
//!
//! Each check gets a rig: it opens stores (one for each sidecar) on the same data, and owns the clock.

mod contract;
mod far;
mod faulty;
mod fleet;
mod memory;
mod on_postgres;
mod on_redis;
mod on_redis_6;
mod priced;
pub mod rig;
mod sequences;
mod set_back;
mod sqlite;
mod sqlite_faults;
mod tls;

use crate::protocol::traces;

/// What most of these tests use.
mod prelude {
    pub use std::process::Command;
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub use std::time::{Duration, Instant};

    pub use ojs_throttle::limit::{EARLY, Key, Limited, Limits, OnLimit, Space, Timestamp};
    pub use ojs_throttle::store::guard::{Guard, OnStoreError};
    pub use ojs_throttle::store::memory::MemoryStore;
    pub use ojs_throttle::store::redis::RedisStore;
    pub use ojs_throttle::store::{
        Change, Claimed, Clock, Gen, Ledger, LedgerExt, Override, Place, Step, StoreError, Verdict,
        Wake,
    };

    pub use super::rig::{
        Rig, SECOND, T, advance, answered, claimed, clock, limited, now, offer, started, take,
        take_answered,
    };
    pub use crate::servers::postgres::PostgresServer;
    pub use crate::servers::redis::RedisServer;
}
