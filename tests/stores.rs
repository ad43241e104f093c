//! One contract, one list of checks, every store.
//!
//! Each check gets a rig: it opens stores (one for each sidecar) on the same data, and owns the clock.

#[path = "stores/contract.rs"]
mod contract;
#[path = "stores/fleet.rs"]
mod fleet;
#[path = "stores/memory.rs"]
mod memory;
#[path = "sidecar/port.rs"]
mod port;
#[path = "stores/postgres.rs"]
mod postgres;
#[path = "stores/postgres_faults.rs"]
mod postgres_faults;
#[path = "stores/postgres_server.rs"]
mod postgres_server;
#[path = "stores/redis.rs"]
mod redis;
#[path = "stores/redis_failover.rs"]
mod redis_failover;
#[path = "stores/redis_faults.rs"]
mod redis_faults;
#[path = "stores/rig.rs"]
mod rig;
#[path = "stores/sequences.rs"]
mod sequences;
#[path = "stores/server.rs"]
mod server;
#[path = "stores/servers.rs"]
mod servers;
#[path = "stores/sqlite.rs"]
mod sqlite;
#[path = "stores/sqlite_faults.rs"]
mod sqlite_faults;
#[path = "stores/tls.rs"]
mod tls;
