//! One bounded queue: what is known of it.

pub(super) mod answer;
mod flow;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::Bounds;
use super::drain::Drain;
use super::edge::{LastRefusal, QueueEdges};
use super::estimate::{Estimate, HeldCount, LookState};
use super::fleet_depth::FleetDepth;
use super::groups::GroupCounts;
use super::hidden::LaterJobs;
use super::known::KnownJobs;
use super::sizes::Bytes;
use super::want::{BoundMet, BoundUsage, Edge, Level, Now};
use ojs_limit::{Rate, Timestamp, Window};

/// How long a queue is remembered that nobody uses and in which nothing waits.
const UNUSED: Duration = Duration::from_secs(600);

/// A queue with jobs that nobody uses for so long is looked at all the same: else pages and gauges would show for ever what
/// was known when it was used last.
const IDLE: Duration = Duration::from_secs(10);

/// The state of one queue.
#[derive(Debug)]
pub(super) struct BoundedQueue {
    pub(super) estimate: Estimate,
    pub(super) fleet: FleetDepth,
    drain: Drain,
    bytes: Bytes,
    window: Option<Window>,
    pub(super) members: KnownJobs,
    pub(super) edges: QueueEdges,
    pub(super) refusal: Option<LastRefusal>,
    pub(super) later: LaterJobs,
    /// Nothing could be dropped (`drop_oldest`): that is not tried again before this time.
    undroppable: Option<Instant>,
    pub(super) looks: LookState,
    /// Its bounds, as they were last read.
    pub(super) bounds: Arc<Bounds>,
    /// When it was last asked for, or its depth was last seen to change.
    pub(super) used: Instant,
}

impl BoundedQueue {
    /// One of which nothing is known yet.
    pub(super) fn new(
        name: &Arc<str>,
        bounds: &Arc<Bounds>,
        groups: &Arc<GroupCounts>,
        now: Instant,
    ) -> Box<BoundedQueue> {
        Box::new(BoundedQueue {
            estimate: Estimate::default(),
            fleet: FleetDepth::default(),
            drain: Drain::default(),
            bytes: Bytes::default(),
            window: None,
            members: KnownJobs::new(name, groups),
            edges: QueueEdges::default(),
            refusal: None,
            later: LaterJobs::default(),
            undroppable: None,
            looks: LookState::default(),
            bounds: Arc::clone(bounds),
            used: now,
        })
    }

    /// How much of each of these bounds is used by what waits.
    fn usages(
        &mut self,
        bounds: &Bounds,
        held: HeldCount,
    ) -> impl Iterator<Item = BoundUsage> + use<> {
        let of_depth = bounds.max_depth.map(|bound| BoundUsage {
            used: self.depth(held),
            bound,
            met: BoundMet::Depth,
        });
        let of_bytes = bounds.max_bytes.map(|bound| BoundUsage {
            used: self.bytes(held),
            bound,
            met: BoundMet::Bytes,
        });
        of_depth.into_iter().chain(of_bytes)
    }

    fn window(&mut self, rate: &Rate) -> &mut Window {
        let period = rate.period.get();
        let window = self.window.take();
        let window = window.filter(|window| window.period() == period);
        self.window
            .insert(window.unwrap_or_else(|| Window::new(period)))
    }

    /// The depth by what this sidecar knows, or by the fleet's number where that is higher.
    fn depth(&self, held: HeldCount) -> u64 {
        let of_fleet = self.fleet.depth().unwrap_or(0);
        self.estimate.depth(held).max(of_fleet)
    }

    fn bytes(&mut self, held: HeldCount) -> u64 {
        self.bytes.of(self.estimate.waiting(held))
    }

    /// Where the queue stands now: its depth and its bound, and whether an edge was crossed.
    pub(super) fn level(&mut self, held: HeldCount) -> Level {
        let bounds = Arc::clone(&self.bounds);
        let usages = self.usages(&bounds, held);
        let most = usages.max_by(|a, b| a.fraction().total_cmp(&b.fraction()));
        // Where there is no bound, nothing is near it.
        let (used, bound) = most.map_or((0, 1), |most| (most.used, most.bound));
        let threshold = bounds.warning_threshold;
        let crossed = self.edges.at(used, bound, threshold, Instant::now);
        Level {
            depth: self.depth(held),
            max_depth: bounds.max_depth,
            bytes: self.bytes(held),
            most,
            above: self.edges.is_above(),
            crossed,
        }
    }

    /// Gives it other bounds. Returns where it stands if it was near the old ones; if it has none any more, beside
    /// the old ones, which is an edge of its own.
    pub(super) fn bound_again(
        &mut self,
        bounds: &Arc<Bounds>,
        held: impl Fn() -> HeldCount,
        now: Instant,
    ) -> Option<Level> {
        let last = self.edges.is_above().then(|| self.level(held()));
        self.bounds = Arc::clone(bounds);
        if **bounds == Bounds::none() {
            // What comes from now on is not seen.
            self.estimate.doubt_all();
            self.used = now;
        }
        let last = last?;
        if last.crossed.map(|one| one.edge) == Some(Edge::Cleared) {
            return Some(last);
        }
        let mut level = self.level(held());
        if level.most.is_none() {
            level.most = last.most;
            if let Some(crossed) = &mut level.crossed {
                crossed.edge = Edge::Unbounded;
            }
        }
        Some(level)
    }

    /// Whether it should be looked at although nobody asks: it is near its bound, or was not used for [`IDLE`], and its jobs
    /// may have left through siblings since.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        let is_idle = now.saturating_duration_since(self.used) >= IDLE;
        let has_jobs = self.estimate.depth(HeldCount::default()) > 0;
        (self.edges.is_above() || is_idle && has_jobs) && self.estimate.is_old(self.used, now)
    }

    /// The last enqueue that met a bound of a part of its jobs, if that was lately.
    pub(super) fn last_refusal(&self, now: Instant) -> Option<&LastRefusal> {
        self.refusal.as_ref().filter(|last| last.is_recent(now))
    }

    /// Keeps everybody out until [`BoundedQueue::open`].
    pub(super) fn close(&mut self) {
        self.looks.closed = true;
    }

    /// What kept enqueues out has ended: who waits for it asks again.
    pub(super) fn open(&mut self) {
        self.looks.closed = false;
        self.looks.done.notify_waiters();
    }

    /// Whether anything is remembered that no look at the backend would tell again.
    pub(super) fn remembers(&self) -> bool {
        let pushed = |window: &Window| window.newest() > Timestamp::default();
        !(self.members.is_empty() && self.bytes.is_empty() && self.later.is_empty())
            || self.window.as_ref().is_some_and(pushed)
            || (!self.estimate.has_stats && self.estimate.stored > 0)
    }

    /// Whether somebody used it not long ago, or waits for it.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        let unused = now.saturating_duration_since(self.used) >= UNUSED;
        !unused
            || self.estimate.in_flight > 0
            || self.estimate.is_looking()
            || self.fleet.is_asking()
    }

    /// Whether anything waits in it, or is remembered that no look at the backend would tell again.
    pub(super) fn has_some(&mut self, held: HeldCount, now: Now) -> bool {
        // What is over by now is seen when somebody asks.
        self.forget_due(now);
        let counts = |window: &Window| window.count(now.stamp) > 0;
        self.window = self.window.take().filter(counts);
        let bytes = self.bytes(held);
        bytes > 0 || self.depth(held) > 0 || self.edges.is_above() || self.remembers()
    }
}
