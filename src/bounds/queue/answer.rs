//! Whether an enqueue fits into one queue, and why not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::BoundedQueue;
use crate::bounds::OverflowStrategy;
use crate::estimate::{HeldCount, NEAR};
use crate::groups::FullGroup;
use crate::line::Before;
use crate::look::{Awaited, BeginLook};
use crate::seen::Away;
use crate::want::{BoundMet, BoundUsage, Full, Now, Want};

/// What an enqueue asks of one queue.
#[derive(Debug)]
pub(crate) struct QueueAsk<'a> {
    pub(crate) want: &'a Want,
    /// How many jobs of the queue are held here.
    pub(crate) held: HeldCount,
    /// What those want of it who wait already.
    pub(crate) before: Option<&'a Before>,
    /// A group of its jobs that has as many waiting as it may.
    pub(crate) group: Option<&'a FullGroup>,
    pub(crate) now: Now,
}

/// The answer of one queue to an enqueue.
#[derive(Debug)]
pub(crate) enum QueueAnswer {
    /// It fits. `look_soon`: the backend should be asked for the depth, and nobody waits for that.
    Fits { look_soon: bool },
    /// Nobody knows until the backend is asked, by a look that begins so.
    Look(BeginLook),
    /// The backend must be asked, and was just found away.
    Away(Away),
    /// It fits once the store has granted places for it.
    Places,
    /// It fits once a job of the queue was dropped, or several one by one.
    Drop,
    /// It does not fit.
    Full(Box<Full>),
}

impl BoundedQueue {
    /// Whether an enqueue fits now.
    pub(crate) fn answer(&mut self, ask: &QueueAsk<'_>) -> QueueAnswer {
        let full = match self.full(ask) {
            // The backend could say nothing that changes this.
            Some(never) if !never.may_ever_fit() => return QueueAnswer::Full(Box::new(never)),
            full => full,
        };
        let left = match (&full, ask.group) {
            (None, _) => self.part_left(ask),
            // How many of a group wait is not unsure by what is on its way.
            (Some(_), Some(_)) => Some(0.0),
            (Some(_), None) => None,
        };
        if self.must_look(left, ask) {
            return self.look(ask);
        }
        let goes = match full {
            None => 0,
            Some(full) => match self.goes(&full, ask) {
                Some(goes) => goes,
                None => return self.refuse(full, ask.now.at),
            },
        };
        // For what a rate refuses no job is dropped.
        if let Some(full) = self.over_rate(ask) {
            return QueueAnswer::Full(Box::new(full));
        }
        if goes > 0 {
            return match self.look(ask) {
                QueueAnswer::Look(_) if !self.estimate.is_looking() => QueueAnswer::Drop,
                first => first,
            };
        }
        if self.needs_places(ask) {
            return QueueAnswer::Places;
        }
        let look_soon = self.wants_look(left, ask);
        QueueAnswer::Fits { look_soon }
    }

    /// Whether the backend is asked before an enqueue is answered that leaves this part of its nearest bound free. A
    /// look that somebody waits for is everybody's to wait for. For what has its places already none is needed.
    fn must_look(&self, left: Option<f64>, ask: &QueueAsk<'_>) -> bool {
        let has_places = left.is_some() && self.fleet.has_places(ask.want.jobs);
        let must_look = || !has_places && self.estimate.must_look(left, &self.looks, ask.now.at);
        self.bounds.needs_depth() && (self.looks.closed || must_look())
    }

    /// Whether the backend is asked soon after such an enqueue.
    fn wants_look(&self, left: Option<f64>, ask: &QueueAsk<'_>) -> bool {
        let follows_depth = self.bounds.needs_depth() || ask.want.tried.is_some();
        let wants_look = || self.estimate.wants_look(left, ask.now.at);
        follows_depth && !self.estimate.is_looking() && wants_look()
    }

    /// The answer where the backend must be asked.
    fn look(&self, ask: &QueueAsk<'_>) -> QueueAnswer {
        // Who has to wait for a group of its own keeps nobody out of the queue.
        let begin = match ask.group {
            Some(_) => Awaited::look,
            None => Awaited::exact_look,
        };
        let away = self.away_at(ask.now.at).cloned();
        away.map_or(QueueAnswer::Look(begin), QueueAnswer::Away)
    }

    /// The answer to an enqueue that does not fit, as far as is known. Where the backend was just found away there may be
    /// room that nobody knows of; where it tells no numbers there is none.
    fn refuse(&self, full: Full, now: Instant) -> QueueAnswer {
        match self.away_at(now).filter(|_| self.estimate.has_stats) {
            Some(away) => QueueAnswer::Away(away.clone()),
            None => QueueAnswer::Full(Box::new(full)),
        }
    }

    /// Whether the store must grant the places, because the queue of a fleet is near its bound. What has dropped jobs has
    /// their places.
    fn needs_places(&self, ask: &QueueAsk<'_>) -> bool {
        let bound = self.bounds.max_depth.filter(|_| ask.want.gone == 0);
        let (depth, siblings) = (|| self.depth(ask.held), ask.held.siblings);
        bound.is_some_and(|bound| self.fleet.needs(ask.want.jobs, depth(), bound, siblings))
    }

    /// Whether a bound that is only tried would refuse an enqueue that fits. Nobody waits until the depth is known.
    pub(crate) fn would_refuse(&mut self, want: &Want, held: impl Fn() -> HeldCount) -> bool {
        let tried = want.tried.as_deref().filter(|_| self.estimate.is_known());
        tried.is_some_and(|tried| {
            let mut usages = self.usages(tried, held());
            usages.any(|usage| !usage.fits(want.amount(usage.met)))
        })
    }

    /// The part of its nearest bound that is left after an enqueue that fits; of one that is only tried, where no other
    /// is about what waits. `None`: it would not fit there.
    fn part_left(&mut self, ask: &QueueAsk<'_>) -> Option<f64> {
        let tried = ask.want.tried.as_deref();
        let tried = tried.filter(|_| !self.bounds.needs_depth());
        let bounds = tried.unwrap_or(&ask.want.bounds);
        let parts = self
            .usages(bounds, ask.held)
            .map(|usage| usage.part_left(ask.want.amount(usage.met)));
        let least = parts.fold(f64::INFINITY, f64::min);
        (least >= 0.0).then_some(least)
    }

    /// Why the enqueue does not fit beside what waits: first what can never fit, then a group that has its share, because
    /// no job of others that leaves makes room for it, and then the queue.
    fn full(&mut self, ask: &QueueAsk<'_>) -> Option<Full> {
        match (self.full_of_queue(ask), ask.group) {
            (Some(never), _) if !never.may_ever_fit() => Some(never),
            (_, Some(group)) => Some(Full {
                key: Some(Arc::clone(&group.group.name)),
                ..self.full_by(group.usage, group.wanted, ask)
            }),
            (full, None) => full,
        }
    }

    /// The answer if the enqueue would go beyond a bound of the queue itself.
    fn full_of_queue(&mut self, ask: &QueueAsk<'_>) -> Option<Full> {
        let want = ask.want;
        // Nobody waits for what makes room for itself.
        let before = ask.before.filter(|_| !self.may_drop(want));
        let ahead = |bound| before.map_or(0, |before| before.amount(bound));
        let usages = self.usages(&want.bounds, ask.held);
        let full = usages.filter(|usage| !usage.fits(ahead(usage.met) + want.amount(usage.met)));
        let full = full.min_by_key(|usage| want.amount(usage.met) <= usage.bound)?;
        Some(self.full_by(full, want.amount(full.met), ask))
    }

    /// The answer where the enqueue meets this bound, of which it wants so much.
    fn full_by(&mut self, usage: BoundUsage, wanted: u64, ask: &QueueAsk<'_>) -> Full {
        let places = self.jobs_over(ask).max(1);
        Full {
            queue: Arc::clone(&ask.want.queue),
            met: usage.met,
            depth: usage.used,
            bound: usage.bound,
            period: None,
            wanted,
            strategy: self.bounds.strategy,
            after: self.drain.time_for(places, ask.now.at),
            drain: self.drain.rate(ask.now.at),
            key: None,
        }
    }

    /// How many jobs must leave so that the enqueue fits.
    fn jobs_over(&mut self, ask: &QueueAsk<'_>) -> u64 {
        let usages = self.usages(&ask.want.bounds, ask.held);
        let over = usages.map(|usage| {
            let over = (usage.used + ask.want.amount(usage.met)).saturating_sub(usage.bound);
            self.as_jobs(over, usage, ask.held)
        });
        over.max().unwrap_or(0)
    }

    /// As how many jobs of its queue the enqueue counts.
    fn jobs_brought(&mut self, ask: &QueueAsk<'_>) -> u64 {
        let usages = self.usages(&ask.want.bounds, ask.held);
        let each = usages.map(|usage| self.as_jobs(ask.want.amount(usage.met), usage, ask.held));
        each.max().unwrap_or(0).max(ask.want.jobs)
    }

    /// How many jobs are so much of a bound, each as long as the others on average.
    fn as_jobs(&self, much: u64, usage: BoundUsage, held: HeldCount) -> u64 {
        match usage.met {
            BoundMet::Bytes => much.div_ceil((usage.used / self.depth(held).max(1)).max(1)),
            _ => much,
        }
    }

    /// Whether jobs may go so that this fits.
    fn may_drop(&self, want: &Want) -> bool {
        self.bounds.strategy == OverflowStrategy::DropOldest && !want.paused
    }

    /// How many more jobs go for an enqueue that does not fit; `None`: that does not help, or cannot be. In a fleet no
    /// more than it brings: what siblings have dropped is seen by the next look only, and would go again. After each look
    /// it is one more, so that the queue comes down to its bound.
    fn goes(&mut self, full: &Full, ask: &QueueAsk<'_>) -> Option<u64> {
        let is_tried = self.undroppable.is_none_or(|from| ask.now.at >= from);
        if !self.may_drop(ask.want) || !full.is_of_queue() || !is_tried {
            return None;
        }
        let mut goes = self.jobs_over(ask);
        if self.fleet.is_on() {
            let most = self.jobs_brought(ask) + u64::from(self.looks.is_fresh);
            goes = goes.min(most.saturating_sub(ask.want.gone));
        }
        (goes <= self.droppable(ask.held)).then_some(goes)
    }

    fn over_rate(&mut self, ask: &QueueAsk<'_>) -> Option<Full> {
        let (want, now) = (ask.want, ask.now);
        let rate = want.bounds.enqueue_rate.as_ref()?;
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
        let usage = BoundUsage {
            used: u64::from(count),
            bound: u64::from(limit),
            met: BoundMet::Rate,
        };
        Some(Full {
            period: Some(Duration::from_micros(rate.period.get())),
            strategy: OverflowStrategy::Reject,
            after: opens.map(|at| Duration::from_micros(at.since(now.stamp))),
            drain: None,
            ..self.full_by(usage, want.jobs, ask)
        })
    }

    /// How many jobs are surely available.
    fn droppable(&self, held: HeldCount) -> u64 {
        let of_fleet = self.fleet.depth().unwrap_or(0);
        let of_fleet = of_fleet.saturating_sub(self.estimate.in_flight);
        let waiting = self.estimate.waiting(held).max(of_fleet);
        // Only who holds a job can drop it.
        waiting.saturating_sub(self.estimate.elsewhere + self.later.count)
    }

    /// Why the backend could not be asked, if that was just now.
    fn away_at(&self, now: Instant) -> Option<&Away> {
        let (away, at) = self.looks.away.as_ref()?;
        (now.saturating_duration_since(*at) < NEAR).then_some(away)
    }
}
