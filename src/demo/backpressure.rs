//! `ojs-throttle demo backpressure`: producers that are faster than their worker, and a queue that stays
//! within its bound all the same. Judged from the backend's ledger.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use crate::backend::{Backend, EventKind, Lax};
use crate::config::Settings;
use crate::run::{Env, Running, Stop};

/// The bound of the queue.
const BOUND: i64 = 60;
/// Producers, each of which enqueues as fast as it is answered.
const PRODUCERS: usize = 8;
/// A producer that is refused comes back after this: a picture of seconds wants impatient producers.
const PAUSE: Duration = Duration::from_millis(120);
/// The worker takes so many jobs, and then rests for so long: 20 a second.
const TAKES: usize = 2;
const RESTS: Duration = Duration::from_millis(100);
/// How often a line is written.
const LINE: Duration = Duration::from_millis(500);
/// The widest bar.
const WIDTH: usize = 40;

/// What producers were answered.
#[derive(Default, Debug)]
struct Counts {
    accepted: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
}

/// Runs the scene for `time` and writes it to `out`; a Ctrl-C or SIGTERM ends it early. Whether the queue was full and
/// never over its bound, and every accepted job stored.
///
/// # Errors
/// Something could not be started or written, or the bound was off (`broken`) and nothing went over it.
pub async fn run(
    broken: bool,
    time: Duration,
    env: Env,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let net = env.net.clone();
    let backend = Backend::new(Lax::redis(), env.seed);
    let listener = net.bind(([127, 0, 0, 1], 0).into()).await?;
    let behind = Client::new(net.clone(), listener.local_addr()?);
    let ends = CancellationToken::new();
    let serves = tokio::spawn(backend.clone().serve(listener, ends.clone()));
    let text = config(&behind, broken);
    let settings = Settings::parse(&text, "demo").map_err(|report| anyhow::anyhow!("{report}"))?;
    let running = Running::start(settings, env).await?;
    let client = Arc::new(Client::new(net, running.addr()?));
    let (stop, sidecar_stop) = (CancellationToken::new(), Stop::default());
    let sidecar = tokio::spawn(running.serve(sidecar_stop.clone()));

    let counts = Arc::new(Counts::default());
    let mut people = JoinSet::new();
    for _ in 0..PRODUCERS {
        people.spawn(produce(client.clone(), counts.clone(), stop.clone()));
    }
    people.spawn(work(client.clone(), stop.clone()));
    writeln!(
        out,
        "{PRODUCERS} producers, one worker that takes 20 jobs a second, and a queue {}.\n",
        match broken {
            true => "without a bound".to_owned(),
            false => format!("bounded at {BOUND}"),
        }
    )?;
    watch(time, &backend, &counts, out).await?;
    stop.cancel();
    while people.join_next().await.is_some() {}
    sidecar_stop.drain.cancel();
    sidecar_stop.now.cancel();
    sidecar.await.context("the sidecar")??;
    ends.cancel();
    serves.await.context("the backend")?;
    verdict(broken, &backend, &counts, out)
}

fn config(behind: &Client, broken: bool) -> String {
    let bound = match broken {
        true => String::new(),
        false => format!("[[queue]]\nname = \"import\"\nmax_depth = {BOUND}\n"),
    };
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nupstream = \"http://{}\"\ndrain_min = \"0s\"\n{bound}",
        behind.addr()
    )
}

async fn produce(client: Arc<Client>, counts: Arc<Counts>, stop: CancellationToken) {
    let body = json!({"type": "row.import", "args": [1], "options": {"queue": "import"}});
    while !stop.is_cancelled() {
        let answer = client
            .exchange(&Method::POST, "/ojs/v1/jobs", body.to_string().into())
            .await;
        let count = match answer {
            Ok((StatusCode::CREATED, _)) => &counts.accepted,
            Ok((StatusCode::TOO_MANY_REQUESTS, _)) => &counts.refused,
            _ => &counts.other,
        };
        count.fetch_add(1, Ordering::Relaxed);
        // One that is accepted has its next job soon.
        let refused = std::ptr::eq(count, &counts.refused);
        sleep(if refused { PAUSE } else { PAUSE / 12 }).await;
    }
}

async fn work(client: Arc<Client>, stop: CancellationToken) {
    let fetch = json!({"queues": ["import"], "count": TAKES, "worker_id": "worker"});
    while !stop.is_cancelled() {
        let got = client.post("/ojs/v1/workers/fetch", &fetch).await;
        let got = got.unwrap_or_default();
        let jobs = got.get("jobs").and_then(Value::as_array);
        for job in jobs.into_iter().flatten() {
            let ack = json!({"job_id": job.get("id"), "worker_id": "worker"});
            // What is not acknowledged comes back; the ledger tells.
            let _acked = client.post("/ojs/v1/workers/ack", &ack).await;
        }
        sleep(RESTS).await;
    }
}

/// How many jobs wait, and how many waited at most.
fn depths(backend: &Backend) -> (i64, i64, u64) {
    let (mut depth, mut most, mut stored) = (0, 0, 0);
    for event in backend.ledger() {
        match event.kind {
            EventKind::Stored => {
                depth += 1;
                stored += 1;
                most = most.max(depth);
            }
            EventKind::Claimed => depth -= 1,
            EventKind::Requeued | EventKind::Expired => depth += 1,
            _ => {}
        }
    }
    (depth, most, stored)
}

async fn watch(
    time: Duration,
    backend: &Backend,
    counts: &Counts,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    let told_to_end = super::told_to_end();
    tokio::pin!(told_to_end);
    let mut ticks = interval(LINE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    writeln!(
        out,
        " waiting                                            accepted  refused (429)"
    )?;
    while Instant::now() < until {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut told_to_end => break,
        }
        let (depth, ..) = depths(backend);
        let part = usize::try_from(depth.max(0)).unwrap_or(0) * WIDTH
            / usize::try_from(BOUND).unwrap_or(1);
        let bar = "#".repeat(part.min(WIDTH));
        let over = if depth > BOUND { "+" } else { "|" };
        writeln!(
            out,
            "{depth:8}  {bar:WIDTH$}{over}  {:7}  {:7}",
            counts.accepted.load(Ordering::Relaxed),
            counts.refused.load(Ordering::Relaxed),
        )?;
    }
    Ok(())
}

fn verdict(
    broken: bool,
    backend: &Backend,
    counts: &Counts,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let (_, most, stored) = depths(backend);
    let accepted = counts.accepted.load(Ordering::Relaxed);
    let other = counts.other.load(Ordering::Relaxed);
    let held = most <= BOUND;
    let complete = stored == accepted && other == 0;
    let refused = counts.refused.load(Ordering::Relaxed);
    let word = |good: bool| if good { "yes" } else { "NO" };
    writeln!(out, "\nFrom the backend's own records:")?;
    writeln!(
        out,
        "  never more than {BOUND} waiting   {}  (at most {most})",
        word(held)
    )?;
    writeln!(
        out,
        "  accepted is stored        {}  ({accepted} accepted, {stored} stored, {other} answered otherwise)",
        word(complete)
    )?;
    if !broken {
        // A bound that nobody came near was not seen to be held.
        let reached = word(refused > 0);
        writeln!(
            out,
            "  the bound was reached     {reached}  ({refused} refused)"
        )?;
    }
    anyhow::ensure!(
        !broken || !held,
        "the queue stayed small although it had no bound; give it more time (--seconds)"
    );
    Ok(held && complete && accepted > 0 && refused > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_was_refused_nothing_was_held() {
        let backend = Backend::new(Lax::redis(), 1);
        let counts = Counts::default();
        let mut out = Vec::new();
        assert!(!verdict(false, &backend, &counts, &mut out).unwrap());
        let said = String::from_utf8(out).unwrap();
        assert!(
            said.contains("the bound was reached     NO  (0 refused)"),
            "{said}"
        );
        // With nothing stored, nobody can have been accepted.
        counts.refused.store(1, Ordering::Relaxed);
        assert!(!verdict(false, &backend, &counts, &mut Vec::new()).unwrap());
        assert!(verdict(true, &backend, &counts, &mut Vec::new()).is_err());
    }
}
