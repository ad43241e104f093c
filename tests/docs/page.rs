//! Pages of the manual, and the parts of them that tests write.

use std::fs;
use std::path::{Path, PathBuf};

/// The longest line of a page, in columns.
pub const COLUMNS: usize = 100;

fn file(chapter: &str) -> PathBuf {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manual");
    manual.join(chapter).with_extension("md")
}

/// The text of a chapter.
pub fn read(chapter: &str) -> String {
    let file = file(chapter);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The chapter must be this text. With `UPDATE=1` it is from now on.
pub fn must_be(chapter: &str, text: &str) {
    let now = read(chapter);
    if now == text {
        return;
    }
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(file(chapter), text).unwrap();
        return;
    }
    let differs = now.lines().zip(text.lines()).find(|(a, b)| a != b);
    panic!(
        "chapter {chapter} is not what the sources say: {differs:?}\n\
         UPDATE=1 cargo test --test it docs:: writes it anew"
    );
}

/// All of the chapter from its first heading of the second level on must be `text`.
pub fn entries_must_be(chapter: &str, text: &str) {
    let now = read(chapter);
    let (by_hand, _) = now.split_once("\n## ").unwrap_or((&now, ""));
    must_be(
        chapter,
        &format!("{}\n\n{}\n", by_hand.trim_end(), text.trim_end()),
    );
}

/// A paragraph, or the text of an item, in lines that are not too long; all but the first begin with `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            out += &format!("\n{indent}");
            column = indent.len();
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out
}

/// Markdown with paragraphs and lists, in lines that are not too long.
pub fn prose(text: &str) -> String {
    let mut blocks: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines().map(str::trim) {
        let is_item = line.starts_with("- ");
        match blocks.last_mut() {
            Some(block) if goes_on && !is_item && !line.is_empty() => *block += &format!(" {line}"),
            _ if line.is_empty() => {}
            _ => blocks.push(line.to_owned()),
        }
        goes_on = !line.is_empty();
    }
    let mut out = String::new();
    for (nth, block) in blocks.iter().enumerate() {
        let is_item = |block: &String| block.starts_with("- ");
        let follows = nth > 0 && is_item(block) && is_item(&blocks[nth - 1]);
        out += match (nth, follows) {
            (0, _) => "",
            (_, true) => "\n",
            (_, false) => "\n\n",
        };
        out += &wrapped(block, if is_item(block) { "  " } else { "" });
    }
    out
}

/// An entry: a heading and what stands below it.
pub fn entry(heading: &str, text: &str) -> String {
    format!("{heading}\n\n{}\n\n", prose(text))
}
