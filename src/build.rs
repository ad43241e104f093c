//! Finds out what `--version` names as the commit, for builds that are optimised: of each other build Cargo would have to
//! make the whole again at every commit.

use std::path::Path;
use std::process::Command;

/// The variable that whoever builds may say it by, as packages and images do.
const SAID: &str = "OJS_THROTTLE_BUILD";

/// What the program is made of.
const SOURCES: [&str; 4] = ["src", "Cargo.toml", "Cargo.lock", "config.example.toml"];

/// What Git says.
fn git(args: &[&str]) -> Option<String> {
    let done = Command::new("git").args(args).output().ok()?;
    let said = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| said.trim().to_owned())
}

/// The commit; nothing where this is no checkout, also where it lies within another one.
fn commit() -> Option<String> {
    let root = std::fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if root != std::env::current_dir().ok()?.canonicalize().ok()? {
        return None;
    }
    // Both are written when another commit is looked at, and the second at each new one.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let of = git(&["log", "-1", "--format=%h of %cs"])?;
    let changed = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    Some(of + if changed.is_empty() { "" } else { ", changed" })
}

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    println!("cargo::rerun-if-env-changed={SAID}");
    let is_optimised = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_optimised || std::env::var_os(SAID).is_some() {
        return;
    }
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Some(commit) = commit() {
        println!("cargo::rustc-env={SAID}={commit}, release");
    }
}
