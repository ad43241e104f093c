//! One contract, one list of checks, every store.
//!
//! Each check gets a rig: it opens stores (one for each sidecar) on the same data, and owns the clock.

mod contract;
mod failover_on_redis;
mod far;
mod faults_on_postgres;
mod faults_on_redis;
mod faulty;
mod fleet;
mod memory;
mod on_postgres;
mod on_redis;
mod rig;
mod sequences;
mod set_back;
mod sqlite;
mod sqlite_faults;
mod tls;
