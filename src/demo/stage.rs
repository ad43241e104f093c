//! The stage of all scenes: a backend, the sidecar in front of it, a vendor, and a client of each.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use super::plot;
use super::records::Records;
use super::scene::{Enforcement, SceneData, SceneNow};
use super::traffic::{Traffic, vendor};
use super::{backpressure, cost, depth, egress, limits, tokens};
use crate::backend::{Backend, Lax};
use crate::cli;
use crate::client::JsonClient;
use crate::config::Settings;
use crate::net::Net;
use crate::run::{Env, Running, Stop};
use crate::wire::upstream::{CallBounds, Target, Upstream};

/// How long one call may take, as with most SDKs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often, and how many times at most, to look whether there is work for the workers. If they came earlier they
/// would find nothing and sleep.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 100;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is shown.
    pub scene: cli::Scene,
    /// Whether the sidecar enforces the limits.
    pub limits: Enforcement,
    /// Where to write the plot, if anywhere: of the limits only.
    pub record: Option<PathBuf>,
    /// How long producers and workers work; starting and draining come on top.
    pub traffic: Duration,
}

/// Runs a scene and writes it to `out`; a Ctrl-C or SIGTERM ends the traffic early. Returns whether all was as the scene
/// promises: every limit was at work and held, and no call failed.
///
/// # Errors
/// Something could not be started or written, or `--break` did not break anything.
pub async fn run(options: &Options, env: Env, out: &mut dyn Write) -> anyhow::Result<bool> {
    let limits = options.limits;
    let scene = scene_of(options.scene, limits);
    let records = Records::start();
    records.pages().vendor.allowed = scene.vendor_allows;
    let mut stage = DemoStage::set(&scene, &records, env).await?;
    writeln!(out, "{}", stage.intro(&scene))?;
    let traffic = Traffic {
        client: Arc::clone(&stage.client),
        vendor: Arc::clone(&stage.vendor),
        records: records.clone(),
        stop: CancellationToken::new(),
    };
    let mut people = start(&scene, &traffic).await?;
    let from = records.now();
    watch(options.traffic, scene.step, async || {
        let (available, active) = stage.in_backend().await?;
        let line = (scene.line)(&SceneNow {
            pages: &records.pages(),
            ledger: &[],
            available,
            active,
            from,
            now: records.now(),
        });
        Ok(writeln!(out, "{line}")?)
    })
    .await?;
    let until = records.now();
    traffic.stop.cancel();
    while people.join_next().await.is_some() {}
    let (available, active) = stage.clear().await?;

    let seen = SceneNow {
        pages: &records.pages(),
        ledger: &stage.backend.ledger(),
        available,
        active,
        from,
        now: until,
    };
    let verdict = (scene.verdict)(&seen, limits);
    writeln!(out, "{}", verdict.text)?;
    if let Some(path) = &options.record {
        let what = || format!("cannot write {}", path.display());
        std::fs::write(path, plot::svg(&seen, limits)).with_context(what)?;
        writeln!(out, "The plot is in {}.", path.display())?;
    }
    anyhow::ensure!(
        limits == Enforcement::On || !verdict.limits_held,
        "{}; give it more time (--seconds)",
        scene.unbroken
    );
    Ok(verdict.good && limits == Enforcement::On)
}

fn scene_of(named: cli::Scene, limits: Enforcement) -> SceneData {
    match named {
        cli::Scene::Limits => limits::scene(limits),
        cli::Scene::Backpressure => backpressure::scene(limits),
        cli::Scene::Cost => cost::scene(limits),
        cli::Scene::Depth => depth::scene(limits),
        cli::Scene::Egress => egress::scene(limits),
        cli::Scene::Tokens => tokens::scene(limits),
    }
}

/// Sends what is there before all else, then starts producers and the probe, and the workers last.
async fn start(scene: &SceneData, traffic: &Traffic) -> anyhow::Result<JoinSet<()>> {
    let mut people = JoinSet::new();
    for caller in 0..scene.callers {
        people.spawn(traffic.clone().call_model(caller));
    }
    if scene.streams.is_empty() {
        return Ok(people);
    }
    for (stream, of) in scene.streams.iter().enumerate() {
        traffic.fill(stream, of).await?;
    }
    people.spawn(traffic.clone().probe());
    for (stream, of) in scene.streams.iter().enumerate() {
        for _ in 0..of.producers {
            people.spawn(traffic.clone().produce(stream, of));
        }
    }
    let have_begun = || {
        let pages = traffic.records.pages();
        let mut streams = 0..scene.streams.len();
        streams.all(|stream| pages.enqueued_and_waiting(stream).0 > 0) && !pages.probes.is_empty()
    };
    for _ in 0..LOOKS {
        if have_begun() {
            break;
        }
        sleep(LOOK).await;
    }
    for of in scene.workers {
        for worker in 0..of.workers {
            people.spawn(traffic.clone().work(scene.streams, of, worker));
        }
    }
    Ok(people)
}

/// Calls `tell` at the end of each step of `time`, or until a Ctrl-C.
async fn watch(
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
fn client(net: &Net, addr: SocketAddr) -> anyhow::Result<JsonClient> {
    let target = Target::parse(&format!("http://{addr}"))?;
    let server = Upstream::new(target, net.clone(), CallBounds::default());
    Ok(JsonClient::new(server, PATIENCE))
}

/// The embedded backend, the sidecar in front of it, a vendor, and a client of each.
struct DemoStage {
    backend: Backend,
    backend_client: JsonClient,
    backend_ends: CancellationToken,
    backend_serves: JoinHandle<()>,
    client: Arc<JsonClient>,
    /// Goes through the sidecar's way out, if it has one.
    vendor: Arc<JsonClient>,
    /// Ends the vendor when it is dropped.
    _vendor_serves: JoinSet<()>,
    /// The queue whose jobs are counted, if there are jobs.
    queue: Option<&'static str>,
    stop: Stop,
    sidecar: JoinHandle<anyhow::Result<()>>,
}

impl DemoStage {
    /// Starts all of them on free ports.
    async fn set(scene: &SceneData, records: &Records, env: Env) -> anyhow::Result<DemoStage> {
        let net = env.net.clone();
        // This one counts attempts when a job fails, so a held job costs nothing and the sidecar may hold many.
        let backend = Backend::new(Lax::redis(), env.seed);
        let listener = net.bind(([127, 0, 0, 1], 0).into()).await?;
        let backend_addr = listener.local_addr()?;
        let backend_client = client(&net, backend_addr)?;
        let backend_ends = CancellationToken::new();
        let serving = backend.clone().serve(listener, backend_ends.clone());
        let backend_serves = tokio::spawn(serving);

        let listener = net.bind(([127, 0, 0, 1], 0).into()).await?;
        let vendor_addr = listener.local_addr()?;
        let mut vendor_serves = JoinSet::new();
        vendor_serves.spawn(vendor(listener, records.clone()));

        let config = config(scene, backend_addr, vendor_addr);
        let settings = Settings::parse(&config, "demo");
        let settings = settings.map_err(|report| anyhow::anyhow!("{report}"))?;
        let running = Running::start(settings, env).await?;
        let way_out = running.egress_addrs()?.first().copied();
        let sidecar_client = client(&net, running.addr()?.unwrap_or(backend_addr))?;
        let stop = Stop::default();
        let sidecar = tokio::spawn(running.serve(stop.clone()));
        Ok(DemoStage {
            backend,
            backend_client,
            backend_ends,
            backend_serves,
            client: Arc::new(sidecar_client),
            vendor: Arc::new(client(&net, way_out.unwrap_or(vendor_addr))?),
            _vendor_serves: vendor_serves,
            queue: scene.streams.first().map(|stream| stream.queue),
            stop,
            sidecar,
        })
    }

    /// What the scene says of itself, with the addresses.
    fn intro(&self, scene: &SceneData) -> String {
        let sidecar = format!("{:?}", self.client.target());
        let backend = format!("{:?}", self.backend_client.target());
        let intro = scene.intro.replace("{sidecar}", &sidecar);
        intro.replace("{backend}", &backend)
    }

    /// The numbers of available and active jobs, by the backend.
    async fn in_backend(&self) -> anyhow::Result<(usize, usize)> {
        let Some(queue) = self.queue else {
            return Ok((0, 0));
        };
        let path = format!("/ojs/v1/queues/{queue}/stats");
        let stats = self.backend_client.get(&path).await?;
        let count = |name: &str| {
            let count = stats.pointer(&format!("/queue/{name}"));
            usize::try_from(count.and_then(Value::as_u64).unwrap_or_default()).unwrap_or_default()
        };
        Ok((count("available"), count("active")))
    }

    /// Drains the sidecar, which gives back the jobs it holds, and ends the backend. One more Ctrl-C ends the wait.
    /// Returns how many jobs are left in the backend, as [`DemoStage::in_backend`] does.
    async fn clear(&mut self) -> anyhow::Result<(usize, usize)> {
        self.stop.drain.cancel();
        tokio::select! {
            ended = &mut self.sidecar => ended.context("the sidecar")??,
            () = asked_to_end() => {
                self.stop.now.cancel();
                (&mut self.sidecar).await.context("the sidecar")??;
            }
        }
        let left = self.in_backend().await?;
        self.backend_ends.cancel();
        (&mut self.backend_serves).await.context("the backend")?;
        Ok(left)
    }
}

/// The sidecar's config.
fn config(scene: &SceneData, backend: SocketAddr, vendor: SocketAddr) -> String {
    let own = scene.config.replace("{vendor}", &vendor.to_string());
    let jobs = match scene.streams {
        [] => "upstream = \"none\"".to_owned(),
        _ => format!("listen = \"127.0.0.1:0\"\nupstream = \"http://{backend}\""),
    };
    format!("{SERVER}{jobs}\n{own}")
}

const SERVER: &str = r#"[server]
admin_listen = "127.0.0.1:0"
drain_timeout = "3s"
drain_min = "0s"
"#;
