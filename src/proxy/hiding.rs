//! Held jobs that go out nowhere, because a call that may end them is under way: a cancel, a delete, an ACK or a
//! nack, through us or through a sibling. Where there are several through us, a job goes out again when the last has
//! failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::Sidecar;
use crate::store::{Change, LedgerExt};

/// How long a sibling may look, after its last call, how that ended.
const LOOKS: Duration = Duration::from_secs(10);

/// The jobs that are hidden.
#[derive(Default, Debug)]
pub(super) struct Hidden {
    /// By calls through us, whoever holds them.
    here: HashMap<Arc<str>, Calls>,
    /// Since when jobs of ours are, by a sibling's call.
    elsewhere: HashMap<Arc<str>, Instant>,
}

/// The calls through us that hide one job.
#[derive(Default, Debug)]
struct Calls {
    count: usize,
    /// Whether they hid its row.
    row: bool,
}

/// A call through us that hides a held job, from when it comes until this is dropped.
pub(super) struct Hiding {
    sidecar: Arc<Sidecar>,
    job: Arc<str>,
}

impl Hiding {
    fn begin(sidecar: &Arc<Sidecar>, job: &Arc<str>) -> Hiding {
        let mut hidden = hidden(sidecar);
        hidden.here.entry(job.clone()).or_default().count += 1;
        Hiding {
            sidecar: Arc::clone(sidecar),
            job: job.clone(),
        }
    }

    /// Hides its row. `false`: it has none that is held, or one that a sibling's call hides.
    pub(super) async fn hide_row(&self) -> bool {
        let done = set_row(&self.sidecar, hidden_row(&self.job)).await;
        let mut hidden = hidden(&self.sidecar);
        hidden.here.get_mut(&self.job).is_some_and(|calls| {
            calls.row |= done;
            calls.row
        })
    }

    /// Its call came to nothing: the job may go out again, unless another call hides it.
    pub(super) async fn show(self) {
        let is_last = {
            let mut hidden = hidden(&self.sidecar);
            let Hidden { here, elsewhere } = &mut *hidden;
            let calls = here.get_mut(&self.job);
            let last = calls.filter(|calls| calls.count == 1);
            last.is_some_and(|calls| {
                // Where we hid the row, what was read there of a sibling's call was ours.
                let ours = std::mem::take(&mut calls.row);
                ours && elsewhere.remove(&self.job).is_some() || !elsewhere.contains_key(&self.job)
            })
        };
        if is_last {
            set_row(&self.sidecar, shown_row(&self.job)).await;
        }
    }
}

impl Drop for Hiding {
    fn drop(&mut self) {
        let mut hidden = hidden(&self.sidecar);
        if let Some(calls) = hidden.here.get_mut(&self.job) {
            calls.count -= 1;
            if calls.count == 0 {
                hidden.here.remove(&self.job);
            }
        }
        show_unless(&self.sidecar, &hidden, &self.job);
    }
}

/// Locked before the hold, never after.
fn hidden(sidecar: &Sidecar) -> MutexGuard<'_, Hidden> {
    sidecar.settle.hidden.lock()
}

fn show_unless(sidecar: &Sidecar, hidden: &Hidden, job: &str) {
    if !hidden.here.contains_key(job) && !hidden.elsewhere.contains_key(job) {
        sidecar.hold.show(job);
    }
}

/// Keeps a held job from going out, whoever holds it. `None`: nobody does.
pub(super) async fn hide(sidecar: &Arc<Sidecar>, job: &Arc<str>) -> Option<Hiding> {
    // First, so that no call that ends meanwhile shows it.
    let hiding = Hiding::begin(sidecar, job);
    let here = sidecar.hold.hide(job);
    (hiding.hide_row().await || here).then_some(hiding)
}

/// As [`hide`], if it is held here. Its row stays as it is.
pub(super) fn hide_here(sidecar: &Arc<Sidecar>, job: &Arc<str>) -> Option<Hiding> {
    // Mostly it is not.
    if !sidecar.hold.has(job) {
        return None;
    }
    let hiding = Hiding::begin(sidecar, job);
    sidecar.hold.hide(job).then_some(hiding)
}

/// Hides the row of a held job.
fn hidden_row(job: &Arc<str>) -> Change {
    let (job, hidden) = (job.clone(), true);
    Change::Hidden { job, hidden }
}

/// Shows the row of a held job again.
fn shown_row(job: &Arc<str>) -> Change {
    let (job, hidden) = (job.clone(), false);
    Change::Hidden { job, hidden }
}

async fn set_row(sidecar: &Sidecar, change: Change) -> bool {
    sidecar.store.is_shared() && matches!(sidecar.store.set(change).await, Ok(true))
}

/// A sibling's call hides a job of ours.
pub(super) fn hide_for_another(sidecar: &Sidecar, job: &Arc<str>) {
    let mut hidden = hidden(sidecar);
    if sidecar.hold.hide(job) {
        let since = hidden.elsewhere.entry(job.clone());
        since.or_insert_with(Instant::now);
    }
}

/// No sibling's call hides it any more. The next time that one does has a time of its own.
pub(super) fn show_for_another(sidecar: &Sidecar, job: &str) {
    let mut hidden = hidden(sidecar);
    hidden.elsewhere.remove(job);
    show_unless(sidecar, &hidden, job);
}

/// Shows what a sibling hid so long ago that it must be gone: its call would have ended, even an ACK that
/// was tried again and again.
pub(super) async fn show_forgotten(sidecar: &Sidecar) {
    let patience = {
        let settings = &sidecar.live().settings;
        settings.settle.retry_for + settings.upstream.timeout + LOOKS
    };
    let forgotten: Vec<Arc<str>> = {
        let mut hidden = hidden(sidecar);
        let elsewhere = &mut hidden.elsewhere;
        let old = elsewhere.extract_if(|_, since| since.elapsed() >= patience);
        old.map(|(job, _)| job).collect()
    };
    for job in forgotten {
        let hides = hidden(sidecar).here.contains_key(&job);
        if sidecar.hold.has(&job) && !hides {
            set_row(sidecar, shown_row(&job)).await;
        }
        show_for_another(sidecar, &job);
    }
}
