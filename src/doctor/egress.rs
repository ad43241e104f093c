//! Checks the ways out: can the service of each be reached from here, and what becomes of calls to one host? No call is
//! made.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use super::diagnosis::{Diagnosis, Evidence, Severity};
use super::surroundings::DoctorEnv;
use crate::config::{BaseUrl, EgressSettings, Settings, of_egress, one_name};
use crate::run;
use crate::wire::upstream::{CalledByName, Upstream};

const PART: &str = "egress";

pub(super) async fn examine(settings: &Settings, env: &DoctorEnv, report: &mut Diagnosis) {
    let services = settings.egress.iter().flat_map(|entry| {
        let hosts = entry.hosts.iter().flat_map(|hosts| hosts.urls());
        let urls = entry.upstream.clone().into_iter().chain(hosts);
        urls.map(move |url| (entry, url))
    });
    for (entry, url) in services {
        reach(entry, &url, settings, env, report).await;
    }
}

/// Tells which ways out take calls to this host, by which key and under which limits, and whether its addresses are open to
/// them.
pub(super) async fn examine_host(
    host: &str,
    settings: &Settings,
    env: &DoctorEnv,
    report: &mut Diagnosis,
) {
    let Some(name) = one_name(host) else {
        let todo = "write it as calls name it: \"api.example.com\" or \"10.0.0.7:8443\"";
        let says = format!("{host:?} is no host");
        return tell(report, "host", Evidence::Config, says, Some(todo.into()));
    };
    let entries = settings.egress.iter();
    let ways = entries.filter_map(|entry| Some((entry, entry.goes_to(&name)?)));
    let ways: Vec<_> = ways.collect();
    if ways.is_empty() {
        let entries = settings.egress.iter();
        let listed = entries.map(|entry| format!("{} takes {}", entry.name, entry.leads_to()));
        let listed: Vec<_> = listed.collect();
        let todo = match listed.as_slice() {
            [] => "write an [[egress]] that names it in `hosts`: there is none".to_owned(),
            listed => format!("let an entry name it in `hosts`; {}", listed.join("; ")),
        };
        let says = format!("no [[egress]] takes calls to {name}: 403 host_not_listed");
        tell(report, "host", Evidence::Config, says, Some(todo));
    }
    for (entry, url) in ways {
        let says = format!("{}: {}", entry.name, of_egress(entry));
        report.add(PART, "host", Evidence::Config, says);
        let key = entry.key.of_host(&name).map(|key| key.to_string());
        let told = || format!("{}, as each call says it", entry.key.told_of_host(&name));
        let key = key.unwrap_or_else(told);
        report.add(PART, "key", Evidence::Config, key);
        addresses(entry, &url, settings, env, report).await;
        if env.probe {
            reach(entry, &url, settings, env, report).await;
        }
    }
}

/// Tells one thing, and what to do if it failed.
fn tell(
    report: &mut Diagnosis,
    what: &'static str,
    source: Evidence,
    says: String,
    todo: Option<String>,
) {
    report.add(PART, what, source, says);
    if let Some(todo) = todo {
        report.but(Severity::Fail, todo);
    }
}

/// Looks up to which addresses calls go, and whether they may.
async fn addresses(
    entry: &EgressSettings,
    url: &BaseUrl,
    settings: &Settings,
    env: &DoctorEnv,
    report: &mut Diagnosis,
) {
    let within = settings.upstream.connect_timeout;
    let (says, todo) = match env.net.look_up(&url.host, url.port, within).await {
        Err(why) => {
            let todo = "is the name right, and does this host know it?";
            (format!("{url}: {why}"), Some(todo))
        }
        Ok(found) => {
            let shown: Vec<_> = found.iter().map(|at| at.ip().to_string()).collect();
            let shown = format!("{url} is at {}", shown.join(", "));
            let by_name = by_name(entry, settings);
            match by_name.and_then(|by_name| by_name.check(&url.host, &found).err()) {
                None if leads_back(&found, settings, env).await => {
                    let todo = "calls get 508 loop_detected: name the service's own port";
                    (format!("{shown}: a port of this sidecar"), Some(todo))
                }
                None => (shown, None),
                Some(why) => {
                    let why = why.said_of("the service", "egress");
                    let todo = "calls get 403 address_refused: a service of your own needs its address in `allow` of the entry";
                    (format!("{shown}: {why}"), Some(todo))
                }
            }
        }
    };
    let todo = todo.map(str::to_owned);
    tell(report, "addresses", Evidence::Measured, says, todo);
}

/// By which rules a host has its addresses that calls name.
fn by_name(entry: &EgressSettings, settings: &Settings) -> Option<CalledByName> {
    let hosts = entry.hosts.as_ref()?;
    Some(CalledByName {
        allow: Arc::clone(&hosts.allow),
        own: Arc::new(OnceLock::from(settings.ports())),
    })
}

/// Whether one of these is a port of the sidecar on this machine. Nobody connects: where a port can be bound, the address is
/// this machine's.
async fn leads_back(found: &[SocketAddr], settings: &Settings, env: &DoctorEnv) -> bool {
    let own = settings.ports();
    for at in found.iter().filter(|at| own.contains(&at.port())) {
        if env.net.bind(SocketAddr::new(at.ip(), 0)).await.is_ok() {
            return true;
        }
    }
    false
}

/// Tells whether a service can be reached.
async fn reach(
    entry: &EgressSettings,
    url: &BaseUrl,
    settings: &Settings,
    env: &DoctorEnv,
    report: &mut Diagnosis,
) {
    let name = &entry.name;
    let (says, todo) = match connect(entry, url, settings, env).await {
        Ok(()) => {
            let tls = if url.tls { ", TLS" } else { "" };
            let says = format!("{name}: {url} can be reached (name, TCP{tls})");
            (says, None)
        }
        Err(why) => {
            let todo =
                format!("calls to it fail: is {url} right, and may this host connect to it?");
            (format!("{name}: {why}"), Some(todo))
        }
    };
    tell(report, "service", Evidence::Measured, says, todo);
}

/// Connects as a sidecar does for a call.
async fn connect(
    entry: &EgressSettings,
    url: &BaseUrl,
    settings: &Settings,
    env: &DoctorEnv,
) -> Result<(), String> {
    let target = run::egress_target(entry).map_err(|error| format!("{error:#}"))?;
    let mut service = Upstream::new(target, env.net.clone(), run::call_bounds(settings));
    if let Some(by_name) = by_name(entry, settings) {
        let at = service.at(url.clone(), by_name);
        service = at.map_err(|error| error.to_string())?;
    }
    let reached = service.reach().await;
    reached.map_err(|error| error.said_of("the service", "egress"))
}
