//! The ledgers of one run, joined. The checks themselves are in `check`.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use ojs_throttle::backend::{Event, EventKind};
use tokio::time::Instant;

use super::ledger::{Records, Sent};
use super::world::World;

/// A claim of the backend's ledger, joined with the worker that got the job.
#[derive(Clone, Debug)]
pub struct Claim {
    pub job: String,
    /// When the backend handed it out.
    pub at: Instant,
    /// How it ended there.
    pub end: Option<(Instant, EventKind)>,
    /// Which deliveries there were in this claim.
    pub delivered: Vec<usize>,
}

/// The time in which a job was out with a worker.
#[derive(Clone, Debug)]
pub struct Slot {
    pub start: Instant,
    pub end: Instant,
}

/// What is known after a run, and what was found wrong.
pub struct Judge {
    pub begun: Instant,
    pub ended: Instant,
    pub records: Records,
    pub events: Vec<(Instant, Event)>,
    pub claims: Vec<Claim>,
    pub seen: Vec<Sent>,
    pub sent: Vec<Sent>,
    pub jitter: Duration,
    /// Held and out, by the store's rows at the end.
    pub rows: (usize, usize),
    /// By key, what inspection says of slots.
    pub active: HashMap<String, Option<u64>>,
    /// How often a limit was found broken.
    pub breaches: usize,
    pub problems: Vec<String>,
    /// What came later than it should: in simulation problems too, on a busy machine perhaps its own doing.
    pub late: Vec<String>,
    labels: HashMap<String, Vec<String>>,
}

impl Judge {
    /// A judge of ledgers that were written by hand: the judges are judged with it.
    pub fn of(begun: Instant, records: Records, events: Vec<(Instant, Event)>) -> Judge {
        let labels = labels(&records);
        let claims = join(&events, &records);
        let last = events.last().map_or(begun, |(at, _)| *at);
        let mut judge = Judge {
            begun,
            ended: last,
            records,
            events,
            claims,
            seen: Vec::new(),
            sent: Vec::new(),
            jitter: Duration::ZERO,
            rows: (0, 0),
            active: HashMap::new(),
            breaches: 0,
            problems: Vec::new(),
            late: Vec::new(),
            labels,
        };
        judge.always();
        judge
    }

    pub(super) fn new(
        world: &World,
        rows: (usize, usize),
        active: HashMap<String, Option<u64>>,
    ) -> Judge {
        let records = world.ledger.open().clone();
        let mut judge = Judge::of(world.begun, records, world.backend.ledger());
        judge.ended = Instant::now();
        judge.seen = world.backend.seen();
        judge.sent = world.sent();
        judge.jitter = world.jitter();
        (judge.rows, judge.active) = (rows, active);
        judge.forwarded_once();
        judge.never_crosses(&world.backend.claimed());
        judge
    }

    /// Whether a key limits a job.
    pub fn is_labelled(&self, job: &str, label: &str) -> bool {
        self.labels
            .get(job)
            .is_some_and(|labels| labels.iter().any(|l| l == label))
    }

    /// Starts of a key, in order.
    pub fn starts(&self, label: &str) -> Vec<Instant> {
        let all = self.records.deliveries.iter();
        let mut starts: Vec<Instant> = all
            .filter(|d| self.is_labelled(&d.job, label))
            .map(|d| d.at)
            .collect();
        starts.sort();
        starts
    }

    /// Slots of a key: from the receipt to the end of the claim by the backend's ledger.
    pub fn slots(&self, label: &str) -> Vec<Slot> {
        let mut slots = Vec::new();
        let claims = self.claims.iter();
        for claim in claims.filter(|claim| self.is_labelled(&claim.job, label)) {
            for delivery in claim
                .delivered
                .iter()
                .filter_map(|&nth| self.records.deliveries.get(nth))
            {
                slots.push(Slot {
                    start: delivery.at,
                    end: claim.end.map_or(self.ended, |(at, _)| at),
                });
            }
        }
        slots.sort_by_key(|slot| slot.start);
        slots
    }

    /// Milliseconds since the run began.
    pub fn ms(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.begun).as_millis()
    }

    /// Notes that something is wrong.
    pub fn wrong(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// Notes that a limit was broken.
    pub fn breach(&mut self, problem: String) {
        self.breaches += 1;
        self.problems.push(problem);
    }

    /// Notes it unless `holds`.
    pub fn that(&mut self, holds: bool, problem: impl Into<String>) {
        if !holds {
            self.wrong(problem.into());
        }
    }

    /// Notes it unless what was found is what was expected.
    pub fn equal<A: PartialEq<B> + Debug, B: Debug>(&mut self, what: &str, found: A, expected: B) {
        if found != expected {
            self.wrong(format!("{what}: {found:?}, not {expected:?}"));
        }
    }

    /// How many claims ran out in the backend.
    pub fn lapsed(&self) -> usize {
        let events = self.events.iter();
        let lapsed = events.filter(|(_, event)| event.kind == EventKind::Expired);
        lapsed.count()
    }

    /// Notes that something came late unless it was `in_time`.
    pub fn soon(&mut self, in_time: bool, problem: impl Into<String>) {
        if !in_time {
            self.late.push(problem.into());
        }
    }

    /// Notes that something came late unless it took less than so many milliseconds, as far as receipts tell.
    pub fn soon_took(&mut self, what: &str, took: Duration, ms: u64) {
        let most = Duration::from_millis(ms) + self.jitter;
        self.soon(took < most, format!("{what} {took:?}"));
    }

    /// Notes it unless something took less than so many milliseconds.
    pub fn took(&mut self, what: &str, took: Duration, ms: u64) {
        let most = Duration::from_millis(ms);
        self.that(took < most, format!("{what} {took:?}"));
    }

    /// Everything that was written down, in order of time.
    fn story(&self) -> String {
        let mut lines: Vec<(Instant, String)> = Vec::new();
        for (at, e) in &self.events {
            lines.push((
                *at,
                format!(
                    "backend  {:?} {} attempt {} for {:?}",
                    e.kind, e.job, e.attempt, e.worker
                ),
            ));
        }
        for sent in &self.seen {
            lines.push((
                sent.at,
                format!(
                    "request  {} {}",
                    sent.path,
                    String::from_utf8_lossy(&sent.body)
                ),
            ));
        }
        for d in &self.records.deliveries {
            lines.push((
                d.at,
                format!("{} got {} attempt {}", d.worker, d.job, d.attempt),
            ));
        }
        for s in &self.records.settles {
            lines.push((
                s.answered,
                format!(
                    "{} settled {} (ack {}): {} in {}",
                    s.worker, s.job, s.ack, s.status, s.tries
                ),
            ));
        }
        for f in &self.records.fetches {
            lines.push((
                f.answered,
                format!(
                    "{} fetched {:?} for {} since {} ms: {} got {}",
                    f.worker,
                    f.queues,
                    f.count,
                    self.ms(f.sent),
                    f.status,
                    f.got
                ),
            ));
        }
        lines.sort_by_key(|(at, _)| *at);
        lines
            .iter()
            .map(|(at, line)| format!("{:>8} {line}\n", self.ms(*at)))
            .collect()
    }

    /// Fails the test if anything is wrong; with `STORY` in the environment it is told whole.
    pub fn must_be_content(&self, name: &str, run: &str) {
        if std::env::var_os("STORY").is_some() {
            println!("{}", self.story());
        }
        let shown: Vec<&str> = self.problems.iter().take(12).map(String::as_str).collect();
        assert!(
            self.problems.is_empty(),
            "{name}, {run}: {} problems\n  {}",
            self.problems.len(),
            shown.join("\n  ")
        );
    }
}

fn labels(records: &Records) -> HashMap<String, Vec<String>> {
    let produced = records.produced.iter();
    produced.map(|p| (p.id.clone(), p.labels.clone())).collect()
}

/// Claims with their ends and deliveries. A delivery belongs to the latest claim before it.
fn join(events: &[(Instant, Event)], records: &Records) -> Vec<Claim> {
    use EventKind::*;
    let mut claims: Vec<Claim> = Vec::new();
    let mut of_job: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, event) in events {
        let job = event.job.to_string();
        match event.kind {
            Claimed => {
                of_job.entry(job.clone()).or_default().push(claims.len());
                claims.push(Claim {
                    job,
                    at: *at,
                    end: None,
                    delivered: Vec::new(),
                });
            }
            Acked | Nacked | Requeued | Expired | Discarded | Cancelled => {
                let last = of_job.get(&job).and_then(|of_job| of_job.last());
                if let Some(claim) = last.and_then(|&nth| claims.get_mut(nth)) {
                    claim.end.get_or_insert((*at, event.kind));
                }
            }
            Stored | Extended | Promoted | Revived => {}
        }
    }
    for (nth, delivery) in records.deliveries.iter().enumerate() {
        let of_job = of_job.get(&delivery.job).into_iter().flatten();
        let mut before =
            of_job.filter(|&&claim| claims.get(claim).is_some_and(|c| c.at <= delivery.at));
        let last = before.next_back().copied();
        if let Some(claim) = last.and_then(|claim| claims.get_mut(claim)) {
            claim.delivered.push(nth);
        }
    }
    claims
}
