//! A sidecar in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use ojs_throttle::config::Settings;
use ojs_throttle::net::Net;
use ojs_throttle::run::{Env, Running, Stop};
use ojs_throttle::store::memory::MemoryStore;
use tokio::task::JoinHandle;

/// A sidecar that serves.
pub struct Sidecar {
    /// Where SDKs connect.
    pub addr: SocketAddr,
    /// How it is told to end.
    pub stop: Stop,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Sidecar {
    /// Starts one before `upstream`; `config` is TOML that begins inside `[server]`, with `listen` if
    /// that is to be another.
    pub async fn start(net: Net, upstream: &str, seed: u64, config: &str) -> Sidecar {
        let listen = if config.starts_with("listen =") {
            ""
        } else {
            "listen = \"127.0.0.1:0\"\n"
        };
        let server =
            format!("[server]\n{listen}admin_listen = \"127.0.0.1:0\"\nupstream = {upstream:?}\n");
        let settings = Settings::parse(&format!("{server}{config}"), "test.toml")
            .unwrap_or_else(|report| panic!("{}", report.render(false)));
        let env = Env {
            net,
            store: Arc::new(MemoryStore::new(1_770_000_000_000_000)),
            seed,
            reset: true,
        };
        let running = Running::start(settings, env).await.unwrap();
        let addr = running.addr().unwrap();
        let stop = Stop::default();
        let task = tokio::spawn(running.serve(stop.clone()));
        Sidecar { addr, stop, task }
    }

    /// Ends it at once and waits for that.
    pub async fn stop(self) {
        self.stop.drain.cancel();
        self.stop.now.cancel();
        self.task.await.unwrap().unwrap();
    }
}
