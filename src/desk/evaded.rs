//! What was seen of limits that are evaded.

use parking_lot::Mutex;

use crate::told::causes::Cause;

/// Which limits are evaded, as far as was seen.
#[derive(Default, Debug)]
pub(crate) struct Evaded {
    /// By workers that get jobs from the backend itself.
    pub(crate) workers: Mutex<Option<Cause>>,
    /// By siblings whose files set other limits.
    pub(crate) files: Mutex<Option<Cause>>,
    /// By a slip in the name of a queue.
    pub(crate) slips: Mutex<Vec<Cause>>,
}

impl Evaded {
    /// All of it, as causes.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let (workers, files) = (self.workers.lock().clone(), self.files.lock().clone());
        let one_each = workers.into_iter().chain(files);
        one_each.chain(self.slips.lock().clone()).collect()
    }
}
