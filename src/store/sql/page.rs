//! What a transaction has to do with, taken out of the database: rows and keys by name, what
//! changed of them, and who is to hear of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::step::{SameKey, same};
use super::super::{Claimed, Number, Place, record};
use super::flat::{Kept, Taken};
use crate::limit::{KeyState, Limited, Timestamp, each_key};

/// How long a sidecar may say nothing before it counts as gone, in microseconds.
pub(in crate::store) const SILENCE: u64 = 5_000_000;
/// How late the owner of a row may be.
pub(in crate::store) const PATIENCE: u64 = 3_000_000;
/// For how long, in microseconds, a sidecar has a held job at a time, at most; it sees to that again when a
/// third of it is over, by a second at the latest.
pub(in crate::store) const KEPT: u64 = 30_000_000;
pub(in crate::store) const LATE: u64 = 1_000_000;
/// So long after a held job's claim must be over nobody makes anything of its row any more.
pub(in crate::store) const LONG_OVER: u64 = 60_000_000;

/// A part of the database, in the middle of a transaction.
#[derive(Debug, Default)]
pub(in crate::store) struct Page {
    /// The store's time: not before any time that these keys have seen.
    pub(super) now: Timestamp,
    /// Which data these are.
    pub(super) epoch: String,
    /// Nothing starts before this.
    pub(super) opens: Timestamp,
    /// Which edition of the overrides that is.
    pub(super) edition: i64,
    /// The sidecars that live or have lived, and when each was last heard of.
    pub(super) live: Vec<(String, Timestamp)>,
    /// Microseconds that the time is ahead of the clock of the database's host.
    pub(super) ahead: u64,
    pub(super) rows: BTreeMap<String, Entry<Option<Kept>>>,
    pub(super) keys: BTreeMap<String, Entry<KeyState>>,
    pub(super) numbers: BTreeMap<String, Entry<Number>>,
    pub(super) freed: Vec<String>,
    news: Vec<String>,
    pub(super) beat: bool,
}

#[derive(Debug, Default)]
pub(super) struct Entry<T> {
    pub(super) value: T,
    /// Whether the database has it.
    known: bool,
    pub(super) changed: bool,
}

/// What a database begins with when it fills a page.
#[derive(Clone)]
pub(in crate::store) struct Head {
    pub(in crate::store) now: Timestamp,
    pub(in crate::store) epoch: String,
    pub(in crate::store) opens: Timestamp,
    pub(in crate::store) edition: i64,
    pub(in crate::store) live: Vec<(String, Timestamp)>,
    /// Microseconds that the time is ahead of the clock of the database's host, which was set back.
    pub(in crate::store) ahead: u64,
}

impl Head {
    /// Whether the data began anew, and others may still put back what they know.
    pub(super) fn is_settling(&self) -> bool {
        self.now < self.opens
    }
}

impl Page {
    pub(in crate::store) fn new(head: Head) -> Page {
        Page {
            now: head.now,
            epoch: head.epoch,
            opens: head.opens,
            edition: head.edition,
            live: head.live,
            ahead: head.ahead,
            ..Page::default()
        }
    }

    /// A row as the database has it.
    pub(in crate::store) fn has_row(&mut self, job: String, row: Option<Kept>) {
        let known = row.is_some();
        let entry = Entry {
            value: row,
            known,
            changed: false,
        };
        self.rows.insert(job, entry);
    }

    /// A key as the database has it.
    pub(in crate::store) fn has_key(&mut self, name: String, state: KeyState, seen: Timestamp) {
        self.now = self.now.max(seen);
        let entry = Entry {
            value: state,
            known: true,
            changed: false,
        };
        self.keys.insert(name, entry);
    }

    /// A shared number as the database has it.
    pub(in crate::store) fn has_number(&mut self, name: String, number: Number) {
        let entry = Entry {
            value: number,
            known: true,
            changed: false,
        };
        self.numbers.insert(name, entry);
    }

    /// The keys that the rows have slots of.
    pub(in crate::store) fn names(&self) -> Vec<String> {
        let rows = self.rows.values().filter_map(|entry| entry.value.as_ref());
        rows.flat_map(Kept::names).map(str::to_owned).collect()
    }

    /// The time to write with a key: when it was last looked at.
    pub(in crate::store) fn now(&self) -> Timestamp {
        self.now
    }

    /// Rows to write and rows to take away.
    pub(in crate::store) fn rows(&self) -> impl Iterator<Item = (&str, Option<&Kept>)> {
        let changed = self
            .rows
            .iter()
            .filter(|(_, entry)| entry.changed && (entry.known || entry.value.is_some()));
        changed.map(|(job, entry)| (job.as_str(), entry.value.as_ref()))
    }

    /// Keys to write and keys to take away.
    pub(in crate::store) fn keys(&self) -> impl Iterator<Item = (&str, Option<&KeyState>)> {
        let state = |entry: &Entry<KeyState>| !entry.value.idle(self.now);
        let changed = self
            .keys
            .iter()
            .filter(move |(_, entry)| entry.changed && (entry.known || state(entry)));
        changed
            .map(move |(name, entry)| (name.as_str(), Some(&entry.value).filter(|_| state(entry))))
    }

    /// Numbers to write.
    pub(in crate::store) fn numbers(&self) -> impl Iterator<Item = (&str, &Number)> {
        let changed = self.numbers.iter().filter(|(_, entry)| entry.changed);
        changed.map(|(name, entry)| (name.as_str(), &entry.value))
    }

    /// What the others are to hear.
    pub(in crate::store) fn news(&self) -> &[String] {
        &self.news
    }

    /// Whether the sidecar is to be written down as living.
    pub(in crate::store) fn beats(&self) -> bool {
        self.beat
    }

    /// Whether there is anything to write.
    pub(in crate::store) fn is_changed(&self) -> bool {
        self.beat
            || self.rows().next().is_some()
            || self.keys().next().is_some()
            || self.numbers().next().is_some()
    }

    /// What was freed is said in one line of news.
    pub(super) fn finish(&mut self, me: &str) {
        if !self.freed.is_empty() {
            self.freed.sort_unstable();
            self.freed.dedup();
            let text = ["freed", &self.freed.join("\n")].join("\n");
            self.freed.clear();
            self.say(me, text);
        }
    }

    pub(super) fn say(&mut self, me: &str, text: String) {
        if self.live.iter().any(|(owner, _)| owner != me) {
            self.news.push(text);
        }
    }

    pub(super) fn say_row(&mut self, me: &str, owner: &str, job: &str) {
        if owner != me {
            self.say(me, format!("row\n{job}"));
        }
    }

    /// The rows of this owner are overdue from then on, for others.
    pub(super) fn overdue(&self, owner: &str) -> Timestamp {
        let seen = self.live.iter().find(|(other, _)| other == owner);
        match seen {
            Some((_, seen)) if seen.plus(SILENCE) > self.now => self.now.minus(PATIENCE),
            _ => self.now,
        }
    }

    // Keys.

    pub(super) fn state(&self, one: &Limited) -> Option<&KeyState> {
        let entry = self.keys.get(&record::name(one.space, &one.key));
        entry.map(|entry| &entry.value)
    }

    pub(super) fn state_of(&self, name: &str) -> KeyState {
        let entry = self.keys.get(name);
        entry.map(|entry| entry.value.clone()).unwrap_or_default()
    }

    pub(super) fn state_mut(&mut self, name: String) -> &mut KeyState {
        let entry = self.keys.entry(name).or_default();
        entry.changed = true;
        &mut entry.value
    }

    /// Does one thing to each different key, with all the limits that the job brings to it.
    pub(super) fn each<'a>(
        &mut self,
        limited: &'a [Limited],
        mut step: impl FnMut(&mut KeyState, SameKey<'a>) -> Option<crate::limit::Undo>,
    ) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(limited.len());
        for (_, one) in each_key(limited) {
            let name = record::name(one.space, &one.key);
            let undo = step(self.state_mut(name.clone()), same(limited, one));
            taken.push(Taken { name, undo });
        }
        taken
    }

    /// What a start took goes back: the slot, and with `back` the start itself.
    pub(super) fn untake(&mut self, row: &Kept, back: bool) {
        let now = self.now;
        let limited = &row.claimed.limited;
        for taken in &row.taken {
            let one = limited
                .iter()
                .find(|one| record::name(one.space, &one.key) == taken.name);
            let state = self.state_mut(taken.name.clone());
            match (&taken.undo, one) {
                (Some(undo), Some(one)) if back => state.back(same(limited, one), undo),
                (Some(undo), Some(one)) => state.completed(same(limited, one), undo, now),
                _ => state.end(),
            }
            self.freed.push(taken.name.clone());
        }
    }

    // Rows.

    pub(super) fn kept(&self, job: &str) -> Option<&Kept> {
        self.rows.get(job)?.value.as_ref()
    }

    /// The row, to be changed.
    pub(super) fn kept_mut(&mut self, job: &str) -> Option<&mut Kept> {
        let now = self.now;
        let entry = self.rows.get_mut(job)?;
        let row = entry.value.as_mut()?;
        entry.changed = true;
        row.touched = now;
        Some(row)
    }

    pub(super) fn put(&mut self, mut row: Kept) {
        row.touched = self.now;
        let entry = self.rows.entry(row.claimed.job.to_string()).or_default();
        entry.changed = true;
        entry.value = Some(row);
    }

    /// The row goes, and its slots with it.
    pub(super) fn end_row(&mut self, job: &str) -> Option<Kept> {
        let entry = self.rows.get_mut(job)?;
        let row = entry.value.take()?;
        entry.changed = true;
        self.untake(&row, false);
        Some(row)
    }

    pub(super) fn held(&self, claimed: &Claimed, me: &Arc<str>) -> Kept {
        Kept {
            claimed: claimed.clone(),
            place: Place::Held,
            until: claimed.look_again(self.now),
            started: None,
            hidden: false,
            owner: me.clone(),
            taken: Vec::new(),
            touched: self.now,
        }
    }
}
