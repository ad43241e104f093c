//! Values inside the JSON of a job or a call, by dotted paths.

use std::borrow::Cow;

use ojs_json::{Json, Kind};

/// The member of a value at a dotted path: the one that is named so as a whole, else step by step. A number names a place
/// of an array, from 0. `null` counts as absent.
pub fn find<'a>(value: Json<'a>, path: &str) -> Option<Json<'a>> {
    let step = |name: &str| match value.kind() {
        Kind::Array => value.items().nth(name.parse().ok()?),
        _ => value.get_exact(name),
    };
    let present = |name: &str| step(name).filter(|value| !value.is_null());
    if let Some(value) = present(path) {
        return Some(value);
    }
    // Every split is tried, so `a.b.c` finds {"a.b": {"c": 1}} too; the first that leads somewhere wins.
    path.match_indices('.').find_map(|(dot, _)| {
        let (first, rest) = (path.get(..dot)?, path.get(dot + 1..)?);
        find(present(first)?, rest)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_into_an_array() {
        let text = br#"{"a":[{"b":1},null,[2,3]],"c":{"0":4},"d.0":5,"d":[6]}"#;
        let value = Json::parse(text, 9).unwrap();
        for (path, found) in [
            ("a.0.b", Some("1")),
            ("a.1", None),
            ("a.2.1", Some("3")),
            ("a.3", None),
            ("a.-1", None),
            ("a.b", None),
            ("a.99999999999999999999", None),
            ("c.0", Some("4")),
            ("d.0", Some("5")),
        ] {
            let value = find(value, path).and_then(scalar);
            assert_eq!(value.as_deref(), found, "{path}");
        }
    }
}
