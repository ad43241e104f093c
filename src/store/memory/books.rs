//! Rows and keys together, which the step engine works on at a time that is passed in.

use std::sync::Arc;

use hashbrown::HashMap;

use super::keys::Keys;
use crate::Row;
use crate::engine::{Engine, Entry, Tables};
use ojs_limit::{Key, KeyState, Space, Timestamp};

/// All that the memory store keeps.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) keys: Keys,
    pub(super) rows: HashMap<Arc<str>, Entry>,
    /// The latest time seen: the clock of these books does not go back.
    pub(super) seen: Timestamp,
    /// The one sidecar whose books these are.
    me: Arc<str>,
}

impl Books {
    /// Nothing but these keys.
    pub(super) fn new(keys: Keys, seen: Timestamp) -> Books {
        Books {
            keys,
            rows: HashMap::new(),
            seen,
            me: Arc::from(""),
        }
    }

    /// A step at this time, or at the latest that was seen.
    pub(super) fn at(&mut self, now: Timestamp) -> Engine<'_, Books> {
        self.seen = self.seen.max(now);
        let now = self.seen;
        Engine { tables: self, now }
    }

    /// The rows of jobs that are out.
    pub(super) fn out(&self) -> impl Iterator<Item = &Row> {
        let rows = self.rows.values().map(|entry| &entry.row);
        rows.filter(|row| row.is_out())
    }
}

impl Tables for Books {
    fn me(&self) -> &Arc<str> {
        &self.me
    }

    fn entry(&self, job: &str) -> Option<&Entry> {
        self.rows.get(job)
    }

    fn entry_mut(&mut self, job: &str) -> Option<&mut Entry> {
        self.rows.get_mut(job)
    }

    fn insert(&mut self, entry: Entry) {
        self.rows.insert(entry.row.claimed.job.clone(), entry);
    }

    fn remove(&mut self, job: &str) -> Option<Entry> {
        self.rows.remove(job)
    }

    fn state(&self, space: Space, key: &Key) -> Option<&KeyState> {
        self.keys.get(space, key)
    }

    fn state_mut(&mut self, space: Space, key: &Key) -> &mut KeyState {
        self.keys.get_mut(space, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let mut books = Books::new(Keys::default(), Timestamp(0));
        let key = Key::new("k").unwrap();
        let shut = |until| Change::Shut {
            key: key.clone(),
            until,
            at_least: false,
        };
        let set = |books: &mut Books, until, now| books.at(now).set(&shut(until));
        assert!(set(&mut books, Timestamp(2_000), Timestamp(1_000)));
        assert_eq!(books.at(Timestamp(2_000)).now, Timestamp(2_000));
        let now = books.at(Timestamp(1_500)).now;
        let state = books.state(Space::Job, &key).unwrap();
        assert!(
            state.shut_until(now).is_none(),
            "open at the latest time seen"
        );
        assert!(
            !set(&mut books, Timestamp(1_900), Timestamp(1_600)),
            "in the past"
        );
    }
}
