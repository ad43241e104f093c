//! The operations of the store as steps on a page. They are those of the memory store; what is new here is
//! who owns a row and who hears of it.

use std::sync::Arc;

use super::super::step::ask_all;
use super::super::{
    Change, Claimed, Gen, Number, OFFERED, Place, Row, Step, StoreError, Verdict, fleet, record,
};
use super::flat::Kept;
use super::page::{LONG_OVER, Page};
use super::search::Due;
use crate::limit::{Key, KeyState, Limited, Reserved, Shut, Space, Timestamp, lead_of};

/// How long whoever is handed the row of another has for it.
const LEASE: u64 = 2_000_000;

impl Page {
    pub(super) fn take(
        &mut self,
        asks: &[Claimed],
        want: usize,
        lead: u64,
        me: &Arc<str>,
    ) -> Vec<Verdict> {
        let mut started = 0;
        let mut verdicts = Vec::with_capacity(asks.len());
        for ask in asks {
            let verdict = self.ask(ask, (started < want).then_some(lead), me);
            started += usize::from(matches!(verdict, Verdict::Started { .. }));
            verdicts.push(verdict);
        }
        verdicts
    }

    /// `wanted`: with which lead it may start, if it may.
    fn ask(&mut self, ask: &Claimed, wanted: Option<u64>, me: &Arc<str>) -> Verdict {
        let known = self.kept(&ask.job);
        if known.is_some_and(|row| row.claimed.generation < ask.generation) {
            self.end_row(&ask.job);
        }
        if self.kept(&ask.job).is_none() {
            let row = self.held(ask, me);
            self.put(row);
        }
        let ours = self.kept(&ask.job).is_some_and(|row| {
            row.claimed.generation == ask.generation
                && row.place == Place::Held
                && !row.hidden
                && row.owner == *me
        });
        match wanted {
            _ if !ours => Verdict::Lost,
            None => Verdict::Unasked,
            Some(lead) => self.start(ask, lead_of(&ask.limited, lead)),
        }
    }

    /// Starts a held job if every key allows it. All are asked before any is taken from.
    fn start(&mut self, ask: &Claimed, lead: u64) -> Verdict {
        let (now, unused) = (self.now, KeyState::default());
        let asked = ask_all(&ask.limited, now.plus(lead), |one| {
            let state = self.state(one).unwrap_or(&unused);
            state.ask_ahead(&one.limits, now, lead)
        });
        let at = match asked {
            Ok(at) => at,
            Err(refused) => return refused,
        };
        let taken = self.each(&ask.limited, |state, limits| {
            Some(state.take(limits, at, now))
        });
        let Some(row) = self.kept_mut(&ask.job) else {
            return Verdict::Lost;
        };
        // What comes with the question is newer than what came with the claim.
        row.claimed.limited = ask.limited.clone();
        row.claimed.visibility = ask.visibility;
        row.taken = taken;
        row.place = Place::Out;
        row.started = Some(at);
        row.until = at.plus(ask.visibility);
        Verdict::Started { at }
    }

    /// Whether starts may be asked for: where data began anew, all have to put back what they know first.
    pub(super) fn is_settled(&self, want: usize) -> Result<(), StoreError> {
        match want > 0 && self.now < self.opens {
            true => Err(StoreError::Settling),
            false => Ok(()),
        }
    }

    pub(super) fn reserve(
        &mut self,
        limited: &Limited,
        want: usize,
        ahead: u64,
        unused: &[Timestamp],
    ) -> Reserved {
        let now = self.now;
        let state = self.state_mut(record::name(limited.space, &limited.key));
        state.release(&limited.limits, unused);
        state.reserve(&limited.limits, want, now.plus(ahead), now)
    }

    pub(super) fn claimed(&mut self, claims: &[(Arc<str>, Gen)], me: &str) -> Vec<Row> {
        let mut ended = Vec::new();
        for (job, claim) in claims {
            let known = self.kept(job);
            if known.is_some_and(|row| row.claimed.generation < *claim)
                && let Some(row) = self.end_row(job)
            {
                self.say_row(me, &row.owner, job);
                ended.push(told(&row, me));
            }
        }
        ended
    }

    pub(super) fn back(&mut self, job: &str, claim: Gen) -> bool {
        let now = self.now;
        let out = self
            .kept(job)
            .is_some_and(|row| row.claimed.generation == claim && row.place == Place::Out);
        let Some(row) = self.kept_mut(job).filter(|_| out) else {
            return false;
        };
        let before = row.clone();
        row.taken.clear();
        row.place = Place::Held;
        row.started = None;
        row.until = row.claimed.look_again(now);
        self.untake(&before, true);
        true
    }

    pub(super) fn end(&mut self, job: &str, claim: Option<Gen>, me: &str) -> Option<Row> {
        let known = self.kept(job)?.claimed.generation;
        if claim.is_some_and(|claim| claim < known) {
            return None;
        }
        let row = self.end_row(job)?;
        self.say_row(me, &row.owner, job);
        Some(told(&row, me))
    }

    /// Says whether there was one of them.
    pub(super) fn end_all(&mut self, claims: &[(Arc<str>, Gen)], me: &str) -> bool {
        let mut any = false;
        for (job, claim) in claims {
            any |= self.end(job, Some(*claim), me).is_some();
        }
        any
    }

    pub(super) fn row(&self, job: &str, me: &str) -> Option<Row> {
        Some(told(self.kept(job)?, me))
    }

    /// Those of these jobs that have rows.
    pub(super) fn rows_of(&self, jobs: &[String], me: &str) -> Vec<Row> {
        let rows = jobs.iter().filter_map(|job| self.row(job, me));
        rows.collect()
    }

    pub(super) fn number(&mut self, name: &str, step: Step) -> Number {
        let now = self.now;
        let entry = self.numbers.entry(name.to_owned()).or_default();
        let before = entry.value.version;
        let after = entry.value.stepped(step, now);
        entry.value = after;
        entry.changed |= after.version != before;
        after
    }

    /// Keeps whether a queue is paused, and tells the others.
    pub(super) fn pause(&mut self, queue: &str, paused: bool, me: &str) -> Number {
        let paused = i64::from(paused);
        self.say(me, format!("paused\n{paused}\n{queue}"));
        let put = Step::Put {
            value: paused,
            version: None,
        };
        self.number(&fleet::paused(queue), put)
    }

    /// The rows that were found and are due; of others at most so many that `max` are out in all.
    pub(super) fn due(&mut self, found: &Due, max: usize, me: &str) -> Vec<Row> {
        self.beat = true;
        if self.live.iter().all(|(owner, _)| owner != me) {
            self.say(me, "joined".to_owned());
        }
        let now = self.now;
        let mine = found.mine.iter().filter_map(|job| self.kept(job));
        let mine = mine.filter(|row| *row.owner == *me && row.until <= now);
        let mut rows: Vec<Row> = mine.map(|row| told(row, me)).collect();
        rows.sort_by(|a, b| (a.until, &a.claimed.job).cmp(&(b.until, &b.claimed.job)));
        let out = rows.iter().filter(|row| row.place == Place::Out).count();
        let most = rows.len() + max.saturating_sub(out);
        for job in &found.others_out {
            let overdue = self.kept(job).is_some_and(|row| {
                row.place == Place::Out
                    && *row.owner != *me
                    && row.until <= self.overdue(&row.owner)
            });
            if !overdue || rows.len() >= most {
                continue;
            }
            if let Some(row) = self.kept_mut(job) {
                rows.push(told(row, me));
                row.until = now.plus(LEASE);
            }
        }
        for job in &found.over {
            if self.kept(job).is_some_and(|row| self.is_over(row, me)) {
                self.end_row(job);
            }
        }
        rows
    }

    /// Keys of which nothing is used any more: they are taken away when they are written.
    pub(super) fn forget(&mut self, idle: &[String]) {
        for name in idle {
            if let Some(entry) = self.keys.get_mut(name) {
                entry.changed |= entry.value.idle(self.now);
            }
        }
    }

    /// Whether a held row of another is so old that the backend has its job back: neither was it moved nor
    /// its owner heard of for as long as its claim lasts, and longer.
    fn is_over(&self, row: &Kept, me: &str) -> bool {
        let seen = self.live.iter().find(|(owner, _)| **owner == *row.owner);
        let seen = seen.map_or(Timestamp(0), |(_, seen)| *seen);
        let last = row.until.max(row.touched).max(seen);
        let over = last.plus(row.claimed.visibility).plus(LONG_OVER);
        row.place == Place::Held && *row.owner != *me && over < self.now
    }

    /// Of these rows the held ones of others that may be taken over.
    pub(super) fn offered(&self, jobs: &[String], lane: (u64, &str), me: &str) -> Vec<Row> {
        let rows = jobs.iter().filter_map(|job| self.kept(job));
        let offered = rows.filter(|row| {
            row.place == Place::Held
                && !row.hidden
                && *row.owner != *me
                && (row.claimed.scope, &*row.claimed.queue) == lane
                && row.until <= self.overdue(&row.owner)
        });
        offered.map(|row| told(row, me)).collect()
    }

    /// Makes all of these changes; says whether there was anything to change.
    pub(super) fn set_all(&mut self, changes: &[Change], me: &Arc<str>) -> bool {
        let done = changes.iter().filter(|change| self.set(change, me));
        done.count() > 0
    }

    /// As [`Page::set`], but not while all put back what they know, if that would undo it.
    pub(super) fn set_one(&mut self, change: &Change, me: &Arc<str>) -> Result<bool, StoreError> {
        self.is_settled(usize::from(change.is_by_hand()))?;
        Ok(self.set(change, me))
    }

    pub(super) fn set(&mut self, change: &Change, me: &Arc<str>) -> bool {
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => self.until(job, *generation, *until, *visibility, me),
            Change::Hidden { job, hidden } => {
                let row = self.kept(job);
                let other = row.is_some_and(|r| r.place == Place::Held && r.hidden != *hidden);
                let Some(row) = self.kept_mut(job).filter(|_| other) else {
                    return false;
                };
                row.hidden = *hidden;
                let owner = row.owner.clone();
                self.say_row(me, &owner, job);
                true
            }
            Change::Shut {
                key,
                until,
                at_least,
                probe,
            } => self.shut(key, Shut::new(self.now, *until, *probe), *at_least),
            Change::Open { key, started } => self.open(key, *started),
            Change::Unused { key } => {
                let name = record::name(Space::Job, key);
                let now = self.now;
                let state = self.state_mut(name.clone());
                let used = !state.idle(now);
                state.clear();
                self.freed.push(name);
                used
            }
            Change::Adopt { claimed, until } => self.adopt(claimed, *until, me),
            Change::Own {
                job,
                generation,
                next,
                until,
            } => self.own(job, *generation, *next, *until, me),
            // These are no steps on a page.
            Change::Override { .. } | Change::Setting { .. } | Change::Clear => false,
        }
    }

    fn until(&mut self, job: &str, claim: Gen, until: Timestamp, lasts: u64, me: &str) -> bool {
        let same = self
            .kept(job)
            .is_some_and(|row| row.claimed.generation == claim);
        let Some(row) = self.kept_mut(job).filter(|_| same) else {
            return false;
        };
        row.until = until;
        row.claimed.visibility = lasts;
        if until == OFFERED && row.place == Place::Held {
            let lane = record::lane(row.claimed.scope, &row.claimed.queue);
            self.say(me, format!("offered\n{lane}"));
        }
        true
    }

    fn shut(&mut self, key: &Key, shut: Shut, at_least: bool) -> bool {
        let name = record::name(Space::Job, key);
        let unused = KeyState::default();
        let known = self.keys.get(&name).map_or(&unused, |entry| &entry.value);
        if known.stays(&shut, at_least) {
            return false;
        }
        self.state_mut(name).shut(Some(shut));
        true
    }

    fn open(&mut self, key: &Key, started: Timestamp) -> bool {
        let name = record::name(Space::Job, key);
        let known = self.keys.get(&name);
        if !known.is_some_and(|entry| entry.value.was_shut(started, self.now)) {
            return false;
        }
        self.state_mut(name.clone()).shut(None);
        self.freed.push(name);
        true
    }

    fn adopt(&mut self, claimed: &Claimed, until: Timestamp, me: &Arc<str>) -> bool {
        let known = self.kept(&claimed.job);
        match known.map(|row| (row.claimed.generation, row.place)) {
            Some((claim, _)) if claim > claimed.generation => return false,
            Some((claim, Place::Out)) if claim == claimed.generation => return false,
            _ => {}
        }
        self.end_row(&claimed.job);
        let taken = self.each(&claimed.limited, |state, _| {
            state.occupy();
            None
        });
        let mut row = self.held(claimed, me);
        (row.place, row.until, row.taken) = (Place::Out, until, taken);
        self.put(row);
        true
    }

    fn own(&mut self, job: &str, claim: Gen, next: Gen, until: Timestamp, me: &Arc<str>) -> bool {
        let free = self.kept(job).is_some_and(|row| {
            row.place == Place::Held && !row.hidden && row.claimed.generation == claim
        });
        let row = self.kept_mut(job).filter(|_| free && next > claim);
        let Some(row) = row else { return false };
        row.claimed.generation = next;
        row.until = until;
        let former = std::mem::replace(&mut row.owner, me.clone());
        self.say_row(me, &former, job);
        true
    }
}

/// What a sidecar is told of a row.
fn told(row: &Kept, me: &str) -> Row {
    Row {
        claimed: row.claimed.clone(),
        place: row.place,
        until: row.until,
        started: row.started,
        hidden: row.hidden,
        ours: *row.owner == *me,
    }
}
