//! `doctor` before a SQLite file: none yet, in use, somebody else's, in a folder that is not there.

use super::doctor::{doctor, finding};
use super::prelude::*;

fn says(report: &Value, what: &str) -> String {
    let one = finding(report, "store", what);
    one["says"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_from_its_first_day_to_its_last() {
    let backend = Backend::start(Lax::redis());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits.db");
    let of = |path: &std::path::Path, more: &str| {
        let rest = format!("[store]\nurl = \"sqlite:{}\"\n{more}", path.display());
        config(backend.addr, "", &rest)
    };
    let (report, status) = doctor(&of(&path, ""), &[]);
    assert_eq!(status, Some(0), "{report}");
    assert!(
        says(&report, "version").starts_with("SQLite 3."),
        "{report}"
    );
    assert!(says(&report, "data").starts_with("none yet"), "{report}");
    assert!(!path.exists(), "it only reads");
    let sidecar = Sidecar::run(&of(&path, ""));
    until("it says that it lives", || {
        let (report, status) = doctor(&of(&path, ""), &[]);
        assert_eq!(status, Some(0), "{report}");
        (says(&report, "data") == "ours, 1 live sidecar").then_some(())
    });
    assert!(sidecar.metric("ojs_throttle_siblings") < 0.5);
    let (report, status) = doctor(&of(&path, ""), &["--probe"]);
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(says(&report, "writes"), "allowed", "{report}");
    assert!(says(&report, "clock").starts_with("the same"), "{report}");
    assert!(says(&report, "round trip").contains("p99"), "{report}");
    drop(sidecar);
    let fails = |config: &str, words: &[&str]| {
        let (report, status) = doctor(config, &[]);
        assert_eq!(status, Some(1), "{report}");
        let why = says(&report, "reachable");
        for word in words {
            assert!(why.contains(word), "{word}: {why}");
        }
    };
    let other = of(&path, "namespace = \"other\"\n");
    fails(&other, &["limits.db", "it is of the namespace"]);
    let text = dir.path().join("text.db");
    std::fs::write(
        &text,
        "no database, but longer than the head of one would be".repeat(9),
    )
    .unwrap();
    fails(&of(&text, ""), &["text.db", "not a database"]);
    fails(
        &of(&dir.path().join("no/limits.db"), ""),
        &["folder is not there"],
    );
}
