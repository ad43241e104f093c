//! Sidecars in this process, most of them in a simulated network and on a paused clock, and the embedded backend
//! behind them. No other file of the tests starts one in this way.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use ojs_throttle::backend::{Backend, EventKind, Lax};
use ojs_throttle::config::Settings;
use ojs_throttle::net::{Net, sim};
use ojs_throttle::run::{Env, Reload, Running, Stop};
use ojs_throttle::store::Store;
use ojs_throttle::store::memory::MemoryStore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::{BEGIN, settings};

/// A sidecar that is to be started in this process.
pub struct Start {
    settings: Settings,
    env: Env,
}

impl Start {
    /// One before `upstream`, with a store of its own, which a reset of the backend clears too; `rest` as in
    /// [`super::config`].
    pub fn before(net: &Net, upstream: &str, rest: &str) -> Start {
        Start {
            settings: settings(upstream, rest),
            env: Env {
                net: net.clone(),
                store: Arc::new(MemoryStore::new(BEGIN)).into(),
                seed: 7,
                reset: true,
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

    /// Starts it.
    pub async fn start(self) -> Sidecar {
        let net = self.env.net.clone();
        let running = Running::start(self.settings, self.env).await.unwrap();
        let (stop, why) = (Stop::default(), Arc::default());
        Sidecar {
            net,
            // Without a backend nobody asks there.
            addr: running
                .addr()
                .unwrap()
                .unwrap_or(([127, 0, 0, 1], 0).into()),
            admin_addr: running.admin_addr().unwrap(),
            egress: running.egress_addrs().unwrap(),
            reload: running.reload(),
            stop: stop.clone(),
            task: tokio::spawn(Broke::note(Arc::clone(&why), running.serve(stop))),
            _broke: Broke(why),
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
    /// Where callers connect, in the order of its file.
    pub egress: Vec<SocketAddr>,
    /// Gives it other settings.
    pub reload: Reload,
    /// How it is told to end.
    pub stop: Stop,
    /// Ends when it has ended.
    pub task: JoinHandle<anyhow::Result<()>>,
    _broke: Broke,
}

/// Why a sidecar ended that was not told to: a part of it has panicked. Then its test fails where this is dropped.
struct Broke(Arc<OnceLock<String>>);

impl Broke {
    async fn note(
        why: Arc<OnceLock<String>>,
        serving: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let ended = serving.await;
        if let Err(error) = &ended {
            why.get_or_init(|| error.to_string());
        }
        ended
    }
}

impl Drop for Broke {
    fn drop(&mut self) {
        let why = self.0.get().filter(|_| !std::thread::panicking());
        assert!(why.is_none(), "{why:?}");
    }
}

impl Sidecar {
    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(&self.net, self.addr)
    }

    /// A client of its admin port.
    pub fn admin(&self) -> Client {
        Client::new(&self.net, self.admin_addr)
    }

    /// A caller by its first way out.
    pub fn caller(&self) -> Client {
        Client::new(&self.net, self.egress[0])
    }

    /// Ends it at once and waits for that.
    pub async fn stop(self) {
        self.stop.drain.cancel();
        self.stop.now.cancel();
        self.task.await.unwrap().unwrap();
    }
}

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

    /// How often this happened to any job.
    pub fn count(&self, kind: EventKind) -> usize {
        let ledger = self.backend.ledger();
        ledger.iter().filter(|event| event.kind == kind).count()
    }

    /// Ends it, waits for that, and gives the backend back for its ledger.
    pub async fn stop(self) -> Backend {
        self.stop.cancel();
        self.task.await.unwrap();
        self.backend
    }
}

/// Starts a backend.
pub async fn backend(net: &Net, lax: Lax) -> Served {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = net.bind(any).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (backend, stop) = (Backend::new(lax, 7), CancellationToken::new());
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
    let pair = Pair::start(Net::Sim(sim::Network::default()), lax, config).await;
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
        Pair::with(&net, Lax::spec(), config, |start| start.store(store)).await
    }

    /// Both in this network.
    pub async fn start(net: Net, lax: Lax, config: &str) -> Pair {
        Pair::with(&net, lax, config, |start| start).await
    }

    pub async fn with(
        net: &Net,
        lax: Lax,
        config: &str,
        as_wanted: impl FnOnce(Start) -> Start,
    ) -> Pair {
        let behind = backend(net, lax).await;
        let start = Start::before(net, &behind.base(), config);
        let sidecar = as_wanted(start).start().await;
        Pair { behind, sidecar }
    }

    /// Ends both, and gives the backend back for its ledger.
    pub async fn stop(self) -> Backend {
        self.sidecar.stop().await;
        self.behind.stop().await
    }
}
