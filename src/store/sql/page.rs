//! What a transaction has to do with, taken out of the database: rows and keys by name, and the steps on
//! them. The steps are those of the memory store; what is new here is who owns a row and who hears of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::memory::{SameKey, is_same, look_again, same, worse};
use super::super::{Change, Claimed, Ended, Gen, Number, Place, Row, Step, Verdict, record};
use super::flat::{Kept, Taken};
use super::search::Due;
use crate::limit::{Key, KeyState, Limited, OnLimit, Refusal, Shut, Space, Timestamp};

/// How long a sidecar may say nothing before it counts as gone, in microseconds.
pub(in crate::store) const SILENCE: u64 = 5_000_000;
/// How late the owner of a row may be.
pub(in crate::store) const PATIENCE: u64 = 3_000_000;
/// How long whoever is handed the row of another has for it.
const LEASE: u64 = 2_000_000;
/// So long after a held row's time the backend has its job back.
const LONG_OVER: u64 = 60_000_000;

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
    rows: BTreeMap<String, Entry<Option<Kept>>>,
    keys: BTreeMap<String, Entry<KeyState>>,
    numbers: BTreeMap<String, Entry<Number>>,
    freed: Vec<String>,
    news: Vec<String>,
    pub(super) beat: bool,
}

#[derive(Debug, Default)]
struct Entry<T> {
    value: T,
    /// Whether the database has it.
    known: bool,
    changed: bool,
}

/// What a database begins with when it fills a page.
pub(in crate::store) struct Head {
    pub(in crate::store) now: Timestamp,
    pub(in crate::store) epoch: String,
    pub(in crate::store) opens: Timestamp,
    pub(in crate::store) edition: i64,
    pub(in crate::store) live: Vec<(String, Timestamp)>,
}

impl Page {
    pub(in crate::store) fn new(head: Head) -> Page {
        Page {
            now: head.now,
            epoch: head.epoch,
            opens: head.opens,
            edition: head.edition,
            live: head.live,
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

    fn say(&mut self, me: &str, text: String) {
        if self.live.iter().any(|(owner, _)| owner != me) {
            self.news.push(text);
        }
    }

    fn say_row(&mut self, me: &str, owner: &str, job: &str) {
        if owner != me {
            self.say(me, format!("row\n{job}"));
        }
    }

    /// The rows of this owner are overdue from then on, for others.
    fn overdue(&self, owner: &str) -> Timestamp {
        let seen = self.live.iter().find(|(other, _)| other == owner);
        match seen {
            Some((_, seen)) if seen.plus(SILENCE) > self.now => {
                Timestamp(self.now.0.saturating_sub(PATIENCE))
            }
            _ => self.now,
        }
    }

    // Keys.

    fn state(&self, one: &Limited) -> Option<&KeyState> {
        let entry = self.keys.get(&record::name(one.space, &one.key));
        entry.map(|entry| &entry.value)
    }

    pub(super) fn state_of(&self, name: &str) -> KeyState {
        let entry = self.keys.get(name);
        entry.map(|entry| entry.value.clone()).unwrap_or_default()
    }

    fn state_mut(&mut self, name: String) -> &mut KeyState {
        let entry = self.keys.entry(name).or_default();
        entry.changed = true;
        &mut entry.value
    }

    /// Does one thing to each different key, with all the limits that the job brings to it.
    fn each<'a>(
        &mut self,
        limited: &'a [Limited],
        mut step: impl FnMut(&mut KeyState, SameKey<'a>) -> Option<crate::limit::Undo>,
    ) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(limited.len());
        for (nth, one) in limited.iter().enumerate() {
            if limited
                .iter()
                .take(nth)
                .any(|earlier| is_same(earlier, one))
            {
                continue;
            }
            let name = record::name(one.space, &one.key);
            let undo = step(self.state_mut(name.clone()), same(limited, one));
            taken.push(Taken { name, undo });
        }
        taken
    }

    /// What a start took goes back: the slot, and with `back` the start itself.
    fn untake(&mut self, row: &Kept, back: bool) {
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

    fn kept(&self, job: &str) -> Option<&Kept> {
        self.rows.get(job)?.value.as_ref()
    }

    /// The row, to be changed.
    fn kept_mut(&mut self, job: &str) -> Option<&mut Kept> {
        let now = self.now;
        let entry = self.rows.get_mut(job)?;
        let row = entry.value.as_mut()?;
        entry.changed = true;
        row.touched = now;
        Some(row)
    }

    fn put(&mut self, mut row: Kept) {
        row.touched = self.now;
        let entry = self.rows.entry(row.claimed.job.to_string()).or_default();
        entry.changed = true;
        entry.value = Some(row);
    }

    /// The row goes, and its slots with it.
    fn end_row(&mut self, job: &str) -> Option<Kept> {
        let entry = self.rows.get_mut(job)?;
        let row = entry.value.take()?;
        entry.changed = true;
        self.untake(&row, false);
        Some(row)
    }

    fn held(&self, claimed: &Claimed, me: &Arc<str>) -> Kept {
        Kept {
            claimed: claimed.clone(),
            place: Place::Held,
            until: look_again(claimed, self.now),
            started: None,
            hidden: false,
            owner: me.clone(),
            taken: Vec::new(),
            touched: self.now,
        }
    }

    // The operations of the store.

    pub(super) fn take(&mut self, asks: &[Claimed], want: usize, me: &Arc<str>) -> Vec<Verdict> {
        let mut started = 0;
        let mut verdicts = Vec::with_capacity(asks.len());
        for ask in asks {
            let verdict = self.ask(ask, started < want, me);
            started += usize::from(matches!(verdict, Verdict::Started { .. }));
            verdicts.push(verdict);
        }
        verdicts
    }

    fn ask(&mut self, ask: &Claimed, wanted: bool, me: &Arc<str>) -> Verdict {
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
        if !ours {
            Verdict::Lost
        } else if !wanted {
            Verdict::Unasked
        } else {
            self.start(ask)
        }
    }

    /// Starts a held job if every key allows it. All are asked before any is taken from.
    fn start(&mut self, ask: &Claimed) -> Verdict {
        let (now, unused) = (self.now, KeyState::default());
        let mut at = now;
        let mut refused: Option<(usize, Refusal, OnLimit)> = None;
        let mut opens = None;
        for (which, one) in ask.limited.iter().enumerate() {
            match self.state(one).unwrap_or(&unused).ask(&one.limits, now) {
                Ok(allowed) => at = at.max(allowed),
                Err(why) => {
                    opens = opens.max(why.at);
                    refused = Some(worse(refused, (which, why, one.on_limit)));
                }
            }
        }
        if let Some((which, why, action)) = refused {
            let at = opens;
            return Verdict::Refused {
                which,
                why,
                at,
                action,
            };
        }
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
        row.until = look_again(&row.claimed, now);
        self.untake(&before, true);
        true
    }

    pub(super) fn end(&mut self, job: &str, claim: Option<Gen>, me: &str) -> Option<Ended> {
        let known = self.kept(job)?.claimed.generation;
        if claim.is_some_and(|claim| claim < known) {
            return None;
        }
        let row = self.end_row(job)?;
        self.say_row(me, &row.owner, job);
        Some(Ended {
            row: told(&row, me),
        })
    }

    pub(super) fn row(&self, job: &str, me: &str) -> Option<Row> {
        Some(told(self.kept(job)?, me))
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

    /// The rows that were found and are due, at most `max`, and the lanes of held ones that are.
    pub(super) fn due(&mut self, found: &Due, max: usize, me: &str) -> (Vec<Row>, Vec<String>) {
        self.beat = true;
        let now = self.now;
        let mine = found.mine.iter().filter_map(|job| self.kept(job));
        let mine = mine.filter(|row| *row.owner == *me && row.until <= now);
        let mut rows: Vec<Row> = mine.map(|row| told(row, me)).collect();
        rows.sort_by(|a, b| (a.until, &a.claimed.job).cmp(&(b.until, &b.claimed.job)));
        rows.truncate(max);
        for job in &found.others_out {
            let overdue = self.kept(job).is_some_and(|row| {
                row.place == Place::Out
                    && *row.owner != *me
                    && row.until <= self.overdue(&row.owner)
            });
            if !overdue || rows.len() >= max {
                continue;
            }
            if let Some(row) = self.kept_mut(job) {
                rows.push(told(row, me));
                row.until = now.plus(LEASE);
            }
        }
        let mut lanes = Vec::new();
        for job in &found.others_held {
            let Some(row) = self.kept(job) else { continue };
            let offered = row.place == Place::Held
                && *row.owner != *me
                && row.until <= self.overdue(&row.owner);
            let over = row.until.max(row.touched).plus(row.claimed.visibility);
            if offered && over.plus(LONG_OVER) < now {
                self.end_row(job);
            } else if offered && !row.hidden {
                lanes.push(super::flat::lane(row.claimed.scope, &row.claimed.queue));
            }
        }
        lanes.sort_unstable();
        lanes.dedup();
        // They are taken away when they are written: nothing of them is used any more.
        for name in &found.idle {
            if let Some(entry) = self.keys.get_mut(name) {
                entry.changed |= entry.value.idle(now);
            }
        }
        (rows, lanes)
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
            Change::Override { .. } | Change::Clear => false,
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
        if until == Timestamp(0) && row.place == Place::Held {
            let lane = super::flat::lane(row.claimed.scope, &row.claimed.queue);
            self.say(me, format!("offered\n{lane}"));
        }
        true
    }

    fn shut(&mut self, key: &Key, shut: Shut, at_least: bool) -> bool {
        let name = record::name(Space::Job, key);
        let known = self.keys.get(&name);
        let known = known.and_then(|entry| entry.value.is_shut(shut.since));
        let (known, wanted) = (
            known.map(|known| known.until),
            Some(shut.until).filter(|until| *until > shut.since),
        );
        if known == wanted || (at_least && known > wanted) {
            return false;
        }
        self.state_mut(name).shut(wanted.map(|_| shut));
        true
    }

    fn open(&mut self, key: &Key, started: Timestamp) -> bool {
        let name = record::name(Space::Job, key);
        let known = self.keys.get(&name);
        let known = known.and_then(|entry| entry.value.is_shut(self.now));
        if known.is_none_or(|known| known.since >= started) {
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
