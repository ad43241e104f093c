//! `ojs-throttle demo depth`: one tenant has thousands of jobs behind one slot, and two others have a job now and then.
//! With subqueues those wait no longer than the same jobs in an empty queue; without they stand. Judged from the
//! workers' records.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::stage::{DemoStage, finding, watch};
use super::streams::{Enforcement, SERVER};
use crate::client::JsonClient;
use crate::run::Env;

/// The jobs of the tenant in front, and how many are sent in one call.
const FRONT: usize = 10_000;
const BATCH: usize = 1_000;
/// Who has them, and for how long one runs.
const HEAVY: &str = "acme";
const RUNS: Duration = Duration::from_millis(200);
/// The tenants with a job now and then, and the queue of each. The last one's is empty: it is what others are held against.
const LIGHT: [(&str, &str); 3] = [("bolt", "crm"), ("coil", "crm"), ("dune", "empty")];
const EVERY: Duration = Duration::from_millis(250);
/// Workers of each queue, and how often they ask while they have nothing.
const WORKERS: usize = 3;
const POLL: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);
/// How much longer than in an empty queue the middle one of all waits may be, on a busy machine.
const NEAR: Duration = Duration::from_millis(250);
/// So many of a light tenant's jobs, in hundredths, must have started. The last ones may be on their way.
const STARTED: usize = 80;

/// What was sent, and how long it waited, for each light tenant.
#[derive(Clone, Default, Debug)]
struct Waits {
    sent: usize,
    waited: Vec<Duration>,
}

#[derive(Default, Debug)]
struct DepthRecords {
    light: [Waits; LIGHT.len()],
    /// How many jobs of the heavy tenant started, and the most that ran at once.
    heavy: usize,
    running: usize,
    most: usize,
    /// Calls that failed.
    failed: usize,
}

/// What producers and workers do together.
#[derive(Clone)]
struct DepthDemo {
    client: Arc<JsonClient>,
    stop: CancellationToken,
    epoch: Instant,
    records: Arc<Mutex<DepthRecords>>,
}

/// Runs the scene for `time` and writes it to `out`; a Ctrl-C or SIGTERM ends it early. Returns whether the light tenants
/// waited no longer than in an empty queue, the limit was held, and no call failed.
///
/// # Errors
/// Something could not be started or written, or subqueues were off and nobody stood.
pub async fn run(
    subqueues: Enforcement,
    time: Duration,
    env: Env,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let mut stage = DemoStage::set(env, |backend| config(backend, subqueues)).await?;
    fill(&stage.client).await?;
    let scene = DepthDemo {
        client: stage.client.clone(),
        stop: CancellationToken::new(),
        epoch: Instant::now(),
        records: Arc::default(),
    };
    let with = match subqueues {
        Enforcement::On => "with subqueues",
        Enforcement::Off => "without subqueues",
    };
    writeln!(
        out,
        "{HEAVY} has {FRONT} jobs in a queue {with}, one of a tenant at a time. Behind them others have a job now and \
         then.\n"
    )?;
    let mut people = JoinSet::new();
    for tenant in 0..LIGHT.len() {
        people.spawn(scene.clone().produce(tenant));
    }
    for queue in ["crm", "empty"] {
        for _ in 0..WORKERS {
            people.spawn(scene.clone().work(queue));
        }
    }
    watch(time, SECOND, async || {
        let line = line(&scene.records.lock(), scene.epoch.elapsed());
        Ok(writeln!(out, "{line}")?)
    })
    .await?;
    scene.stop.cancel();
    while people.join_next().await.is_some() {}
    // Nobody waits here for held jobs to be given back.
    stage.stop.now.cancel();
    stage.clear().await?;
    verdict(subqueues, &scene.records.lock(), out)
}

fn config(backend: SocketAddr, subqueues: Enforcement) -> String {
    let queue = match subqueues {
        Enforcement::On => "[[queue]]\nname = \"crm\"\nsubqueues = true\n",
        Enforcement::Off => "",
    };
    // A worker of the empty queue polls too: so those of both ask alike.
    let fetch = "[fetch]\nmax_wait = \"0s\"";
    format!("{SERVER}\nupstream = \"http://{backend}\"\n{fetch}\n{POLICY}{queue}")
}

const POLICY: &str = r#"
[[policy]]
name = "crm"
match = { queue = ["crm", "empty"] }
key = "crm:{meta.tenant_id}"
concurrency = 1
"#;

fn job(tenant: &str, queue: &str, sent: Duration) -> Value {
    json!({
        "type": "contact.sync", "args": [u64::try_from(sent.as_millis()).unwrap_or(0)],
        "meta": {"tenant_id": tenant}, "options": {"queue": queue},
    })
}

/// Sends what stands in front.
async fn fill(client: &JsonClient) -> anyhow::Result<()> {
    let jobs = vec![job(HEAVY, "crm", Duration::ZERO); BATCH];
    let batch = json!({"jobs": jobs});
    for _ in 0..FRONT / BATCH {
        let sent = client.post("/ojs/v1/jobs/batch", &batch).await;
        sent.context("the jobs in front")?;
    }
    Ok(())
}

impl DepthDemo {
    async fn produce(self, tenant: usize) {
        let Some((name, queue)) = LIGHT.get(tenant) else {
            return;
        };
        while !self.stop.is_cancelled() {
            if let Some(of) = self.records.lock().light.get_mut(tenant) {
                of.sent += 1;
            }
            let body = job(name, queue, self.epoch.elapsed());
            let _stored = self.call("/ojs/v1/jobs", &body).await;
            sleep(EVERY).await;
        }
    }

    /// Gets jobs one by one. Those of the tenant in front take a while.
    async fn work(self, queue: &'static str) {
        let fetch = json!({"queues": [queue], "count": 1, "worker_id": "worker"});
        while !self.stop.is_cancelled() {
            let got = self.call("/ojs/v1/workers/fetch", &fetch).await;
            let Some(job) = got.pointer("/jobs/0") else {
                sleep(POLL).await;
                continue;
            };
            let tenant = job.pointer("/meta/tenant_id").and_then(Value::as_str);
            let is_heavy = tenant == Some(HEAVY);
            let sent = job.pointer("/args/0").and_then(Value::as_u64);
            let waited = self
                .epoch
                .elapsed()
                .saturating_sub(Duration::from_millis(sent.unwrap_or(0)));
            self.records.lock().started(tenant, waited);
            if is_heavy {
                sleep(RUNS).await;
                self.records.lock().running -= 1;
            }
            let ack = json!({"job_id": job.get("id"), "worker_id": "worker"});
            self.call("/ojs/v1/workers/ack", &ack).await;
        }
    }

    /// The reply to a call; null if it failed, which is noted.
    async fn call(&self, path: &str, body: &Value) -> Value {
        let reply = self.client.post(path, body).await;
        reply.unwrap_or_else(|_| {
            self.records.lock().failed += 1;
            Value::Null
        })
    }
}

impl DepthRecords {
    /// A worker got a job of a tenant.
    fn started(&mut self, tenant: Option<&str>, waited: Duration) {
        let nth = LIGHT.iter().position(|(name, _)| Some(*name) == tenant);
        if let Some(of) = nth.and_then(|nth| self.light.get_mut(nth)) {
            of.waited.push(waited);
        } else {
            self.heavy += 1;
            self.running += 1;
            self.most = self.most.max(self.running);
        }
    }
}

impl Waits {
    /// The wait in the middle of all; `None`: too few have started.
    fn middle(&self) -> Option<Duration> {
        let mut all = self.waited.clone();
        all.sort();
        let middle = all.get(all.len() / 2).copied();
        middle.filter(|_| all.len() * 100 >= self.sent * STARTED)
    }

    fn told(&self) -> String {
        let Waits { sent, waited } = self;
        let last = waited.last().map(Duration::as_millis);
        let last = last.map_or_else(|| "-".to_owned(), |wait| format!("{wait} ms"));
        format!("{} of {sent} started, {last}", waited.len())
    }
}

/// One line of the scene: what has started, and how long the last one waited.
fn line(records: &DepthRecords, now: Duration) -> String {
    let each = LIGHT.iter().zip(&records.light);
    let each = each.map(|((name, _), waits)| format!("   {name}: {}", waits.told()));
    let each: String = each.collect();
    format!("{:4} s  {HEAVY}: {:5}{each}", now.as_secs(), records.heavy)
}

fn verdict(
    subqueues: Enforcement,
    records: &DepthRecords,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let DepthRecords {
        light,
        heavy,
        most,
        failed,
        ..
    } = records;
    let middles = light.each_ref().map(Waits::middle);
    let [.., empty] = middles;
    let in_words = |wait: Option<Duration>| {
        wait.map_or_else(
            || "most stand".into(),
            |wait| format!("{} ms", wait.as_millis()),
        )
    };
    writeln!(out, "\nFrom the workers' own records:")?;
    let mut all_go = true;
    for ((name, _), wait) in LIGHT
        .iter()
        .zip(middles)
        .filter(|((_, queue), _)| *queue == "crm")
    {
        let goes = wait
            .zip(empty)
            .is_some_and(|(wait, empty)| wait <= empty + NEAR);
        all_go &= goes;
        let what = format!("{name} waits as in an empty queue");
        let seen = format!("{}, and there {}", in_words(wait), in_words(empty));
        finding(out, (&what, goes), seen)?;
    }
    let held = *most <= 1 && *heavy > 0;
    let what = format!("{HEAVY} has one job at a time     ");
    let seen = format!("{heavy} started, at most {most} at once");
    finding(out, (&what, held), seen)?;
    finding(
        out,
        ("no call failed                 ", *failed == 0),
        failed,
    )?;
    anyhow::ensure!(
        subqueues == Enforcement::On || !all_go,
        "nobody stood although there were no subqueues; give it more time (--seconds)"
    );
    Ok(all_go && held && *failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(milliseconds: u64, jobs: usize) -> Waits {
        Waits {
            sent: 20,
            waited: vec![Duration::from_millis(milliseconds); jobs],
        }
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let records = |bolt, coil, most, failed| DepthRecords {
            light: [bolt, coil, waits(10, 20)],
            heavy: 5,
            running: 0,
            most,
            failed,
        };
        let judged = |records: &DepthRecords| {
            let mut out = Vec::new();
            let good = verdict(Enforcement::On, records, &mut out).unwrap();
            (good, String::from_utf8(out).unwrap())
        };
        let (good, said) = judged(&records(waits(20, 19), waits(20, 20), 1, 0));
        assert!(good && !said.contains("NO"), "{said}");
        for (records, wrong) in [
            (records(waits(20, 3), waits(20, 20), 1, 0), "bolt"),
            (records(waits(20, 20), waits(900, 20), 1, 0), "coil"),
            (records(waits(20, 20), waits(20, 20), 2, 0), "at a time"),
            (records(waits(20, 20), waits(20, 20), 1, 1), "failed"),
        ] {
            let (good, said) = judged(&records);
            let lines: Vec<&str> = said.lines().filter(|line| line.contains("NO")).collect();
            assert!(
                !good && lines.len() == 1 && lines[0].contains(wrong),
                "{said}"
            );
        }
        let all_go = records(waits(20, 20), waits(20, 20), 1, 0);
        assert!(verdict(Enforcement::Off, &all_go, &mut Vec::new()).is_err());
    }
}
