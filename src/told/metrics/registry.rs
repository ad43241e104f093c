//! All series of one sidecar.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use metrics::{Counter, Gauge, Histogram, Label};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use parking_lot::{Mutex, MutexGuard};

use super::activity::{Activity, AnswerStatus, SpacedKey};
use super::names::{Counted, SERIES};
use super::page::{open_metrics, printable, process};
use super::recorder::{Labels, counter, described, gauge, histogram, part_of_page};
use ojs_limit::{
    self as limit, Limited, OnLimit, Refusal, Space, Strategy, Timestamp, each_key, share_of,
};

/// Buckets for waits in seconds: from the 5 ms of a waiting worker to a job that waits all day.
const WAITS: &[f64] = &[
    0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0, 86400.0,
];
/// Buckets for the seconds that a call to the backend or a held FETCH takes.
const CALLS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];
/// How often the samples of histograms are put into their buckets. Until then each sample is kept by itself, for as
/// long as nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// How many bounded queues have series of their own.
const QUEUES: usize = 1_000;
/// The label of all keys past the cap.
const OTHER: &str = "_other";

/// All series of one sidecar. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<AllSeries>);

struct AllSeries {
    recorder: PrometheusRecorder,
    keys: Mutex<KeyTable>,
    activity: Activity,
    policies: Mutex<PolicyTable>,
    calls: Mutex<HashMap<(&'static str, AnswerStatus), Histogram>>,
    queues: Mutex<HashSet<Box<str>>>,
    /// The parts of the page that are measured as a whole, by the name of their series.
    parts: Mutex<BTreeMap<&'static str, String>>,
    /// Whether nothing is shown of jobs.
    calls_only: AtomicBool,
    // These change with every FETCH or event, so they are kept; the others are looked up by name.
    fetch_wait: Histogram,
    claimed: Counter,
    events_sent: Counter,
}

/// Whether a line of the page is about a series of jobs.
fn of_jobs(line: &str) -> bool {
    let heads = ["# HELP ", "# TYPE "];
    let name = heads.iter().find_map(|head| line.strip_prefix(head));
    let name = name.unwrap_or(line);
    // A name may begin with that of another series, and histograms add to theirs.
    let named = SERIES.iter().filter(|series| name.starts_with(series.name));
    let own = named.max_by_key(|series| series.name.len());
    own.is_some_and(|series| series.of_jobs)
}

#[derive(Default)]
struct KeyTable {
    /// So many keys get series of their own.
    most: usize,
    /// The keys with series of their own.
    own: HashMap<SpacedKey, KeySeries>,
    /// The series of all keys past the cap.
    other: Option<KeySeries>,
    /// As many groups of keys with series of their own.
    groups: HashSet<(Space, limit::Key, Arc<str>)>,
}

struct KeySeries {
    /// The value of the label.
    name: Box<str>,
    active: Gauge,
    waiting: Gauge,
    wait: Histogram,
}

/// The series of policies, by what starts under them.
type PolicyTable = HashMap<(StartKind, Arc<str>), Arc<PolicySeries>>;

/// What starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StartKind {
    /// A job.
    Job,
    /// A call of a worker.
    Call,
}

/// What became of what a call paid to a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// The answer says what was used.
    Told,
    /// The service has not done the call.
    Free,
    /// Nobody says what was used: what was paid stays.
    Kept,
    /// The same, because the budget has no price for the model.
    Unpriced,
    /// The same, because neither the call nor its answer names a model that could be read.
    Unnamed,
    /// Nothing was paid: the call is not known to ask a model.
    Unpaid,
}

impl Settlement {
    fn as_str(self) -> &'static str {
        match self {
            Settlement::Told => "told",
            Settlement::Free => "free",
            Settlement::Kept => "kept",
            Settlement::Unpriced => "unpriced",
            Settlement::Unnamed => "unnamed",
            Settlement::Unpaid => "unpaid",
        }
    }
}

impl StartKind {
    fn as_str(self) -> &'static str {
        match self {
            StartKind::Job => "job",
            StartKind::Call => "call",
        }
    }
}

struct PolicySeries {
    /// As `starts`, which cannot be read.
    ever: AtomicU64,
    starts: Counter,
    allowed: Counter,
    limited: Counter,
    rescheduled: Counter,
    dropped: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// `top_keys`: how many keys get series of their own.
    #[expect(clippy::expect_used, reason = "the buckets are constants")]
    pub fn new(top_keys: usize) -> Metrics {
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(
                Matcher::Full("ojs_rate_limit_wait_duration_seconds".into()),
                WAITS,
            )
            .and_then(|b| {
                let name = Matcher::Full("ojs_throttle_shadow_wait_seconds".into());
                b.set_buckets_for_metric(name, WAITS)
            })
            .and_then(|b| b.set_buckets(CALLS));
        // The builder refuses only empty lists, and both lists are constants.
        let recorder = described(builder.expect("buckets are not empty"));
        let inner = AllSeries {
            fetch_wait: histogram(&recorder, "ojs_throttle_fetch_wait_seconds", vec![]),
            claimed: counter(&recorder, "ojs_throttle_claimed_jobs_total", vec![]),
            events_sent: counter(&recorder, "ojs_throttle_events_sent_total", vec![]),
            keys: Mutex::new(KeyTable {
                most: top_keys,
                ..KeyTable::default()
            }),
            activity: Activity::new(top_keys),
            policies: Mutex::default(),
            calls: Mutex::default(),
            queues: Mutex::default(),
            parts: Mutex::default(),
            calls_only: AtomicBool::new(false),
            recorder,
        };
        let version = Label::new("version", env!("CARGO_PKG_VERSION"));
        gauge(&inner.recorder, "ojs_throttle_build_info", vec![version]).set(1.0);
        let metrics = Metrics(Arc::new(inner));
        for series in SERIES.iter().filter(|series| series.from_start) {
            match series.kind {
                "gauge" => metrics.set(series.name, &[], 0),
                _ => metrics.add(series.name, &[], 0),
            }
        }
        for what in Counted::ALL {
            metrics.counter_of(*what).increment(0);
        }
        metrics
    }

    /// The page that `/metrics` serves, in Prometheus' text format.
    pub fn render(&self) -> String {
        let parts = self.0.parts.lock();
        let page = parts
            .values()
            .fold(self.0.recorder.handle().render(), |page, part| page + part);
        // A recorder forgets no series: one that nobody knows now is left out here.
        let lines = page.split_inclusive('\n');
        let calls_only = self.0.calls_only.load(Ordering::Relaxed);
        let is_unknown = |line: &str| line.ends_with(" NaN\n") || (calls_only && of_jobs(line));
        let known = lines.filter(|line| !is_unknown(line));
        printable(known.collect::<String>() + &process())
    }

    /// Shows nothing of jobs from now on: there is no backend.
    pub fn show_calls_only(&self) {
        self.0.calls_only.store(true, Ordering::Relaxed);
    }

    /// The page in OpenMetrics.
    pub fn render_open(&self) -> String {
        open_metrics(&self.render())
    }

    /// Keeps histograms from growing with every sample, whether anybody scrapes or not. Never ends.
    pub async fn keep_up(self) {
        let handle = self.0.recorder.handle();
        let mut ticks = tokio::time::interval(UPKEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            handle.run_upkeep();
        }
    }

    /// Sets a gauge to what was read.
    pub fn set(&self, name: &'static str, labels: &[(&'static str, &str)], value: usize) {
        gauge(&self.0.recorder, name, owned(labels)).set(value as f64);
    }

    /// Sets a gauge to a time.
    pub fn set_time(&self, name: &'static str, at: Timestamp) {
        gauge(&self.0.recorder, name, vec![]).set(at.0 as f64 / 1e6);
    }

    /// Sets a counter to what was counted elsewhere since the start.
    pub fn count_to(&self, name: &'static str, labels: &[(&'static str, &str)], ever: u64) {
        counter(&self.0.recorder, name, owned(labels)).absolute(ever);
    }

    /// Counts so many more.
    fn add(&self, name: &'static str, labels: &[(&'static str, &str)], n: u64) {
        counter(&self.0.recorder, name, owned(labels)).increment(n);
    }

    /// Counts one more.
    pub fn count(&self, what: Counted) {
        self.counter_of(what).increment(1);
    }

    fn counter_of(&self, what: Counted) -> Counter {
        let (name, label) = what.name_and_label();
        let labels = label.map(|(k, v)| Label::new(k, v)).into_iter().collect();
        counter(&self.0.recorder, name, labels)
    }

    /// Counts jobs that were claimed for the hold.
    pub fn claimed(&self, jobs: usize) {
        self.0.claimed.increment(jobs as u64);
    }

    /// Counts started jobs, each with its limits and, if it was refused before, how long it was held.
    pub fn started<'a>(
        &self,
        kind: StartKind,
        jobs: impl Iterator<Item = (&'a [Limited], Option<Duration>)> + Clone,
    ) {
        self.0.activity.started(jobs.clone());
        // Jobs that start together are mostly under one policy and one key.
        let mut run: Option<(&Arc<str>, u64)> = None;
        let mut last: Option<&Limited> = None;
        let mut keys = self.keys();
        for (limited, waited) in jobs {
            for limited in limited {
                run = match run {
                    Some((policy, starts)) if Arc::ptr_eq(policy, &limited.policy) => {
                        Some((policy, starts + 1))
                    }
                    before => {
                        self.starts(kind, before);
                        Some((&limited.policy, 1))
                    }
                };
            }
            if let Some((limited, share)) = share_of(limited) {
                self.group_started(&mut keys, limited, &share.group);
            }
            for (_, limited) in each_key(limited) {
                // However many policies name a key, it is paid once, and refunded to the first of them.
                if limited.cost.rule.is_some() {
                    self.charged(&limited.policy, limited.cost.pays.get().into());
                }
                let is_known = last.is_some_and(|last| last.shares_key(limited));
                last = Some(limited);
                if is_known && waited.is_none() {
                    continue;
                }
                let series = self.series(&mut keys, limited);
                if let Some(waited) = waited {
                    series.wait.record(waited.as_secs_f64());
                }
            }
        }
        self.starts(kind, run);
    }

    /// Counts what a job paid under a policy.
    pub fn charged(&self, policy: &str, cost: u64) {
        self.of_policy("ojs_throttle_cost_charged_total", policy, cost);
    }

    /// Counts what a job had paid under a policy and did not use.
    pub fn refunded(&self, policy: &str, cost: u64) {
        self.of_policy("ojs_throttle_cost_refunded_total", policy, cost);
    }

    fn group_started(&self, keys: &mut KeyTable, limited: &Limited, group: &Arc<str>) {
        let (most, own) = (keys.most, &mut keys.groups);
        let this = (limited.space, limited.key.clone(), Arc::clone(group));
        let is_own = own.contains(&this) || (own.len() < most && own.insert(this));
        let (key, group) = match is_own {
            true => (limited.space.name_of(&limited.key).into_owned(), &**group),
            false => (OTHER.to_owned(), OTHER),
        };
        let labels = [("key", &*key), ("group", group)];
        self.add("ojs_throttle_group_starts_total", &labels, 1);
    }

    /// Shows the keys of a running job that was found, and has its slots now.
    pub fn adopted(&self, limited: &[Limited]) {
        let mut keys = self.keys();
        for (_, limited) in each_key(limited) {
            self.series(&mut keys, limited);
        }
    }

    /// Counts starts under one policy.
    fn starts(&self, kind: StartKind, run: Option<(&Arc<str>, u64)>) {
        if let Some((policy, starts)) = run {
            let series = self.policy(kind, policy);
            series.ever.fetch_add(starts, Ordering::Relaxed);
            series.starts.increment(starts);
            series.allowed.increment(starts);
        }
    }

    /// How many have started under a policy; `None`: no start was granted or refused.
    pub fn starts_of(&self, kind: StartKind, policy: &Arc<str>) -> Option<u64> {
        let policies = self.0.policies.lock();
        let series = policies.get(&(kind, Arc::clone(policy)))?;
        Some(series.ever.load(Ordering::Relaxed))
    }

    /// Sets all jobs that are out to zero, because all usage was forgotten.
    pub fn clear(&self) {
        self.set("ojs_throttle_slots", &[], 0);
        self.0.activity.clear();
        let keys = self.keys();
        let all = keys.own.values().chain(&keys.other);
        all.for_each(|series| series.active.set(0.0));
    }

    /// The keys with series of their own, and whether other keys share one.
    pub fn named(&self) -> (Vec<SpacedKey>, bool) {
        let keys = self.keys();
        (keys.own.keys().cloned().collect(), keys.other.is_some())
    }

    /// Sets how many jobs of a key are out, as the store says. A key without a series of its own is left out. Not a
    /// number: the key counts no jobs, and the page does not show it.
    pub fn active(&self, key: &SpacedKey, jobs: f64) {
        if let Some(series) = self.keys().own.get(key) {
            series.active.set(jobs);
        }
    }

    /// Sets how many jobs are out of all job keys that share a series. Not a number: nobody knows, and the page does
    /// not show them.
    pub fn others_active(&self, jobs: f64) {
        if let Some(other) = &self.keys().other {
            other.active.set(jobs);
        }
    }

    /// Sets how many jobs and calls wait of all job keys that share a series.
    pub fn others_waiting(&self, jobs: u64) {
        if let Some(other) = &self.keys().other {
            other.waiting.set(jobs as f64);
        }
    }

    fn keys(&self) -> MutexGuard<'_, KeyTable> {
        self.0.keys.lock()
    }

    /// Counts a refused job: by the limit that refused it, and by the action that a policy takes. One that is to be dropped
    /// counts once it [is](Metrics::dropped).
    pub fn refused(
        &self,
        kind: StartKind,
        by: &Limited,
        why: &Refusal,
        policy: &Arc<str>,
        action: OnLimit,
    ) {
        self.0.activity.refused(by, why);
        let series = self.policy(kind, policy);
        match action {
            OnLimit::Wait => series.limited.increment(1),
            OnLimit::Reschedule => series.rescheduled.increment(1),
            OnLimit::Drop => {}
        }
    }

    /// Counts a refused job that was ended in the backend.
    pub fn dropped(&self, policy: &Arc<str>) {
        let series = self.policy(StartKind::Job, policy);
        series.dropped.increment(1);
        self.of_policy("ojs_rate_limit_dropped_total", policy, 1);
    }

    /// Counts an enqueue that a bound refused.
    pub fn rejected(&self, queue: &str) {
        self.0.activity.rejected(queue);
        self.of_queue("ojs_backpressure_rejected_total", queue, 1);
    }

    /// Records how long a job would have waited for a policy.
    pub fn shadow_waited(&self, policy: &str, waited: Duration) {
        let labels = vec![Label::new("policy", policy.to_owned())];
        let series = histogram(&self.0.recorder, "ojs_throttle_shadow_wait_seconds", labels);
        series.record(waited.as_secs_f64());
    }

    /// Counts an enqueue that a bound would have refused.
    pub fn shadow_refused(&self, queue: &str) {
        self.of_queue("ojs_throttle_shadow_refused_total", queue, 1);
    }

    /// A service answered a call by this way out with this status.
    pub fn service_answered(&self, egress: &Arc<str>, status: u16) {
        let status = Some(status).filter(|status| (100..=599).contains(status));
        self.0.activity.answered(egress, status);
    }

    /// What services answered: by way out and status, as a label says it, how often ever and in the last minute.
    pub fn service_answers(&self) -> impl Iterator<Item = (Arc<str>, String, u64, u32)> {
        let answers = self.0.activity.answers().into_iter();
        answers.map(|(egress, status, ever, lately)| (egress, label_of(status), ever, lately))
    }

    /// What was seen lately, for those who look.
    pub fn activity(&self) -> &Activity {
        &self.0.activity
    }

    /// Sets all gauges of this name, each with its labels; others lose their series.
    pub fn set_all(&self, name: &'static str, gauges: impl Iterator<Item = (Labels, f64)>) {
        let part = part_of_page(name, gauges);
        self.0.parts.lock().insert(name, part);
    }

    /// Counts jobs that were dropped to make room.
    pub fn dropped_oldest(&self, queue: &str, jobs: u64) {
        self.of_queue("ojs_backpressure_dropped_total", queue, jobs);
    }

    /// Sets, for each queue of which something is known, the used part of its nearest bound; other queues lose their
    /// series. Queues that share a series show the largest.
    pub fn pressure(&self, queues: &[(Arc<str>, f64)]) {
        let mut measured: HashMap<String, f64> = HashMap::new();
        for (queue, part) in queues {
            let most = measured.entry(self.queue_label(queue)).or_default();
            *most = most.max(*part);
        }
        let measured = measured.into_iter();
        let gauges = measured.map(|(label, part)| (vec![("queue", label)], part));
        self.set_all("ojs_backpressure_pressure", gauges);
    }

    fn of_queue(&self, name: &'static str, queue: &str, n: u64) {
        self.add(name, &[("queue", &self.queue_label(queue))], n);
    }

    /// The label of a queue. Names come from requests, so only the first [`QUEUES`] have series of their own.
    fn queue_label(&self, queue: &str) -> String {
        let mut queues = self.0.queues.lock();
        if queues.contains(queue) {
            return queue.to_owned();
        }
        if queues.len() >= QUEUES {
            return OTHER.to_owned();
        }
        queues.insert(queue.into());
        queue.to_owned()
    }

    /// Counts a nack that shut a key, because the service behind it limits us.
    pub fn shut(&self, policy: &str) {
        self.of_policy("ojs_throttle_downstream_rate_limited_total", policy, 1);
    }

    /// Counts a call that paid to a budget and is over, or that might have paid.
    pub fn settled(&self, budget: &str, how: Settlement) {
        let labels = [("budget", budget), ("how", how.as_str())];
        self.add("ojs_throttle_egress_settled_total", &labels, 1);
    }

    fn of_policy(&self, name: &'static str, policy: &str, n: u64) {
        self.add(name, &[("policy", policy)], n);
    }

    /// Counts a job that could not start, once for each time that it waits.
    pub fn exceeded(&self, by: &Limited, strategy: Strategy) {
        let mut keys = self.keys();
        let key = self.series(&mut keys, by).name.clone();
        drop(keys);
        let labels = [("key", &*key), ("strategy", strategy.as_str())];
        self.add("ojs_rate_limit_exceeded_total", &labels, 1);
    }

    /// Records how long a FETCH was kept open.
    pub fn waited(&self, time: Duration) {
        self.0.fetch_wait.record(time.as_secs_f64());
    }

    /// Records a call of the sidecar's own to the backend. `code` is its status, or 0 for none, which
    /// has a word of its own; statuses that HTTP does not have share a series.
    pub fn called(&self, op: &'static str, code: u16, time: Duration) {
        let code = Some(code).filter(|code| matches!(code, 0 | 100..=599));
        let mut calls = self.0.calls.lock();
        let series = calls.entry((op, code)).or_insert_with(|| {
            let code = match code {
                Some(0) => "none".to_owned(),
                code => label_of(code),
            };
            let labels = vec![Label::new("op", op), Label::new("code", code)];
            histogram(
                &self.0.recorder,
                "ojs_throttle_upstream_request_duration_seconds",
                labels,
            )
        });
        series.record(time.as_secs_f64());
    }

    /// Records a look at the config file, whether that is in force now, and the result to count, if any.
    pub fn config_looked_at(&self, is_in_force: bool, result: Option<&'static str>) {
        let in_force = usize::from(is_in_force);
        self.set("ojs_throttle_config_last_reload_successful", &[], in_force);
        self.set("ojs_throttle_config_file_matches", &[], in_force);
        if let Some(result) = result {
            let labels = [("result", result)];
            self.add("ojs_throttle_config_reloads_total", &labels, 1);
        }
    }

    /// Counts an event that was put into a stream.
    pub fn event_sent(&self) {
        self.0.events_sent.increment(1);
    }

    /// Counts events that a slow subscriber lost.
    pub fn events_lost(&self, events: u64) {
        self.add("ojs_throttle_events_lost_total", &[], events);
    }

    /// Counts an error reply of our own; `code` is that of its envelope.
    pub fn answered(&self, status: u16, code: &'static str) {
        let status = status.to_string();
        let labels = [("status", &*status), ("code", code)];
        self.add("ojs_throttle_responses_total", &labels, 1);
    }

    /// Sets the limits of the config that are in force, by their labels; others lose their series. Those of starts have
    /// a strategy, those of slots none. Of several with the same labels the least is shown.
    pub fn limits(&self, all: impl Iterator<Item = (Labels, u32)>) {
        let mut least: BTreeMap<Labels, u32> = BTreeMap::new();
        for (labels, limit) in all {
            let shown = least.entry(labels).or_insert(limit);
            *shown = limit.min(*shown);
        }
        let least = least.into_iter();
        let gauges = least.map(|(labels, limit)| (labels, f64::from(limit)));
        let of_starts = |of: &(Labels, f64)| of.0.iter().any(|(name, _)| *name == "strategy");
        let (starts, slots): (Vec<_>, Vec<_>) = gauges.partition(of_starts);
        self.set_all("ojs_throttle_slots_limit", slots.into_iter());
        self.set_all("ojs_throttle_starts_limit", starts.into_iter());
    }

    /// Sets how many jobs wait of each key with a series of its own.
    pub fn waiting(&self, waiting: &dyn Fn(Space, &limit::Key) -> u64) {
        for ((space, key), series) in &self.keys().own {
            series.waiting.set(waiting(*space, key) as f64);
        }
    }

    fn policy(&self, kind: StartKind, name: &Arc<str>) -> Arc<PolicySeries> {
        let mut policies = self.0.policies.lock();
        let place = (kind, Arc::clone(name));
        if let Some(series) = policies.get(&place) {
            return Arc::clone(series);
        }
        let labels = || {
            let of = Label::new("policy", name.to_string());
            vec![of, Label::new("kind", kind.as_str())]
        };
        let recorder = &self.0.recorder;
        let decided = |verdict: &'static str| {
            let labels = [labels(), vec![Label::new("verdict", verdict)]].concat();
            counter(recorder, "ojs_throttle_decisions_total", labels)
        };
        let series = Arc::new(PolicySeries {
            ever: AtomicU64::new(0),
            starts: counter(recorder, "ojs_throttle_starts_total", labels()),
            allowed: decided("allowed"),
            limited: decided("limited"),
            rescheduled: decided("rescheduled"),
            dropped: decided("dropped"),
        });
        policies.insert(place, Arc::clone(&series));
        series
    }

    /// The series of a key: its own, or the shared one.
    fn series<'a>(&self, keys: &'a mut KeyTable, limited: &Limited) -> &'a KeySeries {
        let is_full = keys.own.len() >= keys.most;
        match keys.own.entry((limited.space, limited.key.clone())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) if !is_full => {
                let name = limited.space.name_of(&limited.key);
                place.insert(self.key_series(&name))
            }
            Entry::Vacant(_) => keys.other.get_or_insert_with(|| self.key_series(OTHER)),
        }
    }

    fn key_series(&self, name: &str) -> KeySeries {
        let label = || vec![Label::new("key", name.to_owned())];
        let recorder = &self.0.recorder;
        KeySeries {
            name: name.into(),
            active: gauge(recorder, "ojs_rate_limit_active", label()),
            waiting: gauge(recorder, "ojs_rate_limit_waiting", label()),
            wait: histogram(recorder, "ojs_rate_limit_wait_duration_seconds", label()),
        }
    }
}

/// The label of a status.
fn label_of(code: AnswerStatus) -> String {
    code.map_or_else(|| OTHER.to_owned(), |code| code.to_string())
}

fn owned(labels: &[(&'static str, &str)]) -> Vec<Label> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| Label::new(*name, (*value).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ojs_limit::Limits;

    fn limited(key: &str) -> Limited {
        Limited::new(
            Space::Job,
            limit::Key::new(key).unwrap(),
            Limits::default(),
            Arc::from("p"),
        )
    }

    #[track_caller]
    fn has(page: &str, line: &str) {
        assert!(page.contains(line), "{line}: {page}");
    }

    #[test]
    fn keys_past_the_cap_share_one_series() {
        let metrics = Metrics::new(2);
        for key in ["a", "b", "c", "d"] {
            metrics.started(StartKind::Job, [(&[limited(key)][..], None)].into_iter());
            metrics.active(&(Space::Job, limited(key).key), 1.0);
        }
        let (own, shared) = metrics.named();
        assert!(own.len() == 2 && shared);
        metrics.others_active(f64::NAN);
        assert!(!metrics.render().contains("active{key=\"_other\"}"));
        metrics.others_active(2.0);
        let page = metrics.render();
        has(&page, "ojs_rate_limit_active{key=\"a\"} 1");
        has(&page, "ojs_rate_limit_active{key=\"_other\"} 2");
        assert!(!page.contains("key=\"c\""), "{page}");
    }

    /// People read the page with curl, and names come from jobs.
    #[test]
    fn no_name_steers_a_terminal() {
        let metrics = Metrics::new(1);
        metrics.pressure(&[(Arc::from("\u{1b}]0;a\u{7}\u{9b}2J"), 1.0)]);
        let page = metrics.render();
        has(&page, r#"queue="\\x1b]0;a\\x07\\x9b2J""#);
        assert!(
            !page.contains(|c: char| c.is_control() && c != '\n'),
            "{page}"
        );
    }

    #[test]
    fn queues_past_the_cap_show_the_fullest() {
        let metrics = Metrics::new(1);
        let at = |n: usize, part| (Arc::from(format!("q-{n}")), part);
        let mut all: Vec<_> = (0..QUEUES).map(|n| at(n, 0.5)).collect();
        all.extend([at(QUEUES, 0.2), at(QUEUES + 1, 1.0), at(QUEUES + 2, 0.3)]);
        let shows = |label: &str, part: f64| {
            let line = format!("ojs_backpressure_pressure{{queue=\"{label}\"}} {part}\n");
            has(&metrics.render(), &line);
        };
        metrics.pressure(&all);
        shows("q-0", 0.5);
        shows(OTHER, 1.0);
        // The full one has room again, and the first is forgotten.
        all.retain(|(queue, part)| *part < 1.0 && **queue != *"q-0");
        metrics.pressure(&all);
        assert!(!metrics.render().contains("\"q-0\""));
        shows("q-1", 0.5);
        shows(OTHER, 0.3);
        metrics.pressure(&[]);
        assert!(!metrics.render().contains("ojs_backpressure_pressure{"));
    }

    #[test]
    fn limits_that_are_gone_have_no_series() {
        let metrics = Metrics::new(1);
        let of = |policy: &str| vec![("policy", policy.to_owned())];
        metrics.limits([(of("a"), 5), (of("b"), 7), (of("b"), 3), (of("b"), 9)].into_iter());
        let page = metrics.render();
        has(&page, "ojs_throttle_slots_limit{policy=\"a\"} 5\n");
        has(&page, "ojs_throttle_slots_limit{policy=\"b\"} 3\n");
        metrics.limits([(of("b"), 9)].into_iter());
        let page = metrics.render();
        assert!(!page.contains("{policy=\"a\"}"), "{page}");
        has(&page, "ojs_throttle_slots_limit{policy=\"b\"} 9\n");
        // Those of calls stay where nothing is shown of jobs.
        has(&page, "\nojs_throttle_slots 0\n");
        metrics.show_calls_only();
        let page = metrics.render();
        assert!(!page.contains("ojs_throttle_slots "), "{page}");
        has(&page, "ojs_throttle_slots_limit{policy=\"b\"} 9\n");
    }

    #[test]
    fn a_key_and_a_queue_of_one_name_are_apart() {
        let metrics = Metrics::new(5);
        let queue = Limited {
            space: Space::Queue,
            ..limited("mail")
        };
        // Two policies with one key take one slot of it.
        let all = [limited("mail"), limited("mail"), queue.clone()];
        metrics.started(
            StartKind::Job,
            [(&all[..], Some(Duration::from_secs(1)))].into_iter(),
        );
        metrics.started(
            StartKind::Job,
            [(std::slice::from_ref(&queue), None)].into_iter(),
        );
        metrics.exceeded(&queue, Strategy::Rate);
        metrics.active(&(Space::Job, queue.key.clone()), 1.0);
        metrics.active(&(Space::Queue, queue.key.clone()), 2.0);
        metrics.waiting(&|space, _| match space {
            Space::Job => 3,
            Space::Queue | Space::Policy => 4,
        });
        let page = metrics.render();
        for line in [
            "ojs_rate_limit_active{key=\"mail\"} 1",
            "ojs_rate_limit_active{key=\"_queue:mail\"} 2",
            "ojs_rate_limit_waiting{key=\"mail\"} 3",
            "ojs_rate_limit_waiting{key=\"_queue:mail\"} 4",
            "ojs_rate_limit_wait_duration_seconds_count{key=\"mail\"} 1",
            "ojs_rate_limit_wait_duration_seconds_count{key=\"_queue:mail\"} 1",
            "ojs_rate_limit_exceeded_total{key=\"_queue:mail\",strategy=\"rate\"} 1",
        ] {
            has(&page, line);
        }
    }

    #[test]
    fn statuses_that_http_does_not_have_share_one_series() {
        let metrics = Metrics::new(1);
        for code in [0, 200, 599, 600, 999] {
            metrics.called("look", code, Duration::from_millis(1));
        }
        let page = metrics.render();
        for (code, calls) in [("none", 1), ("200", 1), ("599", 1), (OTHER, 2)] {
            let labels = format!("{{op=\"look\",code=\"{code}\"}}");
            let name = "ojs_throttle_upstream_request_duration_seconds_count";
            has(&page, &format!("{name}{labels} {calls}\n"));
        }
        assert!(!page.contains("code=\"600\""), "{page}");
    }

    #[test]
    fn a_refusal_is_counted_once_per_job() {
        let metrics = Metrics::new(2);
        let policy = Arc::from("p");
        metrics.exceeded(&limited("a"), Strategy::Rate);
        for _ in 0..2 {
            let why = Refusal {
                strategy: Strategy::Rate,
                limit: 1,
                current: 1,
                at: None,
                slot: false,
            };
            metrics.refused(StartKind::Job, &limited("a"), &why, &policy, OnLimit::Wait);
        }
        let page = metrics.render();
        has(
            &page,
            "ojs_rate_limit_exceeded_total{key=\"a\",strategy=\"rate\"} 1",
        );
        has(
            &page,
            "ojs_throttle_decisions_total{policy=\"p\",kind=\"job\",verdict=\"limited\"} 2",
        );
    }
}
