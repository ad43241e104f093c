//! What lies where in the subqueues of a queue, for those who only look. The backend is asked nothing for it.

use std::collections::BTreeSet;

use serde::Serialize;

/// In so many seconds each subqueue is asked for its jobs, where workers poll.
const SWEPT_IN: u64 = 13;

/// A subqueue in which jobs wait, or of which jobs are held.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ShownSubqueue {
    /// Its name at the backend.
    pub name: String,
    /// How many jobs wait there for a start, and how many for a time.
    pub waiting: u64,
    pub(super) later: u64,
    /// How many jobs that were claimed from there are held here.
    pub(super) held: usize,
    /// Whether jobs of several flows are held, or came since nothing waited; `None`: of some of those that wait nobody
    /// here was told.
    pub shared: Option<bool>,
    /// Whether jobs that may be of other flows wait behind held ones that have no room, and are not looked for.
    pub out_of_reach: bool,
    /// The keys that have no room for jobs that are held.
    pub(super) shut: BTreeSet<String>,
    /// How many seconds ago the backend told its numbers.
    pub told_s: Option<u64>,
    /// For how many seconds jobs wait there of which none was claimed.
    pub(super) unclaimed_s: Option<u64>,
}

/// The subqueues of a queue, in numbers.
#[derive(Default, Debug, Serialize)]
pub struct SpreadOfQueue {
    /// In how many of them jobs wait.
    pub with_jobs: usize,
    /// How many of them are known to be [shared](ShownSubqueue::shared).
    pub shared: usize,
    /// In how many of them jobs are [out of reach](ShownSubqueue::out_of_reach).
    pub out_of_reach: usize,
    /// In how many of them jobs wait that nobody claims, although none is held.
    pub unclaimed: usize,
}

impl SpreadOfQueue {
    /// Those of these subqueues.
    pub fn of(shown: &[ShownSubqueue]) -> SpreadOfQueue {
        let count = |is: fn(&ShownSubqueue) -> bool| shown.iter().filter(|one| is(one)).count();
        SpreadOfQueue {
            with_jobs: count(|one| one.waiting + one.later > 0),
            shared: count(|one| one.shared == Some(true)),
            out_of_reach: count(|one| one.out_of_reach),
            unclaimed: count(|one| one.held == 0 && one.unclaimed_s >= Some(SWEPT_IN)),
        }
    }
}
