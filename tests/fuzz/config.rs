//! Config files: whatever stands in one, it is accepted, or everything that is wrong is said.

use std::fs;
use std::path::Path;

use ojs_throttle::config::Settings;

use super::rig::try_cases;

/// All files of the tests and the example.
fn seeds() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["tests/config/valid", "tests/config/invalid"].map(|folder| root.join(folder));
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.push(root.join("config.example.toml"));
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "toml"));
    paths.sort();
    // Comments alone make files long.
    let text = |path| {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let lines = text.lines().map(|line| line.trim_start_matches("# "));
        lines.collect::<Vec<_>>().join("\n")
    };
    paths.iter().map(text).collect()
}

const WORDS: [&str; 40] = [
    "[[policy]]\n",
    "[[queue]]\n",
    "[[egress]]\n",
    "[[egress.budget]]\n",
    "[[tenant]]\n",
    "[server]\n",
    "[store]\n",
    "key = ",
    "{",
    "}",
    "{{",
    "{meta.tenant_id}",
    "{header.X-T}",
    "{path.0}",
    "{json.a.b}",
    "{args.0}",
    "{host}",
    "{queue}",
    "{type}",
    "{meta.}",
    "{path.99999999999}",
    "\"",
    "'''",
    "\"\"\"",
    "=",
    "\n",
    "[",
    "]",
    ",",
    "\u{0}",
    "\u{feff}",
    "\u{10ffff}",
    "${X}",
    "file:/dev/null",
    "P1M",
    "-1",
    "1e999",
    "0x",
    "*",
    "inf",
];

#[test]
fn config_files_are_read_or_refused() {
    let seeds = seeds();
    let seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
    try_cases(|_, chance, told| {
        let seed = chance.pick(&seeds);
        // A part of a file, so that what is changed is seldom hidden behind what is wrong before.
        let lines: Vec<&str> = seed.lines().collect();
        let from = chance.below(lines.len());
        let until = (from + 1 + chance.below(40)).min(lines.len());
        let mut text = lines[from..until].join("\n");
        if !text.contains("[server]") {
            text.insert_str(0, "[server]\nupstream = \"http://127.0.0.1:9090\"\n");
        }
        let bytes = chance.change(text.as_bytes(), &WORDS, &seeds);
        told.trying(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        match Settings::parse(&text, "throttle.toml") {
            Ok(settings) => drop(settings.warnings.to_string()),
            Err(report) => assert!(report.errors() > 0 && !report.to_string().is_empty()),
        }
    });
}
