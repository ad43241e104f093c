//! The program from outside: what it prints, how it starts and ends, what signals, kills and rude
//! clients do to it. Each test owns its processes, ports and files; the backend runs in the test, so
//! that its ledger can be judged and the sidecar killed without it.

#[path = "sidecar/port.rs"]
mod port;

#[path = "process/rig.rs"]
mod rig;

#[path = "process/http.rs"]
mod http;

#[path = "process/relay.rs"]
mod relay;

#[path = "process/hole.rs"]
mod hole;

#[path = "process/cli.rs"]
mod cli;

#[path = "process/lifecycle.rs"]
mod lifecycle;

#[path = "process/stops.rs"]
mod stops;

#[path = "process/crash.rs"]
mod crash;

#[path = "process/outage.rs"]
mod outage;

#[path = "process/log.rs"]
mod log;

#[path = "process/dev.rs"]
mod dev;

#[path = "process/rude.rs"]
mod rude;

#[path = "process/events.rs"]
mod events;

#[path = "process/reload.rs"]
mod reload;

#[path = "stores/server.rs"]
mod server;

#[path = "stores/servers.rs"]
mod servers;

#[path = "process/redis_failover.rs"]
mod redis_failover;

#[path = "process/fleet_depth.rs"]
mod fleet_depth;

#[path = "process/redis_fleet.rs"]
mod redis_fleet;

#[path = "process/doctor.rs"]
mod doctor;

#[path = "process/redis_doctor.rs"]
mod redis_doctor;

#[path = "stores/postgres_server.rs"]
mod postgres_server;

#[path = "process/postgres_fleet.rs"]
mod postgres_fleet;

#[path = "process/postgres_doctor.rs"]
mod postgres_doctor;

#[path = "process/sqlite_doctor.rs"]
mod sqlite_doctor;

#[path = "process/sqlite_fleet.rs"]
mod sqlite_fleet;

#[path = "process/redis_calls.rs"]
mod redis_calls;

#[path = "process/ledger.rs"]
mod ledger;

#[path = "process/trace.rs"]
mod trace;

#[path = "process/redis_trace.rs"]
mod redis_trace;

#[path = "process/postgres_trace.rs"]
mod postgres_trace;

#[path = "process/clocks.rs"]
mod clocks;
