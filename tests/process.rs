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

#[path = "process/https.rs"]
mod https;

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

#[path = "stores/redis_server.rs"]
mod redis_server;

#[path = "stores/redis_servers.rs"]
mod redis_servers;

#[path = "process/failover_on_redis.rs"]
mod failover_on_redis;

#[path = "process/fleet_depth.rs"]
mod fleet_depth;

#[path = "process/fleet_on_redis.rs"]
mod fleet_on_redis;

#[path = "process/outages_on_redis.rs"]
mod outages_on_redis;

#[path = "process/doctor.rs"]
mod doctor;

#[path = "process/doctor_on_redis.rs"]
mod doctor_on_redis;

#[path = "stores/postgres_server.rs"]
mod postgres_server;

#[path = "process/fleet_on_postgres.rs"]
mod fleet_on_postgres;

#[path = "process/doctor_on_postgres.rs"]
mod doctor_on_postgres;

#[path = "process/sqlite_doctor.rs"]
mod sqlite_doctor;

#[path = "process/sqlite_fleet.rs"]
mod sqlite_fleet;

#[path = "process/calls_on_redis.rs"]
mod calls_on_redis;

#[path = "process/ledger.rs"]
mod ledger;

#[path = "process/trace.rs"]
mod trace;

#[path = "process/trace_on_redis.rs"]
mod trace_on_redis;

#[path = "process/trace_on_postgres.rs"]
mod trace_on_postgres;

#[path = "process/clocks_on_faketime.rs"]
mod clocks_on_faketime;
