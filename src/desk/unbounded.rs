//! Queues without bounds, which are warned of.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::BackendFacts;
use crate::answers::load::Seldom;
use crate::log::cut;

/// More queues without bounds than this are not warned of one by one.
const MOST_WARNED: usize = 1_000;
/// The most queues that one line names.
const NAMED: usize = 20;

/// Queues without bounds of their own: each is warned of once, for it can grow until the backend fails (backpressure
/// text, 6.3).
#[derive(Debug, Default)]
pub(crate) struct Unbounded {
    queues: Mutex<UnboundedQueues>,
    told: Seldom,
}

#[derive(Debug, Default)]
struct UnboundedQueues {
    known: HashSet<Arc<str>>,
    /// Those that were not warned of yet.
    new: Vec<Arc<str>>,
}

impl Unbounded {
    /// Notes a queue, to warn of it later. One that a probe left behind is nobody's.
    pub(crate) fn note(&self, queue: &str) {
        if queue.starts_with(BackendFacts::PROBED) {
            return;
        }
        let UnboundedQueues { known, new } = &mut *self.queues.lock();
        if !known.contains(queue) && known.len() < MOST_WARNED {
            let queue = Arc::<str>::from(queue);
            new.push(Arc::clone(&queue));
            known.insert(queue);
        }
    }

    /// Warns of those that were noted and are not bounded by now, in one line.
    pub(crate) fn tell(&self, is_bounded: impl Fn(&str) -> bool) {
        let mut new = std::mem::take(&mut self.queues.lock().new);
        new.retain(|queue| !is_bounded(queue));
        let more = if new.len() > NAMED { ", …" } else { "" };
        let shown: Vec<_> = new.iter().take(NAMED).map(|queue| cut(queue)).collect();
        if !shown.is_empty() {
            let queue = format!("{}{more}", shown.join(", "));
            tracing::warn!(
                id = %"no_bound",
                queue,
                "no bound: such a queue can grow until the backend fails"
            );
        }
    }

    /// Warns of them once a minute at most.
    pub(crate) fn tell_seldom(&self, is_bounded: impl Fn(&str) -> bool) {
        if !self.queues.lock().new.is_empty() && self.told.now() {
            self.tell(is_bounded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_looked_for_under_the_whole_name() {
        let (unbounded, long) = (Unbounded::default(), "q".repeat(300));
        unbounded.note(&long);
        unbounded.tell(|queue| {
            assert_eq!(queue, long);
            true
        });
    }
}
