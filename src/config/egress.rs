//! Reads `[[egress]]`: ways out for the calls that programs make, under limits of their own or under keys of policies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::budget::{Budget, budgets};
use super::costs::fair_calls;
use super::entries::{must_have, on_store_error, valid_name};
use super::feedback::feedback;
use super::hosts::{Hosts, hosts, warn_of_any_host, warn_of_clear, warn_of_one_key};
use super::kinds::{
    HOUR, SettingKind as _, address, count, must_have_certificates, path, time, token,
};
use ojs_duration::short;
use ojs_limit::{Cost, Key, Limits, Rate, Throttle};
use ojs_policy::fields::Fields;
use ojs_policy::limits::limits;
use ojs_policy::numbers::LARGEST_NUMBER;
use ojs_policy::{Fair, Feedback, Policy, Sample, Template, VENDORS, Vendor};
use ojs_reader::{EGRESS, Secret, TomlTable};
use ojs_store::guard::Declared;
use ojs_wire::upstream::{BaseUrl, one_name};

const SECOND: Duration = Duration::from_secs(1);
/// A call that failed rests for so long at least before it is made again.
pub const LEAST_REST: Duration = Duration::from_millis(500);

/// One `[[egress]]`.
#[derive(Clone, PartialEq, Debug)]
pub struct EgressSettings {
    /// Its name, which is the policy's of limits that it has itself.
    pub name: Arc<str>,
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Where their calls go; `None`: to one of `hosts`.
    pub upstream: Option<BaseUrl>,
    /// Where they may go, each to the host that it names.
    pub hosts: Option<Arc<Hosts>>,
    /// Roots to trust beside the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// What makes the keys of its calls.
    pub key: Template,
    /// The policies that limit them, with their numbers and for which calls they do; none: nothing does.
    pub limits: Vec<(Arc<str>, Limits, Sample)>,
    /// What a call pays.
    pub cost: Cost,
    /// Who answers; `None`: no header of an answer is read.
    pub vendor: Option<&'static Vendor>,
    /// Which answers shut the keys, where the limits are the entry's own.
    pub feedback: Option<Feedback>,
    /// Whose turn it is among calls that wait.
    pub fair: Option<Arc<Fair>>,
    /// How long a call may wait for a start.
    pub max_wait: Duration,
    /// How often a call is made again that failed.
    pub retry: usize,
    /// The most of its calls that wait at once.
    pub max_waiting: usize,
    /// For how long a sidecar that died keeps the slots of its calls.
    pub lease: Duration,
    /// What callers must show.
    pub token: Option<Secret>,
    /// What its calls may use up beside their number.
    pub budgets: Vec<Arc<Budget>>,
}

impl EgressSettings {
    /// Where calls that name this host go, as [`one_name`] writes it; `None`: none goes out here.
    pub fn goes_to(&self, name: &str) -> Option<BaseUrl> {
        let is_upstream = |url: &&BaseUrl| one_name(&url.authority()).is_some_and(|of| of == name);
        match &self.hosts {
            Some(hosts) => hosts.find(name),
            None => self.upstream.as_ref().filter(is_upstream).cloned(),
        }
    }

    /// Whether a key or the group of each call stands in its body.
    fn reads_each_body(&self) -> bool {
        let by_group = self.fair.as_ref().is_some_and(|fair| fair.by.sees_bodies());
        self.key.sees_bodies() || by_group
    }

    /// Whether a key of the calls of this method and path stands in their bodies.
    pub fn has_key_in_body(&self, call: (&str, &str)) -> bool {
        let mut budgets = self.budgets.iter().filter(|budget| budget.is_for(call));
        self.reads_each_body() || budgets.any(|budget| budget.key.sees_bodies())
    }

    /// Whether a key or a cost of its calls stands in their bodies.
    pub fn sees_bodies(&self) -> bool {
        self.reads_each_body() || self.budgets.iter().any(|budget| budget.sees_bodies())
    }

    /// The limits by its own name: those that it has itself, or none where no policy limits its calls either. `None`: they
    /// have those of policies.
    pub fn own_limits(&self) -> Option<&Limits> {
        static NONE: LazyLock<Limits> = LazyLock::new(Limits::default);
        let mut own = self.limits.iter().filter(|(name, ..)| *name == self.name);
        let own = own.next().map(|(_, limits, _)| limits);
        own.or_else(|| self.limits.is_empty().then(|| &*NONE))
    }

    /// The limits that it has itself.
    fn numbers(&self) -> Option<&Limits> {
        let own = self.own_limits();
        own.filter(|own| **own != Limits::default())
    }

    /// Where its calls may go, for people: its upstream, or the hosts that it lists.
    pub fn leads_to(&self) -> String {
        let hosts = self.hosts.as_ref().map(|hosts| hosts.to_string());
        let upstream = || self.upstream.as_ref().map(BaseUrl::authority);
        hosts.or_else(upstream).unwrap_or_default()
    }

    /// By which weights its calls take turns.
    fn turns(&self) -> Option<(&BTreeMap<Key, NonZeroU32>, NonZeroU32)> {
        let fair = self.fair.as_ref()?;
        Some((&fair.weights, fair.default_weight))
    }
}

/// Reads all entries, beside the policies of the file that decide and those that are only tried. What they say of a lost
/// store goes to `declared`.
pub(super) fn egress(
    root: &mut TomlTable<'_>,
    policies: (&[Policy], &[Policy]),
    declared: &mut Declared,
) -> Vec<EgressSettings> {
    let (mut all, mut tables) = (Vec::<EgressSettings>::new(), Vec::new());
    for mut table in root.tables("egress", "[[egress]] above its fields") {
        let Some(entry) = entry(&mut table, policies, declared) else {
            continue;
        };
        table.note_place(EGRESS, &entry.name, table.span.start);
        let is_taken = all.iter().any(|other| other.name == entry.name);
        let mut all_policies = policies.0.iter().chain(policies.1);
        if is_taken || all_policies.any(|policy| policy.name == entry.name) {
            let hint = "metrics go by it: give it a name that no entry and no policy has";
            table.refuse("name", "is there twice", hint);
        }
        warn_of_idle_retry(&table, &entry, policies.0);
        warn_of_clear(&table, entry.upstream.as_ref(), entry.hosts.as_deref());
        if entry.upstream.is_some() {
            let by = entry.fair.as_ref().map(|fair| ("fair", &fair.by));
            let made = [("key", &entry.key)].into_iter().chain(by);
            made.for_each(|(name, made)| warn_of_any_host(&table, name, made));
        }
        warn_of_other_numbers(&table, &entry, &all, policies.0);
        let key = entry.key.as_str();
        if let Some(other) = all.iter().find(|other| other.key.as_str() == key)
            && entry.turns() != other.turns()
        {
            let title = format!(
                "entries {:?} and {:?} have one key, and not one `fair`",
                other.name, entry.name
            );
            let hint =
                "calls take turns under a key: write the same weights in both, or another key";
            table.error(&table.span, title, hint);
        }
        all.push(entry);
        tables.push(table);
    }
    for (nth, table) in tables.iter_mut().enumerate() {
        one_budget_a_name(table, nth, &all, policies);
    }
    all
}

/// Warns of a key that jobs or other calls have with other numbers: it may be a mistake in copying, as with two policies.
fn warn_of_other_numbers(
    table: &TomlTable<'_>,
    entry: &EgressSettings,
    others: &[EgressSettings],
    policies: &[Policy],
) {
    let Some(limits) = entry.numbers() else {
        return;
    };
    let of_policies = policies.iter();
    let of_policies = of_policies.map(|of| ("policy", &of.name, &of.key, &of.limits));
    let of_entries = others.iter();
    let of_entries = of_entries.filter_map(|of| Some(("entry", &of.name, &of.key, of.numbers()?)));
    // One name for both was reported.
    let mut all = of_policies
        .chain(of_entries)
        .filter(|(_, name, ..)| **name != entry.name);
    let key = entry.key.as_str();
    if let Some((what, other, ..)) =
        all.find(|(_, _, of, numbers)| of.as_str() == key && *numbers != limits)
    {
        let title = format!(
            "{what} {other:?} and entry {:?} share a key but not their numbers",
            entry.name
        );
        let hint = "they share counters; calls are held to the numbers of their entry, and jobs to those of the policies that match them";
        table.warn(&table.span_of("key"), title, hint);
    }
}

/// Warns where `retry` does nothing: a call is made again within `max_wait`, and not while its key is shut.
fn warn_of_idle_retry(table: &TomlTable<'_>, entry: &EgressSettings, policies: &[Policy]) {
    let fields = ["retry", "max_wait", "on_limit", "feedback"];
    if entry.retry == 0 || fields.iter().any(|name| table.is_reported(name)) {
        return;
    }
    let of_key = |policy: &&Policy| entry.key.has_form_of(&policy.key);
    let of_policies = policies.iter().filter(of_key);
    let all = entry.feedback.iter();
    let all = all.chain(of_policies.map(|policy| &policy.feedback));
    let pause = all.map(Feedback::unnamed_pause).max();
    let pause = pause.unwrap_or_else(|| Feedback::default().unnamed_pause());
    let of_vendor = entry.vendor.map_or(Some(0), Vendor::unnamed_pause);
    let pause = of_vendor.map_or(0, |least| least.max(pause));
    let (title, hint) = match entry.max_wait {
        Duration::ZERO => (
            "`retry` does nothing where calls do not wait".to_owned(),
            "a call is made again within `max_wait`: leave on_limit = \"reject\" out, or `retry`",
        ),
        wait if wait <= LEAST_REST => (
            "`retry` does nothing within this `max_wait`".to_owned(),
            "a call is made again after 0.5 to 1 s: write max_wait = \"12s\", or take `retry` out",
        ),
        wait if wait <= Duration::from_micros(pause) => (
            format!(
                "`retry` does nothing after a 429 without a time: that shuts the key for {}",
                short(pause)
            ),
            "write a `max_wait` that is longer by a fifth, or have `feedback` shut the key for less",
        ),
        _ => return,
    };
    table.warn(&table.span_of("retry"), title, hint);
}

/// Reads one entry to its end; `None`: something of it is wrong, which was reported.
fn entry(
    table: &mut TomlTable<'_>,
    policies: (&[Policy], &[Policy]),
    declared: &mut Declared,
) -> Option<EgressSettings> {
    must_have_all(table);
    let (name, valid) = valid_name(table);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = address(table, "listen", nowhere);
    let upstream = upstream(table);
    let hosts = hosts(table);
    let ca_file = path(table, "ca_file", None);
    if let Some(file) = &ca_file {
        must_have_certificates(table, "ca_file", file);
    }
    let vendor = vendor(table, upstream.as_ref(), hosts.as_deref());
    let own = limits(table).ok();
    let feedback = feedback_of_own(table, own.as_ref());
    let key = key(table, name.as_ref().map(|name| &*name.text));
    if let (Some(hosts), Some(key)) = (&hosts, &key) {
        warn_of_one_key(table, hosts, key);
    }
    let name: Option<Arc<str>> = name.filter(|_| valid).map(|name| name.text.into());
    let limits = own
        .zip(key.as_ref())
        .zip(name.as_ref())
        .and_then(|((own, key), name)| limits_of(table, own, key, policies, name));
    let cost = count(1..=LARGEST_NUMBER as usize)(table, "cost", 1_usize);
    let pays = u32::try_from(cost).ok().and_then(NonZeroU32::new)?;
    let fair = fair_calls(table);
    let wait = table.word_or("on_limit", true, &[("wait", true), ("reject", false)]);
    let max_wait = time(Duration::ZERO..=HOUR).read(table, "max_wait", 10 * SECOND);
    let max_wait = if wait { max_wait } else { Duration::ZERO };
    refuse_short_wait(table, limits.as_deref(), pays, max_wait);
    let retry = count(0..=10)(table, "retry", 0);
    let max_waiting = count(0..=100_000)(table, "max_waiting", 1_000);
    let lease = time(SECOND..=HOUR).read(table, "lease", 30 * SECOND);
    let token = token().read(table, "token", None);
    refuse_open(table, listen, token.as_ref());
    let budgets = budgets(table, (vendor, upstream.as_ref(), max_wait), declared);
    let budgets = budgets.into_iter().map(Arc::new).collect();
    let lost = on_store_error(table);
    let name = name.filter(|_| upstream.is_some() || hosts.is_some())?;
    declared.extend(lost.map(|mode| (Arc::clone(&name), mode)));
    Some(EgressSettings {
        name,
        listen,
        upstream,
        hosts,
        ca_file,
        key: key?,
        limits: limits?,
        cost: Cost { pays, ..Cost::ONE },
        vendor,
        feedback,
        fair: fair.ok()?,
        max_wait,
        retry,
        max_waiting,
        lease,
        token,
        budgets,
    })
}

/// What answers say of the limits of the service, where the entry has limits of its own. It warns of a code that no answer
/// has: one of a service has a status, and only jobs have errors with names. It has times in headers, and nowhere else.
fn feedback_of_own(table: &mut TomlTable<'_>, own: Option<&Limits>) -> Option<Feedback> {
    let feedback = feedback(table);
    for code in &feedback.codes {
        let mut statuses = 100..=599_u16;
        if !statuses.any(|status| code.matches(&status.to_string())) {
            let title = format!(
                "`feedback.codes` has {:?}, which is no status",
                code.as_str()
            );
            let hint = "write statuses of answers, such as \"503\" or \"5*\": only errors of jobs have names";
            table.warn(&table.span_of("feedback"), title, hint);
        }
    }
    if !feedback.headers && (feedback.until || feedback.retry_after) {
        let title = "`feedback.honor` has no \"headers\": times such as Retry-After are not heeded";
        let hint =
            "answers say times in headers alone: write honor = [\"headers\"], or [] to heed none";
        table.warn(&table.span_of("feedback"), title, hint);
    }
    Some(feedback).filter(|_| own.is_some_and(|own| *own != Limits::default()))
}

/// Refuses budgets of one name that would count differently, and names and keys that other limits have: a start pays one
/// price to a key.
fn one_budget_a_name(
    table: &mut TomlTable<'_>,
    nth: usize,
    entries: &[EgressSettings],
    policies: (&[Policy], &[Policy]),
) {
    let own = entries.get(nth).map_or(&[][..], |entry| &entry.budgets);
    for (place, budget) in own.iter().enumerate() {
        let mut here = own.iter().take(place);
        let is_twice = here.any(|other| other.name == budget.name);
        let elsewhere = entries.iter().take(nth).flat_map(|other| &other.budgets);
        let mut elsewhere = elsewhere.filter(|other| other.name == budget.name);
        let differs = elsewhere
            .clone()
            .any(|other| (&other.limits, &other.currency) != (&budget.limits, &budget.currency));
        let of_policies = policies.0.iter().chain(policies.1);
        let of_policies = of_policies.map(|of| (&of.name, &of.key));
        let of_entries = entries.iter().map(|of| (&of.name, &of.key));
        let mut all = of_policies.chain(of_entries);
        let name = &budget.name;
        let what = match () {
            () if is_twice => "is twice in this entry",
            () if differs => "has another limit in another entry",
            () if elsewhere.any(|other| !other.counts_as(budget)) => {
                "counts something else in another entry, or under other keys"
            }
            () if all.clone().any(|(of, _)| of == name) => "has the name of a policy or an entry",
            () if all.any(|(_, key)| key.has_form_of(&budget.key)) => {
                "has keys that a policy or an entry has, too"
            }
            () => continue,
        };
        let title = format!("budget {name:?} {what}");
        let hint = "give it a name of its own; budgets of one name in several entries are one, with one limit, and count the same";
        let tables = table.tables("budget", "[[egress.budget]]").into_iter();
        let mut named = tables.filter_map(|mut of| Some((of.string("name")?, of.span)));
        let at = named.rfind(|(name, _)| name.text == *budget.name);
        let span = at.map_or_else(|| table.span.clone(), |(_, span)| span);
        table.error(&span, title, hint);
    }
}

/// Reports what is missing of that which each entry has.
fn must_have_all(table: &mut TomlTable<'_>) {
    must_have(table, "name", "name = \"stripe\"");
    must_have(table, "listen", "listen = \"127.0.0.1:8082\"");
    if !table.has("hosts") {
        let example = "upstream = \"https://api.stripe.com\", or hosts";
        must_have(table, "upstream", example);
    }
}

/// Refuses a port that others reach and that asks for no token.
fn refuse_open(table: &mut TomlTable<'_>, listen: SocketAddr, token: Option<&Secret>) {
    if !listen.ip().to_canonical().is_loopback() && token.is_none() && !table.is_reported("token") {
        let hint = "whoever reaches it calls with the rights of this machine: set `token`, or listen on 127.0.0.1";
        table.refuse(
            "listen",
            "is not on loopback, and there is no `token`",
            hint,
        );
    }
}

/// Refuses a cost that never finds its room within `max_wait` as long as cheaper calls take what comes free.
fn refuse_short_wait(
    table: &mut TomlTable<'_>,
    limits: Option<&[(Arc<str>, Limits, Sample)]>,
    pays: NonZeroU32,
    max_wait: Duration,
) {
    let needs = |rate: &Rate| {
        let period = rate.period.get();
        let micros = period.saturating_mul(pays.min(rate.limit).get().into());
        micros / u64::from(rate.limit.get())
    };
    // All of a burst is room for whatever costs more.
    let spaced = |of: &Throttle| {
        let room = u64::from(pays.min(of.burst).get());
        (room > 1).then(|| of.period.get().saturating_mul(room) / u64::from(of.limit.get()))
    };
    let all = || {
        limits
            .unwrap_or_default()
            .iter()
            .map(|(_, limits, _)| limits)
    };
    let rates = all().flat_map(|limits| &limits.rates).map(needs);
    let throttles = all().filter_map(|limits| spaced(limits.throttle.as_ref()?));
    let longest = rates.chain(throttles).max().unwrap_or(0);
    let is_short = !max_wait.is_zero() && Duration::from_micros(longest) > max_wait;
    if pays.get() > 1 && is_short {
        let title = "is more than the limit brings within `max_wait`";
        let hint = format!(
            "beside cheaper calls it waits up to {}: write a longer `max_wait`, or on_limit = \"reject\"",
            short(longest)
        );
        table.refuse("cost", title, hint);
    }
}

/// Where all calls go, if it is one place.
fn upstream(table: &mut TomlTable<'_>) -> Option<BaseUrl> {
    let upstream: Option<BaseUrl> = table.parsed("upstream");
    if upstream.as_ref().is_some_and(|of| of.host.contains('*')) {
        let hint = "write hosts = [\"*.example.com\"] in its place";
        table.refuse("upstream", "is one service, and has a `*`", hint);
    }
    upstream
}

/// Who answers, as the entry says or its upstream.
fn vendor(
    table: &mut TomlTable<'_>,
    upstream: Option<&BaseUrl>,
    hosts: Option<&Hosts>,
) -> Option<&'static Vendor> {
    let of_upstream = || Vendor::of_host(upstream.map_or("", |upstream| &upstream.host));
    let by_host = hosts.map_or_else(of_upstream, Hosts::vendor);
    let named = VENDORS.iter().map(|vendor| (vendor.name, Some(vendor)));
    let words: Vec<_> = named.chain([("none", None)]).collect();
    table.word_or("vendor", Some(by_host), &words)
}

/// The key; without one the name is the key, and one that is not valid was reported.
fn key(table: &mut TomlTable<'_>, name: Option<&str>) -> Option<Template> {
    let given = table.text("key").ok()?;
    let read = Template::of_calls(given.as_deref().or(name)?);
    let bad = read.as_ref().err().filter(|_| given.is_some());
    if let Some(bad) = bad {
        table.refuse("key", "is not valid", bad.to_string());
    }
    read.ok()
}

/// The limits of the entry itself; else those of the policies whose keys have the form of its key.
fn limits_of(
    table: &mut TomlTable<'_>,
    own: Limits,
    key: &Template,
    (policies, tried): (&[Policy], &[Policy]),
    name: &Arc<str>,
) -> Option<Vec<(Arc<str>, Limits, Sample)>> {
    if own != Limits::default() {
        return Some(vec![(Arc::clone(name), own, Sample::All)]);
    }
    let hint = "write it in the policy: it goes by where the limits stand";
    for of_limits in ["on_store_error", "feedback"] {
        if table.has(of_limits) {
            table.refuse(of_limits, "has no limit beside it", hint);
        }
    }
    let of_key = policies
        .iter()
        .filter(|policy| key.has_form_of(&policy.key));
    let found: Vec<_> = of_key
        .clone()
        .map(|policy| {
            let (name, limits) = (Arc::clone(&policy.name), policy.limits.clone());
            (name, limits, policy.matching.sample)
        })
        .collect();
    let holds = |policy: &&Policy| policy.limits.concurrency.is_some() && !policy.prices.by_calls;
    if let Some(policy) = of_key.clone().find(holds) {
        let title = format!(
            "jobs of policy {:?} hold the slots that their own calls wait for",
            policy.name
        );
        let hint = "write counts = \"calls\" in the policy, unless other jobs make these calls";
        table.warn(&table.span, title, hint);
    }
    let is_tried = tried.iter().any(|policy| key.has_form_of(&policy.key));
    if found.is_empty() && !is_tried && table.has("fair") {
        let hint = "calls take turns where they wait: add concurrency, rate or throttle";
        table.refuse("fair", "has no limit beside it", hint);
    }
    let has_budget = table.has("budget");
    if found.is_empty() && !is_tried && !has_budget && table.has("key") {
        let hint = "add concurrency, rate or throttle, or write the key of a policy; in places such as {header.NAME} \
                    it may differ";
        table.refuse("key", "is no policy's, and this entry has no limit", hint);
        return None;
    }
    Some(found)
}
