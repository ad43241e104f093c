//! Which jobs of a `drop_oldest` queue wait, whose they are and in which order they came: those that were
//! enqueued here, until they are seen to leave. No backend gives up a job by its age, so this matters where
//! its next job may not be the oldest: with several priorities, or several tenants.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// More jobs than this are not told apart in one queue.
const MOST: usize = 100_000;

/// The waiting jobs that are known.
#[derive(Clone, Default, Debug)]
pub(super) struct Ages {
    /// How many came so far.
    came: u64,
    jobs: HashMap<Box<str>, u64>,
    all: BTreeMap<u64, (Box<str>, Arc<str>)>,
    owners: HashMap<Arc<str>, BTreeSet<u64>>,
    /// The priorities of those that came since the queue was empty.
    priorities: HashSet<i64>,
}

impl Ages {
    /// A job of this owner was stored.
    pub(super) fn stored(&mut self, owner: &Arc<str>, priority: i64, id: &str) {
        self.left(id);
        if self.jobs.len() >= MOST {
            return;
        }
        self.came += 1;
        self.jobs.insert(id.into(), self.came);
        self.all.insert(self.came, (id.into(), Arc::clone(owner)));
        let of_owner = self.owners.entry(Arc::clone(owner)).or_default();
        of_owner.insert(self.came);
        // Two are as good as more.
        if self.priorities.len() < 2 {
            self.priorities.insert(priority);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// A job has left.
    pub(super) fn left(&mut self, id: &str) {
        let Some(nth) = self.jobs.remove(id) else {
            return;
        };
        let Some((_, owner)) = self.all.remove(&nth) else {
            return;
        };
        if let Some(of_owner) = self.owners.get_mut(&owner) {
            of_owner.remove(&nth);
            if of_owner.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// No more than `waiting` jobs wait: the oldest of those that are known have left unseen.
    pub(super) fn at_most(&mut self, waiting: u64) {
        while self.jobs.len() as u64 > waiting {
            let Some((_, (id, _))) = self.all.first_key_value() else {
                return;
            };
            let id = id.clone();
            self.left(&id);
        }
        if waiting == 0 {
            self.priorities.clear();
        }
    }

    /// The job to drop where the backend's next one need not be it: the oldest of the owner with the most
    /// jobs, but none of `stay`. `None`: the backend's next job is the oldest, as far as is known.
    pub(super) fn oldest(&self, stay: &HashSet<Box<str>>) -> Option<Box<str>> {
        if self.owners.len() < 2 && self.priorities.len() < 2 {
            return None;
        }
        let of_each = self.owners.values().filter_map(|of_owner| {
            let mut jobs = of_owner
                .iter()
                .filter_map(|nth| Some((nth, self.all.get(nth)?)));
            let (nth, (id, _)) = jobs.find(|(_, (id, _))| !stay.contains(id))?;
            Some((of_owner.len(), Reverse(nth), id))
        });
        let (.., id) = of_each.max_by_key(|(jobs, nth, _)| (*jobs, *nth))?;
        Some(id.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(ages: &mut Ages, jobs: &[(&str, i64, &str)]) {
        for (owner, priority, id) in jobs {
            ages.stored(&Arc::from(*owner), *priority, id);
        }
    }

    #[test]
    fn the_heaviest_loses_its_oldest() {
        let mut ages = Ages::default();
        stored(&mut ages, &[("a", 0, "1"), ("b", 0, "2"), ("b", 0, "3")]);
        assert_eq!(ages.oldest(&HashSet::new()).as_deref(), Some("2"));
        ages.left("2");
        assert_eq!(
            ages.oldest(&HashSet::new()).as_deref(),
            Some("1"),
            "the older of equals"
        );
        let stay = |ids: &[&str]| ids.iter().map(|id| Box::from(*id)).collect();
        assert_eq!(ages.oldest(&stay(&["1"])).as_deref(), Some("3"));
        assert_eq!(ages.oldest(&stay(&["1", "3"])), None);
        ages.at_most(1);
        assert_eq!(
            ages.oldest(&HashSet::new()),
            None,
            "one owner and one priority"
        );
        stored(&mut ages, &[("b", 0, "3"), ("b", 0, "4")]);
        assert_eq!(ages.oldest(&HashSet::new()), None);
    }

    #[test]
    fn with_priorities_the_oldest_is_another_than_the_next() {
        let mut ages = Ages::default();
        stored(&mut ages, &[("", 0, "1"), ("", 5, "2")]);
        assert_eq!(ages.oldest(&HashSet::new()).as_deref(), Some("1"));
        ages.left("1");
        ages.left("1");
        assert_eq!(ages.oldest(&HashSet::new()).as_deref(), Some("2"));
        ages.at_most(0);
        stored(&mut ages, &[("", 5, "3")]);
        assert_eq!(ages.oldest(&HashSet::new()), None);
        assert_eq!(
            (ages.jobs.len(), ages.all.len(), ages.owners.len()),
            (1, 1, 1)
        );
    }
}
