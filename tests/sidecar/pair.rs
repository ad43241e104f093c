//! The embedded backend with a sidecar before it, each on a port of its own.

use std::net::{Ipv4Addr, SocketAddr};

use ojs_throttle::backend::{Backend, Lax};
use ojs_throttle::net::{Net, sim};
use ojs_throttle::store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::sidecar::client::Client;
use crate::sidecar::{Sidecar, Start};

/// A backend that serves.
pub struct Served {
    /// The backend itself, for its ledger.
    pub backend: Backend,
    /// Where it serves.
    pub addr: SocketAddr,
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
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = net.bind(any).await.unwrap();
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

/// A backend with a sidecar before it in a simulated network, and a client of the sidecar.
pub async fn simulated(lax: Lax, config: &str) -> (Pair, Client) {
    let pair = Pair::start(Net::Sim(sim::Network::default()), lax, 7, config).await;
    let client = pair.sidecar.client();
    (pair, client)
}

/// A backend and the sidecar before it.
pub struct Pair {
    /// The backend.
    pub behind: Served,
    /// The sidecar.
    pub sidecar: Sidecar,
}

impl Pair {
    /// Both in a simulated network, with usage in this store.
    pub async fn over(store: impl Into<Store>, config: &str) -> Pair {
        let net = Net::Sim(sim::Network::default());
        let behind = backend(&net, Lax::spec(), 7).await;
        let start = Start::before(&net, &behind.base(), config).store(store);
        let sidecar = start.start().await;
        Pair { behind, sidecar }
    }

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
