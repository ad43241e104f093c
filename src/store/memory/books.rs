//! Rows and keys together, which the step engine works on at a time that is passed in.

use std::sync::Arc;

use crate::limit::{Key, KeyState, Reserved, Space, Timestamp};
use crate::store::engine::{self, Engine, Tables};
use crate::store::ledger::KeyStates;
use crate::store::{Change, Claimed, Gen, Place, Row, Taken, Wish};

use super::keys::Keys;
use super::slab::{Id, Slab};

/// How many keys the sweep looks at for each job that is asked. With more than one, it goes round
/// faster than new keys can come.
const SWEPT: usize = 2;

/// All that the memory store keeps.
#[derive(Debug)]
pub(in crate::store) struct Books {
    keys: Keys,
    rows: Slab<Entry>,
    /// The latest time seen: the clock of these books does not go back.
    seen: Timestamp,
    /// The one sidecar whose books these are.
    me: Arc<str>,
}

type Entry = engine::Entry<Id>;

impl Books {
    pub(in crate::store) fn new() -> Books {
        Books {
            keys: Keys::new(),
            rows: Slab::new(),
            seen: Timestamp::default(),
            me: Arc::from(""),
        }
    }

    /// The same without rows and slots.
    pub(in crate::store) fn emptied(&self) -> Books {
        Books {
            keys: self.keys.emptied(),
            seen: self.seen,
            ..Books::new()
        }
    }

    /// Asks for the jobs in order until `want` have started.
    pub(in crate::store) fn take(
        &mut self,
        asks: &[&Claimed],
        want: usize,
        now: Timestamp,
    ) -> Taken {
        let taken = self.at(now).take(asks.iter().copied(), want);
        self.keys.sweep(SWEPT * asks.len(), self.seen);
        taken
    }

    /// Grants starts of a key ahead of their time.
    pub(in crate::store) fn reserve(&mut self, wish: &Wish<'_>, now: Timestamp) -> Reserved {
        let Wish {
            limited,
            want,
            ahead,
            unused,
        } = *wish;
        let reserved = self.at(now).reserve(limited, want, ahead, unused);
        self.keys.sweep(SWEPT, self.seen);
        reserved
    }

    /// Ends the rows of older claims of these jobs, with their slots.
    pub(in crate::store) fn end_older(&mut self, asks: &[&Claimed], now: Timestamp) -> Vec<Row> {
        self.at(now).end_older(asks.iter().copied())
    }

    /// The row of a job that is out goes, and the start is uncounted.
    pub(in crate::store) fn back(&mut self, job: &str, generation: Gen, now: Timestamp) -> bool {
        self.at(now).back(job, generation)
    }

    /// The row and its slots go, unless the row is of a newer claim than `generation`.
    pub(in crate::store) fn end(
        &mut self,
        job: &str,
        generation: Option<Gen>,
        now: Timestamp,
    ) -> Option<Row> {
        self.at(now).end(job, generation)
    }

    /// The rows whose time has come, oldest first, at most `max` in each place. The rows are few (what workers
    /// and the hold have between them), so they are all looked at, once a second.
    pub(in crate::store) fn due(&mut self, max: usize, now: Timestamp) -> Vec<Row> {
        let now = self.at(now).now;
        let rows = self.rows.iter().map(|entry| &entry.row);
        let mut due: Vec<&Row> = rows.filter(|row| row.until <= now).collect();
        due.sort_by(|a, b| (a.until, &a.claimed.job).cmp(&(b.until, &b.claimed.job)));
        let (mut held, mut out) = (0, 0);
        due.retain(|row| {
            let count = match row.place {
                Place::Held => &mut held,
                Place::Out => &mut out,
            };
            *count += 1;
            *count <= max
        });
        due.into_iter().cloned().collect()
    }

    /// Changes a row or a key.
    pub(in crate::store) fn set(&mut self, change: &Change, now: Timestamp) -> bool {
        if matches!(change, Change::Clear) {
            let empty = self.keys.len() == 0 && self.rows.len() == 0;
            *self = Books {
                seen: self.seen,
                ..Books::new()
            };
            return !empty;
        }
        self.at(now).set(change)
    }

    pub(in crate::store) fn row(&self, job: &str) -> Option<&Row> {
        Some(&self.entry(&self.find(job)?)?.row)
    }

    pub(in crate::store) fn states(&self, keys: &[(Space, &Key)], now: Timestamp) -> KeyStates {
        let state = |(space, key): &(Space, &Key)| self.keys.get(*space, key).cloned();
        KeyStates {
            states: keys
                .iter()
                .map(|key| state(key).unwrap_or_default())
                .collect(),
            now: now.max(self.seen),
        }
    }

    pub(in crate::store) fn count_out(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|entry| entry.row.place == Place::Out).count()
    }

    /// How many keys are kept.
    pub(in crate::store) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// A step at this time, or at the latest that was seen.
    fn at(&mut self, now: Timestamp) -> Engine<'_, Books> {
        self.seen = self.seen.max(now);
        let now = self.seen;
        Engine { tables: self, now }
    }
}

impl Tables for Books {
    type RowId = Id;
    type KeyId = Id;

    fn me(&self) -> &Arc<str> {
        &self.me
    }

    fn find(&self, job: &str) -> Option<Id> {
        let is = |entry: &Entry| *entry.row.claimed.job == *job;
        self.rows.find(self.rows.hash(job), is)
    }

    fn entry(&self, id: &Id) -> Option<&Entry> {
        self.rows.get(*id)
    }

    fn entry_mut(&mut self, id: &Id) -> Option<&mut Entry> {
        self.rows.get_mut(*id)
    }

    fn insert(&mut self, entry: Entry) -> Id {
        let hash = self.rows.hash(&*entry.row.claimed.job);
        self.rows.insert(hash, entry)
    }

    fn remove(&mut self, id: &Id) -> Option<Entry> {
        let hash = self.rows.hash(&*self.rows.get(*id)?.row.claimed.job);
        self.rows.remove(hash, *id)
    }

    fn state(&self, space: Space, key: &Key) -> Option<&KeyState> {
        self.keys.get(space, key)
    }

    fn key(&mut self, space: Space, key: &Key) -> Id {
        self.keys.id(space, key)
    }

    fn state_mut(&mut self, key: &Id) -> Option<&mut KeyState> {
        self.keys.get_mut(*key)
    }

    // One sidecar has all rows, and learns from the answers what it changed.

    fn freed(&mut self, _key: &Id) {}

    fn changed(&mut self, _owner: &Arc<str>, _job: &str) {}

    fn offered(&mut self, _claimed: &Claimed) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let mut books = Books::new();
        let key = Key::new("k").unwrap();
        let shut = |until| Change::Shut {
            key: key.clone(),
            until,
            at_least: false,
            probe: None,
        };
        assert!(books.set(&shut(Timestamp(2_000)), Timestamp(1_000)));
        assert!(books.due(1, Timestamp(2_000)).is_empty());
        let known = books.states(&[(Space::Job, &key)], Timestamp(1_500));
        assert!(
            known.states[0].is_shut(known.now).is_none(),
            "open at the latest time seen"
        );
        assert!(
            !books.set(&shut(Timestamp(1_900)), Timestamp(1_600)),
            "in the past"
        );
    }
}
