//! The steps that only stores with siblings need: who is looked after by whom, and what all share.

use super::super::engine::{Tables, row_for};
use super::super::fleet::kept_name;
use super::super::{Change, Gen, Number, OFFERED, Place, Row, Step, StoreError, fleet};
use super::flat::Kept;
use super::page::{LONG_OVER, Page};
use super::search::Due;
use crate::limit::Timestamp;

/// The number that says how many jobs were ever adopted.
pub(in crate::store) const ADOPTED: &str = "adopted";

/// How long whoever is handed the row of another has for it.
const LEASE: u64 = 2_000_000;

impl Page {
    /// Whether starts may be asked for: where data began anew, all have to put back what they know first.
    pub(super) fn is_settled(&self, want: usize) -> Result<(), StoreError> {
        match want > 0 && self.head.is_settling() {
            true => Err(StoreError::Settling),
            false => Ok(()),
        }
    }

    pub(super) fn row(&self, job: &str) -> Option<Row> {
        self.kept(job).map(|row| self.row_for_me(row))
    }

    fn row_for_me(&self, row: &Kept) -> Row {
        row_for(row.clone(), &self.me)
    }

    /// Those of these jobs that have rows.
    pub(super) fn rows_of(&self, jobs: &[String]) -> Vec<Row> {
        let rows = jobs.iter().filter_map(|job| self.row(job));
        rows.collect()
    }

    pub(super) fn number(&mut self, name: &str, step: Step) -> Number {
        let now = self.head.now;
        let entry = self.numbers.entry(name.to_owned()).or_default();
        let before = entry.value.version;
        let after = entry.value.stepped(step, now);
        entry.value = after;
        entry.changed |= after.version != before;
        after
    }

    /// Keeps whether a queue is paused, and tells the others.
    fn pause(&mut self, queue: &str, paused: bool) -> bool {
        self.say(format!("paused\n{}\n{queue}", i64::from(paused)));
        let (name, step) = fleet::pause(queue, paused);
        self.number(&name, step).done
    }

    /// The rows that were found and are due; of others at most so many that `max` are out in all.
    pub(super) fn due(&mut self, found: &Due, max: usize) -> Vec<Row> {
        self.beat = true;
        let me = self.me.clone();
        if self.head.live.iter().all(|(owner, _)| **owner != *me) {
            self.say("joined".to_owned());
        }
        let now = self.head.now;
        let mine = found.mine.iter().filter_map(|job| self.kept(job));
        let mine = mine.filter(|entry| entry.owner == me && entry.row.until <= now);
        let mut rows: Vec<Row> = mine.map(|row| self.row_for_me(row)).collect();
        rows.sort_by(|a, b| (a.until, &a.claimed.job).cmp(&(b.until, &b.claimed.job)));
        let out = rows.iter().filter(|row| row.place == Place::Out).count();
        let most = rows.len() + max.saturating_sub(out);
        for job in &found.others_out {
            let overdue = self.kept(job).is_some_and(|entry| {
                entry.row.place == Place::Out
                    && entry.owner != me
                    && entry.row.until <= self.overdue(&entry.owner)
            });
            if !overdue || rows.len() >= most {
                continue;
            }
            rows.extend(self.row(job));
            if let Some(entry) = self.find(job).and_then(|id| self.entry_mut(&id)) {
                entry.row.until = now.plus(LEASE);
            }
        }
        for job in &found.over {
            if self.kept(job).is_some_and(|row| self.is_over(row)) {
                self.step().end(job, None);
            }
        }
        rows
    }

    /// Keys of which nothing is used any more: they are taken away when they are written.
    pub(super) fn forget(&mut self, idle: &[String]) {
        for name in idle {
            if let Some(entry) = self.keys.get_mut(name) {
                entry.changed |= entry.value.idle(self.head.now);
            }
        }
    }

    /// Whether a held row of another is so old that the backend has its job back: neither was it moved nor
    /// its owner heard of for as long as its claim lasts, and longer.
    fn is_over(&self, entry: &Kept) -> bool {
        let row = &entry.row;
        let seen = self
            .head
            .live
            .iter()
            .find(|(owner, _)| **owner == *entry.owner);
        let seen = seen.map_or(Timestamp(0), |(_, seen)| *seen);
        let last = row.until.max(seen);
        let over = last.plus(row.claimed.visibility).plus(LONG_OVER);
        row.place == Place::Held && entry.owner != self.me && over < self.head.now
    }

    /// Of these rows the held ones that others have offered.
    pub(super) fn offered(&self, jobs: &[String], lane: (u64, &str)) -> Vec<Row> {
        let rows = jobs.iter().filter_map(|job| self.kept(job));
        let offered = rows.filter(|entry| {
            let row = &entry.row;
            row.place == Place::Held
                && entry.owner != self.me
                && (row.claimed.scope, &*row.claimed.queue) == lane
                && row.until == OFFERED
        });
        offered.map(|row| self.row_for_me(row)).collect()
    }

    /// Makes all of these changes; says whether there was anything to change.
    pub(super) fn set_all(&mut self, changes: &[Change]) -> bool {
        let done = changes.iter().filter(|change| self.set(change));
        done.count() > 0
    }

    fn set(&mut self, change: &Change) -> bool {
        match change {
            Change::Paused { queue, paused } => self.pause(queue, *paused),
            Change::Doubt { job } => {
                self.say(format!("row\n{job}"));
                true
            }
            Change::Holds { queue, jobs } => {
                self.holds.push((kept_name(queue).into_owned(), *jobs));
                true
            }
            Change::Adopt { claimed, .. } if claimed.generation == Gen::ADOPTED => {
                let done = self.step().set(change);
                let by = i64::from(done);
                self.number(ADOPTED, Step::Add { by, most: None });
                done
            }
            _ => self.step().set(change),
        }
    }

    /// Makes a change, but not while all put back what they know, if that would undo it.
    pub(super) fn set_one(&mut self, change: &Change) -> Result<bool, StoreError> {
        self.is_settled(usize::from(change.is_by_hand()))?;
        Ok(self.set(change))
    }
}
