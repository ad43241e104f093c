//! The waiting jobs of a queue that are told apart: by key (`per_key`), by tenant, and by age (`drop_oldest`). No
//! backend tells, so those that were enqueued here are remembered until they are seen to leave.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::groups::{Group, Groups};
use super::want::Want;

/// More jobs than this are not told apart in one queue.
const MOST: usize = 100_000;

/// The waiting jobs of one queue that are known.
#[derive(Debug)]
pub(super) struct KnownJobs {
    queue: Arc<str>,
    /// Counts the jobs of each group, over all queues.
    groups: Arc<Groups>,
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
    groups: Vec<Group>,
}

impl KnownJobs {
    /// Those of a queue of which none is known yet.
    pub(super) fn new(queue: &Arc<str>, groups: &Arc<Groups>) -> KnownJobs {
        KnownJobs {
            queue: Arc::clone(queue),
            groups: Arc::clone(groups),
            came: 0,
            jobs: HashMap::new(),
            order: BTreeMap::new(),
            droppable: BTreeSet::new(),
            priorities: HashSet::new(),
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
        for nth in 0..want.groups.len().max(want.droppable.len()) {
            self.came += 1;
            let job = KnownJob {
                nth: self.came,
                groups: want.groups.get(nth).cloned().unwrap_or_default(),
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
        self.jobs.is_empty()
    }

    /// The groups of all jobs, for tests.
    #[cfg(test)]
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
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
    use super::super::bounds::UNBOUNDED;
    use super::*;

    /// A job of this key and of this priority.
    fn want(key: &Group, priority: i64) -> Want {
        Want {
            jobs: 1,
            sizes: vec![1],
            groups: vec![vec![key.clone()]],
            droppable: vec![priority],
            ..Want::nothing("q", Arc::new(UNBOUNDED))
        }
    }

    fn none() -> KnownJobs {
        KnownJobs::new(&Arc::from("q"), &Arc::default())
    }

    fn key(name: &str) -> Group {
        Group::key(&Arc::from("q"), Arc::from(name))
    }

    fn store(known: &mut KnownJobs, key: &Group, priority: i64, id: Option<&str>) {
        known.reserve(&want(key, priority));
        known.stored(&want(key, priority), id.into_iter());
    }

    #[test]
    fn each_key_counts_its_own() {
        let mut known = none();
        let [a, b] = ["a", "b"].map(key);
        store(&mut known, &a, 0, Some("1"));
        store(&mut known, &b, 0, Some("2"));
        store(&mut known, &a, 0, Some("3"));
        known.reserve(&want(&a, 0));
        let counts = |known: &KnownJobs| ["a", "b", "c"].map(|name| known.groups.count(&key(name)));
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
        let (mut known, a) = (none(), key("a"));
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
        let (mut known, a) = (none(), key("a"));
        store(&mut known, &a, 0, Some("1"));
        store(&mut known, &a, 5, Some("2"));
        assert_eq!(known.take_oldest().as_deref(), Some("1"));
        assert_eq!(known.take_oldest().as_deref(), Some("2"));
        assert_eq!(known.take_oldest(), None, "each is tried once");
        assert_eq!(known.groups.count(&a), 2, "they wait still");
        known.at_most(0);
        store(&mut known, &a, 5, Some("3"));
        assert_eq!(known.take_oldest(), None, "one priority");
    }
}
