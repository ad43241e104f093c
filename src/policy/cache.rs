//! A cache of limits: jobs that meet the same policies with the same keys share one list.

use std::sync::Arc;

use hashbrown::HashMap;

use super::entry::{KeyMissing, Policy};
use super::job_view::JobView;
use super::matcher::Sample;
use super::price::Fair;
use super::set::PolicySet;
use ojs_limit::Limited;

/// The most queues, and the most lists of limits. Names and keys come from jobs, so there may be any number; a
/// thousand busy tenants need far fewer.
const MAX: usize = 16_384;
/// The longest name of a list, in bytes. Longer ones are not kept.
const LONGEST: usize = 1_024;

/// The letter that stands for the first policy in a name; no file has as many policies as there are letters after it, a
/// million.
const FIRST_MARK: usize = 0x1_0000;

/// The limits of jobs under one [`PolicySet`].
#[derive(Default, Debug)]
pub struct LimitCache {
    /// The queues that were seen.
    queues: HashMap<Box<str>, CachedQueue>,
    /// How many lists of limits there are in all.
    lists: usize,
    /// The name that is looked up; a field so that its memory is used again.
    name: String,
}

#[derive(Debug)]
struct CachedQueue {
    /// The policies that its jobs can meet.
    policies: Box<[usize]>,
    /// Whose turn it is under its own limits.
    fair: Box<[Arc<Fair>]>,
    /// Which of its jobs are under its own limits, where not all are.
    samples: Box<[Sample]>,
    /// Lists of limits, named by the keys and the groups of all that applies.
    limits: HashMap<Box<str>, Option<Arc<[Limited]>>>,
}

impl CachedQueue {
    fn new(policies: &PolicySet, queue: &str) -> CachedQueue {
        let all = policies.policies.iter().enumerate();
        let can_match = all.filter(|(_, policy)| policy.matching.can_match_queue(queue));
        CachedQueue {
            policies: can_match.map(|(nth, _)| nth).collect(),
            fair: (policies.queue_limits(queue))
                .filter_map(|entry| entry.prices.fair.clone())
                .collect(),
            samples: (policies.queue_limits(queue))
                .map(|entry| entry.sample)
                .filter(|sample| *sample != Sample::All)
                .collect(),
            limits: HashMap::new(),
        }
    }
}

impl LimitCache {
    /// [`PolicySet::limits`] of a job that brings no limits of its own. `policies` is the same set each
    /// time.
    pub fn limits(&mut self, policies: &PolicySet, job: &JobView<'_>) -> Option<Arc<[Limited]>> {
        if job.queue.len() > LONGEST {
            return policies.limits(job, &[]);
        }
        if self.lists >= MAX || self.queues.len() >= MAX {
            *self = LimitCache::default();
        }
        let queue = self.queues.entry_ref(job.queue);
        let queue = queue.or_insert_with(|| CachedQueue::new(policies, job.queue));
        let name = &mut self.name;
        name.clear();
        for fair in &queue.fair {
            fair.write_name(job, name);
        }
        let among = queue.samples.iter().map(|sample| sample.has(job.id));
        name.extend(among.map(|is_among| if is_among { '+' } else { '-' }));
        for nth in queue.policies.iter() {
            if let Some(policy) = policies.policies.get(*nth)
                && policy.matching.matches(job)
            {
                policy.write_name(*nth, job, name);
            }
        }
        if let Some(found) = queue.limits.get(name.as_str()) {
            return found.clone();
        }
        policies.note_matched(job);
        let found = policies.limits(job, &[]);
        if name.len() > LONGEST {
            *name = String::new();
            return found;
        }
        self.lists += 1;
        queue.limits.insert(name.as_str().into(), found.clone());
        found
    }
}

impl Policy {
    /// Appends what tells jobs under this policy, the `nth` of its set, apart; nothing if it skips the job. A key has
    /// letters of ASCII only and no zero, so it has in it neither the mark of a policy nor the zero behind a key.
    fn write_name(&self, nth: usize, job: &JobView<'_>, name: &mut String) {
        let before = name.len();
        let mark = u32::try_from(FIRST_MARK + nth)
            .ok()
            .and_then(char::from_u32);
        name.push(mark.unwrap_or(char::MAX));
        let missing = self.key.fill(job, name);
        name.push('\0');
        if let Some(fair) = &self.prices.fair {
            fair.write_name(job, name);
        }
        if missing.is_some() && self.key_missing == KeyMissing::Skip {
            name.truncate(before);
        }
    }
}

impl Fair {
    /// Appends what tells the groups of jobs apart.
    fn write_name(&self, job: &JobView<'_>, name: &mut String) {
        let _missing = self.by.fill(job, name);
        name.push('\0');
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accept, Feedback, Match, Pattern, Prices, Template};
    use super::*;
    use ojs_json::Json;
    use ojs_limit::{Limits, OnLimit};

    fn policy(name: &str, kind: &str, key: &str, key_missing: KeyMissing) -> Policy {
        Policy {
            name: name.into(),
            matching: Match {
                kind: vec![Pattern::new(kind)],
                ..Match::default()
            },
            key: Template::new(key).unwrap(),
            key_missing,
            limits: Limits {
                concurrency: Some(1),
                ..Limits::default()
            },
            on_limit: OnLimit::Wait,
            feedback: Feedback::default(),
            prices: Prices::default(),
        }
    }

    #[test]
    fn what_is_remembered_is_what_would_be_found() {
        let policies = vec![
            policy("all", "*", "all", KeyMissing::Shared),
            policy("tenant", "a.*", "t:{meta.tenant}", KeyMissing::Skip),
            policy("pair", "*", "p:{meta.tenant}:{queue}", KeyMissing::Shared),
        ];
        let set = PolicySet::new(policies, Vec::new(), Accept::Tighten);
        let none = PolicySet::new(
            vec![policy("a", "a", "k", KeyMissing::Skip)],
            Vec::new(),
            Accept::Tighten,
        );
        let (mut known, mut nothing) = (LimitCache::default(), LimitCache::default());
        let metas = [r#"{"tenant":"x"}"#, r#"{"tenant":"x:q"}"#, "{}"];
        for _ in 0..2 {
            for meta in metas {
                for (queue, kind) in [("q", "a.b"), ("q", "b"), ("q2", "a.b"), ("", "a.c")] {
                    let job = JobView {
                        kind,
                        meta: Some(Json::parse(meta.as_bytes(), 8).unwrap()),
                        ..JobView::of_queue(queue)
                    };
                    assert_eq!(known.limits(&set, &job), set.limits(&job, &[]), "{job:?}");
                    assert_eq!(nothing.limits(&none, &job), None);
                }
            }
        }
        let job = JobView {
            kind: "a.b",
            ..JobView::of_queue("q")
        };
        let (one, same) = (known.limits(&set, &job), known.limits(&set, &job));
        assert!(Arc::ptr_eq(&one.unwrap(), &same.unwrap()));
    }

    /// Names and keys are as long as who sends them likes.
    #[test]
    fn what_is_long_is_found_and_not_remembered() {
        let policies = vec![policy("tenant", "*", "t:{meta.tenant}", KeyMissing::Skip)];
        let set = PolicySet::new(policies, Vec::new(), Accept::Tighten);
        let mut known = LimitCache::default();
        let long = "x".repeat(100_000);
        let meta = format!("{{\"tenant\":{long:?}}}");
        for (queue, meta) in [("q", &*meta), (&*long, "{}")] {
            let job = JobView {
                kind: "a",
                meta: Some(Json::parse(meta.as_bytes(), 8).unwrap()),
                ..JobView::of_queue(queue)
            };
            assert_eq!(known.limits(&set, &job), set.limits(&job, &[]));
        }
        assert_eq!((known.queues.len(), known.lists), (1, 0));
        assert!(known.name.capacity() <= LONGEST);
    }
}
