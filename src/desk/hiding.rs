//! Held jobs that go out nowhere, because a call that may end them is under way through us: a cancel, a delete, an ACK
//! or a nack. Where there are several, a job goes out again when the last is over and the job is still held.

use std::collections::HashMap;
use std::sync::Arc;

use super::Sidecar;

/// How many calls hide each job. Locked before the hold, never after.
pub(super) type Hidden = HashMap<Arc<str>, usize>;

/// A call that hides a held job, until this is dropped.
pub(crate) struct Hiding {
    sidecar: Arc<Sidecar>,
    job: Arc<str>,
}

impl Drop for Hiding {
    fn drop(&mut self) {
        let mut hidden = self.sidecar.settle.hidden.lock();
        if let Some(calls) = hidden.get_mut(&self.job) {
            *calls -= 1;
            if *calls == 0 {
                hidden.remove(&self.job);
                self.sidecar.hold.show(&self.job);
            }
        }
    }
}

/// Keeps a job that is held here from going out. `None`: it is not.
pub(crate) fn hide(sidecar: &Arc<Sidecar>, job: &Arc<str>) -> Option<Hiding> {
    // Mostly it is not.
    if !sidecar.hold.has(job) {
        return None;
    }
    let mut hidden = sidecar.settle.hidden.lock();
    *hidden.entry(job.clone()).or_default() += 1;
    drop(hidden);
    // First counted, so that no call that ends meanwhile shows it.
    let hiding = Hiding {
        sidecar: Arc::clone(sidecar),
        job: job.clone(),
    };
    sidecar.hold.hide(job).then_some(hiding)
}
