//! How many jobs a lane may hold: the dynamic threshold of packet buffers (Choudhury and Hahne, 1998).
//!
//! A lane may hold three times as many jobs as there are places free, so a backlog takes three quarters of the hold at
//! most. Backlogs that never start could still fill the rest one after the other, so a lane of which less than [`FEW`]
//! jobs are held gets a place all the same, while a hold and a quarter are not full. Where even such a lane finds none,
//! the claims of lanes that no worker asks for are not kept any longer.

use super::state::HoldState;

/// A lane may hold so many times what is free.
const TIMES_FREE: usize = 3;
/// A lane of which fewer jobs are held gets another place though its threshold is reached.
pub(super) const FEW: usize = 2;
/// One part of these is kept beside the hold for such lanes.
const PARTS: usize = 4;

/// How far the hold lets FETCH claim past limited jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookahead {
    /// This many jobs.
    Free(usize),
    /// Nothing until a claim that is on its way has been answered, or a job that is being dropped is gone.
    Soon,
    /// Nothing until a held job leaves.
    Full,
}

/// Jobs and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// How many jobs.
    pub jobs: usize,
    /// How many bytes they have.
    pub bytes: usize,
}

impl Amount {
    /// With what is kept beside it.
    fn and_kept(self) -> Amount {
        Amount {
            jobs: self.jobs + (self.jobs / PARTS).max(1),
            bytes: self.bytes + self.bytes / PARTS,
        }
    }
}

/// What is held in all.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Filled {
    pub(super) jobs: usize,
    pub(super) bytes: usize,
    /// Those of the jobs that were claimed from subqueues.
    pub(super) heads: usize,
}

impl Filled {
    /// How many places more a lane may take that has `own` of them, when so many `come` for all lanes: all that it has
    /// is then at most three times what is left.
    pub(super) fn share(self, most: Amount, come: usize, own: usize) -> usize {
        let free = self.free(most).saturating_sub(come);
        let share = (TIMES_FREE * free).saturating_sub(own) / (TIMES_FREE + 1);
        let gets_one = own < FEW && self.free(most.and_kept()) > come;
        share.max(usize::from(gets_one))
    }

    /// Whether a lane that has `own` places may take no more.
    pub(super) fn is_full_with(self, most: Amount, own: usize) -> bool {
        own > 0 && self.share(most, 0, own) == 0
    }

    /// How many jobs fit beside those that are held, which are taken to be as large.
    fn free(self, most: Amount) -> usize {
        let left = most.bytes.saturating_sub(self.bytes);
        let fit = match (self.bytes, left) {
            (0, _) => most.jobs,
            (_, 0) => 0,
            (bytes, left) => (left.saturating_mul(self.jobs) / bytes).max(1),
        };
        // Heads of subqueues have places beside these: shut ones would take them from what is free.
        let held = self.jobs.saturating_sub(self.heads);
        most.jobs.saturating_sub(held).min(fit)
    }
}

impl HoldState {
    pub(super) fn filled(&self) -> Filled {
        Filled {
            jobs: self.jobs.len(),
            bytes: self.bytes,
            heads: self.heads,
        }
    }
}
