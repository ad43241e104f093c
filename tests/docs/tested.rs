//! What the chapters `tested` and `faults` say of tests: each one that they name is there, and so are as many as they say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{MANUAL, files, quoted, read};

/// The names of the test functions and of the scenarios of a source.
fn tests(text: &str) -> Vec<String> {
    let marked = ["#[test]", "#[tokio::test"];
    let mut is_next = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let name = line.split_once("fn ");
        match name.and_then(|(_, rest)| rest.split('(').next()) {
            Some(name) if is_next || line.ends_with("(ctx: Ctx) -> Judge {") => {
                found.push(name.to_owned());
                is_next = false;
            }
            _ => is_next |= marked.iter().any(|mark| line.starts_with(mark)),
        }
    }
    found
}

#[test]
fn each_test_that_is_named_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "tests"].map(|name| files(&root.join(name)));
    let sources = folders.iter().flatten();
    let sources = sources.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let all = sources.flat_map(|path| tests(&fs::read_to_string(path).unwrap()));
    let all: Vec<String> = all.collect();
    let names: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let faults = read(&format!("{MANUAL}/faults.md"));
    let named = faults.split("\n- ").skip(1).map(|item| {
        let text = item.split("\n\n").next().unwrap_or_default();
        let last = quoted(text).last();
        last.unwrap_or_else(|| panic!("no test: {item}"))
    });
    let named: BTreeSet<&str> = named.collect();
    assert!(named.len() > 100);
    let gone: Vec<&&str> = named.difference(&names).collect();
    let none: [&&str; 0] = [];
    assert_eq!(gone, none, "chapter `faults` names what are no tests");

    let tested = read(&format!("{MANUAL}/tested.md"));
    let (_, promises) = tested.split_once("## Each promise\n").unwrap();
    let (promises, _) = promises.split_once("\n## ").unwrap();
    let modules = tested
        .lines()
        .flat_map(quoted)
        .filter(|name| name.contains("::") && !name.contains(' '));
    let modules = modules.chain(
        promises
            .lines()
            .filter(|line| !line.starts_with("The"))
            .flat_map(quoted)
            .filter(|name| !name.contains([' ', '-'])),
    );
    for module in modules {
        let file = root.join("tests").join(module.replace("::", "/"));
        let is_there = file.is_dir() || file.with_extension("rs").exists();
        assert!(is_there, "{module} of chapter `tested` is no module");
    }
    let (thousands, rest) = (all.len() / 1_000, all.len() % 1_000 / 100 * 100);
    let said = format!("more than {thousands},{rest:03} test functions");
    assert!(tested.contains(&said), "chapter `tested`: {said}");
}

/// The faults that a soak must find are a patch: it must apply to the sources of now.
#[test]
fn the_planted_faults_apply() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut git = std::process::Command::new("git");
    git.current_dir(root)
        .args(["apply", "--check", "tests/soak/planted.patch"]);
    // A copy within another repository is none of that one.
    git.env("GIT_CEILING_DIRECTORIES", root.parent().unwrap());
    let said = git.output().unwrap();
    let why = String::from_utf8_lossy(&said.stderr);
    let is_fit = said.status.success();
    assert!(is_fit, "mend tests/soak/planted.patch: {why}");
}
