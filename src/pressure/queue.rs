//! One bounded queue: whether an enqueue fits, and why not.

mod flow;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::{Bounds, OverflowStrategy, UNBOUNDED};
use super::drain::Drain;
use super::edge::QueueEdges;
use super::estimate::{Estimate, HeldCount, LookState, LookUrgency, NEAR};
use super::fleet_depth::FleetDepth;
use super::groups::{FullGroup, GroupCounts};
use super::hidden::LaterJobs;
use super::known::KnownJobs;
use super::line::Before;
use super::seen::Away;
use super::sizes::Bytes;
use super::want::{BoundMet, BoundUnit, BoundUsage, Crossed, Edge, Full, Level, Now, Want};
use crate::limit::{Rate, Timestamp, Window};

/// How long a queue is remembered that nobody uses and in which nothing waits.
const UNUSED: Duration = Duration::from_secs(600);

/// The answer of one queue to an enqueue.
#[derive(Debug)]
pub(super) enum QueueAnswer {
    /// It fits. `look`: the depth should be looked at soon.
    Fits { look: bool },
    /// Nobody knows until the backend is asked.
    Look,
    /// It fits once the store has granted places for it.
    Places,
    /// It fits once a job of the queue was dropped, or several one by one.
    Drop,
    /// It does not fit.
    Full(Box<Full>),
}

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
        bounds: Arc<Bounds>,
        groups: &Arc<GroupCounts>,
        now: Instant,
    ) -> BoundedQueue {
        BoundedQueue {
            estimate: Estimate::default(),
            fleet: FleetDepth::default(),
            drain: Drain::default(),
            bytes: Bytes::default(),
            window: None,
            members: KnownJobs::new(name, groups),
            edges: QueueEdges::default(),
            later: LaterJobs::default(),
            undroppable: None,
            looks: LookState::default(),
            bounds,
            used: now,
        }
    }

    /// Whether `want` fits now, beside what those want who wait already (`before`). `group`: one of its
    /// jobs' groups has as many waiting as it may.
    pub(super) fn answer(
        &mut self,
        want: &Want,
        held: HeldCount,
        before: Option<&Before>,
        group: Option<&FullGroup>,
        now: Now,
    ) -> QueueAnswer {
        if !self.bounds.needs_depth() {
            return match self.over_rate(want, held, now) {
                Some(full) => QueueAnswer::Full(Box::new(full)),
                None => QueueAnswer::Fits {
                    look: self.room_tried(want, held).is_some_and(|(room, bound)| {
                        let look = self.estimate.wants(room, bound, &self.looks, now.at);
                        look != LookUrgency::Nothing
                    }),
                },
            };
        }
        let may_drop = self.bounds.strategy == OverflowStrategy::DropOldest && !want.paused;
        // Nobody waits for what makes room for itself.
        let before = before.filter(|_| !may_drop);
        let mut full = self.full_of_queue(want, before, held, now);
        let may_drop = may_drop && full.as_ref().is_some_and(Full::may_ever_fit);
        if may_drop || full.is_none() {
            // Others that leave make no room for a key or a tenant that has its share.
            let of_group = group.map(|group| self.full_of_group(want, group, held, now));
            full = of_group.or(full);
        }
        let goes = match may_drop && full.as_ref().is_some_and(Full::is_of_queue) {
            true => self.goes(want, held, now),
            false => None,
        };
        let (mut room, bound) = self.tightest(want, held);
        if goes.is_some() {
            full = None;
        }
        if goes.is_some() || full.is_some() {
            room = None;
        }
        let look = self.estimate.wants(room, bound, &self.looks, now.at);
        let is_answered = full.as_ref().is_some_and(|full| !full.may_ever_fit());
        if self.estimate.is_closed() || look == LookUrgency::First && !is_answered {
            return QueueAnswer::Look;
        }
        if let Some(full) = full.or_else(|| self.over_rate(want, held, now)) {
            return QueueAnswer::Full(Box::new(full));
        }
        match goes {
            Some(1..) if self.estimate.is_looking() => return QueueAnswer::Look,
            Some(1..) => return QueueAnswer::Drop,
            _ => {}
        }
        if let Some(bound) = self.bounds.max_depth.filter(|_| want.gone == 0) {
            let room = bound.saturating_sub(self.depth(held));
            if self.fleet.needs(want.jobs, room, bound) {
                return QueueAnswer::Places;
            }
        }
        QueueAnswer::Fits {
            look: look != LookUrgency::Nothing,
        }
    }

    /// Whether a bound that is only tried would refuse an enqueue that fits. Nobody waits until the depth is known.
    pub(super) fn would_refuse(&mut self, want: &Want, held: impl Fn() -> HeldCount) -> bool {
        want.tried.is_some()
            && self.estimate.is_known()
            && matches!(self.room_tried(want, held()), Some((None, _)))
    }

    /// The places that are left of the bound which is only tried, and the bound.
    fn room_tried(&mut self, want: &Want, held: HeldCount) -> Option<(Option<u64>, u64)> {
        Some(self.tightest_of(want.tried.as_deref()?, want, held))
    }

    /// How much of each of its bounds is used by what waits.
    fn usages(&mut self, held: HeldCount) -> impl Iterator<Item = BoundUsage> + use<> {
        let bounds = Arc::clone(&self.bounds);
        self.usages_of(&bounds, held)
    }

    fn usages_of(
        &mut self,
        bounds: &Bounds,
        held: HeldCount,
    ) -> impl Iterator<Item = BoundUsage> + use<> {
        let of_depth = bounds.max_depth.map(|bound| BoundUsage {
            used: self.depth(held),
            bound,
            unit: BoundUnit::Jobs,
        });
        let of_bytes = bounds.max_bytes.map(|bound| BoundUsage {
            used: self.bytes(held),
            bound,
            unit: BoundUnit::Bytes,
        });
        of_depth.into_iter().chain(of_bytes)
    }

    /// The places left of the bound that has the fewest, and the bound.
    fn tightest(&mut self, want: &Want, held: HeldCount) -> (Option<u64>, u64) {
        let bounds = Arc::clone(&self.bounds);
        self.tightest_of(&bounds, want, held)
    }

    fn tightest_of(&mut self, bounds: &Bounds, want: &Want, held: HeldCount) -> (Option<u64>, u64) {
        let rooms = self.usages_of(bounds, held).map(|usage| {
            let room = usage.room(want.amount(usage.unit));
            (room, usage.bound)
        });
        let fraction = |(room, bound): &(Option<u64>, u64)| {
            room.map_or(0.0, |room| room as f64 / *bound as f64)
        };
        let tightest = rooms.min_by(|a, b| fraction(a).total_cmp(&fraction(b)));
        tightest.unwrap_or((Some(u64::MAX), u64::MAX))
    }

    /// The answer if the enqueue would go beyond a bound of the queue itself.
    fn full_of_queue(
        &mut self,
        want: &Want,
        before: Option<&Before>,
        held: HeldCount,
        now: Now,
    ) -> Option<Full> {
        let met = self.usages(held).find(|usage| {
            let ahead = before.map_or(0, |before| before.amount(usage.unit));
            usage.room(ahead + want.amount(usage.unit)).is_none()
        })?;
        Some(Full {
            met: match met.unit {
                BoundUnit::Jobs => BoundMet::Depth,
                BoundUnit::Bytes => BoundMet::Bytes,
            },
            depth: met.used,
            bound: met.bound,
            wanted: want.amount(met.unit),
            ..self.full(want, held, now)
        })
    }

    /// The answer if too many jobs of a group would wait.
    fn full_of_group(&mut self, want: &Want, full: &FullGroup, held: HeldCount, now: Now) -> Full {
        Full {
            met: match full.group.queue {
                Some(_) => BoundMet::Key,
                None => BoundMet::Tenant,
            },
            depth: full.waiting,
            bound: full.most,
            wanted: full.wanted,
            key: Some(Arc::clone(&full.group.name)),
            ..self.full(want, held, now)
        }
    }

    /// What is the same whatever bound is met.
    fn full(&mut self, want: &Want, held: HeldCount, now: Now) -> Full {
        let places = self.places(want, held).unwrap_or(1).max(1);
        Full {
            queue: Arc::clone(&want.queue),
            met: BoundMet::Depth,
            depth: 0,
            bound: 0,
            period: None,
            wanted: 0,
            strategy: self.bounds.strategy,
            after: self.drain.time_for(places, now.at),
            drain: self.drain.rate(now.at),
            key: None,
        }
    }

    /// How many jobs must go so that the enqueue fits; `None`: no number of them would help.
    fn places(&mut self, want: &Want, held: HeldCount) -> Option<u64> {
        let mut each = self.usages(held).map(|usage| {
            let wanted = want.amount(usage.unit);
            let over = (usage.used + wanted).saturating_sub(usage.bound);
            (wanted <= usage.bound).then(|| over.div_ceil(self.size_of_one(usage, held)))
        });
        each.try_fold(0, |most: u64, places| Some(most.max(places?)))
    }

    /// How much of a bound one job uses on average.
    fn size_of_one(&self, usage: BoundUsage, held: HeldCount) -> u64 {
        match usage.unit {
            BoundUnit::Jobs => 1,
            BoundUnit::Bytes => (usage.used / self.depth(held).max(1)).max(1),
        }
    }

    /// How many more jobs go for the enqueue; `None`: that cannot be. In a fleet no more than it brings: what siblings
    /// have dropped is seen by the next look only, and would go again. After each look it is one more, so that the
    /// queue comes down to its bound.
    fn goes(&mut self, want: &Want, held: HeldCount, now: Now) -> Option<u64> {
        let mut places = self.places(want, held)?;
        if self.fleet.is_on() {
            let usages = self.usages(held);
            let brings = usages.map(|usage| {
                let amount = want.amount(usage.unit);
                amount.div_ceil(self.size_of_one(usage, held))
            });
            let brings = brings.max();
            let most = brings.unwrap_or(0).max(want.jobs) + u64::from(self.looks.is_fresh);
            places = places.min(most.saturating_sub(want.gone));
        }
        let may_go = self.undroppable.is_none_or(|from| now.at >= from);
        (may_go && places <= self.droppable(held)).then_some(places)
    }

    fn over_rate(&mut self, want: &Want, held: HeldCount, now: Now) -> Option<Full> {
        let bounds = Arc::clone(&self.bounds);
        let rate = bounds.enqueue_rate.as_ref()?;
        let window = self.window(rate);
        let limit = rate.limit.get();
        let count = window.count(now.stamp);
        let jobs = u32::try_from(want.jobs).unwrap_or(u32::MAX);
        let over = count
            .saturating_add(jobs)
            .checked_sub(limit)
            .filter(|over| *over > 0)?;
        // What can never fit is told when the whole window is free.
        let opens = match (jobs <= limit, count.checked_sub(1)) {
            (true, _) => window.leaves(over - 1, now.stamp),
            (false, Some(last)) => window.leaves(last, now.stamp),
            (false, None) => Some(now.stamp.plus(rate.period.get())),
        };
        Some(Full {
            met: BoundMet::Rate,
            depth: u64::from(count),
            bound: u64::from(limit),
            period: Some(Duration::from_micros(rate.period.get())),
            wanted: want.jobs,
            strategy: OverflowStrategy::Reject,
            after: opens.map(|at| Duration::from_micros(at.since(now.stamp))),
            drain: None,
            ..self.full(want, held, now)
        })
    }

    fn window(&mut self, rate: &Rate) -> &mut Window {
        let period = rate.period.get();
        if self
            .window
            .as_ref()
            .is_some_and(|window| window.period() != period)
        {
            self.window = None;
        }
        self.window.get_or_insert_with(|| Window::new(period))
    }

    /// The depth by what this sidecar knows, or by the fleet's number where that is higher.
    fn depth(&self, held: HeldCount) -> u64 {
        let of_fleet = self.fleet.depth().unwrap_or(0);
        self.estimate.depth(held).max(of_fleet)
    }

    fn bytes(&mut self, held: HeldCount) -> u64 {
        self.bytes.of(self.estimate.waiting(held))
    }

    /// How many jobs are surely available.
    fn droppable(&self, held: HeldCount) -> u64 {
        // Only who holds a job can drop it.
        let elsewhere = self.estimate.elsewhere();
        let of_fleet = self.fleet.depth().unwrap_or(0);
        let of_fleet = of_fleet.saturating_sub(self.estimate.in_flight());
        let waiting = self.estimate.waiting(held).max(of_fleet);
        let waiting = waiting.saturating_sub(elsewhere);
        waiting.saturating_sub(self.later.count)
    }

    /// Where the queue stands now: its depth and its bound, and whether an edge was crossed.
    pub(super) fn level(&mut self, held: HeldCount) -> Level {
        let bounds = Arc::clone(&self.bounds);
        let usages = self.usages(held);
        let most = usages.max_by(|a, b| a.fraction().total_cmp(&b.fraction()));
        // Where there is no bound, nothing is near it.
        let (used, bound) = most.map_or((0, 1), |most| (most.used, most.bound));
        let crossed = self
            .edges
            .at(used, bound, bounds.warning_threshold, Instant::now);
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
    /// the old ones.
    pub(super) fn bound_again(
        &mut self,
        bounds: &Arc<Bounds>,
        held: impl Fn() -> HeldCount,
        now: Instant,
    ) -> Option<Level> {
        let last = self.edges.is_above().then(|| self.level(held()));
        self.bounds = Arc::clone(bounds);
        if **bounds == UNBOUNDED {
            // What comes from now on is not seen.
            self.estimate.doubt_all();
            self.used = now;
        }
        let last = last?;
        let is_cleared = |crossed: Crossed| crossed.edge == Edge::Cleared;
        if last.crossed.is_some_and(is_cleared) {
            return Some(last);
        }
        let level = self.level(held());
        Some(Level {
            most: level.most.or(last.most),
            ..level
        })
    }

    /// Whether it is near its bound and should be looked at, although nobody asks.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        self.edges.is_above() && self.estimate.is_old(self.used, now)
    }

    /// Why the backend could not be asked, if that was just now.
    pub(super) fn away_at(&self, now: Instant) -> Option<&Away> {
        let (away, at) = self.looks.away.as_ref()?;
        (now.saturating_duration_since(*at) < NEAR).then_some(away)
    }

    /// Whether anything is remembered that no look at the backend would tell again.
    pub(super) fn remembers(&self) -> bool {
        let pushed = |window: &Window| window.newest() > Timestamp::default();
        !(self.members.is_empty() && self.bytes.is_empty() && self.later.is_empty())
            || self.window.as_ref().is_some_and(pushed)
            || (!self.estimate.has_stats() && self.estimate.in_backend() > 0)
    }

    /// Whether somebody used it not long ago, or waits for it.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        let unused = now.saturating_duration_since(self.used) >= UNUSED;
        !unused
            || self.estimate.in_flight() > 0
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
