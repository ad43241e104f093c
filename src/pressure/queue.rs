//! One bounded queue: whether an enqueue fits, and why not.

mod flow;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Away;
use super::bounds::{Bounds, OverflowStrategy, PushRate, UNBOUNDED};
use super::drain::Drain;
use super::edge::{Crossed, Edge, QueueEdges};
use super::estimate::{Estimate, HeldCount, LookWanted, NEAR};
use super::forget::UNUSED;
use super::hidden::HiddenJobs;
use super::known::{KeyCounts, KnownJobs};
use super::line::Before;
use super::share::Share;
use super::sizes::Bytes;
use super::tenants::FullTenant;
use super::want::{BoundMet, BoundUnit, BoundUsage, Full, Level, Now, Want};
use crate::limit::{Timestamp, Window};

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
    pub(super) share: Share,
    drain: Drain,
    bytes: Bytes,
    window: Option<Window>,
    pub(super) members: KnownJobs,
    pub(super) edges: QueueEdges,
    pub(super) hidden: HiddenJobs,
    /// Nobody was let in since the last look.
    just_looked: bool,
    /// Nothing could be dropped (`drop_oldest`): that is not tried again before this time.
    undroppable: Option<Instant>,
    pub(super) looks: Looks,
    /// Its bounds, as they were last read.
    pub(super) bounds: Arc<Bounds>,
    /// When it was last asked for, or its depth was last seen to change.
    pub(super) used: Instant,
}

/// The looks at a queue.
#[derive(Default, Debug)]
pub(super) struct Looks {
    /// Told when a look ends.
    pub(super) done: Arc<Notify>,
    /// Told when no enqueue is on its way any more.
    pub(super) settled: Arc<Notify>,
    /// The scope of the last look.
    pub(super) scope: u64,
    /// Whether the last look waited in vain for enqueues on their way.
    pub(super) stuck: bool,
    /// Why the backend could not be asked, the last time.
    pub(super) away: Option<(Away, Instant)>,
}

impl BoundedQueue {
    /// One of which nothing is known yet; `tenants`: where its jobs will be told apart by tenant.
    pub(super) fn new(bounds: Arc<Bounds>, tenants: KeyCounts, now: Instant) -> BoundedQueue {
        BoundedQueue {
            estimate: Estimate::default(),
            share: Share::default(),
            drain: Drain::default(),
            bytes: Bytes::default(),
            window: None,
            members: KnownJobs::new(tenants),
            edges: QueueEdges::default(),
            hidden: HiddenJobs::default(),
            just_looked: false,
            undroppable: None,
            looks: Looks::default(),
            bounds,
            used: now,
        }
    }

    /// Whether `want` fits now, beside what those want who wait already (`before`). `tenant`: one of its
    /// jobs' tenants has as many waiting as it may.
    pub(super) fn ask(
        &mut self,
        want: &Want,
        held: HeldCount,
        before: Option<&Before>,
        tenant: Option<&FullTenant>,
        now: Now,
    ) -> QueueAnswer {
        if !want.bounds.needs_depth() {
            return match self.over_rate(want, now) {
                Some(full) => QueueAnswer::Full(Box::new(full)),
                None => QueueAnswer::Fits { look: false },
            };
        }
        let mut tight = self.tightest(want, held);
        let may_drop = want.bounds.strategy == OverflowStrategy::DropOldest && !want.paused;
        // Nobody waits for what makes room for itself.
        let before = before.filter(|_| !may_drop);
        let mut full = self.too_much(want, before, held, now);
        let mut must_drop = false;
        let drops = may_drop
            && (full.as_ref()).is_some_and(|full| {
                full.ever && matches!(full.met, BoundMet::Depth | BoundMet::Bytes)
            });
        if let Some(tenant) = tenant.filter(|_| drops || full.is_none()) {
            full = Some(self.full_of(want, tenant, now));
        } else if drops && self.full_key(want, None).is_some() {
            // Others that leave make no room for a key that has its share.
            full = Some(self.full(want, BoundMet::Key, before, held, now));
        } else if drops
            && let Some(jobs) = self.goes(want, held)
            && jobs <= self.droppable(held)
            && self.undroppable.is_none_or(|from| now.at >= from)
        {
            must_drop = jobs > 0;
            full = None;
            tight.0 = None;
        }
        let room = if full.is_some() { None } else { tight.0 };
        let look = self.estimate.wants(room, tight.1, &self.looks, now.at);
        if self.estimate.is_closed() || look == LookWanted::First && !never(&full) {
            return QueueAnswer::Look;
        }
        let full = full.or_else(|| self.over_rate(want, now));
        if let Some(full) = full {
            return QueueAnswer::Full(Box::new(full));
        }
        if must_drop && self.estimate.is_looking() {
            return QueueAnswer::Look;
        }
        if must_drop {
            return QueueAnswer::Drop;
        }
        if let Some(bound) = want.bounds.max_depth.filter(|_| want.gone == 0) {
            let room = bound.saturating_sub(self.depth(held));
            if self.share.needs(want.jobs, room, bound) {
                self.share.want(want.jobs);
                return QueueAnswer::Places;
            }
        }
        QueueAnswer::Fits {
            look: look != LookWanted::Nothing,
        }
    }

    /// The places left of the bound that has the fewest, and the bound.
    fn tightest(&mut self, want: &Want, held: HeldCount) -> (Option<u64>, u64) {
        let depth = self.depth(held) + want.jobs;
        let of_depth = want
            .bounds
            .max_depth
            .map(|bound| (bound.checked_sub(depth), bound));
        let bytes = self.bytes(held) + want.bytes();
        let of_bytes = want
            .bounds
            .max_bytes
            .map(|bound| (bound.checked_sub(bytes), bound));
        let share = |(room, bound): &(Option<u64>, u64)| {
            room.map_or(0.0, |room| room as f64 / *bound as f64)
        };
        let both = of_depth.into_iter().chain(of_bytes);
        let tightest = both.min_by(|a, b| share(a).total_cmp(&share(b)));
        tightest.unwrap_or((Some(u64::MAX), u64::MAX))
    }

    /// The first bound that the enqueue would go beyond.
    fn too_much(
        &mut self,
        want: &Want,
        before: Option<&Before>,
        held: HeldCount,
        now: Now,
    ) -> Option<Full> {
        let bounds = &want.bounds;
        let (jobs, bytes_before) = before.map_or((0, 0), |before| (before.jobs, before.bytes));
        let (depth, resume) = (self.depth(held), bounds.resume_threshold);
        if let Some(bound) = bounds.max_depth
            && (depth + jobs + want.jobs > bound || self.edges.shut.still(depth, bound, resume))
        {
            return Some(self.full(want, BoundMet::Depth, before, held, now));
        }
        if let Some(bound) = bounds.max_bytes {
            let bytes = self.bytes(held);
            if bytes + bytes_before + want.bytes() > bound
                || self.edges.shut_by_bytes.still(bytes, bound, resume)
            {
                return Some(self.full(want, BoundMet::Bytes, before, held, now));
            }
        }
        if self.full_key(want, before).is_some() {
            return Some(self.full(want, BoundMet::Key, before, held, now));
        }
        None
    }

    /// The first key of which too many would wait, and how many.
    fn full_key(&self, want: &Want, before: Option<&Before>) -> Option<(Arc<str>, u64)> {
        let most = want.bounds.per_key.as_ref()?.max_depth;
        let mut wanted: HashMap<&Arc<str>, u64> = HashMap::new();
        want.keys.iter().find_map(|key| {
            let ahead = || before.map_or(0, |before| before.of_key(key));
            let wanted = wanted.entry(key).or_insert_with(ahead);
            *wanted += 1;
            let waiting = self.members.keys.count(key);
            (waiting + *wanted > most).then(|| (Arc::clone(key), waiting))
        })
    }

    fn full_of(&self, want: &Want, tenant: &FullTenant, now: Now) -> Full {
        Full {
            queue: Arc::clone(&want.queue),
            met: BoundMet::Tenant,
            depth: tenant.waiting,
            bound: tenant.most,
            wanted: tenant.wanted,
            unit: BoundUnit::Jobs,
            resumes: None,
            strategy: want.bounds.strategy,
            after: self.drain.time_for(1, now.at),
            drain: self.drain.rate(now.at),
            ever: tenant.wanted <= tenant.most,
            key: Some(Arc::clone(&tenant.tenant)),
        }
    }

    pub(super) fn full(
        &mut self,
        want: &Want,
        met: BoundMet,
        before: Option<&Before>,
        held: HeldCount,
        now: Now,
    ) -> Full {
        let bounds = &want.bounds;
        let resume = bounds.resume_threshold;
        let (mut key, mut resumes, mut unit) = (None, None, BoundUnit::Jobs);
        let (used, bound, wanted) = match met {
            BoundMet::Key => {
                let bound = bounds
                    .per_key
                    .as_ref()
                    .map_or(u64::MAX, |keys| keys.max_depth);
                let (full, waiting) = self.full_key(want, before).unzip();
                let alike = want
                    .keys
                    .iter()
                    .filter(|key| Some(*key) == full.as_ref())
                    .count();
                key = full;
                (waiting.unwrap_or(0), bound, alike as u64)
            }
            BoundMet::Bytes => {
                let bound = bounds.max_bytes.unwrap_or(u64::MAX);
                let used = self.bytes(held);
                resumes = self.edges.shut_by_bytes.resumes(used, bound, resume);
                unit = BoundUnit::Bytes;
                (used, bound, want.bytes())
            }
            BoundMet::Depth | BoundMet::Rate | BoundMet::Tenant => {
                let bound = bounds.max_depth.unwrap_or(u64::MAX);
                resumes = self.edges.shut.resumes(self.depth(held), bound, resume);
                (self.depth(held), bound, want.jobs)
            }
        };
        let places = self.places(want, held).unwrap_or(1).max(1);
        Full {
            queue: Arc::clone(&want.queue),
            met,
            depth: used,
            bound,
            wanted,
            unit,
            resumes,
            strategy: bounds.strategy,
            after: self.drain.time_for(places, now.at),
            drain: self.drain.rate(now.at),
            ever: wanted <= bound,
            key,
        }
    }

    /// How many jobs must go so that the enqueue fits; `None`: no number of them would help.
    fn places(&mut self, want: &Want, held: HeldCount) -> Option<u64> {
        let depth = self.depth(held);
        let of_depth = match want.bounds.max_depth {
            Some(bound) if want.jobs > bound => return None,
            Some(bound) => {
                let resumes = (bound as f64 * want.bounds.resume_threshold) as u64;
                let refuses = self
                    .edges
                    .shut
                    .still(depth, bound, want.bounds.resume_threshold);
                let until = if refuses { resumes } else { bound };
                (depth + want.jobs).saturating_sub(until)
            }
            None => 0,
        };
        let of_bytes = match want.bounds.max_bytes {
            Some(bound) if want.bytes() > bound => return None,
            Some(bound) => {
                let bytes = self.bytes(held);
                let over = (bytes + want.bytes()).saturating_sub(bound);
                over.div_ceil(average(bytes, depth))
            }
            None => 0,
        };
        Some(of_depth.max(of_bytes))
    }

    /// How many more jobs go for the enqueue; `None`: no number of them would help. In a fleet no more than it brings:
    /// what siblings have dropped is seen by the next look only, and would go again. After each look it is one more, so
    /// that the queue comes down to its bound.
    fn goes(&mut self, want: &Want, held: HeldCount) -> Option<u64> {
        let places = self.places(want, held)?;
        if !self.share.is_on() {
            return Some(places);
        }
        let of_bytes = want.bounds.max_bytes.map_or(0, |_| {
            let depth = self.depth(held);
            want.bytes().div_ceil(average(self.bytes(held), depth))
        });
        let most = want.jobs.max(of_bytes) + u64::from(self.just_looked);
        Some(places.min(most.saturating_sub(want.gone)))
    }

    fn over_rate(&mut self, want: &Want, now: Now) -> Option<Full> {
        let rate = want.bounds.enqueue_rate?;
        let window = self.window(rate);
        let limit = rate.limit.get();
        let count = window.count(now.stamp);
        let jobs = u32::try_from(want.jobs).unwrap_or(u32::MAX);
        let over = count
            .saturating_add(jobs)
            .checked_sub(limit)
            .filter(|over| *over > 0)?;
        let ever = jobs <= limit;
        // What can never fit is told when the whole window is free.
        let opens = match (ever, count.checked_sub(1)) {
            (true, _) => window.leaves(over - 1, now.stamp),
            (false, Some(last)) => window.leaves(last, now.stamp),
            (false, None) => Some(now.stamp.plus(rate.period.get())),
        };
        Some(Full {
            queue: Arc::clone(&want.queue),
            met: BoundMet::Rate,
            depth: u64::from(count),
            bound: u64::from(limit),
            wanted: want.jobs,
            unit: BoundUnit::Jobs,
            resumes: None,
            strategy: OverflowStrategy::Reject,
            after: opens.map(|at| Duration::from_micros(at.since(now.stamp))),
            drain: None,
            ever,
            key: None,
        })
    }

    fn window(&mut self, rate: PushRate) -> &mut Window {
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
        let of_fleet = self.share.depth().unwrap_or(0);
        self.estimate.depth(held).max(of_fleet)
    }

    fn bytes(&mut self, held: HeldCount) -> u64 {
        self.bytes.of(self.estimate.waiting(held))
    }

    /// How many jobs are surely available.
    fn droppable(&self, held: HeldCount) -> u64 {
        // Only who holds a job can drop it.
        let elsewhere = self.estimate.elsewhere();
        let of_fleet = self.share.depth().unwrap_or(0);
        let of_fleet = of_fleet.saturating_sub(self.estimate.in_flight());
        let waiting = self.estimate.waiting(held).max(of_fleet);
        let waiting = waiting.saturating_sub(elsewhere);
        waiting.saturating_sub(self.hidden.later)
    }

    /// Where the queue stands now: its depth and its bound, and whether an edge was crossed.
    pub(super) fn level(&mut self, held: HeldCount) -> Level {
        let bounds = Arc::clone(&self.bounds);
        let depth = self.depth(held);
        let bytes = self.bytes(held);
        let usage = |used, bound: Option<u64>, unit| {
            let of = |bound| BoundUsage { used, bound, unit };
            bound.map(of)
        };
        let of_depth = usage(depth, bounds.max_depth, BoundUnit::Jobs);
        let of_bytes = usage(bytes, bounds.max_bytes, BoundUnit::Bytes);
        let both = of_depth.into_iter().chain(of_bytes);
        let most = both.max_by(|a, b| a.share().total_cmp(&b.share()));
        // Where there is no bound, nothing is near it.
        let (used, bound) = most.map_or((0, 1), |most| (most.used, most.bound));
        let crossed = self
            .edges
            .at(used, bound, bounds.warning_threshold, Instant::now);
        Level {
            depth,
            max_depth: bounds.max_depth,
            bytes,
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
        if *self.bounds != **bounds {
            (self.edges.shut, self.edges.shut_by_bytes) = Default::default();
        }
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
        !(self.members.is_empty() && self.bytes.is_empty() && self.hidden.is_empty())
            || self.window.as_ref().is_some_and(pushed)
            || (!self.estimate.is_told() && self.estimate.in_backend() > 0)
    }

    /// Whether somebody used it not long ago, or waits for it.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        let unused = now.saturating_duration_since(self.used) >= UNUSED;
        !unused
            || self.estimate.in_flight() > 0
            || self.estimate.is_looking()
            || self.share.is_asking()
    }

    /// Whether anything waits in it, or is remembered that no look at the backend would tell again.
    pub(super) fn has_some(&mut self, held: HeldCount, now: Now) -> bool {
        // What is over by now is seen when somebody asks.
        self.hidden(now);
        let counts = |window: &Window| window.count(now.stamp) > 0;
        self.window = self.window.take().filter(counts);
        let bytes = self.bytes(held);
        bytes > 0 || self.depth(held) > 0 || self.edges.is_above() || self.remembers()
    }

    /// Notes that an enqueue does not fit by this bound. If the queue itself is full, it is shut until it is below
    /// its resume threshold.
    pub(super) fn refuses(&mut self, met: BoundMet, held: HeldCount) {
        let bounds = Arc::clone(&self.bounds);
        let depth = self.depth(held);
        match met {
            BoundMet::Depth if bounds.max_depth.is_some_and(|bound| depth >= bound) => {
                self.edges.shut.shut()
            }
            BoundMet::Bytes => {
                let bytes = self.bytes(held);
                let one_more = bytes + average(bytes, depth);
                if bounds.max_bytes.is_some_and(|bound| one_more > bound) {
                    self.edges.shut_by_bytes.shut();
                }
            }
            _ => {}
        }
    }
}

/// How long the jobs of a queue are on average.
fn average(bytes: u64, depth: u64) -> u64 {
    (bytes / depth.max(1)).max(1)
}

fn never(full: &Option<Full>) -> bool {
    full.as_ref().is_some_and(|full| !full.ever)
}
