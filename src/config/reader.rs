//! Reads a parsed TOML document field by field and collects every problem instead of stopping at
//! the first. A field that is asked for is known; what nobody asked for is refused at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::Problem;
use crate::policy::nearest;

/// Looks an environment variable up.
pub(super) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// What was found so far.
pub(super) struct Reading<'e> {
    problems: RefCell<Vec<Problem>>,
    /// Every field that was asked for, by the table's path without indices.
    known: RefCell<BTreeMap<String, BTreeSet<&'static str>>>,
    unknown: RefCell<Vec<Unknown>>,
    /// Whether all of the file could be parsed. If not, nothing can be said of what is not there.
    whole: bool,
    env: Env<'e>,
}

/// A field that no one asked for.
struct Unknown {
    table: String,
    name: String,
    span: Range<usize>,
}

impl<'e> Reading<'e> {
    pub(super) fn new(env: Env<'e>, whole: bool) -> Reading<'e> {
        Reading {
            problems: RefCell::default(),
            known: RefCell::default(),
            unknown: RefCell::default(),
            whole,
            env,
        }
    }

    pub(super) fn error(
        &self,
        span: Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.add(false, Some(span), title.into(), hint.into());
    }

    /// Something is not there: an error, unless it may stand where the file could not be parsed.
    pub(super) fn missing(
        &self,
        span: Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if self.whole {
            self.error(span, title, hint);
        }
    }

    /// Something is doubtful. Where not all could be parsed there are worse things.
    pub(super) fn warn(
        &self,
        span: Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if self.whole {
            self.add(true, Some(span), title.into(), hint.into());
        }
    }

    fn add(&self, warning: bool, span: Option<Range<usize>>, title: String, hint: String) {
        self.problems.borrow_mut().push(Problem {
            warning,
            span,
            title,
            hint,
        });
    }

    /// All problems, and all fields that are known (`fetch.max_wait`).
    pub(super) fn finish(self) -> (Vec<Problem>, Vec<String>) {
        let (known, mut problems) = (self.known.into_inner(), self.problems.into_inner());
        for Unknown { table, name, span } in self.unknown.into_inner() {
            let title = if table.is_empty() {
                format!("unknown table or field `{name}`")
            } else {
                format!("unknown field `{name}` in `{table}`")
            };
            problems.push(Problem {
                warning: false,
                span: Some(span),
                title,
                hint: advice(&known, &table, &name),
            });
        }
        let path = |table: &String, name: &&str| {
            if table.is_empty() {
                (*name).to_owned()
            } else {
                format!("{table}.{name}")
            }
        };
        let fields = known
            .iter()
            .flat_map(|(table, names)| names.iter().map(move |name| path(table, name)));
        (problems, fields.collect())
    }
}

/// What an unknown field may have meant: a near name here, the same name elsewhere, or all there is.
fn advice(known: &BTreeMap<String, BTreeSet<&'static str>>, table: &str, name: &str) -> String {
    let here = known.get(table).cloned().unwrap_or_default();
    if let Some(near) = nearest(name, here.iter().copied()) {
        return format!("did you mean `{near}`?");
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

/// One table of the file, or the lack of one.
pub(super) struct Table<'r> {
    reading: &'r Reading<'r>,
    entries: Option<&'r DeTable<'r>>,
    /// Path with indices left out: `policy.rate`.
    pub(super) path: String,
    /// The table's header, or where the table would be.
    pub(super) span: Range<usize>,
    asked: BTreeSet<&'static str>,
}

/// One field's value.
#[derive(Clone)]
pub(super) struct Found<'r> {
    pub(super) path: String,
    pub(super) span: Range<usize>,
    pub(super) value: &'r DeValue<'r>,
}

impl<'r> Table<'r> {
    pub(super) fn root(reading: &'r Reading<'r>, document: &'r Spanned<DeTable<'r>>) -> Table<'r> {
        Table::new(reading, Some(document.get_ref()), String::new(), 0..0)
    }

    fn new(
        reading: &'r Reading<'r>,
        entries: Option<&'r DeTable<'r>>,
        path: String,
        span: Range<usize>,
    ) -> Table<'r> {
        reading.known.borrow_mut().entry(path.clone()).or_default();
        Table {
            reading,
            entries,
            path,
            span,
            asked: BTreeSet::new(),
        }
    }

    /// A field, if it is there.
    pub(super) fn get(&mut self, name: &'static str) -> Option<Found<'r>> {
        self.asked.insert(name);
        self.reading
            .known
            .borrow_mut()
            .entry(self.path.clone())
            .or_default()
            .insert(name);
        let value = self.entries?.get(name)?;
        Some(Found {
            path: self.path_of(name),
            span: value.span(),
            value: value.get_ref(),
        })
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.into()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// A table below this one; an absent one reads as empty.
    pub(super) fn table(&mut self, name: &'static str) -> Table<'r> {
        let path = self.path_of(name);
        match self.get(name) {
            Some(found) => {
                let table = self.as_table(&found, &format!("[{name}] above its fields"));
                table.unwrap_or_else(|| Table::new(self.reading, None, path, found.span))
            }
            None => Table::new(self.reading, None, path, self.span.clone()),
        }
    }

    /// A table that may be absent; `example` is what would be right.
    pub(super) fn maybe_table(&mut self, name: &'static str, example: &str) -> Option<Table<'r>> {
        let found = self.get(name)?;
        self.as_table(&found, example)
    }

    /// Tables of one name: `[[name]]`, or one table where a list of one is meant.
    pub(super) fn tables(&mut self, name: &'static str, example: &str) -> Vec<Table<'r>> {
        let Some(found) = self.get(name) else {
            return Vec::new();
        };
        match found.value {
            DeValue::Array(items) => items
                .iter()
                .map(|item| Found {
                    path: found.path.clone(),
                    span: item.span(),
                    value: item.get_ref(),
                })
                .filter_map(|found| self.as_table(&found, example))
                .collect(),
            _ => self.as_table(&found, example).into_iter().collect(),
        }
    }

    /// Each name of this table with its value, all of them known.
    pub(super) fn each(&self) -> Vec<(String, Found<'r>)> {
        let entries = self.entries.into_iter().flat_map(|entries| entries.iter());
        let found = |name: &str, value: &'r Spanned<DeValue<'r>>| Found {
            path: self.path_of(name),
            span: value.span(),
            value: value.get_ref(),
        };
        entries
            .map(|(name, value)| (name.get_ref().to_string(), found(name.get_ref(), value)))
            .collect()
    }

    pub(super) fn as_table(&self, found: &Found<'r>, example: &str) -> Option<Table<'r>> {
        match found.value {
            DeValue::Table(entries) => Some(Table::new(
                self.reading,
                Some(entries),
                found.path.clone(),
                found.span.clone(),
            )),
            _ => {
                self.wrong_type(found, "a table", &format!("write {example}"));
                None
            }
        }
    }

    pub(super) fn wrong_type(&self, found: &Found<'_>, should: &str, hint: &str) {
        let title = format!(
            "`{}` must be {should}, not {}",
            found.path,
            article(found.value.type_str())
        );
        self.error(&found.span, title, hint);
    }

    pub(super) fn error(
        &self,
        span: &Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.reading.error(span.clone(), title, hint);
    }

    /// As [`Reading::missing`].
    pub(super) fn missing(
        &self,
        span: &Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.reading.missing(span.clone(), title, hint);
    }

    pub(super) fn warn(
        &self,
        span: &Range<usize>,
        title: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.reading.warn(span.clone(), title, hint);
    }

    /// An environment variable.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.reading.env)(name)
    }

    /// Refuses every field that was not asked for.
    pub(super) fn finish(self) {
        self.finish_but(|_| false);
    }

    /// Refuses every field that was not asked for and is not `fine`.
    pub(super) fn finish_but(self, fine: impl Fn(&str) -> bool) {
        let entries = self.entries.into_iter().flat_map(|entries| entries.keys());
        let known = |name: &str| self.asked.contains(name) || fine(name);
        let unknown = entries
            .filter(|name| !known(name.get_ref()))
            .map(|name| Unknown {
                table: self.path.clone(),
                name: name.get_ref().to_string(),
                span: name.span(),
            });
        self.reading.unknown.borrow_mut().extend(unknown);
    }
}

pub(super) fn article(kind: &str) -> String {
    match kind {
        "integer" | "array" => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}
