//! One bounded queue: whether an enqueue fits, and why not.

mod flow;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Away;
use super::ages::Ages;
use super::bounds::{Bounds, PushRate, Strategy, UNBOUNDED};
use super::drain::Drain;
use super::edge::{Crossed, Edge, Edges, Said, Shut};
use super::estimate::{Estimate, Held, NEAR, Want as Look};
use super::forget::UNUSED;
use super::hidden::Hidden;
use super::keys::Keys;
use super::line::Before;
use super::recount::Recount;
use super::share::Lease;
use super::since::Since;
use super::sizes::Sizes;
use super::tenants::FullTenant;
use super::want::{Full, Level, Met, Now, Unit, Usage, Want};
use crate::limit::{Timestamp, Window};

/// What one queue says to an enqueue.
#[derive(Debug)]
pub(super) enum Asked {
    /// It fits. `drop`: as many jobs must go for it. `look`: the depth should be looked at soon.
    Fits { drop: u64, look: bool },
    /// Nobody knows until the backend is asked.
    Look,
    /// It fits once the store has given places for it.
    Lease,
    /// It fits once a job of the queue was dropped: none could be, the last time.
    Drop,
    /// It does not fit.
    Full(Box<Full>),
}

/// The state of one queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) estimate: Estimate,
    drain: Drain,
    sizes: Sizes,
    bytes_in_flight: u64,
    since: Since,
    window: Option<Window>,
    keys: Keys,
    /// The same by tenant.
    pub(super) tenants: Keys,
    pub(super) ages: Ages,
    pub(super) recount: Recount,
    edges: Edges,
    /// By its depth.
    shut: Shut,
    /// By its bytes.
    shut_by_bytes: Shut,
    hidden: Hidden,
    /// Jobs that are about to be dropped for others.
    dropping: u64,
    /// No job was there, the last time that one was to be dropped: from then on one must go before another enqueue
    /// is let in.
    undroppable: Option<Instant>,
    /// Jobs that came over the bound and for which none could be dropped.
    owed: u64,
    /// Of what waits, how much no FETCH would get: it waits for a time.
    later: u64,
    /// Told when a look ends.
    pub(super) done: Arc<Notify>,
    /// Told when no enqueue is on its way any more.
    pub(super) settled: Arc<Notify>,
    /// The last that was said of its bounds.
    pub(super) bounds: Arc<Bounds>,
    /// When it was last asked for.
    pub(super) used: Instant,
    /// When its depth was last seen to change.
    moved: Instant,
    /// The scope of the last look.
    pub(super) scope: u64,
    /// Whether the last look waited in vain for enqueues on their way.
    pub(super) stuck: bool,
    /// Why the backend could not be asked, the last time.
    pub(super) away: Option<(Away, Instant)>,
}

impl Queue {
    /// One of which nothing is known yet; `tenants`: where its jobs will be told apart by tenant.
    pub(super) fn new(bounds: Arc<Bounds>, tenants: Keys, now: Instant) -> Queue {
        Queue {
            estimate: Estimate::default(),
            drain: Drain::default(),
            sizes: Sizes::default(),
            bytes_in_flight: 0,
            since: Since::default(),
            window: None,
            keys: Keys::default(),
            tenants,
            ages: Ages::default(),
            recount: Recount::default(),
            edges: Edges::default(),
            shut: Shut::default(),
            shut_by_bytes: Shut::default(),
            hidden: Hidden::default(),
            dropping: 0,
            undroppable: None,
            owed: 0,
            later: 0,
            done: Arc::default(),
            settled: Arc::default(),
            bounds,
            used: now,
            moved: now,
            scope: 0,
            stuck: false,
            away: None,
        }
    }

    /// Whether `want` fits now, beside what those want who wait already (`before`). `tenant`: one of its
    /// jobs' tenants has as many waiting as it may.
    pub(super) fn ask(
        &mut self,
        want: &Want,
        held: Held,
        before: Option<&Before>,
        tenant: Option<&FullTenant>,
        now: Now,
    ) -> Asked {
        if !want.bounds.needs_depth() {
            return match self.over_rate(want, now) {
                Some(full) => Asked::Full(Box::new(full)),
                None => Asked::Fits {
                    drop: 0,
                    look: false,
                },
            };
        }
        let mut tight = self.tightest(want, held);
        let may_drop = want.bounds.strategy == Strategy::DropOldest && !want.paused;
        // Nobody waits for what makes room for itself.
        let before = before.filter(|_| !may_drop);
        let mut full = self.too_much(want, before, held, now);
        let mut drop = 0;
        let drops = may_drop
            && (full.as_ref())
                .is_some_and(|full| full.ever && matches!(full.met, Met::Depth | Met::Bytes));
        if let Some(tenant) = tenant.filter(|_| drops || full.is_none()) {
            full = Some(self.full_of(want, tenant, now));
        } else if drops && self.full_key(want, None).is_some() {
            // Others that leave make no room for a key that has its share.
            full = Some(self.full(want, Met::Key, before, held, now));
        } else if drops
            && let Some(jobs) = self.goes(want, held)
            && jobs <= self.droppable(held)
            && self.undroppable.is_none_or(|from| now.at >= from)
        {
            drop = jobs;
            full = None;
            tight.0 = None;
        }
        let room = if full.is_some() { None } else { tight.0 };
        let look = self.estimate.wants(room, tight.1, self.stuck, now.at);
        if self.estimate.is_closed() || look == Look::First && !never(&full) {
            return Asked::Look;
        }
        let full = full.or_else(|| self.over_rate(want, now));
        if let Some(full) = full {
            return Asked::Full(Box::new(full));
        }
        if drop > 0 && want.gone == 0 && self.undroppable.is_some() {
            return Asked::Drop;
        }
        let makes_room = drop + want.gone > 0;
        if want.bounds.max_depth.is_some() && !self.estimate.part.has(want.jobs, makes_room) {
            return Asked::Lease;
        }
        Asked::Fits {
            drop,
            look: look != Look::Nothing,
        }
    }

    /// The places to ask the store for; `others` sidecars live.
    pub(super) fn lease(&mut self, held: Held, others: u64) -> Option<Lease> {
        let bound = self.bounds.max_depth?;
        let taken = self.depth(held) + self.estimate.part.unused();
        let room = bound.saturating_sub(taken);
        self.estimate.part.near = room <= bound / 2;
        self.estimate.part.lease(room, others)
    }

    /// The places left of the bound that has the fewest, and the bound.
    fn tightest(&mut self, want: &Want, held: Held) -> (Option<u64>, u64) {
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
        held: Held,
        now: Now,
    ) -> Option<Full> {
        let bounds = &want.bounds;
        let (jobs, bytes_before) = before.map_or((0, 0), |before| (before.jobs, before.bytes));
        let (depth, resume) = (self.depth(held), bounds.resume_threshold);
        if let Some(bound) = bounds.max_depth
            && (depth + jobs + want.jobs > bound || self.shut.still(depth, bound, resume))
        {
            return Some(self.full(want, Met::Depth, before, held, now));
        }
        if let Some(bound) = bounds.max_bytes {
            let bytes = self.bytes(held);
            if bytes + bytes_before + want.bytes() > bound
                || self.shut_by_bytes.still(bytes, bound, resume)
            {
                return Some(self.full(want, Met::Bytes, before, held, now));
            }
        }
        if self.full_key(want, before).is_some() {
            return Some(self.full(want, Met::Key, before, held, now));
        }
        if bounds
            .max_age
            .is_some_and(|most| self.age(held, now) > most)
        {
            return Some(self.full(want, Met::Age, before, held, now));
        }
        let wait = self.predicted(want, held, now);
        if bounds.max_wait.is_some_and(|most| wait > most) {
            return Some(self.full(want, Met::Wait, before, held, now));
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
            let waiting = self.keys.count(key);
            (waiting + *wanted > most).then(|| (Arc::clone(key), waiting))
        })
    }

    fn full_of(&self, want: &Want, tenant: &FullTenant, now: Now) -> Full {
        Full {
            queue: Arc::clone(&want.queue),
            met: Met::Tenant,
            depth: tenant.waiting,
            at_least: tenant.waiting,
            bound: tenant.most,
            wanted: tenant.wanted,
            unit: Unit::Jobs,
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
        met: Met,
        before: Option<&Before>,
        held: Held,
        now: Now,
    ) -> Full {
        let bounds = &want.bounds;
        let resume = bounds.resume_threshold;
        let (mut key, mut resumes, mut unit, mut at_least) = (None, None, Unit::Jobs, None);
        let (used, bound, wanted) = match met {
            Met::Key => {
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
            Met::Bytes => {
                let bound = bounds.max_bytes.unwrap_or(u64::MAX);
                let used = self.bytes(held);
                resumes = self.shut_by_bytes.resumes(used, bound, resume);
                unit = Unit::Bytes;
                (used, bound, want.bytes())
            }
            Met::Age => in_time(self.age(held, now), bounds.max_age, &mut unit),
            Met::Wait => in_time(self.predicted(want, held, now), bounds.max_wait, &mut unit),
            Met::Depth | Met::Rate | Met::Tenant => {
                let bound = bounds.max_depth.unwrap_or(u64::MAX);
                resumes = self.shut.resumes(self.depth(held), bound, resume);
                at_least = Some(self.known_depth(held));
                (self.told_depth(held), bound, want.jobs)
            }
        };
        let places = self.places(want, held).unwrap_or(1).max(1);
        Full {
            queue: Arc::clone(&want.queue),
            met,
            depth: used,
            at_least: at_least.unwrap_or(used),
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
    fn places(&mut self, want: &Want, held: Held) -> Option<u64> {
        let depth = self.depth(held);
        let of_depth = match want.bounds.max_depth {
            Some(bound) if want.jobs > bound => return None,
            Some(bound) => {
                let resumes = (bound as f64 * want.bounds.resume_threshold) as u64;
                let refuses = self.shut.still(depth, bound, want.bounds.resume_threshold);
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

    /// How many jobs go for the enqueue; `None`: no number of them would help. In a fleet no more than have come
    /// through here: what siblings have dropped is seen by the next look only, and would go again.
    fn goes(&mut self, want: &Want, held: Held) -> Option<u64> {
        let places = self.places(want, held)?;
        if !self.estimate.part.is_shared() {
            return Some(places);
        }
        let of_bytes = want.bounds.max_bytes.map_or(0, |_| {
            let depth = self.depth(held);
            want.bytes().div_ceil(average(self.bytes(held), depth))
        });
        let came = want.jobs.max(of_bytes) + self.owed;
        Some(places.min(came.saturating_sub(want.gone)))
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
            met: Met::Rate,
            depth: u64::from(count),
            at_least: u64::from(count),
            bound: u64::from(limit),
            wanted: want.jobs,
            unit: Unit::Jobs,
            resumes: None,
            strategy: Strategy::Reject,
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

    /// The depth as bounds count it: what is about to be dropped is gone.
    fn depth(&self, held: Held) -> u64 {
        self.estimate.depth(held).saturating_sub(self.dropping)
    }

    /// The depth without places of siblings that may be unused.
    fn known_depth(&self, held: Held) -> u64 {
        self.estimate.known(held).saturating_sub(self.dropping)
    }

    /// The depth as it is told: never beyond its bound for places of siblings alone.
    fn told_depth(&self, held: Held) -> u64 {
        let most = self.bounds.max_depth.unwrap_or(u64::MAX);
        self.depth(held).min(self.known_depth(held).max(most))
    }

    fn bytes(&mut self, held: Held) -> u64 {
        let waiting = self.estimate.waiting(held).saturating_sub(self.dropping);
        self.sizes.of(waiting) + self.bytes_in_flight
    }

    /// Whether the queue would be over its bound without this one of the jobs that are about to be dropped. If
    /// not, others have left meanwhile, and it stays.
    pub(super) fn must_drop(&mut self, held: Held) -> bool {
        let others = self.dropping.saturating_sub(1);
        let depth = self.estimate.depth(held).saturating_sub(others);
        let waiting = self.estimate.waiting(held).saturating_sub(others);
        let bytes = self.sizes.of(waiting) + self.bytes_in_flight;
        let over = |used: u64, bound: Option<u64>| bound.is_some_and(|bound| used > bound);
        let must = over(depth, self.bounds.max_depth) || over(bytes, self.bounds.max_bytes);
        if !must {
            self.dropping = others;
            self.tell_settled();
        }
        must
    }

    /// How many jobs are surely available.
    fn droppable(&self, held: Held) -> u64 {
        // Only who holds a job can drop it.
        let elsewhere = self.estimate.elsewhere.jobs();
        let waiting = self.estimate.waiting(held).saturating_sub(elsewhere);
        waiting.saturating_sub(self.later + self.dropping)
    }

    /// How long the oldest available job that is known has waited.
    fn age(&mut self, held: Held, now: Now) -> Duration {
        let available = self.estimate.waiting(held).saturating_sub(self.later);
        let oldest = self.since.oldest(available);
        oldest.map_or(Duration::ZERO, |at| now.at.saturating_duration_since(at))
    }

    /// How long a new job would wait, as far as is known.
    fn predicted(&self, want: &Want, held: Held, now: Now) -> Duration {
        let measured = self.drain.rate(now.at);
        let pace = match (measured, want.pace) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let before = self.depth(held).saturating_sub(self.later) as f64;
        let seconds = pace.map_or(0.0, |pace| before / pace.max(1e-9));
        Duration::from_secs_f64(seconds.clamp(0.0, 1e9))
    }

    /// Where the queue stands now: its depth and its bound, and whether an edge was crossed.
    pub(super) fn level(&mut self, held: Held) -> Level {
        let bounds = Arc::clone(&self.bounds);
        // Places that siblings may not use bring no queue near its bound: those that they do are known with the next
        // look, which comes soon there.
        let known = self.known_depth(held);
        let near = |bound: u64| known as f64 >= bound as f64 * bounds.warning_threshold;
        let depth = match bounds.max_depth.is_some_and(near) {
            true => self.told_depth(held),
            false => known,
        };
        let bytes = self.bytes(held);
        let usage = |used, bound: Option<u64>, unit| {
            let of = |bound| Usage { used, bound, unit };
            bound.map(of)
        };
        let of_depth = usage(depth, bounds.max_depth, Unit::Jobs);
        let of_bytes = usage(bytes, bounds.max_bytes, Unit::Bytes);
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
            over: self.edges.over(),
        }
    }

    /// It has these bounds from now on. Says where it stands, if it was near those that it had: where it has
    /// none any more, beside the last.
    pub(super) fn bound_again(
        &mut self,
        bounds: &Arc<Bounds>,
        held: impl Fn() -> Held,
        now: Instant,
    ) -> Option<Level> {
        let last = self.edges.is_above().then(|| self.level(held()));
        if *self.bounds != **bounds {
            (self.shut, self.shut_by_bytes) = Default::default();
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
            over: last.over,
            ..level
        })
    }

    /// Whether its last level was at the warning threshold or beyond.
    pub(super) fn is_above(&self) -> bool {
        self.edges.is_above()
    }

    /// Whether it is near its bound and should be looked at, although nobody asks.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        self.is_above() && self.estimate.is_old(self.used.max(self.moved), now)
    }

    /// Why the backend could not be asked, if that was just now.
    pub(super) fn away_at(&self, now: Instant) -> Option<&Away> {
        let (away, at) = self.away.as_ref()?;
        (now.saturating_duration_since(*at) < NEAR).then_some(away)
    }

    /// Whether anything is remembered that no look at the backend would tell again.
    pub(super) fn remembers(&self) -> bool {
        let pushed = |window: &Window| window.newest() > Timestamp::default();
        !(self.keys.is_empty()
            && self.tenants.is_empty()
            && self.ages.is_empty()
            && self.sizes.is_empty()
            && self.hidden.is_empty())
            || self.window.as_ref().is_some_and(pushed)
            || self.recount.is_proven()
            || (!self.estimate.is_told() && self.estimate.in_backend() > 0)
    }

    /// Whether somebody used it not long ago, or waits for it.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        let last = self.used.max(self.moved);
        let unused = now.saturating_duration_since(last) >= UNUSED;
        !unused || self.is_moving() || self.estimate.is_looking() || self.estimate.part.asking
    }

    /// Whether anything waits in it, or is remembered that no look at the backend would tell again.
    pub(super) fn has_some(&mut self, held: Held, now: Now) -> bool {
        // What is over by now is seen when somebody asks.
        self.hidden(now);
        let counts = |window: &Window| window.count(now.stamp) > 0;
        self.window = self.window.take().filter(counts);
        let bytes = self.bytes(held);
        bytes > 0 || self.depth(held) > 0 || self.is_above() || self.remembers()
    }

    /// A producer is told at `now` that it does not fit; where else that is worth telling.
    pub(super) fn says(&mut self, full: &Full, now: Instant) -> Said {
        self.edges
            .refused(full.met, full.key.as_ref(), full.ever, now)
    }

    /// An enqueue does not fit, by this bound. Where the queue itself is full, it may be shut for a while.
    pub(super) fn refuses(&mut self, met: Met, held: Held) {
        let bounds = Arc::clone(&self.bounds);
        let depth = self.depth(held);
        match met {
            Met::Depth if bounds.max_depth.is_some_and(|bound| depth >= bound) => self.shut.shut(),
            Met::Bytes => {
                let bytes = self.bytes(held);
                let one_more = bytes + average(bytes, depth);
                if bounds.max_bytes.is_some_and(|bound| one_more > bound) {
                    self.shut_by_bytes.shut();
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

/// How much of a bound that is a time is used, and the bound, as numbers of this unit; no enqueue uses more of it.
fn in_time(used: Duration, bound: Option<Duration>, unit: &mut Unit) -> (u64, u64, u64) {
    let bound = bound.unwrap_or_default();
    let is_whole = bound.subsec_nanos() == 0;
    *unit = if is_whole {
        Unit::Seconds
    } else {
        Unit::Millis
    };
    let count = |time: Duration| match is_whole {
        true => time.as_secs(),
        false => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    };
    (count(used), count(bound), 0)
}

fn never(full: &Option<Full>) -> bool {
    full.as_ref().is_some_and(|full| !full.ever)
}
