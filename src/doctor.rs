//! `ojs-throttle doctor`: whether the store and the backend are as they must be, what they can do, and
//! what to do where something is wrong. It reads; with `--probe` it runs a few jobs through a queue of
//! its own, and writes one number to the store.

mod backend;
mod probe;
mod store;

use std::fmt::Write;

use serde::Serialize;

use crate::config::Settings;
use crate::net::Net;
use crate::store::Clock;

/// What the doctor gets from the process.
#[derive(Debug)]
pub struct Env {
    /// The way to the backend.
    pub net: Net,
    /// This host's wall time. It runs from when that was read, so that what comes in between is no
    /// difference to the store's.
    pub clock: Clock,
    /// Names the queue of the probe, and this process to the store.
    pub seed: u64,
}

/// How it stands with one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be, or as it is.
    Ok,
    /// Nobody can say without a probe.
    Unknown,
    /// Not wrong, but better otherwise.
    Warn,
    /// Wrong: limits, or jobs, suffer.
    Fail,
}

/// How the doctor knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// It was asked or timed just now.
    Measured,
    /// It was found out with jobs of the doctor's own.
    Probed,
    /// The backend's manifest says so, or names a backend that is known.
    Manifest,
    /// The settings say so.
    Config,
    /// Nobody has said: what a sidecar takes to be so.
    Assumed,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// `store` or `backend`.
    pub part: &'static str,
    /// What was looked at.
    pub what: &'static str,
    /// How it stands.
    pub level: Level,
    /// How that is known.
    pub source: Source,
    /// What was seen.
    pub says: String,
    /// What to do; every line that failed has it.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, part: &'static str, what: &'static str, source: Source, says: String) {
        self.0.push(Finding {
            part,
            what,
            level: Level::Ok,
            source,
            says,
            todo: None,
        });
    }

    /// The last line is worse than it looks, and this is to be done.
    fn but(&mut self, level: Level, todo: impl Into<String>) {
        if let Some(last) = self.0.last_mut() {
            last.level = level;
            last.todo = Some(todo.into());
        }
    }

    /// Nothing is known of what the last line is about.
    fn unknown(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.level = Level::Unknown;
        }
    }

    /// The lines.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }

    /// Whether nothing failed.
    pub fn healthy(&self) -> bool {
        self.count(Level::Fail) == 0
    }

    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|one| one.level == level).count()
    }

    /// For people, with a last line break: what failed stands out, and what to do stands below it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut part = "";
        for one in &self.0 {
            if one.part != part {
                part = one.part;
                let _fits = writeln!(text, "{part}");
            }
            let mark = match one.level {
                Level::Ok => "  ok  ",
                Level::Unknown => "  ?   ",
                Level::Warn => "  warn",
                Level::Fail => "  FAIL",
            };
            let source = match one.source {
                Source::Measured => "",
                Source::Probed => " (probed)",
                Source::Manifest => " (by the manifest)",
                Source::Config => " (by the config)",
                Source::Assumed => " (assumed; --probe finds out)",
            };
            let _fits = writeln!(text, "{mark}  {:<12} {}{source}", one.what, one.says);
            if let Some(todo) = &one.todo {
                let _fits = writeln!(text, "        {:<12} -> {todo}", "");
            }
        }
        let (failed, warned) = (self.count(Level::Fail), self.count(Level::Warn));
        let unknown = self.count(Level::Unknown);
        let _fits = writeln!(
            text,
            "\n{}",
            match (failed, warned) {
                (0, 0) if unknown > 0 => "nothing wrong was seen; --probe sees more".to_owned(),
                (0, 0) => "all is well".to_owned(),
                (0, warned) => format!("usable; {warned} to look at"),
                (failed, _) => format!("{failed} failed: do what stands behind ->"),
            }
        );
        text
    }

    /// One JSON object, with a last line break.
    pub fn json(&self) -> String {
        let findings = serde_json::json!({ "healthy": self.healthy(), "findings": self.0 });
        format!("{findings}\n")
    }
}

/// Looks at everything that the settings name.
pub async fn examine(settings: &Settings, probe: bool, env: Env) -> Report {
    let mut report = Report::default();
    store::examine(&settings.store, probe, &env, &mut report).await;
    backend::examine(settings, probe, &env, &mut report).await;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_says_what_to_do() {
        let mut report = Report::default();
        report.add("store", "reachable", Source::Measured, "yes".to_owned());
        assert!(report.healthy() && report.text().contains("all is well"));
        report.add("backend", "stats", Source::Assumed, "who knows".to_owned());
        report.unknown();
        let text = report.text();
        assert!(
            text.contains("  ?     stats ") && !text.contains("all is well"),
            "{text}"
        );
        report.0.pop();
        report.add("backend", "requeue", Source::Assumed, "burns".to_owned());
        report.but(Level::Warn, "probe it");
        assert!(report.healthy() && report.text().contains("1 to look at"));
        report.add("backend", "stats", Source::Probed, "lies".to_owned());
        report.but(Level::Fail, "mend it");
        assert!(!report.healthy());
        let text = report.text();
        let wanted = "  FAIL  stats        lies (probed)\n                     -> mend it\n";
        assert!(text.contains(wanted), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["findings"][2]["do"], "mend it");
        assert_eq!(json["findings"][2]["source"], "probed");
    }
}
