//! Checks the backend: does it answer, what does it say it is, and what does a sidecar conclude from that?

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use super::probe::{Probe, Probed};
use super::{Diagnosis, DoctorEnv, Evidence, Severity};
use crate::config::{self, Settings};
use crate::proxy::BackendFacts;
use crate::run;
use crate::upstream::{Call, Target, Upstream};

const PART: &str = "backend";
/// The longest that one call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The backend, asked as a sidecar asks it.
pub(super) struct BackendCalls {
    upstream: Upstream,
    headers: HeaderMap,
}

/// Why a call was not answered with 2xx, for people.
pub(super) type Refused = String;

impl BackendCalls {
    fn new(settings: &Settings, env: &DoctorEnv) -> Result<BackendCalls, Refused> {
        let ca = settings.upstream.ca_file.as_deref();
        let target = Target::new(settings.upstream.url.clone(), ca);
        let target = target.map_err(|error| error.to_string())?;
        let limits = run::call_bounds(settings);
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(token) = &settings.upstream.token {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|_| "upstream.token cannot stand in a header".to_owned())?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(BackendCalls {
            upstream: Upstream::new(target, env.net.clone(), limits),
            headers,
        })
    }

    /// Makes one call, and returns its status and body.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), Refused> {
        let call = Call {
            method,
            target: path.into(),
            headers: self.headers.clone(),
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            timeout: PATIENCE,
        };
        let reply = self.upstream.call(call).await;
        let reply = reply.map_err(|error| error.to_string())?;
        Ok((reply.status, reply.body))
    }

    /// Makes one call whose answer must be 2xx, and returns its JSON, or null.
    pub(super) async fn done(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Refused> {
        let what = format!("{method} {path}");
        let (status, body) = self.ask(method, path, body).await?;
        if !status.is_success() {
            let said: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(format!("{what} is answered {status}: {said}"));
        }
        Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

pub(super) async fn examine(settings: &Settings, env: &DoctorEnv, report: &mut Diagnosis) {
    let asked = match BackendCalls::new(settings, env) {
        Ok(asked) => asked,
        Err(why) => {
            report.add(PART, "settings", Evidence::Config, why);
            report.but(Severity::Fail, "correct upstream.token or upstream.ca_file");
            return;
        }
    };
    let known = run::backend(&settings.upstream);
    if !manifest(&asked, &settings.upstream, &known, report).await {
        return;
    }
    if !env.probe {
        for belief in beliefs(&settings.upstream, &known) {
            belief.tell(report);
        }
        let says = "whether the queue's stats are right is not known";
        report.add(PART, "stats", Evidence::Assumed, says);
        return report.unknown();
    }
    let mut probe = Probe::new(&asked, env.seed);
    let result = probe.run().await;
    let left = probe.clean().await;
    let says = format!("queue {}", probe.queue());
    report.add(PART, "probe", Evidence::Probed, says);
    match result {
        Ok(probed) => judge(&settings.upstream, &known, &probed, report),
        Err(why) => {
            report.add(PART, "probe", Evidence::Probed, why);
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

/// Reads the manifest. Returns whether there is any use in going on.
async fn manifest(
    asked: &BackendCalls,
    upstream: &config::UpstreamSettings,
    known: &BackendFacts,
    report: &mut Diagnosis,
) -> bool {
    let url = &upstream.url;
    let (status, body) = match asked.ask(Method::GET, "/ojs/manifest", None).await {
        Ok(reply) => reply,
        Err(why) => {
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
    let manifest: Option<Value> = serde_json::from_slice(&body).ok();
    let manifest = manifest.filter(|_| status.is_success());
    let text = |pointer: &str| {
        let value = manifest.as_ref()?.pointer(pointer)?;
        value.as_str().map(str::to_owned)
    };
    let Some(name) = text("/implementation/name") else {
        let says = format!("no manifest of OJS at /ojs/manifest ({status})");
        report.add(PART, "manifest", Evidence::Measured, says);
        match status.as_u16() {
            401 | 403 => report.but(Severity::Fail, "set upstream.token to one that may read it"),
            404 => report.but(
                Severity::Warn,
                "if OJS is elsewhere there, add its base path to server.upstream",
            ),
            500.. => report.but(
                Severity::Fail,
                "something in front of the backend speaks for it: is the backend up?",
            ),
            _ => report.but(Severity::Warn, "is that an OJS backend? --probe finds out"),
        }
        return status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN;
    };
    known.read_manifest(&body);
    let version = text("/implementation/version").unwrap_or_else(|| "of no version".to_owned());
    let spec = text("/specversion").or_else(|| text("/ojs_version"));
    let spec = spec.map_or(String::new(), |spec| format!(", OJS {spec}"));
    let says = format!("{name} {version}{spec}");
    report.add(PART, "manifest", Evidence::Measured, says);
    true
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
    if_no: (Severity::Fail, "set upstream.liveness = \"job\""),
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
    is_so: bool,
    evidence: Evidence,
}

impl Belief {
    fn tell(&self, report: &mut Diagnosis) {
        let says = self.habit.says(self.is_so);
        report.add(PART, self.habit.name, self.evidence, says);
    }

    /// Reports what the probe has found, if it has, and what to do where the belief is another. `why`: more than the
    /// habit says.
    fn tell_probed(&self, found: Option<bool>, why: Option<&str>, report: &mut Diagnosis) {
        let Some(is_so) = found else {
            return self.tell(report);
        };
        let says = why.unwrap_or_else(|| self.habit.says(is_so));
        report.add(PART, self.habit.name, Evidence::Probed, says);
        if is_so != self.is_so {
            let (severity, todo) = match is_so {
                true => self.habit.if_yes,
                false => self.habit.if_no,
            };
            report.but(severity, todo);
        }
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
        is_so,
        evidence: setting.map_or(otherwise, |_| Evidence::Config),
    };
    let (count, harmless) = (known.claims_count(), known.requeue_harmless());
    let (by_worker, from_start) = (known.worker_liveness(), known.from_start());
    [
        belief(ATTEMPTS, upstream.claims_count, count, Evidence::Assumed),
        belief(REQUEUE, upstream.requeue_harmless, harmless, by_name),
        belief(LIVENESS, upstream.worker_liveness, by_worker, by_name),
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
    let burns = probed
        .requeue
        .as_ref()
        .and_then(|found| found.as_ref().err());
    let burns = burns.map(|why| format!("not harmless: {why}"));
    let is_harmless = probed.requeue.as_ref().map(Result::is_ok);
    requeue.tell_probed(is_harmless, burns.as_deref(), report);
    report.add(PART, "visibility", Evidence::Probed, probed.visibility());
    if probed.lasted.is_none() {
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
