//! Backpressure: how much waits in each bounded queue, and whether an enqueue fits.
//!
//! An enqueue of one or more jobs **wants** places in its queues, and gets **places** in all of them
//! or in none. Places are taken before anything is sent on and settled by the backend's answer, so
//! that no number of producers at once gets a queue over its bound. A queue near its bound is
//! **looked** at first: one question to the backend for all who wait.
//!
//! Nothing in here asks, waits or tells the time. One lock, held for arithmetic only. Where a
//! fleet shares a store, it shares one number for each queue ([`share`]).

pub mod bounds;
pub mod drain;
pub mod drops;
pub mod edge;
pub mod estimate;
mod forget;
pub mod given;
mod groups;
mod hidden;
mod known;
mod line;
mod look;
mod places;
mod queue;
pub mod share;
mod sizes;
mod want;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use crate::limit::Timestamp;
use crate::upstream::UpstreamError;

pub use bounds::{Bounds, DEFAULT_TENANT, FileBounds, Given, OverflowStrategy, PerKey};
pub use drops::{DropTurn, Dropped};
pub use edge::{Crossed, Edge, RefusalTold};
pub use estimate::{Counts, HeldCount, LookFound, LookKind, Mark};
pub use groups::Group;
pub use line::{Come, LineTurn};
pub use look::{Fleet, StatsTold, Untold};
pub use places::{NewJob, TakenPlaces};
pub use share::{GrantedPlaces, WantedPlaces};
pub use want::{BoundMet, BoundUnit, BoundUsage, Full, Level, Now, Want};

use bounds::{BoundsTable, UNBOUNDED};
use groups::Groups;
use hidden::{LaterState, TellsState};
use line::{BlockedLine, WantedAhead};
use queue::{BoundedQueue, QueueAnswer};

/// Why the backend could not be asked.
#[derive(Clone, Debug)]
pub enum Away {
    /// It did not answer.
    Unanswered(UpstreamError),
    /// It answers with this status, and not with numbers.
    Failing(u16),
}

/// What is known of queues, by name.
type BoundedQueues = hashbrown::HashMap<Arc<str>, Box<BoundedQueue>>;

/// Counts the jobs of a queue that this sidecar holds.
type HeldOf = Box<dyn Fn(&str) -> HeldCount + Send + Sync>;

/// The bounded queues of one sidecar.
pub struct Pressure {
    held: HeldOf,
    table: ArcSwap<BoundsTable>,
    /// Whether any queue is bounded. Mostly none is, and this spares all else.
    any: AtomicBool,
    marks: AtomicU64,
    state: Mutex<PressureState>,
    /// How many jobs of each key and of each tenant wait.
    groups: Arc<Groups>,
    /// What the backend tells of jobs that are scheduled, and of those that are to be tried again.
    tells: (TellsState, TellsState),
    /// Whether any job was seen to wait for a time.
    any_later: AtomicBool,
    /// Whether a fleet shares its depths.
    shared: AtomicBool,
}

#[derive(Default, Debug)]
struct PressureState {
    queues: BoundedQueues,
    line: BlockedLine,
    /// Queues for which the store is to be asked for places.
    wanted: Vec<Arc<str>>,
    /// Queues of which the store is to be told something.
    untold: HashSet<Arc<str>>,
    /// Told when the first queue comes to be in one of these two: the store is to be asked or told something.
    news: Arc<Notify>,
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pressure")
    }
}

/// The answer to an enqueue.
#[derive(Debug)]
pub enum Admission {
    /// It fits: its places are taken.
    Go(TakenPlaces),
    /// These queues must be looked at first.
    Look(Vec<Looking>),
    /// It fits once the caller has dropped a job of this queue.
    Drop(Arc<str>),
    /// It does not fit.
    Full(Box<Full>),
    /// It may not fit, and the backend does not say.
    Away(Away),
}

/// A look that is wanted.
#[derive(Debug)]
pub struct Looking {
    /// The queue.
    pub queue: Arc<str>,
    /// Whether it is the caller who must ask.
    pub begin: bool,
    /// Ends with the look.
    pub done: OwnedNotified,
}

/// Where jobs go that the backend gave to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenTo {
    /// To a worker: they wait no longer.
    Worker,
    /// Into the hold, where they wait on.
    Hold,
}

/// What became of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnqueueOutcome {
    /// The backend stored it, or may have.
    Stored,
    /// It surely did not.
    Refused,
}

impl Pressure {
    /// Starts with the bounds of a file. `held` counts what is held of a queue; it is called under the lock.
    pub fn new(
        file: Arc<FileBounds>,
        held: impl Fn(&str) -> HeldCount + Send + Sync + 'static,
    ) -> Arc<Pressure> {
        let table = BoundsTable::new(file, HashMap::new(), HashMap::new());
        Arc::new(Pressure {
            held: Box::new(held),
            any: AtomicBool::new(table.any()),
            table: ArcSwap::from_pointee(table),
            marks: AtomicU64::new(1),
            state: Mutex::default(),
            groups: Arc::default(),
            tells: Default::default(),
            any_later: AtomicBool::new(false),
            shared: AtomicBool::new(false),
        })
    }

    /// Changes or reads a queue, if anything is kept of it.
    fn with<T>(&self, name: &str, what: impl FnOnce(&mut BoundedQueue) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(name)?;
        Some(what(queue))
    }

    /// Changes a queue in a way that may make room, and gives the room to those who wait for it.
    fn make_room(self: &Arc<Self>, name: &str, now: Now, what: impl FnOnce(&mut BoundedQueue)) {
        let mut state = self.state.lock();
        if let Some(queue) = state.queues.get_mut(name) {
            what(queue);
            state.note_untold(name);
            self.serve(&mut state, now);
        }
    }

    /// Whether any queue is bounded.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The bounds of a queue.
    pub fn bounds(&self, queue: &str) -> Option<Arc<Bounds>> {
        self.table.load().of(queue).cloned()
    }

    /// The bounds of a queue as the file and HTTP give them.
    pub fn given(&self, queue: &str) -> Option<Given> {
        self.table.load().given(queue)
    }

    /// Takes over the bounds of another file. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn publish(self: &Arc<Self>, file: Arc<FileBounds>, now: Now) -> Vec<(Arc<str>, Level)> {
        self.bound_again(now, |table| table.with_file(file))
    }

    /// Replaces all bounds that were set over HTTP. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn set(
        self: &Arc<Self>,
        queues: HashMap<Arc<str>, Given>,
        tenants: HashMap<Arc<str>, u64>,
        now: Now,
    ) -> Vec<(Arc<str>, Level)> {
        self.bound_again(now, |table| table.with_set(queues, tenants))
    }

    /// Gives all queues the bounds of another table, whether anybody enqueues or not.
    fn bound_again(
        self: &Arc<Self>,
        now: Now,
        change: impl FnOnce(&BoundsTable) -> BoundsTable,
    ) -> Vec<(Arc<str>, Level)> {
        let mut state = self.state.lock();
        let table = Arc::new(change(&self.table.load()));
        self.any.store(table.any(), Ordering::Release);
        let before = self.table.swap(Arc::clone(&table));
        let names = match table.differs(&before) {
            Some(names) => names,
            None => state.queues.keys().cloned().collect(),
        };
        let none = Arc::new(UNBOUNDED);
        let each = names.into_iter().filter_map(|name| {
            let queue = state.queues.get_mut(&name)?;
            let held = || (self.held)(&name);
            let level = queue.bound_again(table.of(&name).unwrap_or(&none), held, now.at)?;
            Some((name, level))
        });
        let levels = each.collect();
        self.serve(&mut state, now);
        levels
    }

    /// How many jobs of a tenant may wait, over all queues; 0 is any number, `None`: the tenant has no bound.
    pub fn tenant(&self, tenant: &str) -> Option<u64> {
        self.table.load().tenant(tenant)
    }

    /// A new mark: what is sent after it is not in an answer from before it.
    pub fn mark(&self) -> Mark {
        Mark(self.marks.fetch_add(1, Ordering::AcqRel))
    }

    /// Asks for places in all the queues of an enqueue, in the order of their names, and takes them if it fits.
    pub fn ask(self: &Arc<Self>, wants: &mut Vec<Want>, now: Now) -> Admission {
        self.ask_new(&mut self.state.lock(), wants, now)
    }

    fn ask_new(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: &mut Vec<Want>,
        now: Now,
    ) -> Admission {
        state.forget_idle(now.at);
        let ahead = state.line.ahead();
        self.ask_in(state, wants, now, &ahead, Some(LookKind::Closed))
    }

    /// Asks for places beside what those want who wait `ahead`. `look`: of the looks that are begun; `None`: somebody
    /// else looks.
    fn ask_in(
        self: &Arc<Self>,
        state: &mut PressureState,
        wants: &mut Vec<Want>,
        now: Now,
        ahead: &WantedAhead,
        look: Option<LookKind>,
    ) -> Admission {
        let queues = &mut state.queues;
        let (mut looks, mut full) = (Vec::new(), None::<Box<Full>>);
        let (mut shared, mut soon, mut stuck) = (Vec::new(), Vec::new(), None);
        let group = self.groups.full(&self.table.load(), wants, ahead);
        for want in wants.iter() {
            let queue = self.of(queues, want, now.at);
            let group = group.as_ref();
            let group = group.filter(|full| want.all_groups().any(|group| *group == full.group));
            let (held, before) = ((self.held)(&want.queue), ahead.of(&want.queue));
            match queue.ask(want, held, before, group, now) {
                QueueAnswer::Fits { look } => {
                    if look && !queue.estimate.is_looking() {
                        soon.push(Arc::clone(&want.queue));
                    }
                }
                QueueAnswer::Look => {
                    if let Some(away) = queue.away_at(now.at) {
                        return Admission::Away(away.clone());
                    }
                    looks.push(Arc::clone(&want.queue));
                }
                QueueAnswer::Places => shared.push((Arc::clone(&want.queue), want.jobs)),
                QueueAnswer::Drop => stuck = Some(Arc::clone(&want.queue)),
                QueueAnswer::Full(found) => {
                    if full.as_ref().is_none_or(|full| found.rank() > full.rank()) {
                        full = Some(found);
                    }
                }
            }
        }
        if full.as_ref().is_none_or(|full| full.may_ever_fit()) && !looks.is_empty() {
            let begun = looks.into_iter();
            let begun = begun.filter_map(|name| Looking::at(queues, name, look?));
            return Admission::Look(begun.collect());
        }
        if let Some(full) = full {
            return Self::refuse(queues, full, now);
        }
        if let Some(name) = stuck {
            return Admission::Drop(name);
        }
        if !shared.is_empty() {
            return Admission::Look(self.want_places(state, shared));
        }
        for want in &*wants {
            self.of(&mut state.queues, want, now.at).reserve(want, now);
            state.note_untold(&want.queue);
        }
        Admission::Go(TakenPlaces {
            pressure: Arc::clone(self),
            wants: std::mem::take(wants),
            now,
            sent: false,
            look: soon,
            looked: false,
        })
    }

    /// The state of a wanted queue.
    fn of<'q>(
        &self,
        queues: &'q mut BoundedQueues,
        want: &Want,
        now: Instant,
    ) -> &'q mut BoundedQueue {
        let queue = queues
            .entry(Arc::clone(&want.queue))
            .or_insert_with_key(|name| self.queue(name, Arc::clone(&want.bounds), now));
        queue.used = now;
        if !Arc::ptr_eq(&queue.bounds, &want.bounds) {
            queue.bounds = Arc::clone(&want.bounds);
        }
        queue
    }

    /// A queue of which nothing is known yet.
    fn queue(&self, name: &Arc<str>, bounds: Arc<Bounds>, now: Instant) -> Box<BoundedQueue> {
        Box::new(BoundedQueue::new(name, bounds, &self.groups, now))
    }

    /// The answer to an enqueue that does not fit.
    fn refuse(queues: &BoundedQueues, full: Box<Full>, now: Now) -> Admission {
        // There may be room that nobody knows of; where no numbers are told, there is none.
        if full.may_ever_fit()
            && full.is_of_queue()
            && let Some(queue) = queues.get(&full.queue)
            && queue.estimate.is_told()
            && let Some(away) = queue.away_at(now.at)
        {
            return Admission::Away(away.clone());
        }
        Admission::Full(full)
    }

    /// Notes that a producer is told that its enqueue does not fit. Returns where else that is worth telling.
    pub fn says(&self, full: &Full, now: Instant) -> RefusalTold {
        let first = RefusalTold {
            told: true,
            loud: true,
        };
        self.with(&full.queue, |queue| queue.edges.refused(full, now))
            .unwrap_or(first)
    }

    /// Puts an enqueue in line until its places are free. `None`: the line is too long.
    pub fn stand(self: &Arc<Self>, wants: Vec<Want>, most: usize) -> Option<LineTurn> {
        self.state.lock().line.stand(Arc::clone(self), wants, most)
    }

    /// What is wanted of queues that are bounded still: what bounds them may have changed since it was wanted.
    pub fn bounded_now(&self, wants: &[Want]) -> Vec<Want> {
        let bounded = wants.iter().filter_map(|want| {
            let bounds = self.bounds(&want.queue)?;
            Some(Want {
                bounds,
                ..want.clone()
            })
        });
        bounded.collect()
    }

    /// Gives places to those who stand in line, in their order. Nobody passes one who waits for the same queue,
    /// unless it has room for both.
    fn serve(self: &Arc<Self>, state: &mut PressureState, now: Now) {
        if state.line.len() == 0 {
            return;
        }
        // Queues that have no room even for one who stays, and what all of those want.
        let (mut shut, mut ahead) = (HashSet::<Arc<str>>::new(), WantedAhead::default());
        let mut line = std::mem::take(&mut state.line);
        line.retain(|waiter| {
            let names = || waiter.wants.iter().map(|want| Arc::clone(&want.queue));
            if !waiter.hears() || names().any(|name| shut.contains(&name)) {
                ahead.add(&waiter.wants);
                return true;
            }
            let mut wants = self.bounded_now(&waiter.wants);
            match self.ask_in(state, &mut wants, now, &ahead, None) {
                Admission::Go(places) => {
                    waiter.tell(Come::Places(places));
                    false
                }
                Admission::Full(full) => {
                    if full.is_of_queue() {
                        shut.insert(full.queue);
                    }
                    ahead.add(&waiter.wants);
                    true
                }
                // Which of them has room is not known.
                Admission::Look(_) | Admission::Away(_) => {
                    shut.extend(names());
                    true
                }
                Admission::Drop(queue) => {
                    // It keeps its place in the line.
                    waiter.tell(Come::Drop(queue));
                    ahead.add(&waiter.wants);
                    true
                }
            }
        });
        state.line = line;
    }

    /// Gives room to those who stand in line, if there is any.
    pub fn wake(self: &Arc<Self>, now: Now) {
        let mut state = self.state.lock();
        self.serve(&mut state, now);
    }

    /// How many stand in line.
    pub fn blocked(&self) -> usize {
        self.state.lock().line.len()
    }

    /// Notes that jobs of a queue were given to us in answer to a FETCH that was sent at `sent`.
    pub fn left(self: &Arc<Self>, name: &str, jobs: u64, sent: Mark, to: TakenTo, now: Now) {
        self.make_room(name, now, |queue| queue.left(jobs, sent, to, now.at));
    }

    /// Notes that this job of a queue waits no longer, where it matters which jobs leave and not only how many.
    pub fn gone(self: &Arc<Self>, name: &str, id: &str, now: Now) {
        if self.bounds(name).is_some_and(|bounds| bounds.tells_apart()) {
            self.make_room(name, now, |queue| queue.members.left(id));
        }
    }

    /// Notes that a held job of a queue goes to a worker.
    pub fn started(self: &Arc<Self>, name: &str, id: &str, now: Now) {
        if self.any() {
            self.make_room(name, now, |queue| queue.started(id, now.at));
        }
    }

    /// A FETCH of this queue alone that was sent at `sent` got fewer jobs than it asked for.
    pub fn ran_dry(self: &Arc<Self>, name: &str, sent: Mark, now: Now) {
        self.make_room(name, now, |queue| queue.estimate.ran_dry(sent));
    }

    /// A job of a queue waits again.
    pub fn came(&self, name: &str) {
        let mark = self.mark();
        self.with(name, |queue| queue.estimate.came(1, mark));
    }

    /// A job of a queue failed, and waits again: it is tried again from `due` on.
    pub fn came_to_retry(&self, name: &str, job: &str, due: Timestamp) {
        self.any_later.store(true, Ordering::Relaxed);
        let mark = self.mark();
        self.with(name, |queue| {
            queue.estimate.came(1, mark);
            queue.later.add(job, LaterState::Retryable, due);
        });
    }

    /// Notes that a job of a queue waits for no time any more. Returns whether it did until now, as far as is known.
    pub fn waits_no_longer(&self, name: &str, job: &str, now: Timestamp) -> bool {
        // Mostly none was ever seen to wait for a time.
        let remove = |queue: &mut BoundedQueue| queue.later.remove(job, now);
        self.any_later.load(Ordering::Relaxed) && self.with(name, remove).unwrap_or(false)
    }

    /// Where a queue stands; `None`: nothing is known of it.
    pub fn level(&self, name: &str) -> Option<Level> {
        self.with(name, |queue| self.level_of(queue, name))?
    }

    fn level_of(&self, queue: &mut BoundedQueue, name: &str) -> Option<Level> {
        let known = queue.estimate.is_known();
        known.then(|| queue.level((self.held)(name)))
    }

    /// The queues at their warning threshold or beyond that were not looked at for a second (up to a minute where
    /// nobody uses them), and whose credentials were used last.
    pub fn pressed(&self, now: Instant) -> Vec<(Arc<str>, u64)> {
        let state = self.state.lock();
        let due = state.queues.iter();
        let due = due.filter(|(_, queue)| queue.is_pressed(now));
        due.map(|(name, queue)| (Arc::clone(name), queue.looks.scope))
            .collect()
    }

    /// How many queues are at their warning threshold or beyond.
    pub fn near_bound(&self) -> usize {
        let state = self.state.lock();
        state
            .queues
            .values()
            .filter(|queue| queue.edges.is_above())
            .count()
    }

    /// The queues of which something is known.
    pub fn names(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let known = state.queues.iter().filter(|(_, q)| q.estimate.is_known());
        known.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Has each queue looked at before its next enqueue is let in: jobs may have come to any of them.
    pub fn doubt_all(&self) {
        let mut state = self.state.lock();
        let queues = state.queues.values_mut();
        queues.for_each(|queue| queue.estimate.doubt_all());
    }

    /// Forgets the queues that nobody used for ten minutes and in which nothing waits, unless they are bounded by
    /// their names or something is to be remembered of them. Call it now and then.
    pub fn forget_unused(&self, now: Now) {
        let mut state = self.state.lock();
        let table = self.table.load();
        let PressureState { queues, untold, .. } = &mut *state;
        queues.retain(|name, queue| {
            let stays = queue.is_used(now.at) || untold.contains(name) || table.names(name);
            // Of one that is not bounded any more, what is known is true no longer.
            stays || (table.of(name).is_some() && queue.has_some((self.held)(name), now))
        });
        let len = queues.len();
        queues.shrink_to(2 * len);
        self.groups.shrink();
    }

    /// Forgets all that is known of queues (`dev`'s reset); bounds stay.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        for queue in state.queues.values() {
            queue.looks.done.notify_waiters();
        }
        state.queues.clear();
        self.groups.clear();
    }
}

impl PressureState {
    /// Takes back the places of enqueues that surely did not happen.
    fn refused(&mut self, wants: &[Want], at: Timestamp) {
        for want in wants {
            if let Some(queue) = self.queues.get_mut(&want.queue) {
                queue.refused(want, at);
            }
            self.note_untold(&want.queue);
        }
    }

    /// Notes that the store is to be told of a queue, if a number is shared for it.
    fn note_untold(&mut self, name: &str) {
        if let Some((name, queue)) = self.queues.get_key_value(name)
            && queue.share.is_on()
        {
            if self.untold.is_empty() {
                self.news.notify_one();
            }
            self.untold.insert(Arc::clone(name));
        }
    }
}
