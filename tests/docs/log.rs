//! The chapter `log`: each WARN and ERROR line of the sources, with what is written about it by hand.

use std::collections::BTreeMap;

use super::page::{entries_must_be, read, wrapped};

/// The lines of the log by their ids: the level, and the message with `…` for what is filled in.
fn lines() -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    for source in super::program() {
        for (call, level) in [("tracing::warn!(", "WARN"), ("tracing::error!(", "ERROR")] {
            for (at, _) in source.match_indices(call) {
                let (id, message) = id_and_message(&source[at + call.len()..]);
                let id = id.unwrap_or_else(|| panic!("no id: {level} {message}"));
                let line = format!("{level} {message} id={id}");
                let before = lines.insert(id, line.clone());
                assert!(
                    before.is_none_or(|before| before == line),
                    "two lines: {line}"
                );
            }
        }
    }
    lines
}

/// What the arguments of a call of `tracing` say. They begin behind the opening bracket.
fn id_and_message(arguments: &str) -> (Option<String>, String) {
    let (mut id, mut message, mut depth) = (None, String::new(), 0);
    let mut rest = arguments;
    while let Some(at) = rest.find(['"', '(', ')']) {
        let (before, from) = rest.split_at(at);
        rest = &from[1..];
        match &from[..1] {
            "(" => depth += 1,
            ")" if depth == 0 => break,
            ")" => depth -= 1,
            _ => {
                let text = string(&mut rest);
                match before.ends_with("id = %") {
                    true => id = Some(text),
                    false if depth == 0 => message = text,
                    false => {}
                }
            }
        }
    }
    (id, filled(message.split('\n').next().unwrap()))
}

/// The string whose quote has been opened; `rest` is left behind its end.
fn string(rest: &mut &str) -> String {
    let mut text = String::new();
    let mut letters = rest.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => match letters.next() {
                Some('n') => text.push('\n'),
                Some('\n') => letters = letters.as_str().trim_start().chars(),
                other => text.extend(other),
            },
            letter => text.push(letter),
        }
    }
    *rest = letters.as_str();
    text
}

/// A format with `…` in place of what is filled in.
fn filled(format: &str) -> String {
    let mut parts = format.split('{');
    let begin = parts.next().unwrap_or_default().to_owned();
    parts.fold(begin, |text, part| {
        text + "…" + part.split_once('}').map_or("", |(_, rest)| rest)
    })
}

/// What stands under a heading by hand: all behind the first fenced block.
fn by_hand(chapter: &str, heading: &str) -> String {
    let section = chapter.split_once(&format!("\n{heading}\n"));
    let section = section.and_then(|(_, rest)| rest.split("\n## ").next());
    let text = section.and_then(|section| section.split_once("\n```\n"));
    text.map(|(_, text)| text.trim().to_owned())
        .unwrap_or_default()
}

#[test]
fn the_manual_has_every_line_of_the_log() {
    let chapter = read("log");
    let mut text = String::new();
    let mut silent = Vec::new();
    for (id, line) in lines() {
        let heading = format!("## `{id}`");
        let told = by_hand(&chapter, &heading);
        text += &format!(
            "{heading}\n\n```text\n{}\n```\n\n{told}\n\n",
            wrapped(&line, "")
        );
        if told.is_empty() {
            silent.push(id);
        }
    }
    entries_must_be("log", &text);
    assert!(
        silent.is_empty(),
        "chapter log does not say what to do: {silent:?}"
    );
}

#[test]
fn a_line_is_read_as_it_is_written() {
    let call = "id = %\"a_b\",\n  job = cut(\"no\"), why,\n \"one \\\n   {two} \\\"and\\\" {:.1}\\nmore\",\n f(1))";
    let (id, message) = id_and_message(call);
    assert_eq!(id.as_deref(), Some("a_b"));
    assert_eq!(message, "one … \"and\" …");
}
