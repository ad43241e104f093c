//! Checks the ways out: can the service of each be reached from here? No call is made.

use super::diagnosis::{Diagnosis, Evidence, Severity};
use super::surroundings::DoctorEnv;
use crate::config::{EgressSettings, Settings};
use crate::run;
use crate::wire::upstream::Upstream;

const PART: &str = "egress";

pub(super) async fn examine(settings: &Settings, env: &DoctorEnv, report: &mut Diagnosis) {
    for entry in &settings.egress {
        let (name, url) = (&entry.name, &entry.upstream);
        match reach(entry, settings, env).await {
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
async fn reach(entry: &EgressSettings, settings: &Settings, env: &DoctorEnv) -> Result<(), String> {
    let target = run::egress_target(entry).map_err(|error| format!("{error:#}"))?;
    let service = Upstream::new(target, env.net.clone(), run::call_bounds(settings));
    let reached = service.reach().await;
    reached.map_err(|error| error.said_of("the service", "egress"))
}
