//! The jobs of one lane, in groups that behave alike.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use tokio::time::Instant;

use super::line::Line;
use super::{Held, Refusal, Refused, Wakes};
use crate::limit::{EARLY, Key, Limited, PolicyAndKey, Space, Timestamp};
use crate::policy::{self, Gate};

/// How long what is known of keys keeps a group from being asked, in microseconds: a wake may have been lost.
const KNOWN: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) priority: i32,
    /// When it has its turn among those of its priority.
    turn: u64,
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
    /// One for jobs like this, which may be asked at once.
    fn of(held: &Held, turn: u64, woken: Wakes) -> Group {
        Group {
            priority: held.claimed.priority,
            turn,
            limits: held.written.clone(),
            edition: held.edition,
            jobs: VecDeque::new(),
            refused: None,
            refused_at: Timestamp::default(),
            woken,
            refused_by: None,
            rescheduled: None,
        }
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

    /// Where the job of this place stands.
    fn nth(&self, place: u64) -> Option<usize> {
        self.jobs
            .binary_search_by_key(&place, |held| held.place)
            .ok()
    }

    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.may_start(now) || self.refused_at.plus(KNOWN) <= now
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
    pub(super) groups: Groups,
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
            groups: Groups::default(),
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
        self.groups.in_order()
    }

    /// The waiting jobs, highest priority first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Held> {
        self.all_groups().flat_map(|group| &group.jobs)
    }

    pub(super) fn saw(&mut self, priority: i32) {
        self.highest = self.highest.max(Some(priority));
    }
}

/// Names a group of a lane, for as long as that is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct GroupId(u64);

/// Where a job waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stand {
    group: GroupId,
    /// Its [place](super::held::HeldJob::place).
    place: u64,
}

/// The groups of a lane. There may be as many as there are jobs, so none is looked for among all others: they are found
/// by name, by what their jobs have in common, and by a key.
#[derive(Default, Debug)]
pub(super) struct Groups {
    all: HashMap<GroupId, Group>,
    /// In the order of their turns, highest priority first.
    turns: BTreeMap<(Reverse<i32>, u64), GroupId>,
    /// By priority, edition and limits of their jobs.
    alike: HashMap<(i32, u64, Arc<[Limited]>), GroupId>,
    by_key: HashMap<(Space, Key), Vec<GroupId>>,
    /// The latest turn, and the latest name.
    last: u64,
}

impl Groups {
    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.all.get_mut(&id)
    }

    /// All, highest priority first, and those of one priority in the order of their turns.
    pub(super) fn in_order(&self) -> impl DoubleEndedIterator<Item = &Group> {
        self.turns.values().filter_map(|id| self.get(*id))
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.all.values_mut()
    }

    /// The groups of one priority, in the order of their turns.
    pub(super) fn of_priority(&self, priority: i32) -> impl Iterator<Item = (GroupId, &Group)> {
        let turns = (Reverse(priority), 0)..=(Reverse(priority), u64::MAX);
        let of_it = self.turns.range(turns);
        of_it.filter_map(|(_, id)| Some((*id, self.get(*id)?)))
    }

    /// The highest priority, or the highest below another.
    pub(super) fn next_priority(&self, below: Option<i32>) -> Option<i32> {
        let first = match below {
            None => self.turns.first_key_value(),
            Some(below) => self.turns.range((Reverse(below), u64::MAX)..).next(),
        };
        first.map(|((Reverse(priority), _), _)| *priority)
    }

    /// The group of jobs like these.
    pub(super) fn find(
        &self,
        priority: i32,
        edition: u64,
        limits: &Arc<[Limited]>,
    ) -> Option<GroupId> {
        let alike = (priority, edition, Arc::clone(limits));
        self.alike.get(&alike).copied()
    }

    /// A job waits in its place.
    pub(super) fn place(&mut self, held: Held, woken: Wakes) -> Stand {
        let (priority, edition) = (held.claimed.priority, held.edition);
        let known = self.find(priority, edition, &held.written);
        let id = known.unwrap_or_else(|| self.open(&held, woken));
        let stand = Stand {
            group: id,
            place: held.place,
        };
        if let Some(group) = self.all.get_mut(&id) {
            group.insert(held);
        }
        stand
    }

    /// A new group, behind all others of its priority.
    fn open(&mut self, held: &Held, woken: Wakes) -> GroupId {
        self.last += 1;
        let id = GroupId(self.last);
        let group = Group::of(held, self.last, woken);
        let alike = (group.priority, group.edition, group.limits.clone());
        self.turns.insert((Reverse(group.priority), group.turn), id);
        self.alike.insert(alike, id);
        for one in &*group.limits {
            let key = (one.space, one.key.clone());
            self.by_key.entry(key).or_default().push(id);
        }
        self.all.insert(id, group);
        id
    }

    fn close(&mut self, id: GroupId) -> Option<Group> {
        let group = self.all.remove(&id)?;
        self.turns.remove(&(Reverse(group.priority), group.turn));
        let alike = (group.priority, group.edition, group.limits.clone());
        self.alike.remove(&alike);
        for one in &*group.limits {
            let key = (one.space, one.key.clone());
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.retain(|of| *of != id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        Some(group)
    }

    /// Moves a group to the end of the turns; an empty one goes.
    pub(super) fn turn_over(&mut self, id: GroupId) {
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        if group.jobs.is_empty() {
            self.close(id);
            return;
        }
        self.last += 1;
        let before = std::mem::replace(&mut group.turn, self.last);
        self.turns.remove(&(Reverse(group.priority), before));
        self.turns.insert((Reverse(group.priority), group.turn), id);
    }

    pub(super) fn job(&self, stand: Stand) -> Option<&Held> {
        let group = self.get(stand.group)?;
        group.jobs.get(group.nth(stand.place)?)
    }

    pub(super) fn job_mut(&mut self, stand: Stand) -> Option<&mut Held> {
        let group = self.all.get_mut(&stand.group)?;
        let nth = group.nth(stand.place)?;
        group.jobs.get_mut(nth)
    }

    /// The group in which a job waits.
    pub(super) fn group_of(&self, stand: Stand) -> Option<&Group> {
        self.get(stand.group)
    }

    pub(super) fn take(&mut self, stand: Stand) -> Option<Held> {
        let group = self.all.get_mut(&stand.group)?;
        let nth = group.nth(stand.place)?;
        group.jobs.remove(nth)
    }

    /// Groups that a key limits may be asked again. Says whether there are any.
    pub(super) fn wake(&mut self, key: &(Space, Key), woken: Wakes) -> bool {
        let Some(ids) = self.by_key.get(key) else {
            return false;
        };
        for id in ids {
            if let Some(group) = self.all.get_mut(id) {
                group.wake(woken);
            }
        }
        true
    }

    /// Forgets groups without jobs.
    pub(super) fn tidy(&mut self) {
        let empty = self.all.iter().filter(|(_, group)| group.jobs.is_empty());
        let empty: Vec<GroupId> = empty.map(|(id, _)| *id).collect();
        for id in empty {
            self.close(id);
        }
    }

    /// The jobs of groups of earlier editions, in the order in which they came; they wait here no longer.
    pub(super) fn take_before(&mut self, edition: u64) -> Vec<Held> {
        let early = self.all.iter().filter(|(_, group)| group.edition < edition);
        let early: Vec<GroupId> = early.map(|(id, _)| *id).collect();
        let groups = early.into_iter().filter_map(|id| self.close(id));
        let mut jobs: Vec<Held> = groups.flat_map(|group| group.jobs).collect();
        jobs.sort_by_key(|held| held.place);
        jobs
    }
}
