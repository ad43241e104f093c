//! `[[policy]]` and `[job_policies]`, and with the queues all that limits jobs.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use toml::de::DeValue;

use super::feedback;
use super::limits::limits;
use super::patterns::{QUEUE, TYPE, patterns};
use super::queues::queues;
use super::reader::{Reading, Table};
use super::values::Text;
use crate::limit::{Key, Limits, OnLimit};
use crate::policy::{Accept, KeyMissing, Match, Pattern, Policy, PolicySet, Template};
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

/// Reads and compiles policies, queues and job policies.
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

/// The names of policies that no entry makes.
const TAKEN: [&str; 2] = ["job", "queue"];

fn policy_name(table: &mut Table<'_>) -> Option<Text> {
    if table.get("name").is_none() {
        table.missing(
            &table.span,
            "a policy needs a `name`",
            "add name = \"…\"; metrics and headers show it",
        );
    }
    let name = table.text("name")?;
    if TAKEN.contains(&name.text.as_str()) {
        let title = format!("`policy.name` {:?} is taken", name.text);
        let hint = "limits that a job or a queue has by itself go by it; give it another";
        table.error(&name.span, title, hint);
        return None;
    }
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
