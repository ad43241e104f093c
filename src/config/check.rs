//! `ojs-throttle check`: reads a file and reports on it, without starting anything.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use super::certificates::RENEW;
use super::command_line::CommandLine;
use super::file;
use super::load::read_whole;
use super::meaning::{Meaning, meaning};
use super::settings::Settings;
use ojs_policy::{Match, PolicySet};
use ojs_reader::{Colours, Report, Sources};

/// What `check` prints, and how the process ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// The text to print, without a last line break.
    pub text: String,
    /// What was found, as one JSON object.
    pub json: String,
    /// 0, or 78 (`EX_CONFIG`) when the file cannot be used.
    pub status: u8,
}

/// How many entries of each kind there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entries {
    /// `[[policy]]`.
    pub policies: usize,
    /// `[[queue]]`, with limits, bounds or both.
    pub queues: usize,
    /// `[[tenant]]`.
    pub tenants: usize,
}

impl Settings {
    /// Counts what the file has.
    pub fn entries(&self) -> Entries {
        // A policy that takes its numbers from several others is there once for each.
        let shadow = self.policies.shadow();
        let tried = shadow.map_or(&[][..], PolicySet::policies);
        let policies = self.policies.policies().iter().chain(tried);
        let policies: BTreeSet<_> = policies.map(|policy| &policy.name).collect();
        let tried = shadow.map_or(&[][..], PolicySet::queues);
        let limited = self.policies.queues().iter().chain(tried);
        let bounded = self.bounds.entries.iter().chain(&self.bounds.tried);
        let with_subqueues = self.policies.subqueues().iter();
        let queues: BTreeSet<_> = (limited.map(|queue| queue.name.as_str()))
            .chain(bounded.map(|(name, _)| name.as_str()))
            .chain(with_subqueues.map(|(name, _)| &**name))
            .collect();
        Entries {
            policies: policies.len(),
            queues: queues.len(),
            tenants: self.bounds.tenants.len(),
        }
    }
}

/// `1 queue`, `2 queues`.
fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// What is doubtful in a file that can be used.
fn doubts(settings: &Settings) -> Report {
    let mut warnings = settings.warnings.clone();
    for policy in settings.policies.policies() {
        if policy.matching == Match::default() {
            let name = &policy.name;
            let title =
                format!("policy {name:?} has no `match`: it limits every job of every queue");
            let hint = "add match = { queue = \"NAME\" }, or { queue = \"*\" } if all are meant";
            warnings.warn(title, hint);
        }
    }
    for file in settings.certificates() {
        if let Some(concern) = file.concern() {
            warnings.warn(concern, RENEW);
        }
    }
    warnings
}

/// Reads the file (`-` is standard input) and says what it means, or everything that is wrong with it; with colours
/// for a terminal if asked.
pub fn check(path: &Path, overrides: &CommandLine, colours: Colours) -> Checked {
    let name = path.display().to_string();
    let settings = match path.as_os_str() == "-" {
        true => read_whole(std::io::stdin())
            .map_err(|error| Report::unreadable("standard input", &error))
            .and_then(|text| file::read(Sources::file("standard input", text), overrides)),
        false => Settings::load_with(Some(path), overrides),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(report) => {
            let problems = count(report.errors(), "problem", "problems");
            return Checked {
                text: format!("{}\n\n{problems} in {name}", report.render(colours)),
                json: json!({"file": name, "ok": false, "problems": report.problems()}).to_string(),
                status: 78,
            };
        }
    };
    let entries = settings.entries();
    let meaning = meaning(&settings);
    let meaning = meaning.iter().filter(|of| !of.text.is_empty());
    let meaning: Vec<String> = meaning.map(Meaning::to_string).collect();
    let warnings = doubts(&settings);
    let json = json!({
        "file": name, "ok": true, "meaning": meaning, "problems": warnings.problems(),
    });
    let mut text = meaning
        .iter()
        .fold(String::new(), |all, line| all + line + "\n");
    text += &match settings.calls_only() {
        true => "ok: calls only".to_owned(),
        false => format!(
            "ok: {}, {}",
            count(entries.policies, "policy", "policies"),
            count(entries.queues, "queue", "queues")
        ),
    };
    if entries.tenants > 0 {
        text += &format!(", {}", count(entries.tenants, "tenant", "tenants"));
    }
    if !settings.egress.is_empty() {
        let egress = count(settings.egress.len(), "egress entry", "egress entries");
        text += &format!(", {egress}");
    }
    let number = warnings.warnings();
    if number > 0 {
        let warnings = warnings.render(colours);
        let number = count(number, "warning", "warnings");
        text = format!("{warnings}\n\n{text}, {number}");
    }
    Checked {
        text,
        json: json.to_string(),
        status: 0,
    }
}
