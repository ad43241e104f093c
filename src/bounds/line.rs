//! What producers want that wait for room in the line (backpressure text, 5.2): first come, first served.

use std::collections::HashMap;
use std::sync::Arc;

use super::want::{BoundGroup, BoundMet, Want};

/// The places that those in line want: who comes later must fit beside them.
#[derive(Default, Debug)]
pub(super) struct WantedAhead {
    queues: HashMap<Arc<str>, Before>,
    /// How many jobs of each group.
    groups: HashMap<BoundGroup, u64>,
}

/// The places that those in line want of one queue.
#[derive(Default, Debug)]
pub(super) struct Before {
    jobs: u64,
    bytes: u64,
}

impl Before {
    /// How much of this bound.
    pub(super) fn amount(&self, bound: BoundMet) -> u64 {
        match bound {
            BoundMet::Bytes => self.bytes,
            _ => self.jobs,
        }
    }
}

impl WantedAhead {
    /// One more waits for room.
    pub(super) fn add(&mut self, wants: &[Want]) {
        for want in wants {
            let before = self.queues.entry(Arc::clone(&want.queue)).or_default();
            before.jobs += want.jobs;
            before.bytes += want.bytes();
        }
        self.add_groups(wants);
    }

    /// One more waits until its groups have room.
    pub(super) fn add_groups(&mut self, wants: &[Want]) {
        for group in wants.iter().flat_map(Want::all_groups) {
            *self.groups.entry(group.clone()).or_default() += 1;
        }
    }

    /// What they want of a queue.
    pub(super) fn of(&self, queue: &str) -> Option<&Before> {
        self.queues.get(queue)
    }

    /// How many jobs of the group.
    pub(super) fn of_group(&self, group: &BoundGroup) -> u64 {
        self.groups.get(group).copied().unwrap_or(0)
    }
}
