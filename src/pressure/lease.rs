//! Places that the store gives to a fleet's sidecars: who wants some, and what became of them. See
//! [`super::share`].

use std::sync::Arc;

use super::share::{Ended, Lease, Leased};
use super::{Looking, Now, Pressure, State};

impl Pressure {
    /// Has the store asked for places, if that is not on its way; ends for each queue with its answer.
    pub(super) fn lease(&self, state: &mut State, queues: Vec<Arc<str>>) -> Vec<Looking> {
        let State {
            queues: known,
            wanted,
            ..
        } = state;
        let waiting = queues.into_iter().filter_map(|name| {
            let queue = known.get_mut(&name)?;
            if !std::mem::replace(&mut queue.estimate.part.asking, true) {
                wanted.push(Arc::clone(&name));
                self.leases.notify_one();
            }
            Some(Looking {
                done: Arc::clone(&queue.done).notified_owned(),
                begin: false,
                queue: name,
            })
        });
        waiting.collect()
    }

    /// Ends when places are wanted, or some were given.
    pub async fn lease_news(&self) {
        self.leases.notified().await;
    }

    /// The queues for which places are wanted, and how many; `others` sidecars live. Each must be answered
    /// by [`Pressure::leased`].
    pub fn take_leases(&self, others: u64) -> Vec<(Arc<str>, Lease)> {
        let mut state = self.state.lock();
        let wanted = std::mem::take(&mut state.wanted);
        let mut leases = Vec::with_capacity(wanted.len());
        for name in wanted {
            let Some(queue) = state.queues.get_mut(&name) else {
                continue;
            };
            match queue.lease((self.held)(&name), others) {
                Some(lease) => leases.push((name, lease)),
                // Only what passes here is known by now: nobody has to wait for the store.
                None => {
                    queue.estimate.part.asking = false;
                    queue.done.notify_waiters();
                }
            }
        }
        leases
    }

    /// The store answered, in this period: who waits may ask again.
    pub fn leased(self: &Arc<Self>, name: &str, leased: Leased, period: u64, now: Now) {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.get_mut(name) else {
            return;
        };
        if !queue.estimate.part.leased(leased, period) {
            queue.estimate.doubt_all();
        }
        queue.done.notify_waiters();
        state.sharing.insert(Arc::from(name));
        self.serve(&mut state, now);
        self.leases.notify_one();
    }

    /// Whether places of the store are at hand or in use.
    pub fn is_sharing(&self) -> bool {
        !self.state.lock().sharing.is_empty()
    }

    /// What the store is to be told in `period`: of each queue how many places are not open any more, with
    /// the periods in which they were given. `idle`: of all queues, those with places that nobody used for
    /// a while among them; else only of those that are near their bound.
    pub fn take_ended(&self, period: u64, idle: bool) -> Vec<(Arc<str>, Ended)> {
        let mut state = self.state.lock();
        let names: Vec<Arc<str>> = state.sharing.iter().cloned().collect();
        let mut told = Vec::new();
        for name in names {
            let Some(queue) = state.queues.get_mut(&name) else {
                state.sharing.remove(&name);
                continue;
            };
            let part = &mut queue.estimate.part;
            if !idle && !part.near {
                continue;
            }
            let any = !idle || part.tidy();
            let ended = part.take_ended(period);
            if !any {
                state.sharing.remove(&name);
            }
            if !ended.is_empty() {
                told.push((name, ended));
            }
        }
        told
    }

    /// The same of one queue that is about to be looked at.
    pub fn take_ended_of(&self, name: &str, period: u64) -> Ended {
        self.with(name, |queue| queue.estimate.part.take_ended(period))
            .unwrap_or_default()
    }

    /// From now on only what passes here is known.
    pub fn alone(self: &Arc<Self>, now: Now) {
        let mut state = self.state.lock();
        state.wanted.clear();
        for queue in state.queues.values_mut() {
            queue.estimate.alone();
            queue.estimate.part.asking = false;
            queue.done.notify_waiters();
        }
        self.serve(&mut state, now);
    }
}
