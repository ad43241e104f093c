//! Pages of the manual, and the parts of them that tests write.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The longest line of a page, in columns.
pub const COLUMNS: usize = 100;

/// Two tests may write parts of one chapter.
static ALONE: Mutex<()> = Mutex::new(());

fn file(chapter: &str) -> PathBuf {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manual");
    manual.join(chapter).with_extension("md")
}

/// The text of a chapter.
pub fn read(chapter: &str) -> String {
    let file = file(chapter);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A file of `src/ship` must be this. With `UPDATE=1` it is from now on.
pub fn ship_must_be(name: &str, value: &serde_json::Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/ship")
        .join(name);
    let text = format!("{value:#}\n");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(file, text).unwrap();
        return;
    }
    let now = fs::read_to_string(file).unwrap();
    let differs = now.lines().zip(text.lines()).find(|(a, b)| a != b);
    let told = "UPDATE=1 cargo test --test it -- docs:: writes it anew";
    assert!(
        now == text,
        "src/ship/{name} is not what the sources say: {differs:?}; {told}"
    );
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
         UPDATE=1 cargo test --test it -- docs:: told:: writes it anew"
    );
}

/// All of the chapter from its first heading of the second level on must be `text`.
pub fn entries_must_be(chapter: &str, text: &str) {
    let _alone = ALONE.lock();
    let now = read(chapter);
    let (by_hand, _) = now.split_once("\n## ").unwrap_or((&now, ""));
    must_be(
        chapter,
        &format!("{}\n\n{}\n", by_hand.trim_end(), text.trim_end()),
    );
}

/// What stands under `heading`, up to the next heading of its level or above, must be `text`.
pub fn section_must_be(chapter: &str, heading: &str, text: &str) {
    let _alone = ALONE.lock();
    let now = read(chapter);
    let begin = now.find(&format!("\n{heading}\n"));
    let begin = begin.unwrap_or_else(|| panic!("{chapter} has no {heading}")) + 1;
    let within = begin + heading.len() + 1;
    let level = heading.split(' ').next().unwrap();
    let ends = (1..=level.len()).filter_map(|n| now[within..].find(&format!("\n{} ", &level[..n])));
    let end = ends.min().map_or(now.len(), |end| within + end + 1);
    let after = &now[end..];
    let gap = if after.is_empty() { "" } else { "\n" };
    let begin = &now[..within];
    must_be(
        chapter,
        &format!("{begin}\n{}\n{gap}{after}", text.trim_end()),
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

/// A table.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rule = vec!["---".to_owned(); head.len()];
    let rows = [head, rule].into_iter().chain(rows.iter().cloned());
    rows.map(|row| format!("| {} |\n", row.join(" | ")))
        .collect()
}
