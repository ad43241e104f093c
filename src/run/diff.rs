//! The difference between two configs. A reload applies it as a whole or not at all, and names it in the log.

use std::collections::BTreeMap;
use std::fmt;

use crate::bounds::Given;
use crate::config::{EgressSettings, SETTINGS, Settings, TakesEffect};
use crate::policy::subqueue::Spread;
use crate::policy::{Policy, PolicySet, QueueLimits};

/// The difference between two configs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// `[[policy]]` entries.
    pub policies: Changes,
    /// `[[queue]]` entries.
    pub queues: Changes,
    /// `[[egress]]` entries that come or go, which they cannot while running.
    pub ways: Changes,
    /// Other fields that can change while running, such as `fetch.max_wait`.
    pub fields: Vec<&'static str>,
    /// Fields that cannot change while running.
    pub fixed: Vec<&'static str>,
}

/// Entries by name, each list sorted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Only in the new config.
    pub added: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
    /// In both, and not the same.
    pub changed: Vec<String>,
}

impl Diff {
    /// Compares two configs.
    pub fn between(old: &Settings, new: &Settings) -> Diff {
        let differs = |(name, same): (&'static str, Same)| (!same(old, new)).then_some(name);
        Diff {
            policies: Changes::between(policies(&old.policies), policies(&new.policies)),
            queues: Changes::between(queues(old), queues(new)),
            ways: Changes::between(ways(old), ways(new)),
            fields: changing().filter_map(differs).collect(),
            fixed: fixed().filter_map(differs).collect(),
        }
    }

    /// All fields that [`Diff::fields`] can name.
    pub fn can_change() -> impl Iterator<Item = &'static str> {
        changing().map(|(name, _)| name)
    }

    /// All fields that [`Diff::fixed`] can name.
    pub fn cannot_change() -> impl Iterator<Item = &'static str> {
        fixed().map(|(name, _)| name)
    }

    /// Whether the two mean the same.
    pub fn is_empty(&self) -> bool {
        *self == Diff::default()
    }
}

/// `policies: 1 added (stripe), 1 changed (mail); fields: fetch.max_wait`.
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (what, changes) in [("policies", &self.policies), ("queues", &self.queues)] {
            if *changes != Changes::default() {
                parts.push(format!("{what}: {changes}"));
            }
        }
        if !self.fields.is_empty() {
            parts.push(format!("fields: {}", self.fields.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// More names than this are not listed one by one.
const LISTED: usize = 8;

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("changed", &self.changed),
        ];
        let mut parts = Vec::new();
        for (word, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
            let listed: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
            let more = if names.len() > LISTED { ", …" } else { "" };
            parts.push(format!(
                "{} {word} ({}{more})",
                names.len(),
                listed.join(", ")
            ));
        }
        f.write_str(&parts.join(", "))
    }
}

impl Changes {
    fn between<T: PartialEq>(old: BTreeMap<&str, T>, new: BTreeMap<&str, T>) -> Changes {
        let mut changes = Changes::default();
        for (name, entry) in &new {
            match old.get(name) {
                None => changes.added.push((*name).to_owned()),
                Some(before) if before != entry => changes.changed.push((*name).to_owned()),
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        changes.removed = gone.map(|name| (*name).to_owned()).collect();
        changes
    }
}

/// Policies by name, each with whether it is only tried. A policy that takes its numbers from several others is there
/// once for each.
fn policies(set: &PolicySet) -> BTreeMap<&str, Vec<(bool, &Policy)>> {
    let mut named: BTreeMap<&str, Vec<(bool, &Policy)>> = BTreeMap::new();
    let tried = set.shadow().map_or(&[][..], PolicySet::policies);
    let all = set.policies().iter().map(|one| (false, one));
    for policy in all.chain(tried.iter().map(|one| (true, one))) {
        named.entry(&policy.1.name).or_default().push(policy);
    }
    named
}

/// What the entries of a queue say.
#[derive(PartialEq, Default)]
struct QueueSays<'a> {
    limits: Option<&'a QueueLimits>,
    bounds: Option<&'a Given>,
    subqueues: Option<Spread>,
    limits_tried: Option<&'a QueueLimits>,
    bounds_tried: Option<&'a Given>,
}

/// What is said of each queue, by name.
fn queues(settings: &Settings) -> BTreeMap<&str, QueueSays<'_>> {
    let mut named: BTreeMap<&str, QueueSays<'_>> = BTreeMap::new();
    for queue in settings.policies.queues() {
        named.entry(queue.name.as_str()).or_default().limits = Some(queue);
    }
    for (name, given) in &settings.bounds.entries {
        named.entry(name.as_str()).or_default().bounds = Some(given);
    }
    for queue in settings
        .policies
        .shadow()
        .map_or(&[][..], PolicySet::queues)
    {
        named.entry(queue.name.as_str()).or_default().limits_tried = Some(queue);
    }
    for (name, given) in &settings.bounds.tried {
        named.entry(name.as_str()).or_default().bounds_tried = Some(given);
    }
    for (name, spread) in settings.policies.subqueues() {
        named.entry(name).or_default().subqueues = Some(*spread);
    }
    named
}

/// The names of ways out.
fn ways(settings: &Settings) -> BTreeMap<&str, ()> {
    let names = settings.egress.iter().map(|entry| &*entry.name);
    names.map(|name| (name, ())).collect()
}

/// The names of limited and of bounded queues, in the order of the file.
fn queue_order(settings: &Settings) -> Vec<(bool, &str)> {
    let limited = settings.policies.queues().iter();
    let bounded = settings.bounds.entries.iter();
    let limited = limited.map(|queue| (false, queue.name.as_str()));
    limited
        .chain(bounded.map(|(name, _)| (true, name.as_str())))
        .collect()
}

/// Fields that a reload can change and that are no settings: they stand in lists, or with the policies.
const LISTS: [(&str, Same); 5] = [
    ("egress entries", |a, b| a.egress == b.egress),
    ("policy.on_store_error", |a, b| {
        a.on_store_error_by_policy == b.on_store_error_by_policy
    }),
    ("policy.sync", |a, b| a.reserved == b.reserved),
    ("tenant", |a, b| a.bounds.tenants == b.bounds.tenants),
    ("queue", |a, b| {
        // The order matters: the first entry that matches a queue counts.
        let (before, after) = (queue_order(a), queue_order(b));
        let stayed = before.iter().filter(|name| after.contains(name));
        stayed.eq(after.iter().filter(|name| before.contains(name)))
    }),
];

/// What a listener for calls was made of at the start.
const LISTENERS: [(&str, Same); 5] = [
    ("egress.name", |a, b| ways(a) == ways(b)),
    ("egress.listen", |a, b| is_same(a, b, |of| of.listen)),
    ("egress.upstream", |a, b| {
        is_same(a, b, |of| of.upstream.clone())
    }),
    ("egress.scheme", |a, b| {
        is_same(a, b, |of| of.hosts.as_ref().map(|hosts| hosts.tls))
    }),
    ("egress.ca_file", |a, b| {
        is_same(a, b, |of| of.ca_file.clone())
    }),
];

/// Of entries that are in both, by their names.
fn is_same<T: PartialEq>(a: &Settings, b: &Settings, of: fn(&EgressSettings) -> T) -> bool {
    a.egress.iter().all(|entry| {
        let mut all = b.egress.iter();
        let same = all.find(|other| other.name == entry.name);
        same.is_none_or(|same| of(same) == of(entry))
    })
}

/// Whether something is the same in both.
type Same = fn(&Settings, &Settings) -> bool;

/// The settings whose other values count then.
fn settings(effect: TakesEffect) -> impl Iterator<Item = (&'static str, Same)> {
    let those = SETTINGS.iter().filter(move |one| one.effect == effect);
    those.map(|one| (one.name, one.same))
}

/// All that cannot change while running.
fn fixed() -> impl Iterator<Item = (&'static str, Same)> {
    settings(TakesEffect::Restart).chain(LISTENERS)
}

/// All that can change while running.
fn changing() -> impl Iterator<Item = (&'static str, Same)> {
    settings(TakesEffect::Live).chain(LISTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        let upstream = match text.contains("upstream =") {
            true => "",
            false => "[server]\nupstream = 'http://ojs'\n",
        };
        Settings::parse(&format!("{upstream}{text}"), "t").unwrap()
    }

    #[test]
    fn what_differs_is_named() {
        let a = "[[policy]]\nname = 'a'\nconcurrency = 1\n";
        let b = "[[policy]]\nname = 'b'\nconcurrency = 1\n";
        let a2 = "[[policy]]\nname = 'a'\nconcurrency = 2\n";
        let same_key = "[[policy]]\nname = 'c'\nkey = 'a'\nmatch = { queue = 'x' }\n";
        let queue = "[[queue]]\nname = 'q-*'\nconcurrency = 1\n";
        let all = "[[queue]]\nname = '*'\nconcurrency = 2\n";
        let split = "[[queue]]\nname = 'q'\nconcurrency = 1\n";
        let queue2 = "[[queue]]\nname = 'q-*'\nconcurrency = 9\n";
        let table: &[(String, String, &str)] = &[
            (a.into(), a.into(), ""),
            (
                a.into(),
                format!("# a comment\n{a}description = 'the same'"),
                "",
            ),
            (format!("{a}{b}"), format!("{b}{a}"), ""),
            ("".into(), a.into(), "policies: 1 added (a)"),
            (a.into(), "".into(), "policies: 1 removed (a)"),
            (a.into(), a2.into(), "policies: 1 changed (a)"),
            (a.into(), b.into(), "policies: 1 added (b), 1 removed (a)"),
            (
                format!("{a}{same_key}"),
                format!("{a2}{same_key}"),
                "policies: 2 changed (a, c)",
            ),
            (queue.into(), queue2.into(), "queues: 1 changed (q-*)"),
            (
                split.into(),
                format!("{split}subqueues = true\n"),
                "queues: 1 changed (q)",
            ),
            (
                format!("{split}subqueues = 512\n"),
                format!("{split}subqueues = 512\nsubqueues_salt = '0123456789abcdef'\n"),
                "queues: 1 changed (q)",
            ),
            (
                format!("{queue}{all}"),
                format!("{all}{queue}"),
                "fields: queue",
            ),
            (
                format!("{queue}{all}"),
                all.into(),
                "queues: 1 removed (q-*)",
            ),
            (
                a.into(),
                format!("[fetch]\nmax_wait = '1s'\n[job_policies]\naccept = 'ignore'\n{b}{queue}"),
                "policies: 1 added (b), 1 removed (a); queues: 1 added (q-*); fields: fetch.max_wait, job_policies.accept",
            ),
        ];
        for (old, new, expected) in table {
            let diff = Diff::between(&settings(old), &settings(new));
            assert_eq!(diff.to_string(), *expected, "{old} -> {new}");
            assert_eq!(diff.is_empty(), expected.is_empty());
            assert!(diff.fixed.is_empty());
        }
    }

    #[test]
    fn many_names_are_counted() {
        let many: String = (0..20)
            .map(|n| format!("[[policy]]\nname = 'p{n:02}'\nconcurrency = 1\n"))
            .collect();
        let diff = Diff::between(&settings(""), &settings(&many)).to_string();
        assert_eq!(
            diff,
            "policies: 20 added (p00, p01, p02, p03, p04, p05, p06, p07, …)"
        );
    }

    #[test]
    fn what_is_fixed_is_named() {
        let old = settings("");
        let new = settings(
            "[server]\nupstream = 'http://other'\nlisten = '127.0.0.1:1'\nthreads = 2\n[metrics]\ntop_keys = 1",
        );
        let diff = Diff::between(&old, &new);
        let expected = [
            "server.listen",
            "server.threads",
            "server.upstream",
            "metrics.top_keys",
        ];
        assert_eq!(diff.fixed, expected);
        assert!(!diff.is_empty());
    }
}
