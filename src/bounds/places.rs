//! Places in bounded queues, from when they are taken until the backend has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::seen::{EnqueueOutcome, NewJob};
use super::state::TakenPlaces;
use super::want::{Level, Now};

impl TakenPlaces {
    /// Notes that the enqueue is sent on: from now on its jobs may be stored.
    pub fn sending(&mut self) {
        self.if_dropped = EnqueueOutcome::Stored;
    }

    /// Whether the ids of the jobs are wanted when they are settled.
    pub fn wants_ids(&self) -> bool {
        self.wants.iter().any(|want| want.bounds.tells_apart())
    }

    /// Settles them. `jobs`: those that were stored, in the order in which they were sent. Says where each queue stands
    /// now.
    pub fn settle(&mut self, outcome: EnqueueOutcome, jobs: &[NewJob]) -> Vec<(Arc<str>, Level)> {
        let wants = std::mem::take(&mut self.wants);
        if wants.is_empty() {
            return Vec::new();
        }
        let mut by_queue: HashMap<&str, Vec<&NewJob>> = HashMap::new();
        for job in jobs {
            by_queue.entry(&job.queue).or_default().push(job);
        }
        if jobs.iter().any(|job| job.due.is_some()) {
            self.pressure.any_later.store(true, Ordering::Relaxed);
        }
        let mark = self.pressure.mark();
        let now = Now {
            at: Instant::now(),
            ..self.now
        };
        let mut state = self.pressure.state.lock();
        for want in &wants {
            let Some(queue) = state.queues.get_mut(&want.queue) else {
                continue;
            };
            if outcome == EnqueueOutcome::Stored {
                let own = by_queue.remove(&*want.queue).unwrap_or_default();
                queue.stored(want, &own, mark);
            } else {
                queue.refused(want, self.now.stamp);
                state.note_untold(&want.queue);
            }
        }
        if outcome == EnqueueOutcome::Refused {
            self.pressure.serve(&mut state, now);
        }
        let levels = wants.into_iter().filter_map(|want| {
            let queue = state.queues.get_mut(&want.queue)?;
            let level = self.pressure.level_of(queue, &want.queue)?;
            Some((want.queue, level))
        });
        levels.collect()
    }
}

impl Drop for TakenPlaces {
    fn drop(&mut self) {
        let _levels = self.settle(self.if_dropped, &[]);
    }
}
