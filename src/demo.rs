//! `ojs-throttle demo`: limits at work, in one process and over real HTTP.
//!
//! It starts an embedded backend, the sidecar in front of it, and producers and workers that know only the sidecar's
//! URL ([`traffic`]). It says each second what counts against the limits. The verdict at the end ([`judge`]) comes from
//! what workers and backend wrote down ([`records`]), never from the sidecar's own counters.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Lax};
use crate::client::JsonClient;
use crate::config::Settings;
use crate::net::Net;
use crate::run::{Env, Running, Stop};
use crate::upstream::{CallBounds, Target, Upstream};

pub mod backpressure;
pub mod cost;
pub mod judge;
pub mod plot;
pub mod records;
pub mod report;
pub mod streams;
pub mod traffic;

use judge::Judgement;
use records::Records;
use streams::{QUEUE, STREAMS};
use traffic::{POLL, Traffic, WORKERS};

/// How often, and how many times at most, to look whether there is work for the workers. If they came earlier they
/// would find nothing and sleep.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 100;
/// How long one call may take, as with most SDKs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it says how things stand.
const SECOND: Duration = Duration::from_secs(1);

/// Whether the sidecar enforces the limits. `--break` runs the same jobs without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enforcement {
    /// As always.
    On,
    /// Every limit is off, so that the judge has breaches to see.
    Off,
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the sidecar enforces the limits.
    pub limits: Enforcement,
    /// Where to write the plot, if anywhere.
    pub record: Option<PathBuf>,
    /// How long producers and workers work; starting and draining come on top.
    pub traffic: Duration,
}

/// Runs the demo and writes it to `out`; a Ctrl-C or SIGTERM ends the traffic early. Returns whether every limit was
/// at work and held, every job is accounted for, and no call failed.
///
/// # Errors
/// Something could not be started or written, or `--break` did not break anything.
pub async fn run(options: &Options, env: Env, out: &mut dyn Write) -> anyhow::Result<bool> {
    let records = Records::start();
    let config = |backend| streams::config(backend, options.limits);
    let mut stage = Stage::set(env, config).await?;
    let traffic = Traffic {
        client: Arc::clone(&stage.client),
        records: records.clone(),
        stop: CancellationToken::new(),
    };
    writeln!(
        out,
        "{}",
        report::intro(
            stage.client.target(),
            stage.backend_client.target(),
            options.limits
        )
    )?;
    let mut people = start(&traffic).await;
    let from = records.now();
    watch(options.traffic, SECOND, async || {
        let (_, active) = stage.in_backend().await?;
        let line = report::second(&records.pages(), from, records.now(), active);
        Ok(writeln!(out, "{line}")?)
    })
    .await?;
    let until = records.now();
    traffic.stop.cancel();
    while people.join_next().await.is_some() {}
    let left = stage.clear().await?;

    let pages = records.pages();
    let verdict = Judgement::of(&pages, &stage.backend.ledger(), left, (from, until));
    writeln!(out, "{}", report::closing(&pages, &verdict, options.limits))?;
    if let Some(path) = &options.record {
        let svg = plot::svg(&pages, &verdict, options.limits, until);
        let what = || format!("cannot write {}", path.display());
        std::fs::write(path, svg).with_context(what)?;
        writeln!(out, "The plot is in {}.", path.display())?;
    }
    writeln!(out, "{}", report::next(options.limits))?;
    anyhow::ensure!(
        options.limits == Enforcement::On || !verdict.limits_held(),
        "nothing went over a limit although they were off; give it more time (--seconds)"
    );
    Ok(verdict.held())
}

/// Starts producers and the probe first, then the workers.
async fn start(traffic: &Traffic) -> JoinSet<()> {
    let mut people = JoinSet::new();
    people.spawn(traffic.clone().probe());
    for stream in 0..STREAMS.len() {
        people.spawn(traffic.clone().produce(stream));
    }
    for _ in 0..LOOKS {
        let enqueued = traffic.records.pages().count.map(|(enqueued, _)| enqueued);
        if !enqueued.contains(&0) && !traffic.records.pages().probes.is_empty() {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    for worker in 0..WORKERS {
        let name = format!("worker-{}", worker + 1);
        people.spawn(traffic.clone().work(name, POLL * worker / WORKERS));
    }
    people
}

/// Calls `tell` at the end of each step of `time`, or until a Ctrl-C.
async fn watch(
    time: Duration,
    step: Duration,
    mut tell: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut interrupt = pin!(told_to_end());
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
async fn told_to_end() {
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
fn client(net: &Net, addr: SocketAddr) -> anyhow::Result<JsonClient> {
    let target = Target::parse(&format!("http://{addr}"), None)?;
    let server = Upstream::new(target, net.clone(), CallBounds::default());
    Ok(JsonClient::new(server, PATIENCE))
}

/// The embedded backend, the sidecar in front of it, and a client of each.
struct Stage {
    backend: Backend,
    backend_client: JsonClient,
    backend_ends: CancellationToken,
    backend_serves: JoinHandle<()>,
    client: Arc<JsonClient>,
    stop: Stop,
    sidecar: JoinHandle<anyhow::Result<()>>,
}

impl Stage {
    /// Starts both on free ports; `config` makes the sidecar's config from the backend's address.
    async fn set(env: Env, config: impl FnOnce(SocketAddr) -> String) -> anyhow::Result<Stage> {
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
        let stop = Stop::default();
        let sidecar = tokio::spawn(running.serve(stop.clone()));
        Ok(Stage {
            backend,
            backend_client,
            backend_ends,
            backend_serves,
            client,
            stop,
            sidecar,
        })
    }

    /// The numbers of available and active jobs, by the backend.
    async fn in_backend(&self) -> anyhow::Result<(usize, usize)> {
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
    async fn clear(&mut self) -> anyhow::Result<usize> {
        self.stop.drain.cancel();
        tokio::select! {
            ended = &mut self.sidecar => ended.context("the sidecar")??,
            () = told_to_end() => {
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
