//! `ojs-throttle demo egress`: each job makes three calls to a vendor that bans whoever makes too many. Through the
//! egress nearly all that the vendor allows is used, and nobody is banned. Judged from the vendor's record.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::stage::{DemoStage, client, finding, watch};
use super::streams::{Enforcement, QUEUE, SERVER};
use crate::client::JsonClient;
use crate::net::Listener;
use crate::run::Env;

/// The calls that the vendor allows in any `PERIOD`.
const ALLOWED: usize = 100;
const PERIOD: Duration = Duration::from_secs(2);
/// So much of that must be used, in hundredths.
const USED: u128 = 95;
/// Workers, each with one job at a time, and the calls of a job.
const WORKERS: usize = 8;
const CALLS: usize = 3;
/// How often a worker without a job asks.
const POLL: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// What the vendor wrote down. Times count from its start, and a ban is for good.
#[derive(Default, Debug)]
struct VendorRecord {
    answered: Vec<Duration>,
    banned: Option<Duration>,
    refused: usize,
}

/// A worker, which also sends the jobs.
#[derive(Clone)]
struct Caller {
    client: Arc<JsonClient>,
    /// Where its calls go.
    vendor: Arc<JsonClient>,
    stop: CancellationToken,
    /// Requests of all kinds that were not answered with 2xx.
    failed: Arc<AtomicUsize>,
}

/// Runs the scene for `time` and writes it to `out`; a Ctrl-C or SIGTERM ends it early. Returns whether nobody was
/// banned, nearly all that the vendor allows was used, and no call failed.
///
/// # Errors
/// Something could not be started or written, or calls went straight to the vendor and nobody was banned.
pub async fn run(
    egress: Enforcement,
    time: Duration,
    env: Env,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let net = env.net.clone();
    let listener = net.bind(([127, 0, 0, 1], 0).into()).await?;
    let vendor_addr = listener.local_addr()?;
    let (begun, record) = (Instant::now(), Arc::<Mutex<VendorRecord>>::default());
    let mut serving = JoinSet::new();
    serving.spawn(vendor(listener, begun, Arc::clone(&record)));
    let config = |backend| config(egress, backend, vendor_addr);
    let mut stage = DemoStage::set(env, config).await?;
    let (way, calls_go_to) = match egress {
        Enforcement::On => ("through the egress", stage.egress),
        Enforcement::Off => ("straight to the vendor", Some(vendor_addr)),
    };
    writeln!(
        out,
        "A vendor allows {ALLOWED} calls in any {PERIOD:?}, and bans whoever makes more. {WORKERS} workers run jobs, and \
         each job\nmakes {CALLS} calls, {way}.\n"
    )?;
    let calls_go_to = calls_go_to.context("the egress has no port")?;
    let caller = Caller {
        client: stage.client.clone(),
        vendor: Arc::new(client(&net, calls_go_to)?),
        stop: CancellationToken::new(),
        failed: Arc::default(),
    };
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(caller.clone().work());
    }
    watch(time, SECOND, async || {
        let line = line(&record.lock(), begun.elapsed());
        Ok(writeln!(out, "{line}")?)
    })
    .await?;
    caller.stop.cancel();
    while workers.join_next().await.is_some() {}
    // Nobody waits here for held jobs to be given back.
    stage.stop.now.cancel();
    stage.clear().await?;
    let failed = caller.failed.load(Ordering::Relaxed);
    verdict(egress, &record.lock(), failed, out)
}

fn config(egress: Enforcement, backend: SocketAddr, vendor: SocketAddr) -> String {
    let counts = match egress {
        Enforcement::On => "counts = \"calls\"",
        Enforcement::Off => "",
    };
    format!(
        "{SERVER}\nupstream = \"http://{backend}\"\n{POLICY}{counts}\n{EGRESS}\"http://{vendor}\"\n"
    )
}

/// A little less than the vendor allows: the way to it does not always take as long. With two in a burst, a start that is
/// late is made up for.
const POLICY: &str = r#"
[[policy]]
name = "vendor"
match = { type = "payment.*" }
throttle = { limit = 97, period = "2s", burst = 2 }
"#;

const EGRESS: &str = r#"
[[egress]]
name = "calls"
key = "vendor"
listen = "127.0.0.1:0"
upstream = "#;

/// Answers all that come to the vendor, until it is dropped.
async fn vendor(mut listener: Listener, begun: Instant, record: Arc<Mutex<VendorRecord>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let record = Arc::clone(&record);
        let answers = service_fn(move |_| {
            let mut reply = Response::new(Full::<Bytes>::from("{}"));
            *reply.status_mut() = record.lock().call(begun.elapsed());
            std::future::ready(Ok::<_, Infallible>(reply))
        });
        connections.spawn(Builder::new().serve_connection(TokioIo::new(stream), answers));
    }
}

impl VendorRecord {
    fn call(&mut self, now: Duration) -> StatusCode {
        if self.banned.is_none() && self.lately(now) >= ALLOWED {
            self.banned = Some(now);
        }
        if self.banned.is_some() {
            self.refused += 1;
            return StatusCode::FORBIDDEN;
        }
        self.answered.push(now);
        StatusCode::OK
    }

    /// The calls that count.
    fn lately(&self, now: Duration) -> usize {
        let backwards = self.answered.iter().rev();
        backwards.take_while(|at| **at + PERIOD > now).count()
    }

    /// The hundredths of what is allowed that were used, from the first call to the last.
    fn used(&self) -> u128 {
        let (Some(first), Some(last)) = (self.answered.first(), self.answered.last()) else {
            return 0;
        };
        let time = last.saturating_sub(*first).as_micros().max(1);
        let calls = self.answered.len().saturating_sub(1) as u128;
        calls * PERIOD.as_micros() * 100 / (time * ALLOWED as u128)
    }
}

impl Caller {
    /// Gets jobs one by one, and makes the calls of each. Another one always waits.
    async fn work(self) {
        let (fetch, ack) = ("/ojs/v1/workers/fetch", "/ojs/v1/workers/ack");
        let job = json!({"type": "payment.charge", "args": [], "options": {"queue": QUEUE}});
        let wanted = json!({"queues": [QUEUE], "count": 1, "worker_id": "worker"});
        self.ask(&self.client, "/ojs/v1/jobs", &job).await;
        while !self.stop.is_cancelled() {
            let got = self.ask(&self.client, fetch, &wanted).await;
            let Some(id) = got.pointer("/jobs/0/id") else {
                sleep(POLL).await;
                continue;
            };
            self.ask(&self.client, "/ojs/v1/jobs", &job).await;
            for _ in 0..CALLS {
                self.ask(&self.vendor, "/v1/charges", &Value::Null).await;
            }
            let done = json!({"job_id": id, "worker_id": "worker"});
            self.ask(&self.client, ack, &done).await;
        }
    }

    /// The reply to a request; null if it failed, which is counted.
    async fn ask(&self, to: &JsonClient, path: &str, body: &Value) -> Value {
        to.post(path, body).await.unwrap_or_else(|_| {
            self.failed.fetch_add(1, Ordering::Relaxed);
            Value::Null
        })
    }
}

/// One line of the scene.
fn line(record: &VendorRecord, now: Duration) -> String {
    let (second, calls, lately) = (now.as_secs(), record.answered.len(), record.lately(now));
    match record.banned {
        None => format!("{second:4} s  {calls:6} calls, {lately:3} of {ALLOWED} lately"),
        Some(_) => format!("{second:4} s  BANNED, {} calls refused", record.refused),
    }
}

fn verdict(
    egress: Enforcement,
    record: &VendorRecord,
    failed: usize,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let used = record.used();
    let (free, full) = (record.banned.is_none(), used >= USED);
    let when = record.banned.map_or_else(
        || format!("{} calls answered", record.answered.len()),
        |at| format!("banned after {:.1} s", at.as_secs_f64()),
    );
    writeln!(out, "\nFrom the vendor's own record:")?;
    finding(out, ("nobody was banned       ", free), when)?;
    finding(
        out,
        ("what is allowed was used", full),
        format_args!("{used} %"),
    )?;
    finding(out, ("no call failed          ", failed == 0), failed)?;
    anyhow::ensure!(
        egress == Enforcement::On || !free,
        "nobody was banned although calls went straight to the vendor; give it more time (--seconds)"
    );
    Ok(free && full && failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of a vendor who is called so often, each so many microseconds.
    fn called(calls: u64, each: u64) -> VendorRecord {
        let mut record = VendorRecord::default();
        for nth in 0..calls {
            record.call(Duration::from_micros(nth * each));
        }
        record
    }

    #[test]
    fn the_vendor_bans_for_one_call_too_many_and_for_good() {
        assert_eq!(called(500, 20_000).banned, None);
        let mut record = called(101, 19_999);
        assert_eq!(record.banned, Some(Duration::from_micros(1_999_900)));
        assert_eq!(
            record.call(Duration::from_secs(3600)),
            StatusCode::FORBIDDEN
        );
        assert_eq!((record.answered.len(), record.refused), (100, 2));
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let judged = |egress, record: &VendorRecord, failed| {
            let mut out = Vec::new();
            let good = verdict(egress, record, failed, &mut out);
            (good, String::from_utf8(out).unwrap())
        };
        let (good, said) = judged(Enforcement::On, &called(500, 20_500), 0);
        assert!(good.unwrap() && !said.contains("NO"), "{said}");
        for (record, failed, wrong) in [
            (
                called(500, 19_900),
                0,
                "banned         NO  (banned after 2.0 s)",
            ),
            (called(500, 21_300), 0, "was used  NO  (93 %)"),
            (called(500, 20_500), 1, "failed            NO  (1)"),
        ] {
            let (good, said) = judged(Enforcement::On, &record, failed);
            assert!(!good.unwrap() && said.matches("NO").count() == 1, "{said}");
            assert!(said.contains(wrong), "{said}");
        }
        let (free, _) = judged(Enforcement::Off, &called(500, 20_500), 0);
        assert!(free.is_err());
        let (banned, _) = judged(Enforcement::Off, &called(500, 10_000), 0);
        assert!(!banned.unwrap());
    }
}
