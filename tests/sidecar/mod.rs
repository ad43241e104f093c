//! The embedded backend with a sidecar before it, each on a port of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ojs_throttle::backend::{Backend, Lax};
use ojs_throttle::config::Settings;
use ojs_throttle::net::Net;
use ojs_throttle::run::{Env, Running, Stop};
use ojs_throttle::store::memory::MemoryStore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Any free port.
fn any() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// A backend that serves.
pub struct Served {
    /// The backend itself, for its ledger.
    pub backend: Backend,
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    /// Its URL.
    pub fn base(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Ends it, waits for that, and gives the backend back for its ledger.
    pub async fn stop(self) -> Backend {
        self.stop.cancel();
        self.task.await.unwrap();
        self.backend
    }
}

/// Starts a backend.
pub async fn backend(net: &Net, lax: Lax, seed: u64) -> Served {
    let listener = net.bind(any()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (backend, stop) = (Backend::new(lax, seed), CancellationToken::new());
    let task = tokio::spawn(backend.clone().serve(listener, stop.clone()));
    Served {
        backend,
        addr,
        stop,
        task,
    }
}

/// A sidecar that serves.
pub struct Sidecar {
    /// Where SDKs connect.
    pub addr: SocketAddr,
    stop: Stop,
    task: JoinHandle<()>,
}

impl Sidecar {
    /// Starts one before `upstream`; `config` is TOML without `[server]`.
    pub async fn start(net: Net, upstream: &str, seed: u64, config: &str) -> Sidecar {
        let server = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nupstream = {upstream:?}\n"
        );
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
        self.task.await.unwrap();
    }
}

/// A backend and the sidecar before it.
pub struct Pair {
    /// The backend.
    pub behind: Served,
    /// The sidecar.
    pub sidecar: Sidecar,
}

impl Pair {
    /// Starts both.
    pub async fn start(net: Net, lax: Lax, seed: u64, config: &str) -> Pair {
        let behind = backend(&net, lax, seed).await;
        let sidecar = Sidecar::start(net, &behind.base(), seed, config).await;
        Pair { behind, sidecar }
    }

    /// Ends both, and gives the backend back for its ledger.
    pub async fn stop(self) -> Backend {
        self.sidecar.stop().await;
        self.behind.stop().await
    }
}
