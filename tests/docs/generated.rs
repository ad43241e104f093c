//! Chapters that are made of what the program declares. `UPDATE=1` writes them.

use ojs_throttle::metrics;

use super::page::{entries_must_be, entry};

fn quote(name: &str) -> String {
    format!("`{name}`")
}

fn list(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| quote(name))
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn the_manual_has_every_metric_as_it_is_declared() {
    let mut text = String::new();
    for series in metrics::SERIES {
        let base = series.name.trim_end_matches("_total");
        let unit = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| base.ends_with(unit));
        let kind = match series.kind {
            "counter" => "Counter",
            "gauge" => "Gauge",
            _ => "Histogram",
        };
        let of = unit.map(|unit| format!(" of {unit}")).unwrap_or_default();
        let by = match series.labels {
            [] => String::new(),
            labels => format!(", by {}", list(labels)),
        };
        let told = format!("{kind}{of}{by}. {}", series.help);
        text += &entry(&format!("## `{}`", series.name), &told);
    }
    entries_must_be("metrics", &format!("{}\n", text.trim_end()));
}

/// Who only tests must never write: a page that differs is a failure there.
#[test]
fn what_runs_the_tests_never_updates() {
    let run = super::read("tests/run.sh");
    assert!(run.lines().any(|line| line == "unset UPDATE"));
    assert!(!super::read(".ci/run").contains("UPDATE"));
}
