//! The jobs of one lane, in groups that behave alike.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tokio::time::Instant;

use super::held::{GroupId, Held};
use super::line::Line;
use super::prospect::Prospect;
use super::refusal::{Refusal, Refused, Wakes};
use ojs_limit::{EARLY, Key, Limited, PolicyAndKey, Space, Timestamp, share_of};
use ojs_policy::{self, Gate};

/// How long a refusal keeps a group from being asked at least, in microseconds. A wake may have been lost, so a time
/// comes for each group; [`PACE`] says how much later it is where there are many.
const KNOWN: u64 = 1_000_000;

/// One group that waits for a wake is asked again in this time, in microseconds. There may be one for each of tens of
/// thousands of keys: asking all of them every second would cost more than all else, and finds a wake that was lost
/// only a little sooner.
const PACE: u64 = 1_000;

/// So many groups of which all jobs have left are kept for the next jobs of their kind. To make a group and to forget it
/// changes four tables more than to keep it does, and most keys have a job again soon.
const SPARE: usize = 1_000;

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
    /// From when on it may be asked although nobody woke it.
    asks_at: Timestamp,
    /// When it was last let be asked again, or made.
    pub(super) woken: Wakes,
    /// The limit that refused last.
    pub(super) refused_by: Option<PolicyAndKey>,
    /// When it was refused last, if its jobs are to be seen as scheduled until they may start.
    pub(super) rescheduled: Option<Timestamp>,
    /// The time that it waited for when it was last woken, until it is asked for.
    until: Option<Timestamp>,
    /// Whether all of its jobs have left: the next one finds it as if it were new.
    is_spare: bool,
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
            asks_at: Timestamp::default(),
            woken,
            refused_by: None,
            rescheduled: None,
            until: None,
            is_spare: false,
        }
    }

    fn turn(&self) -> LaneTurn {
        (Reverse(self.priority), self.turn)
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

    /// Whether it may be asked for a start.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.refused.is_none() || self.asks_at <= now
    }

    /// Whether the key refused it that it shares with others by weight.
    pub(super) fn waits_for_turn(&self) -> bool {
        let share = share_of(&self.limits).zip(self.refused_by.as_ref());
        share.is_some_and(|((one, _), (_, space, key))| (one.space, &one.key) == (*space, key))
    }

    /// Whether a job of it waits.
    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether nothing known keeps its jobs from starting.
    pub(super) fn may_start(&self, now: Timestamp) -> bool {
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
        // A wake is a reason to ask, and no answer.
        match self.refused.or(self.until.map(Refused::Until))? {
            Refused::Until(at) => (at > now.plus(EARLY)).then_some(at),
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
    /// Whether the backend's last answer left no more behind, as far as we know.
    pub(super) is_exhausted: bool,
    /// The highest priority seen.
    pub(super) highest: Option<i32>,
    /// Jobs asked of the backend and not yet answered.
    pub(super) in_flight: usize,
    /// Jobs known, in hand and hidden ones included.
    pub(super) known: usize,
    /// Those of them that were claimed from subqueues.
    pub(super) heads: usize,
    /// How often a job came into the hold, or left it other than to a worker.
    pub(super) moved: u64,
}

impl Queue {
    pub(super) fn new(name: &str, now: Instant) -> Queue {
        Queue {
            key: ojs_policy::queue_key(name),
            groups: Groups::default(),
            line: Line::default(),
            gate: Gate::default(),
            asked_at: None,
            fetched_at: now,
            is_exhausted: false,
            highest: None,
            in_flight: 0,
            known: 0,
            heads: 0,
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

    /// Whether it has jobs, or somebody waits for some.
    pub(super) fn is_needed(&self) -> bool {
        self.is_busy() || !self.line.is_empty()
    }

    /// For how long no worker has asked for its jobs. One that waits for some does.
    pub(super) fn silent_for(&self) -> Duration {
        match self.line.is_empty() {
            true => self.fetched_at.elapsed(),
            false => Duration::ZERO,
        }
    }

    /// All groups, highest priority first, and those of one priority in the order of their turns.
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        let all = self.groups.listed.within(FIRST..=LAST);
        all.filter_map(|id| self.groups.get(id))
    }

    /// The waiting jobs, highest priority first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Held> {
        self.all_groups().flat_map(|group| &group.jobs)
    }

    /// Whether and when one of its jobs could start by itself; `starts`: the groups that do so [next](Groups::next_starts).
    pub(super) fn prospect(&self, starts: [Option<&Group>; 2]) -> Prospect {
        let time = |group: &Group| match group.refused {
            Some(Refused::Until(at)) => Prospect::at(at),
            Some(Refused::ForSlot(from)) => Prospect::slot_from(from),
            Some(Refused::Paused) | None => Prospect::default(),
        };
        let refused = starts.into_iter().flatten().map(time);
        let now = match self.groups.has_open() {
            true => Prospect::at(Timestamp(0)),
            false => Prospect::default(),
        };
        refused.fold(now, Prospect::or)
    }

    pub(super) fn saw(&mut self, priority: i32) {
        self.highest = self.highest.max(Some(priority));
    }
}

/// What the jobs of a group have in common.
#[derive(Clone, Debug)]
struct Alike {
    priority: i32,
    edition: u64,
    limits: Arc<[Limited]>,
}

impl Alike {
    fn of(priority: i32, edition: u64, limits: &Arc<[Limited]>) -> Alike {
        Alike {
            priority,
            edition,
            limits: Arc::clone(limits),
        }
    }
}

impl Hash for Alike {
    /// Without what hardly ever tells groups apart: names of policies, and by which rules jobs pay.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.priority, self.edition).hash(state);
        for one in &*self.limits {
            (one.space, &one.key, &one.limits, &one.share).hash(state);
        }
    }
}

impl PartialEq for Alike {
    fn eq(&self, other: &Alike) -> bool {
        // Jobs of one key mostly have the very same limits.
        (self.priority, self.edition) == (other.priority, other.edition)
            && (Arc::ptr_eq(&self.limits, &other.limits) || self.limits == other.limits)
    }
}

impl Eq for Alike {}

/// Where a job waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stand {
    pub(super) group: GroupId,
    /// Its [place](super::held::HeldJob::place).
    place: u64,
}

/// The groups of a lane. There may be as many as there are jobs, so none is looked for among all others: they are found
/// by name, by what their jobs have in common, by a key, and by whether and when they may be asked.
#[derive(Default, Debug)]
pub(super) struct Groups {
    all: HashMap<GroupId, Group>,
    /// Where those that are not spare are found.
    listed: Listed,
    /// Which ones a key limits, spare ones among them.
    by_key: HashMap<(Space, Key), Vec<GroupId>>,
    alike: HashMap<Alike, GroupId>,
    /// By how many limits their jobs wait for.
    by_count: BTreeSet<(usize, GroupId)>,
    /// Those that were refused, by when they may be asked again.
    refused: BTreeSet<(Timestamp, GroupId)>,
    /// Those of them that wait for a time, and those that wait for a slot from a time on.
    until: BTreeSet<(Timestamp, GroupId)>,
    for_slot: BTreeSet<(Timestamp, GroupId)>,
    /// Those that have lost their last job since they were tidied. Picked jobs of them may come back.
    emptied: Vec<GroupId>,
    /// How many are spare.
    spare: usize,
    /// The keys of the first one, and whether others had other keys.
    first_limits: Option<Arc<[Limited]>>,
    pub(super) are_mixed: bool,
    /// How many take a share of a key, spare ones among them.
    with_share: usize,
    /// How many are under limits that count time, spare ones among them.
    timed: usize,
    /// The latest turn, and the latest name.
    last: u64,
}

/// When a group has its turn: those of higher priorities have theirs before.
type LaneTurn = (Reverse<i32>, u64);

/// Groups in the order of their turns.
#[derive(Default, Debug)]
struct Listed {
    /// Those that nothing keeps from being asked.
    open: BTreeMap<LaneTurn, GroupId>,
    /// Those that were refused.
    closed: BTreeMap<LaneTurn, GroupId>,
}

impl Listed {
    fn len(&self) -> usize {
        self.open.len() + self.closed.len()
    }

    fn remove(&mut self, turn: LaneTurn) {
        if self.open.remove(&turn).is_none() {
            self.closed.remove(&turn);
        }
    }

    /// Those of these turns, in order.
    fn within(&self, turns: RangeInclusive<LaneTurn>) -> impl Iterator<Item = GroupId> {
        let (open, closed) = (self.open.range(turns.clone()), self.closed.range(turns));
        merged(open, closed, LaneTurn::lt)
    }

    /// All, in reverse order.
    fn last_first(&self) -> impl Iterator<Item = GroupId> {
        merged(
            self.open.iter().rev(),
            self.closed.iter().rev(),
            LaneTurn::gt,
        )
    }
}

/// Merges two lists of groups, each of which is in this order. It goes one by one: there may be tens of thousands of
/// groups, and most callers look at the first few.
fn merged<'a>(
    open: impl Iterator<Item = (&'a LaneTurn, &'a GroupId)>,
    closed: impl Iterator<Item = (&'a LaneTurn, &'a GroupId)>,
    is_before: fn(&LaneTurn, &LaneTurn) -> bool,
) -> impl Iterator<Item = GroupId> {
    let (mut open, mut closed) = (open.peekable(), closed.peekable());
    std::iter::from_fn(move || {
        let next = match (open.peek(), closed.peek()) {
            (Some((one, _)), Some((other, _))) if !is_before(one, other) => closed.next(),
            (Some(_), _) => open.next(),
            (None, _) => closed.next(),
        };
        next.map(|(_, id)| *id)
    })
}

/// The first turn that there may be, and the last.
const FIRST: LaneTurn = (Reverse(i32::MAX), 0);
const LAST: LaneTurn = (Reverse(i32::MIN), u64::MAX);

/// All turns of one priority.
fn turns_of(priority: i32) -> RangeInclusive<LaneTurn> {
    (Reverse(priority), 0)..=(Reverse(priority), u64::MAX)
}

impl Groups {
    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        self.all.get(&id)
    }

    /// The next job of a group leaves it.
    pub(super) fn pop(&mut self, id: GroupId) -> Option<Held> {
        let jobs = &mut self.all.get_mut(&id)?.jobs;
        let held = jobs.pop_front()?;
        if jobs.is_empty() {
            self.emptied.push(id);
        }
        Some(held)
    }

    /// The names of all, in the order of their turns.
    pub(super) fn ids(&self) -> Vec<GroupId> {
        self.listed.within(FIRST..=LAST).collect()
    }

    /// All, the last first.
    pub(super) fn last_first(&self) -> impl Iterator<Item = &Group> {
        self.listed.last_first().filter_map(|id| self.get(id))
    }

    /// The groups of one priority, in the order of their turns.
    pub(super) fn of_priority(&self, priority: i32) -> impl Iterator<Item = (GroupId, &Group)> {
        let of_it = self.listed.within(turns_of(priority));
        of_it.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The groups of jobs that wait for no more limits than so many.
    pub(super) fn of_few_limits(&self, most: usize) -> impl Iterator<Item = &Group> {
        let few = self.by_count.range(..=(most, GroupId(u64::MAX)));
        few.filter_map(|(_, id)| self.get(*id))
    }

    /// The refused groups with jobs that may be asked again by now.
    fn due(&self, now: Timestamp) -> impl Iterator<Item = (GroupId, &Group)> {
        let due = self.refused.range(..=(now, GroupId(u64::MAX)));
        let due = due.filter_map(|(_, id)| Some((*id, self.get(*id)?)));
        due.filter(|(_, group)| group.has_jobs())
    }

    /// The groups of one priority whose jobs may be asked for, in the order of their turns, at least those from which
    /// the next `most` jobs come.
    pub(super) fn askable(
        &self,
        priority: i32,
        most: usize,
        now: Timestamp,
    ) -> Vec<(GroupId, &Group)> {
        // Each gives a job before any gives a second one. Where some share a turn all of them must be compared.
        let most = match self.with_share {
            0 => most,
            _ => usize::MAX,
        };
        let open = self.listed.open.range(turns_of(priority));
        let open = open.filter_map(|(_, id)| Some((*id, self.get(*id)?)));
        let open = open.filter(|(_, group)| group.has_jobs()).take(most);
        let mut askable = Vec::with_capacity(most.min(self.listed.open.len()));
        askable.extend(open);
        let due = self
            .due(now)
            .filter(|(_, group)| group.priority == priority);
        let before = askable.len();
        askable.extend(due);
        if askable.len() > before {
            askable.sort_by_key(|(_, group)| group.turn);
        }
        askable
    }

    /// Whether some of the next jobs may be refused. Others were refused before, or limits count time. A FETCH that gets
    /// some jobs under such limits leaves with them, so it has to pick enough at first.
    pub(super) fn may_refuse_some(&self) -> bool {
        !self.refused.is_empty() || self.timed > 0
    }

    /// The highest priority of a job that may be asked for, or the highest below another.
    pub(super) fn next_priority(&self, below: Option<i32>, now: Timestamp) -> Option<i32> {
        let is_below = |priority: &i32| below.is_none_or(|below| *priority < below);
        let from = below.map_or(FIRST, |below| (Reverse(below), u64::MAX));
        let open = self.listed.open.range(from..);
        let mut open = open.filter_map(|(_, id)| self.get(*id));
        let open = open.find(|group| group.has_jobs());
        let due = self.due(now).map(|(_, group)| group.priority);
        let open = open.map(|group| group.priority);
        due.chain(open).filter(is_below).max()
    }

    /// How many jobs may be asked for; at `most` it stops counting.
    pub(super) fn count_askable(&self, most: usize, now: Timestamp) -> usize {
        let open = self.listed.open.values().filter_map(|id| self.get(*id));
        let groups = open.chain(self.due(now).map(|(_, group)| group));
        let mut jobs = 0;
        for group in groups {
            jobs += group.jobs.len();
            if jobs >= most {
                return most;
            }
        }
        jobs
    }

    /// The first job by priority and turn, whether or not it may be asked for.
    pub(super) fn first(&self) -> Option<&Group> {
        let first = |turns: &BTreeMap<LaneTurn, GroupId>| {
            let mut groups = turns.values().filter_map(|id| self.get(*id));
            groups.find(|group| group.has_jobs())
        };
        let firsts = [&self.listed.open, &self.listed.closed].map(first);
        firsts.into_iter().flatten().min_by_key(|of| of.turn())
    }

    /// Whether a job waits that nothing keeps from being asked for.
    pub(super) fn has_open(&self) -> bool {
        let mut open = self.listed.open.values().filter_map(|id| self.get(*id));
        open.any(Group::has_jobs)
    }

    /// When a job may be asked for next, as far as is known.
    pub(super) fn next_ask(&self) -> Option<Timestamp> {
        let mut refused = self.refused.iter();
        let refused = refused.find(|(_, id)| self.get(*id).is_some_and(Group::has_jobs));
        match self.has_open() {
            true => Some(Timestamp(0)),
            false => refused.map(|(at, _)| *at),
        }
    }

    /// The group whose time comes first, and the one that a slot may let start first.
    pub(super) fn next_starts(&self) -> [Option<&Group>; 2] {
        [&self.until, &self.for_slot].map(|waits| {
            let mut waits = waits.iter().filter_map(|(_, id)| self.get(*id));
            waits.find(|group| group.has_jobs())
        })
    }

    /// A job waits in its place.
    pub(super) fn place(&mut self, mut held: Held, woken: Wakes) -> Stand {
        let alike = Alike::of(held.claimed.priority, held.edition, &held.written);
        held.group = match self.alike.get(&alike).copied() {
            Some(id) => self.open_again(id, woken),
            None => self.open(&held, woken),
        };
        let stand = Stand {
            group: held.group,
            place: held.place,
        };
        if let Some(group) = self.all.get_mut(&stand.group) {
            group.insert(held);
        }
        stand
    }

    /// A new group, behind all others of its priority.
    fn open(&mut self, held: &Held, woken: Wakes) -> GroupId {
        self.last += 1;
        let id = GroupId(self.last);
        let group = Group::of(held, self.last, woken);
        if !self.are_mixed {
            let first = self
                .first_limits
                .get_or_insert_with(|| Arc::clone(&group.limits));
            let mut both = first.iter().zip(&*group.limits);
            let has_same = both.all(|(one, other)| one.shares_key(other));
            self.are_mixed = first.len() != group.limits.len() || !has_same;
        }
        let alike = Alike::of(group.priority, group.edition, &group.limits);
        self.alike.insert(alike, id);
        self.by_count.insert((group.limits.len(), id));
        for one in &*group.limits {
            let key = (one.space, one.key.clone());
            self.by_key.entry(key).or_default().push(id);
        }
        self.with_share += usize::from(share_of(&group.limits).is_some());
        self.timed += usize::from(group.limits.iter().any(|one| one.limits.counts_time()));
        self.listed.open.insert(group.turn(), id);
        self.all.insert(id, group);
        id
    }

    /// A spare group becomes one as if it were new.
    fn open_again(&mut self, id: GroupId, woken: Wakes) -> GroupId {
        if let Some(group) = self.all.get_mut(&id).filter(|group| group.is_spare) {
            self.last += 1;
            self.spare -= 1;
            (group.is_spare, group.turn, group.woken) = (false, self.last, woken);
            (group.refused_by, group.rescheduled) = (None, None);
            self.listed.open.insert(group.turn(), id);
        }
        id
    }

    /// All jobs of a group have left. It waits for the next ones, unless many do.
    fn spare(&mut self, id: GroupId) {
        self.let_ask(id, Wakes::default());
        let Some(group) = self.all.get_mut(&id).filter(|group| !group.is_spare) else {
            return;
        };
        group.is_spare = true;
        self.spare += 1;
        self.listed.remove(group.turn());
        if self.spare > SPARE {
            let emptied = mem::take(&mut self.emptied);
            let is_spare = |id: &GroupId| self.get(*id).is_some_and(|group| group.is_spare);
            let (spare, emptied) = emptied.into_iter().partition::<Vec<_>, _>(is_spare);
            self.emptied = emptied;
            spare.into_iter().for_each(|id| drop(self.close(id)));
        }
    }

    fn close(&mut self, id: GroupId) -> Option<Group> {
        self.let_ask(id, Wakes::default());
        let group = self.all.remove(&id)?;
        let alike = Alike::of(group.priority, group.edition, &group.limits);
        self.alike.remove(&alike);
        self.by_count.remove(&(group.limits.len(), id));
        for one in &*group.limits {
            let key = (one.space, one.key.clone());
            if let Entry::Occupied(mut ids) = self.by_key.entry(key) {
                ids.get_mut().retain(|of| *of != id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
        }
        self.with_share -= usize::from(share_of(&group.limits).is_some());
        self.timed -= usize::from(group.limits.iter().any(|one| one.limits.counts_time()));
        match group.is_spare {
            true => self.spare -= 1,
            false => self.listed.remove(group.turn()),
        }
        Some(group)
    }

    /// Moves a group to the end of the turns; an empty one waits for jobs.
    pub(super) fn turn_over(&mut self, id: GroupId) {
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        if group.jobs.is_empty() {
            self.spare(id);
            return;
        }
        self.last += 1;
        let before = group.turn();
        (group.turn, group.until) = (self.last, None);
        let listed = match self.listed.open.remove(&before) {
            Some(_) => &mut self.listed.open,
            None => {
                self.listed.closed.remove(&before);
                &mut self.listed.closed
            }
        };
        listed.insert(group.turn(), id);
    }

    /// Whether a group may not be asked for, for this very reason.
    pub(super) fn is_refused_so(&self, id: GroupId, refusal: &Refusal) -> bool {
        let group = self.all.get(&id);
        group.is_some_and(|group| {
            // One whose time to be asked again has come was asked, and waits anew.
            (group.refused == Some(refusal.refused) && group.refused_by == refusal.by)
                && group.asks_at > refusal.at
        })
    }

    /// One job of a group was refused, and so would the others be. `picked`: how often the hold had been woken when that
    /// one was picked. An end of a slot since then may have come too late for the answer, and too early for whoever
    /// waits for it.
    pub(super) fn refuse(&mut self, id: GroupId, refusal: Refusal, picked: Wakes) {
        let known = self.listed.len() as u64;
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        group.refused_by = refusal.by;
        group.rescheduled = refusal.rescheduled;
        if group.woken > picked {
            return;
        }
        let woken = group.woken;
        self.let_ask(id, woken);
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        let again = refusal.at.plus(KNOWN.max(known.saturating_mul(PACE)));
        group.refused = Some(refusal.refused);
        group.asks_at = match refusal.refused {
            Refused::Until(at) => at.minus(EARLY).min(again),
            Refused::ForSlot(_) | Refused::Paused => again,
        };
        self.listed.open.remove(&group.turn());
        self.listed.closed.insert(group.turn(), id);
        self.refused.insert((group.asks_at, id));
        match refusal.refused {
            Refused::Until(at) => self.until.insert((at, id)),
            Refused::ForSlot(at) => self.for_slot.insert((at, id)),
            Refused::Paused => false,
        };
    }

    /// A group may be asked again.
    fn let_ask(&mut self, id: GroupId, woken: Wakes) {
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        group.woken = woken;
        let Some(refused) = group.refused.take() else {
            return;
        };
        self.refused.remove(&(group.asks_at, id));
        group.until = None;
        match refused {
            Refused::Until(at) => {
                group.until = Some(at);
                self.until.remove(&(at, id))
            }
            Refused::ForSlot(at) => self.for_slot.remove(&(at, id)),
            Refused::Paused => false,
        };
        self.listed.closed.remove(&group.turn());
        self.listed.open.insert(group.turn(), id);
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

    pub(super) fn take(&mut self, stand: Stand) -> Option<Held> {
        let group = self.all.get_mut(&stand.group)?;
        let nth = group.nth(stand.place)?;
        let held = group.jobs.remove(nth)?;
        if group.jobs.is_empty() {
            self.emptied.push(stand.group);
        }
        Some(held)
    }

    /// Groups that a key limits may be asked again. Says whether there are any.
    pub(super) fn wake(&mut self, key: &(Space, Key), woken: Wakes) -> bool {
        let Some(ids) = self.by_key.get(key).cloned() else {
            return false;
        };
        let mut any = false;
        for id in ids {
            any |= self.get(id).is_some_and(|group| !group.is_spare);
            self.let_ask(id, woken);
        }
        any
    }

    /// All may be asked again.
    pub(super) fn wake_all(&mut self, woken: Wakes) {
        let ids: Vec<GroupId> = self.all.keys().copied().collect();
        ids.into_iter().for_each(|id| self.let_ask(id, woken));
    }

    /// How many there are, spare ones among them.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Forgets groups without jobs.
    pub(super) fn tidy(&mut self) {
        for id in mem::take(&mut self.emptied) {
            if self.get(id).is_some_and(|group| !group.has_jobs()) {
                self.close(id);
            }
        }
    }

    /// The jobs of groups of earlier editions, in the order in which they came; they wait here no longer.
    pub(super) fn take_before(&mut self, edition: u64) -> Vec<Held> {
        (self.first_limits, self.are_mixed) = (None, false);
        let early = self.all.iter().filter(|(_, group)| group.edition < edition);
        let early: Vec<GroupId> = early.map(|(id, _)| *id).collect();
        let groups = early.into_iter().filter_map(|id| self.close(id));
        let mut jobs: Vec<Held> = groups.flat_map(|group| group.jobs).collect();
        jobs.sort_by_key(|held| held.place);
        jobs
    }
}
