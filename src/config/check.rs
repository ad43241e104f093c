//! `ojs-throttle check`: what a file says, without starting anything.

use std::collections::BTreeSet;
use std::path::Path;

use super::Settings;

/// What `check` prints, and how the process ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// The text to print, without a last line break.
    pub text: String,
    /// 0, or 78 (`EX_CONFIG`) when the file cannot be used.
    pub status: u8,
}

/// Reads the file and reports on it, with colours for a terminal if asked.
pub fn check(path: &Path, colour: bool) -> Checked {
    match Settings::load(path) {
        Ok(settings) => {
            let count = |number: usize, one: &str, more: &str| {
                format!("{number} {}", if number == 1 { one } else { more })
            };
            // One that takes its numbers from several others is there once for each.
            let policies = settings.policies.policies().iter();
            let names: BTreeSet<_> = policies.map(|policy| &policy.name).collect();
            let policies = count(names.len(), "policy", "policies");
            let limited = settings.policies.queues().iter();
            let bounded = settings.bounds.entries().iter();
            let names: BTreeSet<_> = (limited.map(|queue| queue.name.as_str()))
                .chain(bounded.map(|(name, _)| name.as_str()))
                .collect();
            let queues = count(names.len(), "queue", "queues");
            let ok = format!("ok: {policies}, {queues}");
            let text = match settings.warnings.warnings() {
                0 => ok,
                number => {
                    let warnings = settings.warnings.render(colour);
                    format!(
                        "{warnings}\n\n{ok}, {}",
                        count(number, "warning", "warnings")
                    )
                }
            };
            Checked { text, status: 0 }
        }
        Err(report) => {
            let problems = if report.errors() == 1 {
                "problem"
            } else {
                "problems"
            };
            let text = format!(
                "{}\n\n{} {problems} in {}",
                report.render(colour),
                report.errors(),
                path.display()
            );
            Checked { text, status: 78 }
        }
    }
}
