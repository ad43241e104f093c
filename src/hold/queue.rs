//! The jobs of one lane, in groups that behave alike.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use tokio::time::Instant;

use super::line::Line;
use super::{Held, Refusal, Refused, Relimited, Wakes};
use crate::limit::{EARLY, Key, LINE, Limited, PolicyAndKey, Timestamp, is_priced};
use crate::policy::{self, Gate};

/// How long what is known of keys keeps a group from being asked, in microseconds: a wake may have been lost.
const KNOWN: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) limits: Arc<[Limited]>,
    /// Which edition of the policies the limits are from.
    pub(super) edition: u64,
    pub(super) jobs: VecDeque<Held>,
    /// Why it may not be asked for, if it may not.
    pub(super) refused: Option<Refused>,
    /// When it was refused.
    pub(super) refused_at: Timestamp,
    /// When it was last let be asked again, or made.
    pub(super) woken: Wakes,
    /// The limit that refused last.
    pub(super) refused_by: Option<PolicyAndKey>,
    /// When it was refused last, if its jobs are to be seen as scheduled until they may start.
    pub(super) rescheduled: Option<Timestamp>,
}

impl Group {
    /// A group of one, which may be asked at once.
    pub(super) fn of(held: Held, woken: Wakes) -> Box<Group> {
        Box::new(Group {
            limits: held.written.clone(),
            edition: held.edition,
            jobs: VecDeque::from([held]),
            refused: None,
            refused_at: Timestamp::default(),
            woken,
            refused_by: None,
            rescheduled: None,
        })
    }

    /// It may be asked again.
    pub(super) fn wake(&mut self, woken: Wakes) {
        self.refused = None;
        self.woken = woken;
    }

    /// One of its jobs was refused, and so would the others be.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.refused_by = refusal.by;
        self.rescheduled = refusal.rescheduled;
        // What refused it may be over since, and who told has gone by.
        if self.woken <= refusal.asked {
            self.refused = Some(refusal.refused);
            self.refused_at = refusal.at;
        }
    }

    /// A job waits in its place: those that came before it leave first.
    fn insert(&mut self, held: Held) {
        let before = |other: &Held| other.place <= held.place;
        let at = self.jobs.partition_point(before);
        self.jobs.insert(at, held);
    }

    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.may_start(now) || self.refused_at.plus(self.known()) <= now
    }

    /// How long what is known keeps it from being asked. A job that is first in line for its cost keeps its place by
    /// asking again.
    fn known(&self) -> u64 {
        let first = self.jobs.front();
        match first.is_some_and(|held| is_priced(&held.written)) {
            true => LINE * 3 / 4,
            false => KNOWN,
        }
    }

    /// Whether nothing known keeps its jobs from starting.
    fn may_start(&self, now: Timestamp) -> bool {
        match self.refused {
            None => true,
            Some(Refused::Until(at)) => at <= now.plus(EARLY),
            Some(Refused::ForSlot(_) | Refused::Paused) => false,
        }
    }

    /// When its jobs are expected to start, if they are rescheduled and may not start now. Nobody
    /// knows when a slot will end: it is expected one `visibility` after the refusal, when the slot of
    /// a worker that died is free, and when that has passed, one more.
    pub(super) fn scheduled_at(&self, visibility: u64, now: Timestamp) -> Option<Timestamp> {
        let since = self.rescheduled?;
        match self.refused? {
            Refused::Until(at) => (!self.may_start(now)).then_some(at),
            Refused::ForSlot(_) | Refused::Paused => {
                let visibility = visibility.max(1);
                let times = now.since(since) / visibility + 1;
                Some(since.plus(visibility.saturating_mul(times)))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    /// The key of the queue's own limits.
    pub(super) key: Key,
    /// By priority, highest first; the groups of one priority in the order of their turns. Boxed, because a turn moves
    /// those behind it.
    pub(super) groups: BTreeMap<Reverse<i32>, VecDeque<Box<Group>>>,
    pub(super) line: Line,
    /// What the queue's name says, as of the last FETCH.
    pub(super) gate: Gate,
    /// When the backend was last asked for jobs of this lane.
    pub(super) asked_at: Option<Instant>,
    /// When a worker last asked for jobs of this lane.
    pub(super) fetched_at: Instant,
    /// Whether the backend's last answer left more behind, as far as we know.
    pub(super) more: bool,
    /// The highest priority seen.
    pub(super) highest: Option<i32>,
    /// Jobs asked of the backend and not yet answered.
    pub(super) in_flight: usize,
    /// Jobs known, in hand and hidden ones included.
    pub(super) known: usize,
    /// How often a job came into the hold, or left it other than to a worker.
    pub(super) moved: u64,
}

impl Queue {
    pub(super) fn new(name: &str, now: Instant) -> Queue {
        Queue {
            key: policy::queue_key(name),
            groups: BTreeMap::new(),
            line: Line::default(),
            gate: Gate::default(),
            asked_at: None,
            fetched_at: now,
            more: true,
            highest: None,
            in_flight: 0,
            known: 0,
            moved: 0,
        }
    }

    /// Whether a worker has asked for jobs of this lane since then, or waits for them.
    pub(super) fn is_wanted(&self, since: Instant) -> bool {
        self.fetched_at > since || !self.line.is_empty()
    }

    /// Whether jobs are held or being asked of the backend.
    pub(super) fn is_busy(&self) -> bool {
        self.known > 0 || self.in_flight > 0
    }

    /// All groups, highest priority first.
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().flatten().map(Box::as_ref)
    }

    pub(super) fn all_groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.values_mut().flatten().map(Box::as_mut)
    }

    /// The groups of one priority.
    pub(super) fn of_priority(&mut self, priority: i32) -> impl Iterator<Item = &mut Group> {
        let groups = self.groups.get_mut(&Reverse(priority));
        groups.into_iter().flatten().map(Box::as_mut)
    }

    /// The waiting jobs, highest priority first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Held> {
        self.all_groups().flat_map(|group| &group.jobs)
    }

    pub(super) fn saw(&mut self, priority: i32) {
        self.highest = self.highest.max(Some(priority));
    }

    /// A job waits in its place.
    pub(super) fn place(&mut self, held: Held, wakes: Wakes) {
        let groups = self
            .groups
            .entry(Reverse(held.claimed.priority))
            .or_default();
        match position(groups, held.edition, &held.written).and_then(|at| groups.get_mut(at)) {
            Some(group) => group.insert(held),
            None => groups.push_back(Group::of(held, wakes)),
        }
    }

    pub(super) fn group(
        &mut self,
        priority: i32,
        edition: u64,
        limits: &[Limited],
    ) -> Option<&mut Group> {
        let groups = self.groups.get_mut(&Reverse(priority))?;
        let at = position(groups, edition, limits)?;
        groups.get_mut(at).map(Box::as_mut)
    }

    /// Moves a group to the end of the turns; an empty one goes.
    pub(super) fn turn_over(&mut self, priority: i32, edition: u64, limits: &[Limited]) {
        let Some(groups) = self.groups.get_mut(&Reverse(priority)) else {
            return;
        };
        let Some(at) = position(groups, edition, limits) else {
            return;
        };
        if let Some(group) = groups.remove(at)
            && !group.jobs.is_empty()
        {
            groups.push_back(group);
        }
        if groups.is_empty() {
            self.groups.remove(&Reverse(priority));
        }
    }

    pub(super) fn find(&self, priority: i32, job: &str) -> Option<&Held> {
        let groups = self.groups.get(&Reverse(priority))?;
        let mut waiting = groups.iter().flat_map(|group| &group.jobs);
        waiting.find(|held| &*held.claimed.job == job)
    }

    pub(super) fn find_mut(&mut self, priority: i32, job: &str) -> Option<&mut Held> {
        let groups = self.groups.get_mut(&Reverse(priority))?;
        groups
            .iter_mut()
            .flat_map(|group| &mut group.jobs)
            .find(|held| &*held.claimed.job == job)
    }

    pub(super) fn remove(&mut self, priority: i32, job: &str) -> Option<Held> {
        let groups = self.groups.get_mut(&Reverse(priority))?;
        for group in groups {
            if let Some(at) = group.jobs.iter().position(|held| &*held.claimed.job == job) {
                return group.jobs.remove(at);
            }
        }
        None
    }
}

/// Where among groups that of jobs under these limits stands.
fn position(groups: &VecDeque<Box<Group>>, edition: u64, limits: &[Limited]) -> Option<usize> {
    let find = |is: fn(&[Limited], &[Limited]) -> bool| {
        let of_edition = |group: &Group| group.edition == edition && is(&group.limits, limits);
        groups.iter().map(Box::as_ref).position(of_edition)
    };
    // Mostly they are the very same, for the limits of a job are found in a cache. Only where none is are all compared.
    find(|one, other| std::ptr::eq(one, other)).or_else(|| find(|one, other| one == other))
}

/// The same jobs in groups by the limits of now. A job without new limits is left with those it has.
pub(super) fn regrouped(
    old: VecDeque<Box<Group>>,
    edition: u64,
    limits: &mut HashMap<Arc<str>, Relimited>,
    woken: Wakes,
) -> VecDeque<Box<Group>> {
    let mut groups = VecDeque::new();
    let mut jobs: Vec<Held> = Vec::new();
    for group in old {
        if group.edition < edition {
            jobs.extend(group.jobs);
        } else {
            groups.push_back(group);
        }
    }
    jobs.sort_by_key(|held| held.place);
    let index = |(at, group): (usize, &Group)| ((group.edition, group.limits.clone()), at);
    let mut places: HashMap<(u64, Arc<[Limited]>), usize> = groups
        .iter()
        .map(Box::as_ref)
        .enumerate()
        .map(index)
        .collect();
    for mut held in jobs {
        let new = limits.remove(&held.claimed.job);
        if let Some(new) = new.filter(|new| new.generation == held.claimed.generation) {
            held.limit(new.limits, edition);
        }
        let place = *places
            .entry((held.edition, held.written.clone()))
            .or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.insert(held),
            None => groups.push_back(Group::of(held, woken)),
        }
    }
    groups
}
