//! Chapters that are made of what the program declares. `UPDATE=1` writes them.

use clap::CommandFactory;
use http_body_util::BodyExt;
use ojs_throttle::answers::respond::{CODES, Fault};
use ojs_throttle::cli::Cli;
use ojs_throttle::policy::VENDORS;
use ojs_throttle::show::state::MEMBERS;
use ojs_throttle::show::why;
use ojs_throttle::told::{events, metrics};

use super::page::{entries_must_be, entry, prose, section_must_be};
use super::settings::tables;

fn quote(name: &str) -> String {
    format!("`{name}`")
}

fn list(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| quote(name))
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn the_manual_has_every_metric_as_it_is_declared() {
    let mut text = String::new();
    for series in metrics::SERIES {
        let base = series.name.trim_end_matches("_total");
        let unit = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| base.ends_with(unit));
        let kind = match series.kind {
            "counter" => "Counter",
            "gauge" => "Gauge",
            _ => "Histogram",
        };
        let of = unit.map(|unit| format!(" of {unit}")).unwrap_or_default();
        let by = match series.labels {
            [] => String::new(),
            labels => format!(", by {}", list(labels)),
        };
        let told = format!("{kind}{of}{by}. {}", series.help);
        text += &entry(&format!("## `{}`", series.name), &told);
    }
    entries_must_be("metrics", &text);
}

#[tokio::test]
async fn the_manual_has_every_error_as_it_is_answered() {
    let mut text = String::new();
    for code in CODES {
        let reply = Fault::new(code.word, "").reply(None);
        assert_eq!(reply.status(), code.status);
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let hint = json["error"]["hint"].as_str().unwrap();
        assert!(!hint.is_empty(), "{code:?}");
        let heading = format!("## {} `{}`", code.status.as_u16(), code.word);
        text += &entry(&heading, &format!("{}\n\nHint: {hint}.", code.means));
    }
    entries_must_be("errors", &text);
}

#[test]
fn the_manual_has_every_event_as_it_is_declared() {
    let mut text = String::new();
    for event in events::KINDS {
        let told = format!("{} Data: {}.", event.when, list(event.data));
        text += &entry(&format!("## `{}`", event.kind), &told);
    }
    entries_must_be("event-stream", &text);
}

#[test]
fn the_manual_has_the_exit_codes_that_the_commands_tell() {
    let mut text =
        prose("As the help of each command says. Wrong arguments end any command with 2.");
    text += "\n\n";
    let mut all = Vec::<(Vec<String>, String)>::new();
    for command in Cli::command().get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let Some(at) = help.find("Exits ") else {
            continue;
        };
        let (name, told) = (format!("`{}`", command.get_name()), &help[at..]);
        match all.iter_mut().find(|(_, same)| same == told) {
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], told.to_owned())),
        }
    }
    for (names, told) in &all {
        let told = format!("- {}: {}", names.join(", "), told.replace('\n', " "));
        text += &format!("{}\n", prose(&told));
    }
    let told: usize = all.iter().map(|(names, _)| names.len()).sum();
    assert_eq!((told, text.matches("\n- ").count()), (15, 9));
    section_must_be("operate", "## Exit codes", &text);
}

#[test]
fn the_manual_has_every_cause_as_it_is_declared() {
    let mut text = CAUSES_BEGIN.to_owned();
    for cause in why::CAUSES {
        let (sentence, _) = with_examples(cause.says, &SENTENCE);
        let (advice, is_whole) = with_examples(cause.advice, &ADVICE);
        let todo = match is_whole {
            true => format!(" What to do: {}.", advice.replace("; ", ". Note: ")),
            false => String::new(),
        };
        let heading = format!("### `{sentence}`");
        text += &entry(&heading, &format!("{}{todo}", cause.means.trim()));
    }
    section_must_be("incidents", "## Jobs do not start", &text);
}

/// A sentence with examples in place of names, up to the first name for which there is none; and whether all had one.
fn with_examples(sentence: &str, examples: &[(&str, &str)]) -> (String, bool) {
    let mut text = String::new();
    for (nth, part) in sentence.split('{').enumerate() {
        let Some((name, rest)) = part.split_once('}').filter(|_| nth > 0) else {
            text += part;
            continue;
        };
        let Some((_, example)) = examples.iter().find(|(known, _)| *known == name) else {
            let cut = text.trim_end_matches([' ', ':', '(', ';']);
            return (cut.to_owned(), false);
        };
        text += example;
        text += rest;
    }
    (text, true)
}

const SENTENCE: [(&str, &str); 13] = [
    ("happens", "producers get 429"),
    ("policy", "\"per-customer\""),
    ("taken", "2"),
    ("slots", "2"),
    ("used", "80"),
    ("limit", "100"),
    ("what", "key \"stripe\""),
    ("queue", "\"billing\""),
    ("needs", ""),
    ("queues", "\"billing\""),
    ("entry", "policy \"stripe\""),
    ("near", "\"billings\""),
    ("jobs", "2"),
];
const ADVICE: [(&str, &str); 15] = [
    (
        "larger",
        "set a larger bound in the file (see \"Producers get 429\")",
    ),
    ("of_policy", "per-customer"),
    ("workers", "the workers"),
    ("whom", "the workers"),
    ("free", "its slots are free after the visibility timeout"),
    ("name", "stripe"),
    (
        "cures",
        "write `subqueues = true` into the `[[queue]]` of that name, or a larger `max` into `[hold]`",
    ),
    ("until", "TIME"),
    ("file", "throttle.toml"),
    ("raise", "raise the limit"),
    ("near", ""),
    ("out", "jobs below"),
    (
        "dead",
        "the slot of a dead worker is free after its visibility timeout",
    ),
    ("what", "key \"stripe\""),
    ("queue", "billing"),
];
const CAUSES_BEGIN: &str = "\
Ask the sidecar. `why` only reads: it takes no job and changes nothing.

```sh
ojs-throttle why --queue billing
ojs-throttle why --key stripe
ojs-throttle why --job 0190a1b2-0000-7000-8000-000000000001
ojs-throttle why --type sync.contacts --meta tenant_id=acme
```

If a policy makes keys from values of the job, ask by `--type` and `--meta`. You need no key then.
Values are escaped in keys: `acme corp` is `acmex_20corp`.

The first line says what keeps the next job from starting. The second line says what to do. Below
stand all limits that apply, with their numbers, and the jobs that have the slots. The page, `top`
and `doctor` tell the same causes. A `note` tells what holds too.

Raise a limit in the file, or for a key by `ojs-throttle limit`. By hand you can only make a
`[[queue]]` of the file stricter. What the first line may say:

";

#[test]
fn the_manual_has_every_member_of_a_state() {
    let mut text = prose(STATE);
    for (at, members) in MEMBERS {
        let items = members.iter().map(|(name, means)| {
            let name = name.trim_start_matches("r#");
            format!("- `{name}`: {}\n", means.trim())
        });
        text += &format!("\n\n### `{at}`\n\n{}", prose(&items.collect::<String>()));
    }
    section_must_be("page", "## The state", &text);
}

const STATE: &str = "`GET /throttle/v1/state` (chapter `http`) has these members. Times are RFC 3339. `at` is when the \
    numbers were taken, mostly less than two seconds ago.";

#[test]
fn the_manual_has_every_repair_of_the_example() {
    let example = super::read("config.example.toml");
    let tables = tables(&example);
    let repairs = tables
        .iter()
        .find(|table| table.name() == "repairs")
        .unwrap();
    let text = format!("{}\n\n{}", prose(REPAIRS), repairs.entries());
    section_must_be("workers", "## SDK repairs", &text);
}

const REPAIRS: &str = "The sidecar mends what SDKs and backends get wrong with each other. These settings of \
    `[repairs]` switch that off. `ojs_throttle_repairs_total` counts each but `job_and_jobs`.";

#[test]
fn the_manual_has_every_vendor_as_the_table_has_it() {
    let items = VENDORS.iter().map(|vendor| {
        let hosts = match vendor.hosts {
            [] => "any other host".to_owned(),
            hosts => list(hosts),
        };
        format!("- `{}` ({hosts}): {}\n", vendor.name, vendor.means)
    });
    let text = format!("{KNOWN_VENDORS}\n\n{}", items.collect::<String>());
    section_must_be("egress", "### Known vendors", &prose(&text));
}

const KNOWN_VENDORS: &str = "A vendor is known by the host of `upstream`, or by `vendor = \"openai\"` in the entry. \
    `vendor = \"none\"` lets no header be read: a 429 shuts the key for `default_pause` then. What a known vendor does \
    not say for certain shuts nothing. `check` prints the vendor of each entry.";

/// Who only tests must never write: a page that differs is a failure there.
#[test]
fn what_runs_the_tests_never_updates() {
    let run = super::read("tests/run.sh");
    assert!(run.lines().any(|line| line == "unset UPDATE"));
    assert!(!super::read(".ci/run").contains("UPDATE"));
}
