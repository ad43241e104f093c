//! Which queues have subqueues, and what is known of each.
//!
//! The setting in the file says who **writes** them. Whoever does so first marks the queue in the store, and every
//! sidecar **reads** the subqueues of marked queues, whatever its own file says: jobs must not be stranded by a file
//! that is rolled back, nor by a scheduled job that comes due a month later. The mark goes by hand.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::book::{BesideWaiting, MayStart, Moved, QuestionLeft, SubqueueBook, ToldNumbers};
use super::shown::ShownSubqueue;
use super::turns::{Asks, SubqueueAsk, SubqueueTurns, Waited};
use ojs_bounds::Counts;
use ojs_hold::{Behind, Held, HeldGroup, HeldOfSubqueue, Hold, Lane};
use ojs_limit::Timestamp;
use ojs_policy::subqueue::{self, Flow, Spread, Subqueue, SubqueueMark};
use ojs_store::{Change, Claimed};

/// Whether jobs of a queue go to its subqueues.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Writes {
    /// The file does not say so.
    #[default]
    No,
    /// The file says so, and the store does not know it yet.
    Unmarked,
    /// They do.
    Yes,
    /// The file says so, but the mark in the store has another number or salt, by which siblings may write: until they are
    /// of one mind its jobs stay in the queue itself.
    Otherwise,
}

/// The queues with subqueues.
#[derive(Debug, Default)]
pub struct Subqueues {
    /// Whether there is any: mostly there is none, and then nobody looks further.
    any: AtomicBool,
    /// There is something of which siblings were not told.
    news: Notify,
    bases: Mutex<HashMap<Arc<str>, SplitQueue>>,
}

/// A queue whose subqueues are read.
#[derive(Debug)]
pub struct ReadQueue {
    /// Its name.
    pub name: Arc<str>,
    /// Whether jobs go to its subqueues.
    pub writes: Writes,
    /// How many it has.
    pub count: u16,
}

/// The held jobs of a lane's subqueues.
type HeldOfSubqueues = HashMap<Subqueue, HeldOfSubqueue>;

/// For so long no sibling may have told that it writes by another spread, before a queue is marked with ours.
const SILENT: Duration = Duration::from_secs(60);

/// How long the turns of credentials are kept that nobody uses.
const UNUSED: Duration = Duration::from_secs(3_600);
/// The turns of so many credentials are remembered for a queue: those that asked last. Each takes some 20 kB.
const MOST_SCOPES: usize = 1_024;

/// A queue with subqueues.
#[derive(Debug, Default)]
struct SplitQueue {
    writes: Writes,
    /// How the file spreads its flows, and when a sibling last told that it does otherwise, or may do so.
    spread: Spread,
    others_at: Option<Instant>,
    /// Those to which something came through here, and the highest priority that was said.
    seen: HashMap<Subqueue, Option<i32>>,
    /// Those of which siblings were not told yet.
    untold: HashSet<Subqueue>,
    scopes: HashMap<u64, SubqueueTurns>,
    book: SubqueueBook,
    /// What came and left here, of which siblings were not told yet.
    moved: HashMap<Subqueue, Moved>,
}

/// A bit for each of these subqueues, in four words at least: who reads only the first 256 understands no other number.
fn bits_of(subqueues: &HashSet<Subqueue>) -> Arc<[u64]> {
    let mut words = vec![0; 4];
    for subqueue in subqueues {
        let (nth, bit) = (subqueue.nth() / 64, subqueue.nth() % 64);
        words.resize(words.len().max(nth + 1), 0);
        if let Some(word) = words.get_mut(nth) {
            *word |= 1_u64 << bit;
        }
    }
    words.into()
}

/// Those of so many subqueues that have their bits in these words.
fn read_bits(words: &[u64], count: u16) -> impl Iterator<Item = Subqueue> {
    Subqueue::first(count).filter(move |subqueue| {
        let word = words.get(subqueue.nth() / 64);
        word.is_some_and(|word| word >> (subqueue.nth() % 64) & 1 == 1)
    })
}

impl Subqueues {
    /// Whether any queue has subqueues.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Goes by what is `marked` in the store, and by what the file says now. Returns the queues that are not written any
    /// more because these two differ.
    pub fn follow<'a>(
        &self,
        marked: impl Iterator<Item = (Arc<str>, SubqueueMark)>,
        file: impl Iterator<Item = (&'a str, Spread)>,
    ) -> Vec<Arc<str>> {
        let (mut file, mut differ): (HashMap<&str, Spread>, _) = (file.collect(), Vec::new());
        let mut bases = self.bases.lock();
        let mut before = std::mem::take(&mut *bases);
        for (queue, mark) in marked {
            let mut base = before.remove(&queue).unwrap_or_default();
            if base.follow(file.remove(&*queue), Some(&mark)) {
                differ.push(Arc::clone(&queue));
            }
            bases.insert(queue, base);
        }
        for (queue, spread) in file {
            let mut base = before.remove(queue).unwrap_or_default();
            base.follow(Some(spread), None);
            bases.insert(Arc::from(queue), base);
        }
        self.any.store(!bases.is_empty(), Ordering::Relaxed);
        differ
    }

    /// Those of these queues, as the file has them.
    #[cfg(test)]
    pub(super) fn of_file(queues: &[&str]) -> Subqueues {
        let subqueues = Subqueues::default();
        let file = queues.iter().map(|queue| (*queue, Spread::default()));
        subqueues.follow(std::iter::empty(), file);
        subqueues
    }

    /// How the flows of a queue are spread.
    pub fn spread(&self, queue: &str) -> Spread {
        self.of_base(queue, |base| base.spread)
    }

    /// Whether no sibling told lately that it writes to a queue's subqueues by another spread than ours.
    pub fn is_undisputed(&self, queue: &str) -> bool {
        let at = self.of_base(queue, |base| base.others_at);
        at.is_none_or(|at| at.elapsed() >= SILENT)
    }

    /// The queues whose subqueues are read.
    pub fn read_queues(&self) -> Vec<ReadQueue> {
        let bases = self.bases.lock();
        let all = bases.iter().map(|(name, base)| ReadQueue {
            name: Arc::clone(name),
            writes: base.writes,
            count: base.book.count(),
        });
        let mut all: Vec<ReadQueue> = all.collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether a queue has subqueues.
    pub fn has(&self, queue: &str) -> bool {
        self.any() && self.bases.lock().contains_key(queue)
    }

    /// The queue that a name of the backend's stands for outside: of a subqueue its base, if that has some.
    pub fn base_of<'a>(&self, name: &'a str) -> &'a str {
        let split = subqueue::split(name).filter(|(base, _)| self.has(base));
        split.map_or(name, |(base, _)| base)
    }

    /// Whether jobs of a queue go to its subqueues.
    pub fn writes(&self, queue: &str) -> Writes {
        self.of_base(queue, |base| base.writes)
    }

    /// A job goes to a subqueue, or may be there: it is asked soon, whoever asks.
    pub fn mark(&self, queue: &str, subqueue: Subqueue, priority: Option<i32>) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            base.untold.insert(subqueue);
            self.news.notify_one();
            base.mark(subqueue, priority, Instant::now());
        }
    }

    /// The backend stored a job of a flow, or may have.
    pub fn stored(&self, queue: &str, flow: Flow, may_start: MayStart) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            base.book.stored(flow, may_start);
            let moved = base.moved.entry(flow.subqueue).or_default();
            moved.came(flow, may_start);
            self.news.notify_one();
        }
    }

    /// Asks what is known of a queue; the default of the answer: it has no subqueues.
    fn of_base<T: Default>(&self, queue: &str, of: impl FnOnce(&mut SplitQueue) -> T) -> T {
        if !self.any() {
            return T::default();
        }
        let mut bases = self.bases.lock();
        bases.get_mut(queue).map_or_else(T::default, of)
    }

    fn of_book<T: Default>(&self, queue: &str, of: impl FnOnce(&mut SubqueueBook) -> T) -> T {
        self.of_base(queue, |base| of(&mut base.book))
    }

    /// The subqueues whose numbers the backend is asked for beside a look at the queue, and what is known of all now;
    /// `None`: it has none.
    pub fn to_look_at(&self, queue: &str) -> (Vec<Subqueue>, Option<SubqueueBook>) {
        self.of_book(queue, |book| (book.to_look_at(), Some(book.clone())))
    }

    /// The subqueues whose numbers the backend is asked for before somebody reads them.
    pub fn to_read(&self, queue: &str) -> Vec<Subqueue> {
        self.of_book(queue, |book| book.to_read(Instant::now()))
    }

    /// A question about a subqueue leaves; `None`: it is not read any more.
    pub fn asks(&self, queue: &str, subqueue: Subqueue) -> Option<QuestionLeft> {
        self.of_book(queue, |book| book.asks(subqueue))
    }

    /// The backend told the numbers of a subqueue.
    pub fn told(&self, queue: &str, subqueue: Subqueue, told: ToldNumbers, asked: QuestionLeft) {
        self.of_book(queue, |book| book.told(subqueue, told, asked));
    }

    /// The backend did not tell the numbers of a subqueue.
    pub fn asked_in_vain(&self, queue: &str, subqueue: Subqueue) {
        self.of_book(queue, |book| book.asked_in_vain(subqueue));
    }

    /// How many jobs wait in all subqueues of a queue, as far as is known.
    pub fn waiting(&self, queue: &str) -> Counts {
        self.of_book(queue, |book| book.sum())
    }

    /// How many subqueues a queue has.
    pub fn count(&self, queue: &str) -> u16 {
        self.of_book(queue, |book| book.count())
    }

    /// Of how many subqueues of a queue the backend never told the numbers.
    pub fn untold(&self, queue: &str) -> usize {
        self.of_book(queue, |book| book.untold())
    }

    /// What is known of each subqueue of a queue in which jobs wait, or of which these are held. No more than `most` jobs
    /// are held beyond one for each.
    pub fn shown(&self, queue: &str, heads: &[&HeldGroup], most: usize) -> Vec<ShownSubqueue> {
        let (bases, now) = (self.bases.lock(), Instant::now());
        let Some(SplitQueue {
            scopes,
            book,
            spread,
            ..
        }) = bases.get(queue)
        else {
            return Vec::new();
        };
        let mut shown = book.shown(queue, *spread, heads);
        for (scope, turns) in scopes {
            let mut held = HeldOfSubqueues::new();
            for head in heads.iter().filter(|head| head.scope == *scope) {
                let Some(subqueue) = head.subqueue else {
                    continue;
                };
                let here = held.entry(subqueue).or_insert(HeldOfSubqueue {
                    jobs: 0,
                    is_refused: false,
                    waits_for_turn: false,
                    limits: Arc::clone(&head.limits),
                });
                here.jobs += head.jobs;
                here.is_refused |= head.shut_by().is_some();
            }
            let standing = turns.standing(&held, book, most, now);
            for (subqueue, one) in &mut shown {
                one.out_of_reach |= turns.hides(*subqueue, &standing);
            }
        }
        shown.into_iter().map(|(_, one)| one).collect()
    }

    /// How many jobs of the subqueues of a queue wait no longer, as far as the backend told.
    pub fn beside_waiting(&self, queue: &str) -> BesideWaiting {
        self.of_book(queue, |book| book.beside_waiting())
    }

    /// Siblings may have told something that was not heard.
    pub fn doubt_all(&self) {
        for base in self.bases.lock().values_mut() {
            base.book.doubt_all();
        }
    }

    /// A job failed, or its claim ended without a word of its worker: it may wait in the subqueue of one of its keys
    /// again, now or later.
    pub fn may_be_back(&self, claimed: &Claimed) {
        if self.has(&claimed.queue) {
            let spread = self.spread(&claimed.queue);
            for one in claimed.limited.iter() {
                let group = one.share.as_ref().map(|share| &*share.group);
                for group in group.map(Some).into_iter().chain([None]) {
                    let flow = spread.flow(one.key.as_str(), group);
                    self.of_book(&claimed.queue, |book| book.may_be_back(flow));
                    self.mark(&claimed.queue, flow.subqueue, None);
                }
            }
        }
    }

    /// Waits until there is something of which siblings were not told.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// What siblings must be told of each queue.
    pub fn take_untold(&self) -> Vec<Change> {
        let mut bases = self.bases.lock();
        let mut changes = Vec::new();
        for (queue, base) in bases.iter_mut() {
            let untold = std::mem::take(&mut base.untold);
            if !untold.is_empty() {
                let (queue, subqueues) = (Arc::clone(queue), bits_of(&untold));
                changes.push(Change::Came { queue, subqueues });
            }
            let moved = std::mem::take(&mut base.moved);
            if !moved.is_empty() {
                let queue = Arc::clone(queue);
                let seal = (base.writes == Writes::Yes).then(|| base.spread.seal());
                let moved = Moved::written(&moved, seal.as_deref());
                changes.push(Change::Moved { queue, moved });
            }
        }
        changes
    }

    /// Siblings could not be told this: they are told with what comes next.
    pub fn put_back(&self, untold: &[Change]) {
        let mut bases = self.bases.lock();
        for change in untold {
            match change {
                Change::Came { queue, subqueues } => {
                    if let Some(base) = bases.get_mut(queue) {
                        let came = read_bits(subqueues, base.book.count());
                        base.untold.extend(came);
                    }
                }
                Change::Moved { queue, moved } => {
                    if let Some(base) = bases.get_mut(queue) {
                        for (subqueue, moved) in Moved::read(moved) {
                            base.moved.entry(subqueue).or_default().again(&moved);
                        }
                    }
                }
                _ => {}
            }
        }
        self.news.notify_one();
    }

    /// A sibling told how many jobs came to subqueues and left them, and whose they are.
    pub fn hear_moved(&self, queue: &str, moved: &str) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            if Moved::seal(moved).is_some_and(|seal| *seal != *base.spread.seal()) {
                base.others_at = Some(Instant::now());
            }
            for (subqueue, moved) in Moved::read(moved) {
                base.book.moved(subqueue, &moved);
            }
        }
    }

    /// A sibling told of jobs that came.
    pub fn hear(&self, queue: &str, subqueues: &[u64]) {
        if let Some(base) = self.bases.lock().get_mut(queue) {
            for subqueue in read_bits(subqueues, base.book.count()) {
                base.mark(subqueue, None, Instant::now());
            }
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
            scopes,
            seen,
            book,
            spread,
            ..
        } = bases.get_mut(&*lane.queue)?;
        if scopes.len() >= MOST_SCOPES && !scopes.contains_key(&lane.scope) {
            // Anybody may make up credentials, and nobody has looked at them yet.
            let oldest = scopes.iter().min_by_key(|(_, turns)| turns.asked_at);
            if let Some(oldest) = oldest.map(|(scope, _)| *scope) {
                scopes.remove(&oldest);
            }
        }
        let turns = scopes.entry(lane.scope).or_insert_with(|| {
            let mut turns = SubqueueTurns::new(now, book.count());
            let seen = seen.iter();
            seen.for_each(|(subqueue, priority)| turns.mark(*subqueue, *priority, now));
            turns
        });
        turns.grow(now, book.count());
        turns.spread = *spread;
        turns.asked_at = now;
        Some(of(turns, book, now))
    }

    /// Whether the queue itself is asked next. If so, a claim of it is made now, and its subqueues are next.
    pub fn take_base(&self, lane: &Lane) -> bool {
        let had_turn = self.of_turns(lane, |turns, _, _| std::mem::take(&mut turns.is_bases));
        had_turn.unwrap_or(true)
    }

    /// What is asked of the subqueues now, for no more than `lacking` jobs; and of which the backend should be asked
    /// how many wait there. No more than `most` jobs are held beyond one for each.
    pub fn choose(
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
                turns.is_bases = true;
            }
            (asks, doubtful)
        });
        chosen.unwrap_or_default()
    }

    /// What is asked where so many heads of subqueues start.
    pub fn heads(
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
    pub fn outranks(
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

    /// The backend answered a question with these jobs, and `behind` them is more or nothing.
    pub fn answered(&self, lane: &Lane, ask: &SubqueueAsk, jobs: &[Held], behind: Behind) {
        if let Some(base) = self.bases.lock().get_mut(&lane.queue) {
            for subqueue in jobs.iter().filter_map(|held| held.subqueue) {
                base.book.claimed(subqueue);
                base.moved.entry(subqueue).or_default().gone += 1;
                self.news.notify_one();
            }
        }
        self.of_turns(lane, |turns, book, now| {
            let came = jobs.iter().filter_map(|held| {
                let limits = Arc::clone(&held.written);
                Some((held.subqueue?, held.claimed.priority, limits))
            });
            turns.answered(ask, came, behind, book, now);
        });
    }

    /// A job of a subqueue started.
    pub fn started(&self, held: &Held) {
        let waited = match held.refused.is_some() {
            true => Waited::Yes,
            false => Waited::No,
        };
        if let Some(subqueue) = held.subqueue {
            self.of_turns(&held.lane(), |turns, _, _| turns.started(subqueue, waited));
        }
    }

    /// A job of a subqueue was refused.
    pub fn refused(&self, held: &Held) {
        if let Some(subqueue) = held.subqueue {
            self.of_turns(&held.lane(), |turns, _, _| turns.refused(subqueue));
        }
    }

    /// Forgets credentials with which nobody asked for an hour.
    pub fn forget_unused(&self, now: Instant) {
        let before = now.checked_sub(UNUSED).unwrap_or(now);
        for base in self.bases.lock().values_mut() {
            base.scopes.retain(|_, turns| turns.asked_at >= before);
        }
    }
}

impl SplitQueue {
    /// Goes by the file and by the mark in the store. `true`: they differ from now on.
    fn follow(&mut self, file: Option<Spread>, mark: Option<&SubqueueMark>) -> bool {
        let writes = match (file, mark) {
            (None, _) => Writes::No,
            (Some(_), None) => Writes::Unmarked,
            (Some(spread), Some(mark)) if *mark.seal == *spread.seal() => Writes::Yes,
            (Some(_), Some(_)) => Writes::Otherwise,
        };
        let spread = file.unwrap_or_default();
        let is_news = writes == Writes::Otherwise && (self.writes, self.spread) != (writes, spread);
        if is_news {
            self.others_at = Some(Instant::now());
        }
        self.book
            .grow(mark.map_or(spread.count, |mark| mark.most.max(spread.count)));
        (self.writes, self.spread) = (writes, spread);
        is_news
    }

    fn mark(&mut self, subqueue: Subqueue, priority: Option<i32>, now: Instant) {
        let highest = self.seen.entry(subqueue).or_default();
        *highest = priority.max(*highest);
        for turns in self.scopes.values_mut() {
            turns.mark(subqueue, priority, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are made at a FETCH that no backend has accepted yet.
    #[test]
    fn the_turns_of_made_up_credentials_have_a_bound() {
        let subqueues = Subqueues::of_file(&["mail"]);
        for scope in 0..3 * MOST_SCOPES as u64 {
            let queue = "mail".into();
            subqueues.take_base(&Lane { scope, queue });
        }
        let turns = |bases: &HashMap<Arc<str>, SplitQueue>| bases["mail"].scopes.len();
        assert_eq!(turns(&subqueues.bases.lock()), MOST_SCOPES);
    }

    #[test]
    fn what_could_not_be_told_is_told_with_what_came_since() {
        let subqueues = Subqueues::of_file(&["mail"]);
        let subqueue = Subqueue(70);
        let came = |tag| subqueues.stored("mail", Flow { subqueue, tag }, MayStart::Now);
        came(1);
        came(1);
        subqueues.mark("mail", subqueue, None);
        subqueues.put_back(&subqueues.take_untold());
        came(2);
        match &subqueues.take_untold()[..] {
            [
                Change::Came {
                    subqueues: words, ..
                },
                Change::Moved { moved, .. },
            ] => {
                assert_eq!(read_bits(words, 256).collect::<Vec<_>>(), [subqueue]);
                assert_eq!(**moved, *"46:*:2:0:0", "how many is not known");
            }
            other => panic!("{other:?}"),
        }
    }
}
