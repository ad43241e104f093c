//! What was seen of limits that are evaded.

use parking_lot::Mutex;

use super::causes::Cause;

/// Which limits are evaded, as far as was seen.
#[derive(Default, Debug)]
pub(crate) struct Evaded {
    /// By workers that get jobs from the backend itself.
    pub(crate) workers: Mutex<Option<Cause>>,
    /// By a slip in the name of a queue.
    pub(crate) slips: Mutex<Vec<Cause>>,
}

impl Evaded {
    /// All of it, as causes.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let workers = self.workers.lock().clone();
        workers
            .into_iter()
            .chain(self.slips.lock().clone())
            .collect()
    }
}
