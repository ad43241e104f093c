//! `[[policy]]`, `[[queue]]` and `[job_policies]`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use toml::de::DeValue;

use super::reader::{Found, Reading, Table};
use super::values::Text;
use super::{bounds, feedback};
use crate::limit::{Key, Limits, Measure, OnLimit, Rate, Throttle};
use crate::policy::numbers::{self, Window, Wrong};
use crate::policy::{Accept, KeyMissing, Match, Pattern, Policy, PolicySet, QueueLimits, Template};
use crate::pressure::FileBounds;
use crate::store::guard::{Declared, OnStoreError};
use crate::store::reserved;

/// A policy with the places that messages point at.
struct Written {
    policy: Policy,
    name: Range<usize>,
    key: Range<usize>,
    on_store_error: Option<OnStoreError>,
    reserved: bool,
}

/// What is read here.
pub(super) struct Read {
    pub(super) policies: PolicySet,
    pub(super) bounds: FileBounds,
    pub(super) on_store_error: Declared,
    /// The policies with `sync = "reserved"`.
    pub(super) reserved: reserved::Policies,
}

/// Reads and compiles all three.
pub(super) fn policies(reading: &Reading<'_>, root: &mut Table<'_>) -> Read {
    let tables = root.tables("policy", "[[policy]] above its fields");
    let count = tables.len();
    let written: Vec<Written> = tables.into_iter().filter_map(policy).collect();
    unique_names(reading, &written);
    shared_keys(reading, &written);
    let policies = joined(reading, &written, written.len() == count);
    let (queues, bounds) = queues(reading, root);
    let declared = written.iter().filter_map(|one| {
        let mode = one.on_store_error?;
        Some((Arc::clone(&one.policy.name), mode))
    });
    let reserved = written.iter().filter(|one| one.reserved);
    Read {
        on_store_error: declared.collect(),
        reserved: reserved.map(|one| one.policy.name.clone()).collect(),
        policies: PolicySet::new(policies, queues, accept(root)),
        bounds,
    }
}

fn accept(root: &mut Table<'_>) -> Accept {
    let mut table = root.table("job_policies");
    let words = [
        ("tighten", Accept::Tighten),
        ("replace", Accept::Replace),
        ("ignore", Accept::Ignore),
    ];
    let accept = table.word("accept", Accept::default(), &words);
    table.finish();
    accept
}

/// Reads one `[[policy]]` to its end; `None` when it lacks what the rest needs.
fn policy(mut table: Table<'_>) -> Option<Written> {
    let name = policy_name(&mut table);
    table.text("description");
    let matching = matching(&mut table);
    let key = key(&mut table, name.as_ref());
    let missing = [
        ("shared", KeyMissing::Shared),
        ("skip", KeyMissing::Skip),
        ("reject", KeyMissing::Reject),
    ];
    let key_missing = table.word("key_missing", KeyMissing::default(), &missing);
    let limits = limits(&mut table);
    let actions = [
        ("wait", OnLimit::Wait),
        ("reschedule", OnLimit::Reschedule),
        ("drop", OnLimit::Drop),
    ];
    let on_limit = table.word("on_limit", OnLimit::default(), &actions);
    let on_store_error = table.word(
        "on_store_error",
        None,
        &OnStoreError::words().map(|(word, mode)| (word, Some(mode))),
    );
    let reserved = is_reserved(&mut table, limits.as_ref(), on_limit);
    let feedback = feedback::feedback(&mut table);
    let header = table.span.clone();
    table.finish();
    let (name, (key, key_span)) = (name?, key?);
    let policy = Policy {
        name: Arc::from(name.text),
        matching: matching?,
        key,
        key_missing,
        limits: limits?,
        on_limit,
        feedback,
    };
    let span = if name.span.is_empty() {
        header
    } else {
        name.span
    };
    Some(Written {
        policy,
        name: span,
        key: key_span,
        on_store_error,
        reserved,
    })
}

/// Whether start times are reserved ahead in the store, and whether these limits can be.
fn is_reserved(table: &mut Table<'_>, limits: Option<&Limits>, on_limit: OnLimit) -> bool {
    let span = table.get("sync").map(|found| found.span);
    let reserved = table.word("sync", false, &[("strict", false), ("reserved", true)]);
    let (Some(span), Some(limits), true) = (span, limits, reserved) else {
        return reserved;
    };
    if let Some(why) = reserved::objection(limits, on_limit) {
        table.error(&span, "`policy.sync` cannot be \"reserved\" here", why);
    } else if !reserved::is_hot(limits) {
        let hint = "below 32 a second there are no calls to save; leave it out";
        let title = "nothing is reserved of a limit as slow as this; each start is asked for";
        table.warn(&span, title, hint);
    }
    reserved
}

fn policy_name(table: &mut Table<'_>) -> Option<Text> {
    if table.get("name").is_none() {
        table.missing(
            &table.span,
            "a policy needs a `name`",
            "add name = \"…\"; metrics and headers show it",
        );
    }
    let name = table.text("name")?;
    match Key::new(&name.text) {
        Ok(_) => Some(name),
        Err(_) => {
            let hint =
                "up to 256 letters, digits and `.` `_` `:` `-`, beginning with a letter or digit";
            table.error(&name.span, "`policy.name` is not valid", hint);
            None
        }
    }
}

/// The key's template and its place; the name's, where there is no key.
fn key(table: &mut Table<'_>, name: Option<&Text>) -> Option<(Template, Range<usize>)> {
    let given = table.get("key").is_some();
    let text = if given {
        table.text("key")
    } else {
        name.cloned()
    }?;
    match Template::new(&text.text) {
        Ok(template) => Some((template, text.span)),
        Err(bad) => {
            table.error(&text.span, "`policy.key` is not valid", bad.to_string());
            None
        }
    }
}

fn matching(table: &mut Table<'_>) -> Option<Match> {
    let Some(mut table) = table.maybe_table("match", "match = { queue = \"billing\" }") else {
        return Some(Match::default());
    };
    let queue = table.get("queue");
    let queue = queue.map_or(Some(Vec::new()), |found| {
        patterns(&table, &found, Some(QUEUE))
    });
    let kind = table.get("type");
    let kind = kind.map_or(Some(Vec::new()), |found| {
        patterns(&table, &found, Some(TYPE))
    });
    let mut meta = Vec::new();
    for (name, found) in table.each() {
        match name.strip_prefix("meta.") {
            Some(path) if !path.is_empty() => {
                meta.push((Box::from(path), patterns(&table, &found, None)?))
            }
            _ => continue,
        }
    }
    // Written without quotes, `meta.plan` is a table.
    if let Some(nested) = table.maybe_table("meta", "meta.plan = \"free\"") {
        meta_patterns(&nested, "", &mut meta)?;
    }
    table.finish_but(|name| name.starts_with("meta."));
    Some(Match {
        queue: queue?,
        kind: kind?,
        meta,
    })
}

fn meta_patterns(
    table: &Table<'_>,
    before: &str,
    meta: &mut Vec<(Box<str>, Vec<Pattern>)>,
) -> Option<()> {
    for (name, found) in table.each() {
        let path = format!("{before}{name}");
        match found.value {
            DeValue::Table(_) => {
                meta_patterns(&table.as_table(&found, "")?, &format!("{path}."), meta)?
            }
            _ => meta.push((path.into(), patterns(table, &found, None)?)),
        }
    }
    Some(())
}

/// What names of one sort look like, to tell patterns that nothing can match.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) what: &'static str,
    pub(super) allowed: fn(char) -> bool,
}

/// Queue names (OJS core): lower case, digits, `.` and `-`.
const QUEUE: Names = Names {
    what: "queue names have",
    allowed: |c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-*?".contains(c),
};
/// Job types (OJS core): as queue names, and `_`.
const TYPE: Names = Names {
    what: "job types have",
    allowed: |c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-*?".contains(c),
};

/// One pattern or a list of them.
pub(super) fn patterns(
    table: &Table<'_>,
    found: &Found<'_>,
    names: Option<Names>,
) -> Option<Vec<Pattern>> {
    let texts: Vec<Text> = match found.value {
        DeValue::String(text) => vec![Text {
            text: text.to_string(),
            span: found.span.clone(),
        }],
        DeValue::Array(items) => {
            let each = items.iter().map(|item| {
                table.as_text(&Found {
                    path: found.path.clone(),
                    span: item.span(),
                    value: item.get_ref(),
                })
            });
            each.collect::<Option<_>>()?
        }
        _ => {
            table.wrong_type(found, "a string or a list of strings", "put it in quotes");
            return None;
        }
    };
    if texts.is_empty() {
        table.error(
            &found.span,
            format!("`{}` matches nothing", found.path),
            "leave it out to match everything",
        );
    }
    for text in &texts {
        let strange = names
            .and_then(|names| Some((names, text.text.chars().find(|c| !(names.allowed)(*c))?)));
        if text.text.is_empty() {
            table.error(
                &text.span,
                format!("`{}` matches nothing", found.path),
                "leave it out to match everything",
            );
        } else if let Some((names, c)) = strange {
            let title = format!(
                "`{}` can never match: {:?} has {c:?}",
                found.path, text.text
            );
            table.warn(
                &text.span,
                title,
                format!("{} lower case letters, digits and a few marks", names.what),
            );
        }
    }
    Some(texts.iter().map(|text| Pattern::new(&text.text)).collect())
}

/// `concurrency`, `rate` and `throttle` of a policy or queue.
fn limits(table: &mut Table<'_>) -> Option<Limits> {
    let bounded = table.get("concurrency").is_some();
    let concurrency = match table.integer("concurrency") {
        None => None,
        Some((slots, span)) => match numbers::concurrency(slots) {
            Ok(slots) => Some(slots),
            Err(message) => {
                table.error(&span, format!("`{}.concurrency` {message}", table.path), "");
                None
            }
        },
    };
    let given = table.get("rate").is_some();
    let rates: Vec<Rate> = table
        .tables("rate", "rate = { limit = 100, period = \"1m\" }")
        .into_iter()
        .filter_map(rate)
        .collect();
    let throttled = table.get("throttle").is_some();
    let throttle = table
        .maybe_table("throttle", "throttle = { limit = 10, period = \"1s\" }")
        .and_then(throttle);
    // What is wrong was said; to go on without it would only find that a limit is missing.
    let lost = (bounded && concurrency.is_none())
        || (given && rates.is_empty())
        || (throttled && throttle.is_none());
    (!lost).then_some(Limits {
        concurrency,
        rates,
        throttle,
    })
}

fn rate(mut table: Table<'_>) -> Option<Rate> {
    let limit = limit(&mut table);
    let window = table.word("window", Window::Sliding, &Window::WORDS);
    let unread = table.get("tz").is_some();
    let tz = table.text("tz");
    let unread = unread && tz.is_none();
    let zone = tz.as_ref().map(|tz| tz.text.as_str());
    let read = match window {
        Window::Calendar => {
            let period = period_text(&mut table);
            limit
                .as_ref()
                .zip(period)
                .map(|((limit, at), Text { text, span })| {
                    let rate = numbers::calendar(*limit, &text, zone);
                    rate.map_err(|wrong| (wrong, at.clone(), span))
                })
        }
        Window::Sliding | Window::Fixed => {
            let period = period(&mut table);
            let read = if window == Window::Fixed {
                numbers::fixed
            } else {
                numbers::rate
            };
            limit
                .as_ref()
                .zip(period)
                .map(|((limit, at), (period, span))| {
                    let rate = numbers::no_zone(zone).and_then(|()| read(*limit, period));
                    rate.map_err(|wrong| (wrong, at.clone(), span))
                })
        }
    };
    let rate = match read {
        Some(Ok(rate)) => Some(rate).filter(|_| !unread),
        Some(Err((wrong, at, period))) => {
            let zone = tz.map_or_else(|| at.clone(), |tz| tz.span);
            out_of_range(&table, wrong, [&at, &period, &zone]);
            None
        }
        None => None,
    };
    table.finish();
    rate
}

/// A period that may be a calendar's.
fn period_text(table: &mut Table<'_>) -> Option<Text> {
    match table.get("period").map(|found| found.value) {
        Some(DeValue::String(_)) => table.text("period"),
        // Says what is wrong with it.
        _ => period(table).and(None),
    }
}

fn throttle(mut table: Table<'_>) -> Option<Throttle> {
    let interval = table.micros("interval");
    let burst = table.integer("burst");
    let measure = table.word("measure", Measure::Start, &numbers::MEASURES);
    let (burst, burst_span) = burst.map_or((1, table.span.clone()), |(burst, span)| (burst, span));
    let found = match interval {
        Some((micros, span)) => {
            for other in ["limit", "period"] {
                if let Some(found) = table.get(other) {
                    let title = format!("`{}` stands beside `interval`", found.path);
                    table.error(
                        &found.span,
                        title,
                        "write either interval, or limit and period",
                    );
                }
            }
            numbers::interval(micros, burst)
                .map_err(|wrong| out_of_range(&table, wrong, [&span, &span, &burst_span]))
        }
        None => {
            let (limit, period) = (limit(&mut table), period(&mut table));
            match (&limit, &period) {
                (Some((limit, at)), Some((period, until))) => {
                    numbers::throttle(*limit, *period, burst)
                        .map_err(|wrong| out_of_range(&table, wrong, [at, until, &burst_span]))
                }
                _ => Err(()),
            }
        }
    };
    table.finish();
    found.ok().map(|spacing| Throttle { measure, ..spacing })
}

fn limit(table: &mut Table<'_>) -> Option<(i64, Range<usize>)> {
    if table.get("limit").is_none() {
        table.missing(
            &table.span,
            format!("`{}` needs a `limit`", table.path),
            "such as limit = 100",
        );
    }
    table.integer("limit")
}

fn period(table: &mut Table<'_>) -> Option<(u64, Range<usize>)> {
    if table.get("period").is_none() {
        table.missing(
            &table.span,
            format!("`{}` needs a `period`", table.path),
            "such as period = \"PT1M\"",
        );
    }
    table.micros("period")
}

/// Reports a value at the place of its member: limit (or interval), period, and burst or time zone.
fn out_of_range(table: &Table<'_>, wrong: Wrong, [limit, period, other]: [&Range<usize>; 3]) {
    let (span, what) = match wrong.member {
        "period" => (period, "is out of range"),
        "burst" => (other, "is out of range"),
        "tz" => (other, "cannot be this"),
        _ => (limit, "is out of range"),
    };
    let title = format!("`{}.{}` {what}", table.path, wrong.member);
    table.error(span, title, wrong.message);
}

fn queues(reading: &Reading<'_>, root: &mut Table<'_>) -> (Vec<QueueLimits>, FileBounds) {
    let mut queues: Vec<QueueLimits> = Vec::new();
    let mut bounded = Vec::new();
    let mut seen = HashSet::new();
    for mut table in root.tables("queue", "[[queue]] above its fields") {
        let header = table.span.clone();
        let name = table
            .get("name")
            .map(|found| (patterns(&table, &found, Some(QUEUE)), found));
        if name.is_none() {
            table.missing(
                &header,
                "a queue entry needs a `name`",
                "add name = \"…\"; a glob gives each queue its own counters",
            );
        }
        let limits = limits(&mut table);
        let names = name.as_ref().and_then(|(names, _)| names.as_ref());
        let all = |name: &Pattern| name.as_str().bytes().all(|byte| byte == b'*');
        let everything = names.is_some_and(|names| names.iter().any(all));
        let bounds = bounds::bounds(&mut table, everything);
        table.finish();
        let (Some((Some(names), found)), Some(limits)) = (name, limits) else {
            continue;
        };
        if limits == Limits::default() && bounds.is_silent() {
            let title = "this queue entry has no limit and no bound";
            reading.missing(
                found.span.clone(),
                title,
                "add concurrency, rate, throttle, max_depth or max_size, or remove the entry",
            );
        }
        for name in names {
            if !seen.insert(name.as_str().to_owned()) {
                reading.error(
                    found.span.clone(),
                    format!("queue {:?} is there twice", name.as_str()),
                    "make it one entry",
                );
            }
            if !bounds.is_silent() {
                bounded.push((name.clone(), bounds.clone()));
            }
            // What only bounds a queue must not make its FETCHes look for limits.
            if limits != Limits::default() {
                queues.push(QueueLimits {
                    name,
                    limits: limits.clone(),
                });
            }
        }
    }
    let tenants = bounds::tenants(root);
    (queues, FileBounds::new(bounded).with_tenants(tenants))
}

fn unique_names(reading: &Reading<'_>, written: &[Written]) {
    let mut names = HashSet::new();
    for one in written {
        if !names.insert(&one.policy.name) {
            let title = format!("policy {:?} is there twice", one.policy.name);
            reading.error(one.name.clone(), title, "give each policy its own name");
        }
    }
}

/// The policies with numbers of their own, by their key, in the order of the file.
fn limited_by_key(written: &[Written]) -> HashMap<&str, Vec<&Policy>> {
    let mut by_key: HashMap<&str, Vec<&Policy>> = HashMap::new();
    let policies = written.iter().map(|one| &one.policy);
    for policy in policies.filter(|policy| policy.limits != Limits::default()) {
        by_key.entry(policy.key.as_str()).or_default().push(policy);
    }
    by_key
}

/// Two policies on one key with different numbers may be meant, or a mistake in copying.
fn shared_keys(reading: &Reading<'_>, written: &[Written]) {
    let by_key = limited_by_key(written);
    for one in written {
        let same = by_key.get(one.policy.key.as_str()).into_iter().flatten();
        let mut earlier = same.take_while(|other| other.name != one.policy.name);
        let limited = one.policy.limits != Limits::default();
        if let Some(other) = earlier.find(|other| limited && other.limits != one.policy.limits) {
            let title = format!(
                "policies {:?} and {:?} share a key but not their numbers",
                other.name, one.policy.name
            );
            let hint = "they share counters; each job is held to the numbers of the policies that match it";
            reading.warn(one.key.clone(), title, hint);
        }
    }
}

/// Gives a policy without numbers those of the policies whose key it uses. Unless `all` could be
/// read, the one it means may be missing here.
fn joined(reading: &Reading<'_>, written: &[Written], all: bool) -> Vec<Policy> {
    let by_key = limited_by_key(written);
    let mut policies = Vec::new();
    for one in written {
        if one.policy.limits != Limits::default() {
            policies.push(one.policy.clone());
            continue;
        }
        let before = policies.len();
        for other in by_key.get(one.policy.key.as_str()).into_iter().flatten() {
            policies.push(Policy {
                limits: other.limits.clone(),
                ..one.policy.clone()
            });
        }
        if policies.len() == before && all {
            let title = format!("policy {:?} has no limit", one.policy.name);
            let hint = "add concurrency, rate or throttle, or use the key of a policy that has one";
            reading.missing(one.name.clone(), title, hint);
        }
    }
    policies
}
