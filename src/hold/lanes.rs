//! The lanes, and which of them are of one queue.

use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::ValuesMut;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::Lane;
use super::queue::Queue;

/// Lanes come by [`Lanes::open`] and go by [`Lanes::retain`] only.
#[derive(Default, Debug)]
pub(super) struct Lanes {
    lanes: HashMap<Lane, Queue>,
    /// Under which scopes there are lanes of a queue.
    scopes: HashMap<Arc<str>, SmallVec<[u64; 1]>>,
}

impl Deref for Lanes {
    type Target = HashMap<Lane, Queue>;

    fn deref(&self) -> &HashMap<Lane, Queue> {
        &self.lanes
    }
}

impl Lanes {
    /// The lane; it is there from now on.
    pub(super) fn open(&mut self, lane: &Lane, now: Instant) -> &mut Queue {
        let Lanes { lanes, scopes } = self;
        lanes.entry_ref(lane).or_insert_with(|| {
            let of_queue = scopes.entry(lane.queue.clone()).or_default();
            of_queue.push(lane.scope);
            Queue::new(&lane.queue, now)
        })
    }

    pub(super) fn get_mut(&mut self, lane: &Lane) -> Option<&mut Queue> {
        self.lanes.get_mut(lane)
    }

    pub(super) fn values_mut(&mut self) -> ValuesMut<'_, Lane, Queue> {
        self.lanes.values_mut()
    }

    /// The lanes of a queue, over all scopes.
    pub(super) fn of_queue(&self, name: &str) -> impl Iterator<Item = &Queue> {
        let named = self.scopes.get_key_value(name).into_iter();
        named.flat_map(|(queue, scopes)| {
            scopes.iter().filter_map(|scope| {
                self.lanes.get(&Lane {
                    scope: *scope,
                    queue: queue.clone(),
                })
            })
        })
    }

    /// Forgets the lanes that are not to `stay`.
    pub(super) fn retain(&mut self, stay: impl Fn(&Queue) -> bool) {
        let Lanes { lanes, scopes } = self;
        let before = lanes.len();
        lanes.retain(|_, queue| stay(queue));
        if lanes.len() == before {
            return;
        }
        scopes.retain(|queue, scopes| {
            scopes.retain(|scope| {
                lanes.contains_key(&Lane {
                    scope: *scope,
                    queue: queue.clone(),
                })
            });
            !scopes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lanes_of_a_queue_are_found_until_they_go() {
        let mut lanes = Lanes::default();
        let lane = |scope, queue: &str| Lane {
            scope,
            queue: Arc::from(queue),
        };
        let now = Instant::now();
        for (scope, queue) in [(1, "a"), (2, "a"), (1, "b"), (2, "a")] {
            lanes.open(&lane(scope, queue), now).known += 1;
        }
        let known = |lanes: &Lanes, queue| {
            let mut known: Vec<usize> = lanes.of_queue(queue).map(|queue| queue.known).collect();
            known.sort_unstable();
            known
        };
        assert_eq!(known(&lanes, "a"), [1, 2]);
        assert!(known(&lanes, "c").is_empty());
        lanes.retain(|queue| queue.known > 1);
        assert_eq!((known(&lanes, "a"), known(&lanes, "b")), (vec![2], vec![]));
        assert_eq!(lanes.scopes.len(), 1);
        lanes.open(&lane(1, "b"), now).known = 7;
        assert_eq!(known(&lanes, "b"), [7]);
    }
}
