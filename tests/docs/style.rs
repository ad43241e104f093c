//! How README and manual are written: lines and sentences that are not too long.

use super::page::COLUMNS;

/// The most words of a sentence.
const SENTENCE: usize = 30;

/// What is wrong with the form of a page: each line that is too long, and each sentence.
fn faults(page: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fenced = false;
    let mut paragraph = String::new();
    for (number, line) in text.lines().chain([""]).enumerate() {
        let place = format!("{page}:{}", number + 1);
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced {
            continue;
        }
        if line.chars().count() > COLUMNS {
            faults.push(format!("{place}: more than {COLUMNS} columns"));
        }
        let is_row = line.starts_with('|');
        let item = item(line);
        let goes_on = !(fence || is_row || line.trim().is_empty() || line.starts_with('#'));
        if !goes_on || item.is_some() {
            let long = sentences(&paragraph).filter(|sentence| words(sentence) > SENTENCE);
            faults.extend(long.map(|sentence| format!("before {place}: {sentence}")));
            paragraph.clear();
        }
        if goes_on {
            paragraph += item.unwrap_or(line);
            paragraph.push(' ');
        }
    }
    faults
}

/// The text of an item of a list, where the line begins one.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (mark, text) = line.split_once(' ')?;
    let number = mark.strip_suffix('.');
    let is_number = number.is_some_and(|number| number.parse::<u32>().is_ok());
    (mark == "-" || is_number).then_some(text)
}

/// The sentences of a paragraph.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    [". ", "? ", "! "].iter().fold(
        Box::new(std::iter::once(paragraph)) as Box<dyn Iterator<Item = &str>>,
        |texts, end| Box::new(texts.flat_map(move |text| text.split(*end))),
    )
}

/// How many words there are, without what a link leads to.
fn words(text: &str) -> usize {
    let without_targets = text.split("](").enumerate().map(|(nth, part)| match nth {
        0 => part,
        _ => part.split_once(')').map_or(part, |(_, rest)| rest),
    });
    let text: Vec<&str> = without_targets.collect();
    let text = text.join(" ");
    let words = text.split_whitespace();
    words
        .filter(|word| word.contains(char::is_alphanumeric))
        .count()
}

#[test]
fn every_page_is_written_to_be_read() {
    let pages = super::pages().into_iter();
    let faults: Vec<String> = pages
        .flat_map(|page| faults(&page, &super::read(&page)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_too_long_is_found() {
    let of = |text: &str| faults("page", text).len();
    let sentence = |words: usize| vec!["word"; words].join("\n") + ".";
    assert_eq!(of(&sentence(30)), 0);
    assert_eq!(of(&sentence(31)), 1);
    assert_eq!(of(&format!("{} {}", sentence(30), sentence(30))), 0);
    assert_eq!(of(&format!("- {}\n- {}", sentence(30), sentence(31))), 1);
    assert_eq!(
        of(&format!("```\n{}\n```\n{}", sentence(31), sentence(30))),
        0
    );
    assert_eq!(of(&format!("# {}", "x".repeat(98))), 0);
    assert_eq!(of(&format!("# {}", "x".repeat(99))), 1);
    assert_eq!(of(&format!("| {} | b |", ["w"; 31].join(" "))), 0);
    assert_eq!(words("see [one two](three/four.md) and `five`"), 5);
}
