//! The `rate_limit` that comes with a job: every spelling found in the wild, read into one form.

use std::borrow::Cow;
use std::sync::Arc;

use super::fields::{FieldError, Fields, JsonObject, Strangers};
use super::limits::limits_in_json;
use super::template::key_of;
use super::words::POLICY;
use ojs_json::Json;
use ojs_limit::{Key, Limited, Limits, OnLimit, Space};

/// The member of `meta` for producers whose SDK has no `rate_limit` option.
pub const META: &str = "ojs.rate_limit";

/// The policy name of limits that a job brings.
pub const BROUGHT: &str = "job";

/// The words of `on_limit`.
pub const ON_LIMIT: [(&str, OnLimit); 3] = [
    ("wait", OnLimit::Wait),
    ("reschedule", OnLimit::Reschedule),
    ("drop", OnLimit::Drop),
];

/// The member of `meta` in which the sidecar keeps the policy as sent, because backends forget it:
/// `{"policy": …, "at": "options.rate_limit", "visibility_timeout_ms": …}`.
pub const MIRROR: &str = "ojs.rate_limit.mirror";

/// A job policy found in an enqueue body.
#[derive(Clone, Debug)]
pub struct Sent<'a> {
    /// Where it stands, such as `options.rate_limit`.
    pub at: &'static str,
    /// The value as sent.
    pub raw: Json<'a>,
    /// What it says, checked.
    pub policy: Limited,
}

/// The queue by this `options.queue`, as backends file it: the default one, where it says none.
pub fn filed(queue: Option<Json<'_>>) -> Cow<'_, str> {
    let said = queue.and_then(|queue| queue.text());
    said.filter(|queue| !queue.is_empty())
        .unwrap_or(Cow::Borrowed("default"))
}

/// The `meta` that a job gets that is enqueued with these `options`.
pub fn meta_of<'a>(job: Json<'a>, options: Option<Json<'a>>) -> Option<Json<'a>> {
    metadata(options).or_else(|| job.get("meta"))
}

/// Backends let a non-empty `options.metadata` replace `meta` as a whole.
fn metadata(options: Option<Json<'_>>) -> Option<Json<'_>> {
    let metadata = options?.get("metadata");
    metadata.filter(|metadata| metadata.members().next().is_some())
}

/// The policies of an enqueue body (or a job template in a cron or workflow body). All of them
/// apply.
///
/// # Errors
/// The first field that is wrong.
pub fn sent_policies(job: Json<'_>) -> Result<Vec<Sent<'_>>, FieldError> {
    let options = job.get("options");
    let option = |name: &str| options.and_then(|options| options.get(name));
    let queue = filed(option("queue"));
    let (meta, meta_at) = match metadata(options) {
        Some(metadata) => (Some(metadata), "options.metadata[\"ojs.rate_limit\"]"),
        None => (job.get("meta"), "meta[\"ojs.rate_limit\"]"),
    };
    let places = [
        ("options.rate_limit", option("rate_limit")),
        ("rate_limit", job.get("rate_limit")),
        (meta_at, meta.and_then(|meta| meta.get_exact(META))),
    ];
    let mut sent = Vec::new();
    for (at, value) in places {
        let Some(raw) = value else { continue };
        if let Some(policy) = read(raw, at, &queue, Strangers::RefuseSlips)? {
            sent.push(Sent { at, raw, policy });
        }
    }
    Ok(sent)
}

/// The policies of a job as a backend returns it. One that does not parse is left out: it was
/// refused at enqueue, or came around the sidecar.
pub fn own_policies(job: Json<'_>, queue: &str) -> Vec<Limited> {
    let meta = job.get_exact("meta");
    let mirror = meta.and_then(|meta| meta.get_exact(MIRROR));
    let mirrored_top = mirror
        .and_then(|m| m.get_exact("at")?.text())
        .is_some_and(|at| at == "rate_limit");
    let places = [
        mirror.and_then(|mirror| mirror.get_exact("policy")),
        // Kept by backends by themselves, so it stands beside a mirrored `options.rate_limit`.
        job.get_exact("rate_limit").filter(|_| !mirrored_top),
        meta.and_then(|meta| meta.get_exact(META)),
    ];
    let mut own = Vec::new();
    for policy in places
        .into_iter()
        .flatten()
        .filter_map(|value| read(value, "", queue, Strangers::Pass).ok().flatten())
    {
        if !own.contains(&policy) {
            own.push(policy);
        }
    }
    own
}

/// Reads one `rate_limit` value in any of the accepted spellings; `at` is where it stands, for
/// messages. `None`: it is null. `{max_per_second: 1}` has no key and uses its queue's own,
/// `max_per_second:<queue>`; a policy with only a key has no numbers and joins that key.
///
/// `strangers` are refused where the producer can still mend what would limit less than it seems to say.
///
/// # Errors
/// The first member that has a wrong type, an unknown word or a number out of range.
fn read(
    value: Json<'_>,
    at: &str,
    queue: &str,
    strangers: Strangers,
) -> Result<Option<Limited>, FieldError> {
    if value.is_null() {
        return Ok(None);
    }
    let mut from = JsonObject::new(value, at, strangers, &POLICY)?;
    let limits = limits_in_json(&mut from)?;
    let on_limit = from.word("on_limit", &ON_LIMIT)?.unwrap_or_default();
    let key = match (from.text("key")?, from.has("max_per_second")) {
        (Some(text), _) => Key::new(&text).map_err(|bad| from.error("key", bad.to_string()))?,
        (None, true) => key_of("max_per_second:", queue),
        (None, false) => {
            return Err(from.error(
                "key",
                "is required: the name that all jobs of one limit share, such as \"stripe\"",
            ));
        }
    };
    if limits == Limits::default()
        && let Some(name) = from.stranger(&POLICY)?
    {
        let known = POLICY.concat().join(", ");
        let message = format!("is not known, and nothing beside it is a limit; known are {known}");
        return Err(from.error(&name, message));
    }
    Ok(Some(Limited {
        on_limit,
        ..Limited::new(Space::Job, key, limits, Arc::from(BROUGHT))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::numbers;
    use super::*;
    use ojs_duration as duration;
    use ojs_limit::{Measure, WindowKind};

    fn read(policy: &str) -> Result<Option<Limited>, FieldError> {
        let value = Json::parse(policy.as_bytes(), 16).unwrap();
        super::read(value, "options.rate_limit", "billing", Strangers::Pass)
    }

    /// The rows of a table: a line each, with what is given and what comes of it.
    fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
        let rows = text.lines().filter_map(|row| row.trim().split_once(" => "));
        assert!(rows.clone().count() > 1);
        rows
    }

    /// A policy in one line: key, slots, windows, spacing.
    fn line(limited: &Limited) -> String {
        let mut out = limited.key.to_string();
        if let Some(slots) = limited.limits.concurrency {
            out += &format!(" {slots} slots");
        }
        for rate in &limited.limits.rates {
            out += &format!(" {}/{}", rate.limit, numbers::period(rate));
            out += match &rate.window {
                WindowKind::Sliding => String::new(),
                WindowKind::Fixed => " fixed".into(),
                WindowKind::Calendar(_, zone) => format!(" {}", zone.name()),
            }
            .as_str();
        }
        if let Some(t) = limited.limits.throttle {
            out += &format!(
                " spaced {}/{}/{}",
                t.limit,
                duration::iso(t.period.get()),
                t.burst
            );
            if t.measure == Measure::Completion {
                out += " completion";
            }
        }
        if limited.on_limit != OnLimit::Wait {
            out += &format!(" {:?}", limited.on_limit);
        }
        out
    }

    #[test]
    fn windows_and_measures() {
        let table = r#"
            {"key":"a","rate":{"limit":5,"period":"PT1M","window":"fixed"}} => a 5/PT1M fixed
            {"key":"a","rate":[{"limit":5,"period":"1s","window":"sliding"}, {"limit":9,"period":"month","window":"calendar","tz":"europe/oslo"}]} => a 5/PT1S 9/P1M Europe/Oslo
            {"key":"a","limit":9,"period":"P1D","window":"calendar"} => a 9/P1D UTC
            {"key":"a","throttle":{"interval":"1s","measure":"completion"}} => a spaced 1/PT1S/1 completion
        "#;
        for (policy, expected) in rows(table) {
            assert_eq!(line(&read(policy).unwrap().unwrap()), expected, "{policy}");
        }
        let wrong = r#"
            {"limit":5,"period":"1s","window":"calendar"} => period
            {"limit":5,"period":60,"window":"calendar"} => period
            {"limit":5,"window":"calendar"} => period
            {"limit":5,"period":"1ms","window":"fixed"} => period
            {"limit":5,"period":"1d","tz":"UTC"} => tz
        "#;
        for (rate, field) in rows(wrong) {
            let error = read(&format!(r#"{{"key":"a","rate":{rate}}}"#)).unwrap_err();
            assert_eq!(
                error.field,
                format!("options.rate_limit.rate.{field}"),
                "{rate}"
            );
        }
    }

    #[test]
    fn a_throttle_and_a_number_a_second_are_one_spacing_that_passes_neither() {
        let table = [
            (r#"{"limit":2,"period":"1s"}"#, "a spaced 2/PT1S/1"),
            (r#"{"limit":9,"period":"1s"}"#, "a spaced 5/PT1S/1"),
            (
                r#"{"limit":2,"period":"1s","burst":4}"#,
                "a spaced 2/PT1S/1",
            ),
            (
                r#"{"interval":"1s","measure":"completion"}"#,
                "a spaced 1/PT1S/1",
            ),
        ];
        for (throttle, expected) in table {
            let both = format!(r#"{{"key":"a","throttle":{throttle},"max_per_second":5}}"#);
            assert_eq!(line(&read(&both).unwrap().unwrap()), expected, "{throttle}");
        }
    }

    #[test]
    fn spellings() {
        let table = r#"
            {"key":"stripe-api","concurrency":5,"rate":{"limit":100,"period":"PT1M"}, "throttle":{"limit":10,"period":"PT1S"},"on_limit":"wait"} => stripe-api 5 slots 100/PT1M spaced 10/PT1S/1
            {"key":"a","concurrency":0} => a 0 slots
            {"key":"a","rate":1,"period":"second"} => a 1/PT1S
            {"key":"a","rate":60,"period":"hour"} => a 60/PT1H
            {"key":"a","limit":5,"period":"1m"} => a 5/PT1M
            {"key":"a","rate":[{"limit":5,"period":"PT1S"},{"limit":9,"period":"P1D"}]} => a 5/PT1S 9/PT24H
            {"max_per_second":1} => max_per_second:billing spaced 1/PT1S/1
            {"max_per_second":20,"key":"a"} => a spaced 20/PT1S/1
            {"key":"a","throttle":{"interval":"PT0.1S"}} => a spaced 1/PT0.1S/1
            {"key":"a","throttle":{"limit":2,"period":"1s","burst":4}} => a spaced 2/PT1S/4
            {"key":"a"} => a
            {"key":"a","concurrency":null,"rate":null,"throttle":null,"on_limit":null,"max_per_second":null} => a
            {"key":"a","rate":{"limit":5.0,"period":"PT1S"},"colour":"red"} => a 5/PT1S
            {"KEY":"a","Concurrency":1} => a 1 slots
            {"key":"a","on_limit":"reschedule"} => a Reschedule
            {"key":"a","on_limit":"drop"} => a Drop
            // A job that is stored is limited by what can be read of it.
            {"key":"a","concurency":1,"period":"1m"} => a
            {"key":"a","concurrency":1,"rate":[]} => a 1 slots
        "#;
        for (policy, expected) in rows(table) {
            assert_eq!(
                read(policy).map(|p| p.as_ref().map(line)),
                Ok(Some(expected.to_owned())),
                "{policy}"
            );
        }
        assert_eq!(read("null"), Ok(None));
    }

    fn sent(body: &str) -> Result<Vec<(&'static str, String, String)>, FieldError> {
        let body = Json::parse(body.as_bytes(), 16).unwrap();
        let raw = |sent: &Sent<'_>| String::from_utf8(sent.raw.raw().to_vec()).unwrap();
        Ok(sent_policies(body)?
            .iter()
            .map(|sent| (sent.at, raw(sent), line(&sent.policy)))
            .collect())
    }

    #[test]
    fn an_enqueue_body_is_read_in_all_its_places() {
        let all = r#"{"type":"t","rate_limit":{"key":"b"},"meta":{"ojs.rate_limit":{"key":"c"}},
            "options":{"queue":"q","rate_limit":{"max_per_second":3}}}"#;
        let found: Vec<_> = sent(all)
            .unwrap()
            .into_iter()
            .map(|(at, _, line)| (at, line))
            .collect();
        let expected = [
            ("options.rate_limit", "max_per_second:q spaced 3/PT1S/1"),
            ("rate_limit", "b"),
            ("meta[\"ojs.rate_limit\"]", "c"),
        ];
        assert_eq!(found, expected.map(|(at, line)| (at, line.to_owned())));

        let raw = r#"{"options":{"rate_limit":{"key" : "a"}}}"#;
        let one = (
            "options.rate_limit",
            r#"{"key" : "a"}"#.to_owned(),
            "a".to_owned(),
        );
        assert_eq!(sent(raw), Ok(vec![one]));
        assert_eq!(
            sent(r#"{"options":{"rate_limit":null},"rate_limit":null,"meta":null}"#),
            Ok(Vec::new())
        );
        assert_eq!(sent(r#"{"type":"t"}"#), Ok(Vec::new()));
        let default = sent(r#"{"options":{"rate_limit":{"max_per_second":1}}}"#).unwrap();
        assert_eq!(
            default.first().unwrap().2,
            "max_per_second:default spaced 1/PT1S/1"
        );
    }

    #[test]
    fn metadata_replaces_meta_only_when_there_is_some() {
        let with = |metadata: &str| {
            let body = format!(
                r#"{{"meta":{{"ojs.rate_limit":{{"key":"m"}}}},"options":{{"metadata":{metadata}}}}}"#
            );
            sent(&body)
                .unwrap()
                .into_iter()
                .map(|(at, _, line)| (at, line))
                .collect::<Vec<_>>()
        };
        let meta = vec![("meta[\"ojs.rate_limit\"]", "m".to_owned())];
        assert_eq!(with("{}"), meta);
        assert_eq!(with("null"), meta);
        assert_eq!(with(r#"{"other":1}"#), Vec::new());
        let metadata = ("options.metadata[\"ojs.rate_limit\"]", "d".to_owned());
        assert_eq!(with(r#"{"ojs.rate_limit":{"key":"d"}}"#), vec![metadata]);
    }

    #[test]
    fn a_claimed_job_is_read_by_its_mirror() {
        let own = |job: &str| -> Vec<String> {
            own_policies(Json::parse(job.as_bytes(), 16).unwrap(), "q")
                .iter()
                .map(line)
                .collect()
        };
        let mirror = r#"{"meta":{"ojs.rate_limit.mirror":{"policy":{"key":"a"},"at":"options.rate_limit"}}}"#;
        assert_eq!(own(mirror), ["a"]);
        let both = r#"{"rate_limit":{"key":"b"},
            "meta":{"ojs.rate_limit.mirror":{"policy":{"key":"a"},"at":"options.rate_limit"},"ojs.rate_limit":{"key":"c"}}}"#;
        assert_eq!(own(both), ["a", "b", "c"]);
        let top = r#"{"rate_limit":{"key":"stale"},"meta":{"ojs.rate_limit.mirror":{"policy":{"key":"a"},"at":"rate_limit"}}}"#;
        assert_eq!(own(top), ["a"]);
        let echoed =
            r#"{"rate_limit":{"key":"a"},"meta":{"ojs.rate_limit.mirror":{"policy":{"key":"a"}}}}"#;
        assert_eq!(own(echoed), ["a"]);
        assert_eq!(
            own(r#"{"rate_limit":{"max_per_second":2}}"#),
            ["max_per_second:q spaced 2/PT1S/1"]
        );
        assert_eq!(
            own(r#"{"rate_limit":{"key":"b a d"},"meta":{"ojs.rate_limit":{"key":"c"}}}"#),
            ["c"]
        );
        assert!(own("{}").is_empty());
    }
}
