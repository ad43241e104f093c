//! The steps that only stores with siblings need: who is looked after by whom, and what all share.

use super::super::engine::{Entry, Tables, row_for};
use super::super::fleet::{ADOPTED, kept_name};
use super::super::record::{self, Written};
use super::super::{Change, Gen, Number, Place, Row, Step, StoreError, fleet};
use super::page::Page;
use super::search::Findings;
use super::times::SILENCE;
use ojs_limit::Timestamp;

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
        self.entry(job).map(|row| self.row_for_me(row))
    }

    fn row_for_me(&self, row: &Entry) -> Row {
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
    pub(super) fn due(&mut self, found: &Findings, max: usize) -> Vec<Row> {
        self.beats = true;
        self.forget(&found.idle);
        let me = self.me.clone();
        if self.head.live.len() == self.others().count() {
            self.say("joined".to_owned());
        }
        let now = self.head.now;
        let mine = found.jobs.iter().filter_map(|job| self.entry(job));
        let mine = mine.filter(|entry| entry.owner == me && entry.row.place.written() <= now);
        let mut rows: Vec<Row> = mine.map(|row| self.row_for_me(row)).collect();
        rows.sort_by_key(|row| (row.place.written(), row.claimed.job.clone()));
        let out = rows.iter().filter(|row| row.is_out()).count();
        let most = rows.len() + max.saturating_sub(out);
        for job in &found.others_out {
            let overdue = self.entry(job).is_some_and(|entry| {
                let due = entry.row.due().filter(|_| entry.owner != me);
                due.is_some_and(|due| due.at() <= self.overdue(&entry.owner))
            });
            if !overdue || rows.len() >= most {
                continue;
            }
            rows.extend(self.row(job));
            if let Some(entry) = self.entry_mut(job) {
                entry.row.place = Place::Out(now.plus(LEASE).into());
            }
        }
        rows
    }

    /// How many others live, and whether no other lives or has left rows.
    pub(super) fn siblings(&self, found: &Findings) -> (usize, bool) {
        let alive = |seen: Timestamp| seen.plus(SILENCE) > self.head.now;
        let living = self.others().filter(|(_, seen)| alive(*seen)).count();
        (living, self.others().next().is_none() && !found.strangers)
    }

    /// Keys of which nothing is used any more: they are taken away when they are written.
    pub(super) fn forget(&mut self, idle: &[String]) {
        for name in idle {
            if let Some(entry) = self.keys.get_mut(name) {
                entry.changed |= entry.value.idle(self.head.now);
            }
        }
    }

    /// Of these rows those that others offer in this lane.
    pub(super) fn offered(&self, jobs: &[String], lane: &str) -> Vec<Row> {
        let is_offered = |row: &Row| {
            let claimed = &row.claimed;
            let is_free = row.place == Place::Offered && !row.ours;
            is_free && record::lane(claimed.scope, &claimed.queue) == lane
        };
        let rows = self.rows_of(jobs).into_iter();
        rows.filter(is_offered).collect()
    }

    /// Makes changes; says of each whether there was anything to change. Where data began anew not those that would
    /// undo what others may put back.
    pub(super) fn set_all(&mut self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let may_undo = changes.iter().any(Change::may_undo_what_is_put_back);
        self.is_settled(usize::from(may_undo))?;
        let done = changes.iter().map(|change| self.set(change));
        Ok(done.collect())
    }

    fn set(&mut self, change: &Change) -> bool {
        match change {
            Change::Paused { queue, paused } => self.pause(queue, *paused),
            Change::Doubt { job } => {
                self.say(format!("row\n{job}"));
                true
            }
            Change::Came { queue, subqueues } => {
                self.say(record::came(queue, subqueues));
                true
            }
            Change::Moved { queue, moved } => {
                self.say(record::moved(queue, moved));
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
            Change::Override { .. } | Change::Setting { .. } => {
                let written = record::written(change);
                written.is_some_and(|(name, written)| self.put_override(name, written))
            }
            Change::Clear => {
                self.clear();
                true
            }
            _ => self.step().set(change),
        }
    }

    /// Sets limits or a setting, or takes them away; says whether there were any to take away.
    fn put_override(&mut self, name: String, written: Option<Written>) -> bool {
        let done = written.is_some() || self.overrides.contains(&name);
        if done {
            match &written {
                Some(_) => self.overrides.insert(name.clone()),
                None => self.overrides.remove(&name),
            };
            self.overridden.insert(name, written);
            self.say("over".to_owned());
        }
        done
    }

    /// Sets those of which there are none by their names; how many these are. `None`: it is too late, and what is not
    /// there was taken away since.
    pub(super) fn put_back(&mut self, known: &[Written]) -> Option<u64> {
        if !self.head.is_settling() {
            return None;
        }
        let mut count = 0;
        for one in known {
            if !self.overrides.contains(&one.name) {
                self.put_override(one.name.clone(), Some(one.clone()));
                count += 1;
            }
        }
        Some(count)
    }

    /// Forgets everything but the epoch.
    fn clear(&mut self) {
        let known = std::mem::take(self);
        *self = Page {
            is_cleared: true,
            news: known.news,
            beats: known.beats,
            ..Page::new(known.me, known.head)
        };
    }
}
