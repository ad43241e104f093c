//! `ojs-throttle demo cost`: three tenants share the tokens of one model vendor by weight, and what a job does not use
//! is given back. Judged from the workers' records.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::stage::{DemoStage, finding, watch};
use super::streams::{Enforcement, QUEUE, SERVER};
use crate::client::JsonClient;
use crate::run::Env;

/// Tokens of the vendor, in any second.
const LIMIT: u64 = 1_000;
const SECOND: Duration = Duration::from_secs(1);
/// The tenants with their weights.
const TENANTS: [(&str, u64); 3] = [("acme", 3), ("bolt", 1), ("coil", 1)];
/// How many jobs of each tenant wait, so that none ever leaves its share to others.
const WAITING: usize = 20;
/// Workers, how long their jobs run, and how often they ask while they have none.
const WORKERS: usize = 3;
const POLL: Duration = Duration::from_millis(20);
/// How far a tenant's part may be from its share, in hundredths of all: one job is more than one in a short run.
const NEAR: u64 = 5;
/// The widest bar.
const WIDTH: u64 = 40;

/// One job that a worker got.
#[derive(Clone, Copy, Debug)]
struct PaidStart {
    tenant: usize,
    /// What it was charged.
    tokens: u64,
    /// What it used.
    used: u64,
    /// When its worker asked, and when it had the answer: the start was made in between.
    asked: Duration,
    got: Duration,
}

/// What producers and workers do together.
#[derive(Clone)]
struct CostDemo {
    client: Arc<JsonClient>,
    stop: CancellationToken,
    epoch: Instant,
    records: Arc<Mutex<CostRecords>>,
}

#[derive(Default, Debug)]
struct CostRecords {
    starts: Vec<PaidStart>,
    /// Calls that failed.
    failed: usize,
}

/// Runs the scene for `time` and writes it to `out`; a Ctrl-C or SIGTERM ends it early. Returns whether the limit was
/// held, each tenant had its share, tokens came back, and no call failed.
///
/// # Errors
/// Something could not be started or written, or the limit was off and nothing went over it.
pub async fn run(
    limits: Enforcement,
    time: Duration,
    env: Env,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let mut stage = DemoStage::set(env, |backend| config(backend, limits)).await?;
    let scene = CostDemo {
        client: stage.client.clone(),
        stop: CancellationToken::new(),
        epoch: Instant::now(),
        records: Arc::default(),
    };
    let mut people = JoinSet::new();
    for tenant in 0..TENANTS.len() {
        people.spawn(scene.clone().produce(tenant));
    }
    for _ in 0..WORKERS {
        people.spawn(scene.clone().work());
    }
    let limit = match limits {
        Enforcement::On => format!("{LIMIT} tokens in any second, shared 3 : 1 : 1"),
        Enforcement::Off => "no limit".into(),
    };
    writeln!(
        out,
        "Three tenants, {WORKERS} workers, one vendor: {limit}."
    )?;
    writeln!(out, "Jobs say what they may cost, and use half of it.\n")?;
    watch(time, SECOND, async || {
        let now = scene.epoch.elapsed();
        let line = line(&scene.records.lock().starts, now);
        Ok(writeln!(out, "{line}")?)
    })
    .await?;
    scene.stop.cancel();
    while people.join_next().await.is_some() {}
    // Nobody waits here for held jobs to be given back.
    stage.stop.now.cancel();
    stage.clear().await?;
    verdict(limits, &scene.records.lock(), out)
}

fn config(backend: SocketAddr, limits: Enforcement) -> String {
    let policy = match limits {
        Enforcement::On => POLICY,
        Enforcement::Off => "",
    };
    // Who waits for a start does not know when it was made.
    format!("{SERVER}\nupstream = \"http://{backend}\"\n[fetch]\nmax_wait = \"0s\"\n{policy}")
}

const POLICY: &str = r#"
[[policy]]
name = "model"
match = { type = "llm.*" }
rate = { limit = 1000, period = "1s" }
cost = { from = "meta.tokens", default = 100, max = 100, settle = "result.usage.total_tokens" }
fair = { by = "{meta.tenant_id}", weights = { acme = 3 }, default_weight = 1 }
"#;

impl CostDemo {
    /// Keeps jobs of a tenant waiting.
    async fn produce(self, tenant: usize) {
        let mut sent = 0;
        while !self.stop.is_cancelled() {
            let of_tenant = |start: &&PaidStart| start.tenant == tenant;
            let started = self.records.lock().starts.iter().filter(of_tenant).count();
            while sent < started + WAITING {
                // 37 and 91 share no factor: each cost from 10 to 100 comes as often.
                let tokens = 10 + sent * 37 % 91;
                let name = TENANTS.get(tenant).map(|(name, _)| name);
                let job = json!({
                    "type": "llm.call", "args": [tenant], "options": {"queue": QUEUE},
                    "meta": {"tenant_id": name, "tokens": tokens},
                });
                let _stored = self.call("/ojs/v1/jobs", &job).await;
                sent += 1;
            }
            sleep(POLL / 2).await;
        }
    }

    /// Gets jobs, runs them side by side, and says in each ACK what was used.
    async fn work(self) {
        let fetch = json!({"queues": [QUEUE], "count": 10, "worker_id": "worker"});
        while !self.stop.is_cancelled() {
            let asked = self.epoch.elapsed();
            let got = self.call("/ojs/v1/workers/fetch", &fetch).await;
            let jobs = got.get("jobs").and_then(Value::as_array);
            let mut acks = Vec::new();
            for job in jobs.into_iter().flatten() {
                let number = |at| job.pointer(at).and_then(Value::as_u64).unwrap_or_default();
                let tokens = number("/meta/tokens");
                let used = tokens.div_ceil(2);
                self.records.lock().starts.push(PaidStart {
                    tenant: usize::try_from(number("/args/0")).unwrap_or_default(),
                    tokens,
                    used,
                    asked,
                    got: self.epoch.elapsed(),
                });
                let result = json!({"usage": {"total_tokens": used}});
                acks.push(json!({"job_id": job.get("id"), "result": result}));
            }
            sleep(POLL).await;
            for ack in acks {
                self.call("/ojs/v1/workers/ack", &ack).await;
            }
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

/// The hundredths that each tenant has of what all were charged.
fn parts(starts: &[PaidStart]) -> [u64; TENANTS.len()] {
    let mut sums = [0; TENANTS.len()];
    for start in starts {
        if let Some(sum) = sums.get_mut(start.tenant) {
            *sum += start.tokens;
        }
    }
    let all = sums.iter().sum::<u64>().max(1);
    sums.map(|sum| (sum * 100 + all / 2) / all)
}

/// The most tokens that were used by jobs which certainly started within one second.
fn most(starts: &[PaidStart]) -> u64 {
    let within = |last: &PaidStart| {
        let all = starts.iter();
        let near = all.filter(|one| one.got <= last.got && last.got < one.asked + SECOND);
        near.map(|one| one.used).sum()
    };
    starts.iter().map(within).max().unwrap_or(0)
}

/// The tenants' parts, in words.
fn told(parts: [u64; TENANTS.len()]) -> String {
    let each = TENANTS.iter().zip(parts);
    let each = each.map(|((name, _), part)| format!("{name} {part} %"));
    each.collect::<Vec<_>>().join(", ")
}

/// One line of the scene: what was used in the last second, and the parts so far.
fn line(starts: &[PaidStart], now: Duration) -> String {
    let lately = starts.iter().filter(|start| now < start.got + SECOND);
    let used: u64 = lately.map(|start| start.used).sum();
    let bar = "#".repeat(usize::try_from((used * WIDTH / LIMIT).min(WIDTH)).unwrap_or(0));
    let (second, width) = (now.as_secs(), usize::try_from(WIDTH).unwrap_or(0));
    let over = if used > LIMIT { "+" } else { "|" };
    format!(
        "{second:4} s  {bar:width$}{over} {used:6} tokens   {}",
        told(parts(starts))
    )
}

fn verdict(
    limits: Enforcement,
    records: &CostRecords,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let CostRecords { starts, failed } = records;
    let (most, parts) = (most(starts), parts(starts));
    let weights: u64 = TENANTS.iter().map(|(_, weight)| weight).sum();
    let mut shares = TENANTS.iter().zip(parts);
    let fair = shares.all(|((_, weight), part)| part.abs_diff(weight * 100 / weights) <= NEAR);
    let charged: u64 = starts.iter().map(|start| start.tokens).sum();
    let used: u64 = starts.iter().map(|start| start.used).sum();
    let time = starts.last().map(|last| last.got.as_secs()).unwrap_or(0);
    // Without settling no more is charged than fits into so many seconds and the one under way.
    let (held, settled) = (most <= LIMIT, charged > LIMIT * (time + 2));
    writeln!(out, "\nFrom the workers' own records:")?;
    let what = format!("never more than {LIMIT} tokens a second");
    finding(out, (&what, held), format_args!("at most {most}"))?;
    finding(
        out,
        ("to each by its weight              ", fair),
        told(parts),
    )?;
    finding(
        out,
        ("no call failed                     ", *failed == 0),
        failed,
    )?;
    if limits == Enforcement::On {
        let what = ("what was not used came back        ", settled);
        finding(out, what, format_args!("{charged} charged, {used} used"))?;
    }
    anyhow::ensure!(
        limits == Enforcement::On || !held,
        "nothing went over the limit although it was off; give it more time (--seconds)"
    );
    Ok(held && fair && settled && *failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts of a job of each tenant, of these tokens, each 100 ms, for 10 s.
    fn starts(tokens: [u64; 3]) -> CostRecords {
        let each = (0..300_u64).map(|nth| {
            let at = Duration::from_millis(nth / 3 * 100);
            let tenant = usize::try_from(nth % 3).unwrap();
            let tokens = tokens[tenant];
            PaidStart {
                tenant,
                tokens,
                used: tokens / 2,
                asked: at,
                got: at,
            }
        });
        CostRecords {
            starts: each.collect(),
            failed: 0,
        }
    }

    fn judged(records: &CostRecords) -> (bool, String) {
        let mut out = Vec::new();
        let good = verdict(Enforcement::On, records, &mut out).unwrap();
        (good, String::from_utf8(out).unwrap())
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let (good, said) = judged(&starts([120, 40, 40]));
        assert!(good && !said.contains("NO"), "{said}");
        let mut failed = starts([120, 40, 40]);
        failed.failed = 1;
        for (records, wrong) in [
            // 2 s of a fifth more.
            (starts([123, 40, 40]), "tokens a second  NO"),
            (starts([80, 60, 60]), "weight                NO"),
            (starts([60, 20, 20]), "came back          NO"),
            (failed, "failed                       NO"),
        ] {
            let (good, said) = judged(&records);
            assert!(!good && said.matches("NO").count() == 1, "{said}");
            assert!(said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn a_slow_answer_is_no_breach() {
        let start = |asked, got| PaidStart {
            tenant: 0,
            tokens: 1_000,
            used: 1_000,
            asked: Duration::from_millis(asked),
            got: Duration::from_millis(got),
        };
        // The first may have been made at once, so they may be a second apart.
        assert_eq!(most(&[start(0, 900), start(990, 1_000)]), 1_000);
        assert_eq!(most(&[start(0, 900), start(990, 999)]), 2_000);
    }
}
