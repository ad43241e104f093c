//! Reads `[[policy]]` and `[job_policies]`, and with `[[queue]]` everything that limits jobs.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use toml::de::DeValue;

use super::costs::{named, prices, refuse_without_limit};
use super::egress::{EgressSettings, egress};
use super::entries::{on_store_error, valid_name};
use super::feedback;
use super::mode::{EntryMode, mode};
use super::queues::{queues, warn_of_lost_bounds};
use ojs_bounds::FileBounds;
use ojs_limit::{Limits, MOST_WINDOWS, OnLimit, each_window};
use ojs_policy::limits::limits;
use ojs_policy::{
    Accept, KeyMissing, Match, ON_LIMIT, Pattern, Policy, PolicySet, Prices, Sample, Template,
};
use ojs_reader::{POLICIES, QUEUE, TYPE, Text, TomlTable, patterns};
use ojs_store::guard::{Declared, OnStoreError};
use ojs_store::reserved;

/// A `[[policy]]` as far as it could be read. The spans say where messages point.
struct WrittenPolicy {
    /// Its name as it is written, valid or not.
    name: Option<String>,
    at: Range<usize>,
    key: WrittenKey,
    limits: Option<Limits>,
    on_store_error: Option<OnStoreError>,
    reserved: bool,
    mode: EntryMode,
    /// `None` if something of it could not be read.
    policy: Option<Policy>,
}

/// The key of a policy, which is its name where none is given.
struct WrittenKey {
    given: bool,
    text: Option<Text>,
    template: Option<Template>,
}

/// All that limits jobs.
pub(super) struct Limiting {
    pub(super) policies: PolicySet,
    pub(super) bounds: FileBounds,
    pub(super) on_store_error: Declared,
    /// The policies with `sync = "reserved"`.
    pub(super) reserved: reserved::Policies,
    /// Ways out for calls, which the policies limit too.
    pub(super) egress: Vec<EgressSettings>,
}

/// Reads and compiles policies, queues and job policies.
pub(super) fn policies(root: &mut TomlTable<'_>) -> Limiting {
    let tables = root.tables("policy", "[[policy]] above its fields");
    let written: Vec<WrittenPolicy> = tables.into_iter().map(policy).collect();
    unique_names(root, &written);
    shared_keys(root, &written);
    without_limits(root, &written);
    let (policies, tried) = joined(&written);
    let written_queues = queues(root);
    warn_of_lost_bounds(root, &written_queues.bounds.entries);
    let declared = written.iter().filter_map(|one| {
        let mode = one.on_store_error?;
        Some((Arc::clone(&one.policy.as_ref()?.name), mode))
    });
    let reserved = written.iter().filter(|one| one.reserved);
    let reserved = reserved.filter_map(|one| one.policy.as_ref());
    let mut declared: Declared = declared.collect();
    let egress = egress(root, (&policies, &tried), &mut declared);
    let shadow = PolicySet::new(tried, written_queues.tried, Accept::Ignore);
    without_calls(root, &written, &egress);
    Limiting {
        egress,
        on_store_error: declared,
        reserved: reserved.map(|policy| policy.name.clone()).collect(),
        policies: PolicySet::new(policies, written_queues.limits, accept(root))
            .with_subqueues(written_queues.subqueues)
            .with_shadow(shadow),
        bounds: written_queues.bounds,
    }
}

/// Reads one `[[policy]]` to its end.
fn policy(mut table: TomlTable<'_>) -> WrittenPolicy {
    let (name, valid) = policy_name(&mut table);
    if let Some(name) = &name {
        table.note_place(POLICIES, &name.text, table.span.start);
    }
    table.string("description");
    let matching = matching(&mut table);
    let key = key(&mut table, name.as_ref());
    let missing = [
        ("shared", KeyMissing::Shared),
        ("skip", KeyMissing::Skip),
        ("reject", KeyMissing::Reject),
    ];
    let key_missing = table.word_or("key_missing", KeyMissing::default(), &missing);
    let limits = limits(&mut table).ok();
    let on_limit = table.word_or("on_limit", OnLimit::default(), &ON_LIMIT);
    let on_store_error = on_store_error(&mut table);
    let prices = prices(&mut table, limits.as_ref());
    let by_calls = by_calls(&mut table);
    let prices = prices.map(|prices| Prices { by_calls, ..prices });
    if key.given && limits == Some(Limits::default()) {
        refuse_without_limit(&mut table, "remove it: limits are priced where they stand");
    }
    let reserved = is_reserved(&mut table, limits.as_ref(), on_limit);
    let mode = mode(&mut table);
    let feedback = feedback::feedback(&mut table);
    let header = table.span.clone();
    let limits = limits.filter(|limits| *limits != Limits::default() || !table.has_unknown());
    let policy = name.as_ref().filter(|_| valid).and_then(|name| {
        Some(Policy {
            name: Arc::from(name.text.as_str()),
            matching: matching?,
            key: key.template.clone()?,
            key_missing,
            limits: limits.clone()?,
            on_limit,
            feedback,
            prices: prices?,
        })
    });
    let (name, span) = name.map(|name| (name.text, name.span)).unzip();
    WrittenPolicy {
        name,
        at: span.filter(|span| !span.is_empty()).unwrap_or(header),
        key,
        limits,
        on_store_error,
        reserved,
        mode,
        policy,
    }
}

/// Reads `counts`: whether the calls of jobs count in place of the jobs.
fn by_calls(table: &mut TomlTable<'_>) -> bool {
    let by_calls = table.word_or("counts", false, &[("jobs", false), ("calls", true)]);
    let sync = table.string("sync");
    let is_reserved = sync.is_some_and(|sync| sync.text == "reserved");
    let named = named(table).into_iter();
    let beside = named.chain(is_reserved.then_some("sync")).next();
    if let Some(name) = beside.filter(|_| by_calls) {
        let hint = format!(
            "jobs take nothing of such a key, so there is nothing to price or to reserve: remove {name}"
        );
        table.refuse("counts", "cannot be \"calls\" here", hint);
    }
    by_calls
}

/// Reads `sync`, and reports a policy whose start times cannot be reserved ahead, or gain nothing by it.
fn is_reserved(table: &mut TomlTable<'_>, limits: Option<&Limits>, on_limit: OnLimit) -> bool {
    let span = table.get("sync").map(|found| found.span);
    let reserved = table.word_or("sync", false, &[("strict", false), ("reserved", true)]);
    let (Some(span), Some(limits), true) = (span, limits, reserved) else {
        return reserved;
    };
    if let [name, ..] = *named(table) {
        let hint =
            format!("turns are reserved for any job, each for one start: remove {name}, or sync");
        table.error(&span, "`policy.sync` cannot be \"reserved\" here", hint);
    } else if let Some(why) = reserved::objection(limits, on_limit) {
        table.error(&span, "`policy.sync` cannot be \"reserved\" here", why);
    } else if !reserved::is_hot(limits) {
        let hint = "below 32 a second there are no calls to save; leave it out";
        let title = "nothing is reserved of a limit as slow as this; each start is asked for";
        table.warn(&span, title, hint);
    }
    reserved
}

/// Reads the name; the flag says whether it is valid.
fn policy_name(table: &mut TomlTable<'_>) -> (Option<Text>, bool) {
    if table.get("name").is_none() {
        table.missing(
            &table.span,
            "a policy needs a `name`",
            "add name = \"…\"; metrics and headers show it",
        );
    }
    valid_name(table)
}

/// Reads `key`. Without one the name is the key; a name that is not valid was reported already.
fn key(table: &mut TomlTable<'_>, name: Option<&Text>) -> WrittenKey {
    let given = table.get("key").is_some();
    let text = if given {
        table.string("key")
    } else {
        name.cloned()
    };
    let template = text.as_ref().and_then(|text| {
        let template = Template::new(&text.text);
        let bad = template.as_ref().err().filter(|_| given);
        if let Some(bad) = bad {
            table.error(&text.span, "`policy.key` is not valid", bad.to_string());
        }
        template.ok()
    });
    WrittenKey {
        given,
        text,
        template,
    }
}

fn matching(table: &mut TomlTable<'_>) -> Option<Match> {
    let Some(mut table) = table.maybe_table("match", "match = { queue = \"billing\" }") else {
        return Some(Match::default());
    };
    let mut patterns_of = |field, names| match table.get(field) {
        Some(found) => patterns(&table, &found, Some(names)),
        None => Some(Vec::new()),
    };
    let (queue, kind) = (patterns_of("queue", QUEUE), patterns_of("type", TYPE));
    let mut meta = Vec::new();
    for (name, found) in table.each() {
        let path = name.strip_prefix("meta.").filter(|path| !path.is_empty());
        if let Some(path) = path {
            meta.push((Box::from(path), patterns(&table, &found, None)?));
        }
    }
    // Written without quotes, `meta.plan` is a table.
    if let Some(nested) = table.maybe_table("meta", "meta.plan = \"free\"") {
        meta_patterns(&nested, "", &mut meta)?;
    }
    Some(Match {
        queue: queue?,
        kind: kind?,
        meta,
        sample: Sample::All,
    })
}

fn meta_patterns(
    table: &TomlTable<'_>,
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

/// What may be done by limits that come with a job.
pub(super) const ACCEPTS: [(&str, Accept); 3] = [
    ("tighten", Accept::Tighten),
    ("replace", Accept::Replace),
    ("ignore", Accept::Ignore),
];

fn accept(root: &mut TomlTable<'_>) -> Accept {
    let mut table = root.table("job_policies");
    table.word_or("accept", Accept::default(), &ACCEPTS)
}

fn unique_names(root: &TomlTable<'_>, written: &[WrittenPolicy]) {
    let mut names = HashMap::new();
    for one in written {
        let Some(name) = &one.name else { continue };
        let first = *names.entry(name).or_insert(&one.at);
        if first != &one.at {
            let title = format!("policy {name:?} is there twice");
            let hint = format!("give each policy its own name; {}", root.first_in(first));
            root.error(&one.at, title, hint);
        }
    }
}

impl WrittenPolicy {
    /// Its counters: those of what is only tried are apart.
    fn counters(&self) -> Option<(bool, &str)> {
        let key = self.policy.as_ref()?.key.as_str();
        Some((self.mode != EntryMode::Enforce, key))
    }
}

/// The policies with numbers of their own, by their counters, in the order of the file.
fn limited_by_key(written: &[WrittenPolicy]) -> HashMap<(bool, &str), Vec<&Policy>> {
    let mut by_key: HashMap<_, Vec<&Policy>> = HashMap::new();
    for one in written {
        let limited = one.policy.as_ref();
        let limited = limited.filter(|policy| policy.limits != Limits::default());
        if let (Some(counters), Some(policy)) = (one.counters(), limited) {
            by_key.entry(counters).or_default().push(policy);
        }
    }
    by_key
}

/// Looks at the policies of each key together: different numbers may be a mistake in copying, and stores keep only
/// so many windows of a key. A policy that has too many by itself was reported where its windows are read.
fn shared_keys(root: &TomlTable<'_>, written: &[WrittenPolicy]) {
    let by_key = limited_by_key(written);
    for one in written {
        let (Some(policy), Some(key)) = (&one.policy, &one.key.text) else {
            continue;
        };
        let limits = &policy.limits;
        if *limits == Limits::default() {
            continue;
        }
        let same = one.counters().and_then(|counters| by_key.get(&counters));
        let same = same.into_iter().flatten();
        let earlier = same.take_while(|other| other.name != policy.name);
        if let Some(other) = earlier.clone().find(|other| other.limits != *limits) {
            let title = format!(
                "policies {:?} and {:?} share a key but not their numbers",
                other.name, policy.name
            );
            let hint = "they share counters; each job is held to the numbers of the policies that match it";
            root.warn(&key.span, title, hint);
        }
        let difference = |other: &Policy| other.prices.difference(&policy.prices);
        let mut others = earlier.clone();
        if let Some((other, what)) = others.find_map(|one| Some((one, difference(one)?))) {
            let title = format!(
                "policies {:?} and {:?} share a key but not their `{what}`",
                other.name, policy.name
            );
            let hint = "write the same in both, or give one of them another key";
            root.error(&one.at, title, hint);
        }
        let earlier = earlier.map(|other| &other.limits);
        let before = each_window(earlier.clone()).count();
        let count = each_window(earlier.chain([limits])).count();
        let alone = each_window([limits].into_iter()).count() <= MOST_WINDOWS;
        if alone && count > MOST_WINDOWS && count > before {
            let key = policy.key.as_str();
            let title =
                format!("key {key:?} has at most {MOST_WINDOWS} windows, with this policy {count}");
            let hint = "give the policies of one key the same periods";
            root.error(&one.at, title, hint);
        }
    }
}

/// Reports policies without numbers whose key no policy with numbers has. A policy that could not be read may
/// have that key, so nothing is reported where that is possible: one mistake gets one message.
fn without_limits(root: &TomlTable<'_>, written: &[WrittenPolicy]) {
    let (mut limited, mut unread) = (HashSet::new(), false);
    let limits = |one: &&WrittenPolicy| one.limits != Some(Limits::default());
    let counters =
        |one: &WrittenPolicy, key: &str| (one.mode != EntryMode::Enforce, key.to_owned());
    for one in written.iter().filter(limits) {
        unread |= one.key.template.is_none();
        limited.extend(one.key.text.as_ref().map(|key| counters(one, &key.text)));
    }
    for one in written.iter().filter(|one| !limits(one)) {
        let key = &one.key;
        let text = key.text.as_ref();
        let joins = text.is_some_and(|key| limited.contains(&counters(one, &key.text)));
        let unsure = key.given && (unread || key.template.is_none());
        if !joins && !unsure {
            let name = one.name.as_ref();
            let which = name.map_or("this policy".into(), |name| format!("policy {name:?}"));
            let hint = "add concurrency, rate or throttle, or use the key of a policy that has one";
            root.missing(&one.at, format!("{which} has no limit"), hint);
        }
    }
}

/// Warns of policies whose jobs count nothing, where no calls count in their place.
fn without_calls(root: &TomlTable<'_>, written: &[WrittenPolicy], egress: &[EgressSettings]) {
    let decide = written.iter().filter(|one| one.mode.enforced().is_some());
    for (at, policy) in decide.filter_map(|one| Some((&one.at, one.policy.as_ref()?))) {
        let has_calls = egress.iter().any(|of| of.key.has_form_of(&policy.key));
        if policy.prices.by_calls && !has_calls {
            let title = format!("nothing counts in the limits of policy {:?}", policy.name);
            let hint =
                "its jobs do not count, and no [[egress]] has its key: add one, or remove counts";
            root.warn(at, title, hint);
        }
    }
}

/// The policies that decide, and those that are only tried. One without numbers has those of the policies whose
/// counters it uses.
fn joined(written: &[WrittenPolicy]) -> (Vec<Policy>, Vec<Policy>) {
    let by_key = limited_by_key(written);
    let (mut policies, mut tried) = (Vec::new(), Vec::new());
    for one in written {
        let (Some(policy), Some(counters)) = (&one.policy, one.counters()) else {
            continue;
        };
        let others = by_key.get(&counters).into_iter().flatten();
        let others = others.filter(|_| policy.limits == Limits::default());
        let joined = others.map(|other| Policy {
            limits: other.limits.clone(),
            prices: other.prices.clone(),
            ..policy.clone()
        });
        let own = Some(policy.clone()).filter(|own| own.limits != Limits::default());
        for policy in own.into_iter().chain(joined) {
            let of = |sample| {
                let mut policy = policy.clone();
                policy.matching.sample = sample;
                policy
            };
            policies.extend(one.mode.enforced().map(of));
            tried.extend(one.mode.tried().map(of));
        }
    }
    (policies, tried)
}
