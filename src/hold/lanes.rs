//! The lanes, and which of them are of one queue.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::ValuesMut;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::lane::Lane;
use super::queue::Queue;

/// Lanes come by [`Lanes::open`] and go by [`Lanes::retain`] only. Anybody can make them, by credentials that are made
/// up: those of which nothing is held or asked for are found by their names only.
#[derive(Default, Debug)]
pub(super) struct Lanes {
    lanes: HashMap<Lane, Queue>,
    /// Under which scopes jobs of a queue are held or being asked of the backend.
    busy: HashMap<Arc<str>, SmallVec<[u64; 1]>>,
    /// From so many lanes on those go that nobody needs.
    most: usize,
}

/// With fewer lanes none goes before its time.
const MANY: usize = 10_000;
/// A lane that was asked about so lately may be about to be needed.
const NEW: Duration = Duration::from_secs(1);

impl Deref for Lanes {
    type Target = HashMap<Lane, Queue>;

    fn deref(&self) -> &HashMap<Lane, Queue> {
        &self.lanes
    }
}

impl Lanes {
    /// The lane; it is there from now on.
    pub(super) fn open(&mut self, lane: &Lane, now: Instant) -> &mut Queue {
        if self.lanes.len() >= self.most && !self.lanes.contains_key(lane) {
            self.retain(|queue| queue.is_needed() || queue.fetched_at + NEW >= now);
            self.most = MANY.max(2 * self.lanes.len());
        }
        let queue = || Queue::new(&lane.queue, now);
        self.lanes.entry_ref(lane).or_insert_with(queue)
    }

    /// What is held or asked for of the lane has changed.
    pub(super) fn follow(&mut self, lane: &Lane) {
        let is_busy = self.lanes.get(lane).is_some_and(Queue::is_busy);
        let of_queue = match is_busy {
            true => self.busy.entry(lane.queue.clone()).or_default(),
            false => match self.busy.get_mut(&lane.queue) {
                Some(of_queue) => of_queue,
                None => return,
            },
        };
        match of_queue.iter().position(|scope| *scope == lane.scope) {
            None if is_busy => of_queue.push(lane.scope),
            Some(at) if !is_busy => drop(of_queue.swap_remove(at)),
            _ => {}
        }
        if of_queue.is_empty() {
            self.busy.remove(&lane.queue);
        }
    }

    pub(super) fn get_mut(&mut self, lane: &Lane) -> Option<&mut Queue> {
        self.lanes.get_mut(lane)
    }

    pub(super) fn values_mut(&mut self) -> ValuesMut<'_, Lane, Queue> {
        self.lanes.values_mut()
    }

    /// Changes the lanes of a queue that have jobs which are held or being asked of the backend.
    pub(super) fn change_busy(&mut self, name: &str, change: impl Fn(&mut Queue)) {
        let Some((queue, scopes)) = self.busy.get_key_value(name) else {
            return;
        };
        for scope in scopes {
            let (scope, queue) = (*scope, queue.clone());
            if let Some(queue) = self.lanes.get_mut(&Lane { scope, queue }) {
                change(queue);
            }
        }
    }

    /// These lanes, over all scopes.
    pub(super) fn of_queue(&self, name: &str) -> impl Iterator<Item = &Queue> {
        let named = self.busy.get_key_value(name).into_iter();
        named.flat_map(|(queue, scopes)| {
            scopes.iter().filter_map(|scope| {
                self.lanes.get(&Lane {
                    scope: *scope,
                    queue: queue.clone(),
                })
            })
        })
    }

    /// Forgets the lanes that are not to `stay`; those of which something is held or asked for must.
    pub(super) fn retain(&mut self, stay: impl Fn(&Queue) -> bool) {
        self.lanes.retain(|_, queue| stay(queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lanes_of_a_queue_are_found_while_they_have_jobs() {
        let mut lanes = Lanes::default();
        let lane = |scope, queue: &str| Lane {
            scope,
            queue: Arc::from(queue),
        };
        let now = Instant::now();
        for (scope, queue) in [(1, "a"), (2, "a"), (1, "b"), (2, "a")] {
            lanes.open(&lane(scope, queue), now).known += 1;
            lanes.follow(&lane(scope, queue));
        }
        // Somebody makes up credentials.
        for scope in 3..9_000 {
            lanes.open(&lane(scope, "a"), now);
        }
        let known = |lanes: &Lanes, queue| {
            let mut known: Vec<usize> = lanes.of_queue(queue).map(|queue| queue.known).collect();
            known.sort_unstable();
            known
        };
        assert_eq!(known(&lanes, "a"), [1, 2]);
        assert!(known(&lanes, "c").is_empty());
        lanes.open(&lane(1, "a"), now).known = 0;
        lanes.follow(&lane(1, "a"));
        assert_eq!((known(&lanes, "a"), known(&lanes, "b")), (vec![2], vec![1]));
        lanes.open(&lane(1, "b"), now).known = 0;
        lanes.follow(&lane(1, "b"));
        assert!(known(&lanes, "b").is_empty());
        lanes.retain(Queue::is_busy);
        assert_eq!((lanes.len(), lanes.busy.len()), (1, 1));
    }
}
