//! The claims that are under way, for those who wait for them. Of a limited queue there is one at a time for each scope:
//! FETCHes that come meanwhile wait for it, and the next one asks for what all of them miss, 256 jobs at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::desk::micros;
use crate::hold::Lane;
use crate::wire::tick;
use crate::wire::upstream::{Reply, UpstreamError};

/// How long others wait for a claim that is under way: then it may hang, and they make one of their own.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long waiting FETCHes of a queue let pass before the backend is asked again for all of them.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How a claim ended.
#[derive(Clone, Debug)]
pub(crate) enum ClaimEnd {
    /// Its jobs are held; `short`: the queue has no more.
    Jobs { short: bool },
    /// The backend said something else; it is passed on as it is.
    Other(Reply),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// A claim that is under way, for those who wait for it.
#[derive(Clone, Debug)]
pub(crate) struct ClaimTask {
    pub(crate) ends: watch::Receiver<Option<ClaimEnd>>,
    /// Of which of the backend's queues it is.
    pub(crate) of: ClaimOf,
}

/// Which queues of the backend are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimOf {
    /// Those that the FETCH names.
    Queues,
    /// Subqueues of one that it names.
    Subqueues,
}

impl ClaimTask {
    /// How it ended.
    pub(crate) async fn end(&mut self) -> ClaimEnd {
        let end = self.ends.wait_for(Option::is_some).await;
        let end = end.ok().and_then(|end| end.clone());
        // Only a panic in there could lose it, and would have been logged.
        end.unwrap_or(ClaimEnd::Jobs { short: true })
    }
}

/// The claims of limited queues that are under way.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    lanes: Mutex<HashMap<Lane, LaneClaims>>,
    /// How long the backend took to answer the last one, in microseconds.
    took: AtomicU64,
}

#[derive(Default, Debug)]
struct LaneClaims {
    /// The latest claim, and when it was made.
    running: Option<(ClaimTask, Instant)>,
    /// Jobs that FETCHes wait for.
    missed: usize,
}

impl Claims {
    /// The claim of a lane that is under way.
    pub(crate) fn running(&self, lane: &Lane) -> Option<ClaimTask> {
        let lanes = self.lanes.lock();
        let (task, begun) = lanes.get(lane)?.running.as_ref()?;
        (tick::now().saturating_duration_since(*begun) < PATIENCE).then(|| task.clone())
    }

    /// Whether the backend took longer than that to answer the last claim.
    pub(crate) fn took_longer(&self, than: Duration) -> bool {
        self.took.load(Ordering::Relaxed) > micros(than)
    }

    /// How many jobs of a lane FETCHes wait for.
    pub(crate) fn missed(&self, lane: &Lane) -> usize {
        self.lanes.lock().get(lane).map_or(0, |of| of.missed)
    }

    pub(crate) fn begin(&self, lane: &Lane, task: &ClaimTask, now: Instant) {
        self.change(lane, |of| of.running = Some((task.clone(), now)));
    }

    pub(crate) fn end(&self, lane: &Lane, begun: Instant) {
        let took = tick::now().saturating_duration_since(begun);
        self.took.store(micros(took), Ordering::Relaxed);
        self.change(lane, |of| {
            // Another one may have been made meanwhile.
            let is_it = |(_, at): &(ClaimTask, Instant)| *at == begun;
            if of.running.as_ref().is_some_and(is_it) {
                of.running = None;
            }
        });
    }

    fn change(&self, lane: &Lane, change: impl FnOnce(&mut LaneClaims)) {
        let mut lanes = self.lanes.lock();
        let of = lanes.entry_ref(lane).or_default();
        change(of);
        if of.running.is_none() && of.missed == 0 {
            lanes.remove(lane);
        }
    }
}

/// A FETCH misses so many jobs of a lane, until this is dropped.
pub(crate) struct Missing {
    claims: Arc<Claims>,
    lane: Lane,
    jobs: usize,
}

impl Missing {
    pub(crate) fn new(claims: &Arc<Claims>, lane: &Lane, jobs: usize) -> Missing {
        claims.change(lane, |of| of.missed += jobs);
        Missing {
            claims: Arc::clone(claims),
            lane: lane.clone(),
            jobs,
        }
    }

    /// Whether they are of this lane.
    pub(crate) fn is_of(&self, lane: &Lane) -> bool {
        self.lane == *lane
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        self.claims.change(&self.lane, |of| {
            of.missed = of.missed.saturating_sub(self.jobs)
        });
    }
}
