//! Asks the sidecar of this config, where one runs, for what keeps its jobs from starting.
#![expect(
    clippy::indexing_slicing,
    reason = "JSON is null where it lacks a name"
)]

use serde_json::Value;

use super::diagnosis::{Diagnosis, Evidence, Severity};
use crate::ask::{AdminPort, AskError, place_of};
use crate::config::{RENEW, Settings};

const PART: &str = "sidecar";

pub(super) async fn examine(settings: &Settings, report: &mut Diagnosis) {
    for file in settings.certificates() {
        let concern = file.concern();
        let good = || format!("{} is good", file.setting);
        let says = concern.clone().unwrap_or_else(good);
        report.add(PART, "certificate", Evidence::Measured, says);
        match concern.is_some() {
            true if file.lifetime.is_now() => report.but(Severity::Warn, RENEW),
            true => report.but(Severity::Fail, RENEW),
            false => {}
        }
    }
    let place = place_of(&settings.server);
    let token = settings.server.control_token.as_ref();
    let state = match AdminPort::new(&place, token.map(|token| token.expose())) {
        Ok(port) => port.get("/throttle/v1/state").await,
        Err(error) => Err(error),
    };
    let state = match state {
        Ok(state) => state,
        Err(AskError::Unreached(why)) if why.contains("Connection refused") => {
            let says = format!("none answers at {} (server.admin_listen)", place.url);
            return report.add(PART, "runs", Evidence::Measured, says);
        }
        Err(error) => {
            report.add(PART, "runs", Evidence::Measured, error.to_string());
            return report.but(Severity::Warn, "see the end of that line");
        }
    };
    let text = |pointer: &str| state.pointer(pointer).and_then(Value::as_str);
    let name = text("/sidecar/name").unwrap_or("unnamed");
    let says = format!("{name}, {}", text("/sidecar/ready").unwrap_or("unknown"));
    report.add(PART, "runs", Evidence::Measured, says);
    let list = |pointer: &str| state.pointer(pointer).and_then(Value::as_array);
    for cause in list("/causes").into_iter().flatten() {
        tell(cause, Severity::Warn, report);
    }
    for queue in list("/queues/rows").into_iter().flatten() {
        tell(&queue["cause"], Severity::Warn, report);
    }
    // That a limit holds jobs back is what it is for.
    for key in list("/keys/rows").into_iter().flatten() {
        if key["state"]["waiting_count"] != 0 {
            tell(&key["cause"], Severity::Ok, report);
        }
    }
}

/// The causes by which limits or jobs suffer until somebody acts.
const FAILURES: [&str; 6] = [
    "store lost",
    "store closed",
    "store share",
    "store never there",
    "backend away",
    "backend refuses",
];

/// Reports one cause, in its own words.
fn tell(cause: &Value, severity: Severity, report: &mut Diagnosis) {
    let severity = match cause["name"].as_str() {
        Some(name) if FAILURES.contains(&name) => Severity::Fail,
        _ => severity,
    };
    let (Some(why), Some(todo)) = (cause["why"].as_str(), cause["do"].as_str()) else {
        return;
    };
    let is_told = report.findings().iter().any(|told| told.says == why);
    if !is_told {
        report.add(PART, "jobs wait", Evidence::Measured, why);
        // This is the doctor.
        let todo = todo.replace(
            "`ojs-throttle doctor` says",
            "that line, what stands above, and the sidecar's log say",
        );
        report.but(severity, todo);
    }
}
