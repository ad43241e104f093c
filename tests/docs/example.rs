//! What `config.example.toml` says is shown by tests: `example.txt` names them for each sentence. So a sentence that is
//! not so any more is a test that fails, and a new one is nothing but words until a test is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Each sentence on a line of its own, and indented below it the tests that show it. Where there is nothing to show, it
/// says in brackets what the sentence is instead. A test of the sources begins with `src::`.
const SHOWN: &str = include_str!("example.txt");

/// The sentences of the comments. Each entry of a list, such as `"share"  goes on …`, begins one.
fn sentences(example: &str) -> BTreeSet<String> {
    let (mut all, mut block, mut in_list) = (BTreeSet::new(), String::new(), false);
    for line in example.lines().chain([""]) {
        let words = line.strip_prefix('#').filter(|words| is_said(words));
        let Some(words) = words else {
            let block = std::mem::take(&mut block);
            all.extend(block.lines().flat_map(split));
            continue;
        };
        let indent = words.len() - words.trim_start().len();
        // An entry has three spaces, and more of it has more.
        if indent == 3 || in_list && indent < 3 {
            block.push('\n');
        }
        in_list = indent >= 3;
        block += &format!(" {}", words.trim());
    }
    all
}

/// Whether a comment says something, and is neither a setting nor a line between parts.
fn is_said(words: &str) -> bool {
    let setting = words.strip_prefix(' ').unwrap_or(words).split_once(" = ");
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_setting = setting.is_some_and(|(name, _)| is_name(name));
    // An editor's line is no sentence.
    !is_setting
        && !words.starts_with(":schema")
        && !words.starts_with(" ---")
        && !words.trim().is_empty()
}

/// The sentences of a paragraph, with one space between words.
fn split(paragraph: &str) -> Vec<String> {
    let (mut all, mut sentence) = (Vec::new(), Vec::new());
    for word in paragraph.split_whitespace() {
        let begins = word.starts_with(|c: char| c.is_uppercase() || "`\"$".contains(c));
        if begins
            && sentence
                .last()
                .is_some_and(|last: &&str| last.ends_with('.'))
        {
            all.push(std::mem::take(&mut sentence).join(" "));
        }
        sentence.push(word);
    }
    all.push(sentence.join(" "));
    all.retain(|sentence| !sentence.is_empty());
    all
}

/// What is listed for each sentence.
fn listed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let (mut all, mut sentence) = (BTreeMap::new(), "");
    for line in SHOWN.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("    ") {
            Some(shown_by) => all.entry(sentence).or_insert_with(Vec::new).push(shown_by),
            None => sentence = line,
        }
    }
    all
}

/// The tests of this program.
fn tests_of_this_program() -> BTreeSet<String> {
    let mut list = Command::new(std::env::current_exe().unwrap());
    let list = list.arg("--list").output().unwrap().stdout;
    let list = String::from_utf8(list).unwrap();
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    tests.map(str::to_owned).collect()
}

/// The tests in the sources, each with the modules that it is in.
fn tests_of_the_sources(folder: &Path, all: &mut BTreeSet<(String, Vec<String>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_of_the_sources(&path, all);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let modules = path.with_extension("");
            let modules = modules.iter().map(|part| part.to_str().unwrap().to_owned());
            let modules: Vec<String> = modules.collect();
            let source = fs::read_to_string(&path).unwrap();
            let mut lines = source.lines().map(str::trim);
            while lines.any(|line| line == "#[test]" || line.starts_with("#[tokio::test")) {
                let name = lines.find_map(|line| line.split_once("fn ")?.1.split('(').next());
                all.insert((name.unwrap().to_owned(), modules.clone()));
            }
        }
    }
}

#[test]
fn each_sentence_of_the_example_names_the_test_that_shows_it() {
    let said = sentences(&super::read("config.example.toml"));
    let listed = listed();
    let mut wrong = Vec::new();
    for sentence in &said {
        if !listed.contains_key(&**sentence) {
            wrong.push(format!("nothing shows that it is so: {sentence}"));
        }
    }
    let (ours, mut units) = (tests_of_this_program(), BTreeSet::new());
    tests_of_the_sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut units,
    );
    assert!(ours.len() > 1_000 && units.len() > 200 && said.len() > 200);
    let is_unit = |path: &str| {
        let (modules, name) = path.rsplit_once("::").unwrap();
        let is_in = |at: &[String]| {
            let mut modules = modules.split("::");
            modules.all(|module| at.iter().any(|part| part == module))
        };
        units.iter().any(|(unit, at)| unit == name && is_in(at))
    };
    for (sentence, shown_by) in &listed {
        if !said.contains(*sentence) {
            wrong.push(format!("the example does not say so: {sentence}"));
        }
        for test in shown_by {
            let is_reason = test.starts_with('(') && test.ends_with(')');
            let is_there = match test.strip_prefix("src::") {
                Some(unit) => is_unit(unit),
                None => ours.contains(*test),
            };
            if !is_reason && !is_there {
                wrong.push(format!("there is no test {test}: {sentence}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "tests/docs/example.txt:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn sentences_are_told_apart() {
    let example = "# One. Two of\n# it: 1.5 or\n#   \"a\"  is a,\n#        long. \"b\"\n#\n# Three.\n# name = 1\nname = 2\n";
    let all = [
        "One.",
        "Two of it: 1.5 or",
        "\"a\" is a, long.",
        "\"b\"",
        "Three.",
    ];
    assert_eq!(sentences(example), all.map(str::to_owned).into());
}
