//! What the README and the manual say is so: their settings load, their lists have what there is.

pub mod blocks;
mod example;
mod generated;
mod log;
mod openapi;
pub mod page;
mod replies;
mod schema;
mod settings;
mod style;
mod tested;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use ojs_throttle::cli::Cli;
use ojs_throttle::config::{self, Settings};
use ojs_throttle::json::Json;
use ojs_throttle::run::Diff;
use ojs_throttle::told::{events, metrics};
use ojs_throttle::{manual, policy, ship};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// README.md and the chapters of the manual.
fn pages() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(MANUAL);
    let names = fs::read_dir(folder).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        format!("{MANUAL}/{}", name.to_str().unwrap())
    });
    let chapters = names.filter(|name| name.ends_with(".md"));
    let pages = chapters.chain(["README.md".to_owned()]);
    pages.collect::<BTreeSet<_>>().into_iter().collect()
}

const MANUAL: &str = "src/manual";

/// The blocks of all pages in one language, with the place where each begins.
fn blocks(language: &str) -> Vec<(String, String)> {
    let all = pages().into_iter().flat_map(|page| blocks::of(&page));
    let wanted = all.filter(|block| block.language == language);
    let found: Vec<_> = wanted.map(|block| (block.place, block.text)).collect();
    assert!(!found.is_empty(), "no page has {language}");
    found
}

#[test]
fn every_config_on_a_page_loads() {
    for (place, text) in blocks("toml") {
        // The file of the token is not on this machine.
        let text = text.replace("file:/run/secrets/ojs-token", "from-a-file");
        // Recipes leave out what each file has.
        let text = match text.contains("[server]") {
            true => text,
            false => format!("{text}\n[server]\nupstream = \"http://127.0.0.1:9090\"\n"),
        };
        let settings = Settings::parse(&text, &place);
        let settings = settings.unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(settings.warnings.warnings(), 0, "{}", settings.warnings);
    }
}

#[test]
fn every_job_on_a_page_brings_limits() {
    let jobs = blocks("json").into_iter();
    let jobs: Vec<_> = jobs
        .filter(|(_, text)| text.contains("\"options\""))
        .collect();
    assert!(jobs.len() >= 2, "{jobs:?}");
    for (line, text) in jobs {
        let job = Json::parse(text.as_bytes(), 64).unwrap();
        let sent = policy::sent_policies(job).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        assert_eq!(sent.len(), 1, "{line}");
    }
}

#[test]
fn every_command_on_a_page_is_one() {
    let mut commands = 0;
    for (line, text) in blocks("sh") {
        for command in text.lines() {
            // Without a comment, and without where its output goes.
            let ends = [" #", " > ", " | ", " &"].into_iter();
            let command = ends.fold(command, |text, end| text.split(end).next().unwrap());
            let command = command.trim();
            let Some(arguments) = command
                .strip_prefix("ojs-throttle ")
                .or_else(|| command.strip_prefix("cargo run --release -- "))
            else {
                continue;
            };
            let words = ["ojs-throttle"].into_iter().chain(arguments.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            commands += 1;
        }
    }
    assert!(commands >= 4, "only {commands} commands were found");
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_manual_says_what_a_reload_can_change() {
    let chapter = read("src/manual/operate.md").replace('\n', " ");
    let (_, told) = chapter.split_once("**What can change:** ").unwrap();
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
fn the_manual_says_which_commands_read_the_variable() {
    let command = Cli::command();
    let reads = |command: &&clap::Command| {
        let mut names = command.get_arguments().filter_map(clap::Arg::get_env);
        names.any(|name| name == "OJS_THROTTLE_CONFIG")
    };
    let names = command.get_subcommands().filter(reads);
    let names: Vec<&str> = names.map(clap::Command::get_name).collect();
    let (last, others) = names.split_last().unwrap();
    let others = others.join("`, `");
    let told = format!("names the file of `{others}` and `{last}` like `--config`");
    let told = format!("`OJS_THROTTLE_CONFIG` {told}");
    assert!(read("src/manual/operate.md").contains(&told), "{told}");
}

/// All files of a folder and of those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let each = entries.map(|entry| entry.unwrap().path());
    let all = each.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    all.collect()
}

/// All sources of the program.
fn program() -> Vec<String> {
    let all = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let texts = all.iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.collect()
}

#[test]
fn the_manual_has_the_headings_that_the_program_names() {
    let mut named = 0;
    for text in program() {
        // As a string has it: `ojs-throttle help CHAPTER` names … under "…".
        for after in text.split("`ojs-throttle help ").skip(1) {
            let Some((chapter, after)) = after.split_once("` names under \\\"") else {
                continue;
            };
            let heading = format!("\n## {}\n", after.split("\\\"").next().unwrap());
            let page = read(&format!("{MANUAL}/{chapter}.md"));
            assert!(page.contains(&heading), "{chapter}: {heading}");
            named += 1;
        }
    }
    assert!(named > 0, "no text names a heading");
}

/// Each text of the program and about it: sources, pages, and files that are ready to use.
fn texts() -> impl Iterator<Item = String> {
    let beside = ["README.md", "config.example.toml"].map(read);
    program().into_iter().chain(beside)
}

/// Sentences about the program go on so, without naming a command.
const PROSE: [&str; 2] = ["failed", "has"];

/// The word at the beginning of a text, as commands and chapters are called; none in capitals, which stands for any.
fn word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_lowercase() && c != '-');
    let word = &text[..end.unwrap_or(text.len())];
    word.starts_with(|c: char| c.is_ascii_lowercase())
        .then_some(word)
}

#[test]
fn every_command_and_chapter_that_is_named_exists() {
    let cli = Cli::command();
    let is_command = |name: &str| cli.find_subcommand(name).is_some();
    let is_chapter = |name: &str| manual::chapter(name).is_some();
    let made = ["man", "completions"];
    let is_ship = |name: &str| ship::EXAMPLES.iter().any(|file| file.name == name);
    let is_example = |name: &str| made.contains(&name) || is_ship(name);
    let mut named = 0;
    for text in texts() {
        for said in text.split("ojs-throttle ").skip(1) {
            let Some(command) = word(said).filter(|word| !PROSE.contains(word)) else {
                continue;
            };
            named += 1;
            assert!(is_command(command), "ojs-throttle {command}");
            let Some(what) = said[command.len()..].strip_prefix(' ').and_then(word) else {
                continue;
            };
            match command {
                "help" => assert!(is_command(what) || is_chapter(what), "help {what}"),
                "example" => assert!(is_example(what), "example {what}"),
                _ => {}
            }
        }
        for said in text.split("hapter `").skip(1) {
            let chapter = word(said).unwrap();
            named += 1;
            assert!(is_chapter(chapter), "chapter `{chapter}`");
        }
    }
    assert!(named > 80, "only {named} names were found");
}

#[test]
fn every_metric_that_is_named_exists() {
    let mut named = 0;
    for text in texts() {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let begins = ["ojs_throttle_", "ojs_rate_limit_", "ojs_backpressure_"];
        for word in words.filter(|word| begins.iter().any(|begin| word.starts_with(begin))) {
            let parts = ["", "_bucket", "_count", "_sum"]
                .iter()
                .filter_map(|end| word.strip_suffix(end));
            let mut names =
                parts.flat_map(|name| metrics::SERIES.iter().map(move |of| of.name == name));
            named += 1;
            assert!(names.any(|is_it| is_it), "{word}");
        }
    }
    assert!(named > 150, "only {named} names were found");
}

#[test]
fn every_setting_that_a_page_names_exists() {
    let known: BTreeSet<String> = config::known_fields(&read("config.example.toml"))
        .into_iter()
        .collect();
    let tables = "server upstream store fetch hold settle repairs metrics job_policies";
    let is_table = |table: &str| tables.split(' ').any(|name| name == table);
    let mut named = 0;
    for page in pages() {
        let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.';
        for word in read(&page).split(is_end) {
            let word = word.trim_end_matches('.');
            let is_setting = (word.split_once('.')).is_some_and(|(table, _)| is_table(table));
            // The name of a file is none, nor is an event.
            let is_other = word.ends_with(".rs")
                || word.ends_with(".md")
                || events::KINDS.iter().any(|event| event.kind == word);
            if is_setting && !is_other {
                named += 1;
                assert!(known.contains(word), "{page}: {word}");
            }
        }
    }
    assert!(named > 20, "only {named} names were found");
}

#[test]
fn every_file_of_the_manual_is_a_chapter_that_help_prints() {
    let names = manual::CHAPTERS.iter().map(|chapter| chapter.name);
    let names = names.map(|name| format!("{MANUAL}/{name}.md"));
    let names = names.chain(["README.md".to_owned()]);
    assert_eq!(
        names.collect::<BTreeSet<_>>(),
        pages().into_iter().collect()
    );
    for chapter in manual::CHAPTERS {
        let printed = ojs_throttle::cli::help(Some(chapter.name)).unwrap();
        assert!(printed.ends_with(chapter.text), "{}", chapter.name);
    }
}

#[test]
fn every_link_of_a_page_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for page in pages() {
        let folder = root.join(&page).parent().unwrap().to_owned();
        for link in read(&page).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.starts_with("http") {
                assert!(folder.join(target).exists(), "{page}: {target}");
                found += 1;
            }
        }
    }
    assert!(found > 15, "only {found} links were found");
}

#[test]
fn the_readme_is_one_page_and_names_every_chapter() {
    let readme = read("README.md");
    for chapter in pages().iter().filter(|page| page.starts_with(MANUAL)) {
        assert!(readme.contains(&format!("]({chapter})")), "{chapter}");
    }
    // Without what is fenced, and without where links lead.
    let prose: String = readme.split("```").step_by(2).collect();
    let targets = prose.split("](").skip(1);
    let targets = targets.filter_map(|link| link.split(')').next());
    let prose = targets.fold(prose.clone(), |prose, target| prose.replace(target, ""));
    let words = prose.split_whitespace();
    let words = words.filter(|word| word.contains(char::is_alphanumeric));
    let fenced = readme.split("```").skip(1).step_by(2);
    let fenced: usize = fenced.map(|block| block.lines().count() - 1).sum();
    assert!(words.count() <= 1_300);
    assert!(fenced <= 160, "{fenced} lines in blocks");
}

/// The rows of all tables of a page whose first head is `peer`: heads and cells.
fn of_peers(page: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let cells = |line: &str| {
        let row = line.strip_prefix('|')?.strip_suffix('|')?;
        Some(row.split('|').map(|cell| cell.trim().to_owned()).collect())
    };
    let (mut heads, mut rows) = (Vec::new(), Vec::new());
    for line in read(page).lines() {
        match cells(line) {
            None => heads = Vec::new(),
            Some(row) if heads.is_empty() => heads = row,
            Some(row) if heads[0] == "peer" && !row[0].starts_with('-') => {
                rows.push((heads.clone(), row));
            }
            Some(_) => {}
        }
    }
    rows
}

#[test]
fn the_readme_has_the_numbers_of_the_chapter_compare() {
    let measured = of_peers("src/manual/compare.md");
    let rows = of_peers("README.md");
    let mut compared = 0;
    for (heads, row) in &rows {
        for (head, said) in heads.iter().zip(row).skip(1) {
            let found = measured.iter().find_map(|(heads, cells)| {
                let column = heads.iter().position(|known| known == head)?;
                (cells[0] == row[0]).then(|| cells[column].clone())
            });
            assert_eq!(found.as_deref(), Some(said.as_str()), "{}: {head}", row[0]);
            compared += 1;
        }
    }
    assert!(compared >= 32, "{compared}");
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
    // A digest names the same bytes tomorrow, and a list of images for several processors.
    for from in [from, said(image, "FROM")[0]] {
        let (tagged, digest) = from.split_once("@sha256:").expect("a digest");
        let digest = digest.split(' ').next().unwrap();
        let is_whole = digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_whole && tagged.contains(':'), "{from}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let label = format!("org.opencontainers.image.version=\"{version}\"");
    assert!(read("Dockerfile").contains(&label), "{label}");
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
    let (folder, _) = built.split_once("/dist/").unwrap();
    assert!(release.contains(&format!("--target-dir {folder}\n")));
    let commands = release.lines().filter(|line| !line.starts_with('#'));
    let mut calls = commands.filter(|line| line.contains("cargo build "));
    let call = calls.next().unwrap();
    assert!(call.contains(" --locked "), "{call}");
    assert_eq!(calls.next(), None);
}

/// Where a page says how many jobs are held, and how many where a fetch counts as an attempt, it says what the program
/// does.
#[test]
fn every_page_says_how_many_jobs_are_held_as_the_program_does() {
    let hold = crate::sidecar::settings("http://127.0.0.1:1", "").hold;
    let pairs = [
        [hold.most(false), hold.most(true)],
        [hold.of_one_queue(false), hold.of_one_queue(true)],
    ];
    let mut found = 0;
    for page in pages() {
        let text = read(&page).split_whitespace().collect::<Vec<_>>().join(" ");
        let text = text.to_lowercase();
        for (at, _) in text.match_indices(" where a fetch counts as an attempt") {
            let before: Vec<&str> = text[..at].rsplit(' ').take(6).collect();
            let digits = |word: &&str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse();
            let numbers = before.iter().rev().filter_map(|word| digits(word).ok());
            let numbers: Vec<usize> = numbers.collect();
            if let [many, few] = numbers[..] {
                found += 1;
                assert!(pairs.contains(&[many, few]), "{page}: {many}, {few}");
            }
        }
    }
    assert!(found >= 3, "{found}");
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
    let [health] = said(stages.last().unwrap(), "HEALTHCHECK")[..] else {
        panic!("{stages:?}");
    };
    let (_, command) = health.split_once("CMD ").unwrap();
    let words: Vec<String> = serde_json::from_str(command).unwrap();
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
}
