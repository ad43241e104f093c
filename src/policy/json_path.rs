//! Values inside a job's JSON, by dotted paths.

use std::borrow::Cow;

use ojs_json::{Json, Kind};

/// The member of `meta` at a dotted path: the one that is named so as a whole, else step by step.
/// `null` counts as absent.
pub fn find<'a>(meta: Json<'a>, path: &str) -> Option<Json<'a>> {
    walk(meta, path, |value, name| value.get_exact(name))
}

/// [`find`] by this way of one step.
pub(super) fn walk<'a>(
    value: Json<'a>,
    path: &str,
    step: fn(Json<'a>, &str) -> Option<Json<'a>>,
) -> Option<Json<'a>> {
    let present = |name: &str| step(value, name).filter(|value| !value.is_null());
    if let Some(value) = present(path) {
        return Some(value);
    }
    // Every split is tried, so `a.b.c` finds {"a.b": {"c": 1}} too; the first that leads somewhere wins.
    path.match_indices('.').find_map(|(dot, _)| {
        let (first, rest) = (path.get(..dot)?, path.get(dot + 1..)?);
        walk(present(first)?, rest, step)
    })
}

/// The text of a value that can be part of a key or be matched: a string that is not empty, or a
/// number, `true` or `false` as written.
pub fn scalar(value: Json<'_>) -> Option<Cow<'_, str>> {
    match value.kind() {
        Kind::String => value.text().filter(|text| !text.is_empty()),
        Kind::Number | Kind::Bool => std::str::from_utf8(value.raw()).ok().map(Cow::Borrowed),
        Kind::Null | Kind::Array | Kind::Object => None,
    }
}
