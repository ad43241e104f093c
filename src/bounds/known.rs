//! The waiting jobs of a queue that are told apart: by key (`per_key`) and by tenant. No backend tells, so those that
//! were enqueued here are remembered until they are seen to leave.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::groups::GroupCounts;
use super::want::{BoundGroup, Want};

/// More jobs than this are not told apart in one queue.
const MOST_JOBS: usize = 100_000;

/// The waiting jobs of one queue that are known.
#[derive(Debug)]
pub(super) struct KnownJobs {
    queue: Arc<str>,
    /// Counts the jobs of each group, over all queues.
    groups: Arc<GroupCounts>,
    /// How many came so far.
    came: u64,
    jobs: HashMap<Box<str>, KnownJob>,
    /// Their ids, oldest first.
    order: BTreeMap<u64, Box<str>>,
}

/// A job that waits.
#[derive(Debug)]
struct KnownJob {
    /// Which of all that came it is.
    nth: u64,
    groups: Vec<BoundGroup>,
}

impl KnownJobs {
    /// Those of a queue of which none is known yet.
    pub(super) fn new(queue: &Arc<str>, groups: &Arc<GroupCounts>) -> KnownJobs {
        KnownJobs {
            queue: Arc::clone(queue),
            groups: Arc::clone(groups),
            came: 0,
            jobs: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// The jobs of an enqueue are on their way.
    pub(super) fn reserve(&self, want: &Want) {
        let groups = want.all_groups();
        groups.for_each(|group| self.groups.add(group, &self.queue));
    }

    /// They were not stored.
    pub(super) fn refused(&self, want: &Want) {
        let groups = want.all_groups();
        groups.for_each(|group| self.groups.take(group, &self.queue));
    }

    /// They were stored under these ids. Without one nobody would see a job leave, so it does not count.
    pub(super) fn stored<'a>(&mut self, want: &Want, mut ids: impl Iterator<Item = &'a str>) {
        for groups in &want.groups {
            self.came += 1;
            let job = KnownJob {
                nth: self.came,
                groups: groups.clone(),
            };
            match ids.next() {
                Some(id) => self.add(id, job),
                None => self.release(&job),
            }
        }
    }

    fn add(&mut self, id: &str, job: KnownJob) {
        // An id that is used again takes the place of the job that had it.
        self.left(id);
        if self.jobs.len() >= MOST_JOBS {
            return self.release(&job);
        }
        self.order.insert(job.nth, id.into());
        self.jobs.insert(id.into(), job);
    }

    /// A job has left.
    pub(super) fn left(&mut self, id: &str) {
        if let Some(job) = self.jobs.remove(id) {
            self.order.remove(&job.nth);
            self.release(&job);
        }
    }

    fn release(&self, job: &KnownJob) {
        for group in &job.groups {
            self.groups.take(group, &self.queue);
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
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The groups of all jobs, for tests.
    #[cfg(test)]
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &BoundGroup> {
        self.jobs.values().flat_map(|job| &job.groups)
    }
}

impl Drop for KnownJobs {
    /// The queue is forgotten, and its jobs with it.
    fn drop(&mut self) {
        self.jobs.values().for_each(|job| self.release(job));
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounds::Bounds;
    use super::*;

    /// A job of this key.
    fn want(key: &BoundGroup) -> Want {
        Want {
            jobs: 1,
            sizes: vec![1],
            groups: vec![vec![key.clone()]],
            ..Want::nothing("q", Arc::new(Bounds::none()))
        }
    }

    fn none() -> KnownJobs {
        KnownJobs::new(&Arc::from("q"), &Arc::default())
    }

    fn key(name: &str) -> BoundGroup {
        BoundGroup::key(&Arc::from("q"), Arc::from(name))
    }

    fn store(known: &mut KnownJobs, key: &BoundGroup, id: Option<&str>) {
        known.reserve(&want(key));
        known.stored(&want(key), id.into_iter());
    }

    #[test]
    fn each_key_counts_its_own() {
        let mut known = none();
        let [a, b] = ["a", "b"].map(key);
        store(&mut known, &a, Some("1"));
        store(&mut known, &b, Some("2"));
        store(&mut known, &a, Some("3"));
        known.reserve(&want(&a));
        let counts = |known: &KnownJobs| ["a", "b", "c"].map(|name| known.groups.count(&key(name)));
        assert_eq!(counts(&known), [3, 1, 0]);
        known.refused(&want(&a));
        known.left("3");
        known.left("3");
        assert_eq!(counts(&known), [1, 1, 0]);
        store(&mut known, &b, Some("4"));
        known.at_most(2);
        assert_eq!(counts(&known), [0, 2, 0], "the oldest is gone");
        known.at_most(0);
        assert!(known.is_empty() && known.order.is_empty());
        store(&mut known, &a, None);
        assert_eq!(counts(&known), [0; 3]);
        store(&mut known, &a, Some("5"));
        store(&mut known, &b, Some("5"));
        assert_eq!(counts(&known), [0, 1, 0]);
    }

    #[test]
    fn a_job_that_stays_keeps_no_others() {
        let (mut known, a) = (none(), key("a"));
        store(&mut known, &a, Some("stays"));
        for nth in 0..10_000 {
            let id = nth.to_string();
            store(&mut known, &a, Some(&id));
            known.left(&id);
            known.at_most(1);
        }
        assert_eq!(known.order.len(), 1);
        store(&mut known, &a, Some("last"));
        known.at_most(1);
        assert_eq!(known.jobs.keys().collect::<Vec<_>>(), [&Box::from("last")]);
    }
}
