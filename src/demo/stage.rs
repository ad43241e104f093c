//! The stage of each scene: a backend, the sidecar in front of it, and a client of each.

use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::streams::QUEUE;
use crate::backend::{Backend, Lax};
use crate::client::JsonClient;
use crate::config::Settings;
use crate::net::Net;
use crate::run::{Env, Running, Stop};
use crate::upstream::{CallBounds, Target, Upstream};

/// How long one call may take, as with most SDKs.
const PATIENCE: Duration = Duration::from_secs(30);

/// One line of a verdict: what was to be and whether it is, and what was seen.
pub(super) fn finding(
    out: &mut dyn Write,
    (what, is_so): (&str, bool),
    seen: impl Display,
) -> std::io::Result<()> {
    let word = if is_so { "yes" } else { "NO" };
    writeln!(out, "  {what}  {word}  ({seen})")
}

/// Calls `tell` at the end of each step of `time`, or until a Ctrl-C.
pub(super) async fn watch(
    time: Duration,
    step: Duration,
    mut tell: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut interrupt = pin!(asked_to_end());
    let mut tick = interval_at(begin + step, step);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while begin.elapsed() < time {
        tokio::select! {
            () = &mut interrupt => break,
            _ = tick.tick() => tell().await?,
        }
    }
    Ok(())
}

/// Waits for a Ctrl-C or a SIGTERM. In a container nothing else would heed the latter.
async fn asked_to_end() {
    let interrupt = tokio::signal::ctrl_c();
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        },
        Err(_) => drop(interrupt.await),
    }
}

/// A client of the server at `addr`.
pub(super) fn client(net: &Net, addr: SocketAddr) -> anyhow::Result<JsonClient> {
    let target = Target::parse(&format!("http://{addr}"))?;
    let server = Upstream::new(target, net.clone(), CallBounds::default());
    Ok(JsonClient::new(server, PATIENCE))
}

/// The embedded backend, the sidecar in front of it, and a client of each.
pub(super) struct DemoStage {
    pub(super) backend: Backend,
    pub(super) backend_client: JsonClient,
    backend_ends: CancellationToken,
    backend_serves: JoinHandle<()>,
    pub(super) client: Arc<JsonClient>,
    /// Where calls go out, if the config has such a way.
    pub(super) egress: Option<SocketAddr>,
    pub(super) stop: Stop,
    sidecar: JoinHandle<anyhow::Result<()>>,
}

impl DemoStage {
    /// Starts both on free ports; `config` makes the sidecar's config from the backend's address.
    pub(super) async fn set(
        env: Env,
        config: impl FnOnce(SocketAddr) -> String,
    ) -> anyhow::Result<DemoStage> {
        let net = env.net.clone();
        // This one counts attempts when a job fails, so a held job costs nothing and the sidecar may hold many.
        let backend = Backend::new(Lax::redis(), env.seed);
        let listener = net.bind(([127, 0, 0, 1], 0).into()).await?;
        let backend_addr = listener.local_addr()?;
        let backend_client = client(&net, backend_addr)?;
        let backend_ends = CancellationToken::new();
        let serving = backend.clone().serve(listener, backend_ends.clone());
        let backend_serves = tokio::spawn(serving);

        let settings = Settings::parse(&config(backend_addr), "demo");
        let settings = settings.map_err(|report| anyhow::anyhow!("{report}"))?;
        let running = Running::start(settings, env).await?;
        let client = Arc::new(client(&net, running.addr()?)?);
        let egress = running.egress_addrs()?.first().copied();
        let stop = Stop::default();
        let sidecar = tokio::spawn(running.serve(stop.clone()));
        Ok(DemoStage {
            backend,
            backend_client,
            backend_ends,
            backend_serves,
            client,
            egress,
            stop,
            sidecar,
        })
    }

    /// The numbers of available and active jobs, by the backend.
    pub(super) async fn in_backend(&self) -> anyhow::Result<(usize, usize)> {
        let path = format!("/ojs/v1/queues/{QUEUE}/stats");
        let stats = self.backend_client.get(&path).await?;
        let count = |name: &str| {
            let count = stats
                .pointer(&format!("/queue/{name}"))
                .and_then(serde_json::Value::as_u64);
            usize::try_from(count.unwrap_or_default()).unwrap_or_default()
        };
        Ok((count("available"), count("active")))
    }

    /// Drains the sidecar, which gives back the jobs it holds, and ends the backend. One more Ctrl-C ends the wait.
    /// Returns how many jobs are left in the backend.
    pub(super) async fn clear(&mut self) -> anyhow::Result<usize> {
        self.stop.drain.cancel();
        tokio::select! {
            ended = &mut self.sidecar => ended.context("the sidecar")??,
            () = asked_to_end() => {
                self.stop.now.cancel();
                (&mut self.sidecar).await.context("the sidecar")??;
            }
        }
        let (available, active) = self.in_backend().await?;
        self.backend_ends.cancel();
        (&mut self.backend_serves).await.context("the backend")?;
        Ok(available + active)
    }
}
