//! How many jobs of each key wait in one queue (`per_key`): no backend tells, so those that were enqueued
//! here are remembered until they are seen to leave.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::sums::Sums;

/// More jobs than this are not told apart in one queue.
const MOST: usize = 100_000;

/// The keys of one queue.
#[derive(Default, Debug)]
pub(super) struct Keys {
    counts: HashMap<Arc<str>, u64>,
    /// Where they count over all queues too, and which queue this is.
    over_all: Option<(Arc<Sums>, Arc<str>)>,
    /// How many came so far.
    came: u64,
    /// The jobs that wait, by id: which of all that came each is, and its key.
    jobs: HashMap<Box<str>, (u64, Arc<str>)>,
    /// Their ids, oldest first.
    order: BTreeMap<u64, Box<str>>,
}

impl Keys {
    /// Those of this queue, which count over all queues too as long as they are remembered.
    pub(super) fn summed(sums: &Arc<Sums>, queue: &Arc<str>) -> Keys {
        let mut keys = Keys::default();
        keys.over_all = Some((Arc::clone(sums), Arc::clone(queue)));
        keys
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

    /// It was not stored.
    pub(super) fn refused(&mut self, key: &Arc<str>) {
        self.release(key);
    }

    /// It was stored under this id; without one nobody would see it leave, so it does not count.
    pub(super) fn stored(&mut self, key: &Arc<str>, id: Option<&str>) {
        let Some(id) = id else {
            return self.release(key);
        };
        // An id that is used again takes the place of the job that had it.
        self.left(id);
        if self.jobs.len() >= MOST {
            return self.release(key);
        }
        self.came += 1;
        self.jobs.insert(id.into(), (self.came, Arc::clone(key)));
        self.order.insert(self.came, id.into());
    }

    /// A job has left.
    pub(super) fn left(&mut self, id: &str) {
        if let Some((nth, key)) = self.jobs.remove(id) {
            self.order.remove(&nth);
            self.release(&key);
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

impl Drop for Keys {
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
    use super::*;

    #[test]
    fn each_key_counts_its_own() {
        let mut keys = Keys::default();
        let [a, b]: [Arc<str>; 2] = ["a", "b"].map(Arc::from);
        let store = |keys: &mut Keys, key, id: &str| {
            keys.reserve(key);
            keys.stored(key, Some(id));
        };
        store(&mut keys, &a, "1");
        store(&mut keys, &b, "2");
        store(&mut keys, &a, "3");
        keys.reserve(&a);
        assert_eq!(
            (keys.count("a"), keys.count("b"), keys.count("c")),
            (3, 1, 0)
        );
        keys.refused(&a);
        keys.left("3");
        keys.left("3");
        assert_eq!(keys.count("a"), 1);
        store(&mut keys, &b, "4");
        keys.at_most(2);
        assert_eq!(
            (keys.count("a"), keys.count("b")),
            (0, 2),
            "the oldest is gone"
        );
        keys.at_most(0);
        assert!(keys.counts.is_empty() && keys.jobs.is_empty() && keys.order.is_empty());
        keys.reserve(&a);
        keys.stored(&a, None);
        assert_eq!(keys.count("a"), 0);
        store(&mut keys, &a, "5");
        store(&mut keys, &b, "5");
        assert_eq!((keys.count("a"), keys.count("b")), (0, 1));
    }

    #[test]
    fn a_job_that_stays_keeps_no_others() {
        let (mut keys, a) = (Keys::default(), Arc::from("a"));
        let store = |keys: &mut Keys, id: &str| {
            keys.reserve(&a);
            keys.stored(&a, Some(id));
        };
        store(&mut keys, "stays");
        for nth in 0..10_000 {
            let id = nth.to_string();
            store(&mut keys, &id);
            keys.left(&id);
            keys.at_most(1);
        }
        assert_eq!(keys.order.len(), 1);
        store(&mut keys, "last");
        keys.at_most(1);
        assert_eq!(keys.jobs.keys().collect::<Vec<_>>(), [&Box::from("last")]);
    }
}
