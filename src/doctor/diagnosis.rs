//! What was found, as people and programs read it.

use std::fmt::Write;

use serde::Serialize;

/// The state of one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good, or a plain fact.
    Ok,
    /// Nobody can say without a probe.
    Unknown,
    /// Not wrong, but better otherwise.
    Warn,
    /// Wrong: limits, or jobs, suffer.
    Fail,
}

/// How the doctor knows something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// It was asked or timed just now.
    Measured,
    /// Jobs of the doctor's own have shown it.
    Probed,
    /// The backend's manifest says so, or names a backend that is known.
    Manifest,
    /// The settings say so.
    Config,
    /// Nobody said it; a sidecar assumes it.
    Assumed,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// `store`, `backend`, `egress` or `sidecar`.
    pub part: &'static str,
    /// The thing that was checked.
    pub what: &'static str,
    /// The state of it.
    pub level: Severity,
    /// How that is known.
    pub source: Evidence,
    /// The result.
    pub says: String,
    /// What to do; every line that failed has it.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnosis(Vec<Finding>);

impl Diagnosis {
    pub(super) fn add(
        &mut self,
        part: &'static str,
        what: &'static str,
        source: Evidence,
        says: impl Into<String>,
    ) {
        self.0.push(Finding {
            part,
            what,
            level: Severity::Ok,
            source,
            says: says.into(),
            todo: None,
        });
    }

    /// Makes the last line worse than it looks, and says what to do.
    pub(super) fn but(&mut self, level: Severity, todo: impl Into<String>) {
        if let Some(last) = self.0.last_mut() {
            last.level = level;
            last.todo = Some(todo.into());
        }
    }

    /// Marks the last line as something that nobody knows yet.
    pub(super) fn unknown(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.level = Severity::Unknown;
        }
    }

    /// The lines.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }

    /// Whether nothing failed.
    pub fn healthy(&self) -> bool {
        self.count(Severity::Fail) == 0
    }

    fn count(&self, level: Severity) -> usize {
        self.0.iter().filter(|one| one.level == level).count()
    }

    /// The report for people, with a final line break. Failures stand out, and below each stands what to do.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut part = "";
        for one in &self.0 {
            if one.part != part {
                part = one.part;
                let _fits = writeln!(text, "{part}");
            }
            let mark = match one.level {
                Severity::Ok => "  ok  ",
                Severity::Unknown => "  ?   ",
                Severity::Warn => "  warn",
                Severity::Fail => "  FAIL",
            };
            let source = match one.source {
                Evidence::Measured => "",
                Evidence::Probed => " (probed)",
                Evidence::Manifest => " (by the manifest)",
                Evidence::Config => " (by the config)",
                Evidence::Assumed => " (assumed; --probe finds out)",
            };
            let _fits = writeln!(text, "{mark}  {:<12} {}{source}", one.what, one.says);
            if let Some(todo) = &one.todo {
                let _fits = writeln!(text, "        {:<12} -> {todo}", "");
            }
        }
        let end = match (self.count(Severity::Fail), self.count(Severity::Warn)) {
            (0, 0) if self.count(Severity::Unknown) > 0 => {
                "nothing wrong was seen; --probe sees more".to_owned()
            }
            (0, 0) => "all is well".to_owned(),
            (0, warned) => format!("usable; {warned} to look at"),
            (failed, _) => format!("{failed} failed: do what stands behind ->"),
        };
        text + "\n" + &end + "\n"
    }

    /// One JSON object, with a last line break.
    pub fn json(&self) -> String {
        let findings = serde_json::json!({ "healthy": self.healthy(), "findings": self.0 });
        format!("{findings}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_says_what_to_do() {
        let mut report = Diagnosis::default();
        report.add("store", "reachable", Evidence::Measured, "yes");
        assert!(report.healthy() && report.text().contains("all is well"));
        report.add("backend", "stats", Evidence::Assumed, "who knows");
        report.unknown();
        let text = report.text();
        assert!(
            text.contains("  ?     stats ") && !text.contains("all is well"),
            "{text}"
        );
        report.0.pop();
        report.add("backend", "requeue", Evidence::Assumed, "burns");
        report.but(Severity::Warn, "probe it");
        assert!(report.healthy() && report.text().contains("1 to look at"));
        report.add("backend", "stats", Evidence::Probed, "lies");
        report.but(Severity::Fail, "mend it");
        assert!(!report.healthy());
        let text = report.text();
        let wanted = "  FAIL  stats        lies (probed)\n                     -> mend it\n";
        assert!(text.contains(wanted), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["findings"][2]["do"], "mend it");
        assert_eq!(json["findings"][2]["source"], "probed");
    }
}
