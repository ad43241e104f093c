//! The store of one process: everything under one lock, gone when the process ends.
//!
//! Every step takes well under a microsecond and nothing waits inside, so one lock is all it needs;
//! the answers of the [`Ledger`] are known when they are made.

mod books;
mod keys;
mod slab;

pub(super) use self::books::Books;

use std::pin::Pin;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::clock::Clock;
use super::fleet::{self, Numbers};
use super::ledger::{CountOf, KeyStates, Ledger, RowsOf, Standing};
use super::remote::put_back;
use super::{Answer, Change, Claimed, Gen, Number, Overrides, Row, Step, Taken, Wake, Wish};
use crate::limit::{Key, Reserved, Space, Timestamp};

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

    /// The books and the time. The clock is read under the lock, so that times are in the order of
    /// the steps.
    fn open(&self) -> (MutexGuard<'_, Books>, Timestamp) {
        let books = self.books();
        (books, self.clock.now())
    }
}

impl Ledger for MemoryStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        let (mut books, now) = self.open();
        Answer::now(books.take(asks, want, now))
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        let (mut books, now) = self.open();
        Answer::now(books.back(job, claim, now))
    }

    fn end_all<'a>(&'a self, jobs: &'a [(Arc<str>, Option<Gen>)]) -> Answer<'a, Vec<Row>> {
        let (mut books, now) = self.open();
        let ended = jobs
            .iter()
            .filter_map(|(job, claim)| books.end(job, *claim, now));
        Answer::now(ended.collect())
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        let (mut books, now) = self.open();
        Answer::now(books.due(max, now))
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
                _ => {
                    if matches!(change, Change::Clear) {
                        self.overrides.clear();
                        self.numbers.lock().clear();
                    }
                    books.set(&change, now)
                }
            };
        }
        Answer::now(any)
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        let (books, now) = self.open();
        Answer::now(books.states(keys, now))
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        Answer::now(match which {
            RowsOf::Job(job) => self.books().row(job).cloned().into_iter().collect(),
            RowsOf::Offered { .. } | RowsOf::Others { .. } => Vec::new(),
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        Answer::now(match which {
            CountOf::Out => self.books().count_out() as u64,
            CountOf::HeldByOthers(_) => 0,
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        let mut numbers = self.numbers.lock();
        Answer::now(numbers.step(name, step, self.clock.now()))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        let (mut books, now) = self.open();
        Answer::now(books.reserve(&wish, now))
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(put_back(self, rows))
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    fn standing(&self) -> Standing<'_> {
        Standing {
            overrides: &self.overrides,
            is_shared: false,
            is_alone: false,
            siblings: 0,
            times_wiped: 0,
            adopted: 0,
            forgets_unsaid: true,
            doubt: 0,
        }
    }
}

#[cfg(test)]
mod tests;
