//! The chapter `config`: what the example file says of each setting, with what the program does of itself.

use std::collections::BTreeSet;

use ojs_throttle::config::{self, Settings};
use ojs_throttle::run::Diff;
use serde_json::Value;

use super::page::{entries_must_be, entry, prose};

/// A setting as the example shows it.
struct Shown {
    name: String,
    value: String,
    /// Whether it is commented out: its value is no default.
    is_off: bool,
}

/// What stands together in the example: some words, and the settings that they are about.
#[derive(Default)]
struct Part {
    words: Vec<String>,
    settings: Vec<Shown>,
}

/// A table of the example, wherever its parts stand.
pub struct Table {
    head: String,
    /// What is said above it, wherever that stands.
    about: Vec<String>,
    parts: Vec<Part>,
}

impl Table {
    /// Its name without brackets.
    pub fn name(&self) -> &str {
        self.head.trim_matches(['[', ']'])
    }

    /// What is said of a setting, if this is its table.
    pub fn about_setting(&self, table: &str, name: &str) -> Option<String> {
        let is_here = self.name().split('.').next_back() == Some(table);
        let mut parts = self.parts.iter().filter(|_| is_here);
        let part = parts.find(|part| part.settings.iter().any(|of| of.name == name))?;
        Some(part.words.join("\n"))
    }

    /// Moves words to what is said of all of it.
    fn about(&mut self, words: &mut Vec<String>) {
        self.about.append(words);
        self.about.push(String::new());
    }

    /// Whether there may be several, so that what is shown is no default.
    fn is_list(&self) -> bool {
        self.head.starts_with("[[")
    }

    /// An entry for each part.
    pub fn entries(&self) -> String {
        let each = self.parts.iter().map(|part| {
            let mut about = markdown(&part.words);
            for shown in &part.settings {
                about += &format!("\n{}\n", facts(self, part, shown));
            }
            let names = part.settings.iter().map(|of| format!("`{}`", of.name));
            let names: Vec<String> = names.collect();
            entry(&format!("### {}", names.join(", ")), &about)
        });
        each.collect()
    }

    fn has(&self, name: &str) -> bool {
        let mut all = self.parts.iter().flat_map(|part| &part.settings);
        all.any(|shown| shown.name == name)
    }
}

/// Reads the example. What stands above a table is about all of it, and so is what an empty comment ends.
pub fn tables(example: &str) -> Vec<Table> {
    let known: BTreeSet<String> = config::known_fields(example).into_iter().collect();
    let mut tables: Vec<Table> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut at = None;
    // The first lines are about the whole file.
    let (_, example) = example.split_once("\n\n").unwrap();
    for line in example.lines() {
        let comment = line
            .strip_prefix('#')
            .map(|text| text.strip_prefix(' ').unwrap_or(text));
        if line.starts_with('[') {
            let place = tables.iter().position(|table| table.head == line);
            at = Some(place.unwrap_or(tables.len()));
            if place.is_none() {
                tables.push(Table {
                    head: line.to_owned(),
                    about: Vec::new(),
                    parts: Vec::new(),
                });
            }
            tables[at.unwrap()].about(&mut words);
        } else if let Some(shown) = setting(comment.unwrap_or(line), comment.is_some())
            && let Some(table) = at.map(|at| &mut tables[at])
            && known.contains(&format!("{}.{}", table.name(), shown.name))
        {
            if !words.is_empty() {
                let words = std::mem::take(&mut words);
                table.parts.push(Part {
                    words,
                    settings: Vec::new(),
                });
            } else if table.has(&shown.name) {
                // A further entry shows again what was explained.
                continue;
            }
            table.parts.last_mut().unwrap().settings.push(shown);
        } else if comment == Some("") {
            tables[at.unwrap()].about(&mut words);
        } else if let Some(text) = comment.filter(|text| !text.starts_with("----")) {
            words.push(text.to_owned());
        }
    }
    tables
}

/// Reads `name = value`, with its mark.
fn setting(line: &str, is_off: bool) -> Option<Shown> {
    let line = line.strip_suffix(" # [restart]").unwrap_or(line);
    let (name, value) = line.split_once(" = ")?;
    toml::from_str::<toml::Table>(line).ok()?;
    let (name, value) = (name.to_owned(), value.to_owned());
    Some(Shown {
        name,
        value,
        is_off,
    })
}

/// Words of the example as Markdown: a line such as `  "wait"  it is held` is an item of a list.
fn markdown(words: &[String]) -> String {
    let mut text = String::new();
    let mut in_list = false;
    for line in words {
        let item = line
            .strip_prefix("  \"")
            .and_then(|rest| rest.split_once("\"  "));
        if in_list && !line.starts_with("  ") {
            text += "\n";
        }
        in_list = line.starts_with("  ");
        text += &match item {
            Some((word, told)) => format!("- `\"{word}\"`: {}\n", told.trim()),
            None => format!("{line}\n"),
        };
    }
    text
}

/// From where to where a setting may be, as the program says of what is not.
fn range(table: &Table, name: &str) -> Option<String> {
    let needed = [
        ("server", "upstream", "\"http://127.0.0.1:9090\""),
        ("policy", "name", "\"a\""),
        ("policy", "match", "{ queue = \"a\" }"),
        ("policy", "concurrency", "1"),
        ("queue", "name", "\"a\""),
        ("queue", "max_depth", "1"),
        ("tenant", "id", "\"a\""),
    ];
    let of = |table: &str, but: &str| -> String {
        let needed = needed
            .iter()
            .filter(|(of, name, _)| *of == table && *name != but);
        needed
            .map(|(_, name, value)| format!("{name} = {value}\n"))
            .collect()
    };
    ["-1", "\"36500d\"", "\"99999GiB\""]
        .into_iter()
        .find_map(|wrong| {
            let mut file = String::new();
            for (head, inside) in [("[server]", "server"), ("[[policy]]", "policy")] {
                if inside != table.name() {
                    file += &format!("{head}\n{}", of(inside, ""));
                }
            }
            file += &format!(
                "{}\n{}{name} = {wrong}\n",
                table.head,
                of(table.name(), name)
            );
            let report = Settings::parse(&file, "t").err()?.to_string();
            let told = format!("`{}.{name}` must be from ", table.name());
            let (_, told) = report.split_once(&told)?;
            let range = told.lines().next()?.split([',', ';']).next()?;
            Some(range.replace('"', ""))
        })
}

/// What is known of a setting beside the words about it.
fn facts(table: &Table, part: &Part, shown: &Shown) -> String {
    let said = part.words.join(" ");
    let is_default = !table.is_list() && !shown.is_off && !said.contains("Required");
    let mut facts = vec![match is_default {
        true => format!("Default: `{}`", shown.value),
        false => format!("Example: `{} = {}`", shown.name, shown.value),
    }];
    facts.extend(range(table, &shown.name).map(|range| format!("From {range}")));
    let path = format!("{}.{}", table.name(), shown.name);
    if Diff::cannot_change().any(|field| field == path) {
        facts.push("A change needs a restart".to_owned());
    }
    facts.join(". ") + "."
}

/// The names, the defaults and the lines of the example are those that the sidecar shows of it.
#[test]
fn each_setting_is_shown_as_the_example_writes_it() {
    let example = super::read("config.example.toml");
    let shown = Settings::parse(&example, "f").unwrap().shown();
    let mut rows = shown["settings"].as_array().unwrap().clone();
    let lists = ["policy", "queue", "tenant", "egress"];
    let is_of_list = |table: &&Table| lists.contains(&table.name().split('.').next().unwrap());
    for table in tables(&example).iter().filter(|table| !is_of_list(table)) {
        for setting in table.parts.iter().flat_map(|part| &part.settings) {
            let name = format!("{}.{}", table.name(), setting.name);
            let at = rows.iter().position(|row| row["name"] == *name);
            let row = rows.swap_remove(at.unwrap_or_else(|| panic!("{name} is not shown")));
            let begins = format!("{} = {}", setting.name, setting.value);
            let line = example.lines().position(|line| line.starts_with(&begins));
            let written: toml::Table = toml::from_str(&begins).unwrap();
            let mut value = serde_json::to_value(&written[&setting.name]).unwrap();
            // It is two ways to write one time.
            if value == "125s" {
                value = "2m5s".into();
            }
            match line {
                None => assert_eq!([&row["value"], &row["default"]], [&Value::Null; 2], "{row}"),
                Some(_) if name == "server.upstream" => assert_eq!(row["value"], value),
                Some(_) => assert_eq!([&row["value"], &row["default"]], [&value; 2], "{row}"),
            }
            let from = line.map_or("default".to_owned(), |line| format!("f:{}", line + 1));
            assert_eq!(row["from"], from, "{row}");
            let is_fixed = Diff::cannot_change().any(|fixed| fixed == name);
            assert_eq!(row["effect"], if is_fixed { "restart" } else { "live" });
        }
    }
    assert!(rows.is_empty(), "not in the example: {rows:?}");
}

#[test]
fn the_manual_has_every_setting() {
    let tables = tables(&super::read("config.example.toml"));
    let mut text = String::new();
    for table in &tables {
        let about = prose(&markdown(&table.about));
        text += &format!("## `{}`\n\n{about}\n\n{}", table.head, table.entries());
    }
    entries_must_be("config", &text.replace("\n\n\n\n", "\n\n"));
    let all = Diff::can_change().chain(Diff::cannot_change());
    let mut all = all.filter_map(|field| field.split_once('.'));
    let is_told = |(of, name): (&str, &str)| {
        tables
            .iter()
            .any(|table| table.name() == of && table.has(name))
    };
    assert!(all.all(is_told));
}
