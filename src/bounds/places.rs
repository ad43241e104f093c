//! Places in bounded queues, from when they are taken until the backend has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::seen::{EnqueueOutcome, NewJob};
use super::state::TakenPlaces;
use super::want::{Level, Now, Want};

impl TakenPlaces {
    /// The enqueue that fitted.
    pub fn wants(&self) -> impl Iterator<Item = &Want> {
        self.wants.iter()
    }

    /// Notes that the enqueue is sent on: from now on its jobs may be stored.
    pub fn sending(&mut self) {
        self.sent = true;
    }

    /// Whether the ids of the jobs are wanted when they are settled.
    pub fn wants_ids(&self) -> bool {
        self.wants.iter().any(|want| want.bounds.tells_apart())
    }

    /// Settles them. `jobs`: those that were stored, in the order in which they were sent. Says where each queue stands
    /// now.
    pub fn settle(mut self, outcome: EnqueueOutcome, jobs: &[NewJob]) -> Vec<(Arc<str>, Level)> {
        let mut levels = Vec::with_capacity(self.wants.len());
        self.end(outcome, jobs, &mut levels);
        levels
    }

    fn end(
        &mut self,
        outcome: EnqueueOutcome,
        jobs: &[NewJob],
        levels: &mut Vec<(Arc<str>, Level)>,
    ) {
        let wants = std::mem::take(&mut self.wants);
        if wants.is_empty() {
            return;
        }
        let mut by_queue: HashMap<&str, Vec<&NewJob>> = HashMap::new();
        for job in jobs {
            by_queue.entry(&job.queue).or_default().push(job);
        }
        if jobs.iter().any(|job| job.due.is_some()) {
            self.pressure.any_later.store(true, Ordering::Relaxed);
        }
        let (mark, now) = (self.pressure.mark(), Instant::now());
        let mut state = self.pressure.state.lock();
        if outcome == EnqueueOutcome::Refused {
            state.refused(&wants, self.now.stamp);
            let now = Now {
                at: now,
                ..self.now
            };
            self.pressure.serve(&mut state, now);
        }
        for want in wants {
            let Some(queue) = state.queues.get_mut(&want.queue) else {
                continue;
            };
            if outcome == EnqueueOutcome::Stored {
                let own = by_queue.remove(&*want.queue).unwrap_or_default();
                queue.stored(&want, &own, mark);
            }
            let level = self.pressure.level_of(queue, &want.queue);
            levels.extend(level.map(|level| (want.queue, level)));
        }
    }
}

impl Drop for TakenPlaces {
    fn drop(&mut self) {
        let outcome = match self.sent {
            true => EnqueueOutcome::Stored,
            false => EnqueueOutcome::Refused,
        };
        self.end(outcome, &[], &mut Vec::new());
    }
}
