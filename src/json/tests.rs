//! The scanner against serde_json, and splices against the same edits on a tree.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;

/// How deep serde_json goes.
const DEPTH: usize = 127;

fn parsed(text: &str) -> Json<'_> {
    Json::parse(text.as_bytes(), DEPTH).unwrap()
}

// What the properties are tried on.

#[derive(Clone, Debug)]
enum Node {
    Plain(String),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

const NAMES: [&str; 12] = [
    "id",
    "ID",
    "kind",
    "Kind",
    "\u{212A}ind",
    "task",
    "ta\u{17F}k",
    "rate_limit",
    "Rate_Limit",
    "",
    "é",
    "a\"b\\c/d",
];

fn node() -> impl Strategy<Value = Node> {
    let plain = prop_oneof![
        select(vec![
            "null",
            "true",
            "false",
            "0",
            "-0",
            "1.0",
            "5e0",
            "1e999",
            "-1E-7",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "92233720368547758070e-1",
            "0.1000",
        ])
        .prop_map(str::to_owned),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?",
    ];
    let leaf = prop_oneof![
        plain.prop_map(Node::Plain),
        any::<String>().prop_map(Node::Text),
        "[a-z]{0,40}".prop_map(Node::Text),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let name =
            prop_oneof![4 => select(NAMES.to_vec()).prop_map(str::to_owned), 1 => any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Node::Array),
            prop::collection::vec((name, inner), 0..6).prop_map(Node::Object),
        ]
    })
}

/// Writes a node with whitespace and escapes as the dice fall.
fn print(node: &Node, dice: &mut SmallRng, out: &mut String) {
    blank(dice, out);
    match node {
        Node::Plain(plain) => out.push_str(plain),
        Node::Text(text) => print_text(text, dice, out),
        Node::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                print(item, dice, out);
            }
            blank(dice, out);
            out.push(']');
        }
        Node::Object(members) => {
            out.push('{');
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                blank(dice, out);
                print_text(name, dice, out);
                blank(dice, out);
                out.push(':');
                print(value, dice, out);
            }
            blank(dice, out);
            out.push('}');
        }
    }
    blank(dice, out);
}

fn blank(dice: &mut SmallRng, out: &mut String) {
    while dice.random_ratio(1, 4) {
        out.push([' ', '\n', '\r', '\t'][dice.random_range(0..4)]);
    }
}

fn print_text(text: &str, dice: &mut SmallRng, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        if dice.random_ratio(1, 8) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let hex = format!("\\u{unit:04x}");
                out.push_str(&if dice.random() {
                    hex
                } else {
                    hex.to_uppercase().replace('U', "u")
                });
            }
        } else if character == '/' && dice.random() {
            out.push_str("\\/");
        } else {
            let quoted = quote(&character.to_string());
            out.push_str(quoted.get(1..quoted.len() - 1).unwrap());
        }
    }
    out.push('"');
}

fn document() -> impl Strategy<Value = String> {
    (node(), any::<u64>()).prop_map(|(node, seed)| {
        let mut out = String::new();
        print(&node, &mut SmallRng::seed_from_u64(seed), &mut out);
        out
    })
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Delete(Index),
    Cut(Index),
    Swap(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let byte = || {
        prop_oneof![
            select(
                b"{}[]:,\"\\ \n\t0123456789-+.eEutfnrlas/\0\x1f\x7f\x80\xbf\xc3\xe2\xed\xf0\xff"
                    .to_vec()
            ),
            any::<u8>(),
        ]
    };
    let piece = select(vec![
        "\\ud800", "\\udc00", "\\u12", "01", "1.", ".5", "1e", "-", "nul", "//", "{}", "[]", ",,",
        "\u{feff}", "é", "\\x",
    ]);
    prop_oneof![
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Insert(at, vec![byte])),
        (any::<Index>(), piece).prop_map(|(at, piece)| Mutation::Insert(at, piece.into())),
        any::<Index>().prop_map(Mutation::Delete),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), any::<Index>()).prop_map(|(one, other)| Mutation::Swap(one, other)),
    ]
}

fn mutate(text: &mut Vec<u8>, mutation: &Mutation) {
    let len = text.len();
    match mutation {
        Mutation::Insert(at, bytes) => {
            let at = at.index(len + 1);
            text.splice(at..at, bytes.iter().copied());
        }
        _ if len == 0 => {}
        Mutation::Set(at, byte) => text[at.index(len)] = *byte,
        Mutation::Delete(at) => {
            text.remove(at.index(len));
        }
        Mutation::Cut(at) => text.truncate(at.index(len)),
        Mutation::Swap(one, other) => text.swap(one.index(len), other.index(len)),
    }
}

// serde_json's view.

/// An object's members in order, duplicates kept.
struct Entries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Everything that a value says of itself is what serde_json says.
fn assert_agrees(json: Json<'_>) {
    let raw = json.raw();
    let items: Vec<_> = json.items().collect();
    let members: Vec<_> = json.members().collect();
    match json.kind() {
        Kind::Null => assert_eq!(raw, b"null"),
        Kind::Bool => assert_eq!(serde_json::from_slice(raw).ok(), json.boolean()),
        Kind::Number => assert_number(json),
        Kind::String => {
            assert_eq!(
                serde_json::from_slice::<String>(raw).ok(),
                json.text().map(Cow::into_owned)
            );
        }
        Kind::Array => {
            let theirs: Vec<&RawValue> = serde_json::from_slice(raw).unwrap();
            let theirs: Vec<_> = theirs.iter().map(|item| item.get().as_bytes()).collect();
            assert_eq!(theirs, items.iter().map(Json::raw).collect::<Vec<_>>());
        }
        Kind::Object => {
            let names: Option<Vec<_>> = members.iter().map(|m| m.name.text()).collect();
            let theirs = serde_json::from_slice::<Entries>(raw).ok();
            assert_eq!(names.is_some(), theirs.is_some());
            for (ours, (name, value)) in members.iter().zip(theirs.into_iter().flat_map(|t| t.0)) {
                assert_eq!(ours.name.text().unwrap(), name);
                assert_eq!(ours.value.raw(), value.get().as_bytes());
            }
            assert_named(json, &members);
        }
    }
    assert!(json.kind() == Kind::Array || items.is_empty());
    assert!(json.kind() == Kind::Object || members.is_empty());
    items
        .into_iter()
        .chain(members.into_iter().map(|m| m.value))
        .for_each(assert_agrees);
}

/// A number's value found by moving its point digit by digit.
fn assert_number(json: Json<'_>) {
    let number = written(json).to_lowercase();
    let (mantissa, exponent) = number.split_once('e').unwrap_or((&number, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (sign, before) = before
        .strip_prefix('-')
        .map_or(("", before), |rest| ("-", rest));
    let mut before: VecDeque<char> = before.chars().collect();
    let mut after: VecDeque<char> = after.chars().collect();
    // No number here is so long that a larger exponent makes a difference.
    let far = if exponent.starts_with('-') { -999 } else { 999 };
    let exponent = exponent.parse().unwrap_or(far).clamp(-999, 999);
    for _ in 0..exponent {
        before.push_back(after.pop_front().unwrap_or('0'));
    }
    for _ in exponent..0 {
        after.push_front(before.pop_back().unwrap_or('0'));
    }
    let whole = after.iter().all(|&digit| digit == '0');
    let digits: String = sign.chars().chain(['0']).chain(before).collect();
    assert_eq!(
        json.int(),
        digits.parse().ok().filter(|_| whole),
        "{number}"
    );
}

fn folded(name: &str) -> String {
    name.replace('\u{212A}', "k")
        .replace('\u{17F}', "s")
        .to_ascii_lowercase()
}

/// Looking up is what a plain search finds, and no text that has a name is thought not to.
fn assert_named(json: Json<'_>, members: &[Member<'_>]) {
    for name in ["id", "Kind", "task", "rate_limit", ""] {
        let has = |m: &&Member<'_>, exact: bool| {
            m.name.text().is_some_and(|t| {
                if exact {
                    t == name
                } else {
                    folded(&t) == folded(name)
                }
            })
        };
        let range = |m: &Member<'_>| m.value.range();
        let folded = members.iter().rfind(|m| has(m, false)).map(range);
        let exact = members.iter().rfind(|m| has(m, true)).map(range);
        assert_eq!(json.get(name).map(|v| v.range()), folded);
        assert_eq!(
            json.pick(["x", name]).map(|v| v.map(|v| v.range())),
            [json.get("x").map(|v| v.range()), folded.clone()]
        );
        assert_eq!(json.get_exact(name).map(|v| v.range()), exact);
        assert!(folded.is_none() || may_name(json.raw(), name));
    }
}

/// Reads the next value piece by piece, and each object's members as `pick` finds them.
fn read_all(reader: &mut Reader<'_>) -> Result<(), JsonError> {
    let whole = reader.items(|reader| {
        reader.members(|_, reader| read_all(reader))?;
        Ok(())
    });
    whole.map(drop)
}

/// What is checked and read in one pass is what is found after a check.
fn assert_read_alike(text: &[u8]) {
    let parsed = Json::parse(text, DEPTH);
    let mut reader = Reader::new(text, DEPTH);
    let read = read_all(&mut reader).and_then(|()| reader.end());
    assert_eq!(read, parsed.map(drop));
    let names = ["id", "Kind", "task", "rate_limit", ""];
    let ranges = |found: [Option<Json<'_>>; 5]| found.map(|value| value.map(|v| v.range()));
    if let Ok(json) = parsed {
        let mut reader = Reader::new(text, DEPTH);
        let (whole, found) = reader.pick(names).unwrap();
        assert_eq!(whole.range(), json.range());
        assert_eq!(ranges(found), ranges(json.pick(names)));
    }
}

/// A text is taken exactly when serde_json takes it, with a mark for each byte of what is not UTF-8.
fn assert_judged_alike(text: &[u8]) {
    assert_read_alike(text);
    let mut marked = text.to_vec();
    if let Err(error) = std::str::from_utf8(text) {
        let beyond = marked.iter_mut().skip(error.valid_up_to());
        beyond
            .filter(|byte| !byte.is_ascii())
            .for_each(|byte| *byte = b'?');
        assert_eq!(
            Json::parse(text, DEPTH).is_ok(),
            Json::parse(&marked, DEPTH).is_ok()
        );
    }
    let text = &*marked;
    let well_formed = serde_json::from_slice::<&RawValue>(text).is_ok();
    let value = serde_json::from_slice::<Value>(text);
    match Json::parse(text, DEPTH) {
        Ok(json) => {
            assert!(well_formed);
            if let Err(error) = value {
                // What is JSON all the same.
                let error = error.to_string();
                let known = ["out of range", "surrogate", "hex escape"];
                assert!(known.iter().any(|known| error.contains(known)), "{error}");
            }
            assert_agrees(json);
        }
        Err(JsonError::Malformed(at) | JsonError::Trailing(at)) => {
            assert!(!well_formed);
            assert!(at <= text.len());
        }
        Err(JsonError::Deep(_)) => assert!(value.is_err()),
    }
}

// A tree that the splices are compared with: strings as they are written.

#[derive(Clone, PartialEq, Debug)]
enum Tree {
    Leaf(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

fn written(json: Json<'_>) -> String {
    String::from_utf8(json.raw().to_vec()).unwrap()
}

fn tree(json: Json<'_>) -> Tree {
    match json.kind() {
        Kind::Array => Tree::Array(json.items().map(tree).collect()),
        Kind::Object => Tree::Object(
            json.members()
                .map(|m| (written(m.name), tree(m.value)))
                .collect(),
        ),
        _ => Tree::Leaf(written(json)),
    }
}

/// Makes random edits in a splice and returns the tree that must come of them.
fn edit(json: Json<'_>, splice: &mut Splice, dice: &mut SmallRng) -> Tree {
    match json.kind() {
        Kind::Array => Tree::Array(json.items().map(|item| edit(item, splice, dice)).collect()),
        Kind::Object => {
            let mut members = Vec::new();
            let eager = dice.random_range(0..=4);
            let mut added = Vec::new();
            for member in json.members() {
                // Additions between removals: their order among each other is all that counts.
                if dice.random_ratio(1, 6) {
                    splice.add_member(json, "new \"", b"[ 1]");
                    added.push((
                        "\"new \\\"\"".to_owned(),
                        Tree::Array(vec![Tree::Leaf("1".into())]),
                    ));
                }
                let value = edit(member.value, splice, dice);
                if dice.random_ratio(eager, 4) {
                    splice.remove_member(json, member);
                } else {
                    members.push((written(member.name), value));
                }
            }
            if dice.random() {
                splice.add_member(json, "last", b"2");
                added.push(("\"last\"".to_owned(), Tree::Leaf("2".into())));
            }
            members.extend(added);
            Tree::Object(members)
        }
        _ if dice.random_ratio(1, 5) => {
            splice.replace(json.range(), "\"other\"");
            Tree::Leaf("\"other\"".into())
        }
        _ => tree(json),
    }
}

proptest! {
    #[test]
    fn printed_values_are_read_as_serde_json_reads_them(text in document()) {
        assert!(Json::parse(text.as_bytes(), DEPTH).is_ok());
        assert_judged_alike(text.as_bytes());
    }

    #[test]
    fn mutated_texts_are_judged_as_serde_json_judges_them(
        text in document(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let mut text = text.into_bytes();
        for mutation in &mutations {
            mutate(&mut text, mutation);
            assert_judged_alike(&text);
        }
    }

    #[test]
    fn a_splice_does_what_the_same_edits_do_to_a_tree(text in document(), seed: u64) {
        let json = parsed(&text);
        let mut splice = Splice::new();
        let expected = edit(json, &mut splice, &mut SmallRng::seed_from_u64(seed));
        let untouched = splice.is_empty();
        let result = String::from_utf8(splice.apply(text.as_bytes())).unwrap();
        prop_assert_eq!(tree(parsed(&result)), expected);
        prop_assert!(!untouched || result == text);
    }

    #[test]
    fn quoted_text_reads_back(text: String) {
        let quoted = quote(&text);
        prop_assert_eq!(parsed(&quoted).text().unwrap(), text.as_str());
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    }

    #[test]
    fn a_search_finds_what_a_plain_one_finds(text in "[abkKsS_ ]{0,40}", needle in "[abkKsS_]{0,3}") {
        let lower = text.to_ascii_lowercase();
        let found = lower.contains(&needle.to_ascii_lowercase());
        prop_assert_eq!(contains_ignore_case(text.as_bytes(), &needle), found);
    }

    #[test]
    fn whole_numbers_are_exact(int: i64, zeros in 0_usize..25, point in 0_usize..25) {
        let sign = if int < 0 { "-" } else { "" };
        let digits = int.unsigned_abs().to_string();
        // The same number as a fraction of `point` more digits with the exponent to match.
        let padded = format!("{digits:0>width$}", width = point + 1);
        let (before, after) = padded.split_at(padded.len() - point);
        let before = before.trim_start_matches('0');
        let before = if before.is_empty() { "0" } else { before };
        let same = format!("{sign}{before}.{after}{}e{point}", "0".repeat(zeros + 1));
        prop_assert_eq!(parsed(&same).int(), Some(int), "{}", same);
        let grown = format!("{sign}{digits}{}e-{zeros}", "0".repeat(zeros));
        prop_assert_eq!(parsed(&grown).int(), Some(int), "{}", grown);
    }
}

#[test]
fn depth_counts_arrays_and_objects() {
    assert!(Json::parse(b"1", 0).is_ok());
    assert_eq!(Json::parse(b"[]", 0).unwrap_err(), JsonError::Deep(0));
    assert!(Json::parse(br#"{"a":[{}],"b":[[]]}"#, 3).is_ok());
    assert_eq!(
        Json::parse(br#"{"a":[{}]}"#, 2).unwrap_err(),
        JsonError::Deep(2)
    );
    assert_eq!(
        Reader::new(br#"{"a":[{}]}"#, 2).pick(["a"]).unwrap_err(),
        JsonError::Deep(2)
    );
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        for levels in [DEPTH, DEPTH + 1] {
            let text = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            let ours = Json::parse(text.as_bytes(), DEPTH).is_ok();
            assert_eq!(ours, serde_json::from_str::<Value>(&text).is_ok());
            assert_eq!(ours, levels == DEPTH);
        }
    }
}

#[test]
fn a_depth_bomb_does_no_harm() {
    let levels = 100_000;
    let bomb = "[".repeat(levels);
    assert_eq!(
        Json::parse(bomb.as_bytes(), 64).unwrap_err(),
        JsonError::Deep(64)
    );
    assert_eq!(
        Json::parse(bomb.as_bytes(), usize::MAX).unwrap_err(),
        JsonError::Malformed(levels)
    );
    let text = format!("{}{}", r#"{"a":["#.repeat(levels), "]}".repeat(levels));
    let json = Json::parse(text.as_bytes(), usize::MAX).unwrap();
    assert_eq!(json.get("a").unwrap().items().count(), 1);
}

#[test]
fn ends_are_found_wherever_escapes_and_quotes_fall_in_a_block() {
    for before in 0..140 {
        for pairs in [0, 1, 2, 3, 31, 32, 33, 70] {
            let (fill, slashes) = ("x".repeat(before), r"\\".repeat(pairs));
            let first = format!(r#"[{{"{fill}{slashes}":"]}}{slashes}\"]","{slashes}":[[]]}}]"#);
            let text = format!(r#"[{first},2]"#);
            let raw: Vec<_> = parsed(&text).items().map(written).collect();
            assert_eq!(raw, [first.as_str(), "2"]);
        }
    }
}

#[test]
fn a_string_ends_or_breaks_at_the_first_byte_that_does_it() {
    for length in 0..200 {
        let fill = "x".repeat(length);
        for rest in ["", "y", "y\", \"zzzzzzzzzzzzzzzz\""] {
            let closed = format!("\"{fill}\"{rest}").into_bytes();
            let end = Reader::new(&closed, 0).value().unwrap().range().end;
            assert_eq!(end, length + 2, "{rest:?}");
            for control in [0, b'\n', 0x1f] {
                let text = [b"\"", fill.as_bytes(), &[control], rest.as_bytes()].concat();
                let fault = Reader::new(&text, 0).value().unwrap_err();
                assert_eq!(fault, JsonError::Malformed(length + 1), "{rest:?}");
            }
        }
    }
}

#[test]
fn faults_are_placed() {
    let fault = |text: &[u8]| match Json::parse(text, DEPTH).unwrap_err() {
        JsonError::Malformed(at) | JsonError::Trailing(at) => at,
        JsonError::Deep(_) => panic!("not deep"),
    };
    assert_eq!(fault(b""), 0);
    assert_eq!(fault(b"  "), 2);
    assert_eq!(fault(b"{}x"), 2);
    assert_eq!(fault(b"[1,]"), 3);
    assert_eq!(fault(b"{\"a\":1,}"), 7);
    assert_eq!(fault(b"01"), 1);
    assert_eq!(fault(b"trux"), 3);
    assert_eq!(fault(b"\"a\tb\""), 2);
    assert_eq!(fault(b"\"\\u12g4\""), 5);
    assert_eq!(fault(b"\"abc"), 4);
    assert_eq!(fault(b"{} \xff"), 3);
    assert_eq!(fault(b"[x, \"\xff\"]"), 1);
    assert_eq!(fault(b"[\"\xff\", \xff]"), 6);
    assert_eq!(fault("\u{feff}{}".as_bytes()), 0);
}

#[test]
fn what_is_not_utf8_is_read_as_go_reads_it() {
    let text = b"{\"a\xff\":\"\xc3\", \"b\":\"x\xffy\", \"args\":[\"\xff\\n\"]}";
    let json = Json::parse(text, DEPTH).unwrap();
    assert_eq!(json.get("b").unwrap().text().unwrap(), "x\u{fffd}y");
    assert_eq!(json.get("a\u{fffd}").unwrap().text().unwrap(), "\u{fffd}");
    let args = json.get("args").unwrap();
    assert_eq!(args.raw(), b"[\"\xff\\n\"]", "bytes stay as they are");
    assert_eq!(args.items().next().unwrap().text().unwrap(), "\u{fffd}\n");
}

#[test]
fn names_match_as_go_matches_them() {
    let text = "{\"queue\":1,\"QUEUE\":2,\"\\u0051ueue\":3,\"queue2\":4,\"ta\u{17F}\u{212A}\":5,\"Ta\\u017fK\":6}";
    let json = parsed(text);
    assert_eq!(json.get("Queue").unwrap().int(), Some(3));
    assert_eq!(json.get_exact("queue").unwrap().int(), Some(1));
    assert_eq!(json.get_exact("Queue").unwrap().int(), Some(3));
    assert_eq!(json.get("task").unwrap().int(), Some(6));
    assert_eq!(json.get_exact("ta\u{17F}\u{212A}").unwrap().int(), Some(5));
    assert!(json.get_exact("task").is_none());
    let [queue, none, task] = json.pick(["QUEUE", "que", "TASK"]);
    assert_eq!(
        (queue.unwrap().int(), task.unwrap().int()),
        (Some(3), Some(6))
    );
    assert!(none.is_none());
    assert!(parsed("[1]").get("a").is_none());
    assert!(parsed("\"a\"").get_exact("a").is_none());
}

#[test]
fn texts_have_their_escapes_undone() {
    let text = |json| parsed(json).text();
    assert!(matches!(
        text(r#""plain é""#),
        Some(Cow::Borrowed("plain é"))
    ));
    assert_eq!(
        text(r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#).unwrap(),
        "\"\\/\u{8}\u{c}\n\r\té😀"
    );
    assert_eq!(text(r#""\ud800""#), None);
    assert_eq!(text(r#""\udc00\ud800""#), None);
    assert_eq!(text(r#""\ud800\ud800\udc00""#), None);
    assert_eq!(text(r#""\ud800x""#), None);
    assert_eq!(text("1"), None);
}

#[test]
fn whole_numbers_that_fit_are_ints() {
    let int = |json| parsed(json).int();
    for five in ["5", "5.0", "5e0", "0.5e1", "500E-2", "50.0e-1", "0.0005e+4"] {
        assert_eq!(int(five), Some(5), "{five}");
    }
    assert_eq!(int("-0.0"), Some(0));
    assert_eq!(int("0e99999999999999999999"), Some(0));
    assert_eq!(int("-9223372036854775808.0"), Some(i64::MIN));
    assert_eq!(int("9007199254740993e0"), Some(9_007_199_254_740_993));
    for none in [
        "5.5",
        "9223372036854775808",
        "1e19",
        "1e99999999999999999999",
        "1e-1",
        "\"5\"",
        "null",
    ] {
        assert_eq!(int(none), None, "{none}");
    }
    let long = format!("1{}e-5000", "0".repeat(5000));
    assert_eq!(int(&long), Some(1));
}

/// The text after removing the members of these names and adding `x` so many times.
fn spliced(text: &str, remove: &[&str], add: usize) -> String {
    let json = parsed(text);
    let mut splice = Splice::new();
    for member in json
        .members()
        .filter(|m| remove.iter().any(|name| m.is_named(name)))
    {
        splice.remove_member(json, member);
    }
    for number in 0..add {
        splice.add_member(json, "x", number.to_string().as_bytes());
    }
    String::from_utf8(splice.apply(text.as_bytes())).unwrap()
}

#[test]
fn removed_members_take_their_comma_with_them() {
    let text = r#"{ "a" : 1 , "b": [2],  "c":3 }"#;
    assert_eq!(spliced(text, &[], 0), text);
    assert_eq!(spliced(text, &["a"], 0), r#"{ "b": [2],  "c":3 }"#);
    assert_eq!(spliced(text, &["b"], 0), r#"{ "a" : 1,  "c":3 }"#);
    assert_eq!(spliced(text, &["c"], 0), r#"{ "a" : 1 , "b": [2] }"#);
    assert_eq!(spliced(text, &["a", "b"], 0), r#"{ "c":3 }"#);
    assert_eq!(spliced(text, &["b", "c"], 0), r#"{ "a" : 1 }"#);
    assert_eq!(spliced(text, &["a", "c"], 0), r#"{ "b": [2] }"#);
    assert_eq!(spliced(text, &["a", "b", "c"], 0), r#"{  }"#);
    assert_eq!(spliced(text, &["a", "b", "c"], 2), r#"{ "x":0,"x":1 }"#);
    assert_eq!(spliced(text, &["c"], 1), r#"{ "a" : 1 , "b": [2],"x":0 }"#);
    assert_eq!(
        spliced(text, &[], 2),
        r#"{ "a" : 1 , "b": [2],  "c":3,"x":0,"x":1 }"#
    );
    assert_eq!(spliced("{}", &[], 2), r#"{"x":0,"x":1}"#);
    assert_eq!(spliced("{ }", &[], 1), r#"{"x":0 }"#);
    assert_eq!(spliced(r#"{"a":1}"#, &["a"], 0), "{}");
}

#[test]
fn insertions_at_one_place_keep_their_order() {
    let mut splice = Splice::new();
    splice.replace(2..3, "[two]");
    splice.replace(2..2, "one ");
    splice.replace(0..0, "<");
    splice.replace(2..2, "and ");
    splice.replace(4..4, ">");
    assert_eq!(splice.apply(b"0123"), b"<01one and [two]3>");
}

#[test]
fn a_larger_change_takes_along_what_is_inside() {
    let text = r#"{"a":{"b":1},"c":2}"#;
    let json = parsed(text);
    let first = json.members().next().unwrap();
    let mut splice = Splice::new();
    splice.replace(first.name.range(), "\"z\"");
    splice.add_member(first.value, "d", b"3");
    splice.replace(first.value.get("b").unwrap().range(), "9");
    splice.remove_member(json, first);
    splice.remove_member(json, first);
    assert_eq!(splice.apply(text.as_bytes()), br#"{"c":2}"#);
}

#[test]
fn only_what_cannot_have_a_name_is_spared_the_parsing() {
    assert!(contains_ignore_case(b"{\"Rate_LIMIT\":1}", "rate_limit"));
    assert!(!contains_ignore_case(b"{\"rate-limit\":1}", "rate_limit"));
    assert!(contains_ignore_case(b"", ""));
    assert!(!may_name(b"{\"queue\":1}", "rate_limit"));
    assert!(may_name(b"{\"\\u0072ate_limit\":1}", "rate_limit"));
    assert!(may_name("{\"ta\u{17F}k\":1}".as_bytes(), "task"));
    assert!(may_name("{\"tas\u{212A}\":1}".as_bytes(), "TASK"));
    assert!(!may_name("{\"tas\u{212A}\":1}".as_bytes(), "queue"));
}

/// Names in hexadecimal, of which most bodies have one, are not taken for numbers; each that may be one is.
#[test]
fn exponents_end_where_numbers_do() {
    for text in [
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "0190b0a0-1e400-7e999",
        "7e999.txt",
        "1e40",
    ] {
        let text = format!("{{\"id\":\"{text}\"}}");
        assert!(!may_have_odd_number(text.as_bytes()), "{text}");
    }
    let long = format!("2{}e99", "0".repeat(209));
    for number in ["1e400", "-1E+999", "10.5e3000", "1e0000400", &*long] {
        for end in ["", ",1]", "]", "}", " ]", "\n]", "\t]", "\r]"] {
            let text = format!("[{number}{end}");
            assert!(may_have_odd_number(text.as_bytes()), "{text}");
        }
    }
}
