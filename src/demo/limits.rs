//! The scene of limits: streams of jobs, each under a limit of its own, and a verdict on each.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::judge::Judgement;
use super::records::Records;
use super::stage::{DemoStage, watch};
use super::streams::{self, Enforcement, STREAMS};
use super::traffic::{POLL, Traffic, WORKERS};
use super::{plot, report};
use crate::run::Env;

/// How often, and how many times at most, to look whether there is work for the workers. If they came earlier they
/// would find nothing and sleep.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 100;
/// How often it says how things stand.
const SECOND: Duration = Duration::from_secs(1);

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
    let mut stage = DemoStage::set(env, config).await?;
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
