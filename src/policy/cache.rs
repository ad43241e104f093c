//! A cache of limits: jobs that meet the same policies with the same keys share one list.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{JobView, KeyMissing, Policy, PolicySet};
use crate::limit::Limited;

/// The most queues, and the most lists of limits. Names and keys come from jobs, so there may be any number; a
/// thousand busy tenants need far fewer.
const MAX: usize = 16_384;
/// The longest name of a list, in bytes. Longer ones are not kept.
const LONGEST: usize = 1_024;

/// The limits of jobs under one [`PolicySet`].
#[derive(Default, Debug)]
pub struct LimitCache {
    /// The queues that were seen.
    queues: HashMap<Box<str>, CachedQueue>,
    /// Lists of limits, named by the queue and by the keys of all policies that apply.
    limits: HashMap<Box<str>, Option<Arc<[Limited]>>>,
    /// The name that is looked up; a field so that its memory is used again.
    name: String,
}

#[derive(Debug)]
struct CachedQueue {
    /// Its number, which stands for it in the names of lists.
    number: usize,
    policies: Box<[usize]>,
}

impl LimitCache {
    /// [`PolicySet::limits`] of a job that brings no limits of its own. `policies` is the same set each
    /// time.
    pub fn limits(&mut self, policies: &PolicySet, job: &JobView<'_>) -> Option<Arc<[Limited]>> {
        let LimitCache {
            queues,
            limits,
            name,
        } = self;
        if job.queue.len() > LONGEST {
            return policies.limits(job, &[]);
        }
        let Some(queue) = queues.get(job.queue) else {
            self.meet(policies, job.queue);
            return self.limits(policies, job);
        };
        name.clear();
        push_number(queue.number, name);
        for nth in queue.policies.iter() {
            if let Some(policy) = policies.policies.get(*nth)
                && policy.matching.matches(job)
            {
                policy.write_name(*nth, job, name);
            }
        }
        if let Some(found) = limits.get(name.as_str()) {
            return found.clone();
        }
        let found = policies.limits(job, &[]);
        if name.len() > LONGEST {
            *name = String::new();
            return found;
        }
        if limits.len() >= MAX {
            limits.clear();
        }
        limits.insert(name.as_str().into(), found.clone());
        found
    }

    /// Notes a queue and the policies that its jobs can meet.
    fn meet(&mut self, policies: &PolicySet, name: &str) {
        if self.queues.len() >= MAX {
            // Lists are named by numbers of queues, which are given again from 0.
            self.queues.clear();
            self.limits.clear();
        }
        let all = policies.policies.iter().enumerate();
        let can_match = all.filter(|(_, policy)| policy.matching.can_match_queue(name));
        let queue = CachedQueue {
            number: self.queues.len(),
            policies: can_match.map(|(nth, _)| nth).collect(),
        };
        self.queues.insert(name.into(), queue);
    }
}

/// Appends a number in a form that ends by itself.
fn push_number(mut number: usize, name: &mut String) {
    loop {
        let (rest, digit) = (number >> 6, (number & 0x3F) as u8);
        let more = if rest > 0 { 0x40 } else { 0 };
        name.push(char::from(digit | more));
        if rest == 0 {
            return;
        }
        number = rest;
    }
}

impl Policy {
    /// Appends what tells jobs under this policy, the `nth` of its set, apart; nothing if it skips the job.
    /// No key has a zero in it.
    fn write_name(&self, nth: usize, job: &JobView<'_>, name: &mut String) {
        let before = name.len();
        push_number(nth, name);
        let missing = self.key.fill(job, name);
        name.push('\0');
        if missing.is_some() && self.key_missing == KeyMissing::Skip {
            name.truncate(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accept, Feedback, Match, Pattern, Template};
    use super::*;
    use crate::json::Json;
    use crate::limit::{Limits, OnLimit};

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
                        queue,
                        kind,
                        meta: Some(Json::parse(meta.as_bytes(), 8).unwrap()),
                        tenant: None,
                    };
                    assert_eq!(known.limits(&set, &job), set.limits(&job, &[]), "{job:?}");
                    assert_eq!(nothing.limits(&none, &job), None);
                }
            }
        }
        let job = JobView {
            queue: "q",
            kind: "a.b",
            meta: None,
            tenant: None,
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
                queue,
                kind: "a",
                meta: Some(Json::parse(meta.as_bytes(), 8).unwrap()),
                tenant: None,
            };
            assert_eq!(known.limits(&set, &job), set.limits(&job, &[]));
        }
        assert_eq!((known.queues.len(), known.limits.len()), (1, 0));
        assert!(known.name.capacity() <= LONGEST);
    }
}
