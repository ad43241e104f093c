//! `doctor` before a SQLite file: none yet, in use, somebody else's, in a folder that is not there.

use super::doctor::{doctor, finding, is_used, of_store};
use super::prelude::*;

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
    for (what, says) in [("version", "SQLite 3."), ("data", "none yet")] {
        assert!(of_store(&report, what).starts_with(says), "{report}");
    }
    assert!(!path.exists(), "it only reads");
    let sidecar = Sidecar::run(&of(&path, ""));
    is_used(&of(&path, ""), &sidecar);
    let (report, status) = doctor(&of(&path, ""), &[]);
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(of_store(&report, "writes"), "allowed", "{report}");
    has(of_store(&report, "clock"), "the same");
    has(of_store(&report, "round trip"), "p99");
    drop(sidecar);
    let fails = |config: &str, words: &[&str], todo: &str| {
        let (report, status) = doctor(config, &[]);
        assert_eq!(status, Some(1), "{report}");
        for word in words {
            has(of_store(&report, "reachable"), word);
        }
        let found = report["findings"].as_array().unwrap().iter();
        for one in found.filter(|one| one["part"] == "store" && one["level"] == "fail") {
            assert!(one["do"].as_str().unwrap().contains(todo), "{one}");
        }
    };
    let other = of(&path, "namespace = \"other\"\n");
    let words = ["limits.db", "it is of the namespace"];
    fails(&other, &words, "the namespace");
    let text = dir.path().join("text.db");
    let long = "no database, but longer than the head of one would be";
    std::fs::write(&text, long.repeat(9)).unwrap();
    let words = ["text.db", "not a database"];
    fails(&of(&text, ""), &words, "move that file away");
    let folder = of(dir.path(), "");
    fails(&folder, &["that is a folder"], "name a file in that folder");
    let nowhere = of(&dir.path().join("no/limits.db"), "");
    fails(&nowhere, &["folder is not there"], "make that folder");
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
    has(&told, "disk is full");
    let names_itself = told.contains("`ojs-throttle doctor`");
    assert!(!names_itself, "it is the doctor: {told}");
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
