//! What `tests/run.sh` does on a machine that lacks what tests use: it leaves them out by name, and the rest ends green. Of
//! Redis and Postgres somebody must have said so.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// What the script needs of any machine.
const TOOLS: [&str; 17] = [
    "awk", "bash", "cat", "cp", "dirname", "env", "grep", "id", "mkdir", "mktemp", "mv", "nice",
    "nproc", "rm", "sed", "timeout", "tr",
];
/// Every call passes three tests, and lists one.
const CARGO: &str = r#"echo "cargo $*" >>"$CALLED"
case "$*" in *--list*) echo "a: test" ;; *--no-run*) ;; *) echo "test result: ok. 3 passed; 0 failed; 0 ignored" ;; esac"#;
const REFUSED: &str = r#"echo "${0##*/} $*" >>"$CALLED"; exit 1"#;

/// Runs the script in a folder with no more than that, to a good end; what it says, and what it called.
fn run(root: &Path, args: &[&str]) -> (String, String) {
    let (is_green, said, called) = ran(root, args);
    assert!(is_green, "{said}");
    (said, called)
}

/// The same, and whether the end was good.
fn ran(root: &Path, args: &[&str]) -> (bool, String, String) {
    let (project, bin, called) = (root.join("project"), root.join("bin"), root.join("called"));
    fs::create_dir_all(project.join("tests")).unwrap();
    fs::write(project.join("tests/run.sh"), include_str!("../run.sh")).unwrap();
    if fs::create_dir(&bin).is_ok() {
        for tool in TOOLS {
            let path = std::env::var("PATH").unwrap();
            let found = path.split(':').map(|folder| Path::new(folder).join(tool));
            let found = found.into_iter().find(|file| file.exists()).unwrap();
            symlink(found, bin.join(tool)).unwrap();
        }
        for (name, does) in [
            ("cargo", CARGO),
            ("cc", ""),
            ("openssl", ""),
            ("curl", ""),
            ("apt-get", REFUSED),
            ("git", REFUSED),
            ("python3", REFUSED),
            ("sudo", REFUSED),
        ] {
            fs::write(bin.join(name), format!("#!/bin/bash\n{does}\n")).unwrap();
            let runs = fs::Permissions::from_mode(0o755);
            fs::set_permissions(bin.join(name), runs).unwrap();
        }
    }
    let _none_yet = fs::remove_file(&called);
    let mut bash = Command::new(bin.join("bash"));
    bash.arg("tests/run.sh").args(args).current_dir(&project);
    bash.env_clear()
        .env("PATH", &bin)
        .env("HOME", root)
        .env("CALLED", &called);
    let done = bash.output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let erred = String::from_utf8_lossy(&done.stderr);
    let called = fs::read_to_string(called).unwrap();
    (done.status.success(), format!("{erred}{said}"), called)
}

/// The calls that ran tests of the program that has almost all of them.
fn tested(called: &str) -> Vec<&str> {
    let of_it = |line: &&str| line.contains("--test it") && !line.contains("--list");
    called.lines().filter(of_it).collect()
}

#[test]
fn what_is_missing_is_left_out_by_name() {
    let root = tempfile::tempdir().unwrap();
    let (is_green, said, called) = ran(root.path(), &[]);
    assert!(!is_green && tested(&called).is_empty(), "{said}");
    let left_out = "without its tests: --without redis";
    assert!(said.contains(left_out), "{said}");
    assert_eq!(said.lines().last(), Some("0 passed, 1 failed"), "{said}");
    let (said, called) = run(root.path(), &["--nightly", "--without", "redis,postgres"]);
    assert!(!called.contains("--skip sdks::"), "{called}");
    for service in ["redis", "validators", "chromium", "official"] {
        let missing = match service {
            "redis" => "--without",
            _ => "it is missing, and ",
        };
        let told = format!("#   {service}: {missing}");
        assert!(said.contains(&told), "{told}: {said}");
        let skipped = format!("--skip on_{service}");
        let tested = tested(&called);
        assert_eq!(tested.len(), 4, "{called}");
        assert!(
            tested.iter().all(|call| call.contains(&skipped)),
            "{called}"
        );
    }
    assert!(called.contains("git clone -q "), "{called}");
    assert!(called.contains("/openjobspec/ojs-conformance "), "{called}");
    // Units and documentation beside the four.
    assert_eq!(said.lines().last(), Some("18 passed, 0 failed"), "{said}");

    let (said, called) = run(root.path(), &["--without", "redis,postgres,official"]);
    assert!(said.contains("#   official: --without\n"), "{said}");
    assert!(!called.contains("git clone"), "{called}");
    // What is dear is left to a night, and what only it needs is not fetched.
    assert!(said.contains("\n# left to a night: 1 tests"), "{said}");
    assert!(!said.contains("chromium"), "{said}");
    let by_day = |call: &&str| call.contains("--skip sdks::");
    assert!(tested(&called).iter().all(by_day), "{called}");
}

#[test]
fn what_lies_beside_is_taken() {
    let root = tempfile::tempdir().unwrap();
    let beside = root.path().join("shared");
    fs::create_dir_all(beside.join("conformance/suites")).unwrap();
    fs::create_dir(beside.join("spec")).unwrap();
    fs::write(beside.join("conformance/suites/case.json"), "{}").unwrap();
    fs::write(beside.join("spec/ojs-website-rate-limiting.md"), "").unwrap();
    let (said, called) = run(root.path(), &["--only", "official"]);
    assert!(!said.contains("left out"), "{said}");
    assert!(
        !called.contains("git ") && !called.contains("apt-get "),
        "{called}"
    );
    let [tested] = tested(&called)[..] else {
        panic!("{called}")
    };
    assert!(tested.ends_with("--test it -- on_official"), "{tested}");
    assert_eq!(said.lines().last(), Some("3 passed, 0 failed"), "{said}");
    let taken = root.path().join("project/target/tmp/official");
    assert!(taken.join("suites/case.json").exists());
}
