//! One contract, one list of checks, every store.
//!
//! Each check gets a rig: it opens stores (one for each sidecar) on the same data, and owns the clock.

#[path = "stores/contract.rs"]
mod contract;
#[path = "stores/failover_on_redis.rs"]
mod failover_on_redis;
#[path = "stores/far.rs"]
mod far;
#[path = "stores/faults_on_postgres.rs"]
mod faults_on_postgres;
#[path = "stores/faults_on_redis.rs"]
mod faults_on_redis;
#[path = "stores/fleet.rs"]
mod fleet;
#[path = "stores/memory.rs"]
mod memory;
#[path = "stores/on_postgres.rs"]
mod on_postgres;
#[path = "stores/on_redis.rs"]
mod on_redis;
#[path = "sidecar/port.rs"]
mod port;
#[path = "stores/postgres_server.rs"]
mod postgres_server;
#[path = "stores/redis_server.rs"]
mod redis_server;
#[path = "stores/redis_servers.rs"]
mod redis_servers;
#[path = "stores/rig.rs"]
mod rig;
#[path = "stores/sequences.rs"]
mod sequences;
#[path = "stores/set_back.rs"]
mod set_back;
#[path = "stores/sqlite.rs"]
mod sqlite;
#[path = "stores/sqlite_faults.rs"]
mod sqlite_faults;
#[path = "stores/tls.rs"]
mod tls;
