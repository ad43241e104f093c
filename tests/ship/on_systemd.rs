//! What systemd says of the unit.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::files::{INSTALLED, example};
use crate::servers::only_on;
use crate::sidecar::process::program as built;

/// Runs `systemd-analyze` over the unit, which starts the program that was built here.
fn analyze(arguments: &[&str]) -> String {
    only_on("systemd");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ojs-throttle");
    symlink(built().get_program(), &program).unwrap();
    let unit = folder.path().join("ojs-throttle.service");
    let text = example("systemd").replace(INSTALLED, program.to_str().unwrap());
    fs::write(&unit, text).unwrap();
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).arg(&unit);
    let done = command.output().expect(
        "systemd-analyze is missing: apt install systemd, or tests/run.sh --without systemd",
    );
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {said}");
    said.into_owned()
}

#[test]
fn the_unit_is_sound() {
    let said = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
    assert_eq!(said, "");
}

#[test]
fn the_unit_may_do_little() {
    // Ten times the exposure in its words: "OK" ends at 4.9, and most services are at 9.6.
    analyze(&["security", "--offline=true", "--threshold=20", "--no-pager"]);
}
