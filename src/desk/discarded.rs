//! Jobs that were discarded because there was no room for them, and how much the log says of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Of each there is one line in so long.
const MINUTE: Duration = Duration::from_secs(60);
/// The most names that have lines of their own.
const MOST: usize = 1_000;

/// By what had no room, such as `_queue:NAME`: when a line said so, and how many jobs have gone since.
#[derive(Default, Debug)]
pub(crate) struct Discarded(Mutex<HashMap<Arc<str>, (Instant, u64)>>);

impl Discarded {
    /// Counts a job. Returns how many have gone since the last line, where another is due.
    pub(crate) fn count(&self, of: &str) -> Option<u64> {
        let mut all = self.0.lock();
        if let Some((said, jobs)) = all.get_mut(of) {
            *jobs += 1;
            let is_due = said.elapsed() >= MINUTE;
            return is_due.then(|| {
                *said = Instant::now();
                std::mem::take(jobs)
            });
        }
        if all.len() >= MOST {
            all.retain(|_, (said, _)| said.elapsed() < MINUTE);
        }
        (all.len() < MOST).then(|| {
            all.insert(Arc::from(of), (Instant::now(), 0));
            1
        })
    }
}
