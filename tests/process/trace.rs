//! What the workers of a fleet saw, start by start, and the judges of P1, P2 and P3 on it.
//!
//! A worker knows of a start that it came between the request and its answer, no more. So the judges count
//! what was certainly so: a run is out from its answer until its end, and a start is in a stretch of time if
//! request and answer are. That is loose over one period and tight over many, and no slow machine makes it
//! wrong.

use super::prelude::*;
use crate::harness::EARLY;

/// One run of a job, as its worker saw it.
#[derive(Clone, Copy)]
pub struct Run {
    pub asked: Instant,
    pub got: Instant,
    pub ended: Instant,
}

/// What is limited, and how much of it is used up.
pub struct Plan {
    /// The policy, in TOML.
    pub policy: String,
    pub slots: Option<usize>,
    /// Starts per period, and whether they are spaced evenly.
    pub limit: usize,
    pub period: Duration,
    pub spaced: bool,
    /// How many starts.
    pub starts: usize,
}

impl Plan {
    /// Slots and a sliding window on one key.
    pub fn window(slots: usize, limit: usize, period: Duration, starts: usize) -> Plan {
        let millis = period.as_millis();
        Plan {
            policy: format!(
                "concurrency = {slots}\nrate = {{ limit = {limit}, period = \"{millis}ms\" }}\n"
            ),
            slots: Some(slots),
            limit,
            period,
            spaced: false,
            starts,
        }
    }

    /// Even spacing on one key.
    pub fn spacing(limit: usize, period: Duration, starts: usize) -> Plan {
        let millis = period.as_millis();
        Plan {
            policy: format!("throttle = {{ limit = {limit}, period = \"{millis}ms\" }}\n"),
            slots: None,
            limit,
            period,
            spaced: true,
            starts,
        }
    }

    /// The policy of queue `q`.
    pub fn of_queue(&self) -> String {
        let policy = &self.policy;
        format!("[[policy]]\nname = \"p\"\nmatch = {{ queue = \"q\" }}\n{policy}")
    }

    /// A config with this policy for queue `q`, on this store.
    pub fn config(&self, backend: &Backend, store: &str) -> String {
        let rest = format!("{}[store]\n{store}\n", self.of_queue());
        crate::sidecar::process::config(backend.addr, "", &rest)
    }

    /// The most starts that a stretch of this length may hold.
    fn most(&self, length: Duration) -> usize {
        let periods = |length: Duration| length.as_secs_f64() / self.period.as_secs_f64();
        match self.spaced {
            true => (periods(length + EARLY) * self.limit as f64) as usize + 1,
            false => periods(length).ceil() as usize * self.limit,
        }
    }

    /// Fails where a promise was broken; says how much of the limit was used.
    pub fn judge(&self, runs: &[Run]) -> f64 {
        let out = at_once(runs);
        let used = self.used(runs);
        let seen = seen_within(runs, self.period);
        eprintln!(
            "{} starts, {out} out at once of {:?}, {seen} seen within {:?} of {}, {:.2} % used",
            runs.len(),
            self.slots,
            self.period,
            self.limit,
            used * 100.0
        );
        assert!(
            self.slots.is_none_or(|slots| out <= slots),
            "P1: {out} at once"
        );
        let longer = [1, 2, 5, 20, 100].map(|periods| self.period * periods);
        for length in longer.into_iter().chain([self.period / 10]) {
            let (count, most) = (within(runs, length), self.most(length));
            assert!(count <= most, "{count} of {most} within {length:?}");
        }
        used
    }

    /// How much of the limit was used, while there was always more to start than might: so many whole
    /// periods' worth, by the time that they took.
    pub fn used(&self, runs: &[Run]) -> f64 {
        let periods = (runs.len() - 1) / self.limit;
        let took = runs[periods * self.limit].got.duration_since(runs[0].got);
        periods as f64 * self.period.as_secs_f64() / took.as_secs_f64()
    }
}

/// The most runs that were certainly out at once.
pub fn at_once(runs: &[Run]) -> usize {
    let mut edges: Vec<(Instant, i32)> = Vec::new();
    for run in runs {
        edges.extend([(run.got, 1), (run.ended, -1)]);
    }
    // Where one ends as another begins, the end was first.
    edges.sort_unstable();
    let (mut out, mut most) = (0, 0);
    for (_, step) in edges {
        out += step;
        most = most.max(out);
    }
    usize::try_from(most).unwrap()
}

/// The most starts that were certainly in one stretch of this length.
pub fn within(runs: &[Run], length: Duration) -> usize {
    let mut spans: Vec<_> = runs.iter().map(|run| (run.got, run.asked)).collect();
    spans.sort_unstable();
    let mut most = 0;
    for (_, from) in &spans {
        let until = *from + length;
        let first = spans.partition_point(|(got, _)| got < from);
        let last = spans.partition_point(|(got, _)| *got < until);
        let some = spans.get(first..last).unwrap_or_default();
        if some.len() > most {
            most = most.max(some.iter().filter(|(_, asked)| asked >= from).count());
        }
    }
    most
}

/// The most answers with a job in one stretch of this length: more than started there, where some were
/// slow on their way.
pub fn seen_within(runs: &[Run], length: Duration) -> usize {
    let mut seen: Vec<_> = runs.iter().map(|run| run.got).collect();
    seen.sort_unstable();
    let until = |nth: usize, from: Instant| seen.partition_point(|got| *got < from + length) - nth;
    let counts = seen.iter().enumerate().map(|(nth, got)| until(nth, *got));
    counts.max().unwrap_or(0)
}

/// Where workers write what they see.
struct Ledger {
    runs: Mutex<BTreeMap<String, Run>>,
    all: usize,
    over: AtomicBool,
}

impl Ledger {
    /// One worker on one connection: fetches, runs and acknowledges until all is done.
    fn work(&self, to: SocketAddr, worker: &str) {
        let mut conn = Conn::open(to);
        let fetch = json!({"queues": ["q"], "count": 1, "worker_id": worker}).to_string();
        while !self.over.load(Ordering::SeqCst) {
            let asked = Instant::now();
            let jobs = conn.ask("POST", "/ojs/v1/workers/fetch", &fetch).jobs();
            let got = Instant::now();
            if jobs.is_empty() {
                // As workers do, but sooner: nothing may start for longer than a FETCH waits.
                std::thread::sleep(Duration::from_millis(10));
            }
            for job in jobs {
                std::thread::sleep(Duration::from_millis(2));
                let ended = Instant::now();
                let ack = json!({"job_id": job, "worker_id": worker, "result": {}});
                let reply = conn.ask("POST", "/ojs/v1/workers/ack", &ack.to_string());
                assert_eq!(reply.status, 200, "{reply:?}");
                let mut runs = self.runs.lock().unwrap();
                let twice = runs.insert(job, Run { asked, got, ended });
                assert!(twice.is_none(), "a job came twice");
                if runs.len() >= self.all {
                    self.over.store(true, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Jobs in queue `q`.
pub fn jobs(backend: &Backend, count: usize) {
    let mut conn = Conn::open(backend.addr);
    let job = json!({"type": "t", "args": [], "options": {"queue": "q"}});
    for first in (0..count).step_by(500) {
        let some = vec![job.clone(); (count - first).min(500)];
        let batch = json!({ "jobs": some }).to_string();
        assert_eq!(conn.ask("POST", "/ojs/v1/jobs/batch", &batch).status, 201);
    }
}

/// What the workers of these sidecars see of the plan's starts, in the order of their answers. There are
/// more workers at some than at others. A short trace is over in time, however far it came.
pub fn trace(plan: &Plan, backend: &Backend, sidecars: &[Sidecar]) -> Vec<Run> {
    jobs(backend, plan.starts);
    let ledger = Ledger {
        runs: Mutex::default(),
        all: plan.starts,
        over: AtomicBool::new(false),
    };
    let ideal = plan.period * u32::try_from(plan.starts / plan.limit).unwrap();
    let patience = if is_long() { 4 * ideal } else { 2 * ideal };
    let deadline = Instant::now() + patience;
    std::thread::scope(|threads| {
        for (nth, sidecar) in sidecars.iter().enumerate() {
            for worker in 0..1 + nth / 2 {
                let (ledger, to) = (&ledger, sidecar.data);
                threads.spawn(move || ledger.work(to, &format!("w{nth}-{worker}")));
            }
        }
        while !ledger.over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            if Instant::now() > deadline {
                ledger.over.store(true, Ordering::SeqCst);
            }
        }
    });
    let sum = |series: &str| -> f64 { sidecars.iter().map(|one| one.metric(series)).sum() };
    eprintln!(
        "{} undone, {} held",
        sum("ojs_throttle_handouts_undone_total"),
        sum("ojs_throttle_held_jobs")
    );
    let runs = ledger.runs.into_inner().unwrap();
    let least = if is_long() {
        plan.starts
    } else {
        plan.limit + 1
    };
    assert!(runs.len() >= least, "{} ran in time", runs.len());
    let mut runs: Vec<Run> = runs.into_values().collect();
    runs.sort_unstable_by_key(|run| run.got);
    runs
}

/// How much of a limit has to be used. A program that is not optimised, on a machine that does other things
/// too, is only not to stand still.
pub fn enough() -> f64 {
    if is_long() { 0.97 } else { 0.05 }
}

/// Whether the long traces are asked for: `OJS_THROTTLE_TRACE=long`.
pub fn is_long() -> bool {
    std::env::var("OJS_THROTTLE_TRACE").is_ok_and(|length| length == "long")
}

#[test]
fn the_judges_find_a_breach() {
    let begin = Instant::now();
    let run = |micros: u64| {
        let asked = begin + Duration::from_micros(micros);
        let got = asked + Duration::from_micros(500);
        let ended = got + Duration::from_millis(100);
        Run { asked, got, ended }
    };
    let each = |micros: u64| -> Vec<Run> { (0..5_000).map(|nth| run(nth * micros)).collect() };
    let breaks = |plan: &Plan, runs: &[Run]| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plan.judge(runs))).is_err()
    };
    let second = Duration::from_secs(1);
    let window = Plan::window(21, 200, second, 5_000);
    let spacing = Plan::spacing(200, second, 5_000);
    for plan in [&window, &spacing] {
        assert!((plan.judge(&each(5_000)) - 1.0).abs() < 0.001);
        assert!(breaks(plan, &each(4_950)), "one in a hundred too many");
        assert!(plan.judge(&each(5_500)) < 0.97);
    }
    assert!(breaks(&Plan::window(19, 200, second, 5_000), &each(5_000)));
    // A burst keeps the window but not the spacing.
    let bursts: Vec<Run> = (0..5_000).map(|nth| run(nth / 100 * 600_000)).collect();
    assert!(!breaks(&Plan::window(200, 200, second, 5_000), &bursts));
    assert!(breaks(&spacing, &bursts));
}
