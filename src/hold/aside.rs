//! Jobs that a sibling may have taken over while the store is lost. They stay known, out of every worker's
//! reach and without heartbeats, until the store can be asked again or their claims are over.

use std::cmp::Reverse;
use std::collections::VecDeque;

use tokio::time::Instant;

use super::state::{End, State, Whereabouts};
use super::{Held, Hold};
use crate::store::Claimed;

impl Hold {
    /// Sets the waiting jobs aside of which `may_be_elsewhere` says so, and lets the others that were set aside wait
    /// again, in the order in which they were claimed. Says how many were set aside by this.
    pub fn set_aside(&self, may_be_elsewhere: impl Fn(&Claimed) -> bool) -> usize {
        let mut state = self.state();
        state.bring_back(|held| !may_be_elsewhere(&held.claimed));
        let mut gone: Vec<Held> = Vec::new();
        let queues = state.queues.values_mut();
        for group in queues.flat_map(|queue| queue.all_groups_mut()) {
            let is = |held: &Held| may_be_elsewhere(&held.claimed);
            if group.jobs.iter().any(is) {
                let (aside, stay): (VecDeque<Held>, _) = group.jobs.drain(..).partition(is);
                group.jobs = stay;
                gone.extend(aside);
            }
        }
        let count = gone.len();
        for held in gone {
            if let Some(known) = state.jobs.get_mut(&held.claimed.job) {
                known.whereabouts = Whereabouts::Aside(Box::new(held));
            }
        }
        count
    }

    /// The jobs out of hand that were last proven to be ours before `then` are in doubt: see [`Held::doubt`].
    pub fn doubt_before(&self, then: Instant) {
        let mut state = self.state();
        let State { queues, jobs, .. } = &mut *state;
        let groups = queues.values_mut().flat_map(|queue| queue.all_groups_mut());
        let waiting = groups.flat_map(|group| group.jobs.iter_mut());
        let apart = (jobs.values_mut()).filter_map(|known| match &mut known.whereabouts {
            Whereabouts::Hidden(held) | Whereabouts::Aside(held) => Some(&mut **held),
            _ => None,
        });
        for held in waiting.chain(apart).filter(|held| held.proven < then) {
            held.doubt();
        }
    }

    /// The jobs out of hand of which `is` says so whose claims can no longer be counted on.
    pub fn lapsed(&self, is: impl Fn(&Claimed) -> bool) -> Vec<Claimed> {
        let now = Instant::now();
        let state = self.state();
        let lapsed = (state.each()).filter(|held| held.deadline <= now && is(&held.claimed));
        lapsed.map(|held| held.claimed.clone()).collect()
    }
}

impl State {
    /// Jobs that were set aside wait again.
    fn bring_back(&mut self, is: impl Fn(&Held) -> bool) {
        let mut back: Vec<Held> = Vec::new();
        for known in self.jobs.values_mut() {
            if !matches!(&known.whereabouts, Whereabouts::Aside(held) if is(held)) {
                continue;
            }
            if let Whereabouts::Aside(held) =
                std::mem::replace(&mut known.whereabouts, Whereabouts::Waiting)
            {
                match known.hide {
                    true => known.whereabouts = Whereabouts::Hidden(held),
                    false => back.push(*held),
                }
            }
        }
        // Each goes to the front of its group.
        back.sort_by_key(|held| Reverse(held.claimed.generation));
        for held in back {
            let lane = held.lane();
            self.place(held, End::Front);
            if let Some(queue) = self.queues.get_mut(&lane) {
                queue.line.wake();
            }
        }
    }
}
