//! The backend: is it there, what does it say it is, and what does a sidecar make of that.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use super::probe::{Probe, Probed};
use super::{Env, Level, Report, Source};
use crate::config::{self, Settings};
use crate::proxy::Backend;
use crate::run;
use crate::upstream::{Call, Target, Upstream};

const PART: &str = "backend";
/// The longest that one call may take here.
const PATIENCE: Duration = Duration::from_secs(5);

/// The backend, asked as a sidecar asks it.
pub(super) struct Asked {
    upstream: Upstream,
    headers: HeaderMap,
}

/// A call that was not answered with 2xx, for people.
pub(super) type Refused = String;

impl Asked {
    fn new(settings: &Settings, env: &Env) -> Result<Asked, Refused> {
        let ca = settings.upstream.ca_file.as_deref();
        let target = Target::parse(&settings.upstream.url.to_string(), ca);
        let target = target.map_err(|error| error.to_string())?;
        let limits = run::upstream_limits(settings);
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
        Ok(Asked {
            upstream: Upstream::new(target, env.net.clone(), limits),
            headers,
        })
    }

    /// One call: its status, and its body if that is JSON.
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

    /// One call whose answer must be 2xx: its JSON, or null.
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

pub(super) async fn examine(settings: &Settings, probe: bool, env: &Env, report: &mut Report) {
    let asked = match Asked::new(settings, env) {
        Ok(asked) => asked,
        Err(why) => {
            report.add(PART, "settings", Source::Config, why);
            report.but(Level::Fail, "correct upstream.token or upstream.ca_file");
            return;
        }
    };
    let known = run::backend(&settings.upstream);
    if !manifest(&asked, &settings.upstream, &known, report).await {
        return;
    }
    if !probe {
        return guessed(&settings.upstream, &known, report);
    }
    let mut probe = Probe::new(&asked, env.seed);
    let result = probe.run().await;
    let left = probe.clean().await;
    let says = format!("queue {}", probe.queue());
    report.add(PART, "probe", Source::Probed, says);
    match result {
        Ok(probed) => judge(&settings.upstream, &known, &probed, report),
        Err(why) => {
            report.add(PART, "probe", Source::Probed, why);
            let todo = "workers meet the same: look at the backend's log, and at upstream.token if it is a 401 or 403";
            report.but(Level::Fail, todo);
        }
    }
    let says = match left {
        0 => "the probe's jobs are cancelled or completed".to_owned(),
        left => format!("{left} of the probe's jobs are still there"),
    };
    report.add(PART, "cleaned up", Source::Probed, says);
    if left > 0 {
        let todo = format!("delete the jobs of the queue {} by hand", probe.queue());
        report.but(Level::Warn, todo);
    }
}

/// Reads the manifest; whether there is any use in going on.
async fn manifest(
    asked: &Asked,
    upstream: &config::Upstream,
    known: &Backend,
    report: &mut Report,
) -> bool {
    let url = &upstream.url;
    let (status, body) = match asked.ask(Method::GET, "/ojs/manifest", None).await {
        Ok(reply) => reply,
        Err(why) => {
            // Where the cause says what to do, it stands in brackets at its end.
            let end = why.rsplit(" (").next().unwrap_or_default();
            let todo = match why.ends_with(')') && !end.starts_with("os error") {
                true => format!("see the end of that line; server.upstream is {url}"),
                false => format!("is it running, and is server.upstream right ({url})?"),
            };
            report.add(PART, "reachable", Source::Measured, why);
            report.but(Level::Fail, todo);
            return false;
        }
    };
    report.add(PART, "reachable", Source::Measured, format!("yes, {url}"));
    let manifest: Option<Value> = serde_json::from_slice(&body).ok();
    let manifest = manifest.filter(|_| status.is_success());
    let text = |pointer: &str| {
        let value = manifest.as_ref()?.pointer(pointer)?;
        value.as_str().map(str::to_owned)
    };
    let Some(name) = text("/implementation/name") else {
        let says = format!("no manifest of OJS at /ojs/manifest ({status})");
        report.add(PART, "manifest", Source::Measured, says);
        match status.as_u16() {
            401 | 403 => report.but(Level::Fail, "set upstream.token to one that may read it"),
            404 => report.but(
                Level::Warn,
                "if OJS is elsewhere there, add its base path to server.upstream",
            ),
            500.. => report.but(
                Level::Fail,
                "something in front of the backend speaks for it: is the backend up?",
            ),
            _ => report.but(Level::Warn, "is that an OJS backend? --probe finds out"),
        }
        return status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN;
    };
    known.read_manifest(&body);
    let version = text("/implementation/version").unwrap_or_else(|| "of no version".to_owned());
    let spec = text("/specversion").or_else(|| text("/ojs_version"));
    let spec = spec.map_or(String::new(), |spec| format!(", OJS {spec}"));
    let says = format!("{name} {version}{spec}");
    report.add(PART, "manifest", Source::Measured, says);
    true
}

/// What a sidecar takes to be so, where nothing was probed.
fn guessed(upstream: &config::Upstream, known: &Backend, report: &mut Report) {
    let source = |set: bool, told: bool| match (set, told) {
        (true, _) => Source::Config,
        (_, true) => Source::Manifest,
        _ => Source::Assumed,
    };
    let named = known.worker_liveness() || known.from_start();
    let set = upstream.claims_count.is_some();
    let says = counted(known.claims_count());
    report.add(PART, "attempts", source(set, false), says.to_owned());
    let set = upstream.requeue_harmless.is_some();
    let says = requeued(known.requeue_harmless());
    report.add(PART, "requeue", source(set, named), says.to_owned());
    let set = upstream.worker_liveness.is_some();
    let says = kept_alive(known.worker_liveness());
    report.add(PART, "liveness", source(set, named), says.to_owned());
    let set = upstream.heartbeat_from_start.is_some();
    let says = extended(known.from_start());
    report.add(PART, "heartbeat", source(set, named), says.to_owned());
    let says = "whether the queue's stats are right is not known";
    report.add(PART, "stats", Source::Assumed, says.to_owned());
    report.unknown();
}

fn counted(at_claim: bool) -> &'static str {
    match at_claim {
        true => "counted when a job is handed out",
        false => "counted when a job fails",
    }
}

fn requeued(harmless: bool) -> &'static str {
    match harmless {
        true => "harmless: a job that is given back is as before",
        false => "costs the job an attempt or more: a held job is not given back",
    }
}

fn kept_alive(by_worker: bool) -> &'static str {
    match by_worker {
        true => "any heartbeat of a worker keeps all its jobs",
        false => "a heartbeat keeps the jobs that it names",
    }
}

fn extended(from_start: bool) -> &'static str {
    match from_start {
        true => "its visibility counts from the start of the job",
        false => "its visibility counts from the heartbeat",
    }
}

/// Puts what was found beside what a sidecar with these settings goes by.
fn judge(upstream: &config::Upstream, known: &Backend, probed: &Probed, report: &mut Report) {
    attempts(upstream, known, probed, report);
    given_back(upstream, known, probed, report);
    report.add(PART, "visibility", Source::Probed, probed.visibility());
    if probed.lasted.is_none() {
        report.but(
            Level::Warn,
            "let a worker die with a job: if that is active for longer than 30 s, dead workers keep their slots, and \
             on the last one of a queue they stop it",
        );
    }
    alive(upstream, known, probed, report);
    report.add(PART, "stats", Source::Probed, probed.stats.says.clone());
    if !probed.stats.honest {
        report.but(
            Level::Warn,
            "bounds of backpressure go by them: without them they go by what passed this sidecar",
        );
    }
}

fn attempts(upstream: &config::Upstream, known: &Backend, probed: &Probed, report: &mut Report) {
    let Some(first) = probed.first_attempt else {
        let set = upstream.claims_count.is_some();
        let says = counted(known.claims_count()).to_owned();
        report.add(PART, "attempts", unseen(set), says);
        if !set {
            report.but(
                Level::Warn,
                "a FETCH shows no attempt: set upstream.claims_count",
            );
        }
        return;
    };
    let at_claim = first > 0;
    let says = counted(at_claim).to_owned();
    report.add(PART, "attempts", Source::Probed, says);
    known.saw_attempt(Some(first));
    if known.claims_count() != at_claim {
        let set = if at_claim { "yes" } else { "no" };
        report.but(
            Level::Fail,
            format!("set upstream.claims_count = \"{set}\", or \"auto\""),
        );
    }
}

fn given_back(upstream: &config::Upstream, known: &Backend, probed: &Probed, report: &mut Report) {
    let Some(found) = &probed.requeue else {
        let set = upstream.requeue_harmless.is_some();
        let says = requeued(known.requeue_harmless()).to_owned();
        report.add(PART, "requeue", unseen(set), says);
        return;
    };
    let says = match found.harmless {
        true => requeued(true).to_owned(),
        false => format!("not harmless: {}", found.why),
    };
    report.add(PART, "requeue", Source::Probed, says);
    match (known.requeue_harmless(), found.harmless) {
        (true, false) => report.but(
            Level::Fail,
            "set upstream.requeue = \"burns\": a sidecar gives held jobs back, and that costs them",
        ),
        (false, true) => report.but(
            Level::Warn,
            "set upstream.requeue = \"harmless\": then a sidecar that is idle or drains gives held jobs back",
        ),
        _ => {}
    }
}

/// Where that comes from which the probe did not see.
fn unseen(set: bool) -> Source {
    match set {
        true => Source::Config,
        false => Source::Assumed,
    }
}

fn alive(upstream: &config::Upstream, known: &Backend, probed: &Probed, report: &mut Report) {
    if let Some(by_worker) = probed.worker_liveness {
        let says = kept_alive(by_worker).to_owned();
        report.add(PART, "liveness", Source::Probed, says);
        if known.worker_liveness() != by_worker {
            let (word, level) = match by_worker {
                true => ("worker", Level::Warn),
                false => ("job", Level::Fail),
            };
            report.but(level, format!("set upstream.liveness = \"{word}\""));
        }
    }
    match probed.from_start {
        Some(from_start) => {
            let says = extended(from_start).to_owned();
            report.add(PART, "heartbeat", Source::Probed, says);
            if known.from_start() != from_start {
                let word = if from_start { "from_start" } else { "from_now" };
                report.but(
                    Level::Fail,
                    format!("set upstream.heartbeat = \"{word}\": held jobs run out else"),
                );
            }
        }
        None => {
            let set = upstream.heartbeat_from_start.is_some();
            let says = extended(known.from_start()).to_owned();
            report.add(PART, "heartbeat", unseen(set), says);
        }
    }
}
