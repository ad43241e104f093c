//! `ojs-throttle demo backpressure`: producers are faster than their worker, and the queue stays within its bound all
//! the same. Judged from the backend's ledger.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::stage::{DemoStage, finding, watch};
use super::streams::Enforcement;
use crate::backend::{Backend, EventKind};
use crate::client::JsonClient;
use crate::run::Env;

/// The bound of the queue.
const BOUND: i64 = 60;
/// Producers, each of which enqueues as fast as it is answered.
const PRODUCERS: usize = 8;
/// How long a refused producer waits. A scene of seconds wants impatient producers.
const PAUSE: Duration = Duration::from_millis(120);
/// How many jobs the worker takes, and how long it then rests: 20 jobs a second.
const TAKES: usize = 2;
const RESTS: Duration = Duration::from_millis(100);
/// How often a line is written.
const LINE: Duration = Duration::from_millis(500);
/// The widest bar.
const WIDTH: usize = 40;

/// Counts the answers to producers.
#[derive(Default, Debug)]
struct Answers {
    accepted: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
}

/// Runs the scene for `time` and writes it to `out`; a Ctrl-C or SIGTERM ends it early. Returns whether the queue was
/// full, was never over its bound, and stored every accepted job.
///
/// # Errors
/// Something could not be started or written, or the bound was off and nothing went over it.
pub async fn run(
    bound: Enforcement,
    time: Duration,
    env: Env,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let mut stage = DemoStage::set(env, |backend| config(backend, bound)).await?;
    let stop = CancellationToken::new();
    let counts = Arc::new(Answers::default());
    let mut people = JoinSet::new();
    for _ in 0..PRODUCERS {
        people.spawn(produce(stage.client.clone(), counts.clone(), stop.clone()));
    }
    people.spawn(work(stage.client.clone(), stop.clone()));
    writeln!(
        out,
        "{PRODUCERS} producers, one worker that takes 20 jobs a second, and a queue {}.\n",
        match bound {
            Enforcement::Off => "without a bound".to_owned(),
            Enforcement::On => format!("bounded at {BOUND}"),
        }
    )?;
    writeln!(
        out,
        " waiting                                            accepted  refused (429)"
    )?;
    watch(time, LINE, async || {
        Ok(writeln!(out, "{}", line(&stage.backend, &counts))?)
    })
    .await?;
    stop.cancel();
    while people.join_next().await.is_some() {}
    // Nobody waits here for held jobs to be given back.
    stage.stop.now.cancel();
    stage.clear().await?;
    verdict(bound, &stage.backend, &counts, out)
}

fn config(backend: SocketAddr, bound: Enforcement) -> String {
    let bound = match bound {
        Enforcement::Off => String::new(),
        Enforcement::On => format!("[[queue]]\nname = \"import\"\nmax_depth = {BOUND}\n"),
    };
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nupstream = \"http://{backend}\"\ndrain_min = \"0s\"\n{bound}"
    )
}

async fn produce(client: Arc<JsonClient>, counts: Arc<Answers>, stop: CancellationToken) {
    let body = json!({"type": "row.import", "args": [1], "options": {"queue": "import"}});
    while !stop.is_cancelled() {
        let answer = client
            .exchange(Method::POST, "/ojs/v1/jobs", Some(&body))
            .await;
        let count = match answer {
            Ok((StatusCode::CREATED, _)) => &counts.accepted,
            Ok((StatusCode::TOO_MANY_REQUESTS, _)) => &counts.refused,
            _ => &counts.other,
        };
        count.fetch_add(1, Ordering::Relaxed);
        // An accepted producer has its next job soon.
        let refused = std::ptr::eq(count, &counts.refused);
        sleep(if refused { PAUSE } else { PAUSE / 12 }).await;
    }
}

async fn work(client: Arc<JsonClient>, stop: CancellationToken) {
    let fetch = json!({"queues": ["import"], "count": TAKES, "worker_id": "worker"});
    while !stop.is_cancelled() {
        let got = client.post("/ojs/v1/workers/fetch", &fetch).await;
        let got = got.unwrap_or_default();
        let jobs = got.get("jobs").and_then(Value::as_array);
        for job in jobs.into_iter().flatten() {
            let ack = json!({"job_id": job.get("id"), "worker_id": "worker"});
            // A job that is not acknowledged comes back; the ledger shows it.
            let _acked = client.post("/ojs/v1/workers/ack", &ack).await;
        }
        sleep(RESTS).await;
    }
}

/// How many jobs wait, how many waited at most, and how many were stored.
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

/// One line of the scene.
fn line(backend: &Backend, counts: &Answers) -> String {
    let (depth, ..) = depths(backend);
    let part =
        usize::try_from(depth.max(0)).unwrap_or(0) * WIDTH / usize::try_from(BOUND).unwrap_or(1);
    let bar = "#".repeat(part.min(WIDTH));
    let over = if depth > BOUND { "+" } else { "|" };
    format!(
        "{depth:8}  {bar:WIDTH$}{over}  {:7}  {:7}",
        counts.accepted.load(Ordering::Relaxed),
        counts.refused.load(Ordering::Relaxed),
    )
}

fn verdict(
    bound: Enforcement,
    backend: &Backend,
    counts: &Answers,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let (_, most, stored) = depths(backend);
    let accepted = counts.accepted.load(Ordering::Relaxed);
    let other = counts.other.load(Ordering::Relaxed);
    let held = most <= BOUND;
    let complete = stored == accepted && other == 0;
    let refused = counts.refused.load(Ordering::Relaxed);
    writeln!(out, "\nFrom the backend's own records:")?;
    let what = format!("never more than {BOUND} waiting ");
    finding(out, (&what, held), format_args!("at most {most}"))?;
    let seen = format!("{accepted} accepted, {stored} stored, {other} answered otherwise");
    finding(out, ("accepted is stored      ", complete), seen)?;
    if bound == Enforcement::On {
        // A bound that nobody reached was not seen to hold.
        let what = ("the bound was reached   ", refused > 0);
        finding(out, what, format_args!("{refused} refused"))?;
    }
    anyhow::ensure!(
        bound == Enforcement::On || !held,
        "the queue stayed small although it had no bound; give it more time (--seconds)"
    );
    Ok(held && complete && accepted > 0 && refused > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Lax;

    #[test]
    fn where_nobody_was_refused_nothing_was_held() {
        let backend = Backend::new(Lax::redis(), 1);
        let counts = Answers::default();
        let mut out = Vec::new();
        assert!(!verdict(Enforcement::On, &backend, &counts, &mut out).unwrap());
        let said = String::from_utf8(out).unwrap();
        assert!(
            said.contains("the bound was reached     NO  (0 refused)"),
            "{said}"
        );
        // With nothing stored, nobody can have been accepted.
        counts.refused.store(1, Ordering::Relaxed);
        assert!(!verdict(Enforcement::On, &backend, &counts, &mut Vec::new()).unwrap());
        assert!(verdict(Enforcement::Off, &backend, &counts, &mut Vec::new()).is_err());
    }
}
