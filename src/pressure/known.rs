//! The waiting jobs of a queue that are told apart: by key (`per_key`), by tenant, and by age (`drop_oldest`). No
//! backend tells, so those that were enqueued here are remembered until they are seen to leave.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::sums::Sums;
use super::want::Want;

/// More jobs than this are not told apart in one queue.
const MOST: usize = 100_000;

/// The waiting jobs of one queue that are known.
#[derive(Default, Debug)]
pub(super) struct KnownJobs {
    pub(super) keys: KeyCounts,
    pub(super) tenants: KeyCounts,
    /// How many came so far.
    came: u64,
    jobs: HashMap<Box<str>, KnownJob>,
    /// Their ids, oldest first.
    order: BTreeMap<u64, Box<str>>,
    /// Those that may be dropped and were not tried yet.
    droppable: BTreeSet<u64>,
    /// The priorities of the jobs that may be dropped and came since the queue was empty.
    priorities: HashSet<i64>,
}

/// A job that waits.
#[derive(Debug)]
struct KnownJob {
    /// Which of all that came it is.
    nth: u64,
    key: Option<Arc<str>>,
    tenant: Option<Arc<str>>,
}

impl KnownJobs {
    /// Those of a queue whose tenants count over all queues too.
    pub(super) fn new(tenants: KeyCounts) -> KnownJobs {
        KnownJobs {
            tenants,
            ..KnownJobs::default()
        }
    }

    /// The jobs of an enqueue are on their way.
    pub(super) fn reserve(&mut self, want: &Want) {
        want.keys.iter().for_each(|key| self.keys.reserve(key));
        let tenants = want.tenants.iter();
        tenants.for_each(|tenant| self.tenants.reserve(tenant));
    }

    /// They were not stored.
    pub(super) fn refused(&mut self, want: &Want) {
        want.keys.iter().for_each(|key| self.keys.release(key));
        let tenants = want.tenants.iter();
        tenants.for_each(|tenant| self.tenants.release(tenant));
    }

    /// They were stored under these ids. Without one nobody would see a job leave, so it does not count.
    pub(super) fn stored<'a>(&mut self, want: &Want, mut ids: impl Iterator<Item = &'a str>) {
        let of = |all: &[Arc<str>], nth| all.get(nth).cloned();
        let most = want.keys.len().max(want.tenants.len());
        for nth in 0..most.max(want.droppable.len()) {
            self.came += 1;
            let job = KnownJob {
                nth: self.came,
                key: of(&want.keys, nth),
                tenant: of(&want.tenants, nth),
            };
            match ids.next() {
                Some(id) => self.add(id, job, want.droppable.get(nth).copied()),
                None => self.release(&job),
            }
        }
    }

    fn add(&mut self, id: &str, job: KnownJob, priority: Option<i64>) {
        // An id that is used again takes the place of the job that had it.
        self.left(id);
        if self.jobs.len() >= MOST {
            return self.release(&job);
        }
        if let Some(priority) = priority {
            self.droppable.insert(job.nth);
            // Two are as good as more.
            if self.priorities.len() < 2 {
                self.priorities.insert(priority);
            }
        }
        self.order.insert(job.nth, id.into());
        self.jobs.insert(id.into(), job);
    }

    /// A job has left.
    pub(super) fn left(&mut self, id: &str) {
        if let Some(job) = self.jobs.remove(id) {
            self.order.remove(&job.nth);
            self.droppable.remove(&job.nth);
            self.release(&job);
        }
    }

    fn release(&mut self, job: &KnownJob) {
        if let Some(key) = &job.key {
            self.keys.release(key);
        }
        if let Some(tenant) = &job.tenant {
            self.tenants.release(tenant);
        }
    }

    /// No more than `waiting` jobs wait: the oldest of those that are known have left unseen.
    pub(super) fn at_most(&mut self, waiting: u64) {
        while self.jobs.len() as u64 > waiting {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.left(&oldest);
        }
        if waiting == 0 {
            self.priorities.clear();
        }
    }

    /// Takes the oldest job that may be dropped, to be tried once. `None`: all jobs have one priority, so the backend's
    /// next job is the oldest.
    pub(super) fn take_oldest(&mut self) -> Option<Box<str>> {
        if self.priorities.len() < 2 {
            return None;
        }
        self.order.get(&self.droppable.pop_first()?).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.tenants.is_empty() && self.jobs.is_empty()
    }
}

/// How many jobs of each key, or of each tenant, wait in one queue or are on their way.
#[derive(Default, Debug)]
pub(super) struct KeyCounts {
    counts: HashMap<Arc<str>, u64>,
    /// Where they count over all queues too, and which queue this is.
    over_all: Option<(Arc<Sums>, Arc<str>)>,
}

impl KeyCounts {
    /// Those of this queue, which count over all queues too as long as they are remembered.
    pub(super) fn summed(sums: &Arc<Sums>, queue: &Arc<str>) -> KeyCounts {
        let mut counts = KeyCounts::default();
        counts.over_all = Some((Arc::clone(sums), Arc::clone(queue)));
        counts
    }

    /// How many jobs of the key wait or are on their way.
    pub(super) fn count(&self, key: &str) -> u64 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// A job of the key is on its way.
    pub(super) fn reserve(&mut self, key: &Arc<str>) {
        *self.counts.entry(Arc::clone(key)).or_default() += 1;
        if let Some((sums, queue)) = &self.over_all {
            sums.add(key, queue);
        }
    }

    fn release(&mut self, key: &Arc<str>) {
        if let Some(count) = self.counts.get_mut(key) {
            *count -= 1;
            let is_last = *count == 0;
            if is_last {
                self.counts.remove(key);
            }
            if let Some((sums, queue)) = &self.over_all {
                sums.take(key, 1, is_last.then_some(queue));
            }
        }
    }
}

impl Drop for KeyCounts {
    /// The queue is forgotten, and its jobs with it.
    fn drop(&mut self) {
        if let Some((sums, queue)) = &self.over_all {
            for (key, count) in &self.counts {
                sums.take(key, *count, Some(queue));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounds::UNBOUNDED;
    use super::*;

    /// A job of this key and of this priority.
    fn want(key: &Arc<str>, priority: i64) -> Want {
        Want {
            jobs: 1,
            sizes: vec![1],
            keys: vec![Arc::clone(key)],
            droppable: vec![priority],
            ..Want::nothing("q", Arc::new(UNBOUNDED))
        }
    }

    fn store(known: &mut KnownJobs, key: &Arc<str>, priority: i64, id: Option<&str>) {
        known.reserve(&want(key, priority));
        known.stored(&want(key, priority), id.into_iter());
    }

    #[test]
    fn each_key_counts_its_own() {
        let mut known = KnownJobs::default();
        let [a, b]: [Arc<str>; 2] = ["a", "b"].map(Arc::from);
        store(&mut known, &a, 0, Some("1"));
        store(&mut known, &b, 0, Some("2"));
        store(&mut known, &a, 0, Some("3"));
        known.reserve(&want(&a, 0));
        let counts = |known: &KnownJobs| ["a", "b", "c"].map(|key| known.keys.count(key));
        assert_eq!(counts(&known), [3, 1, 0]);
        known.refused(&want(&a, 0));
        known.left("3");
        known.left("3");
        assert_eq!(counts(&known), [1, 1, 0]);
        store(&mut known, &b, 0, Some("4"));
        known.at_most(2);
        assert_eq!(counts(&known), [0, 2, 0], "the oldest is gone");
        known.at_most(0);
        assert!(known.is_empty() && known.order.is_empty() && known.droppable.is_empty());
        store(&mut known, &a, 0, None);
        assert_eq!(counts(&known), [0; 3]);
        store(&mut known, &a, 0, Some("5"));
        store(&mut known, &b, 0, Some("5"));
        assert_eq!(counts(&known), [0, 1, 0]);
    }

    #[test]
    fn a_job_that_stays_keeps_no_others() {
        let (mut known, a) = (KnownJobs::default(), Arc::from("a"));
        store(&mut known, &a, 0, Some("stays"));
        for nth in 0..10_000 {
            let id = nth.to_string();
            store(&mut known, &a, 0, Some(&id));
            known.left(&id);
            known.at_most(1);
        }
        assert_eq!(known.order.len(), 1);
        store(&mut known, &a, 0, Some("last"));
        known.at_most(1);
        assert_eq!(known.jobs.keys().collect::<Vec<_>>(), [&Box::from("last")]);
    }

    #[test]
    fn with_priorities_the_oldest_is_another_than_the_next() {
        let (mut known, a) = (KnownJobs::default(), Arc::from("a"));
        store(&mut known, &a, 0, Some("1"));
        store(&mut known, &a, 5, Some("2"));
        assert_eq!(known.take_oldest().as_deref(), Some("1"));
        assert_eq!(known.take_oldest().as_deref(), Some("2"));
        assert_eq!(known.take_oldest(), None, "each is tried once");
        assert_eq!(known.keys.count("a"), 2, "they wait still");
        known.at_most(0);
        store(&mut known, &a, 5, Some("3"));
        assert_eq!(known.take_oldest(), None, "one priority");
    }
}
