//! Several parsed files as one, and the environment over it.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::report::{Problem, ProblemSeverity};
use super::sources::{SourceText, Sources};

/// The tables of which there may be any number, over all files.
pub const LISTS: [&str; 4] = ["policy", "queue", "tenant", "egress"];

/// A table whose places are those among all texts, `by` further than in its own.
pub(super) fn moved(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let far = |span: Range<usize>| span.start + by..span.end + by;
    let entries = table.into_iter().map(|(name, value)| {
        let at = far(name.span());
        (Spanned::new(at, name.into_inner()), moved_value(value, by))
    });
    entries.collect()
}

fn moved_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let inner = match value.into_inner() {
        DeValue::Table(inner) => DeValue::Table(moved(inner, by)),
        DeValue::Array(items) => DeValue::Array(
            items
                .into_iter()
                .map(|item| moved_value(item, by))
                .collect(),
        ),
        plain => plain,
    };
    Spanned::new(span.start + by..span.end + by, inner)
}

/// Adds what another one of these files says, and reports what stands in two. `path` is that of the table, empty at the
/// top.
pub(super) fn join<'t>(
    into: &mut DeTable<'t>,
    from: DeTable<'t>,
    path: &str,
    files: &Sources,
    problems: &mut Vec<Problem>,
) {
    for (name, mut value) in from {
        let Some(known) = into.get_mut(name.get_ref().as_ref()) else {
            into.insert(name, value);
            continue;
        };
        if path.is_empty() && LISTS.contains(&name.get_ref().as_ref()) {
            as_list(known);
            as_list(&mut value);
        }
        let (first, second) = (known.span().start, value.span());
        match (known.get_mut(), value.into_inner()) {
            (DeValue::Table(known), DeValue::Table(more)) => {
                let path = format!("{path}{}.", name.get_ref());
                join(known, more, &path, files, problems);
            }
            (DeValue::Array(known), DeValue::Array(more)) if path.is_empty() => {
                more.into_iter().for_each(|item| known.push(item));
            }
            _ => problems.push(Problem {
                severity: ProblemSeverity::Error,
                title: format!("`{path}{}` is there twice", name.get_ref()),
                hint: format!("keep one of them; the first is in {}", files.place(first)),
                span: Some(second),
            }),
        }
    }
}

/// A table alone, where a list of tables is meant, as that list.
fn as_list(value: &mut Spanned<DeValue<'_>>) {
    if matches!(value.get_ref(), DeValue::Table(_)) {
        let alone = std::mem::replace(value.get_mut(), DeValue::Array(DeArray::new()));
        let span = value.span();
        if let DeValue::Array(items) = value.get_mut() {
            items.push(Spanned::new(span, alone));
        }
    }
}

/// Puts a variable of the environment in the place of what the files say of a setting (`store.url`).
pub(super) fn put_over<'t>(
    root: &mut DeTable<'t>,
    variable: &SourceText<'t>,
    setting: &'static str,
) {
    let Some((table, field)) = setting.split_once('.') else {
        return;
    };
    let begin = variable.start + variable.name.len() + 1;
    let span = begin..variable.start + variable.text.len();
    let value = variable
        .text
        .get(variable.name.len() + 1..)
        .unwrap_or_default();
    let key = |name: &'static str| Spanned::new(span.clone(), Cow::Borrowed(name));
    if !root.contains_key(table) {
        let empty = DeValue::Table(DeTable::new());
        root.insert(key(table), Spanned::new(span.clone(), empty));
    }
    // What is no table is an error by itself.
    if let Some(DeValue::Table(inner)) = root.get_mut(table).map(Spanned::get_mut) {
        let value = DeValue::String(Cow::Borrowed(value));
        inner.insert(key(field), Spanned::new(span.clone(), value));
    }
}
