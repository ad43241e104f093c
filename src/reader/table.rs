//! Reads a parsed TOML document field by field and collects all problems, because people mend a file faster when
//! they see all of them. Asking for a field makes it known; fields that nobody
//! asked for are refused at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::places::{Places, SETTINGS};
use super::report::{Problem, ProblemSeverity};
use super::sources::Sources;
use ojs_policy::{Currency, nearest};

/// The problems and the known fields so far.
#[derive(Default, Debug)]
pub struct FileReading {
    problems: RefCell<Vec<Problem>>,
    /// The fields that were asked for, by the path of their table, such as `policy.rate`.
    known: RefCell<BTreeMap<String, BTreeSet<&'static str>>>,
    /// At which bytes settings and entries of lists stand.
    pub places: RefCell<Places>,
    /// The files that it names and that were read.
    pub files: RefCell<Vec<PathBuf>>,
    /// Whether the whole file could be parsed. If not, a field that seems missing may be in the rest.
    whole: bool,
}

/// Names below these are the producers' own.
const ANY_NAME: [&str; 5] = [
    "policy.match.meta.",
    "policy.fair.weights.",
    "queue.fair.weights.",
    "egress.budget.cost.prices.",
    "egress.fair.weights.",
];

impl FileReading {
    /// Of a document of which so many files could not be parsed whole.
    pub fn new(broken: usize) -> FileReading {
        FileReading {
            whole: broken == 0,
            ..FileReading::default()
        }
    }

    /// All problems of the document, and all fields that are known (`fetch.max_wait`).
    pub fn finish(self, document: &DeTable<'_>) -> (Vec<Problem>, Vec<String>) {
        let (known, mut problems) = (self.known.into_inner(), self.problems.into_inner());
        add_unknown(&known, document, "", &mut problems);
        let fields = known
            .iter()
            .flat_map(|(table, names)| names.iter().map(move |name| path_of(table, name)));
        (problems, fields.collect())
    }
}

/// Reports every field that no one asked for, in a table that someone has read and in those below it.
fn add_unknown(
    known: &BTreeMap<String, BTreeSet<&'static str>>,
    entries: &DeTable<'_>,
    table: &str,
    problems: &mut Vec<Problem>,
) {
    let Some(names) = known.get(table) else {
        return;
    };
    for (name, value) in entries.iter() {
        let (name, span) = (&**name.get_ref(), name.span());
        let path = path_of(table, name);
        if !names.contains(name) && !ANY_NAME.iter().any(|own| path.starts_with(own)) {
            problems.push(Problem {
                severity: ProblemSeverity::Error,
                span: Some(span),
                title: match table {
                    "" => format!("unknown table or field `{name}`"),
                    _ => format!("unknown field `{name}` in `{table}`"),
                },
                hint: advice(known, table, name),
            });
        }
        let items = match value.get_ref() {
            DeValue::Array(items) => items.iter().map(Spanned::get_ref).collect(),
            one => vec![one],
        };
        for item in items {
            if let DeValue::Table(inner) = item {
                add_unknown(known, inner, &path, problems);
            }
        }
    }
}

/// `fetch.max_wait`; the top of the file has no name.
fn path_of(table: &str, name: &str) -> String {
    match table {
        "" => name.to_owned(),
        _ => format!("{table}.{name}"),
    }
}

/// Suggests a near name of this table, else the table that has this name, else all names of this one.
fn advice(known: &BTreeMap<String, BTreeSet<&'static str>>, table: &str, name: &str) -> String {
    let here = known.get(table).cloned().unwrap_or_default();
    let meant = match (table, name) {
        ("policy", "queue" | "type" | "meta" | "queues") => {
            Some("match = { … }, such as match = { queue = \"mail\" }")
        }
        ("queue", "limit" | "max") => {
            Some("max_depth = 1000, concurrency = 5 or rate = { limit = 100, period = \"1m\" }")
        }
        ("policy" | "queue" | "egress", "limit" | "period" | "max") => {
            Some("rate = { limit = 100, period = \"1m\" }, or concurrency = 5")
        }
        ("egress", "tokens" | "money") => Some("[[egress.budget]] below the entry"),
        ("", "upstream" | "listen" | "admin_listen") => Some("it below [server]"),
        _ => None,
    };
    if let Some(meant) = meant {
        return format!("write {meant}");
    }
    if let Some(near) = nearest(name, here.iter().copied()) {
        return format!("did you mean `{near}`?");
    }
    // As others call it.
    if matches!(name, "url" | "base_url" | "target" | "to") && here.contains("upstream") {
        return "did you mean `upstream`?".to_owned();
    }
    match known.iter().find(|(_, names)| names.contains(name)) {
        Some((elsewhere, _)) if elsewhere.is_empty() => {
            format!("`{name}` belongs at the top of the file")
        }
        Some((elsewhere, _)) => format!("`{name}` belongs in `{elsewhere}`"),
        None => format!(
            "known here: {}",
            here.into_iter().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Stands for a problem that was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reported;

/// A table of the file. A table that is not there reads as an empty one.
pub struct TomlTable<'r> {
    reading: &'r FileReading,
    sources: &'r Sources,
    entries: Option<&'r DeTable<'r>>,
    /// The path without indices, such as `policy.rate`.
    pub path: String,
    /// The table's header, or where the table would be.
    pub span: Range<usize>,
    /// Of the limits in it; `None`: they are starts.
    pub currency: Option<Currency>,
    /// Whether they may be money.
    pub is_budget: bool,
}

/// One field's value.
#[derive(Clone)]
pub struct FoundField<'r> {
    /// As [`TomlTable::path`], with its name.
    pub path: String,
    /// Where the value stands.
    pub span: Range<usize>,
    /// As it is written.
    pub value: &'r DeValue<'r>,
}

impl<'r> FoundField<'r> {
    /// The items of a list, each where it stands; `None`: it is no list.
    pub fn items(&self) -> Option<Vec<FoundField<'r>>> {
        let DeValue::Array(items) = self.value else {
            return None;
        };
        let each = items.iter().map(|item| FoundField {
            path: self.path.clone(),
            span: item.span(),
            value: item.get_ref(),
        });
        Some(each.collect())
    }
}

/// A text and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// The text.
    pub text: String,
    /// Where it stands.
    pub span: Range<usize>,
}

/// By their paths: a value may be a secret.
impl fmt::Debug for FoundField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl fmt::Debug for TomlTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl<'r> TomlTable<'r> {
    /// The document itself.
    pub fn root(
        reading: &'r FileReading,
        sources: &'r Sources,
        document: &'r Spanned<DeTable<'r>>,
    ) -> TomlTable<'r> {
        let root = TomlTable {
            reading,
            sources,
            entries: None,
            path: String::new(),
            span: 0..0,
            currency: None,
            is_budget: false,
        };
        root.inner(Some(document.get_ref()), String::new(), 0..0)
    }

    fn inner(
        &self,
        entries: Option<&'r DeTable<'r>>,
        path: String,
        span: Range<usize>,
    ) -> TomlTable<'r> {
        let mut known = self.reading.known.borrow_mut();
        known.entry(path.clone()).or_default();
        TomlTable {
            reading: self.reading,
            sources: self.sources,
            entries,
            path,
            span,
            currency: self.currency.clone(),
            is_budget: self.is_budget,
        }
    }

    /// Where what is there twice is first.
    pub fn first_in(&self, at: &Range<usize>) -> String {
        format!("the first is in {}", self.sources.place(at.start))
    }

    /// A field, if it is there.
    pub fn get(&mut self, name: &'static str) -> Option<FoundField<'r>> {
        self.reading
            .known
            .borrow_mut()
            .entry(self.path.clone())
            .or_default()
            .insert(name);
        let value = self.entries?.get(name)?;
        let path = self.path_of(name);
        self.note_place(SETTINGS, &path, value.span().start);
        Some(FoundField {
            path,
            span: value.span(),
            value: value.get_ref(),
        })
    }

    /// The path of a field of this table, whether it is there or not.
    pub fn path_of(&self, name: &str) -> String {
        path_of(&self.path, name)
    }

    /// Notes where a setting or an entry of a list stands.
    pub fn note_place(&self, list: &'static str, name: &str, at: usize) {
        let mut places = self.reading.places.borrow_mut();
        places.insert((list, name.to_owned()), at);
    }

    /// Where an entry of a list begins that was noted.
    pub fn place_of(&self, list: &'static str, name: &str) -> Range<usize> {
        let places = self.reading.places.borrow();
        let at = places.get(&(list, name.to_owned()));
        at.map_or_else(|| self.span.clone(), |at| *at..*at)
    }

    /// Notes a file that is read: if that changes, so may what this one means.
    pub fn note_file<'p>(&self, path: &'p Path) -> &'p Path {
        self.reading.files.borrow_mut().push(path.to_owned());
        path
    }

    /// Whether it has a field that nobody knows. Asked when all known ones were asked for: what such a field says may
    /// be what seems missing.
    pub fn has_unknown(&self) -> bool {
        let known = self.reading.known.borrow();
        let known = known.get(&self.path);
        let mut names = self.entries.into_iter().flat_map(DeTable::keys);
        names.any(|name| known.is_none_or(|known| !known.contains(&**name.get_ref())))
    }

    /// The place of a field; the header of the table if the field is not there.
    pub fn span_of(&self, name: &str) -> Range<usize> {
        let found = self.entries.and_then(|entries| entries.get(name));
        found.map_or_else(|| self.span.clone(), Spanned::span)
    }

    /// Whether something was said of the value of a field: what was read in its place must not be judged beside
    /// other fields.
    pub fn is_reported(&self, name: &str) -> bool {
        let value = self.entries.and_then(|entries| entries.get(name));
        let problems = self.reading.problems.borrow();
        value.is_some_and(|value| problems.iter().any(|one| one.span == Some(value.span())))
    }

    /// A table below this one; an absent one reads as empty.
    pub fn table(&mut self, name: &'static str) -> TomlTable<'r> {
        let path = self.path_of(name);
        match self.get(name) {
            Some(found) => {
                let table = self.as_table(&found, &format!("[{name}] above its fields"));
                table.unwrap_or_else(|| self.inner(None, path, found.span))
            }
            None => self.inner(None, path, self.span.clone()),
        }
    }

    /// A table that may be absent; `example` is what would be right.
    pub fn maybe_table(&mut self, name: &'static str, example: &str) -> Option<TomlTable<'r>> {
        let found = self.get(name)?;
        self.as_table(&found, example)
    }

    /// Tables of one name: `[[name]]`, or one table where a list of one is meant.
    pub fn tables(&mut self, name: &'static str, example: &str) -> Vec<TomlTable<'r>> {
        let Some(found) = self.get(name) else {
            return Vec::new();
        };
        let items = found.items().unwrap_or_else(|| vec![found]);
        let tables = items.iter().filter_map(|item| self.as_table(item, example));
        tables.collect()
    }

    /// Every field of this table.
    pub fn each(&self) -> Vec<(String, FoundField<'r>)> {
        let entries = self.entries.into_iter().flat_map(|entries| entries.iter());
        let found = |name: &str, value: &'r Spanned<DeValue<'r>>| FoundField {
            path: self.path_of(name),
            span: value.span(),
            value: value.get_ref(),
        };
        entries
            .map(|(name, value)| (name.get_ref().to_string(), found(name.get_ref(), value)))
            .collect()
    }

    /// A value that must be a table; what else it is is reported, with an example of what would be right.
    pub fn as_table(&self, found: &FoundField<'r>, example: &str) -> Option<TomlTable<'r>> {
        match found.value {
            DeValue::Table(entries) => {
                Some(self.inner(Some(entries), found.path.clone(), found.span.clone()))
            }
            _ => {
                self.wrong_type(found, "a table", &format!("write {example}"));
                None
            }
        }
    }

    /// Reports a value of another type, with what it should be.
    pub fn wrong_type(&self, found: &FoundField<'_>, should: &str, hint: &str) {
        let kind = kind_of(found.value);
        let title = format!("`{}` must be {should}, not {kind}", found.path);
        self.error(&found.span, title, hint);
    }

    /// Reports what forbids a start.
    pub fn error(&self, span: &Range<usize>, title: impl Into<String>, hint: impl Into<String>) {
        self.add(ProblemSeverity::Error, span, title.into(), hint.into());
    }

    /// Reports a missing field, unless it may stand where the file could not be parsed.
    pub fn missing(&self, span: &Range<usize>, title: impl Into<String>, hint: impl Into<String>) {
        if self.reading.whole {
            self.error(span, title, hint);
        }
    }

    /// Reports something doubtful, unless the file has worse problems: it could not be parsed.
    pub fn warn(&self, span: &Range<usize>, title: impl Into<String>, hint: impl Into<String>) {
        if self.reading.whole {
            self.add(ProblemSeverity::Warning, span, title.into(), hint.into());
        }
    }

    fn add(&self, severity: ProblemSeverity, span: &Range<usize>, title: String, hint: String) {
        let span = Some(span.clone());
        self.reading.problems.borrow_mut().push(Problem {
            severity,
            span,
            title,
            hint,
        });
    }
}

/// The kind of a value, as messages name it.
pub fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a datetime",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
