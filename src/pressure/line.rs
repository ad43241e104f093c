//! Producers that wait for room (backpressure text, 5.2): first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::want::tried_to_drop;
use super::{Places, Pressure, Want};

/// Those who wait, in the order in which they came.
#[derive(Default, Debug)]
pub(super) struct Line {
    waiters: VecDeque<Waiter>,
    last: u64,
}

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    number: u64,
    pub(super) wants: Vec<Want>,
    /// `None`: it is dropping a job.
    tell: Option<oneshot::Sender<Come>>,
}

/// What one who waits is told.
#[derive(Debug)]
pub enum Come {
    /// Its turn: these are its places.
    Places(Places),
    /// It would be its turn if a job of this queue went. It says with [`Turn::dropped`] what became of that.
    Drop(Arc<str>),
}

impl Waiter {
    /// Whether it can be told anything now.
    pub(super) fn hears(&self) -> bool {
        self.tell.is_some()
    }

    /// Hands over its places, or gives them back: it has gone.
    pub(super) fn give(&mut self, places: Places) -> Result<(), Places> {
        let Some(tell) = self.tell.take() else {
            return Err(places);
        };
        match tell.send(Come::Places(places)) {
            Err(Come::Places(places)) => Err(places),
            _ => Ok(()),
        }
    }

    /// Has it drop a job. It keeps its place in the line.
    pub(super) fn drop_first(&mut self, queue: Arc<str>) {
        if let Some(tell) = self.tell.take() {
            // If it has gone it leaves the line.
            let _gone = tell.send(Come::Drop(queue));
        }
    }
}

/// What those who wait want: who comes later fits beside it or not at all.
#[derive(Default, Debug)]
pub(super) struct Ahead {
    queues: HashMap<Arc<str>, Before>,
    /// How many jobs of each tenant, over all queues.
    tenants: HashMap<Arc<str>, u64>,
}

/// The same of one queue.
#[derive(Default, Debug)]
pub(super) struct Before {
    pub(super) jobs: u64,
    pub(super) bytes: u64,
    keys: HashMap<Arc<str>, u64>,
}

impl Before {
    /// How many jobs of the key.
    pub(super) fn of_key(&self, key: &str) -> u64 {
        self.keys.get(key).copied().unwrap_or(0)
    }
}

impl Ahead {
    /// One more waits.
    pub(super) fn add(&mut self, wants: &[Want]) {
        for want in wants {
            let before = match self.queues.get_mut(&want.queue) {
                Some(before) => before,
                None => self.queues.entry(Arc::clone(&want.queue)).or_default(),
            };
            before.jobs += want.jobs;
            before.bytes += want.bytes();
            for key in &want.keys {
                *before.keys.entry(Arc::clone(key)).or_default() += 1;
            }
            for tenant in &want.tenants {
                *self.tenants.entry(Arc::clone(tenant)).or_default() += 1;
            }
        }
    }

    /// What they want of a queue.
    pub(super) fn of(&self, queue: &str) -> Option<&Before> {
        self.queues.get(queue)
    }

    /// How many jobs of the tenant.
    pub(super) fn of_tenant(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).copied().unwrap_or(0)
    }
}

impl Line {
    pub(super) fn stand(
        &mut self,
        pressure: Arc<Pressure>,
        wants: Vec<Want>,
        most: usize,
    ) -> Option<Turn> {
        if self.waiters.len() >= most {
            return None;
        }
        self.last += 1;
        let (tell, told) = oneshot::channel();
        self.waiters.push_back(Waiter {
            number: self.last,
            wants,
            tell: Some(tell),
        });
        Some(Turn {
            pressure,
            number: self.last,
            told,
        })
    }

    /// It is known what became of the job that one who waits was to drop: it hears by `tell` how that goes on.
    fn dropped(&mut self, number: u64, queue: &str, gone: u64, tell: oneshot::Sender<Come>) {
        let mut waiters = self.waiters.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.number == number) {
            tried_to_drop(&mut waiter.wants, queue, gone);
            waiter.tell = Some(tell);
        }
    }

    /// What all of them want.
    pub(super) fn ahead(&self) -> Ahead {
        let mut ahead = Ahead::default();
        (self.waiters.iter()).for_each(|waiter| ahead.add(&waiter.wants));
        ahead
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Keeps those for whom `stays` says so.
    pub(super) fn retain(&mut self, stays: impl FnMut(&mut Waiter) -> bool) {
        self.waiters.retain_mut(stays);
    }

    fn leave(&mut self, number: u64) {
        self.waiters.retain(|waiter| waiter.number != number);
    }
}

/// A place in the line; left when dropped.
#[derive(Debug)]
pub struct Turn {
    pressure: Arc<Pressure>,
    number: u64,
    told: oneshot::Receiver<Come>,
}

impl Turn {
    /// What it is told, when it is its turn.
    pub async fn come(&mut self) -> Option<Come> {
        (&mut self.told).await.ok()
    }

    /// So many jobs of a queue went for it; it waits on.
    pub fn dropped(&mut self, queue: &str, gone: u64) {
        let (tell, told) = oneshot::channel();
        self.told = told;
        let mut state = self.pressure.state.lock();
        state.line.dropped(self.number, queue, gone, tell);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pressure.state.lock().line.leave(self.number);
    }
}
