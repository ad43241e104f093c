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
    let (report, status) = doctor(&of(&path, ""), &[]);
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(says(&report, "writes"), "allowed", "{report}");
    assert!(says(&report, "clock").starts_with("the same"), "{report}");
    assert!(says(&report, "round trip").contains("p99"), "{report}");
    drop(sidecar);
    let fails = |config: &str, words: &[&str], todo: &str| {
        let (report, status) = doctor(config, &[]);
        assert_eq!(status, Some(1), "{report}");
        let why = says(&report, "reachable");
        for word in words {
            assert!(why.contains(word), "{word}: {why}");
        }
        let found = report["findings"].as_array().unwrap().iter();
        for one in found.filter(|one| one["part"] == "store" && one["level"] == "fail") {
            assert!(one["do"].as_str().unwrap().contains(todo), "{one}");
        }
    };
    let other = of(&path, "namespace = \"other\"\n");
    fails(
        &other,
        &["limits.db", "it is of the namespace"],
        "the namespace",
    );
    let text = dir.path().join("text.db");
    std::fs::write(
        &text,
        "no database, but longer than the head of one would be".repeat(9),
    )
    .unwrap();
    fails(
        &of(&text, ""),
        &["text.db", "not a database"],
        "move that file away",
    );
    let folder = of(dir.path(), "");
    fails(&folder, &["that is a folder"], "name a file in that folder");
    fails(
        &of(&dir.path().join("no/limits.db"), ""),
        &["folder is not there"],
        "make that folder",
    );
}

/// A disk of the test's own that can be filled; `None`: this user may not make one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<SmallDisk> {
        let disk = SmallDisk(tempfile::tempdir().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]);
        let done = mount.arg(disk.0.path()).output().ok()?;
        done.status.success().then_some(disk)
    }

    /// Writes until there is no room.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.path().join("filler")).unwrap();
        while filler.write_all(&[0; 1_024]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Where it was not made, there is nothing to take away.
        drop(Command::new("umount").arg(self.0.path()).output());
    }
}

/// On a full disk reading goes on. `doctor` says what is wrong, with its status too: where a sidecar runs and has lost
/// its store, and where none does.
#[test]
fn a_full_disk_is_a_failure_that_is_named() {
    let Some(disk) = SmallDisk::new() else {
        eprintln!("not seen: this user cannot make a disk of its own");
        return;
    };
    let backend = Backend::start(Lax::redis());
    let limits = "[[policy]]\nname = \"a\"\nmatch = { queue = \"q\" }\nconcurrency = 2\n";
    let path = disk.0.path().join("limits.db");
    let store = format!("[store]\nurl = \"sqlite:{}\"\n{limits}", path.display());
    let sidecar = Sidecar::run(&config(backend.addr, "", &store));
    let asks = format!("admin_listen = \"{}\"", sidecar.admin);
    let asks = config(backend.addr, &asks, &store);
    wait("it works", || doctor(&asks, &[]).1 == Some(0));
    disk.fill();
    for _ in 0..20 {
        enqueue(backend.addr, "q", json!({}));
    }
    wait("it is lost", || {
        fetch(sidecar.data, "q", 1, "w");
        sidecar.metric("ojs_throttle_store_up") == 0.0
    });
    // It comes and goes: a write succeeds where SQLite finds room in its own file.
    let told = until("the sidecar says so", || {
        fetch(sidecar.data, "q", 1, "w");
        let (report, status) = doctor(&asks, &[]);
        assert_eq!(status, Some(1), "{report}");
        let mut all = report["findings"].as_array().unwrap().iter();
        let is_it = |one: &&Value| {
            one["part"] == "sidecar" && one["says"].as_str().unwrap().contains("does not answer")
        };
        let one = all.find(is_it)?;
        assert_eq!(one["level"], "fail", "{report}");
        Some(one.to_string())
    });
    assert!(told.contains("disk is full"), "{told}");
    assert!(
        !told.contains("`ojs-throttle doctor`"),
        "it is the doctor: {told}"
    );
    drop(sidecar);
    disk.fill();
    let (report, status) = doctor(&asks, &[]);
    assert_eq!(status, Some(1), "{report}");
    // What SQLite has of the disk may do for one more write.
    let file = finding(&report, "store", "file").to_string();
    assert!(file.contains("make room"), "{file}");
    // Before there is a file, too.
    std::fs::remove_file(&path).unwrap();
    disk.fill();
    let (report, status) = doctor(&asks, &[]);
    assert_eq!(status, Some(1), "{report}");
    let file = finding(&report, "store", "file").to_string();
    assert!(file.contains("make room"), "{file}");
}
