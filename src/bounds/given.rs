//! The one reader of a queue's bounds, for the file and for HTTP (backpressure text, 6.2), where the words of the
//! OJS queue configuration may stand beside `backpressure`; and how bounds are shown.

use std::time::Duration;

use super::bounds::{BLOCK_TIMEOUT_MAX, Given, OverflowStrategy, PerKey};
use ojs_duration as duration;
use ojs_json::{Json, Kind, quote};
use ojs_limit::Rate;
use ojs_policy::fields::{Fields, JsonObject, Strangers};
use ojs_policy::limits::required;
use ojs_policy::numbers::Wrong;
use ojs_policy::words::Nested;
use ojs_policy::{FieldError, Template, numbers};

/// How deep its JSON nests.
const DEPTH: usize = 4;

/// The fields that bound a queue.
pub const BOUNDS: [&str; 5] = [
    "max_depth",
    "max_size",
    "max_size_bytes",
    "enqueue_rate",
    "per_key",
];

/// The members of `backpressure`.
const BACKPRESSURE: [&[&str]; 2] = [
    &BOUNDS,
    &[
        "strategy",
        "warning_threshold",
        "block_timeout_max",
        "enabled",
    ],
];

/// `enqueue_rate`.
const ENQUEUE_RATE: Nested = Nested {
    name: "enqueue_rate",
    fields: &["limit", "period"],
    in_file: "enqueue_rate = { limit = 100, period = \"1s\" }",
};

/// `per_key`.
const PER_KEY: Nested = Nested {
    name: "per_key",
    fields: &["by", "max_depth"],
    in_file: "per_key = { by = \"{meta.tenant_id}\", max_depth = 5000 }",
};

/// The longest that an enqueue may wait, whatever is set: SDKs give up after 30 s.
const LONGEST_BLOCK: Duration = Duration::from_secs(25);

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
        if let Some(object) = backpressure {
            if object.is_null() {
                return Ok(Some(None));
            }
            given = Given::of_backpressure(object)?;
            // What is switched off leaves its numbers beside it.
            off = object.get("enabled").and_then(|flag| flag.boolean()) == Some(false);
        }
        let capacity = capacity.filter(|object| object.kind() == Kind::Object);
        let capacity = capacity.map(|object| (object, "capacity", "on_overflow"));
        for (object, at, overflow) in capacity.into_iter().chain([(body, "", "overflow_policy")]) {
            let Ok(mut from) = JsonObject::new(object, at, Strangers::Pass, &[]) else {
                continue;
            };
            let words = read_capacity(&mut from, overflow)?;
            if !off {
                given.agrees(&words, &from, overflow)?;
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
        from: &JsonObject<'_>,
        overflow: &str,
    ) -> Result<(), FieldError> {
        let depth = match from.get("max_depth") {
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
        Err(from.error(name, CONTRADICTS))
    }

    /// What `backpressure` of a queue's config says.
    ///
    /// # Errors
    /// The first member that is wrong.
    pub fn of_backpressure(object: Json<'_>) -> Result<Given, FieldError> {
        let mut from = JsonObject::new(object, "backpressure", Strangers::Refuse, &BACKPRESSURE)?;
        match from.flag("enabled")? {
            None | Some(true) => read(&mut from),
            // Said by forms that keep the numbers of what is switched off.
            Some(false) => Ok(Given {
                max_depth: Some(0),
                max_bytes: Some(0),
                ..Given::default()
            }),
        }
    }

    /// What [`Given::to_json`] made; `None`: somebody else wrote it.
    pub fn of_json(text: &str) -> Option<Given> {
        let object = Json::parse(text.as_bytes(), DEPTH).ok()?;
        Given::of_backpressure(object).ok()
    }

    /// As `backpressure` of a queue's config, in a form that can be set again.
    pub fn to_json(&self) -> String {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let threshold = self.warning_threshold.map(|part| part.to_string());
        let longest = self.block_timeout_max.map(|longest| {
            let micros = u64::try_from(longest.as_micros()).unwrap_or(0);
            quote(&duration::iso(micros))
        });
        let rate = self.enqueue_rate.as_ref().map(|rate| {
            let period = duration::iso(rate.period.get());
            format!(r#"{{"limit":{},"period":"{period}"}}"#, rate.limit)
        });
        let per_key = self.per_key.as_ref().map(|keys| {
            let by = quote(keys.by.as_str());
            format!(r#"{{"by":{by},"max_depth":{}}}"#, keys.max_depth)
        });
        let members = [
            ("max_depth", number(self.max_depth)),
            ("max_size_bytes", number(self.max_bytes)),
            ("strategy", self.strategy.map(|s| quote(s.as_str()))),
            ("warning_threshold", threshold),
            ("block_timeout_max", longest),
            ("enqueue_rate", rate),
            ("per_key", per_key),
        ];
        let given = members.into_iter();
        let given = given.filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?)));
        format!("{{{}}}", given.collect::<Vec<_>>().join(","))
    }
}

/// Reads bounds: of a `[[queue]]` of the file, or of `backpressure` in a queue's config.
///
/// # Errors
/// Something of them is wrong.
pub fn read<'v, F: Fields<'v>>(from: &mut F) -> Result<Given, F::Error> {
    let max_depth = from.int_from_0("max_depth");
    let max_bytes = max_bytes(from);
    let strategy = from.word("strategy", &OverflowStrategy::WORDS);
    let warning_threshold = fraction(from, "warning_threshold");
    let block_timeout_max = block_timeout_max(from);
    let rate = from.inside(&ENQUEUE_RATE);
    let rate = rate.and_then(|rate| rate.map(enqueue_rate).transpose());
    let per_key_of = from.inside(&PER_KEY);
    let per_key = per_key_of.and_then(|keys| keys.map(per_key).transpose());
    Ok(Given {
        max_depth: max_depth?,
        max_bytes: max_bytes?,
        strategy: strategy?,
        warning_threshold: warning_threshold?,
        block_timeout_max: block_timeout_max?,
        enqueue_rate: rate?,
        per_key: per_key?,
    })
}

fn fraction<'v, F: Fields<'v>>(from: &mut F, name: &'static str) -> Result<Option<f64>, F::Error> {
    from.number_within(name, 0.0..=1.0, "a fraction of the bound, such as 0.8")
}

fn max_bytes<'v, F: Fields<'v>>(from: &mut F) -> Result<Option<u64>, F::Error> {
    let names = ["max_size_bytes", "max_size"];
    let [one, other] = names.map(|name| match F::IN_FILE {
        true => from.size_within(name, 0, 0..=usize::MAX >> 1),
        // OJS has a number of bytes there, which the backend gets too.
        false => Ok(from.int_from_0(name)?.map(|bytes| bytes as usize)),
    });
    match (one?, other?) {
        (Some(one), Some(other)) if F::IN_FILE || one != other => {
            let message = "stands beside `max_size`".to_owned();
            let hint = "they are the same: leave one of them out";
            Err(from.wrong(Wrong::with_hint("max_size_bytes", message, hint)))
        }
        (one, other) => Ok(one.or(other).map(|bytes| bytes as u64)),
    }
}

fn block_timeout_max<'v, F: Fields<'v>>(from: &mut F) -> Result<Option<Duration>, F::Error> {
    let name = "block_timeout_max";
    let time = from.period(name)?.map(Duration::from_micros);
    if time.is_none_or(|time| time <= LONGEST_BLOCK) {
        return Ok(time);
    }
    let most = duration::plain(LONGEST_BLOCK);
    let default = duration::plain(BLOCK_TIMEOUT_MAX);
    let message = format!("must be from \"0s\" to \"{most}\"");
    let hint = format!("the default is \"{default}\"");
    Err(from.wrong(Wrong::with_hint(name, message, hint)))
}

fn enqueue_rate<'v, F: Fields<'v>>(mut table: F) -> Result<Rate, F::Error> {
    let from = &mut table;
    let named = |name| (name, ENQUEUE_RATE.in_file);
    let limit = required(from, named("limit"), |from| from.int("limit"));
    let period = required(from, named("period"), |from| from.period("period"));
    numbers::enqueue_rate(limit?, period?).map_err(|wrong| from.wrong(wrong))
}

fn per_key<'v, F: Fields<'v>>(mut table: F) -> Result<PerKey, F::Error> {
    let from = &mut table;
    let by = from.text("by").and_then(|by| {
        let by = Template::new(by.as_deref().unwrap_or("{tenant}"));
        by.map_err(|bad| {
            from.wrong(Wrong {
                member: "by",
                message: bad.to_string(),
                hint: None,
            })
        })
    });
    let bound = ("max_depth", PER_KEY.in_file);
    let max_depth = required(from, bound, |from| from.int_from_0("max_depth"));
    Ok(PerKey {
        by: by?,
        max_depth: max_depth?,
    })
}

/// The words of the OJS queue configuration: `max_size` is a number of jobs there.
fn read_capacity(from: &mut JsonObject<'_>, overflow: &'static str) -> Result<Given, FieldError> {
    let (depth, size) = (from.int_from_0("max_depth")?, from.int_from_0("max_size")?);
    if differ(depth, size) {
        return Err(from.error("max_size", CONTRADICTS));
    }
    let (max_depth, max_bytes) = (depth.or(size), from.int_from_0("max_size_bytes")?);
    let strategy = from.word(overflow, &OverflowStrategy::WORDS)?;
    Ok(Given {
        max_depth,
        max_bytes,
        strategy: strategy.filter(|_| max_depth.is_some() || max_bytes.is_some()),
        ..Given::default()
    })
}

/// Whether both say something, and not the same.
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_some() && other.is_some() && one != other
}

const CONTRADICTS: &str =
    "says something else than another name of the same in this body: leave one of them out";

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
                r#"{"backpressure":{"max_size":9,"enqueue_rate":{"limit":5,"period":"1m"},"block_timeout_max":"5s"}}"#,
                r#"{"max_size_bytes":9,"block_timeout_max":"PT5S","enqueue_rate":{"limit":5,"period":"PT1M"}}"#,
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
            (r#""resume_threshold":0.5"#, "resume_threshold"),
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
                "backpressure.max_size_bytes",
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
