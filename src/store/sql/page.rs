//! What a transaction has to do with, taken out of the database: rows and keys by name, what
//! changed of them, and who is to hear of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::engine::{Engine, Entry, Tables};
use super::super::fleet::SILENT;
use super::super::record::{self, Written};
use super::super::{Claimed, NUMBER_LASTS, Number};
use super::row::{self, keys_of};
use super::statements::{Dialect, Statement};
use super::times::{PATIENCE, SILENCE};
use super::value::{Rows, SqlValue, unsigned};
use ojs_limit::{Key, KeyState, Space, Timestamp};

/// A part of the database, in the middle of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The sidecar that asks.
    pub(crate) me: Arc<str>,
    pub(super) head: Head,
    pub(super) rows: BTreeMap<String, Loaded<Option<Entry>>>,
    pub(super) keys: BTreeMap<String, Loaded<KeyState>>,
    pub(super) numbers: BTreeMap<String, Loaded<Number>>,
    /// The names of limits and settings that are there, of those that it is about.
    pub(super) overrides: BTreeSet<String>,
    /// What stands under these names from now on.
    pub(super) overridden: BTreeMap<String, Option<Written>>,
    /// Everything else goes before the rest is written.
    pub(crate) is_cleared: bool,
    pub(super) freed: Vec<String>,
    /// How many jobs of these queues the sidecar holds.
    pub(super) holds: Vec<(String, u64)>,
    /// What the others are to hear.
    pub(super) news: Vec<String>,
    /// Whether the sidecar is to be written down as living.
    pub(crate) beats: bool,
}

#[derive(Debug, Default)]
pub(super) struct Loaded<T> {
    pub(super) value: T,
    /// Whether the database has it.
    known: bool,
    pub(super) changed: bool,
}

impl<T> Loaded<T> {
    /// As the database has it.
    fn of(value: T) -> Loaded<T> {
        Loaded {
            value,
            known: true,
            changed: false,
        }
    }
}

/// What a database begins with when it fills a page.
#[derive(Clone, Default, Debug)]
pub(crate) struct Head {
    /// The store's time: not before any time that these keys have seen.
    pub(crate) now: Timestamp,
    /// Which data these are.
    pub(crate) epoch: String,
    /// Nothing starts before this.
    pub(crate) opens: Timestamp,
    /// Which edition of the overrides that is.
    pub(crate) edition: i64,
    /// The sidecars that live or have lived, and when each was last heard of.
    pub(crate) live: Vec<(String, Timestamp)>,
    /// Microseconds that the time is ahead of the clock of the database's host, which was set back.
    pub(crate) ahead: u64,
}

impl Head {
    /// Whether the data began anew, and others may still put back what they know.
    pub(super) fn is_settling(&self) -> bool {
        self.now < self.opens
    }

    /// Whether the time to put back what is known went by while the store could not be reached: it begins again.
    pub(crate) fn opened_unheard(&self) -> bool {
        let latest = self.live.iter().map(|(_, seen)| *seen).max();
        latest.is_some_and(|seen| seen < self.opens && self.now.since(seen) > SILENT)
    }
}

impl Page {
    pub(crate) fn new(me: Arc<str>, head: Head) -> Page {
        Page {
            me,
            head,
            ..Page::default()
        }
    }

    /// Takes in rows of a table as the database has them; `None`: somebody else wrote one.
    pub(crate) fn read(&mut self, asked: Statement, rows: Rows) -> Option<()> {
        for columns in rows {
            match asked {
                Statement::Rows => {
                    let entry = row::read(columns)?;
                    let job = entry.row.claimed.job.to_string();
                    self.rows.insert(job, Loaded::of(Some(entry)));
                }
                Statement::Keys => {
                    let [name, state] = columns.try_into().ok()?;
                    let (state, seen) = KeyState::unpack(&state.bytes()?)?;
                    self.head.now = self.head.now.max(seen);
                    self.keys.insert(name.text()?, Loaded::of(state));
                }
                Statement::Numbers => self.has_number(columns)?,
                _ => {
                    let [name] = columns.try_into().ok()?;
                    self.overrides.insert(name.text()?);
                }
            }
        }
        Some(())
    }

    /// A shared number as the database has it, unless its time is over.
    fn has_number(&mut self, columns: Vec<SqlValue>) -> Option<()> {
        let [name, value, version, put_at, ends] = columns.try_into().ok()?;
        if unsigned(ends.number()?) > self.head.now.0 {
            let number = Number {
                value: value.number()?,
                version: unsigned(version.number()?),
                put_at: Timestamp(unsigned(put_at.number()?)),
                done: true,
            };
            self.numbers.insert(name.text()?, Loaded::of(number));
        }
        Some(())
    }

    /// What has to be written, in this order: statements, each with the rows that it is told.
    pub(crate) fn writes(&self, dialect: &Dialect) -> Vec<(Statement, Rows)> {
        let now = self.head.now;
        let (rows, gone_rows) = put_and_drop(self.rows(), |_, entry| {
            let mut columns = row::columns(entry);
            if dialect.has_lists {
                let keys: Vec<String> = keys_of(entry).collect();
                columns.push(SqlValue::Text(keys.join("\n")));
            }
            columns
        });
        let (keys, gone_keys) = put_and_drop(self.keys(), |name, state| {
            vec![name.into(), SqlValue::Bytes(state.pack(now))]
        });
        let overridden = self.overridden.iter();
        let overridden = overridden.map(|(name, written)| (&**name, written.as_ref()));
        let (overrides, gone_overrides) = put_and_drop(overridden, |name, written| {
            let ends = written.ends.map_or(SqlValue::Nothing, |at| at.0.into());
            vec![name.into(), SqlValue::from(&*written.text), ends]
        });
        let numbers = self.numbers.iter().filter(|(_, entry)| entry.changed);
        let numbers = numbers.map(|(name, Loaded { value: one, .. })| {
            vec![
                SqlValue::from(&**name),
                SqlValue::Number(one.value),
                one.version.into(),
                one.put_at.0.into(),
                now.plus(NUMBER_LASTS).0.into(),
            ]
        });
        let holds = self.holds.iter().map(|(queue, jobs)| {
            let (queue, me) = (SqlValue::from(&**queue), SqlValue::from(&*self.me));
            vec![queue, me, (*jobs).into(), now.0.into()]
        });
        let news = self.news.iter().map(|text| {
            let (me, text) = (SqlValue::from(&*self.me), SqlValue::from(&**text));
            vec![me, text, now.0.into()]
        });
        vec![
            (Statement::PutRows, rows),
            (Statement::DropRows, gone_rows),
            (Statement::PutKeys, keys),
            (Statement::DropKeys, gone_keys),
            (Statement::PutNumbers, numbers.collect()),
            (Statement::PutHolds, holds.collect()),
            (Statement::PutOverrides, overrides),
            (Statement::DropOverrides, gone_overrides),
            (Statement::Say, news.collect()),
        ]
    }

    /// The keys that the rows have slots of.
    pub(crate) fn names(&self) -> Vec<String> {
        let rows = self.rows.values().filter_map(|entry| entry.value.as_ref());
        rows.flat_map(keys_of).collect()
    }

    /// The time to write with a key: when it was last looked at.
    pub(crate) fn now(&self) -> Timestamp {
        self.head.now
    }

    /// Rows to write and rows to take away.
    fn rows(&self) -> impl Iterator<Item = (&str, Option<&Entry>)> {
        let rows = self.rows.iter();
        let changed =
            rows.filter(|(_, entry)| entry.changed && (entry.known || entry.value.is_some()));
        changed.map(|(job, entry)| (job.as_str(), entry.value.as_ref()))
    }

    /// Keys to write and keys to take away.
    fn keys(&self) -> impl Iterator<Item = (&str, Option<&KeyState>)> {
        let state = |entry: &Loaded<KeyState>| !entry.value.idle(self.head.now);
        let keys = self.keys.iter();
        let changed = keys.filter(move |(_, entry)| entry.changed && (entry.known || state(entry)));
        changed
            .map(move |(name, entry)| (name.as_str(), Some(&entry.value).filter(|_| state(entry))))
    }

    /// Whether these are another edition of limits and settings.
    pub(crate) fn is_new_edition(&self) -> bool {
        self.is_cleared || !self.overridden.is_empty()
    }

    /// What was freed is said in one line of news.
    pub(super) fn finish(&mut self) {
        if !self.freed.is_empty() {
            self.freed.sort_unstable();
            self.freed.dedup();
            let text = ["freed", &self.freed.join("\n")].join("\n");
            self.freed.clear();
            self.say(text);
        }
    }

    pub(super) fn say(&mut self, text: String) {
        if self.others().next().is_some() {
            // The last word counts: a queue that was paused and resumed may be paused again.
            self.news.retain(|said| *said != text);
            self.news.push(text);
        }
    }

    /// The others that live or have lived, and when each was last heard of.
    pub(super) fn others(&self) -> impl Iterator<Item = &(String, Timestamp)> {
        let all = self.head.live.iter();
        all.filter(|(owner, _)| **owner != *self.me)
    }

    /// The rows of this owner are overdue from then on, for others.
    pub(super) fn overdue(&self, owner: &str) -> Timestamp {
        let seen = self.head.live.iter().find(|(other, _)| other == owner);
        match seen {
            Some((_, seen)) if seen.plus(SILENCE) > self.head.now => self.head.now.minus(PATIENCE),
            _ => self.head.now,
        }
    }

    pub(super) fn state_of(&self, name: &str) -> KeyState {
        let entry = self.keys.get(name);
        entry.map(|entry| entry.value.clone()).unwrap_or_default()
    }

    /// A step on this page.
    pub(super) fn step(&mut self) -> Engine<'_, Page> {
        let now = self.head.now;
        Engine { tables: self, now }
    }
}

/// Rows to write, and the names of those to take away.
fn put_and_drop<'p, T>(
    changed: impl Iterator<Item = (&'p str, Option<T>)>,
    columns: impl Fn(&'p str, T) -> Vec<SqlValue>,
) -> (Rows, Rows) {
    let (mut put, mut gone) = (Rows::new(), Rows::new());
    for (name, now) in changed {
        match now {
            Some(now) => put.push(columns(name, now)),
            None => gone.push(vec![name.into()]),
        }
    }
    (put, gone)
}

impl Tables for Page {
    fn me(&self) -> &Arc<str> {
        &self.me
    }

    fn entry(&self, job: &str) -> Option<&Entry> {
        self.rows.get(job)?.value.as_ref()
    }

    fn entry_mut(&mut self, job: &str) -> Option<&mut Entry> {
        let entry = self.rows.get_mut(job)?;
        entry.changed = true;
        entry.value.as_mut()
    }

    fn insert(&mut self, row: Entry) {
        let job = row.row.claimed.job.to_string();
        let entry = self.rows.entry(job).or_default();
        entry.changed = true;
        entry.value = Some(row);
    }

    fn remove(&mut self, job: &str) -> Option<Entry> {
        let entry = self.rows.get_mut(job)?;
        entry.changed = true;
        entry.value.take()
    }

    fn state(&self, space: Space, key: &Key) -> Option<&KeyState> {
        let entry = self.keys.get(&record::name(space, key));
        entry.map(|entry| &entry.value)
    }

    fn state_mut(&mut self, space: Space, key: &Key) -> &mut KeyState {
        let entry = self.keys.entry(record::name(space, key)).or_default();
        entry.changed = true;
        &mut entry.value
    }

    fn freed(&mut self, space: Space, key: &Key) {
        self.freed.push(record::name(space, key));
    }

    fn changed(&mut self, owner: &Arc<str>, job: &str) {
        if *owner != self.me {
            self.say(format!("row\n{job}"));
        }
    }

    fn offered(&mut self, claimed: &Claimed) {
        let lane = record::lane(claimed.scope, &claimed.queue);
        self.say(format!("offered\n{lane}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several words of one transaction: siblings follow each as it comes.
    #[test]
    fn the_last_of_equal_words_counts() {
        let head = Head {
            live: vec![("sibling".to_owned(), Timestamp(1))],
            ..Head::default()
        };
        let mut page = Page::new("me".into(), head);
        for word in ["paused\n1", "paused\n0", "paused\n1"] {
            page.say(word.to_owned());
        }
        assert_eq!(page.news, ["paused\n0", "paused\n1"]);
    }
}
