//! A queue's bounds as they are set and shown over HTTP (backpressure text, 6.2): `backpressure` of a
//! queue's config, and the words of the OJS queue configuration beside it.

use std::time::Duration;

use super::bounds::{Given, PerKey, PushRate, Strategy};
use crate::duration;
use crate::json::{Json, Kind, quote};
use crate::policy::{FieldError, Template, numbers};

/// The members of `backpressure`.
const BACKPRESSURE: [&str; 12] = [
    "max_depth",
    "max_size_bytes",
    "max_size",
    "strategy",
    "warning_threshold",
    "resume_threshold",
    "block_timeout_max",
    "enqueue_rate",
    "max_age",
    "max_wait",
    "per_key",
    "enabled",
];
/// How deep its JSON nests.
const DEPTH: usize = 4;
const RATE: [&str; 2] = ["limit", "period"];
const PER_KEY: [&str; 2] = ["by", "max_depth"];

/// The longest that an enqueue may wait, whatever is set: SDKs give up after 30 s.
const LONGEST_BLOCK: Duration = Duration::from_secs(25);
/// The longest `max_age` and `max_wait`.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

impl Given {
    /// What the body of `PUT …/queues/{name}/config` says of bounds: `None`, nothing; `Some(None)`, that
    /// there are none any more (`"backpressure"` is there, and `null` or without a bound in it).
    ///
    /// # Errors
    /// The first member about bounds that is wrong.
    pub fn read(body: Json<'_>) -> Result<Option<Option<Given>>, FieldError> {
        let mut given = Given::default();
        let mut off = false;
        let [backpressure, capacity] = body.pick(["backpressure", "capacity"]);
        if let Some(none) = backpressure
            && none.is_null()
        {
            return Ok(Some(None));
        }
        if let Some(object) = backpressure {
            known(object, "backpressure", &BACKPRESSURE)?;
            given = read_backpressure(object)?;
            // What is switched off leaves its numbers beside it.
            off = present(object, "enabled").and_then(|flag| flag.boolean()) == Some(false);
        }
        let capacity = capacity.filter(|object| object.kind() == Kind::Object);
        let capacity = capacity.map(|object| (object, "capacity.", "on_overflow"));
        for (object, at, overflow) in capacity.into_iter().chain([(body, "", "overflow_policy")]) {
            let words = read_capacity(object, at, overflow)?;
            if !off {
                given.agrees(&words, object, at, overflow)?;
            }
            given = given.over(&words);
        }
        // A word about overflow alone bounds nothing, but it is one about bounds.
        Ok(match given.is_silent() {
            true => backpressure.map(|_| None),
            false => Some(Some(given)),
        })
    }

    /// Refuses `words` of a queue's capacity that say something else than this, which stands for the same.
    fn agrees(
        &self,
        words: &Given,
        object: Json<'_>,
        at: &str,
        overflow: &str,
    ) -> Result<(), FieldError> {
        let depth = match present(object, "max_depth") {
            Some(_) => "max_depth",
            None => "max_size",
        };
        let name = if differ(self.max_depth, words.max_depth) {
            depth
        } else if differ(self.max_bytes, words.max_bytes) {
            "max_size_bytes"
        } else if differ(self.strategy, words.strategy) {
            overflow
        } else {
            return Ok(());
        };
        Err(contradicts(format!("{at}{name}")))
    }

    /// What [`Given::to_json`] made; `None`: somebody else wrote it.
    pub fn of_json(text: &str) -> Option<Given> {
        let object = Json::parse(text.as_bytes(), DEPTH).ok()?;
        read_backpressure(object).ok()
    }

    /// As `backpressure` of a queue's config, in a form that can be set again.
    pub fn to_json(&self) -> String {
        let mut members = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            members.extend(value.map(|value| format!("\"{name}\":{value}")));
        };
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let fraction = |value: Option<f64>| value.map(|value| value.to_string());
        let time = |value: Option<Duration>| {
            value.map(|value| {
                quote(&duration::iso(
                    u64::try_from(value.as_micros()).unwrap_or(0),
                ))
            })
        };
        put("max_depth", number(self.max_depth));
        put("max_size_bytes", number(self.max_bytes));
        put("strategy", self.strategy.map(|s| quote(s.as_str())));
        put("warning_threshold", fraction(self.warning_threshold));
        put("resume_threshold", fraction(self.resume_threshold));
        put("block_timeout_max", time(self.block_timeout_max));
        put("max_age", time(self.max_age));
        put("max_wait", time(self.max_wait));
        put(
            "enqueue_rate",
            self.enqueue_rate.map(|rate| {
                let period = duration::iso(rate.period.get());
                format!(r#"{{"limit":{},"period":"{period}"}}"#, rate.limit)
            }),
        );
        let per_key = self.per_key.as_ref().map(|keys| {
            let by = quote(keys.by.as_str());
            format!(r#"{{"by":{by},"max_depth":{}}}"#, keys.max_depth)
        });
        put("per_key", per_key);
        format!("{{{}}}", members.join(","))
    }
}

fn read_backpressure(object: Json<'_>) -> Result<Given, FieldError> {
    let path = |name: &str| format!("backpressure.{name}");
    let enabled = match present(object, "enabled") {
        Some(flag) => match flag.boolean() {
            Some(enabled) => enabled,
            None => return wrong(path("enabled"), "must be true or false", flag),
        },
        None => true,
    };
    if !enabled {
        // Said by forms that keep the numbers of what is switched off.
        return Ok(Given {
            max_depth: Some(0),
            max_bytes: Some(0),
            ..Given::default()
        });
    }
    let size = either(object, ["max_size_bytes", "max_size"], path)?;
    Ok(Given {
        max_depth: count(object, "max_depth", path)?,
        max_bytes: size,
        strategy: strategy(object, "strategy", path)?,
        warning_threshold: fraction(object, "warning_threshold", path)?,
        resume_threshold: fraction(object, "resume_threshold", path)?,
        block_timeout_max: time(object, "block_timeout_max", LONGEST_BLOCK)?,
        max_age: time(object, "max_age", LONGEST)?,
        max_wait: time(object, "max_wait", LONGEST)?,
        enqueue_rate: enqueue_rate(object)?,
        per_key: per_key(object)?,
    })
}

/// The words of the OJS queue configuration: `max_size` is a number of jobs there.
fn read_capacity(object: Json<'_>, at: &str, overflow: &str) -> Result<Given, FieldError> {
    let path = |name: &str| format!("{at}{name}");
    let depth = either(object, ["max_depth", "max_size"], path)?;
    let bytes = count(object, "max_size_bytes", path)?;
    let strategy = strategy(object, overflow, path)?;
    let strategy = strategy.filter(|_| depth.is_some() || bytes.is_some());
    Ok(Given {
        max_depth: depth,
        max_bytes: bytes,
        strategy,
        ..Given::default()
    })
}

fn present<'a>(object: Json<'a>, name: &str) -> Option<Json<'a>> {
    object.get(name).filter(|value| !value.is_null())
}

/// A number that has two names.
fn either(
    object: Json<'_>,
    [one, other]: [&str; 2],
    path: impl Fn(&str) -> String,
) -> Result<Option<u64>, FieldError> {
    let (first, second) = (count(object, one, &path)?, count(object, other, &path)?);
    match differ(first, second) {
        true => Err(contradicts(path(other))),
        false => Ok(first.or(second)),
    }
}

/// Whether both say something, and not the same.
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_some() && other.is_some() && one != other
}

fn contradicts(field: String) -> FieldError {
    let message =
        "says something else than another name of the same in this body: leave one of them out";
    FieldError {
        field,
        message: message.into(),
    }
}

fn wrong<T>(field: String, should: &str, found: Json<'_>) -> Result<T, FieldError> {
    let found: String = String::from_utf8_lossy(found.raw())
        .chars()
        .take(64)
        .collect();
    Err(FieldError {
        field,
        message: format!("{should}, found {found}"),
    })
}

fn count(
    object: Json<'_>,
    name: &str,
    path: impl Fn(&str) -> String,
) -> Result<Option<u64>, FieldError> {
    let Some(value) = present(object, name) else {
        return Ok(None);
    };
    match value.int().and_then(|number| u64::try_from(number).ok()) {
        Some(number) => Ok(Some(number)),
        None => wrong(
            path(name),
            "must be a whole number from 0 (unbounded)",
            value,
        ),
    }
}

fn strategy(
    object: Json<'_>,
    name: &str,
    path: impl Fn(&str) -> String,
) -> Result<Option<Strategy>, FieldError> {
    let Some(value) = present(object, name) else {
        return Ok(None);
    };
    let word = value.text().unwrap_or_default();
    let known = Strategy::WORDS.iter().find(|(known, _)| *known == word);
    match known {
        Some((_, strategy)) => Ok(Some(*strategy)),
        None => wrong(
            path(name),
            "must be \"reject\", \"block\" or \"drop_oldest\"",
            value,
        ),
    }
}

fn fraction(
    object: Json<'_>,
    name: &str,
    path: impl Fn(&str) -> String,
) -> Result<Option<f64>, FieldError> {
    let Some(value) = present(object, name) else {
        return Ok(None);
    };
    let number = match value.kind() {
        Kind::Number => std::str::from_utf8(value.raw())
            .ok()
            .and_then(|text| text.parse().ok()),
        _ => None,
    };
    match number.filter(|number| (0.0..=1.0).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => wrong(path(name), "must be a number from 0 to 1", value),
    }
}

fn time(object: Json<'_>, name: &str, most: Duration) -> Result<Option<Duration>, FieldError> {
    let Some(value) = present(object, name) else {
        return Ok(None);
    };
    let micros = value.text().and_then(|text| duration::parse(&text).ok());
    let within = micros
        .map(Duration::from_micros)
        .filter(|time| *time <= most);
    match within {
        Some(time) => Ok(Some(time)),
        None => {
            let should = format!(
                "must be a duration such as \"PT20S\", at most {}",
                duration::plain(most)
            );
            wrong(format!("backpressure.{name}"), &should, value)
        }
    }
}

fn enqueue_rate(object: Json<'_>) -> Result<Option<PushRate>, FieldError> {
    let Some(value) = present(object, "enqueue_rate") else {
        return Ok(None);
    };
    let path = |name: &str| format!("backpressure.enqueue_rate.{name}");
    known(value, "backpressure.enqueue_rate", &RATE)?;
    let missing = |name: &str| FieldError {
        field: path(name),
        message: "is required".into(),
    };
    let limit = present(value, "limit").ok_or_else(|| missing("limit"))?;
    let period = present(value, "period").ok_or_else(|| missing("period"))?;
    let Some(jobs) = limit.int() else {
        return wrong(path("limit"), "must be a whole number", limit);
    };
    let Some(micros) = period
        .text()
        .and_then(|text| duration::parse_period(&text).ok())
    else {
        return wrong(
            path("period"),
            "must be a duration such as \"PT1M\"",
            period,
        );
    };
    let rate = numbers::enqueue_rate(jobs, micros).map_err(|wrong| FieldError {
        field: path(wrong.member),
        message: wrong.message,
    })?;
    Ok(Some(rate.into()))
}

fn per_key(object: Json<'_>) -> Result<Option<PerKey>, FieldError> {
    let Some(value) = present(object, "per_key") else {
        return Ok(None);
    };
    let path = |name: &str| format!("backpressure.per_key.{name}");
    known(value, "backpressure.per_key", &PER_KEY)?;
    let by = present(value, "by").and_then(|by| by.text());
    let by = by.as_deref().unwrap_or("{tenant}");
    let by = Template::new(by).map_err(|bad| FieldError {
        field: path("by"),
        message: bad.to_string(),
    })?;
    let Some(max_depth) = count(value, "max_depth", path)? else {
        return Err(FieldError {
            field: path("max_depth"),
            message: "is required".into(),
        });
    };
    Ok(Some(PerKey { by, max_depth }))
}

/// Refuses what is no object, and members that mean nothing here.
fn known(object: Json<'_>, at: &str, names: &[&str]) -> Result<(), FieldError> {
    if object.kind() != Kind::Object {
        return wrong(at.to_owned(), "must be an object", object);
    }
    let stranger = object
        .members()
        .find(|member| !names.iter().any(|name| member.is_named(name)));
    match stranger {
        None => Ok(()),
        Some(member) => {
            let name: String = member
                .name
                .text()
                .unwrap_or_default()
                .chars()
                .take(64)
                .collect();
            Err(FieldError {
                field: format!("{at}.{name}"),
                message: format!("is not known here; known are {}", names.join(", ")),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Option<Option<Given>>, FieldError> {
        Given::read(Json::parse(body.as_bytes(), 16).unwrap())
    }

    #[test]
    fn every_spelling_is_read_and_emitted_in_that_of_the_text() {
        for (body, want) in [
            (
                r#"{"backpressure":{"max_depth":50000,"max_size_bytes":536870912,"strategy":"reject","warning_threshold":0.8}}"#,
                r#"{"max_depth":50000,"max_size_bytes":536870912,"strategy":"reject","warning_threshold":0.8}"#,
            ),
            (
                r#"{"capacity":{"max_depth":5,"on_overflow":"block"}}"#,
                r#"{"max_depth":5,"strategy":"block"}"#,
            ),
            (
                r#"{"max_size":100,"max_size_bytes":7,"overflow_policy":"drop_oldest","concurrency":1}"#,
                r#"{"max_depth":100,"max_size_bytes":7,"strategy":"drop_oldest"}"#,
            ),
            (r#"{"Max_Depth":0}"#, r#"{"max_depth":0}"#),
            (
                r#"{"backpressure":{"max_size":9,"enqueue_rate":{"limit":5,"period":"1m"},"block_timeout_max":"5s","resume_threshold":1}}"#,
                r#"{"max_size_bytes":9,"resume_threshold":1,"block_timeout_max":"PT5S","enqueue_rate":{"limit":5,"period":"PT1M"}}"#,
            ),
        ] {
            let given = read(body).unwrap().unwrap().unwrap();
            assert_eq!(given.to_json(), want, "{body}");
            assert_eq!(Given::of_json(want).as_ref(), Some(&given), "{body}");
            let again = read(&format!("{{\"backpressure\":{want}}}")).unwrap();
            assert_eq!(again, Some(Some(given)), "{body}");
        }
        for none in ["null", "{}", r#"{"max_depth":null}"#] {
            let body = format!("{{\"backpressure\":{none}}}");
            assert_eq!(read(&body).unwrap(), Some(None), "{none}");
        }
        for silent in [r#"{"retention":{}}"#, r#"{"capacity":5}"#, "[]", "{}"] {
            assert_eq!(read(silent).unwrap(), None, "{silent}");
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (inside, field) in [
            (r#""max_depth":-1"#, "max_depth"),
            (r#""max_depth":1.5"#, "max_depth"),
            (r#""max_depth":"5""#, "max_depth"),
            (r#""max_size_bytes":-7"#, "max_size_bytes"),
            (r#""strategy":"drop_newest""#, "strategy"),
            (r#""strategy":7"#, "strategy"),
            (r#""warning_threshold":1.1"#, "warning_threshold"),
            (r#""warning_threshold":-0.1"#, "warning_threshold"),
            (r#""warning_threshold":"0.5""#, "warning_threshold"),
            (r#""resume_threshold":2"#, "resume_threshold"),
            (r#""block_timeout_max":"40s""#, "block_timeout_max"),
            (r#""enqueue_rate":{"limit":5}"#, "enqueue_rate.period"),
            (
                r#""enqueue_rate":{"limit":0,"period":"1s"}"#,
                "enqueue_rate.limit",
            ),
            (r#""enabled":"false","max_depth":5"#, "enabled"),
            (r#""max_deep":5"#, "max_deep"),
            (r#""per_key":{"by":"{meta.a}"}"#, "per_key.max_depth"),
            (r#""per_key":{"by":"{oops}","max_depth":1}"#, "per_key.by"),
        ] {
            let error = read(&format!("{{\"backpressure\":{{{inside}}}}}")).unwrap_err();
            assert_eq!(error.field, format!("backpressure.{field}"), "{error}");
        }
        assert_eq!(
            read(r#"{"backpressure":5}"#).unwrap_err().field,
            "backpressure"
        );
        assert_eq!(read(r#"{"max_size":-5}"#).unwrap_err().field, "max_size");
        let capacity = r#"{"capacity":{"max_depth":1,"on_overflow":"spill"}}"#;
        assert_eq!(read(capacity).unwrap_err().field, "capacity.on_overflow");
    }

    #[test]
    fn two_names_of_one_bound_say_the_same() {
        for (body, field) in [
            (
                r#"{"backpressure":{"max_size_bytes":20,"max_size":10}}"#,
                "backpressure.max_size",
            ),
            (
                r#"{"backpressure":{"max_depth":5},"capacity":{"max_depth":7}}"#,
                "capacity.max_depth",
            ),
            (
                r#"{"max_size":7,"backpressure":{"max_depth":5}}"#,
                "max_size",
            ),
            (r#"{"capacity":{"max_size":5},"max_depth":7}"#, "max_depth"),
            (r#"{"max_depth":7,"max_size":5}"#, "max_size"),
            (
                r#"{"backpressure":{"max_size":5},"max_size_bytes":7}"#,
                "max_size_bytes",
            ),
            (
                r#"{"backpressure":{"max_depth":5,"strategy":"block"},"capacity":{"max_depth":5,"on_overflow":"reject"}}"#,
                "capacity.on_overflow",
            ),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.field, field, "{body}: {error}");
            assert!(
                error.message.contains("leave one of them out"),
                "{body}: {error}"
            );
        }
        for same in [
            // As a GET shows it where the backend keeps its own words.
            r#"{"backpressure":{"max_depth":5,"max_size_bytes":9},"max_size":5,"max_size_bytes":9}"#,
            r#"{"backpressure":{"enabled":false},"capacity":{"max_depth":7}}"#,
        ] {
            assert!(read(same).is_ok(), "{same}");
        }
    }
}
