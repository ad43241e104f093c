//! The program from outside: what it prints, how it starts and ends, what signals, kills and rude
//! clients do to it. Each test owns its processes, ports and files; the backend runs in the test, so
//! that its ledger can be judged and the sidecar killed without it.

mod away;
pub mod by_hand;
pub mod by_policy;
mod calls_only;
mod certificates;
mod cli;
mod clocks_on_faketime;
mod crash;
mod dev;
mod doctor;
mod events;
mod fleet_reload;
mod fleet_subqueues;
mod hole;
mod hosts;
pub mod http;
mod https;
pub mod incidents;
mod inside;
mod ledger;
mod left;
mod life;
mod lifecycle;
mod listeners;
mod log;
mod manners;
mod on_boto3;
mod on_octokit;
mod on_openai;
mod on_postgres;
mod on_redis;
mod on_tools;
mod one_picture;
mod outage;
mod pages;
mod relay;
pub mod reload;
mod rude;
mod settings;
mod shadow;
mod sources;
mod sqlite_doctor;
mod sqlite_fleet;
mod stops;
mod terminal;
mod trace;
mod traceparent;
#[cfg(feature = "otlp")]
mod traces;
pub mod ways_out;
mod why;

/// What most of these tests use.
mod prelude {
    pub use std::collections::BTreeMap;
    pub use std::io::{BufRead, BufReader, Read, Write};
    pub use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    pub use std::path::PathBuf;
    pub use std::process::{Command, Stdio};
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub use std::sync::{Arc, Mutex};
    pub use std::time::{Duration, Instant};

    pub use ojs_throttle::backend::{EventKind, Lax};
    pub use serde_json::{Value, json};

    pub use super::http::{Conn, ack, ask, enqueue, fetch, get, heartbeat, polls, start_one};
    pub use crate::servers::connections;
    pub use crate::servers::postgres::{PostgresServer, UNSYNCED};
    pub use crate::servers::redis::RedisServer;
    pub use crate::sidecar::process::{
        Backend, Sidecar, config, file, has, pair, program, ran, run_at, run_with, until, wait,
    };
}
