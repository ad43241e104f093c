//! A store that several simulated sidecars share, each through a way of its own, which can be cut. What it
//! promises is what the contract in `tests/stores` asks of the real ones; it keeps no time of its own, so that
//! a fleet runs under a paused clock and a seed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::faulty::{Fault, Faulty};
use ojs_throttle::limit::{Key, Reserved, Space, Timestamp, is_priced};
use ojs_throttle::store::guard::{Guard, OnStoreError};
use ojs_throttle::store::memory::MemoryStore;
use ojs_throttle::store::{
    Answer, Change, Claimed, CountOf, End, Gen, KeyStates, Ledger, LedgerExt, LooksAfter, Number,
    Place, Row, RowsOf, Step, Store, StoreFacts, Taken, Verdict, Wake, Wish,
};
use tokio::sync::Notify;

/// Who has said nothing for this long is dead to the others, and how late the others may be, in microseconds.
const SILENCE: u64 = 5_000_000;
const PATIENCE: u64 = 3_000_000;
/// For how long a sidecar has a held job at a time, at most, and how late it may be to see to that.
const KEPT: u64 = 30_000_000;
const LATE: u64 = 1_000_000;
/// How long whoever is handed the row of another has for it.
const LEASE: u64 = 2_000_000;

/// What all of them share.
#[derive(Debug)]
pub struct Fleet {
    pub store: Arc<MemoryStore>,
    books: Mutex<Books>,
}

#[derive(Default, Debug)]
struct Books {
    /// Whose a job's row is.
    owners: HashMap<Arc<str>, u64>,
    /// How many jobs were ever adopted.
    adopted: u64,
    /// When each was heard of last.
    seen: BTreeMap<u64, Timestamp>,
    /// What each is told next, and its bell.
    news: BTreeMap<u64, (VecDeque<Wake>, Arc<Notify>)>,
}

/// One sidecar's way to the store.
pub struct Way {
    member: Arc<Member>,
    faulty: Arc<Faulty>,
    pub store: Store,
}

impl Way {
    /// Nothing comes through any more, in either direction; `unheard` operations before that are done.
    pub fn cut(&self, unheard: usize) {
        self.faulty.script((0..unheard).map(|_| Fault::unheard()));
        self.faulty.standing(Some(Fault::gone()));
        self.member.deaf.store(true, Ordering::Relaxed);
    }

    /// Whether rows that are not there yet are kept from now on.
    pub fn keeps(&self, new: bool) {
        self.member.is_full.store(!new, Ordering::Relaxed);
    }

    /// From now on each operation takes up to `most` on its way there, and as long on its way back.
    pub fn slow(&self, seed: u64, most: Duration) {
        let parts = [0, 1, 3, 10].map(|part| most * part / 10);
        let both = parts.iter().flat_map(|delay| {
            let faults = parts.map(|late| Fault {
                delay: *delay,
                ..Fault::late(late)
            });
            faults.into_iter()
        });
        self.faulty.random(seed, 1, both.collect());
    }

    /// From now on each operation is done at once, and its answer comes after `late`.
    pub fn late(&self, late: Duration) {
        self.faulty.standing(Some(Fault::late(late)));
    }

    /// From now on one operation in four is done twice.
    pub fn twice(&self, seed: u64) {
        let twice = Fault {
            twice: true,
            ..Fault::NONE
        };
        self.faulty.random(seed, 4, vec![twice]);
    }

    /// Of the next operations one in six to ten is done, and nobody hears of it.
    pub fn unheard(&self, seed: u64) {
        let every = 6 + seed % 5;
        let unheard = |nth: u64| match (nth + seed) % every {
            0 => Fault::unheard(),
            _ => Fault::NONE,
        };
        self.faulty.script((0..300).map(unheard));
    }

    pub fn mend(&self) {
        self.faulty.standing(None);
        self.member.deaf.store(false, Ordering::Relaxed);
    }
}

impl Fleet {
    pub fn new(unix_micros: u64) -> Arc<Fleet> {
        Arc::new(Fleet {
            store: Arc::new(MemoryStore::new(unix_micros)),
            books: Mutex::default(),
        })
    }

    /// The way of the `nth` sidecar.
    pub fn way(self: &Arc<Fleet>, nth: u64, mode: OnStoreError) -> Way {
        let bell = Arc::<Notify>::default();
        self.books()
            .news
            .insert(nth, (VecDeque::new(), bell.clone()));
        let member = Arc::new(Member {
            fleet: self.clone(),
            nth,
            siblings: AtomicUsize::new(0),
            adopted: AtomicU64::new(0),
            deaf: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            bell,
        });
        let faulty = Arc::new(Faulty::new(member.clone()));
        let store = Store::shared(Arc::new(Guard::new(faulty.clone(), mode)));
        Way {
            member,
            faulty,
            store,
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no panic")
    }
}

impl Books {
    fn tell(&mut self, nth: u64, wake: Wake) {
        if let Some((news, bell)) = self.news.get_mut(&nth) {
            news.push_back(wake);
            bell.notify_one();
        }
    }

    fn tell_others(&mut self, but: u64, wake: &Wake) {
        let all = self.news.keys().copied();
        let others: Vec<u64> = all.filter(|nth| *nth != but).collect();
        for nth in others {
            self.tell(nth, wake.clone());
        }
    }

    fn is_alive(&self, nth: u64, now: Timestamp) -> bool {
        (self.seen.get(&nth)).is_some_and(|seen| seen.plus(SILENCE) > now)
    }
}

#[derive(Debug)]
struct Member {
    fleet: Arc<Fleet>,
    nth: u64,
    siblings: AtomicUsize,
    adopted: AtomicU64,
    deaf: AtomicBool,
    is_full: AtomicBool,
    bell: Arc<Notify>,
}

impl Member {
    fn memory(&self) -> &MemoryStore {
        &self.fleet.store
    }

    fn find(&self, job: &str) -> Option<Row> {
        at_once(self.memory().row(job))
    }

    /// The row as this sidecar sees it.
    fn seen_here(&self, mut row: Row, books: &Books) -> Row {
        row.ours = books.owners.get(&row.claimed.job) == Some(&self.nth);
        row
    }

    /// Rows of others that are late: those of the dead at once.
    fn late(&self, books: &Books, now: Timestamp) -> Vec<Row> {
        let rows = at_once(self.memory().due(usize::MAX));
        let late = rows.into_iter().filter(|row| {
            let owner = books.owners.get(&row.claimed.job);
            owner.is_some_and(|owner| {
                let patience = if books.is_alive(*owner, now) {
                    PATIENCE
                } else {
                    0
                };
                let until = row.due().map_or(Timestamp(0), |due| due.at());
                *owner != self.nth && until.plus(patience) <= now
            })
        });
        late.map(|row| self.seen_here(row, books)).collect()
    }

    /// Whether the claim of a held row is sure to be its owner's still.
    fn stands(&self, row: &Row, books: &Books) -> bool {
        let owner = books.owners.get(&row.claimed.job);
        let seen = owner.and_then(|owner| books.seen.get(owner));
        let kept = (row.claimed.visibility.min(KEPT) * 2 / 3).saturating_sub(LATE);
        seen.is_some_and(|seen| seen.plus(kept.max(SILENCE)) > self.now())
    }

    fn freed(&self, books: &mut Books, row: &Row) {
        let limited = row.claimed.limited.iter();
        let keys = limited.map(|one| (one.space, one.key.clone()));
        if row.is_out() {
            books.tell_others(self.nth, &Wake::Freed(keys.collect()));
        }
    }

    fn look(&self, which: LooksAfter, max: usize) -> Vec<Row> {
        let now = self.now();
        let mut books = self.fleet.books();
        books.seen.insert(self.nth, now);
        let alive = books.seen.keys().filter(|nth| books.is_alive(**nth, now));
        self.siblings.store(alive.count() - 1, Ordering::Relaxed);
        self.adopted.store(books.adopted, Ordering::Relaxed);
        let mut rows = at_once(self.memory().due_of(which, usize::MAX));
        rows.retain(|row| books.owners.get(&row.claimed.job) == Some(&self.nth));
        for row in self.late(&books, now) {
            let claimed = &row.claimed;
            if !which.has(claimed) {
                continue;
            }
            if !row.is_out() {
                let (scope, queue) = (claimed.scope, claimed.queue.clone());
                books.tell(self.nth, Wake::Offered { scope, queue });
                continue;
            }
            let leased = Change::Until {
                job: claimed.job.clone(),
                generation: claimed.generation,
                until: now.plus(LEASE).into(),
                visibility: claimed.visibility,
            };
            at_once(self.memory().set(leased));
            rows.push(row);
        }
        rows.truncate(max);
        rows
    }

    fn change(&self, change: Change) -> bool {
        let mut books = self.fleet.books();
        let done = at_once(self.memory().set(change.clone()));
        match change {
            Change::Own { job, .. } if done => {
                if let Some(former) = books.owners.insert(job.clone(), self.nth) {
                    books.tell(former, Wake::Row { job });
                }
            }
            Change::Adopt { claimed, .. } if done => {
                books.adopted += u64::from(claimed.generation == Gen::ADOPTED);
                books.owners.insert(claimed.job.clone(), self.nth);
            }
            Change::Doubt { job } => books.tell_others(self.nth, &Wake::Row { job }),
            Change::Moved { queue, moved } => {
                let moved = Box::from(&*moved);
                books.tell_others(self.nth, &Wake::Moved { queue, moved });
            }
            Change::Came { queue, subqueues } => {
                books.tell_others(self.nth, &Wake::Came { queue, subqueues });
            }
            Change::Offer { claimed } if done => {
                books.owners.insert(claimed.job.clone(), self.nth);
                let (scope, queue) = (claimed.scope, claimed.queue.clone());
                books.tell_others(self.nth, &Wake::Offered { scope, queue });
            }
            Change::Paused { queue, paused } => {
                books.tell_others(self.nth, &Wake::Paused { queue, paused });
            }
            _ => {}
        }
        done
    }
}

/// What the store in memory says, which it does at once.
fn at_once<T>(answer: Answer<'_, T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(value)) => value,
        Poll::Ready(Err(error)) => panic!("{error}"),
        Poll::Pending => panic!("it waits"),
    }
}

impl Ledger for Member {
    fn at(&self, moment: tokio::time::Instant) -> Timestamp {
        self.memory().at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        let mut books = self.fleet.books();
        let (mut started, mut ended, mut served) = (0, Vec::new(), Vec::new());
        let verdicts = asks.iter().map(|ask| {
            let known = self.find(&ask.job).map(|row| row.claimed.generation);
            let former = books.owners.get(&ask.job).copied();
            if let Some(known) = known.filter(|known| *known >= ask.generation)
                && former != Some(self.nth)
            {
                return match known > ask.generation {
                    true => Verdict::Outdated,
                    false => Verdict::HasRow,
                };
            }
            if known.is_none() && self.is_full.load(Ordering::Relaxed) {
                return Verdict::Unfit;
            }
            let mut taken = at_once(self.memory().take(&[ask], want - started));
            for row in &taken.ended {
                let job = row.claimed.job.clone();
                if let Some(owner) = former.filter(|owner| *owner != self.nth) {
                    books.tell(owner, Wake::Row { job });
                }
                self.freed(&mut books, row);
            }
            ended.append(&mut taken.ended);
            served.append(&mut taken.served);
            let verdict = taken.verdicts.remove(0);
            if matches!(verdict, Verdict::Started { .. }) {
                books.owners.insert(ask.job.clone(), self.nth);
                started += 1;
                if is_priced(&ask.limited) {
                    // It may have been first in line.
                    let keys = ask.limited.iter().map(|one| (one.space, one.key.clone()));
                    books.tell_others(self.nth, &Wake::Freed(keys.collect()));
                }
            }
            verdict
        });
        let verdicts = verdicts.collect();
        Answer::now(Taken {
            verdicts,
            ended,
            served,
        })
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        let mut books = self.fleet.books();
        let row = self.find(job);
        let done = at_once(self.memory().back(job, claim));
        if let Some(row) = row.filter(|_| done) {
            self.freed(&mut books, &row);
        }
        Answer::now(done)
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        let mut books = self.fleet.books();
        let all = at_once(self.memory().end_all(ends));
        for ended in &all {
            let job = ended.claimed.job.clone();
            let owner = books.owners.remove(&job);
            if let Some(owner) = owner.filter(|owner| *owner != self.nth) {
                books.tell(owner, Wake::Row { job });
            }
            self.freed(&mut books, ended);
        }
        Answer::now(all)
    }

    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::now(self.look(which, max))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        let done = changes
            .into_iter()
            .filter(|change| self.change(change.clone()));
        Answer::now(done.count() > 0)
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        self.memory().states(keys)
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let books = self.fleet.books();
        Answer::now(match which {
            RowsOf::Job(job) => {
                let row = self.find(job).map(|row| self.seen_here(row, &books));
                row.into_iter().collect()
            }
            RowsOf::Offered { scope, queue, max } => {
                let mut rows = self.late(&books, self.now());
                rows.retain(|row| {
                    let lane = row.claimed.scope == scope && &*row.claimed.queue == queue;
                    lane && row.place == Place::Offered && self.stands(row, &books)
                });
                rows.truncate(max);
                rows
            }
            RowsOf::Out { .. } => Vec::new(),
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        let books = self.fleet.books();
        if !matches!(which, CountOf::Out) {
            return Answer::now(0);
        }
        let ours = books.owners.iter().filter(|(_, owner)| **owner == self.nth);
        let rows = ours.filter_map(|(job, _)| self.find(job));
        Answer::now(rows.filter(|row| row.is_out()).count() as u64)
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.memory().number(name, step)
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.memory().reserve(wish)
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        for row in rows {
            if let Some(until) = row.due() {
                let claimed = row.claimed.clone();
                self.change(Change::Adopt { claimed, until });
            }
        }
        Answer::now(())
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            loop {
                let told = {
                    let mut books = self.fleet.books();
                    let news = books.news.get_mut(&self.nth);
                    news.and_then(|(news, _)| news.pop_front())
                };
                match told {
                    Some(wake) if !self.deaf.load(Ordering::Relaxed) => return wake,
                    Some(_lost) => {}
                    None => self.bell.notified().await,
                }
            }
        })
    }

    fn facts(&self) -> StoreFacts<'_> {
        StoreFacts {
            is_alone: false,
            siblings: self.siblings.load(Ordering::Relaxed),
            adopted: self.adopted.load(Ordering::Relaxed),
            forgets_unsaid: true,
            ..self.memory().facts()
        }
    }
}
