//! All entries of a file together: every limit that a job must satisfy.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::entry::{Accept, KeyMissing, Policy, QueueLimits};
use super::feedback::{Feedback, Pause};
use super::fields::FieldError;
use super::gate::{Gate, Gates};
use super::job::Sent;
use super::job_view::JobView;
use super::price::one_price;
use super::template::{Rendered, Template};
use crate::subqueue::{Flow, Spread};
use ojs_json::Json;
use ojs_limit::{
    Key, Limited, Limits, MOST_WINDOWS, OnLimit, Space, Timestamp, each_key, each_window,
};

/// The compiled `[[policy]]` and `[[queue]]` entries.
#[derive(Debug, Default)]
pub struct PolicySet {
    pub(super) policies: Vec<Policy>,
    /// Which of them have limited a job.
    matched: Box<[AtomicBool]>,
    queues: Vec<QueueLimits>,
    accept: Accept,
    /// Whether any policy looks at types.
    types: bool,
    gates: Gates,
    /// The queues whose jobs with a key of their own go to subqueues, and to which.
    subqueues: HashMap<Box<str>, Spread>,
    /// The entries that are only tried (`mode = "shadow"`). Nothing that decides asks them.
    shadow: Option<Box<PolicySet>>,
}

impl PolicySet {
    /// Compiles entries, in the order of the file.
    pub fn new(policies: Vec<Policy>, queues: Vec<QueueLimits>, accept: Accept) -> PolicySet {
        let sees_types =
            |policy: &Policy| !policy.matching.kind.is_empty() || policy.key.sees_types();
        let prices = policies.iter().map(|policy| &policy.prices);
        let prices = prices.chain(queues.iter().map(|entry| &entry.prices));
        let mut fair = prices.filter_map(|prices| prices.fair.as_ref());
        let groups_see_types = fair.any(|fair| fair.by.sees_types());
        PolicySet {
            types: groups_see_types || policies.iter().any(sees_types),
            gates: Gates::of(&policies, &queues, accept),
            matched: policies.iter().map(|_| AtomicBool::new(false)).collect(),
            policies,
            queues,
            accept,
            subqueues: HashMap::new(),
            shadow: None,
        }
    }

    /// Notes which policies limit a real job: one that skips it for what its key lacks does not.
    pub fn note_matched(&self, job: &JobView<'_>) {
        for (policy, matched) in self.policies.iter().zip(&self.matched) {
            if policy.matching.matches(job) && policy.limited(job).is_some() {
                matched.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The policies that have limited no job since they were compiled.
    pub fn unmatched(&self) -> impl Iterator<Item = &Policy> {
        let each = self.policies.iter().zip(&self.matched);
        let unmatched = each.filter(|(_, matched)| !matched.load(Ordering::Relaxed));
        unmatched.map(|(policy, _)| policy)
    }

    /// These policies, with entries beside them that are only tried.
    #[must_use]
    pub fn with_shadow(self, shadow: PolicySet) -> PolicySet {
        PolicySet {
            shadow: (!shadow.is_empty()).then(|| Box::new(shadow)),
            ..self
        }
    }

    /// The entries that are only tried, if there are any.
    pub fn shadow(&self) -> Option<&PolicySet> {
        self.shadow.as_deref()
    }

    /// What limits a job that waits in shadow, without what is of policies that are gone. A job under an entry that is
    /// another one now does not wait on.
    pub fn again(&self, limited: &[Limited]) -> Arc<[Limited]> {
        let is_there = |one: &&Limited| {
            let mut policies = self.policies.iter();
            one.space == Space::Queue || policies.any(|policy| policy.name == one.policy)
        };
        limited.iter().filter(is_there).cloned().collect()
    }

    /// These policies, where jobs of these queues that have a key of their own go to subqueues.
    #[must_use]
    pub fn with_subqueues(self, subqueues: HashMap<Box<str>, Spread>) -> PolicySet {
        PolicySet { subqueues, ..self }
    }

    /// The queues whose jobs with a key of their own go to subqueues, and to which.
    pub fn subqueues(&self) -> &HashMap<Box<str>, Spread> {
        &self.subqueues
    }

    /// The queues with subqueues here and in `next` whose later jobs may go to others than those that wait, for a key, a
    /// group, a number or a salt is another.
    pub fn moved<'a>(&'a self, next: &'a PolicySet) -> impl Iterator<Item = &'a str> {
        let moved = self.subqueues.iter().filter(move |(queue, spread)| {
            let now = next.subqueues.get(*queue);
            let is_moved = |now| now != *spread || !self.flows_in(queue).eq(next.flows_in(queue));
            now.is_some_and(is_moved)
        });
        moved.map(|(queue, _)| &**queue)
    }

    /// What says to which flows jobs of a queue belong.
    fn flows_in(&self, queue: &str) -> impl Iterator<Item = impl PartialEq + '_> {
        let (accept, policies) = (self.accept, self.policies.iter());
        let here = policies.filter(move |one| one.matching.can_match_queue(queue));
        here.map(move |one| {
            let by = one.prices.fair.as_ref().map(|fair| &fair.by);
            (
                accept,
                &one.matching,
                &one.key,
                one.key_missing,
                one.on_limit,
                by,
            )
        })
    }

    /// The flow of a job that is enqueued to a queue with subqueues; `None`: it stays in the queue.
    ///
    /// It goes if all of its limits make it wait: what is dropped or rescheduled must be looked at, and in a subqueue of
    /// which nothing may start nobody looks. And the first key, or group, must be known from the job alone: a tenant that
    /// the headers of this request name may be another one when the job is fetched.
    pub fn flow_of(&self, job: &JobView<'_>, own: &[Limited]) -> Option<Flow> {
        let spread = self.subqueues.get(job.queue)?;
        let limits = self.limits(job, own)?;
        if limits.iter().any(|one| one.on_limit != OnLimit::Wait) {
            return None;
        }
        let is_said = |template: &Template| job.tenant.is_none() || !template.sees_tenants();
        let policy_of = |one: &Limited| {
            let mut policies = self.policies.iter();
            policies.find(|policy| policy.name == one.policy)
        };
        let of_job = |one: &Limited| match policy_of(one) {
            None => one.space == Space::Job,
            Some(policy) => !policy.key.only_queue() && is_said(&policy.key),
        };
        let group_of = |one: &Limited| {
            let fair = policy_of(one)?.prices.fair.as_ref()?;
            let share = one.share.as_ref().filter(|_| is_said(&fair.by))?;
            Some(Arc::clone(&share.group))
        };
        let mut all = limits.iter().map(|one| (one, group_of(one)));
        let (one, group) = all.find(|(one, group)| of_job(one) || group.is_some())?;
        Some(spread.flow(one.key.as_str(), group.as_deref()))
    }

    /// The `[[queue]]` entries that limit this queue.
    pub fn queue_limits<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a QueueLimits> {
        let entries = self.queues.iter();
        entries.filter(move |entry| entry.name.matches(queue))
    }

    /// Every limit of the job, ready to be asked: queue-level ones, each matching policy in the order of
    /// the file, and the job's own. A job policy that does not parse is not among `own` (it was refused at
    /// enqueue, or came around us). `None`: not limited. Entries of one key stay apart: the store asks each
    /// and counts one start. Equal lists behave alike: a refusal of one is a refusal of the other.
    pub fn limits(&self, job: &JobView<'_>, own: &[Limited]) -> Option<Arc<[Limited]>> {
        let own = if self.accept == Accept::Ignore {
            &[]
        } else {
            own
        };
        let of_queue = self.queue_limits(job.queue);
        let of_queue = of_queue.filter(|entry| entry.sample.has(job.id));
        let mut limited: Vec<Limited> = of_queue.map(|entry| entry.limited(job)).collect();
        for policy in &self.policies {
            let matches = policy.matching.matches(job);
            let found = matches.then(|| policy.limited(job)).flatten();
            let place = limited.len();
            limited.extend(found);
            // A job that names a policy's key is under that policy, whatever else the policy matches.
            for (_, Limited { key, .. }) in each_key(own) {
                let is_found = limited.get(place).is_some_and(|found| found.key == *key);
                if !is_found && policy.may_give(key) && policy.matching.sample.has(job.id) {
                    limited.push(policy.under(key.clone(), job));
                }
            }
        }
        let brought = limited.len();
        limited.extend_from_slice(own);
        one_price(&mut limited);
        let own = limited.split_off(brought);
        limited.retain(|found| !self.replaced(found, &own));
        limited.extend(own);
        (!limited.is_empty()).then(|| limited.into())
    }

    /// Whether the job's own numbers stand in place of the file's.
    fn replaced(&self, file: &Limited, own: &[Limited]) -> bool {
        self.accept == Accept::Replace
            && own
                .iter()
                .any(|own| own.shares_key(file) && own.limits != Limits::default())
    }

    /// The job's own policy with which a key has more windows than stores keep of one.
    pub fn too_many_windows(&self, sent: &[Sent<'_>]) -> Option<FieldError> {
        let own = || sent.iter().map(|sent| &sent.policy);
        own().zip(sent).find_map(|(one, sent)| {
            let key = &one.key;
            let own = own().filter(|own| own.key == *key);
            let file = self.policies.iter();
            let file = file.filter(|policy| policy.may_give(key));
            let file = file.filter(|_| self.accept != Accept::Replace);
            let all = file.map(|policy| &policy.limits);
            let count = each_window(all.chain(own.map(|own| &own.limits))).count();
            (count > MOST_WINDOWS).then(|| FieldError {
                field: format!("{}.rate", sent.at),
                message: format!(
                    "gives key {key:?} {count} windows, and a key has at most {MOST_WINDOWS}; \
                     use the periods that other policies of this key have",
                    key = key.as_str()
                ),
            })
        })
    }

    /// The value whose lack makes a policy refuse the job at enqueue (`key_missing = "reject"`).
    pub fn missing_key(&self, job: &JobView<'_>) -> Option<FieldError> {
        let policies = self.policies.iter();
        let strict = policies.filter(|policy| policy.key_missing == KeyMissing::Reject);
        strict
            .filter(|policy| policy.matching.matches(job))
            .find_map(|policy| match policy.key.render(job) {
                Rendered::Whole(_) => None,
                Rendered::Missing(field, _) => Some(FieldError {
                    field: field.into_owned(),
                    message: format!(
                        "is required: the rate limit policy {:?} makes its key from it",
                        policy.name
                    ),
                }),
            })
    }

    /// Whether the key of a policy that limits the job is made from its tenant, and nothing says which that is.
    pub fn lacks_tenant(&self, job: &JobView<'_>) -> bool {
        let asks = |policy: &Policy| policy.key.sees_tenants() && policy.matching.matches(job);
        job.tenant_id().is_none() && self.policies.iter().any(asks)
    }

    /// Whether no entry limits anything.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.queues.is_empty()
    }

    /// Whether some policy refuses jobs at enqueue that lack what its key is made from.
    pub fn rejects(&self) -> bool {
        let strict = |policy: &Policy| policy.key_missing == KeyMissing::Reject;
        self.policies.iter().any(strict)
    }

    /// The name of the first policy that has this key as a whole.
    pub fn named_by(&self, key: &Key) -> Option<Arc<str>> {
        self.constants(key).next().map(|policy| policy.name.clone())
    }

    /// The policies that have a key as it stands.
    pub fn constants<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Policy> {
        let named = move |policy: &&Policy| policy.key.constant() == Some(key);
        self.policies.iter().filter(named)
    }

    /// The latest time before which the `error` of a job's nack wants no start of `key`, and the policy
    /// that heeds it. `limited` is all that limits the job, `job` its id, and how often in a row the key
    /// was refused, now included.
    pub fn pause<'a>(
        &'a self,
        limited: &'a [Limited],
        key: &Key,
        error: Json<'_>,
        now: Timestamp,
        job: (&str, u32),
    ) -> Option<(Pause, &'a Arc<str>)> {
        self.pause_by(limited, key, |of| of.pause(error, key.as_str(), now, job))
    }

    /// The latest time before which what is heeded for `key` lets nothing start, and the policy that heeds it.
    ///
    /// Policies of the file decide for their keys. Those that limited the job do, or those that may give the key where none
    /// of them is in the file now. A key that no policy has heeds all that says a time.
    pub fn pause_by<'a>(
        &'a self,
        limited: &'a [Limited],
        key: &Key,
        mut asks: impl FnMut(&Feedback) -> Option<Pause>,
    ) -> Option<(Pause, &'a Arc<str>)> {
        let is_of_key = |one: &&Limited| one.space == Space::Job && one.key == *key;
        let mut names = limited.iter().filter(is_of_key).map(|one| &one.policy);
        let limits_it = |policy: &&Policy| names.clone().any(|name| *name == policy.name);
        let mut deciding: Vec<&Policy> = self.policies.iter().filter(limits_it).collect();
        if deciding.is_empty() {
            deciding = self
                .policies
                .iter()
                .filter(|one| one.may_give(key))
                .collect();
        }
        if deciding.is_empty() {
            return Some((asks(&Feedback::default())?, names.next()?));
        }
        let heeded = deciding.into_iter();
        let heeded = heeded.filter_map(|policy| Some((asks(&policy.feedback)?, &policy.name)));
        heeded.max_by_key(|(pause, _)| pause.until)
    }

    /// Whether the type of a job decides anything.
    pub fn sees_types(&self) -> bool {
        self.types
    }

    /// What may be done by limits that come with a job.
    pub fn accept(&self) -> Accept {
        self.accept
    }

    /// The `[[policy]]` entries in the order of the file.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The `[[queue]]` entries in the order of the file.
    pub fn queues(&self) -> &[QueueLimits] {
        &self.queues
    }

    /// What the queue's name says. A queue that nothing matches costs no allocation.
    pub fn gate(&self, queue: &str) -> Cow<'_, Gate> {
        (self.gates).gate(queue, &self.policies, &self.queues, self.accept)
    }

    /// The queues that some entry names without a glob.
    pub fn named_queues(&self) -> impl Iterator<Item = &str> {
        self.gates.named().map(|(queue, _)| queue)
    }

    /// The queues that some entry names without a glob and of which every job waits for this job key.
    pub fn covered<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a str> {
        let is = |one: &Limited| one.space == Space::Job && one.key == *key;
        let covers = self.gates.covering.contains(key);
        let named = covers.then(|| self.gates.named());
        named
            .into_iter()
            .flatten()
            .filter(move |(_, gate)| gate.limited.iter().any(is) || gate.shared.contains(key))
            .map(|(queue, _)| queue)
    }

    /// The job keys that cover some queue so.
    pub fn covering(&self) -> impl Iterator<Item = &Key> {
        self.gates.covering.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BROUGHT, Match, Pattern, Prices, Sample, sent_policies};
    use super::*;
    use ojs_limit::OnLimit;

    fn policy(name: &str, matching: Match, key: &str, slots: u32) -> Policy {
        Policy {
            name: name.into(),
            matching,
            key: Template::new(key).unwrap(),
            key_missing: KeyMissing::Shared,
            limits: Limits {
                concurrency: Some(slots),
                ..Limits::default()
            },
            on_limit: OnLimit::Wait,
            feedback: Feedback::default(),
            prices: Prices::default(),
        }
    }

    fn queues(names: &[&str]) -> Match {
        Match {
            queue: names.iter().map(|name| Pattern::new(name)).collect(),
            ..Match::default()
        }
    }

    fn types(names: &[&str]) -> Match {
        Match {
            kind: names.iter().map(|name| Pattern::new(name)).collect(),
            ..Match::default()
        }
    }

    fn queue(name: &str, slots: u32) -> QueueLimits {
        QueueLimits {
            name: Pattern::new(name),
            limits: Limits {
                concurrency: Some(slots),
                ..Limits::default()
            },
            prices: Prices::default(),
            sample: Default::default(),
        }
    }

    fn own(key: &str, slots: Option<u32>) -> Limited {
        Limited::new(
            Space::Job,
            Key::new(key).unwrap(),
            Limits {
                concurrency: slots,
                ..Limits::default()
            },
            "job".into(),
        )
    }

    fn job<'a>(queue: &'a str, kind: &'a str) -> JobView<'a> {
        JobView {
            kind,
            ..JobView::of_queue(queue)
        }
    }

    /// What is asked, as `policy/key/slots`.
    fn asked(limited: &[Limited]) -> Vec<String> {
        let slots = |l: &Limited| {
            l.limits
                .concurrency
                .map_or("-".into(), |slots| slots.to_string())
        };
        limited
            .iter()
            .map(|l| format!("{}/{}/{}", l.policy, l.key, slots(l)))
            .collect()
    }

    fn limits(set: &PolicySet, job: &JobView<'_>, own: &[Limited]) -> Vec<String> {
        set.limits(job, own)
            .map_or(Vec::new(), |limits| asked(&limits))
    }

    /// Of the entries of its queue the first may be for other jobs.
    #[test]
    fn what_waits_in_shadow_keeps_the_numbers_of_its_own_entries() {
        let entries = || {
            let of_none = QueueLimits {
                sample: Sample::First(0),
                ..queue("mail", 1)
            };
            vec![of_none, queue("*", 2)]
        };
        let policies = vec![policy("p", queues(&["mail"]), "k", 3)];
        let set = PolicySet::new(policies, entries(), Accept::Ignore);
        let view = JobView {
            id: Some("j"),
            ..job("mail", "t")
        };
        let waits = set.limits(&view, &[]).unwrap();
        assert_eq!(asked(&set.again(&waits)), ["queue/mail/2", "p/k/3"]);
        let less = PolicySet::new(Vec::new(), entries(), Accept::Ignore);
        assert_eq!(asked(&less.again(&waits)), ["queue/mail/2"]);
    }

    #[test]
    fn a_ninth_window_of_a_key_is_refused_where_a_job_brings_it() {
        let seconds = |n: u64| ojs_limit::Rate {
            limit: std::num::NonZeroU32::MIN,
            period: std::num::NonZeroU64::new(n * 1_000_000).unwrap(),
            window: Default::default(),
        };
        let many = Policy {
            limits: Limits {
                rates: (1..=8).map(seconds).collect(),
                ..Limits::default()
            },
            ..policy("many", Match::default(), "shared", 1)
        };
        let filled_in = Policy {
            key: Template::new("crm:{meta.tenant}").unwrap(),
            ..many.clone()
        };
        let set = PolicySet::new(vec![many, filled_in], Vec::new(), Accept::Tighten);
        let field = |key: &str, period: &str| {
            let rate = format!(r#"{{"limit":1,"period":"{period}"}}"#);
            let body = format!(r#"{{"options":{{"rate_limit":{{"key":"{key}","rate":{rate}}}}}}}"#);
            let sent = sent_policies(Json::parse(body.as_bytes(), 16).unwrap()).unwrap();
            set.too_many_windows(&sent).map(|wrong| wrong.field)
        };
        assert_eq!(field("shared", "PT8S"), None);
        assert_eq!(field("other", "PT9S"), None);
        assert_eq!(field("crm:acme", "PT8S"), None);
        for key in ["shared", "crm:acme"] {
            let wrong = field(key, "PT9S");
            assert_eq!(wrong.as_deref(), Some("options.rate_limit.rate"), "{key}");
        }
    }

    #[test]
    fn gates() {
        let set = PolicySet::new(
            vec![
                policy("whole", queues(&["billing", "pay-*"]), "stripe", 5),
                policy("each", queues(&["pay-*"]), "q:{queue}", 4),
                policy("one", queues(&["pay-uk"]), "uk", 6),
                policy(
                    "typed",
                    Match {
                        queue: queues(&["mail"]).queue,
                        ..types(&["a.*"])
                    },
                    "typed",
                    3,
                ),
                policy("tenants", queues(&["tenants"]), "t:{tenant}", 2),
                Policy {
                    on_limit: OnLimit::Drop,
                    ..policy("dropper", queues(&["drop"]), "drop", 1)
                },
            ],
            vec![queue("billing", 20), queue("pay-*", 30)],
            Accept::Tighten,
        );
        let table: [(&str, &[&str], bool); 8] = [
            ("billing", &["queue/billing/20", "whole/stripe/5"], false),
            (
                "pay-eu",
                &["queue/pay-eu/30", "whole/stripe/5", "each/q:pay-eu/4"],
                false,
            ),
            (
                "pay-uk",
                &[
                    "queue/pay-uk/30",
                    "whole/stripe/5",
                    "each/q:pay-uk/4",
                    "one/uk/6",
                ],
                false,
            ),
            ("mail", &[], true),
            ("tenants", &[], true),
            ("drop", &[], true),
            ("other", &[], false),
            ("", &[], false),
        ];
        for (name, limited, keyed) in table {
            let gate = set.gate(name);
            assert_eq!(
                (asked(&gate.limited), gate.keyed),
                (limited.iter().map(|t| t.to_string()).collect(), keyed)
            );
            assert_eq!(gate.open(), limited.is_empty() && !keyed, "{name}");
        }
    }

    #[test]
    fn a_job_that_may_replace_numbers_is_seen_before_it_is_refused() {
        let policies = vec![policy("whole", Match::default(), "stripe", 5)];
        let set = PolicySet::new(policies, vec![queue("*", 9)], Accept::Replace);
        let gate = set.gate("billing");
        assert_eq!(
            (asked(&gate.limited), gate.keyed),
            (vec!["queue/billing/9".to_owned()], true)
        );
    }

    #[test]
    fn queue_and_job_keys_are_different_spaces() {
        let set = PolicySet::new(
            vec![policy("email", Match::default(), "email", 5)],
            vec![queue("email", 20)],
            Accept::Tighten,
        );
        let found = set.limits(&job("email", "a"), &[]).unwrap();
        let spaces: Vec<_> = found.iter().map(|l| (l.space, l.key.as_str())).collect();
        assert_eq!(spaces, [(Space::Queue, "email"), (Space::Job, "email")]);
    }

    #[test]
    fn what_a_job_brings_under_each_acceptance() {
        let set = |accept| {
            let policies = vec![
                policy("stripe", types(&["pay.*"]), "stripe", 5),
                policy("all", Match::default(), "all", 9),
            ];
            PolicySet::new(policies, Vec::new(), accept)
        };
        let (pay, other) = (job("q", "pay.charge"), job("q", "mail"));
        let (tight, joins) = ([own("stripe", Some(2))], [own("stripe", None)]);
        let tighten = set(Accept::Tighten);
        assert_eq!(
            limits(&tighten, &pay, &tight),
            ["stripe/stripe/5", "all/all/9", "job/stripe/2"]
        );
        // The policy's constant key is a ceiling for every job that names it.
        assert_eq!(
            limits(&tighten, &other, &tight),
            ["stripe/stripe/5", "all/all/9", "job/stripe/2"]
        );
        assert_eq!(
            limits(&tighten, &other, &joins),
            ["stripe/stripe/5", "all/all/9", "job/stripe/-"]
        );
        assert_eq!(limits(&tighten, &other, &[]), ["all/all/9"]);
        let replace = set(Accept::Replace);
        assert_eq!(
            limits(&replace, &pay, &tight),
            ["all/all/9", "job/stripe/2"]
        );
        assert_eq!(
            limits(&replace, &pay, &joins),
            ["stripe/stripe/5", "all/all/9", "job/stripe/-"]
        );
        let ignore = set(Accept::Ignore);
        assert_eq!(
            limits(&ignore, &pay, &tight),
            ["stripe/stripe/5", "all/all/9"]
        );
        assert_eq!(limits(&ignore, &other, &tight), ["all/all/9"]);
    }

    /// Whatever fills in the places of a policy's key, its numbers are a ceiling for who brings such a key.
    #[test]
    fn a_job_that_brings_what_a_template_gives_is_under_its_policy() {
        let set = |accept| {
            let policies = vec![
                policy("crm", types(&["sync.*"]), "crm:{meta.tenant}", 3),
                policy("typed", types(&["sync.*"]), "t:{type}", 4),
                policy("any", types(&["none"]), "{meta.tenant}", 6),
                Policy {
                    key_missing: KeyMissing::Skip,
                    ..policy("skips", types(&["sync.*"]), "s:{meta.tenant}", 5)
                },
            ];
            PolicySet::new(policies, Vec::new(), accept)
        };
        let import = job("q", "import.x");
        let brings = |key: &str| limits(&set(Accept::Tighten), &import, &[own(key, Some(100))]);
        for (key, policy) in [
            ("crm:acme", "crm/crm:acme/3"),
            ("crm:x_none", "crm/crm:x_none/3"),
            ("t:sync.a", "typed/t:sync.a/4"),
            ("s:acme", "skips/s:acme/5"),
        ] {
            assert_eq!(brings(key), [policy.to_owned(), format!("job/{key}/100")]);
        }
        for key in ["crm:a:b", "crm", "t:import.x", "s:x_none", "acme"] {
            assert_eq!(brings(key), [format!("job/{key}/100")]);
        }
        let meta = Json::parse(br#"{"tenant":"acme"}"#, 8).unwrap();
        let sync = JobView {
            meta: Some(meta),
            ..job("q", "sync.a")
        };
        let both = [own("crm:other", Some(9)), own("crm:acme", None)];
        assert_eq!(
            limits(&set(Accept::Tighten), &sync, &both),
            [
                "crm/crm:acme/3",
                "crm/crm:other/3",
                "typed/t:sync.a/4",
                "skips/s:acme/5",
                "job/crm:other/9",
                "job/crm:acme/-"
            ]
        );
        let replaced = limits(&set(Accept::Replace), &import, &[own("crm:acme", Some(9))]);
        assert_eq!(replaced, ["job/crm:acme/9"]);
    }

    #[test]
    fn nothing_limits_a_job_of_an_empty_set() {
        assert_eq!(PolicySet::default().limits(&job("q", "t"), &[]), None);
        assert!(PolicySet::default().gate("q").open());
    }

    #[test]
    fn each_limit_has_the_action_of_its_policy() {
        let set = PolicySet::new(
            vec![
                Policy {
                    on_limit: OnLimit::Reschedule,
                    ..policy("a", Match::default(), "a", 1)
                },
                Policy {
                    on_limit: OnLimit::Drop,
                    ..policy("b", types(&["b"]), "b", 1)
                },
            ],
            Vec::new(),
            Accept::Tighten,
        );
        let actions = |kind: &str| {
            let limits = set.limits(&job("q", kind), &[]).unwrap();
            limits.iter().map(|one| one.on_limit).collect::<Vec<_>>()
        };
        assert_eq!(actions("a"), [OnLimit::Reschedule]);
        assert_eq!(actions("b"), [OnLimit::Reschedule, OnLimit::Drop]);
    }

    #[test]
    fn a_missing_value_shares_skips_or_rejects() {
        let set = |key_missing| {
            let policies = vec![Policy {
                key_missing,
                ..policy("t", Match::default(), "t:{meta.tenant_id}", 5)
            }];
            PolicySet::new(policies, Vec::new(), Accept::Tighten)
        };
        let nobody = job("q", "a");
        assert_eq!(
            limits(&set(KeyMissing::Shared), &nobody, &[]),
            ["t/t:x_none/5"]
        );
        assert_eq!(
            limits(&set(KeyMissing::Reject), &nobody, &[]),
            ["t/t:x_none/5"]
        );
        assert_eq!(
            limits(&set(KeyMissing::Skip), &nobody, &[]),
            Vec::<String>::new()
        );
        assert_eq!(set(KeyMissing::Shared).missing_key(&nobody), None);
        let refused = set(KeyMissing::Reject).missing_key(&nobody).unwrap();
        assert_eq!(refused.field, "meta.tenant_id");
        let meta = Json::parse(br#"{"tenant_id":"acme"}"#, 8).unwrap();
        let acme = JobView {
            meta: Some(meta),
            ..nobody
        };
        assert_eq!(set(KeyMissing::Reject).missing_key(&acme), None);
        assert_eq!(limits(&set(KeyMissing::Skip), &acme, &[]), ["t/t:acme/5"]);
    }

    #[test]
    fn types_are_looked_at_where_a_match_or_a_key_has_them() {
        let sees = |matching: Match, key: &str| {
            let policies = vec![policy("a", matching, key, 1)];
            PolicySet::new(policies, vec![queue("q", 1)], Accept::Tighten).sees_types()
        };
        assert!(!sees(queues(&["q"]), "a:{queue}:{meta.type}:{tenant}"));
        assert!(sees(queues(&["q"]), "a:{queue}:{type}"));
        assert!(sees(types(&["*"]), "a"));
    }

    #[test]
    fn meta_decides_a_match() {
        let matching = Match {
            meta: vec![("plan".into(), vec![Pattern::new("free*")])],
            ..Match::default()
        };
        let set = PolicySet::new(
            vec![policy("free", matching, "free", 5)],
            Vec::new(),
            Accept::Tighten,
        );
        let with = |meta: &'static str| JobView {
            meta: Some(Json::parse(meta.as_bytes(), 8).unwrap()),
            ..job("q", "a")
        };
        assert_eq!(
            limits(&set, &with(r#"{"plan":"free-trial"}"#), &[]),
            ["free/free/5"]
        );
        assert!(limits(&set, &with(r#"{"plan":"paid"}"#), &[]).is_empty());
        assert!(limits(&set, &with(r#"{"plan":["free"]}"#), &[]).is_empty());
        assert!(limits(&set, &job("q", "a"), &[]).is_empty());
        assert!(set.gate("q").keyed);
    }

    #[test]
    fn the_file_decides_which_nacks_shut_its_keys() {
        let mut deaf = policy("deaf", types(&["a"]), "shared", 1);
        deaf.feedback = Feedback {
            until: false,
            retry_after: false,
            headers: false,
            ..Feedback::default()
        };
        let mut short = policy("short", types(&["b"]), "other", 1);
        short.feedback.max_pause = 1_000_000;
        let long = policy("long", types(&["b"]), "other", 1);
        let set = PolicySet::new(
            vec![deaf, short, long],
            vec![queue("q", 1)],
            Accept::default(),
        );
        let error = Json::parse(br#"{"retry_after":5}"#, 16).unwrap();
        let pause = |kind: &str, own: &[Limited], key: &str| {
            let limits = set.limits(&job("q", kind), own).unwrap();
            let now = Timestamp(1_000_000);
            let key = Key::new(key).unwrap();
            let (pause, policy) = set.pause(&limits, &key, error, now, ("id", 1))?;
            Some((pause.until.since(now), policy.to_string()))
        };
        let second = 1_000_000;
        assert_eq!(pause("a", &[], "shared"), None);
        // A job that brings the file's key does not speak for it.
        assert_eq!(pause("c", &[own("shared", Some(1))], "shared"), None);
        let mine = [own("mine", Some(1))];
        assert_eq!(pause("a", &mine, "mine"), Some((5 * second, "job".into())));
        assert_eq!(pause("b", &[], "other"), Some((5 * second, "long".into())));
        assert_eq!(
            pause("a", &[], "q"),
            None,
            "a queue's limits are never shut"
        );
    }

    /// Jobs that are out have the names of an earlier file.
    #[test]
    fn a_policy_that_has_another_name_now_decides_for_its_keys() {
        let deaf = |name: &str, key: &str| Policy {
            feedback: Feedback {
                retry_after: false,
                ..Feedback::default()
            },
            ..policy(name, types(&["a"]), key, 1)
        };
        let policies = vec![
            deaf("new", "shared"),
            deaf("each", "crm:{meta.tenant}"),
            policy("hears", types(&["a"]), "other", 1),
        ];
        let set = PolicySet::new(policies, Vec::new(), Accept::Replace);
        let error = Json::parse(br#"{"retry_after":5}"#, 16).unwrap();
        let by = |key: &str, was: &str| {
            let limited = [Limited {
                policy: was.into(),
                ..own(key, Some(1))
            }];
            let (key, now) = (&limited[0].key, Timestamp(1_000_000));
            let pause = set.pause(&limited, key, error, now, ("id", 1));
            pause.map(|(_, policy)| policy.to_string())
        };
        assert_eq!(by("shared", "old"), None);
        assert_eq!(by("crm:acme", "old"), None);
        // Its own numbers stand in place of the file's, and the file decides for its key.
        assert_eq!(by("crm:acme", BROUGHT), None);
        assert_eq!(by("other", "old").as_deref(), Some("hears"));
        assert_eq!(by("mine", BROUGHT).as_deref(), Some(BROUGHT));
    }
}
