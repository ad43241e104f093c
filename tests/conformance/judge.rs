//! How the official runner compares: paths into a reply, and matchers on what they find.

use serde_json::{Map, Value};

/// Why a comparison failed, or nothing.
pub type Judged = Result<(), String>;

/// The value at `path` (`$.a.b[0][?(@.id=='x')].c`, `[*]` collects); a missing member is null, and
/// anything else that does not fit is an error.
pub fn resolve(path: &str, data: &Value) -> Result<Value, String> {
    let parts = split(path.strip_prefix("$.").unwrap_or(path));
    let mut current = data.clone();
    for (at, part) in parts
        .iter()
        .enumerate()
        .filter(|(_, part)| !part.is_empty())
    {
        let Some(bracket) = part.find('[') else {
            let object = current
                .as_object()
                .ok_or_else(|| format!("no object at {part:?}"))?;
            match object.get(*part) {
                Some(value) => current = value.clone(),
                None => return Ok(Value::Null),
            }
            continue;
        };
        let (field, mut rest) = part.split_at(bracket);
        if !field.is_empty() {
            let object = current
                .as_object()
                .ok_or_else(|| format!("no object at {field:?}"))?;
            current = object.get(field).cloned().unwrap_or_default();
        }
        while !rest.is_empty() {
            let (inside, after) = bracketed(rest)?;
            rest = after;
            let list = current
                .as_array()
                .ok_or_else(|| format!("no array at {part:?}"))?;
            if inside == "*" {
                let tail = parts[at + 1..].join(".");
                let tail = format!("{rest}{}{tail}", if rest.is_empty() { "" } else { "." });
                return Ok(collect(list, tail.trim_end_matches('.')));
            }
            current = match inside.strip_prefix("?(@.") {
                Some(filter) => first_where(list, filter)?,
                None => {
                    let index: usize = inside
                        .parse()
                        .map_err(|_| format!("bad index in {part:?}"))?;
                    list.get(index)
                        .cloned()
                        .ok_or_else(|| format!("index {index} of {}", list.len()))?
                }
            };
        }
    }
    Ok(current)
}

/// Parts between dots; dots inside brackets do not count.
fn split(path: &str) -> Vec<&str> {
    let mut depth = 0i32;
    let parts = path.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == '.' && depth == 0
    });
    parts.collect()
}

fn bracketed(text: &str) -> Result<(&str, &str), String> {
    let end = if text.starts_with("[?(") {
        text.find(")]").map(|at| at + 1)
    } else {
        text.find(']')
    };
    let end = end
        .filter(|_| text.starts_with('['))
        .ok_or_else(|| format!("bad brackets in {text:?}"))?;
    Ok((text[1..end].trim_end_matches(')'), &text[end + 1..]))
}

fn first_where(list: &[Value], filter: &str) -> Result<Value, String> {
    let (key, wanted) = filter
        .split_once("==")
        .ok_or_else(|| format!("bad filter {filter:?}"))?;
    let wanted = wanted.trim_matches(['\'', '"']);
    let found = list
        .iter()
        .find(|item| item.get(key).is_some_and(|value| plain(value) == wanted));
    Ok(found.cloned().unwrap_or_default())
}

fn collect(list: &[Value], path: &str) -> Value {
    if path.is_empty() {
        return list.into();
    }
    list.iter()
        .filter_map(|item| resolve(path, item).ok())
        .filter(|value| !value.is_null())
        .collect()
}

/// A value as text: strings without their quotes.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether `actual` is what `matcher` wants.
pub fn matches(matcher: &Value, actual: &Value) -> Judged {
    let wanted = |yes: bool| {
        if yes {
            Ok(())
        } else {
            Err(format!("wanted {matcher}, got {actual}"))
        }
    };
    match matcher {
        Value::Null | Value::Bool(_) => wanted(matcher == actual),
        Value::String(text) => wanted(matches_text(text, actual)?),
        Value::Number(number) => wanted(actual.as_f64().is_some_and(|n| close(number.as_f64(), n))),
        Value::Array(items) => {
            let actual = actual.as_array().filter(|list| list.len() == items.len());
            let actual = actual.ok_or_else(|| format!("wanted {} elements", items.len()))?;
            items
                .iter()
                .zip(actual)
                .try_for_each(|(matcher, actual)| matches(matcher, actual))
        }
        Value::Object(object) => matches_object(object, actual),
    }
}

fn close(wanted: Option<f64>, actual: f64) -> bool {
    wanted.is_some_and(|wanted| (wanted - actual).abs() <= 1e-9)
}

/// A word with a meaning, or the text itself.
fn matches_text(matcher: &str, actual: &Value) -> Result<bool, String> {
    let list = actual.as_array();
    let length = |wanted: &str| {
        wanted
            .parse::<usize>()
            .map_err(|_| format!("bad length in {matcher:?}"))
    };
    if let Some(n) = matcher
        .strip_prefix("array:min_length:")
        .or_else(|| matcher.strip_prefix("array:min:"))
    {
        let n = length(n)?;
        return Ok(list.is_some_and(|list| list.len() >= n));
    }
    if let Some(n) = matcher
        .strip_prefix("array:length:")
        .or_else(|| call(matcher, "array:length"))
    {
        let n = length(n)?;
        return Ok(list.is_some_and(|list| list.len() == n));
    }
    if let Some(item) = matcher.strip_prefix("contains:") {
        return Ok(list.is_some_and(|list| list.iter().any(|value| plain(value) == item)));
    }
    if let Some(item) = matcher.strip_prefix("not_contains:") {
        return Ok(list.is_some_and(|list| list.iter().all(|value| plain(value) != item)));
    }
    if let Some(part) = matcher.strip_prefix("string:contains:") {
        return Ok(actual.as_str().is_some_and(|text| text.contains(part)));
    }
    if let Some((low, high)) = call(matcher, "number:range").and_then(|range| range.split_once(','))
    {
        let bound = |text: &str| text.trim().parse::<f64>().map_err(|e| e.to_string());
        let range = bound(low)?..=bound(high)?;
        return Ok(actual.as_f64().is_some_and(|n| range.contains(&n)));
    }
    if let Some(about) = matcher
        .strip_prefix('~')
        .and_then(|about| about.parse::<f64>().ok())
    {
        return Ok(actual
            .as_f64()
            .is_some_and(|n| (n - about).abs() <= about / 2.0));
    }
    Ok(match matcher {
        "any" => true,
        "absent" => actual.is_null(),
        "exists" => !actual.is_null(),
        "string:nonempty" | "string:non_empty" => {
            actual.as_str().is_some_and(|text| !text.is_empty())
        }
        "string:uuid" => actual.as_str().is_some_and(|text| is_uuid(text, None)),
        "string:uuidv7" => actual
            .as_str()
            .is_some_and(|text| is_uuid(text, Some(b'7'))),
        "string:datetime" => actual.as_str().is_some_and(is_date),
        "number:positive" => actual.as_f64().is_some_and(|n| n > 0.0),
        "number:non_negative" => actual.as_f64().is_some_and(|n| n >= 0.0),
        "array:nonempty" => list.is_some_and(|list| !list.is_empty()),
        "array:empty" => list.is_some_and(Vec::is_empty),
        literal => actual.as_str() == Some(literal),
    })
}

/// The argument in `name(argument)`.
fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?
        .strip_prefix('(')?
        .strip_suffix(')')
}

fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            14 => version.is_none_or(|version| b == version) && lower_hex(b),
            19 if version.is_some() => matches!(b, b'8' | b'9' | b'a' | b'b'),
            _ => lower_hex(b),
        })
}

/// RFC 3339, by its look.
fn is_date(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let shaped = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(b, s)| {
                if s == b'0' {
                    b.is_ascii_digit()
                } else {
                    b == s
                }
            })
    };
    let Some((date, rest)) = text.split_at_checked(19) else {
        return false;
    };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let end = fraction
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(fraction.len());
            if !digits(&fraction[..end]) {
                return false;
            }
            &fraction[end..]
        }
        None => rest,
    };
    shaped(date, "0000-00-00T00:00:00")
        && (zone == "Z" || shaped(zone, "+00:00") || shaped(zone, "-00:00"))
}

/// An operator, or members that must match one by one.
fn matches_object(matcher: &Map<String, Value>, actual: &Value) -> Judged {
    let wanted = |yes: bool| {
        if yes {
            Ok(())
        } else {
            Err(format!("wanted {matcher:?}, got {actual}"))
        }
    };
    if let Some(exists) = matcher.get("$exists") {
        wanted(exists.as_bool() == Some(!actual.is_null()))?;
        return wanted(matcher.get("$type").is_none_or(|name| name == kind(actual)));
    }
    if let Some(pattern) = matcher.get("$match").and_then(Value::as_str) {
        return wanted(matches_pattern(
            pattern,
            actual.as_str().unwrap_or_default(),
        )?);
    }
    if let Some(any) = matcher.get("$in").or_else(|| matcher.get("$or")) {
        let any = any.as_array().map(Vec::as_slice).unwrap_or_default();
        return wanted(any.iter().any(|matcher| matches(matcher, actual).is_ok()));
    }
    if let Some(size) = matcher.get("$size") {
        let length = actual.as_array().map(Vec::len).ok_or("wanted an array")? as u64;
        let least = size.get("$gte").and_then(Value::as_u64);
        return wanted(size.as_u64() == Some(length) || least.is_some_and(|least| length >= least));
    }
    if matcher.contains_key("$empty") {
        return Ok(());
    }
    if let Some(range) = matcher.get("range") {
        let n = actual.as_f64().ok_or("wanted a number")?;
        let bound = |name: &str| range.get(name).and_then(Value::as_f64);
        return wanted(
            bound("min").is_none_or(|min| n >= min) && bound("max").is_none_or(|max| n <= max),
        );
    }
    let object = actual
        .as_object()
        .ok_or_else(|| format!("wanted an object, got {actual}"))?;
    for (name, matcher) in matcher {
        match object.get(name) {
            None if matcher == "absent" => {}
            None => return Err(format!("{name:?} is missing")),
            Some(_) if matcher == "absent" => return Err(format!("{name:?} is there")),
            Some(value) => matches(matcher, value)?,
        }
    }
    Ok(())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The suites hold two regular expressions; a third is an error, so that it is noticed.
pub fn matches_pattern(pattern: &str, text: &str) -> Result<bool, String> {
    match pattern {
        "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$" => {
            Ok(is_uuid(text, Some(b'7')))
        }
        r"application/(openjobspec\+)?json" => {
            Ok(text.contains("application/json") || text.contains("application/openjobspec+json"))
        }
        other => Err(format!("no rule for the pattern {other:?}")),
    }
}

/// Whether `status` is what the case wants: a number, `one_of:…`, a matcher, or `{"$in": […]}`.
pub fn status(wanted: &Value, status: u16) -> Judged {
    let fits = match wanted {
        Value::Number(number) => number.as_u64() == Some(status.into()),
        Value::String(text) => match text.strip_prefix("one_of:") {
            Some(codes) => codes
                .split(',')
                .any(|code| code.trim().parse() == Ok(status)),
            None => matches(wanted, &status.into()).is_ok(),
        },
        Value::Object(object) => object.get("$in").is_some_and(|any| is_in(any, status)),
        // The official runner knows no lists here.
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        Err(format!("wanted status {wanted}, got {status}"))
    }
}

/// Whether the list `any` holds `status`.
pub fn is_in(any: &Value, status: u16) -> bool {
    any.as_array()
        .is_some_and(|list| list.iter().any(|code| code.as_u64() == Some(status.into())))
}

#[test]
fn paths_filters_and_missing_members() {
    let data = serde_json::json!({"jobs": [{"id": "a", "n": [1, [2]]}, {"id": "b"}]});
    for (path, wanted) in [
        ("$.jobs[0].n[1][0]", Some(serde_json::json!(2))),
        ("$.jobs[?(@.id=='b')].id", Some("b".into())),
        ("$.jobs[?(@.id=='c')]", Some(Value::Null)),
        ("$.jobs[?(@.id=='c')].id", None),
        ("$.jobs[*].id", Some(serde_json::json!(["a", "b"]))),
        ("$.none", Some(Value::Null)),
        ("$.none.deeper", Some(Value::Null)),
        ("$.jobs[7]", None),
        ("$.jobs.id", None),
    ] {
        assert_eq!(resolve(path, &data).ok(), wanted, "{path}");
    }
}

#[test]
fn matchers_accept_and_refuse() {
    use serde_json::json;
    for (matcher, yes, no) in [
        (json!("~1000"), json!(1500), json!(1501)),
        (json!("number:range(400,422)"), json!(422), json!(423)),
        (
            json!("string:datetime"),
            json!("2026-01-02T03:04:05.678Z"),
            json!("2026-01-02 03:04:05Z"),
        ),
        (json!("array:min_length:1"), json!([1]), json!([])),
        (json!("absent"), Value::Null, json!(0)),
        (
            json!({"$exists": true, "$type": "string"}),
            json!(""),
            json!(1),
        ),
        (json!({"$in": ["a", 1]}), json!(1), json!(2)),
        (json!({"$size": {"$gte": 1}}), json!([1, 2]), json!([])),
        (json!({"range": {"min": 1, "max": 3}}), json!(3), json!(3.1)),
        (json!([]), json!([]), json!([1])),
        (json!({"a": "absent"}), json!({}), json!({"a": null})),
        // Without `$exists`, `$type` is the name of a member: the official runner's own rule.
        (
            json!({"$type": "number"}),
            json!({"$type": "number"}),
            json!(1),
        ),
    ] {
        assert!(matches(&matcher, &yes).is_ok(), "{matcher} refuses {yes}");
        assert!(matches(&matcher, &no).is_err(), "{matcher} accepts {no}");
    }
}
