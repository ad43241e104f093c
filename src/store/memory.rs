//! The store of one process: everything under one lock, gone when the process ends.
//!
//! Every step takes well under a microsecond and nothing waits inside, so one lock is all it needs;
//! the answers of the [`Ledger`] are known when they are made.

mod books;
mod keys;

use std::pin::Pin;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::clock::Clock;
use super::fleet::{self, Numbers};
use super::ledger::{CountOf, KeyStates, Ledger, LooksAfter, RowsOf, StoreFacts};
use super::remote::put_back;
use super::{Answer, Change, Claimed, End, Gen, Number, Overrides, Row, Step, Taken, Wake, Wish};
use books::Books;
use keys::Keys;
use ojs_limit::{Key, Limited, Reserved, Space, Timestamp};

/// How many keys the sweep looks at for each one that is asked. With more than one, it goes round
/// faster than new keys can come.
const SWEPT: usize = 2;

/// Keeps usage in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    /// A panic elsewhere while they were open has left them between two whole steps at worst, so they are used on.
    books: Mutex<Books>,
    overrides: Overrides,
    numbers: Mutex<Numbers>,
}

impl MemoryStore {
    /// An empty store, on whose clock it is `unix_micros` microseconds since the Unix epoch now.
    pub fn new(unix_micros: u64) -> MemoryStore {
        MemoryStore::on(Clock::new(unix_micros))
    }

    /// An empty store that goes by this clock.
    pub fn on(clock: Clock) -> MemoryStore {
        MemoryStore {
            clock,
            books: Mutex::new(Books::new(Keys::default(), Timestamp(0))),
            overrides: Overrides::default(),
            numbers: Mutex::default(),
        }
    }

    /// A store that goes by another clock, without the rows and slots of this one: what was started counts.
    pub(super) fn emptied(&self, clock: Clock) -> MemoryStore {
        let empty = MemoryStore::on(clock);
        let books = self.books.lock();
        *empty.books.lock() = Books::new(books.keys.emptied(), books.seen);
        drop(books);
        empty
    }

    /// Counts a start that another store granted at this time, unless so many keys are kept and it has another one.
    pub(super) fn count(&self, claimed: &Claimed, at: Timestamp, most: usize) {
        let mut books = self.books.lock();
        books.keys.sweep(SWEPT * claimed.limited.len(), at);
        let is_kept = |one: &Limited| books.keys.get(one.space, &one.key).is_some();
        if books.keys.len() >= most && !claimed.limited.iter().all(is_kept) {
            return;
        }
        let mut step = books.at(at);
        step.end(&End::of(claimed.job.clone(), None));
        step.started(claimed, at);
    }

    /// How many keys are kept. Those with nothing used are forgotten by and by, as jobs are asked.
    pub fn keys(&self) -> usize {
        self.books.lock().keys.len()
    }

    /// The books and the time. The clock is read under the lock, so that times are in the order of
    /// the steps.
    fn open(&self) -> (MutexGuard<'_, Books>, Timestamp) {
        let books = self.books.lock();
        (books, self.clock.now())
    }
}

impl Ledger for MemoryStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        let (mut books, now) = self.open();
        let mut step = books.at(now);
        let (taken, now) = (step.take(asks.iter().copied(), want), step.now);
        let keys: usize = asks.iter().map(|ask| ask.limited.len()).sum();
        books.keys.sweep(SWEPT * keys, now);
        Answer::now(taken)
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        let (mut books, now) = self.open();
        Answer::now(books.at(now).back(job, claim))
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        let (mut books, now) = self.open();
        let mut step = books.at(now);
        let ended = ends.iter().filter_map(|end| step.end(end));
        Answer::now(ended.collect())
    }

    /// The rows are few (what workers have between them), so they are all looked at, once a second.
    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        let (mut books, now) = self.open();
        let now = books.at(now).now;
        let rows = books.rows.values().map(|entry| &entry.row);
        let rows = rows.filter(|row| which.has(&row.claimed));
        Answer::now(first_due(rows, max, now))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        let (mut books, now) = self.open();
        let mut any = false;
        for change in changes {
            any |= match change {
                Change::Override { space, key, set } => self.overrides.put(space, key, set),
                Change::Setting { name, text } => self.overrides.put_setting(name, text),
                Change::Paused { queue, paused } => {
                    let (name, step) = fleet::pause(&queue, paused);
                    self.numbers.lock().step(&name, step, now).done
                }
                Change::Clear => {
                    self.overrides.clear();
                    self.numbers.lock().clear();
                    *books = Books::new(Keys::default(), books.seen);
                    true
                }
                _ => books.at(now).set(&change),
            };
        }
        Answer::now(any)
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        let (mut books, now) = self.open();
        let now = books.at(now).now;
        let state = |(space, key): &(Space, &Key)| books.keys.get(*space, key).cloned();
        let states = keys.iter().map(|key| state(key).unwrap_or_default());
        Answer::now(KeyStates {
            states: states.collect(),
            now,
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let books = self.books.lock();
        Answer::now(match which {
            RowsOf::Job(job) => {
                let entry = books.rows.get(job);
                entry.map(|entry| entry.row.clone()).into_iter().collect()
            }
            RowsOf::Out { max } => books.out().take(max).cloned().collect(),
            RowsOf::Offered { .. } => Vec::new(),
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        Answer::now(match which {
            CountOf::Out => self.books.lock().out().count() as u64,
            CountOf::HeldByOthers(_) => 0,
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        let mut numbers = self.numbers.lock();
        Answer::now(numbers.step(name, step, self.clock.now()))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        let (mut books, now) = self.open();
        let mut step = books.at(now);
        let reserved = step.reserve(wish.limited, wish.want, wish.ahead, wish.unused);
        books.keys.sweep(SWEPT, now);
        Answer::now(reserved)
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(put_back(self, rows))
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    fn facts(&self) -> StoreFacts<'_> {
        StoreFacts {
            overrides: &self.overrides,
            is_shared: false,
            is_alone: false,
            was_alone: false,
            siblings: 0,
            times_wiped: 0,
            adopted: 0,
            forgets_unsaid: true,
            doubt: 0,
        }
    }
}

/// Of these rows those whose time has come, oldest first, at most `max` in each place.
pub(super) fn first_due<'r>(
    rows: impl Iterator<Item = &'r Row>,
    max: usize,
    now: Timestamp,
) -> Vec<Row> {
    let mut due: Vec<&Row> = rows.filter(|row| row.place.written() <= now).collect();
    due.sort_by_key(|row| (row.place.written(), row.claimed.job.clone()));
    let (mut held, mut out) = (0, 0);
    due.retain(|row| {
        let count = match row.is_out() {
            false => &mut held,
            true => &mut out,
        };
        *count += 1;
        *count <= max
    });
    due.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests;
