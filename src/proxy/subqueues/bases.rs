//! Which queues have subqueues, and what is known of each.
//!
//! The setting in the file says who **writes** them. Whoever does so first marks the queue in the store, and every
//! sidecar **reads** the subqueues of marked queues, whatever its own file says: jobs must not be stranded by a file
//! that is rolled back, nor by a scheduled job that comes due a month later. The mark goes by hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::book::{BesideWaiting, Moved, QuestionLeft, SubqueueBook, ToldNumbers};
use super::turns::{Asks, SubqueueAsk, SubqueueTurns, Waited};
use crate::hold::{Held, HeldOfSubqueue, Hold, Lane};
use crate::limit::Timestamp;
use crate::policy::subqueue::{self, COUNT, Flow, Subqueue};
use crate::pressure::Counts;
use crate::store::{Change, Claimed};

/// Whether jobs of a queue go to its subqueues.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::proxy) enum Writes {
    /// The file does not say so.
    #[default]
    No,
    /// The file says so, and the store does not know it yet.
    Unmarked,
    /// They do.
    Yes,
}

/// The queues with subqueues.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Subqueues {
    /// Whether there is any: mostly there is none, and then nobody looks further.
    any: AtomicBool,
    /// There is something of which siblings were not told.
    news: Notify,
    bases: Mutex<HashMap<Arc<str>, SplitQueue>>,
}

/// A queue whose subqueues are read.
#[derive(Debug)]
pub(in crate::proxy) struct ReadQueue {
    pub(in crate::proxy) name: Arc<str>,
    pub(in crate::proxy) writes: Writes,
    /// To how many of them something came through here.
    pub(in crate::proxy) seen: usize,
}

/// The held jobs of a lane's subqueues.
type HeldOfSubqueues = HashMap<Subqueue, HeldOfSubqueue>;

/// How long the turns of credentials are kept that nobody uses.
const UNUSED: Duration = Duration::from_secs(3_600);

/// A queue with subqueues.
#[derive(Debug, Default)]
struct SplitQueue {
    writes: Writes,
    /// Those to which something came through here, and the highest priority that was said.
    seen: HashMap<Subqueue, Option<i32>>,
    /// Those of which siblings were not told yet.
    untold: Bits,
    scopes: HashMap<u64, SubqueueTurns>,
    book: SubqueueBook,
    /// What came and left here, of which siblings were not told yet.
    moved: HashMap<Subqueue, Moved>,
}

/// A bit for each subqueue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Bits([u64; COUNT / 64]);

impl Bits {
    fn set(&mut self, subqueue: Subqueue) {
        let number = usize::from(subqueue.0);
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    fn has(self, subqueue: Subqueue) -> bool {
        let number = usize::from(subqueue.0);
        let word = self.0.get(number / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    fn all(self) -> impl Iterator<Item = Subqueue> {
        let all = (0..=u8::MAX).map(Subqueue);
        all.filter(move |subqueue| self.has(*subqueue))
    }
}

impl Subqueues {
    /// Whether any queue has subqueues.
    pub(in crate::proxy) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Goes by what is `marked` in the store, and by what the file says now.
    pub(in crate::proxy) fn follow<'a>(
        &self,
        marked: impl Iterator<Item = Arc<str>>,
        file: impl Iterator<Item = &'a str>,
    ) {
        let mut bases = self.bases.lock();
        let mut before = std::mem::take(&mut *bases);
        for queue in marked {
            let base = before.remove(&queue).unwrap_or_default();
            bases.insert(
                queue,
                SplitQueue {
                    writes: Writes::No,
                    ..base
                },
            );
        }
        for queue in file {
            match bases.get_mut(queue) {
                Some(base) => base.writes = Writes::Yes,
                None => {
                    let base = before.remove(queue).unwrap_or_default();
                    let writes = Writes::Unmarked;
                    bases.insert(Arc::from(queue), SplitQueue { writes, ..base });
                }
            }
        }
        self.any.store(!bases.is_empty(), Ordering::Relaxed);
    }

    /// The queues whose subqueues are read.
    pub(in crate::proxy) fn read_queues(&self) -> Vec<ReadQueue> {
        let bases = self.bases.lock();
        let all = bases.iter().map(|(name, base)| ReadQueue {
            name: Arc::clone(name),
            writes: base.writes,
            seen: base.seen.len(),
        });
        let mut all: Vec<ReadQueue> = all.collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether a queue has subqueues.
    pub(in crate::proxy) fn has(&self, queue: &str) -> bool {
        self.any() && self.bases.lock().contains_key(queue)
    }

    /// The queue that a name of the backend's stands for outside: of a subqueue its base, if that has some.
    pub(in crate::proxy) fn base_of<'a>(&self, name: &'a str) -> &'a str {
        let split = subqueue::split(name).filter(|(base, _)| self.has(base));
        split.map_or(name, |(base, _)| base)
    }

    /// Whether jobs of a queue go to its subqueues.
    pub(in crate::proxy) fn writes(&self, queue: &str) -> Writes {
        match self.any() {
            true => self
                .bases
                .lock()
                .get(queue)
                .map_or(Writes::No, |base| base.writes),
            false => Writes::No,
        }
    }

    /// A job goes to a subqueue, or may be there: it is asked soon, whoever asks.
    pub(in crate::proxy) fn mark(&self, queue: &str, subqueue: Subqueue, priority: Option<i32>) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            base.untold.set(subqueue);
            self.news.notify_one();
            base.mark(subqueue, priority, Instant::now());
        }
    }

    /// The backend stored a job of a flow, or may have. `is_later`: it waits for a time.
    pub(in crate::proxy) fn stored(&self, queue: &str, flow: Flow, is_later: bool) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            base.book.stored(flow, is_later);
            base.moved
                .entry(flow.subqueue)
                .or_default()
                .came(flow, is_later);
            self.news.notify_one();
        }
    }

    fn of_book<T: Default>(&self, queue: &str, of: impl FnOnce(&mut SubqueueBook) -> T) -> T {
        match self.any() {
            true => {
                let mut bases = self.bases.lock();
                bases
                    .get_mut(queue)
                    .map_or_else(T::default, |base| of(&mut base.book))
            }
            false => T::default(),
        }
    }

    /// The subqueues whose numbers the backend is asked for beside a look at the queue, and what is known of all now;
    /// `None`: it has none.
    pub(in crate::proxy) fn to_look_at(
        &self,
        queue: &str,
    ) -> (Vec<Subqueue>, Option<SubqueueBook>) {
        self.of_book(queue, |book| (book.to_look_at(), Some(book.clone())))
    }

    /// The subqueues whose numbers the backend is asked for before somebody reads them.
    pub(in crate::proxy) fn to_read(&self, queue: &str) -> Vec<Subqueue> {
        self.of_book(queue, |book| book.to_read(Instant::now()))
    }

    /// A question about a subqueue leaves; `None`: it is not read any more.
    pub(in crate::proxy) fn asks(&self, queue: &str, subqueue: Subqueue) -> Option<QuestionLeft> {
        self.of_book(queue, |book| book.asks(subqueue))
    }

    /// The backend told the numbers of a subqueue.
    pub(in crate::proxy) fn told(
        &self,
        queue: &str,
        subqueue: Subqueue,
        told: ToldNumbers,
        asked: QuestionLeft,
    ) {
        self.of_book(queue, |book| book.told(subqueue, told, asked));
    }

    /// The backend did not tell the numbers of a subqueue.
    pub(in crate::proxy) fn asked_in_vain(&self, queue: &str, subqueue: Subqueue) {
        self.of_book(queue, |book| book.asked_in_vain(subqueue));
    }

    /// How many jobs wait in all subqueues of a queue, as far as is known.
    pub(in crate::proxy) fn waiting(&self, queue: &str) -> Counts {
        self.of_book(queue, |book| book.sum())
    }

    /// How many jobs wait in one subqueue of a queue, as far as is known.
    pub(in crate::proxy) fn waiting_in(&self, queue: &str, subqueue: Subqueue) -> u64 {
        self.of_book(queue, |book| book.waiting_in(subqueue))
    }

    /// How many jobs of the subqueues of a queue wait no longer, as far as the backend told.
    pub(in crate::proxy) fn beside_waiting(&self, queue: &str) -> BesideWaiting {
        self.of_book(queue, |book| book.beside_waiting())
    }

    /// Siblings may have told something that was not heard.
    pub(in crate::proxy) fn doubt_all(&self) {
        for base in self.bases.lock().values_mut() {
            base.book.doubt_all();
        }
    }

    /// A job failed, or its claim ended without a word of its worker: it may wait in the subqueue of one of its keys
    /// again, now or later.
    pub(in crate::proxy) fn may_be_back(&self, claimed: &Claimed) {
        if self.has(&claimed.queue) {
            for one in claimed.limited.iter() {
                let group = one.share.as_ref().map(|share| &*share.group);
                for group in group.map(Some).into_iter().chain([None]) {
                    let flow = Flow::of(one.key.as_str(), group);
                    self.of_book(&claimed.queue, |book| book.may_be_back(flow));
                    self.mark(&claimed.queue, flow.subqueue, None);
                }
            }
        }
    }

    /// Waits until there is something of which siblings were not told.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// What siblings must be told of each queue.
    pub(super) fn take_untold(&self) -> Vec<Change> {
        let mut bases = self.bases.lock();
        let mut changes = Vec::new();
        for (queue, base) in bases.iter_mut() {
            let untold = std::mem::take(&mut base.untold);
            if untold != Bits::default() {
                let (queue, subqueues) = (Arc::clone(queue), untold.0);
                changes.push(Change::Came { queue, subqueues });
            }
            let moved = std::mem::take(&mut base.moved);
            if !moved.is_empty() {
                let (queue, moved) = (Arc::clone(queue), Moved::written(&moved));
                changes.push(Change::Moved { queue, moved });
            }
        }
        changes
    }

    /// A sibling told how many jobs came to subqueues and left them, and whose they are.
    pub(in crate::proxy) fn hear_moved(&self, queue: &str, moved: &str) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            for (subqueue, moved) in Moved::read(moved) {
                base.book.moved(subqueue, &moved);
            }
        }
    }

    /// A sibling told of jobs that came.
    pub(in crate::proxy) fn hear(&self, queue: &str, subqueues: [u64; COUNT / 64]) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            Bits(subqueues)
                .all()
                .for_each(|subqueue| base.mark(subqueue, None, Instant::now()));
        }
    }

    /// Asks the turns of a queue under one set of credentials; `None`: it has no subqueues.
    fn of_turns<T>(
        &self,
        lane: &Lane,
        of: impl FnOnce(&mut SubqueueTurns, &mut SubqueueBook, Instant) -> T,
    ) -> Option<T> {
        if !self.any() {
            return None;
        }
        let (mut bases, now) = (self.bases.lock(), Instant::now());
        let SplitQueue {
            scopes, seen, book, ..
        } = bases.get_mut(&*lane.queue)?;
        let turns = scopes.entry(lane.scope).or_insert_with(|| {
            let mut turns = SubqueueTurns::new(now, |_| false);
            let seen = seen.iter();
            seen.for_each(|(subqueue, priority)| turns.mark(*subqueue, *priority, now));
            turns
        });
        turns.asked_at = now;
        Some(of(turns, book, now))
    }

    /// Whether the queue itself is asked next.
    pub(in crate::proxy) fn takes_base(&self, lane: &Lane) -> bool {
        let takes_base = self.of_turns(lane, |turns, _, _| turns.takes_base());
        takes_base.unwrap_or(true)
    }

    /// A claim is made of the queue itself.
    pub(in crate::proxy) fn took_base(&self, lane: &Lane) {
        self.of_turns(lane, |turns, _, _| turns.took(true));
    }

    /// What is asked of the subqueues now, for no more than `lacking` jobs; and of which the backend should be asked
    /// how many wait there. No more than `most` jobs are held beyond one for each.
    pub(in crate::proxy) fn choose(
        &self,
        lane: &Lane,
        lacking: usize,
        held: &HeldOfSubqueues,
        most: usize,
        (hold, at): (&Hold, Timestamp),
    ) -> (Asks, Vec<Subqueue>) {
        let chosen = self.of_turns(lane, |turns, book, now| {
            let standing = turns.standing(held, book, most, now);
            let in_turn = turns.in_turn(lacking, &standing, hold, at);
            let standing = standing.with(&in_turn);
            let doubtful = turns.doubtful(&standing);
            let asks = turns.choose(lacking, &standing);
            if !asks.is_empty() {
                turns.took(false);
            }
            (asks, doubtful)
        });
        chosen.unwrap_or_default()
    }

    /// What is asked where so many heads of subqueues start.
    pub(in crate::proxy) fn heads(
        &self,
        lane: &Lane,
        started: &HashMap<Subqueue, usize>,
        held: &HeldOfSubqueues,
        most: usize,
        (hold, at): (&Hold, Timestamp),
    ) -> Asks {
        let asks = self.of_turns(lane, |turns, book, now| {
            let standing = turns.standing(held, book, most, now);
            let in_turn = turns.in_turn(usize::MAX, &standing, hold, at);
            turns.heads(started, &standing.with(&in_turn))
        });
        asks.unwrap_or_default()
    }

    /// Whether a subqueue that may be asked may have a job of a higher priority than `best`.
    pub(in crate::proxy) fn outranks(
        &self,
        lane: &Lane,
        best: i32,
        held: impl FnOnce() -> HeldOfSubqueues,
        most: usize,
    ) -> bool {
        let outranks = |held: &_| {
            let outranks = self.of_turns(lane, |turns, book, now| {
                turns.outranks(best, &turns.standing(held, book, most, now))
            });
            outranks.unwrap_or(false)
        };
        // Mostly none does, and what is held need not be looked through.
        outranks(&HashMap::new()) && outranks(&held())
    }

    /// The backend answered a question with these jobs; `short`: with fewer than it was asked for.
    pub(in crate::proxy) fn answered(
        &self,
        lane: &Lane,
        ask: &SubqueueAsk,
        jobs: &[Held],
        short: bool,
    ) {
        if let Some(base) = self.bases.lock().get_mut(&lane.queue) {
            for subqueue in jobs.iter().filter_map(|held| held.subqueue) {
                base.book.claimed(subqueue);
                base.moved.entry(subqueue).or_default().gone += 1;
                self.news.notify_one();
            }
        }
        self.of_turns(lane, |turns, _, now| {
            let came = jobs.iter().filter_map(|held| {
                let limits = Arc::clone(&held.written);
                Some((held.subqueue?, held.claimed.priority, limits))
            });
            turns.answered(ask, came, short, now);
        });
    }

    /// A job of a subqueue started.
    pub(in crate::proxy) fn started(&self, held: &Held) {
        let waited = match held.refused.is_some() {
            true => Waited::Yes,
            false => Waited::No,
        };
        if let Some(subqueue) = held.subqueue {
            self.of_turns(&held.lane(), |turns, _, _| turns.started(subqueue, waited));
        }
    }

    /// A job of a subqueue was refused.
    pub(in crate::proxy) fn refused(&self, held: &Held) {
        if let Some(subqueue) = held.subqueue {
            self.of_turns(&held.lane(), |turns, _, _| turns.refused(subqueue));
        }
    }

    /// Forgets credentials with which nobody asked for an hour.
    pub(in crate::proxy) fn forget_unused(&self, now: Instant) {
        let before = now.checked_sub(UNUSED).unwrap_or(now);
        for base in self.bases.lock().values_mut() {
            base.scopes.retain(|_, turns| turns.asked_at >= before);
        }
    }
}

impl SplitQueue {
    fn mark(&mut self, subqueue: Subqueue, priority: Option<i32>, now: Instant) {
        let highest = self.seen.entry(subqueue).or_default();
        *highest = priority.max(*highest);
        for turns in self.scopes.values_mut() {
            turns.mark(subqueue, priority, now);
        }
    }
}
