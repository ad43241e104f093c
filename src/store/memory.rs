//! The store of one process: everything under one lock, gone when the process ends.
//!
//! Every step takes well under a microsecond and nothing waits inside, so one lock is all it needs;
//! the answers of the [`Store`] trait are known when they are made.

mod books;
mod keys;
mod slab;

pub(super) use self::books::Books;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::clock::Clock;
use super::fleet::Numbers;
use super::{
    Answer, Change, Claimed, Gen, Number, Overrides, Place, Room, Row, Step, Store, Usage, Verdict,
    Wish,
};
use crate::limit::{Key, Limited, Limits, Reserved, Space, Timestamp};

/// Keeps usage in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
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
            books: Mutex::new(Books::new()),
            overrides: Overrides::default(),
            numbers: Mutex::default(),
        }
    }

    /// A store that goes by another clock, without the rows and slots of this one: what was started counts.
    pub(super) fn emptied(&self, clock: Clock) -> MemoryStore {
        let empty = MemoryStore::on(clock);
        *empty.books() = self.books().emptied();
        empty
    }

    /// How many keys are kept. Those with nothing used are forgotten by and by, as jobs are asked.
    pub fn keys(&self) -> usize {
        self.books().keys()
    }

    /// The books. A panic elsewhere while they were open has left them between two whole steps at
    /// worst, so they are used on.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock()
    }

    /// The books and the time. The clock is read under the lock, so that times are in the order of
    /// the steps.
    fn open(&self) -> (MutexGuard<'_, Books>, Timestamp) {
        let books = self.books();
        (books, self.clock.now())
    }
}

impl Store for MemoryStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        let (mut books, now) = self.open();
        Answer::now(books.take(asks, want, now))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        let (mut books, now) = self.open();
        Answer::now(books.reserve(&wish, now))
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        let now = || self.clock.now();
        Answer::now(self.books().claimed(claims, now))
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        let (mut books, now) = self.open();
        Answer::now(books.back(job, generation, now))
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        let (mut books, now) = self.open();
        Answer::now(books.end(job, generation, now))
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        let (mut books, now) = self.open();
        Answer::now(books.due(max, now))
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        let (mut books, now) = self.open();
        match change {
            Change::Override { space, key, set } => {
                return Answer::now(self.overrides.put(space, key, set));
            }
            Change::Setting { name, text } => {
                return Answer::now(self.overrides.put_setting(name, text));
            }
            Change::Clear => {
                self.overrides.clear();
                self.numbers().clear();
            }
            _ => {}
        }
        Answer::now(books.set(change, now))
    }

    fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        Answer::now(self.books().row(job).cloned())
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        let (books, now) = self.open();
        Answer::now(books.room(limited, now))
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        let (books, now) = self.open();
        Answer::now(books.usage(space, key, limits, now))
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        let books = self.books();
        let each = keys.iter().map(|(space, key)| books.active(*space, key));
        Answer::now(each.collect())
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        Answer::now(self.books().count(place))
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        let mut numbers = self.numbers();
        Answer::now(numbers.step(name, step, self.clock.now()))
    }
}

#[cfg(test)]
mod tests;
