//! The bounded queues of one sidecar, under one lock, and places that were taken in them. The other files of this room
//! each do one thing with them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::bounds::{Bounds, BoundsTable, FileBounds, Given};
use super::estimate::HeldCount;
use super::groups::GroupCounts;
use super::hidden::TellsState;
use super::queue::BoundedQueue;
use super::seen::{EnqueueOutcome, Mark, TakenTo};
use super::want::{Level, Now, Want};
use ojs_limit::Timestamp;

/// What is known of queues, by name.
pub(super) type BoundedQueues = hashbrown::HashMap<Arc<str>, Box<BoundedQueue>>;

/// Counts the jobs of a queue that this sidecar holds.
pub(super) type HeldOf = Box<dyn Fn(&str) -> HeldCount + Send + Sync>;

/// The bounded queues of one sidecar.
pub struct Pressure {
    pub(super) held: HeldOf,
    pub(super) table: ArcSwap<BoundsTable>,
    pub(super) marks: AtomicU64,
    pub(super) state: Mutex<PressureState>,
    /// How many jobs of each key and of each tenant wait.
    pub(super) groups: Arc<GroupCounts>,
    /// What the backend tells of jobs that are scheduled, and of those that are to be tried again.
    pub(super) tells: (TellsState, TellsState),
    /// Whether any job was seen to wait for a time.
    pub(super) any_later: AtomicBool,
    /// Whether a fleet shares its depths.
    pub(super) shared: AtomicBool,
    /// Whether queues may have got bounds that nobody has looked at since.
    bounded_anew: AtomicBool,
}

#[derive(Default, Debug)]
pub(super) struct PressureState {
    pub(super) queues: BoundedQueues,
    /// The enqueues that wait for room, in the order in which they came.
    pub(super) line: BTreeMap<u64, BlockedEnqueue>,
    pub(super) last_in_line: u64,
    /// Queues for which the store is to be asked for places.
    pub(super) wanted: Vec<Arc<str>>,
    /// Queues of which the store is to be told something.
    pub(super) untold: HashSet<Arc<str>>,
    /// Told when the first queue comes to be in one of these two: the store is to be asked or told something.
    pub(super) news: Arc<Notify>,
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pressure")
    }
}

/// Places in bounded queues, taken and not settled. Dropped before anything was sent on they are free
/// again; dropped later they count as filled.
#[derive(Debug)]
pub struct TakenPlaces {
    pub(super) pressure: Arc<Pressure>,
    pub(super) wants: Vec<Want>,
    pub(super) now: Now,
    /// What becomes of the enqueue as far as is known when this goes before it is settled.
    pub(super) if_dropped: EnqueueOutcome,
    /// Queues that the caller should look at soon.
    pub look_soon: Vec<Arc<str>>,
    /// Queues of which a bound that is only tried would have refused the enqueue.
    pub would_refuse: Vec<Arc<str>>,
    /// Whether the caller had to look at queues before, or to wait; it says so itself.
    pub has_waited: bool,
}

/// The news for an enqueue that waits.
#[derive(Debug)]
pub enum Come {
    /// It has these places.
    Places(TakenPlaces),
    /// It must drop a job of this queue first, and then [stand on](super::PlaceInLine::stand_on).
    Drop(Arc<str>),
}

/// An enqueue that waits.
#[derive(Debug)]
pub(super) struct BlockedEnqueue {
    pub(super) wants: Vec<Want>,
    /// How it is told; `None` while it drops a job.
    pub(super) tell: Option<oneshot::Sender<Come>>,
}

impl BlockedEnqueue {
    /// Tells it. Whoever hangs up leaves the line first, so it is always heard.
    pub(super) fn tell(&mut self, news: Come) {
        if let Some(tell) = self.tell.take() {
            let _heard = tell.send(news);
        }
    }
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
            table: ArcSwap::from_pointee(table),
            marks: AtomicU64::new(1),
            state: Mutex::default(),
            groups: Arc::default(),
            tells: Default::default(),
            any_later: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            bounded_anew: AtomicBool::new(false),
        })
    }

    /// Changes or reads a queue, if anything is kept of it.
    pub(super) fn with<T>(
        &self,
        name: &str,
        what: impl FnOnce(&mut BoundedQueue) -> T,
    ) -> Option<T> {
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(name)?;
        Some(what(queue))
    }

    /// Whether any queue is bounded. Mostly none is, and this spares all else.
    pub fn any(&self) -> bool {
        self.table.load().any()
    }

    /// A new mark: what is sent after it is not in an answer from before it.
    pub fn mark(&self) -> Mark {
        Mark(self.marks.fetch_add(1, Ordering::AcqRel))
    }

    /// Where a queue stands; `None`: nothing is known of it.
    pub fn level(&self, name: &str) -> Option<Level> {
        self.with(name, |queue| self.level_of(queue, name))?
    }

    pub(super) fn level_of(&self, queue: &mut BoundedQueue, name: &str) -> Option<Level> {
        let known = queue.estimate.is_known() && self.table.load().measures(name);
        known.then(|| queue.level((self.held)(name)))
    }

    /// The queues at their warning threshold or beyond that were not looked at for a second (up to a minute where
    /// nobody uses them), others that nobody uses, and whose credentials were used last.
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
        let queues = state.queues.values();
        queues.filter(|queue| queue.edges.is_above()).count()
    }

    /// The queues of which something is known.
    pub fn names(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let table = self.table.load();
        let known = state.queues.iter();
        let known = known.filter(|(name, queue)| queue.estimate.is_known() && table.measures(name));
        known.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Has each queue looked at before its next enqueue is let in: jobs may have come to any of them.
    pub fn doubt_all(&self) {
        let mut state = self.state.lock();
        let queues = state.queues.values_mut();
        queues.for_each(|queue| queue.estimate.doubt_all());
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

    /// The bounds of a queue.
    pub fn bounds(&self, queue: &str) -> Option<Arc<Bounds>> {
        self.table.load().of(queue).cloned()
    }

    /// The bounds of all queues and tenants, and where each comes from.
    pub fn table(&self) -> Guard<Arc<BoundsTable>> {
        self.table.load()
    }

    /// Takes over the bounds of another file. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn publish(self: &Arc<Self>, file: Arc<FileBounds>, now: Now) -> Vec<(Arc<str>, Level)> {
        let change =
            |table: &BoundsTable| BoundsTable::new(file, table.set.clone(), table.tenants.clone());
        self.bound_again(now, change)
    }

    /// Replaces all bounds that were set over HTTP. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn set(
        self: &Arc<Self>,
        queues: HashMap<Arc<str>, Given>,
        tenants: HashMap<Arc<str>, u64>,
        now: Now,
    ) -> Vec<(Arc<str>, Level)> {
        self.bound_again(now, |table| {
            BoundsTable::new(Arc::clone(&table.file), queues, tenants)
        })
    }

    /// Whether queues may have got bounds since this was last asked: those in which jobs wait are to be looked at.
    pub fn take_bounded_anew(&self) -> bool {
        self.bounded_anew.swap(false, Ordering::Relaxed)
    }

    /// Gives all queues the bounds of another table, whether anybody enqueues or not.
    fn bound_again(
        self: &Arc<Self>,
        now: Now,
        change: impl FnOnce(&BoundsTable) -> BoundsTable,
    ) -> Vec<(Arc<str>, Level)> {
        let mut state = self.state.lock();
        let table = Arc::new(change(&self.table.load()));
        let before = self.table.swap(Arc::clone(&table));
        self.bounded_anew.store(true, Ordering::Relaxed);
        let names = match table.differs(&before) {
            Some(names) => names,
            None => state.queues.keys().cloned().collect(),
        };
        let none = Arc::new(Bounds::none());
        let each = names.into_iter().filter_map(|name| {
            let queue = state.queues.get_mut(&name)?;
            let held = || (self.held)(&name);
            let level = queue.bound_again(table.of(&name).unwrap_or(&none), held, now.at);
            if !table.measures(&name) {
                queue.estimate.forget();
            }
            Some((name, level?))
        });
        let levels = each.collect();
        self.serve(&mut state, now);
        levels
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

    /// Changes a queue in a way that may make room, and gives the room to those who wait for it.
    pub(super) fn make_room(
        self: &Arc<Self>,
        name: &str,
        now: Now,
        what: impl FnOnce(&mut BoundedQueue),
    ) {
        let mut state = self.state.lock();
        if let Some(queue) = state.queues.get_mut(name) {
            what(queue);
            state.note_untold(name);
            self.serve(&mut state, now);
        }
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
            queue.later.add_retryable(job, due);
        });
    }

    /// Notes that a job of a queue waits for no time any more. Returns whether it did until now, as far as is known.
    pub fn waits_no_longer(&self, name: &str, job: &str, now: Timestamp) -> bool {
        // Mostly none was ever seen to wait for a time.
        let remove = |queue: &mut BoundedQueue| queue.later.remove(job, now);
        self.any_later.load(Ordering::Relaxed) && self.with(name, remove).unwrap_or(false)
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
}

impl PressureState {
    /// Notes that the store is to be told of a queue, if a number is shared for it.
    pub(super) fn note_untold(&mut self, name: &str) {
        if let Some((name, queue)) = self.queues.get_key_value(name)
            && queue.fleet.is_on()
        {
            if self.untold.is_empty() {
                self.news.notify_one();
            }
            self.untold.insert(Arc::clone(name));
        }
    }
}
