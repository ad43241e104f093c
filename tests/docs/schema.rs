//! The JSON Schema of the config file. What it says of each field is what the readers say when they are given something
//! else there, so there is no second list of fields.

use std::collections::BTreeSet;

use ojs_throttle::config::{Settings, known_fields};
use serde_json::{Map, Value, json};

use super::page::ship_must_be;
use super::settings::{Table, tables};

/// A name that nobody has chosen.
const STRANGE: &str = "zzqzz";
/// What a field may be: the JSON Schema of it, and an example in TOML.
const KINDS: [(&str, &str); 7] = [
    ("string", "\"a\""),
    ("integer", "1"),
    ("number", "0.5"),
    ("boolean", "true"),
    ("strings", "[\"a\"]"),
    ("object", "{}"),
    ("objects", "[{}]"),
];

/// Words of a schema that say nothing of values of other kinds.
const OF_ONE_KIND: [&str; 7] = [
    "additionalProperties",
    "items",
    "maximum",
    "minimum",
    "patternProperties",
    "properties",
    "required",
];

/// A file that says one thing, and nothing else.
fn file(path: &[&str], value: &str) -> String {
    let (first, inside) = path.split_first().unwrap();
    let inner = |value: String, name: &&str| format!("{{ \"{name}\" = {value} }}");
    format!(
        "{first} = {}\n",
        inside.iter().rev().fold(value.to_owned(), inner)
    )
}

/// What is said of a file: each message with its hint.
fn said(path: &[&str], value: &str) -> Vec<(String, String)> {
    let report = match Settings::parse(&file(path, value), "t") {
        Ok(settings) => settings.warnings,
        Err(report) => report,
    };
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let problems = report.problems().into_iter();
    problems
        .map(|one| (text(&one, "message"), text(&one, "hint")))
        .collect()
}

/// What is said of one field, in which this stands.
fn said_of(path: &[&str], value: &str) -> Option<(String, String)> {
    let begin = format!("`{}` ", path.join("."));
    let mut all = said(path, value).into_iter();
    all.find_map(|(told, hint)| Some((told.strip_prefix(&begin)?.to_owned(), hint)))
}

fn may_be(path: &[&str], value: &str) -> bool {
    let refused = said_of(path, value);
    !refused
        .is_some_and(|(told, _)| told.starts_with("must be ") && !told.starts_with("must be from "))
}

/// The texts in quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('"').skip(1).step_by(2).collect()
}

/// Adds from where to where a number may be.
fn range(path: &[&str], schema: &mut Value) {
    for (name, wrong) in [("minimum", "-1"), ("maximum", "9223372036854775807")] {
        let Some((told, _)) = said_of(path, wrong) else {
            continue;
        };
        let Some(told) = told.strip_prefix("must be from ") else {
            continue;
        };
        let (least, most) = told.split_once(" to ").unwrap_or((told, ""));
        let text = if name == "minimum" { least } else { most };
        let number = text.split([' ', ',', ';']).next().unwrap();
        if let Ok(number) = number.parse::<Value>() {
            schema[name] = number;
        }
    }
}

/// The fields of a table, and whether others may stand there too.
fn object(path: &[&str], about: &[Table]) -> Value {
    let before = match path {
        [] => String::new(),
        _ => format!("{}.", path.join(".")),
    };
    let text = match path {
        [] => String::new(),
        _ => file(path, "{}"),
    };
    let inside = |name: &str| [path, &[name]].concat().join("\0");
    let of = |name: &str| {
        let inside = inside(name);
        schema(&inside.split('\0').collect::<Vec<_>>(), about)
    };
    let known: Vec<String> = known_fields(&text)
        .iter()
        .filter_map(|field| field.strip_prefix(&before))
        .filter(|field| !field.contains('.'))
        .map(str::to_owned)
        .collect();
    let fields: Map<String, Value> = known.iter().map(|name| (name.clone(), of(name))).collect();
    let mut schema = json!({"type": "object", "properties": fields});
    let is_stranger = |name: &str| {
        let told = said(&[path, &[name]].concat(), "1");
        told.iter().any(|(told, _)| told.starts_with("unknown "))
    };
    let has_any_name = path.iter().any(|name| name.contains(STRANGE));
    schema["additionalProperties"] = match is_stranger(STRANGE) {
        true => false.into(),
        false if has_any_name => true.into(),
        false => of(STRANGE),
    };
    let in_meta = format!("meta.{STRANGE}");
    if is_stranger(STRANGE) && !is_stranger(&in_meta) {
        schema["patternProperties"] = json!({"^meta\\.": of(&in_meta)});
    }
    let required: Vec<&String> = known
        .iter()
        .filter(|name| is_required(path, name, &known))
        .collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Whether a table needs a field, whatever else it has.
fn is_required(path: &[&str], field: &str, all: &[String]) -> bool {
    let misses = |text: &str| {
        let (mine, list) = (format!("`{}` needs ", path.join(".")), path.len() == 1);
        let told = said(path, text).into_iter().map(|(told, _)| told);
        let mut told =
            told.filter(|told| told.starts_with(&mine) || list && told.starts_with("a "));
        told.any(|told| {
            told.contains(&format!("needs a `{field}`"))
                || told.contains(&format!("needs an `{field}`"))
        })
    };
    let beside = |other: &String| {
        let path = [path, &[other.as_str()]].concat();
        let (_, value) = KINDS
            .into_iter()
            .find(|(_, value)| may_be(&path, value))
            .unwrap();
        format!("{{ \"{other}\" = {value} }}")
    };
    !path.is_empty()
        && misses("{}")
        && all
            .iter()
            .filter(|other| *other != field)
            .all(|other| misses(&beside(other)))
}

/// What a field may be.
fn schema(path: &[&str], about: &[Table]) -> Value {
    let kinds = KINDS.into_iter().filter(|(_, value)| may_be(path, value));
    let mut kinds: Vec<&str> = kinds.map(|(kind, _)| kind).collect();
    // A list of words that are known holds nothing else.
    let has_words = said_of(path, "[\"a\"]").is_some_and(|(told, _)| told == "cannot have this");
    kinds.retain(|kind| *kind != "objects" || !has_words);
    let should = said_of(path, "1979-05-27").map_or(String::new(), |(told, _)| told);
    let each = kinds
        .iter()
        .filter(|kind| **kind != "integer" || !kinds.contains(&"number"));
    let mut each: Vec<Value> = each
        .map(|kind| of_kind(path, kind, &should, about))
        .collect();
    assert!(!each.is_empty(), "{path:?}: {should}");
    if should.starts_with("must be a size") {
        each = vec![json!({"$ref": "#/$defs/size"})];
    }
    let mut schema = merged(each);
    if let [.., table, field] = path
        && let Some(words) = about.iter().find_map(|of| of.about_setting(table, field))
    {
        schema["description"] = words.into();
    }
    schema
}

/// One schema for values of several kinds: each of its words speaks of one kind only. With `anyOf` a mistake within a
/// value would be told as one of the whole value, once for each kind that it could have been.
fn merged(each: Vec<Value>) -> Value {
    let (mut all, mut kinds) = (Map::new(), BTreeSet::new());
    if each.len() == KINDS.len() - 1 {
        return json!({});
    }
    let are_several = each.len() > 1;
    for one in each {
        let Value::Object(one) = one else {
            panic!("{one}")
        };
        for (word, value) in one {
            if word == "type" && are_several {
                kinds.insert(value.as_str().unwrap().to_owned());
                continue;
            }
            assert!(!are_several || OF_ONE_KIND.contains(&&*word), "{word}");
            let before = all.insert(word, value);
            assert!(before.is_none(), "{before:?} {all:?}");
        }
    }
    if are_several {
        all.insert("type".to_owned(), json!(kinds));
    }
    all.into()
}

fn of_kind(path: &[&str], kind: &str, should: &str, about: &[Table]) -> Value {
    match kind {
        "string" if should.starts_with("must be a duration") => json!({"$ref": "#/$defs/duration"}),
        "string" => match said_of(path, &format!("\"{STRANGE}\"")) {
            Some((told, hint))
                if told.starts_with("cannot be \"") && hint.starts_with("write \"") =>
            {
                json!({"enum": quoted(&hint)})
            }
            _ => json!({"type": "string"}),
        },
        "strings" => match said_of(path, "[\"a\"]") {
            Some((told, hint)) if told == "cannot have this" => {
                json!({"type": "array", "items": {"enum": quoted(&hint)}})
            }
            _ => json!({"type": "array", "items": {"type": "string"}}),
        },
        "object" => object(path, about),
        "objects" => json!({"type": "array", "items": object(path, about)}),
        number => {
            let mut schema = json!({"type": number});
            if number != "boolean" {
                range(path, &mut schema);
            }
            schema
        }
    }
}

#[test]
fn the_schema_is_what_the_readers_take() {
    let example = super::read("config.example.toml");
    let mut schema = object(&[], &tables(&example));
    let settings = Settings::parse(&example, "t").unwrap().shown();
    for row in settings["settings"].as_array().unwrap() {
        let (table, field) = row["name"].as_str().unwrap().split_once('.').unwrap();
        let field = &mut schema["properties"][table]["properties"][field];
        assert!(field.is_object(), "{row}");
        if !row["default"].is_null() {
            field["default"] = row["default"].clone();
        }
    }
    let mut defs = json!({
        "duration": {"type": "string", "examples": ["10s", "500ms", "PT1M"]},
        "size": {"type": ["integer", "string"], "minimum": 0, "examples": ["8MiB", 65536]},
    });
    // A list of tables may be one table, which is said once. Some editors complete only what stands under `items`.
    for name in ["policy", "queue", "tenant", "egress"] {
        let list = &mut schema["properties"][name];
        defs[name] = list["items"].take();
        let one = json!({"$ref": format!("#/$defs/{name}")});
        *list = json!({
            "type": ["array", "object"], "items": one, "if": {"type": "object"}, "then": one,
        });
    }
    schema["$defs"] = defs;
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "The config file of ojs-throttle".into();
    ship_must_be("schema.json", &schema);
}
