//! Producers that wait for room (backpressure text, 5.2): first come, first served.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

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
    give: Option<oneshot::Sender<Places>>,
}

impl Waiter {
    /// Hands over its places, or gives them back: it has gone.
    pub(super) fn give(&mut self, places: Places) -> Result<(), Places> {
        match self.give.take() {
            Some(give) => give.send(places),
            None => Err(places),
        }
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
        let (give, places) = oneshot::channel();
        self.waiters.push_back(Waiter {
            number: self.last,
            wants,
            give: Some(give),
        });
        Some(Turn {
            pressure,
            number: self.last,
            places,
        })
    }

    /// Whether anybody waits for room of the queue.
    pub(super) fn is_for(&self, queue: &str) -> bool {
        let mut wants = self.waiters.iter().flat_map(|waiter| &waiter.wants);
        wants.any(|want| &*want.queue == queue)
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
    places: oneshot::Receiver<Places>,
}

impl Turn {
    /// The places, when it is its turn.
    pub async fn come(&mut self) -> Option<Places> {
        (&mut self.places).await.ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pressure.state().line.leave(self.number);
    }
}
