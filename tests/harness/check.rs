//! The checks. Each reads what the backend and the workers wrote down.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ojs_throttle::backend::EventKind;
use tokio::time::Instant;

use super::EARLY;
use super::judge::Judge;
use super::ledger::Claimed;

impl Judge {
    /// What holds in every world.
    pub(super) fn always(&mut self) {
        self.nothing_twice();
        self.never_more_than_asked();
        self.shown_as_they_are();
    }

    /// Jobs come to workers as active, and without what the sidecar wrote into them.
    fn shown_as_they_are(&mut self) {
        let odd: Vec<String> = (self.records.deliveries.iter())
            .filter(|d| {
                d.shown["state"] != "active" || d.shown.to_string().contains("rate_limit.mirror")
            })
            .map(|d| format!("{} came as {}", d.job, d.shown))
            .collect();
        self.problems.extend(odd);
    }

    /// I2: no claim is delivered twice, nothing is delivered that was not claimed.
    fn nothing_twice(&mut self) {
        let mut problems = Vec::new();
        for claim in self.claims.iter().filter(|claim| claim.delivered.len() > 1) {
            problems.push(format!(
                "{} of one claim was delivered {} times",
                claim.job,
                claim.delivered.len()
            ));
        }
        let joined: usize = self.claims.iter().map(|claim| claim.delivered.len()).sum();
        if joined != self.records.deliveries.len() {
            problems.push("a job was delivered that nobody claimed".into());
        }
        self.problems.extend(problems);
    }

    /// No enqueue goes to the backend twice: it may have been stored the first time.
    pub(super) fn forwarded_once(&mut self) {
        let mut problems = Vec::new();
        let mut forwarded: HashMap<&str, usize> = HashMap::new();
        for sent in self
            .seen
            .iter()
            .filter(|sent| sent.path.starts_with("/ojs/v1/jobs"))
        {
            let enqueue = sent.path == "/ojs/v1/jobs" || sent.path == "/ojs/v1/jobs/batch";
            if enqueue && !sent.body.is_empty() {
                // Go's SDK gives its requests no ids: there the body tells them apart.
                let id = match sent.id.as_str() {
                    "" => std::str::from_utf8(&sent.body).unwrap_or_default(),
                    id => id,
                };
                *forwarded.entry(id).or_default() += 1;
            }
        }
        for (id, times) in forwarded.into_iter().filter(|(_, times)| *times > 1) {
            problems.push(format!("enqueue {id} was forwarded {times} times"));
        }
        self.problems.extend(problems);
    }

    /// A job goes to those only under whose credentials it was claimed.
    pub fn never_crosses(&mut self, claimed: &[Claimed]) {
        let mut of_job: HashMap<&str, Vec<&Claimed>> = HashMap::new();
        for claim in claimed {
            of_job.entry(&claim.job).or_default().push(claim);
        }
        let crossed: Vec<String> = (self.records.deliveries.iter())
            .filter_map(|d| {
                let mut claims = of_job.get(d.job.as_str())?.iter().rev();
                let claim = claims.find(|claim| claim.at <= d.at)?;
                (claim.credentials != d.credentials).then(|| {
                    format!(
                        "{} was claimed for {:?} and went to {} with {:?}",
                        d.job, claim.credentials, d.worker, d.credentials
                    )
                })
            })
            .collect();
        self.problems.extend(crossed);
    }

    fn never_more_than_asked(&mut self) {
        let over: Vec<String> = (self.records.fetches.iter())
            .filter(|fetch| fetch.got > fetch.count)
            .map(|fetch| {
                format!(
                    "{} got {} jobs for count {}",
                    fetch.worker, fetch.got, fetch.count
                )
            })
            .collect();
        self.problems.extend(over);
    }

    /// I3: no interval of length `period` holds more than `limit` starts.
    pub fn rate(&mut self, label: &str, limit: usize, period: Duration) {
        let starts = self.starts(label);
        for (first, last) in starts.iter().zip(starts.iter().skip(limit)) {
            if *last - *first + self.jitter < period {
                self.breach(format!(
                    "{label}: {} starts within {:?} from {} ms on, {limit} are allowed in {period:?}",
                    limit + 1, *last - *first, self.ms(*first)
                ));
            }
        }
        self.some(label, starts.len());
    }

    /// I3b: n + 1 consecutive starts span at least n intervals less 5 ms, after a burst.
    pub fn spacing(&mut self, label: &str, interval: Duration, burst: u32) {
        let starts = self.starts(label);
        let mut tat: Option<Instant> = None;
        for start in &starts {
            let due = tat.map(|tat| {
                tat.checked_sub(interval * (burst - 1))
                    .unwrap_or(self.begun)
            });
            if let Some(due) = due.filter(|due| *start + EARLY + self.jitter < *due) {
                self.breach(format!(
                    "{label}: a start at {} ms is {:?} before its time",
                    self.ms(*start),
                    due - *start
                ));
            }
            tat = Some(tat.map_or(*start, |tat| tat.max(*start)) + interval);
        }
        self.some(label, starts.len());
    }

    /// I4: at no instant are more than `limit` jobs of the key out.
    pub fn concurrency(&mut self, label: &str, limit: i64) {
        let slots = self.slots(label);
        // At one instant what ends goes before what starts.
        let mut steps: BTreeMap<(Instant, bool), i64> = BTreeMap::new();
        for slot in &slots {
            *steps.entry((slot.start, true)).or_default() += 1;
            *steps.entry((slot.end.max(slot.start), false)).or_default() -= 1;
        }
        let mut out = 0;
        for ((at, _), change) in steps {
            out += change;
            if change > 0 && out > limit {
                self.breach(format!(
                    "{label}: {out} out at {} ms, {limit} are allowed",
                    self.ms(at)
                ));
            }
        }
        self.some(label, slots.len());
    }

    /// A check of nothing proves nothing.
    fn some(&mut self, label: &str, starts: usize) {
        self.that(starts > 0, format!("{label}: nothing started at all"));
    }

    /// I1 and I5: every stored job has ended once, every claim reached a worker or ended for another
    /// reason, and no row or slot is left.
    pub fn settled(mut self) -> Judge {
        self.all_ended();
        self
    }

    /// [`Judge::settled`], with more to judge after it.
    pub fn all_ended(&mut self) {
        use EventKind::{Acked, Cancelled, Discarded};
        let mut ends: HashMap<String, usize> = HashMap::new();
        for (_, event) in self
            .events
            .iter()
            .filter(|(_, e)| matches!(e.kind, Acked | Discarded | Cancelled))
        {
            *ends.entry(event.job.to_string()).or_default() += 1;
        }
        let stored: Vec<(String, String)> =
            (self.records.produced.iter().filter(|p| p.status == 201))
                .map(|p| (p.id.clone(), p.queue.clone()))
                .collect();
        for (job, queue) in stored {
            match ends.get(&job) {
                Some(1) => {}
                None => self.wrong(format!("{job} of {queue} never ended")),
                Some(times) => self.wrong(format!("{job} of {queue} ended {times} times")),
            }
        }
        self.no_claim_lost();
        self.no_slot_left();
    }

    /// Each job ran once, and [`Judge::settled`].
    pub fn all_well(mut self) -> Judge {
        self.each_ran_once();
        self.settled()
    }

    /// No claim ran out in the backend.
    pub fn none_lapsed(&mut self) {
        self.equal("claims that lapsed", self.lapsed(), 0);
    }

    /// Every claim that ended with an ACK or a failure had reached a worker, none is open.
    pub fn no_claim_lost(&mut self) {
        let lost: Vec<String> = (self.claims.iter())
            .filter_map(|claim| match claim.end {
                None => Some(format!("{} is still claimed", claim.job)),
                Some((_, EventKind::Acked | EventKind::Nacked)) if claim.delivered.is_empty() => {
                    Some(format!("{} was settled but never delivered", claim.job))
                }
                Some(_) => None,
            })
            .collect();
        self.problems.extend(lost);
    }

    /// I5: no slot and no held job is left.
    pub fn no_slot_left(&mut self) {
        let (held, out) = self.rows;
        self.that(held == 0, format!("{held} rows are still held"));
        self.that(out == 0, format!("{out} rows are still out"));
        let taken: Vec<String> = (self.active.iter())
            .filter(|(_, active)| active.is_some_and(|active| active > 0))
            .map(|(key, active)| format!("inspection says that {key} has {active:?} slots out"))
            .collect();
        self.problems.extend(taken);
    }

    /// Every ACK and nack got 200, within one request unless `retries` are allowed.
    pub fn all_settles_ok(&mut self, retries: bool) {
        let bad: Vec<String> = (self.records.settles.iter())
            .filter(|settle| settle.status != 200 || (settle.tries > 1 && !retries))
            .map(|s| {
                format!(
                    "{} {} by {}: {} in {} tries",
                    if s.ack { "ACK" } else { "nack" },
                    s.job,
                    s.worker,
                    s.status,
                    s.tries
                )
            })
            .collect();
        self.problems.extend(bad);
    }

    /// Every job ran once.
    pub fn each_ran_once(&mut self) {
        let mut runs: HashMap<&str, usize> = HashMap::new();
        for delivery in &self.records.deliveries {
            *runs.entry(&delivery.job).or_default() += 1;
        }
        let again = (runs.into_iter()).filter(|(_, times)| *times > 1);
        let again: Vec<String> = again
            .map(|(job, times)| format!("{job} ran {times} times"))
            .collect();
        self.problems.extend(again);
    }

    /// The part of `per_second` that a key used between two moments, in seconds of the run.
    pub fn utilisation(&mut self, label: &str, per_second: f64, from: u64, to: u64, least: f64) {
        let (from, to) = (
            self.begun + Duration::from_secs(from),
            self.begun + Duration::from_secs(to),
        );
        let starts = self.starts(label);
        let starts = starts
            .into_iter()
            .filter(|at| (from..to).contains(at))
            .count();
        let used = starts as f64 / ((to - from).as_secs_f64() * per_second);
        self.soon(
            used >= least,
            format!("{label}: {:.1} % of {per_second}/s was used", used * 100.0),
        );
    }

    /// P7: while a slot of a key with `limit` slots is free, a job of it waits and a worker asks, for
    /// no longer than `bound`.
    pub fn conserving(&mut self, label: &str, limit: i64, bound: Duration) {
        // Slots out, jobs waiting, FETCHes open: each as steps in time.
        let mut steps: Vec<(Instant, usize, i64)> = Vec::new();
        for slot in self.slots(label) {
            steps.extend([(slot.start, 0, 1), (slot.end, 0, -1), (slot.start, 1, -1)]);
        }
        let again: Vec<Instant> = (self.claims.iter())
            .filter(|claim| self.is_labelled(&claim.job, label) && !claim.delivered.is_empty())
            .map(|claim| claim.at)
            .collect();
        // Each run waited since the job was stored, or at the latest since it was claimed.
        for (nth, at) in again.into_iter().enumerate() {
            let produced = self.records.produced.get(nth);
            let stored = produced.map_or(at, |p| p.answered.min(at));
            steps.push((stored, 1, 1));
        }
        let fetches = self.records.fetches.iter();
        for fetch in fetches.filter(|fetch| fetch.status == 200) {
            steps.extend([(fetch.sent, 2, 1), (fetch.answered, 2, -1)]);
        }
        steps.sort_by_key(|(at, ..)| *at);
        let mut now = [0_i64; 3];
        let mut idle_since: Option<Instant> = None;
        let mut late = Vec::new();
        let mut at = 0;
        while let Some((time, ..)) = steps.get(at).copied() {
            while let Some((_, which, change)) = steps.get(at).filter(|(t, ..)| *t == time) {
                if let Some(count) = now.get_mut(*which) {
                    *count += change;
                }
                at += 1;
            }
            let [out, waiting, asking] = now;
            if out < limit && waiting > 0 && asking > 0 {
                idle_since.get_or_insert(time);
            } else if let Some(since) = idle_since
                .take()
                .filter(|since| time - *since > bound + self.jitter)
            {
                late.push(format!(
                    "{label}: a free slot was left for {:?} from {} ms on",
                    time - since,
                    self.ms(since)
                ));
            }
        }
        self.late.extend(late);
    }
}
