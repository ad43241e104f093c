//! What the README says is so: its settings load, its tables have what there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};
use http::StatusCode;
use http_body_util::BodyExt;
use ojs_throttle::cli::Cli;
use ojs_throttle::config::{self, Diff, Settings};
use ojs_throttle::json::Json;
use ojs_throttle::policy;
use ojs_throttle::proxy::respond::Fault;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of the README in one language, with the line that each begins on.
fn blocks(language: &str) -> Vec<(usize, String)> {
    let readme = read("README.md");
    let mut blocks = Vec::new();
    let mut open: Option<(bool, usize, String)> = None;
    for (number, line) in readme.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(name)) => open = Some((name == language, number + 2, String::new())),
            (Some(_), Some(_)) => {
                let (wanted, begin, text) = open.take().unwrap();
                blocks.extend(wanted.then_some((begin, text)));
            }
            (Some((_, _, text)), None) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of the README does not end");
    assert!(!blocks.is_empty(), "the README has no {language}");
    blocks
}

/// The names in the first column of the table below a heading.
fn first_column(heading: &str) -> BTreeSet<String> {
    let readme = read("README.md");
    let (_, section) = readme.split_once(&format!("\n{heading}\n")).unwrap();
    let section = section.split("\n#").next().unwrap();
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_config_in_the_readme_loads() {
    for (line, text) in blocks("toml") {
        // The file of the token is not on this machine.
        let text = text.replace("file:/run/secrets/ojs-token", "from-a-file");
        let settings = Settings::parse(&text, &format!("README.md, from line {line}"));
        let settings = settings.unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(settings.warnings.warnings(), 0, "{}", settings.warnings);
    }
}

#[test]
fn every_job_in_the_readme_brings_limits() {
    for (line, text) in blocks("json") {
        let job = Json::parse(text.as_bytes(), 64).unwrap();
        let sent = policy::sent_policies(job).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        assert_eq!(sent.len(), 1, "line {line}");
    }
}

#[test]
fn every_command_in_the_readme_is_one() {
    let mut commands = 0;
    for (line, text) in blocks("sh") {
        for command in text.lines() {
            let command = command.split(" #").next().unwrap_or(command).trim();
            let Some(arguments) = command
                .strip_prefix("ojs-throttle ")
                .or_else(|| command.strip_prefix("cargo run --release -- "))
            else {
                continue;
            };
            let words = ["ojs-throttle"].into_iter().chain(arguments.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("line {line}: {error}"));
            commands += 1;
        }
    }
    assert!(commands >= 4, "only {commands} commands were found");
}

#[test]
fn the_readme_has_every_metric() {
    let (values, names) = (read("src/metrics.rs"), read("src/metrics/names.rs"));
    let program = values.split("#[cfg(test)]").next().unwrap().to_owned() + &names;
    let declared: BTreeSet<String> = program
        .split('"')
        .filter(|text| {
            let ours = ["ojs_rate_limit_", "ojs_throttle_", "ojs_backpressure_"];
            ours.iter().any(|begin| text.starts_with(begin))
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(first_column("### Metrics"), declared);
}

#[test]
fn the_readme_has_every_repair() {
    let fields: BTreeSet<String> = config::known_fields(&read("config.example.toml"))
        .iter()
        .filter_map(|field| field.strip_prefix("repairs."))
        .map(str::to_owned)
        .collect();
    let mut told = first_column("## Repairs");
    assert!(told.remove("[repairs]"));
    assert_eq!(told, fields);
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_readme_says_what_a_reload_can_change() {
    let readme = read("README.md");
    let (_, told) = readme.split_once("**What can change:** ").unwrap();
    let (told, _) = told.split_once(". ").unwrap();
    let (tables, of_server) = told.split_once(" of `[server]` ").unwrap();
    let mut fields: BTreeSet<String> = quoted(of_server)
        .map(|name| format!("server.{name}"))
        .collect();
    for name in quoted(tables) {
        let table = name.trim_matches(['[', ']']);
        let within = |field: &str| {
            let rest = field.strip_prefix(table);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let all = Diff::can_change().chain(Diff::cannot_change());
        let before = fields.len();
        fields.extend(all.filter(|field| within(field)).map(str::to_owned));
        assert!(fields.len() > before, "{name} is no field");
    }
    let expected: BTreeSet<String> = Diff::can_change().map(str::to_owned).collect();
    assert_eq!(fields, expected);
}

#[test]
fn the_example_marks_what_cannot_change() {
    let example = read("config.example.toml");
    let mut table = "";
    let mut marked = BTreeSet::new();
    for line in example.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_matches(['[', ']']);
        } else if let Some(field) = line.strip_suffix(" # [restart]") {
            let name = field.trim_start_matches(['#', ' ']).split(' ').next();
            marked.insert(format!("{table}.{}", name.unwrap()));
        }
    }
    let expected: BTreeSet<String> = Diff::cannot_change().map(str::to_owned).collect();
    assert_eq!(marked, expected);
}

#[test]
fn the_readme_says_which_commands_read_the_variable() {
    let command = Cli::command();
    let reads = |command: &&clap::Command| {
        let mut arguments = command.get_arguments();
        arguments.any(|of| {
            of.get_env()
                .is_some_and(|name| name == "OJS_THROTTLE_CONFIG")
        })
    };
    let names = command.get_subcommands().filter(reads);
    let names: Vec<&str> = names.map(clap::Command::get_name).collect();
    let told = format!(
        "`OJS_THROTTLE_CONFIG` names the file of `{}` like `--config`",
        names.join("` and `")
    );
    assert!(read("README.md").contains(&told), "{told}");
}

#[tokio::test]
async fn every_error_of_the_readme_says_what_to_do() {
    let hint = async |code: &str| {
        let code: &'static str = code.to_owned().leak();
        let fault = Fault::new(StatusCode::BAD_REQUEST, code, "");
        let body = fault.reply(None).into_body().collect().await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap();
        json["error"]["hint"].as_str().unwrap().to_owned()
    };
    let unknown = hint("what_nobody_says").await;
    let told = first_column("### Errors of our own").into_iter();
    let of_enqueues = ["QUEUE_FULL", "rate_limited", "TENANT_LIMIT_EXCEEDED"];
    let codes: Vec<String> = told.chain(of_enqueues.map(str::to_owned)).collect();
    assert!(codes.len() > 15, "{codes:?}");
    for code in codes {
        let hint = hint(&code).await;
        assert!(!hint.is_empty() && hint != unknown, "{code}: {hint}");
    }
}

/// The sources of the program, folder by folder.
fn sources(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let each = entries.map(|entry| entry.unwrap().path());
    let texts = each.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => fs::read_to_string(&path).into_iter().collect(),
    });
    texts.collect()
}

#[test]
fn the_readme_has_the_headings_that_the_program_names() {
    let readme = read("README.md");
    let headings = readme.lines().filter(|line| line.starts_with('#'));
    let headings: BTreeSet<&str> = headings.map(|line| line.trim_matches(['#', ' '])).collect();
    let mut named = 0;
    for text in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        // As a string has it: the README names … under "…".
        for after in text.split("README names under \\\"").skip(1) {
            let heading = after.split("\\\"").next().unwrap();
            assert!(headings.contains(heading), "{heading}");
            named += 1;
        }
    }
    assert!(named > 0, "no text names a heading");
}

/// The instructions of the Dockerfile, stage by stage.
fn stages() -> Vec<Vec<(String, String)>> {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut stages = Vec::<Vec<_>>::new();
    for (word, rest) in lines.filter_map(|line| line.split_once(' ')) {
        if word == "FROM" {
            stages.push(Vec::new());
        }
        let stage = stages.last_mut().expect("FROM comes first");
        stage.push((word.to_owned(), rest.to_owned()));
    }
    stages
}

/// What one stage says under a word.
fn said<'a>(stage: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    let all = stage.iter().filter(|(said, _)| said == word);
    all.map(|(_, rest)| rest.as_str()).collect()
}

#[test]
fn the_image_is_built_in_one_stage_and_runs_in_another_as_nobody() {
    let stages = stages();
    let [build, image] = &stages[..] else {
        panic!("{stages:?}");
    };
    // Nothing of the compiler comes along, but the program that it made.
    let [from] = said(build, "FROM")[..] else {
        panic!("{build:?}");
    };
    let (_, name) = from.split_once(" AS ").unwrap();
    assert_ne!(said(image, "FROM"), [name]);
    let programs = said(image, "COPY");
    let mut programs = programs.iter().filter(|copied| copied.starts_with("--"));
    let program = programs.next().unwrap();
    assert_eq!(programs.next(), None);
    let path = program
        .strip_prefix(&format!("--from={name} /src/"))
        .unwrap();
    let (built, installed) = path.split_once(' ').unwrap();
    assert_eq!(said(image, "ENTRYPOINT"), [format!("[\"{installed}\"]")]);
    // A number, so that Kubernetes can see that it is not root's.
    let [user] = said(image, "USER")[..] else {
        panic!("{image:?}");
    };
    let ids = user.split(':').map(|id| id.parse::<u32>().unwrap());
    assert!(ids.clone().count() == 2 && ids.min() > Some(0), "{user}");
    // What it is built by builds that, from the versions that were tested.
    assert_eq!(said(build, "RUN"), [".ci/release"]);
    let release = read(".ci/release");
    let (folder, _) = built.split_once("/release/").unwrap();
    assert!(release.contains(&format!("--target-dir {folder}\n")));
    let commands = release.lines().filter(|line| !line.starts_with('#'));
    let mut calls = commands.filter(|line| line.contains("cargo build "));
    let call = calls.next().unwrap();
    assert!(call.contains(" --locked "), "{call}");
    assert_eq!(calls.next(), None);
}

#[test]
fn the_image_runs_what_the_program_knows() {
    let stages = stages();
    let [command] = said(stages.last().unwrap(), "CMD")[..] else {
        panic!("{stages:?}");
    };
    let arguments: Vec<String> = serde_json::from_str(command).unwrap();
    let words = ["ojs-throttle".to_owned()].into_iter().chain(arguments);
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
}
