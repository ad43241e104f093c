//! Jobs that a limit refused and whose policy says `drop`. They stay held, under their live claim and
//! out of every worker's reach, until the backend has ended them.

use super::queue::Queue;
use super::state::{State, Whereabouts};
use super::{Held, Hold};
use crate::store::Gen;

/// How far the end of a job has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doom {
    /// Nobody is at it.
    Due,
    /// The backend is being told.
    Ending,
}

impl Hold {
    /// A job in hand is to be ended instead of started, by the caller: it never goes out. `false`: it
    /// was replaced or forgotten meanwhile.
    pub fn doom(&self, held: Held) -> bool {
        let mut state = self.state();
        match state.jobs.get_mut(&held.claimed.job) {
            Some(known) if known.in_hand(&held) => {
                known.doom = Some(Doom::Ending);
                known.whereabouts = Whereabouts::Hidden(Box::new(held));
                true
            }
            _ => false,
        }
    }

    /// The waiting job of a queue that was claimed first, over all scopes, is to be ended instead of
    /// started, by the caller: it never goes out. Not one that `stays`.
    pub fn doom_oldest(&self, queue_name: &str, stays: impl Fn(&str) -> bool) -> Option<Held> {
        let mut state = self.state();
        let waiting = state.queues.of_queue(queue_name).flat_map(Queue::jobs);
        let oldest = waiting
            .filter(|held| !stays(&held.claimed.job))
            .min_by_key(|held| held.claimed.claimed_at)?;
        let job = oldest.claimed.job.clone();
        state.doom_waiting(&job)
    }

    /// The same for this job, if it waits here.
    pub fn doom_waiting(&self, job: &str) -> Option<Held> {
        self.state().doom_waiting(job)
    }

    /// The jobs whose end is due, for the caller to end.
    pub fn doomed(&self) -> Vec<Held> {
        let mut state = self.state();
        let due = state.jobs.values_mut().filter_map(|known| {
            let Whereabouts::Hidden(held) = &known.whereabouts else {
                return None;
            };
            (known.doom == Some(Doom::Due)).then(|| {
                known.doom = Some(Doom::Ending);
                held.as_ref().clone()
            })
        });
        due.collect()
    }

    /// This claim of a job could not be ended: it is due again.
    pub fn spared(&self, job: &str, generation: Gen) {
        let mut state = self.state();
        let known = state.jobs.get_mut(job);
        if let Some(known) = known.filter(|known| known.generation == generation) {
            known.doom = Some(Doom::Due);
        }
    }

    /// This claim of a job is over; those who wait for its place in the hold may ask again.
    pub fn ended(&self, job: &str, generation: Gen) {
        let mut state = self.state();
        state.forget_claim(job, generation);
        state.feed();
    }
}

impl State {
    /// Whether the job is to be ended.
    pub(super) fn is_doomed(&self, job: &str) -> bool {
        self.jobs.get(job).is_some_and(|known| known.doom.is_some())
    }

    /// Whether the backend is being told to end a job, which makes room in the hold soon.
    pub(super) fn is_dropping(&self) -> bool {
        let mut all = self.jobs.values();
        all.any(|known| known.doom == Some(Doom::Ending))
    }

    fn doom_waiting(&mut self, job: &str) -> Option<Held> {
        let (known, held) = self.take_out(job)?;
        known.doom = Some(Doom::Ending);
        known.whereabouts = Whereabouts::Hidden(Box::new(held.clone()));
        Some(held)
    }

    /// The backend handed a job out again while it was being ended: what was decided stands.
    pub(super) fn doom_again(&mut self, job: &str) {
        if let Some((known, held)) = self.take_out(job) {
            known.doom = Some(Doom::Due);
            known.whereabouts = Whereabouts::Hidden(Box::new(held));
        }
    }
}
