//! A sidecar in this process.

pub mod answering;
pub mod client;
pub mod listen;
pub mod pair;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ojs_throttle::config::Settings;
use ojs_throttle::net::Net;
use ojs_throttle::run::{Env, Reload, Running, Stop};
use ojs_throttle::store::Store;
use ojs_throttle::store::memory::MemoryStore;
use tokio::task::JoinHandle;

use client::Client;

/// When the clock of a store begins unless a test says so, in microseconds since 1970.
pub const BEGIN: u64 = 1_770_000_000_000_000;

/// 2026-02-13T12:00:00Z, when the examples of texts and pages happen, in microseconds since 1970.
pub const NOON: u64 = 1_770_984_000_000_000;

/// A config file before `upstream`: `rest` is TOML that begins inside `[server]`. Ports that it does not
/// name are any free ones.
pub fn config(upstream: &str, rest: &str) -> String {
    let is_said = |name: &str| rest.lines().any(|line| line.starts_with(name));
    let mut text = format!("[server]\nupstream = {upstream:?}\n");
    for name in ["listen", "admin_listen"] {
        if !is_said(&format!("{name} =")) {
            text += &format!("{name} = \"127.0.0.1:0\"\n");
        }
    }
    text + rest
}

/// The settings of such a file. Where it does not say how long an empty FETCH waits, that is half a second: most of these
/// tests ask on when nothing came, and count the time that passes.
pub fn settings(upstream: &str, rest: &str) -> Settings {
    let text = config(upstream, rest);
    let read = Settings::parse(&text, "throttle.toml");
    let mut settings = read.unwrap_or_else(|report| panic!("{text}\n{}", report.render(false)));
    if !rest.contains("max_wait") {
        settings.fetch.max_wait = Duration::from_millis(500);
    }
    settings
}

/// A sidecar that is to be started in this process.
pub struct Start {
    settings: Settings,
    env: Env,
}

impl Start {
    /// One before `upstream`, with a store of its own; `rest` as in [`config`].
    pub fn before(net: &Net, upstream: &str, rest: &str) -> Start {
        Start {
            settings: settings(upstream, rest),
            env: Env {
                net: net.clone(),
                store: Arc::new(MemoryStore::new(BEGIN)).into(),
                seed: 7,
                reset: false,
            },
        }
    }

    /// Usage is kept in this store.
    pub fn store(mut self, store: impl Into<Store>) -> Start {
        self.env.store = store.into();
        self
    }

    /// Its chance.
    pub fn seed(mut self, seed: u64) -> Start {
        self.env.seed = seed;
        self
    }

    /// `POST /ojs/v1/admin/reset` clears it too, as under `dev`.
    pub fn reset_with_backend(mut self) -> Start {
        self.env.reset = true;
        self
    }

    /// Starts it.
    pub async fn start(self) -> Sidecar {
        let net = self.env.net.clone();
        let running = Running::start(self.settings, self.env).await.unwrap();
        let stop = Stop::default();
        Sidecar {
            net,
            addr: running.addr().unwrap(),
            admin_addr: running.admin_addr().unwrap(),
            reload: running.reload(),
            stop: stop.clone(),
            task: tokio::spawn(running.serve(stop)),
        }
    }
}

/// A sidecar that serves; it goes on when this is dropped.
pub struct Sidecar {
    /// The network it is in.
    pub net: Net,
    /// Where SDKs connect.
    pub addr: SocketAddr,
    /// Its admin port.
    pub admin_addr: SocketAddr,
    /// Gives it other settings.
    pub reload: Reload,
    /// How it is told to end.
    pub stop: Stop,
    /// Ends when it has ended.
    pub task: JoinHandle<anyhow::Result<()>>,
}

impl Sidecar {
    /// Starts one before `upstream` that is reset with its backend; `rest` as in [`config`].
    pub async fn start(net: Net, upstream: &str, seed: u64, rest: &str) -> Sidecar {
        let start = Start::before(&net, upstream, rest).seed(seed);
        start.reset_with_backend().start().await
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(&self.net, self.addr)
    }

    /// A client of its admin port.
    pub fn admin(&self) -> Client {
        Client::new(&self.net, self.admin_addr)
    }

    /// Ends it at once and waits for that.
    pub async fn stop(self) {
        self.stop.drain.cancel();
        self.stop.now.cancel();
        self.task.await.unwrap().unwrap();
    }
}
