//! Checks the ways out: can the service of each be reached from here? No call is made.

use std::sync::Arc;

use super::diagnosis::{Diagnosis, Evidence, Severity};
use super::surroundings::DoctorEnv;
use crate::config::{BaseUrl, EgressSettings, Settings};
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
        let name = &entry.name;
        match reach(entry, &url, settings, env).await {
            Ok(()) => {
                let steps = if url.tls {
                    "name, TCP, TLS"
                } else {
                    "name, TCP"
                };
                let says = format!("{name}: {url} can be reached ({steps})");
                report.add(PART, "service", Evidence::Measured, says);
            }
            Err(why) => {
                report.add(
                    PART,
                    "service",
                    Evidence::Measured,
                    format!("{name}: {why}"),
                );
                let todo =
                    format!("calls to it fail: is {url} right, and may this host connect to it?");
                report.but(Severity::Fail, todo);
            }
        }
    }
}

/// Connects as a sidecar does for a call.
async fn reach(
    entry: &EgressSettings,
    url: &BaseUrl,
    settings: &Settings,
    env: &DoctorEnv,
) -> Result<(), String> {
    let target = run::egress_target(entry).map_err(|error| format!("{error:#}"))?;
    let mut service = Upstream::new(target, env.net.clone(), run::call_bounds(settings));
    if let Some(hosts) = &entry.hosts {
        let by_name = CalledByName {
            allow: Arc::clone(&hosts.allow),
            own: Arc::default(),
        };
        let at = service.at(url.clone(), by_name);
        service = at.map_err(|error| error.to_string())?;
    }
    let reached = service.reach().await;
    reached.map_err(|error| error.said_of("the service", "egress"))
}
