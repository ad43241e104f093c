//! The scanner that is fed in pieces against serde_json, and against a reader of whole event streams.

use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::*;
use crate::{Json, JsonError};

const PATHS: [&[&str]; 5] = [
    &["usage", "total_tokens"],
    &["usage", "input"],
    &["usage", "d\u{1F600}", "é"],
    &["total_tokens"],
    &["message", "usage", "input"],
];

fn paths(of: &[&[&str]]) -> Arc<[Box<[Box<str>]>]> {
    let path = |names: &&[&str]| names.iter().map(|name| Box::from(*name)).collect();
    of.iter().map(path).collect()
}

fn scanner(framing: Framing) -> Scanner {
    Scanner::new(paths(&PATHS), framing)
}

fn all(scanner: &Scanner) -> Vec<Option<u64>> {
    (0..PATHS.len()).map(|nth| scanner.found(nth)).collect()
}

fn after(pieces: &[&[u8]], framing: Framing) -> Scanner {
    let mut scanner = scanner(framing);
    pieces.iter().for_each(|piece| scanner.push(piece));
    scanner
}

/// What the text says of one path.
fn found(path: &[&str], text: &str) -> Option<u64> {
    let mut scanner = Scanner::new(paths(&[path]), Framing::Json);
    scanner.push(text.as_bytes());
    scanner.found(0)
}

// The other reader: a tree, with all members of a name.

enum Tree {
    Number(Option<u64>),
    Object(Vec<(String, Tree)>),
    Other,
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Tree, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("anything")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree::Number(Some(number)))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Number(None))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        let is_negative = number.is_sign_negative();
        Ok(Tree::Number((!is_negative).then_some(number.ceil() as u64)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        while items.next_element::<Tree>()?.is_some() {}
        Ok(Tree::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = members.next_entry()? {
            all.push(member);
        }
        Ok(Tree::Object(all))
    }
}

/// The last number at a path.
fn last(tree: &Tree, path: &[&str]) -> Option<u64> {
    match (tree, path.split_first()) {
        (Tree::Number(number), None) => *number,
        (Tree::Object(members), Some((first, rest))) => {
            let named = members.iter().rev().filter(|(name, _)| name == first);
            named.filter_map(|(_, tree)| last(tree, rest)).next()
        }
        _ => None,
    }
}

/// The last number at a path of an event's text, at its root or below one of its members.
fn last_of_event(tree: &Tree, path: &[&str]) -> Option<u64> {
    let Tree::Object(members) = tree else {
        return None;
    };
    let of_member = |(name, tree): &(String, Tree)| {
        let below = BELOW.contains(&Some(name)).then(|| last(tree, path));
        let (first, rest) = path.split_first()?;
        let root = (name == first).then(|| last(tree, rest)).flatten();
        // Only one path begins with such a name itself.
        root.or(below.flatten())
    };
    members.iter().rev().filter_map(of_member).next()
}

// What is read.

const NUMBERS: &str = "0 -0 7 12 12.0 12.25 -5 1e3 1E+2 25e-1 0e0 1e-9 0.0 1e20 1e300 18446744073709551615 \
    18446744073709551616 99999999999999999999999 -9223372036854775809";
const OTHERS: &str = r#"null true false "" "5" "a\"}{[]:,\\" "\u00e9\ud83d\ude00" "0123456789abcdef0123456789abcdef\n""#;
const NAMES: &str = r#"usage total_tokens input message response us\u0061ge d\ud83d\ude00 d😀 \u00e9 usag usage\n in\/put"#;

fn one_of<'a>(words: &'a str, random: &mut SmallRng) -> &'a str {
    let words: Vec<&str> = words.split_whitespace().collect();
    words.choose(random).unwrap()
}

fn body(random: &mut SmallRng, depth: u32, to: &mut String) {
    let blank = |random: &mut SmallRng| match random.random_range(0..12) {
        0 => " ",
        1 => "\n\t ",
        _ => "",
    };
    let kind = match depth {
        0 => 8,
        3 => 0,
        _ => random.random_range(0..9),
    };
    to.push_str(blank(random));
    match kind {
        0..4 => to.push_str(one_of(NUMBERS, random)),
        4 => to.push_str(one_of(OTHERS, random)),
        5 => {
            to.push('[');
            for nth in 0..random.random_range(0..4) {
                to.push_str(if nth > 0 { "," } else { "" });
                body(random, depth + 1, to);
            }
            to.push(']');
        }
        _ => {
            to.push('{');
            for nth in 0..random.random_range(0..5) {
                let name = match (depth, random.random_range(0..3)) {
                    (0, 1..) => "usage",
                    (1, 1..) => one_of("total_tokens input", random),
                    _ => one_of(NAMES, random),
                };
                let before = if nth > 0 { "," } else { "" };
                let (first, second) = (blank(random), blank(random));
                write!(to, "{before}{first}\"{name}\"{second}:").unwrap();
                body(random, depth + 1, to);
            }
            to.push_str(blank(random));
            to.push('}');
        }
    }
    to.push_str(blank(random));
}

/// How many bodies are tried, or a fifth of which.
fn bodies() -> u64 {
    let count = std::env::var("BODIES");
    count.map_or(10_000, |count| count.parse().unwrap())
}

/// What is found, however the text is cut in two, and byte by byte.
fn in_all_splits(text: &[u8], framing: Framing) -> (Vec<Option<u64>>, bool) {
    let whole = after(&[text], framing);
    let told = (all(&whole), whole.is_broken());
    let mut fed = scanner(framing);
    for (at, byte) in text.iter().enumerate() {
        let mut cut = fed.clone();
        cut.push(text.split_at(at).1);
        assert_eq!(
            (all(&cut), cut.is_broken()),
            told,
            "at {at} of {}",
            text.escape_ascii()
        );
        fed.push(&[*byte]);
    }
    assert_eq!(
        (all(&fed), fed.is_broken()),
        told,
        "bytes of {}",
        text.escape_ascii()
    );
    told
}

#[test]
fn it_finds_what_serde_json_finds() {
    let mut numbers = 0;
    for seed in 0..bodies() {
        let random = &mut SmallRng::seed_from_u64(seed);
        let mut text = String::new();
        body(random, 0, &mut text);
        let (told, is_broken) = in_all_splits(text.as_bytes(), Framing::Json);
        let tree: Tree = serde_json::from_str(&text).unwrap();
        let expected: Vec<Option<u64>> = PATHS.iter().map(|path| last(&tree, path)).collect();
        assert_eq!((&told, is_broken), (&expected, false), "{seed}: {text}");
        numbers += expected.iter().flatten().count() as u64;
    }
    assert!(numbers > bodies() / 5, "{numbers}");
}

/// What is no JSON to the reader of whole texts is none here, and nothing is found in it.
#[test]
fn it_takes_for_json_what_the_whole_reader_does() {
    let (mut broken, mut odd) = (0, Vec::new());
    let bodies = bodies() / 5;
    for seed in 0..bodies {
        let random = &mut SmallRng::seed_from_u64(seed);
        let mut text = String::new();
        body(random, 0, &mut text);
        odd.clear();
        odd.extend_from_slice(text.as_bytes());
        for _ in 0..random.random_range(1..3) {
            let at = random.random_range(0..odd.len());
            match random.random_range(0..4) {
                0 => drop(odd.remove(at)),
                1 => odd.truncate(at),
                _ => odd.insert(
                    at,
                    *b"{}[],:\"\\0123.eE+-truefalsn \n\x00\x1f\xff"
                        .choose(random)
                        .unwrap(),
                ),
            }
            if odd.is_empty() {
                odd.push(b' ');
            }
        }
        // A number has ended then.
        odd.push(b'\n');
        let (told, is_broken) = in_all_splits(&odd, Framing::Json);
        let expected = match Json::parse(&odd, DEPTH.into()) {
            Err(JsonError::Malformed(at)) => at < odd.len(),
            Err(_) => true,
            Ok(_) => false,
        };
        assert_eq!(is_broken, expected, "{seed}: {}", odd.escape_ascii());
        assert!(!is_broken || told.iter().all(Option::is_none));
        broken += u64::from(is_broken);
    }
    assert!(broken > bodies / 4 && broken < bodies);
}

/// A reader of a whole stream, as the standard of HTML has it: the data of its events.
fn data(stream: &str) -> Vec<String> {
    let stream = stream.strip_prefix('\u{FEFF}').unwrap_or(stream);
    let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut event) = (Vec::new(), Vec::new());
    for line in stream.split('\n') {
        match line.split_once(':').unwrap_or((line, "")) {
            ("", "") if line.is_empty() => events.push(std::mem::take(&mut event).join("\n")),
            ("data", value) => event.push(value.strip_prefix(' ').unwrap_or(value).to_owned()),
            _ => {}
        }
    }
    events
}

/// A stream of some events, as the standard has it.
fn stream(random: &mut SmallRng) -> String {
    let mark = if random.random_bool(0.2) {
        "\u{FEFF}"
    } else {
        ""
    };
    let mut stream = mark.to_owned();
    for _ in 0..random.random_range(1..4) {
        let mut text = String::new();
        body(random, 0, &mut text);
        if random.random_bool(0.2) {
            text = "[DONE]".to_owned();
        }
        let mut lines = Vec::new();
        if random.random_bool(0.3) {
            lines.push(
                one_of(
                    ":hm event:data:{} data id dat datas:5 \u{FEFF}data:{",
                    random,
                )
                .to_owned(),
            );
        }
        let before = if random.random_bool(0.5) {
            "data:"
        } else {
            "data: "
        };
        lines.extend(text.split('\n').map(|line| format!("{before}{line}")));
        lines.push(String::new());
        for line in lines {
            // A line feed behind a carriage return ends no other line.
            let ends: &[&str] = if line.is_empty() {
                &["\r", "\r\n"]
            } else {
                &["\n", "\r", "\r\n"]
            };
            stream.extend([&*line, ends.choose(random).unwrap()]);
        }
    }
    stream + "\n\n"
}

#[test]
fn it_finds_what_events_say() {
    let (mut numbers, streams) = (0, bodies() / 5);
    for seed in 0..streams {
        let stream = stream(&mut SmallRng::seed_from_u64(seed));
        let (told, _) = in_all_splits(stream.as_bytes(), Framing::Events);
        let events = data(&stream).into_iter();
        let trees: Vec<Tree> = events
            .filter_map(|event| serde_json::from_str(&event).ok())
            .collect();
        let found = |path: &&[&str]| {
            trees
                .iter()
                .rev()
                .find_map(|tree| last_of_event(tree, path))
        };
        let expected: Vec<Option<u64>> = PATHS.iter().map(found).collect();
        assert_eq!(told, expected, "{seed}: {stream:?}");
        numbers += expected.iter().flatten().count() as u64;
    }
    assert!(numbers > streams / 5, "{numbers}");
}

#[test]
fn numbers_names_and_places_are_read_as_json_does() {
    for (text, number) in [
        (r#"{"a":{"b":1e3}}"#, Some(1_000)),
        (r#"{"a":{"b":12.0}}"#, Some(12)),
        (r#"{"a":{"b":12.01}}"#, Some(13)),
        (r#"{"a":{"b":-5}}"#, None),
        (r#"{"a":{"b":"5"}}"#, None),
        (r#"{"a":{"b":null}}"#, None),
        (r#"{"a":{"b":[5]}}"#, None),
        (r#"{"a":[{"b":5}]}"#, None),
        (r#"[{"a":{"b":5}}]"#, None),
        (r#"{"c":{"a":{"b":5}}}"#, None),
        (r#"{"message":{"a":{"b":5}}}"#, None),
        (r#"{"a":{"b":1e400}}"#, Some(u64::MAX)),
        (r#"{"a":{"b":18446744073709551616}}"#, Some(u64::MAX)),
        (r#"{"a":{"b":1,"b":2},"a":{"c":3}}"#, Some(2)),
        (r#"{"a":{"b":1,"b":2},"a":{"b":3}}"#, Some(3)),
        (r#"{"\u0061":{"\u0062":4}}"#, Some(4)),
        (r#"{"A":{"b":4}}"#, None),
        (r#"{"a":{"b":5}, "x":"\ud800"}"#, Some(5)),
        // An answer that was cut says what it said; a number may have lost its end.
        (r#"{"a":{"b":5,"c"#, Some(5)),
        (r#"{"a":{"b":5"#, None),
        // What is no JSON says nothing.
        (r#"{"a":{"b":5}}x"#, None),
        (r#"{"a":{"b":5},}"#, None),
        (r#"{"a":{"b":5},"c":NaN}"#, None),
        (r#"{"a":{"b":5},"c":-Infinity}"#, None),
        (r#"{"a":{"b":05}}"#, None),
        ("\u{FEFF}{\"a\":{\"b\":5}}", None),
        ("{\"a\":{\"b\":5},\"c\":\"\n\"}", None),
    ] {
        assert_eq!(found(&["a", "b"], text), number, "{text}");
    }
    // A half of a pair is no letter.
    assert_eq!(found(&["\u{FFFD}"], r#"{"\ud800":1}"#), None);
    let deep = |levels: usize| {
        format!(
            r#"{{"b":1,"c":{}{}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    assert_eq!(found(&["b"], &deep(63)), Some(1));
    assert_eq!(found(&["b"], &deep(64)), None);
}

#[test]
fn the_streams_of_known_vendors_are_read() {
    let of = |stream: &str, path: &[&str]| {
        let mut scanner = Scanner::new(paths(&[path]), Framing::Events);
        scanner.push(stream.as_bytes());
        scanner.found(0)
    };
    let openai = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"total_tokens\":21}}\n\ndata: [DONE]\n\n";
    assert_eq!(of(openai, &["usage", "total_tokens"]), Some(21));
    let responses = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":\
        {\"input_tokens\":37,\"total_tokens\":248}}}\n\n";
    assert_eq!(of(responses, &["usage", "total_tokens"]), Some(248));
    let anthropic = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\
        \"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: message_delta\n\
        data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n";
    assert_eq!(of(anthropic, &["usage", "input_tokens"]), Some(25));
    assert_eq!(of(anthropic, &["usage", "output_tokens"]), Some(15));
}

/// However it is cut: the last short text at each path, as JSON has it.
#[test]
fn the_last_text_at_a_path_is_found() {
    let long = "x".repeat(NUMBER);
    for (text, framing, told) in [
        (
            r#"{"a":"m","model":"n","model":"m-\u00e9\"1"}"#,
            Framing::Json,
            Some("m-é\"1"),
        ),
        (
            r#"{"b":{"model":"m"},"c":["model","m"]}"#,
            Framing::Json,
            None,
        ),
        (&format!(r#"{{"model":"{long}"}}"#), Framing::Json, None),
        (r#"{"model":"m"},"#, Framing::Json, None),
        (
            "data: {\"message\":{\"model\":\"m\"}}\n\n",
            Framing::Events,
            Some("m"),
        ),
        ("data: {\"x\":{\"model\":\"m\"}}\n\n", Framing::Events, None),
        (
            &format!(
                "data: {{\"model\":\"\"}}\n\ndata: {{\"model\":\"m\"}}\n\ndata: {{\"model\":\"{long}\"}}\n\n"
            ),
            Framing::Events,
            Some("m"),
        ),
    ] {
        for cut in 0..text.len() {
            let mut scanner = Scanner::new(paths(&[&["n"], &["model"]]), framing);
            let (first, rest) = text.as_bytes().split_at(cut);
            scanner.push(first);
            scanner.push(rest);
            assert_eq!(scanner.text_at(1), told, "{text} {cut}");
        }
    }
}

/// Whatever comes, it takes less than a KiB.
#[test]
fn its_memory_does_not_grow() {
    let long = 1 << 17;
    let texts = [
        "[".repeat(long),
        "{\"a\":".repeat(long),
        format!("{{\"{}\":1}}", "a".repeat(long)),
        format!("{{\"{}\":1}}", "\\u0061".repeat(long)),
        format!("{{\"usage\":{{\"input\":{}}}}}", "9".repeat(long)),
        format!("\"{}\"", "\\\"é".repeat(long)),
        "[1,".to_owned() + &"123456789.25e-1,".repeat(long),
        " ".repeat(long),
        "data: {\"usage\":{\"input\":1}}\n\n".repeat(long / 8),
        "data:{\n".repeat(long),
        "data".repeat(long),
        "\r\n\n\r".repeat(long),
    ];
    for text in &texts {
        for (framing, before) in [
            (Framing::Json, ""),
            (Framing::Events, ""),
            (Framing::Events, "data:"),
        ] {
            let mut scanner = scanner(framing);
            scanner.push(before.as_bytes());
            let mut most = 0;
            for piece in text.as_bytes().chunks(4_099) {
                scanner.push(piece);
                let lists = size_of_val(&*scanner.found) + size_of_val(&*scanner.matched);
                most = most.max(size_of_val(&scanner) + scanner.token.capacity() + lists);
            }
            assert!(most < 1 << 10, "{most}");
        }
    }
}
