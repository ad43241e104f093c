//! What the sidecar costs beside nginx as a plain reverse proxy: `cargo bench --bench proxy`.
//!
//! Both are run as processes in front of one scripted backend and asked in turns. The figure is the
//! processor time of the proxy per request, as the ratio of the two in the same round: of all
//! figures the one that depends least on the machine and on what else runs on it.
//!
//! Arguments: `--json`; `--rounds N`; `--of BINARY`, the build of the sidecar that is measured, instead of the
//! one that cargo makes (what is shipped is another one: `.ci/release`); `--against BINARY`, one more, in the
//! same rounds, with the ratio to it; and words, of which a case's name must contain one.

#[path = "proxy/backend.rs"]
mod backend;
#[path = "proxy/latency.rs"]
mod latency;
#[path = "proxy/load.rs"]
mod load;
#[path = "proxy/process.rs"]
mod process;
#[path = "proxy/report.rs"]
mod report;
#[path = "proxy/wire.rs"]
mod wire;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_blocking};

use load::{Ask, Load, get, post};
use process::{Door, Process};
use report::{Line, Report, Series};

/// Connections of the load generator, each with one request at a time.
const CONNECTIONS: usize = 64;
/// Requests in a round of a case.
const REQUESTS: usize = 6_000;
/// Requests before the first round.
const WARM: usize = 2_000;

fn main() -> Result<()> {
    let options = Options::read()?;
    process::pin_bench();
    // Load and backend share one thread: with one each they would wake each other for every request,
    // and leave the proxies waiting. What is to be measured are proxies that are busy.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let report = runtime.block_on(LocalSet::new().run_until(run(&options)))?;
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

async fn run(options: &Options) -> Result<Report> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let backend = listener.local_addr()?;
    tokio::task::spawn_local(backend::serve(listener));
    // A peer that sleeps must be woken, at the cost of whoever writes to it. Load and backend have more
    // time to sleep the longer a proxy takes, and what waking costs would be counted as its work: so
    // they never sleep, before any of the proxies.
    tokio::task::spawn_local(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let (binaries, idle) = (options.binaries(), Duration::from_millis(500));
    let proxies = spawn_blocking(move || Proxies::start(&binaries, backend)).await??;
    tokio::time::sleep(idle).await;
    let memory = proxies.ours()?.memory()?;
    let mut latencies = Vec::new();
    if options.words.is_empty() {
        let targets = [
            ("direct", backend),
            ("nginx", proxies.nginx.doors.jobs),
            ("ours", proxies.ours()?.doors.jobs),
        ];
        latencies = spawn_blocking(move || latencies_of(targets)).await??;
    }
    let mut cases = cases();
    cases.retain(|case| options.wants(case.name));
    Ok(Report {
        lines: measure(options, cases, &proxies).await?,
        names: options.names(),
        memory,
        latencies,
    })
}

/// The processes that are compared, and the directory of their files.
struct Proxies {
    nginx: Process,
    sidecars: Vec<Process>,
    _dir: tempfile::TempDir,
}

impl Proxies {
    fn start(binaries: &[PathBuf], backend: SocketAddr) -> Result<Proxies> {
        let dir = tempfile::tempdir()?;
        let mut sidecars = Vec::new();
        for (nth, binary) in binaries.iter().enumerate() {
            let file = dir.path().join(format!("throttle-{nth}.toml"));
            sidecars.push(Process::sidecar(binary, &file, backend)?);
        }
        Ok(Proxies {
            nginx: Process::nginx(dir.path(), backend)?,
            sidecars,
            _dir: dir,
        })
    }

    fn ours(&self) -> Result<&Process> {
        self.sidecars.first().context("no sidecar")
    }
}

struct Options {
    json: bool,
    rounds: usize,
    of: PathBuf,
    against: Vec<PathBuf>,
    words: Vec<String>,
}

impl Options {
    fn read() -> Result<Options> {
        let mut options = Options {
            json: false,
            rounds: 9,
            of: PathBuf::from(env!("CARGO_BIN_EXE_ojs-throttle")),
            against: Vec::new(),
            words: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => options.json = true,
                "--rounds" => {
                    let rounds = arguments.next().context("--rounds needs a number")?;
                    options.rounds = rounds.parse().context("--rounds needs a number")?;
                }
                "--of" => {
                    let binary = arguments.next().context("--of needs a binary")?;
                    options.of = PathBuf::from(binary);
                }
                "--against" => {
                    let binary = arguments.next().context("--against needs a binary")?;
                    options.against.push(PathBuf::from(binary));
                }
                // What cargo itself adds.
                "--bench" => {}
                _ => options.words.push(argument),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word))
    }

    /// The builds that are measured, the one under test first.
    fn binaries(&self) -> Vec<PathBuf> {
        let of = std::iter::once(&self.of);
        of.chain(&self.against).cloned().collect()
    }

    fn names(&self) -> Vec<String> {
        let name = |binary: PathBuf| format!("  {}", binary.display());
        self.binaries().into_iter().map(name).collect()
    }
}

/// What is asked, and what it may cost beside nginx.
struct Case {
    name: &'static str,
    target: Option<f64>,
    requests: usize,
    /// Where it is asked.
    door: Door,
    ask: Ask,
    /// The jobs that come are ACKed, and that is a case of its own of this name and target.
    acks: Option<(&'static str, f64)>,
}

fn cases() -> Vec<Case> {
    let case = |name, target, ask: Vec<u8>, jobs| Case {
        name,
        target,
        requests: REQUESTS,
        door: Door::Jobs,
        ask: Ask::Same(Rc::from(ask), jobs),
        acks: None,
    };
    let fetch = |queue: &str, count: usize| {
        let body = format!(
            r#"{{"queues":["{queue}"],"count":{count},"worker_id":"worker-0195f3a0-7c1e"}}"#
        );
        post("/ojs/v1/workers/fetch", &body)
    };
    let job = r#"{"type":"email.send","args":[{"to":"user@example.com","subject":"Your order has been shipped","template":"order-shipped-v2","locale":"en-US","order":12345678}],"meta":{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"},"options":{"queue":"default","priority":10,"timeout_ms":30000,"unique":{"keys":["args"]}}}"#;
    let bounded = job.replace(r#""queue":"default""#, r#""queue":"bounded""#);
    let prompt = r#"{"model":"small","max_tokens":100,"messages":[{"role":"user","content":"Say in one sentence what a rate limit is for."}]}"#;
    let call = |name, target, door| Case {
        door,
        ..case(name, target, post("/v1/chat/completions", prompt), 0)
    };
    let alive = r#"{"worker_id":"worker-0195f3a0-7c1e","active_jobs":[],"state":"active"}"#;
    vec![
        case(
            "pass-through, GET",
            Some(1.15),
            get("/ojs/v1/schemas/email"),
            0,
        ),
        case(
            "pass-through, POST",
            Some(1.15),
            post("/ojs/v1/schemas", job),
            0,
        ),
        case("enqueue", Some(1.15), post("/ojs/v1/jobs", job), 0),
        case(
            "enqueue, bounded queue",
            None,
            post("/ojs/v1/jobs", &bounded),
            0,
        ),
        case("FETCH, nothing there", None, fetch("empty", 1), 0),
        case("FETCH, no limit, 1 job", Some(1.15), fetch("free", 1), 1),
        case("FETCH, no limit, 10 jobs", None, fetch("free", 10), 10),
        Case {
            acks: Some(("ACK, limited", 1.35)),
            ..case("FETCH, limited, 1 job", Some(1.35), fetch("limited", 1), 1)
        },
        Case {
            requests: REQUESTS / 3,
            acks: Some(("ACK, limited, after tens", 1.35)),
            ..case(
                "FETCH, limited, 10 jobs",
                Some(1.7),
                fetch("limited", 10),
                10,
            )
        },
        case(
            "heartbeat",
            None,
            post("/ojs/v1/workers/heartbeat", alive),
            0,
        ),
        call("call, no limit", None, Door::Free),
        call("call, paced", None, Door::Paced),
        call("call, paced, tokens", None, Door::Budget),
    ]
}

/// Runs the cases, all proxies in turns within each round.
async fn measure(options: &Options, cases: Vec<Case>, proxies: &Proxies) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for case in cases {
        let mut contestants = vec![Contestant::new(&proxies.nginx, case.door).await?];
        for sidecar in &proxies.sidecars {
            contestants.push(Contestant::new(sidecar, case.door).await?);
        }
        let mut figures = vec![(Series::default(), Series::default()); contestants.len()];
        for round in 0..=options.rounds {
            for (contestant, (asked, acked)) in contestants.iter_mut().zip(&mut figures) {
                let requests = if round == 0 { WARM } else { case.requests };
                let (spent, jobs) = contestant.cost(&case.ask, requests).await?;
                let mut settled = 0.0;
                if case.acks.is_some() {
                    let count = jobs.len();
                    let ask = Ask::Ack(Rc::new(RefCell::new(jobs)));
                    settled = contestant.cost(&ask, count).await?.0;
                }
                if round > 0 {
                    asked.0.push(spent);
                    acked.0.push(settled);
                }
            }
        }
        let (mut asked, mut acked): (Vec<Series>, Vec<Series>) = figures.into_iter().unzip();
        lines.push(Line {
            name: case.name,
            target: case.target,
            nginx: asked.remove(0),
            sidecars: asked,
        });
        if let Some((name, target)) = case.acks {
            lines.push(Line {
                name,
                target: Some(target),
                nginx: acked.remove(0),
                sidecars: acked,
            });
        }
    }
    Ok(lines)
}

/// A proxy with connections to one of its doors.
struct Contestant<'a> {
    process: &'a Process,
    load: Load,
}

impl Contestant<'_> {
    async fn new(process: &Process, door: Door) -> Result<Contestant<'_>> {
        let load = Load::open(process.doors.at(door), CONNECTIONS).await?;
        Ok(Contestant { process, load })
    }

    /// Nanoseconds that each of `requests` requests cost the proxy, and the jobs that came.
    async fn cost(&mut self, ask: &Ask, requests: usize) -> Result<(f64, Vec<[u8; 12]>)> {
        let before = self.process.cpu()?;
        let jobs = self.load.run(ask, requests).await?;
        let spent = self.process.cpu()? - before;
        Ok((spent as f64 / requests.max(1) as f64, jobs))
    }
}

/// Latency of a POST at 2,000 a second: the median of interleaved runs.
fn latencies_of<const N: usize>(
    targets: [(&'static str, SocketAddr); N],
) -> Result<Vec<(&'static str, latency::Latency)>> {
    let request = post("/ojs/v1/schemas", &"x".repeat(300));
    let mut runs: [Vec<latency::Latency>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..5 {
        for (runs, (_, to)) in runs.iter_mut().zip(targets) {
            runs.push(latency::measure(
                to,
                &request,
                2_000,
                Duration::from_secs(1),
            )?);
        }
    }
    let median = |runs: &[latency::Latency], of: fn(&latency::Latency) -> f64| {
        let mut sorted: Vec<f64> = runs.iter().map(of).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Ok(targets
        .iter()
        .zip(&runs)
        .map(|((name, _), runs)| {
            let latency = latency::Latency {
                p50: median(runs, |run| run.p50),
                p99: median(runs, |run| run.p99),
            };
            (*name, latency)
        })
        .collect())
}
