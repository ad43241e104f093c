//! Reads globs, which match queues, types, meta and tenants.

use toml::de::DeValue;

use super::table::{FoundField, Text, TomlTable};
use ojs_policy::Pattern;

/// The characters that names of one sort have. A pattern with another one can never match.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The sort, as it begins a sentence about its characters.
    pub what: &'static str,
    /// Whether a name of them may have it.
    pub allowed: fn(char) -> bool,
}

/// Queue names (OJS core): lower case, digits, `.` and `-`.
pub const QUEUE: Names = Names {
    what: "queue names have",
    allowed: |c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-*?".contains(c),
};
/// Job types (OJS core): as queue names, and `_`.
pub const TYPE: Names = Names {
    what: "job types have",
    allowed: |c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-*?".contains(c),
};

/// One pattern or a list of them.
pub fn patterns(
    table: &TomlTable<'_>,
    found: &FoundField<'_>,
    names: Option<Names>,
) -> Option<Vec<Pattern>> {
    let texts = texts(table, found)?;
    let hint = match found.path.as_str() {
        "queue.name" | "tenant.id" => "write a name, or a glob such as \"*\"",
        _ => "leave it out to match everything",
    };
    let matches_nothing = || format!("`{}` matches nothing", found.path);
    if texts.is_empty() {
        table.error(&found.span, matches_nothing(), hint);
    }
    for text in &texts {
        let strange = names
            .and_then(|names| Some((names, text.text.chars().find(|c| !(names.allowed)(*c))?)));
        if text.text.is_empty() {
            table.error(&text.span, matches_nothing(), hint);
        } else if let Some((names, c)) = strange {
            let title = format!(
                "`{}` can never match: {:?} has {c:?}",
                found.path, text.text
            );
            let hint = format!("{} lower case letters, digits and a few marks", names.what);
            table.warn(&text.span, title, hint);
        }
    }
    Some(texts.iter().map(|text| Pattern::new(&text.text)).collect())
}

/// A text or a list of them.
pub fn texts(table: &TomlTable<'_>, found: &FoundField<'_>) -> Option<Vec<Text>> {
    let items = match (found.items(), found.value) {
        (Some(items), _) => items,
        (None, DeValue::String(_)) => vec![found.clone()],
        _ => {
            table.wrong_type(found, "a string or a list of strings", "put it in quotes");
            return None;
        }
    };
    items.iter().map(|item| table.as_text(item)).collect()
}
