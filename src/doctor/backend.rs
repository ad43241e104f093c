//! Checks the backend: does it answer, what does it say it is, and what does a sidecar conclude from that?

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use http::header::VIA;
use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use super::diagnosis::{Diagnosis, Evidence, Severity};
use super::probe::{Probe, Probed};
use super::surroundings::DoctorEnv;
use crate::client::JsonClient;
use crate::config::{self, Settings, StoreUrl};
use crate::desk::{BackendFacts, Stranger};
use crate::store::sidecar_of;
use crate::wire::upstream::{Reply, Upstream};
use crate::{duration, run};

const PART: &str = "backend";
/// A claim that lasts longer keeps the slot of a dead worker for too long: 30 s, and some delay of the probe.
const LONGEST_CLAIM: Duration = Duration::from_secs(32);
/// How long most SDKs sleep after an empty FETCH.
const POLL: Duration = Duration::from_secs(1);
/// The longest that one call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The backend, asked as a sidecar asks it.
fn client(settings: &Settings, env: &DoctorEnv) -> anyhow::Result<JsonClient> {
    let target = run::target(&settings.upstream)?;
    let server = Upstream::new(target, env.net.clone(), run::call_bounds(settings));
    let client = JsonClient::new(server, PATIENCE);
    let Some(token) = &settings.upstream.token else {
        return Ok(client);
    };
    let login = HeaderValue::try_from(format!("Bearer {}", token.expose()));
    let mut login = login.context("upstream.token cannot stand in a header")?;
    login.set_sensitive(true);
    Ok(client.authorized(login))
}

/// Reports that there is none.
pub(super) fn tell_none(report: &mut Diagnosis) {
    let says = "none: only calls are limited (server.upstream)";
    report.add(PART, "address", Evidence::Config, says);
}

pub(super) async fn examine(settings: &Settings, env: &DoctorEnv, report: &mut Diagnosis) {
    let backend = match client(settings, env) {
        Ok(backend) => backend,
        Err(why) => {
            report.add(PART, "settings", Evidence::Config, why.to_string());
            report.but(Severity::Fail, "correct upstream.token or upstream.ca_file");
            return;
        }
    };
    let known = BackendFacts::new(&settings.upstream);
    if !manifest(&backend, &settings.upstream, &known, report).await {
        return;
    }
    sidecars(&backend, settings, report).await;
    waits(settings, report);
    if !env.probe {
        for belief in beliefs(&settings.upstream, &known) {
            belief.tell(report);
        }
        turns(settings, &known, report);
        let says = "whether the queue's stats are right is not known";
        report.add(PART, "stats", Evidence::Assumed, says);
        return report.unknown();
    }
    let mut probe = Probe::new(&backend, env.seed);
    let stopped = env.stop.run_until_cancelled(probe.run()).await;
    let result = stopped.unwrap_or_else(|| Err(anyhow::anyhow!("it was told to end")));
    let left = probe.clean().await;
    let says = format!("queue {}", probe.queue());
    report.add(PART, "probe", Evidence::Probed, says);
    match result {
        Ok(probed) => {
            judge(&settings.upstream, &known, &probed, report);
            turns(settings, &known, report);
        }
        Err(why) => {
            report.add(PART, "probe", Evidence::Probed, format!("{why:#}"));
            let todo = "workers meet the same: look at the backend's log, and at upstream.token if it is a 401 or 403";
            report.but(Severity::Fail, todo);
        }
    }
    let says = match left {
        0 => "the probe's jobs are cancelled or completed".to_owned(),
        left => format!("{left} of the probe's jobs are still there"),
    };
    report.add(PART, "cleaned up", Evidence::Probed, says);
    if left > 0 {
        let todo = format!("delete the jobs of the queue {} by hand", probe.queue());
        report.but(Severity::Warn, todo);
    }
}

/// Reports sidecars that start jobs side by side while the store is the memory of each.
async fn sidecars(backend: &JsonClient, settings: &Settings, report: &mut Diagnosis) {
    let list = "/ojs/v1/admin/jobs?state=active&page=1&per_page=100";
    let Ok((_, body)) = backend.exchange(Method::GET, list, None).await else {
        return;
    };
    let list: Value = serde_json::from_slice(&body).unwrap_or_default();
    let jobs = list.get("items").and_then(Value::as_array);
    let workers = (jobs.into_iter().flatten()).filter_map(|job| job.get("worker_id")?.as_str());
    let names: BTreeSet<&str> = workers.filter_map(sidecar_of).collect();
    if names.len() > 1 && settings.store.url == StoreUrl::Memory {
        let names = Vec::from_iter(names).join(", ");
        let says = format!("store.url is memory:, and jobs run that were claimed by {names}");
        report.add(PART, "sidecars", Evidence::Measured, says);
        let todo = "each starts as much as a limit allows: give all one store.url";
        report.but(Severity::Warn, todo);
    }
}

/// Reads the manifest. Returns whether there is any use in going on.
async fn manifest(
    backend: &JsonClient,
    upstream: &config::UpstreamSettings,
    known: &BackendFacts,
    report: &mut Diagnosis,
) -> bool {
    let url = upstream.url.clone().unwrap_or_default();
    let asked = backend.ask(Method::GET, "/ojs/manifest", None);
    let reply = match asked.await {
        Ok(reply) => reply,
        Err(why) => {
            let why = why.to_string();
            // A cause that says what to do has that in brackets at its end.
            let end = why.rsplit(" (").next().unwrap_or_default();
            let todo = match why.ends_with(')') && !end.starts_with("os error") {
                true => format!("see the end of that line; server.upstream is {url}"),
                false => format!("is it running, and is server.upstream right ({url})?"),
            };
            report.add(PART, "reachable", Evidence::Measured, why);
            report.but(Severity::Fail, todo);
            return false;
        }
    };
    report.add(PART, "reachable", Evidence::Measured, format!("yes, {url}"));
    if let Some(stranger) = Stranger::of(&reply) {
        tell_stranger(stranger, reply.status, report);
        return false;
    }
    let is_sidecars = is_sidecars(&reply);
    let (status, body) = (reply.status, reply.body);
    let manifest: Option<Value> = serde_json::from_slice(&body).ok();
    let manifest = manifest.filter(|_| status.is_success());
    let text = |pointer: &str| {
        let value = manifest.as_ref()?.pointer(pointer)?;
        value.as_str().map(str::to_owned)
    };
    let Some(name) = text("/implementation/name") else {
        return tell_nameless(status, report);
    };
    known.read_manifest(&body);
    let version = text("/implementation/version").unwrap_or_else(|| "of no version".to_owned());
    let spec = text("/specversion").or_else(|| text("/ojs_version"));
    let spec = spec.map_or(String::new(), |spec| format!(", OJS {spec}"));
    let behind = match is_sidecars {
        true => ", behind another ojs-throttle",
        false => "",
    };
    let says = format!("{name} {version}{spec}{behind}");
    report.add(PART, "manifest", Evidence::Measured, says);
    if is_sidecars {
        let todo =
            "each holds jobs back by its own limits: let server.upstream name the backend itself";
        report.but(Severity::Warn, todo);
    }
    true
}

/// Reports what answers in place of a backend.
fn tell_stranger(stranger: Stranger, status: StatusCode, report: &mut Diagnosis) {
    let says = format!("{stranger} ({status})");
    report.add(PART, "manifest", Evidence::Measured, says);
    let todo = match stranger {
        Stranger::NoOjs => "if OJS is elsewhere there, add its base path to server.upstream",
        Stranger::Itself | Stranger::AdminPort => "write the backend's address in server.upstream",
    };
    report.but(Severity::Fail, todo);
}

/// Whether a reply came through another sidecar.
fn is_sidecars(reply: &Reply) -> bool {
    reply.headers.get_all(VIA).iter().any(|via| {
        let mut words = via.as_bytes().split(|byte| b" ,".contains(byte));
        words.any(|word| word.starts_with(b"ojs-throttle"))
    })
}

/// Reports a manifest that names no implementation, or none at all. Returns whether there is any use in going on.
fn tell_nameless(status: StatusCode, report: &mut Diagnosis) -> bool {
    let says = format!("no manifest of OJS at /ojs/manifest ({status})");
    report.add(PART, "manifest", Evidence::Measured, says);
    match status.as_u16() {
        401 | 403 => report.but(Severity::Fail, "set upstream.token to one that may read it"),
        404 => report.but(
            Severity::Warn,
            "server.upstream is the address alone, or with the base path below which OJS is: `/ojs/v1` is no part of it",
        ),
        500.. => report.but(
            Severity::Fail,
            "something in front of the backend speaks for it: is the backend up?",
        ),
        _ => report.but(Severity::Warn, "is that an OJS backend? --probe finds out"),
    }
    status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN
}

/// What to do where a sidecar believes otherwise, and how bad that is.
type Remedy = (Severity, &'static str);

/// A habit in which backends differ and by which a sidecar goes.
struct Habit {
    name: &'static str,
    yes: &'static str,
    no: &'static str,
    if_yes: Remedy,
    if_no: Remedy,
}

const ATTEMPTS: Habit = Habit {
    name: "attempts",
    yes: "counted when a job is handed out",
    no: "counted when a job fails",
    if_yes: (
        Severity::Fail,
        "set upstream.claims_count = \"yes\", or \"auto\"",
    ),
    if_no: (
        Severity::Fail,
        "set upstream.claims_count = \"no\", or \"auto\"",
    ),
};
const REQUEUE: Habit = Habit {
    name: "requeue",
    yes: "harmless: a job that is given back is as before",
    no: "costs the job an attempt or more: a held job is not given back",
    if_yes: (
        Severity::Warn,
        "set upstream.requeue = \"harmless\": then a sidecar that is idle or drains gives held jobs back",
    ),
    if_no: (
        Severity::Fail,
        "set upstream.requeue = \"burns\": a sidecar gives held jobs back, and that costs them",
    ),
};
const LIVENESS: Habit = Habit {
    name: "liveness",
    yes: "any heartbeat of a worker keeps all its jobs",
    no: "a heartbeat keeps the jobs that it names",
    if_yes: (Severity::Warn, "set upstream.liveness = \"worker\""),
    if_no: (
        Severity::Warn,
        "set upstream.liveness = \"job\": then jobs are claimed together",
    ),
};
const HEARTBEAT: Habit = Habit {
    name: "heartbeat",
    yes: "its visibility counts from the start of the job",
    no: "its visibility counts from the heartbeat",
    if_yes: (
        Severity::Fail,
        "set upstream.heartbeat = \"from_start\": held jobs run out else",
    ),
    if_no: (
        Severity::Fail,
        "set upstream.heartbeat = \"from_now\": held jobs run out else",
    ),
};

impl Habit {
    fn says(&self, is_so: bool) -> &'static str {
        if is_so { self.yes } else { self.no }
    }
}

/// What a sidecar with these settings believes of a habit, and why.
struct Belief {
    habit: Habit,
    /// `None`: it does not know, and does what is right either way.
    is_so: Option<bool>,
    evidence: Evidence,
}

impl Belief {
    fn tell(&self, report: &mut Diagnosis) {
        let unknown = "not known: each limited job is claimed by itself";
        let says = self.is_so.map_or(unknown, |is_so| self.habit.says(is_so));
        report.add(PART, self.habit.name, self.evidence, says);
        if self.is_so.is_none() {
            report.but(
                Severity::Warn,
                "set upstream.liveness: \"job\" if a heartbeat keeps only the jobs that it names, else \"worker\"; \
                 --probe finds out on most backends",
            );
        }
    }

    /// Reports what the probe has found, if it has, and what to do where the belief is another. `why`: more than the
    /// habit says.
    fn tell_probed(&self, found: Option<bool>, why: Option<&str>, report: &mut Diagnosis) {
        let Some(is_so) = found else {
            return self.tell(report);
        };
        let says = why.unwrap_or_else(|| self.habit.says(is_so));
        report.add(PART, self.habit.name, Evidence::Probed, says);
        if self.is_so != Some(is_so) {
            let (severity, todo) = match is_so {
                true => self.habit.if_yes,
                false => self.habit.if_no,
            };
            report.but(severity, todo);
        }
    }
}

/// Reports how long a FETCH waits for a slot, where there are slots.
fn waits(settings: &Settings, report: &mut Diagnosis) {
    let policies = settings.policies.policies().iter();
    let queues = settings.policies.queues().iter();
    let limits = policies
        .map(|of| &of.limits)
        .chain(queues.map(|of| &of.limits));
    if !limits.into_iter().any(|of| of.concurrency.is_some()) {
        return;
    }
    let wait = settings.fetch.max_wait;
    let says = format!(
        "an empty FETCH waits up to {} for a slot",
        duration::plain(wait)
    );
    report.add(PART, "waits", Evidence::Config, says);
    if wait < POLL {
        report.but(
            Severity::Warn,
            "slots lie idle with jobs waiting while all workers sleep between two FETCHes, which SDKs do for 1 to 2.4 s: \
             set fetch.max_wait = \"2s\"",
        );
    }
}

/// Reports among how many jobs turns are shared, where an entry has `fair`.
fn turns(settings: &Settings, known: &BackendFacts, report: &mut Diagnosis) {
    let policies = settings.policies.policies().iter();
    let mut policies = policies.filter(|policy| policy.prices.fair.is_some());
    let mut queues = settings.policies.queues().iter();
    if policies.next().is_none() && !queues.any(|queue| queue.prices.fair.is_some()) {
        return;
    }
    let (counts, hold) = (known.claims_count(), &settings.hold);
    let jobs = hold.of_one_queue(counts);
    let says = format!("turns are shared among the first {jobs} jobs of a queue");
    report.add(PART, "fair", Evidence::Config, says);
    if counts && hold.max.is_none() {
        let todo =
            "a fetch counts as an attempt here: `ojs-throttle help cost` says what reaches further";
        report.but(Severity::Warn, todo);
    }
}

/// Attempts, requeue, liveness and heartbeat, in this order.
fn beliefs(upstream: &config::UpstreamSettings, known: &BackendFacts) -> [Belief; 4] {
    // The manifest of a backend that is known by name says more than an assumption.
    let is_known = known.worker_liveness() || known.from_start();
    let by_name = match is_known {
        true => Evidence::Manifest,
        false => Evidence::Assumed,
    };
    let belief = |habit, setting: Option<bool>, is_so, otherwise| Belief {
        habit,
        is_so: Some(is_so),
        evidence: setting.map_or(otherwise, |_| Evidence::Config),
    };
    let mut liveness = belief(
        LIVENESS,
        upstream.worker_liveness,
        known.worker_liveness(),
        by_name,
    );
    if !known.is_liveness_known() {
        liveness.is_so = None;
    } else if liveness.evidence == Evidence::Assumed {
        liveness.evidence = Evidence::Manifest;
    }
    let (count, harmless) = (known.claims_count(), known.requeue_harmless());
    let from_start = known.from_start();
    [
        belief(ATTEMPTS, upstream.claims_count, count, Evidence::Assumed),
        belief(REQUEUE, upstream.requeue_harmless, harmless, by_name),
        liveness,
        belief(
            HEARTBEAT,
            upstream.heartbeat_from_start,
            from_start,
            by_name,
        ),
    ]
}

/// Puts what was found beside what a sidecar with these settings goes by.
fn judge(
    upstream: &config::UpstreamSettings,
    known: &BackendFacts,
    probed: &Probed,
    report: &mut Diagnosis,
) {
    // A setting of "auto" learns from the first job, as this does.
    known.saw_attempt(probed.first_attempt);
    let [attempts, requeue, liveness, heartbeat] = beliefs(upstream, known);
    let at_claim = probed.first_attempt.map(|first| first > 0);
    attempts.tell_probed(at_claim, None, report);
    if at_claim.is_none() && attempts.evidence != Evidence::Config {
        let todo = "a FETCH shows no attempt: set upstream.claims_count";
        report.but(Severity::Warn, todo);
    }
    let found = probed.requeue.as_ref();
    let burns = found.and_then(|found| found.as_ref().err());
    let burns = burns.map(|why| format!("not harmless: {why}"));
    let is_harmless = probed.requeue.as_ref().map(Result::is_ok);
    requeue.tell_probed(is_harmless, burns.as_deref(), report);
    report.add(PART, "visibility", Evidence::Probed, probed.visibility());
    let lasted = probed.lasted.or(probed.by_itself);
    if lasted.is_none_or(|lasted| lasted > LONGEST_CLAIM) {
        report.but(
            Severity::Warn,
            "let a worker die with a job: if that is active for longer than 30 s, dead workers keep their slots, and \
             on the last one of a queue they stop it",
        );
    }
    liveness.tell_probed(probed.worker_liveness, None, report);
    heartbeat.tell_probed(probed.from_start, None, report);
    let says = match &probed.stats {
        Ok(()) => "the queue's stats are right",
        Err(why) => why,
    };
    report.add(PART, "stats", Evidence::Probed, says);
    if probed.stats.is_err() {
        report.but(
            Severity::Warn,
            "bounds of backpressure go by them: without them they go by what passed this sidecar",
        );
    }
}
