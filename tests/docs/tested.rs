//! What the chapters `tested` and `faults` say of tests: each one that they name is there, and so are as many as they say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{MANUAL, quoted, read};

/// All sources of a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let all = entries.flat_map(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        }
    });
    all.filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}

/// The names of the test functions and of the scenarios of a source.
fn tests(text: &str) -> Vec<String> {
    let marked = ["#[test]", "#[tokio::test"];
    let mut is_next = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let name = line
            .split_once("fn ")
            .and_then(|(_, rest)| rest.split('(').next());
        match name {
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
    let folders = ["src", "tests"].map(|name| sources(&root.join(name)));
    let sources = folders.concat();
    let all: Vec<String> = sources
        .iter()
        .flat_map(|path| tests(&fs::read_to_string(path).unwrap()))
        .collect();
    let names: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let faults = read(&format!("{MANUAL}/faults.md"));
    let named: Vec<&str> = faults
        .split("\n- ")
        .skip(1)
        .map(|item| {
            let text = item.split("\n\n").next().unwrap_or_default();
            quoted(text)
                .last()
                .unwrap_or_else(|| panic!("no test: {item}"))
        })
        .collect();
    assert!(named.len() > 100);
    let gone: Vec<&&str> = named
        .iter()
        .filter(|name| !names.contains(**name))
        .collect();
    assert!(
        gone.is_empty(),
        "chapter `faults` names {gone:?}, which are no tests"
    );

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
        assert!(
            is_there,
            "chapter `tested` names {module}, which is no module of tests"
        );
    }
    let said = format!(
        "more than {},{:03} test functions",
        all.len() / 1_000,
        all.len() % 1_000 / 100 * 100
    );
    assert!(
        tested.contains(&said),
        "chapter `tested` says how many tests there are: {said}"
    );
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
    assert!(
        said.status.success(),
        "mend tests/soak/planted.patch: {why}"
    );
}
