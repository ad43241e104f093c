//! Asks the sidecar of this config, where one runs, for what keeps its jobs from starting.
#![expect(
    clippy::indexing_slicing,
    reason = "JSON is null where it lacks a name"
)]

use serde_json::Value;

use super::diagnosis::{Diagnosis, Evidence, Severity};
use crate::ask::{AdminPort, AskError, place_of, subqueues_line, unread_subqueue};
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
    let asked = async {
        let port = AdminPort::new(&place, token.map(|token| token.expose()))?;
        let state = port.get("/throttle/v1/state").await?;
        let subqueues = port.get("/throttle/v1/subqueues").await;
        Ok((state, subqueues.unwrap_or_default()))
    };
    let (state, subqueues) = match asked.await {
        Ok(told) => told,
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
    let keys = || list("/keys/rows").into_iter().flatten();
    for queue in list("/queues/rows").into_iter().flatten() {
        let why = &queue["cause"]["why"];
        if !keys().any(|key| key["cause"]["why"] == *why) {
            tell(&queue["cause"], Severity::Warn, report);
        }
    }
    // That a limit holds jobs back is what it is for.
    for key in keys() {
        let drops = key["cause"]["name"] == "drops jobs" && key["minute"]["refused"] != 0;
        if drops {
            tell(&key["cause"], Severity::Warn, report);
        } else if key["state"]["waiting_count"] != 0 {
            tell(&key["cause"], Severity::Ok, report);
        }
    }
    tell_subqueues(&subqueues, &state, report);
}

/// Reports which queues have subqueues, what lies there, and who reads it.
fn tell_subqueues(told: &Value, state: &Value, report: &mut Diagnosis) {
    let list = |name: &str| told[name].as_array().into_iter().flatten();
    let mut add = |says: String, todo: Option<String>| {
        report.add(PART, "subqueues", Evidence::Measured, says);
        todo.into_iter()
            .for_each(|todo| report.but(Severity::Warn, todo));
    };
    for queue in list("queues") {
        add(subqueues_line(queue), None);
        let (name, names) = (&queue["queue"], &queue["spread"]["unclaimed"]);
        // A sibling may hold the jobs in front.
        if *names != 0 && state["store"]["siblings"] == 0 {
            let says =
                format!("nobody has asked for the jobs in {names} subqueues of queue {name}");
            let todo = "let workers poll this sidecar for the queue, with credentials that may fetch these jobs";
            add(says, Some(todo.to_owned()));
        }
    }
    if let Some(names) = told["names"].as_u64().filter(|names| *names > 0) {
        let todo =
            "the backend looks through each name that it ever had: give no more queues subqueues";
        let is_dear = Some(names) > told["most_names"].as_u64();
        let says = format!("the backend has {names} names of subqueues");
        add(says, is_dear.then(|| todo.to_owned()));
    }
    for one in list("unread") {
        let [says, todo] = unread_subqueue(one);
        add(says, Some(todo));
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
