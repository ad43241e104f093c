//! The schemas and the Dockerfile before validators that others wrote: jsonschema, openapi-spec-validator and hadolint.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ojs_throttle::ship::{OPENAPI, SCHEMA};

use crate::servers::only_on;

/// Says of each file whether the schema takes it.
const VALIDATE: &str = "
import json, sys, tomllib
from jsonschema import Draft202012Validator
schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
for path in sys.argv[2:]:
    try:
        file = tomllib.load(open(path, 'rb'))
    except Exception:
        print(path, 'broken', sep='\\t')
        continue
    wrong = [error.json_path + ' ' + error.message for error in validator.iter_errors(file)]
    print(path, 'refused ' + ' | '.join(wrong) if wrong else 'taken', sep='\\t')
";

const OPENAPI_IS_SOUND: &str = "
import json, sys
from openapi_spec_validator import OpenAPIV31SpecValidator
OpenAPIV31SpecValidator(json.load(open(sys.argv[1]))).validate()
";

/// Where the validators are.
fn validators() -> PathBuf {
    only_on("validators");
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("validators");
    let missing =
        "the validators are missing: bash tests/run.sh fetches them, or --without validators";
    assert!(packages.join("bin/hadolint").exists(), "{missing}");
    packages
}

/// Runs Python over a document, and gives what it prints.
fn python(script: &str, document: &str, files: &[PathBuf]) -> String {
    let packages = validators();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), document).unwrap();
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", packages).arg("-c").arg(script);
    let done = python.arg(file.path()).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    String::from_utf8(done.stdout).unwrap()
}

fn folder(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .collect()
}

#[test]
fn the_schema_takes_what_is_right_and_refuses_what_is_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = folder("tests/config/valid");
    files.extend(folder("tests/config/invalid"));
    files.push(root.join("config.example.toml"));
    let said = python(VALIDATE, SCHEMA, &files);
    let said: BTreeMap<&str, &str> = said
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .collect();
    assert_eq!(said.len(), files.len());
    let mut refused = 0;
    for (file, verdict) in said {
        let file = Path::new(file);
        let told = fs::read_to_string(file.with_extension("txt")).unwrap_or_default();
        let is_wrong = told.lines().any(|line| {
            line.starts_with("error: unknown ")
                || line.starts_with("error: ")
                    && line.contains("` must be ")
                    && line.contains(", not ")
                || line.starts_with("error: ") && line.contains("` cannot be \"")
        });
        match file.parent().unwrap().ends_with("invalid") {
            true if is_wrong => {
                assert_ne!(verdict, "taken", "{}", file.display());
                refused += usize::from(verdict.starts_with("refused"));
            }
            true => {}
            false => assert_eq!(verdict, "taken", "{}", file.display()),
        }
    }
    assert!(refused > 8, "only {refused} wrong files");
}

/// What an editor shows is about the word that is wrong, at its place, and nothing else.
#[test]
fn a_mistake_is_told_once() {
    let policy = "[[policy]]\nname = \"a\"\nconcurrency = 1\n";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.toml");
    let rate = "{ limit = 1, period = \"1s\", brust = 2 }";
    let rates = format!("rate = [{rate}]");
    let rate = format!("rate = {rate}");
    for (line, at, told) in [
        ("concurency = 1", "", "'concurency' was unexpected"),
        (&rate, ".rate", "'brust' was unexpected"),
        (&rates, ".rate[0]", "'brust' was unexpected"),
        (
            "match = { queue = [1] }",
            ".match.queue[0]",
            "1 is not of type 'string'",
        ),
        ("match = { queue = 1 }", ".match.queue", "1 is not of type"),
        (
            "feedback = { honor = [\"header\"] }",
            ".feedback.honor[0]",
            "'header' is not one of",
        ),
        (
            "cost = { form = \"meta.n\" }",
            ".cost",
            "'form' was unexpected",
        ),
    ] {
        let third = policy.replace("concurrency = 1", line);
        fs::write(&path, policy.repeat(2) + &third).unwrap();
        let said = python(VALIDATE, SCHEMA, std::slice::from_ref(&path));
        let (_, said) = said.trim_end().split_once('\t').unwrap();
        let place = format!("refused $.policy[2]{at} ");
        assert!(said.starts_with(&place), "{said}");
        assert!(said.contains(told) && !said.contains(" | "), "{said}");
    }
}

#[test]
fn the_openapi_document_is_sound() {
    python(OPENAPI_IS_SOUND, OPENAPI, &[]);
}

#[test]
fn the_dockerfile_is_sound() {
    let mut hadolint = Command::new(validators().join("bin/hadolint"));
    let dockerfile = Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile");
    let done = hadolint.arg(dockerfile).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
}
