//! What differs between two configs: by name, for people, and so that nothing is half applied.

use std::collections::BTreeMap;
use std::fmt;

use super::Settings;
use crate::policy::{Policy, PolicySet, QueueLimits};
use crate::pressure::Given;

/// What a config has that another has not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// `[[policy]]` entries.
    pub policies: Changes,
    /// `[[queue]]` entries.
    pub queues: Changes,
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
    /// What `new` changes.
    pub fn between(old: &Settings, new: &Settings) -> Diff {
        let differing = |fields: &[(&'static str, Same)]| {
            let differ = fields.iter().filter(|(_, same)| !same(old, new));
            differ.map(|(name, _)| *name).collect()
        };
        Diff {
            policies: Changes::between(policies(&old.policies), policies(&new.policies)),
            queues: Changes::between(queues(old), queues(new)),
            fields: differing(CAN_CHANGE),
            fixed: differing(FIXED),
        }
    }

    /// The fields that can change while running: [`Diff::fields`] names some of these.
    pub fn can_change() -> impl Iterator<Item = &'static str> {
        CAN_CHANGE.iter().map(|(name, _)| *name)
    }

    /// The fields that cannot change while running: [`Diff::fixed`] names some of these.
    pub fn cannot_change() -> impl Iterator<Item = &'static str> {
        FIXED.iter().map(|(name, _)| *name)
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

/// By name; a policy that takes its numbers from several others is there once for each.
fn policies(set: &PolicySet) -> BTreeMap<&str, Vec<&Policy>> {
    let mut named: BTreeMap<&str, Vec<&Policy>> = BTreeMap::new();
    for policy in set.policies() {
        named.entry(&policy.name).or_default().push(policy);
    }
    named
}

/// By name: limits and bounds.
fn queues(settings: &Settings) -> BTreeMap<&str, (Option<&QueueLimits>, Option<&Given>)> {
    let mut named: BTreeMap<&str, (Option<&QueueLimits>, Option<&Given>)> = BTreeMap::new();
    for queue in settings.policies.queues() {
        named.entry(queue.name.as_str()).or_default().0 = Some(queue);
    }
    for (name, given) in settings.bounds.entries() {
        named.entry(name.as_str()).or_default().1 = Some(given);
    }
    named
}

/// The names of limited and of bounded queues, in the order of the file.
fn queue_order(settings: &Settings) -> Vec<(bool, &str)> {
    let limited = settings.policies.queues().iter();
    let bounded = settings.bounds.entries().iter();
    let limited = limited.map(|queue| (false, queue.name.as_str()));
    limited
        .chain(bounded.map(|(name, _)| (true, name.as_str())))
        .collect()
}

/// Whether a field is the same in both.
type Same = fn(&Settings, &Settings) -> bool;

/// A field by its name, and where the settings keep it.
macro_rules! field {
    ($name:literal, $table:ident.$field:ident) => {
        ($name, |a, b| a.$table.$field == b.$table.$field)
    };
}

/// The fields that are read anew for each decision, and the level of the log.
const CAN_CHANGE: &[(&str, Same)] = &[
    field!("server.drain_timeout", server.drain_timeout),
    field!("server.drain_min", server.drain_min),
    field!("server.max_body", server.max_body),
    field!("server.body_timeout", server.body_timeout),
    field!("server.control_token", server.control_token),
    field!("server.trust_tenant_header", server.trust_tenant_header),
    field!("server.log_level", server.log_level),
    field!("upstream.token", upstream.token),
    field!("fetch.max_wait", fetch.max_wait),
    field!("fetch.claim_budget", fetch.claim_budget),
    field!("hold.idle", hold.idle),
    field!("hold.max", hold.max),
    field!("hold.max_bytes", hold.max_bytes),
    field!("settle.retry_for", settle.retry_for),
    field!(
        "repairs.heartbeat_active_jobs",
        repairs.heartbeat_active_jobs
    ),
    field!("repairs.queue_paths", repairs.queue_paths),
    field!("repairs.job_and_jobs", repairs.job_and_jobs),
    field!("repairs.media_type", repairs.media_type),
    field!("policy.on_store_error", store.by_policy),
    field!("policy.sync", store.reserved),
    ("tenant", |a, b| a.bounds.tenants() == b.bounds.tenants()),
    ("queue", |a, b| {
        // Of those that match, the first counts.
        let (before, after) = (queue_order(a), queue_order(b));
        let stayed = before.iter().filter(|name| after.contains(name));
        stayed.eq(after.iter().filter(|name| before.contains(name)))
    }),
    ("job_policies.accept", |a, b| {
        a.policies.accept() == b.policies.accept()
    }),
];

/// The fields that something was built from at the start: listeners, connections, the form of the log.
const FIXED: &[(&str, Same)] = &[
    field!("server.listen", server.listen),
    field!("server.admin_listen", server.admin_listen),
    field!("server.upstream", upstream.url),
    field!("server.threads", server.threads),
    field!("server.max_connections", server.max_connections),
    field!("server.max_in_flight", server.max_in_flight),
    field!("server.header_timeout", server.header_timeout),
    field!("server.idle_timeout", server.idle_timeout),
    field!("server.upstream_timeout", upstream.timeout),
    field!("server.connect_timeout", upstream.connect_timeout),
    field!("server.log", server.log),
    field!("upstream.ca_file", upstream.ca_file),
    field!("upstream.requeue", upstream.requeue_harmless),
    field!("upstream.claims_count", upstream.claims_count),
    field!("upstream.liveness", upstream.worker_liveness),
    field!("upstream.heartbeat", upstream.heartbeat_from_start),
    field!("store.url", store.url),
    field!("store.namespace", store.namespace),
    field!("store.timeout", store.timeout),
    field!("store.on_store_error", store.on_store_error),
    field!("store.ca_file", store.ca_file),
    field!("metrics.top_keys", metrics.top_keys),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            "server.upstream",
            "server.threads",
            "metrics.top_keys",
        ];
        assert_eq!(diff.fixed, expected);
        assert!(!diff.is_empty());
    }

    /// A field that stands in neither list would change in the file and nowhere else.
    #[test]
    fn every_field_can_change_or_is_fixed() {
        let example = include_str!("../../config.example.toml");
        let known = super::super::known_fields(example);
        let fields: BTreeSet<&str> = known
            .iter()
            .map(String::as_str)
            .filter(|field| !field.starts_with("policy") && !field.starts_with("queue"))
            // Tables themselves, and what stands in the entries of the two lists.
            .filter(|field| {
                field.split_once('.').is_some_and(|(table, _)| {
                    [
                        "server",
                        "upstream",
                        "store",
                        "fetch",
                        "hold",
                        "settle",
                        "repairs",
                        "metrics",
                        "job_policies",
                    ]
                    .contains(&table)
                })
            })
            .collect();
        let listed = CAN_CHANGE.iter().chain(FIXED).map(|(name, _)| *name);
        let listed = listed
            .filter(|name| !name.starts_with("policy.") && !["queue", "tenant"].contains(name));
        assert_eq!(listed.collect::<BTreeSet<_>>(), fields);
    }
}
