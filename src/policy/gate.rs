//! What a queue's name alone says, before any job of it is known: ready for the queues that an entry
//! names, and found among the entries with globs for the others.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::entry::{Accept, Policy, QueueLimits};
use super::job_view::JobView;
use super::matcher::{Pattern, Sample};
use super::price::one_price;
use ojs_limit::{Key, Limited, OnLimit, Space};

/// What a queue's name alone says, before any job of it is known.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Limits that every job of the queue must pass: queue-level ones, and policies with a constant
    /// key that cover the whole queue and wait. None with `fair`: a claim that they cap brings the next jobs, and not
    /// those whose turn it is.
    pub limited: Arc<[Limited]>,
    /// Whether limits other than those can apply to some job of the queue.
    pub keyed: bool,
    /// The keys with `fair` of policies that cover the whole queue.
    pub shared: Vec<Key>,
}

impl Gate {
    /// Whether no configured limit can touch the queue.
    pub fn open(&self) -> bool {
        self.limited.is_empty() && !self.keyed
    }

    /// Whether both are one and not only alike.
    pub fn is(&self, other: &Gate) -> bool {
        Arc::ptr_eq(&self.limited, &other.limited) && self.keyed == other.keyed
    }
}

/// The gates of one set.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// Which policies may match queues that none of them names: those with a glob, or without queues.
    wide: Vec<usize>,
    /// Which queue entries are globs.
    globs: Vec<usize>,
    /// The gates of all queues that an entry names without a glob.
    named: HashMap<Box<str>, Gate>,
    /// The job keys for which every job of some of these queues waits.
    pub(super) covering: HashSet<Key>,
}

impl Gates {
    /// Each named queue looks only at the entries that name it and at those with globs: thousands of both
    /// are made in milliseconds.
    pub(super) fn of(policies: &[Policy], queues: &[QueueLimits], accept: Accept) -> Gates {
        let wide = places(policies, |policy| {
            let patterns = &policy.matching.queue;
            patterns.is_empty() || patterns.iter().any(Pattern::is_glob)
        });
        let globs = places(queues, |entry| entry.name.is_glob());
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (nth, policy) in policies.iter().enumerate() {
            let patterns = policy.matching.queue.iter();
            for pattern in patterns.filter(|pattern| !pattern.is_glob()) {
                named.entry(pattern.as_str()).or_default().push(nth);
            }
        }
        let mut entries: HashMap<&str, Vec<&QueueLimits>> = HashMap::new();
        for entry in queues.iter().filter(|entry| !entry.name.is_glob()) {
            entries.entry(entry.name.as_str()).or_default().push(entry);
            named.entry(entry.name.as_str()).or_default();
        }
        let named = named.into_iter().map(|(queue, mut own)| {
            own.extend(&wide);
            own.sort_unstable();
            own.dedup();
            let policies = at(policies, &own);
            let entries = entries.get(queue).into_iter().flatten().copied();
            let limits = entries.chain(at(queues, &globs));
            (Box::from(queue), gate_of(queue, accept, policies, limits))
        });
        let named: HashMap<Box<str>, Gate> = named.collect();
        let covering = named.values().flat_map(|gate| {
            let limited = gate.limited.iter().filter(|one| one.space == Space::Job);
            limited.map(|one| &one.key).chain(&gate.shared)
        });
        Gates {
            covering: covering.cloned().collect(),
            wide,
            globs,
            named,
        }
    }

    /// The gate of a queue, by the entries that these gates were made of. A queue that nothing matches costs no
    /// allocation.
    pub(super) fn gate(
        &self,
        queue: &str,
        policies: &[Policy],
        queues: &[QueueLimits],
        accept: Accept,
    ) -> Cow<'_, Gate> {
        match self.named.get(queue) {
            Some(gate) => Cow::Borrowed(gate),
            None => {
                let policies = at(policies, &self.wide);
                let limits = at(queues, &self.globs);
                Cow::Owned(gate_of(queue, accept, policies, limits))
            }
        }
    }

    /// The gates of the queues that some entry names without a glob.
    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &Gate)> {
        self.named.iter().map(|(queue, gate)| (&**queue, gate))
    }
}

/// The gate of a queue as far as these entries go.
fn gate_of<'a>(
    queue: &str,
    accept: Accept,
    policies: impl Iterator<Item = &'a Policy>,
    limits: impl Iterator<Item = &'a QueueLimits>,
) -> Gate {
    let (mut limited, mut keyed, mut shared) = (Vec::new(), false, Vec::new());
    // None of those that are asked about it looks further than the queue's name.
    let job = JobView::of_queue(queue);
    for entry in limits.filter(|entry| entry.name.matches(queue)) {
        match (&entry.prices.fair, entry.sample) {
            (None, Sample::All) => limited.push(entry.limited(&job)),
            // Whoever's turn it is may wait behind many others, and only some jobs are in a sample.
            _ => keyed = true,
        }
    }
    for policy in policies.filter(|policy| policy.matching.can_match_queue(queue)) {
        let covers = policy.covers_queues(accept);
        match covers.then(|| policy.limited(&job)).flatten() {
            Some(of_all) if policy.prices.fair.is_none() => limited.push(of_all),
            of_all => {
                keyed = true;
                shared.extend(of_all.map(|one| one.key));
            }
        }
    }
    one_price(&mut limited);
    let limited = if limited.is_empty() {
        Arc::default()
    } else {
        limited.into()
    };
    Gate {
        limited,
        keyed,
        shared,
    }
}

impl Policy {
    /// Whether every job of a matching queue meets this policy under one key, and waits for it.
    fn covers_queues(&self, accept: Accept) -> bool {
        self.matching.only_queue()
            && self.key.only_queue()
            && self.on_limit == OnLimit::Wait
            // A job that may replace these numbers must be seen before it can be refused.
            && accept != Accept::Replace
    }
}

/// Where those are that `wanted` wants.
fn places<T>(all: &[T], wanted: impl Fn(&T) -> bool) -> Vec<usize> {
    let places = all.iter().enumerate();
    let places = places.filter(|(_, one)| wanted(one));
    places.map(|(nth, _)| nth).collect()
}

/// Those that stand at these places.
fn at<'a, T>(all: &'a [T], places: &'a [usize]) -> impl Iterator<Item = &'a T> {
    places.iter().filter_map(|nth| all.get(*nth))
}
