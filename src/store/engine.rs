//! The step engine of the stores that are written in Rust: each operation as one step over rows and keys.
//!
//! Memory has all its rows in a map, a SQL store brings the few that a transaction is about. Both hand them to
//! [`Engine`] as [`Tables`], so a start, an end and an undo are decided in one place.

use std::sync::Arc;

use smallvec::SmallVec;

use super::step::{SameKey, ask_all, same};
use super::{Change, Claimed, Due, End, Gen, Place, Row, Taken, Used, Verdict};
use ojs_limit::{
    Bill, EARLY, Key, KeyState, LINE, Limited, OnLimit, Reserved, Served, Share, Shares, Space,
    Strategy, Timestamp, Undo, each_key, each_paid_key, is_priced, share_of,
};

/// A row as a store keeps it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// What every sidecar is told of it.
    pub(super) row: Row,
    /// The sidecar whose row it is.
    pub(super) owner: Arc<str>,
    /// Empty unless the job is out.
    pub(super) slots: Slots,
}

impl Entry {
    /// Whether the row ends because the backend gave the job out again. It stays if its start was granted after
    /// that: the worker has the job already, and with it the slot.
    fn gives_way_to(&self, ask: &Claimed) -> bool {
        let mut undo = self.slots.iter().filter_map(|slot| slot.undo.as_ref());
        let is_later = match self.slots.is_empty() {
            // It took nothing.
            true => self.row.started > Some(ask.claimed_at),
            false => undo.any(|undo| undo.granted() > ask.claimed_at),
        };
        self.row.claimed.generation < ask.generation && !is_later
    }

    /// Its slots, each with the first of the job's limits that names the key.
    pub(super) fn taken(&self) -> impl Iterator<Item = (&Limited, &Slot)> {
        let limited = &self.row.claimed.limited;
        let slots = self.slots.iter();
        slots.filter_map(|slot| Some((limited.get(slot.first)?, slot)))
    }

    fn is_out_under(&self, claim: Gen) -> bool {
        self.row.claimed.generation == claim && self.row.is_out()
    }

    /// Whether this sidecar took the job over under this claim, and has not named it since.
    fn is_taken_over(&self, claim: Gen, me: &str) -> bool {
        let row = &self.row;
        let is_of_claim = row.claimed.generation == claim && *self.owner == *me;
        is_of_claim && matches!(row.place, Place::Held(_))
    }
}

/// The slots of one start, one for each key. Most jobs are limited by one key.
pub(super) type Slots = SmallVec<[Slot; 1]>;

/// One key's part of a start: enough to end it or to undo it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Which of the job's limits is the first that names the key.
    pub(super) first: usize,
    /// `None`: the start was not counted.
    pub(super) undo: Option<Undo>,
}

/// Rows by job and states by key, as one step finds them.
pub(super) trait Tables {
    /// The sidecar that asks.
    fn me(&self) -> &Arc<str>;

    /// The row of a job.
    fn entry(&self, job: &str) -> Option<&Entry>;
    /// The row, which its caller changes.
    fn entry_mut(&mut self, job: &str) -> Option<&mut Entry>;
    /// Keeps the row of a job that has none.
    fn insert(&mut self, entry: Entry);
    fn remove(&mut self, job: &str) -> Option<Entry>;

    /// A key's state; `None`: nothing of it is used.
    fn state(&self, space: Space, key: &Key) -> Option<&KeyState>;
    /// The state, which its caller changes; an unused one if there is none.
    fn state_mut(&mut self, space: Space, key: &Key) -> &mut KeyState;

    /// More may start under this key than before, so its waiters are told.
    fn freed(&mut self, _space: Space, _key: &Key) {}
    /// The row changed, so its owner is told if that is another sidecar.
    fn changed(&mut self, _owner: &Arc<str>, _job: &str) {}
    /// The held job is offered to siblings, so they are told.
    fn offered(&mut self, _claimed: &Claimed) {}
}

/// One step, at one time.
pub(super) struct Engine<'a, T> {
    pub(super) tables: &'a mut T,
    pub(super) now: Timestamp,
}

impl<T: Tables> Engine<'_, T> {
    /// Ends the rows of older claims of the jobs, then asks for them in order until `want` have started.
    pub(super) fn take<'c>(
        &mut self,
        asks: impl ExactSizeIterator<Item = &'c Claimed> + Clone,
        want: usize,
    ) -> Taken {
        let ended = self.end_older(asks.clone());
        let mut started = 0;
        let mut verdicts = Vec::with_capacity(asks.len());
        for ask in asks.clone() {
            let verdict = match self.tables.entry(&ask.job) {
                Some(entry) => Verdict::by_row(&entry.row, ask),
                None if started >= want => Verdict::Unasked,
                None => self.start(ask),
            };
            started += usize::from(verdict.is_started());
            verdicts.push(verdict);
        }
        // A FETCH that has got something goes with it.
        let stays = |ask: &Claimed| match started {
            0 => ask.stays,
            _ => ask.followed,
        };
        let told = asks.zip(&verdicts);
        let served = told.filter_map(|(ask, verdict)| self.tell(ask, verdict, stays(ask)));
        let served = served.collect();
        Taken {
            verdicts,
            ended,
            served,
        }
    }

    /// Ends the rows of older claims of these jobs, with their slots. What we took over from a sibling is ours alone
    /// from here on, and has no row.
    pub(super) fn end_older<'c>(&mut self, asks: impl Iterator<Item = &'c Claimed>) -> Vec<Row> {
        let mut ended = Vec::new();
        for ask in asks {
            let me = self.tables.me();
            match self.tables.entry(&ask.job) {
                Some(entry) if entry.gives_way_to(ask) => ended.extend(self.end_row(&ask.job)),
                Some(entry) if entry.is_taken_over(ask.generation, me) => {
                    self.tables.remove(&ask.job);
                }
                _ => {}
            }
        }
        ended
    }

    /// Starts a job if every key allows it. All keys are asked before any is taken from.
    ///
    /// A job with two limits would else take of the first and be refused by the second, and what it took of a window
    /// cannot always be given back: others were refused for it meanwhile. Taking one key after the other and undoing on a
    /// refusal was the alternative; each store would then show starts that never were, and a busy key could keep a quiet
    /// one empty. So a step brings all keys of a job together, and that is why Redis keeps a namespace in one hash slot
    /// and a database locks the keys in one order.
    fn start(&mut self, ask: &Claimed) -> Verdict {
        let now = self.now;
        let at = ask_all(&ask.limited, now, |one| {
            let pays = one.cost.pays.get();
            match self.tables.state(one.space, &one.key) {
                Some(state) => {
                    let turn = (pays, done(state, one, ask, now).unwrap_or(u64::MAX));
                    state.ask_for(&ask.job, &one.limits, turn, now)
                }
                None => KeyState::default().ask(&one.limits, pays, now),
            }
        });
        let at = match (at, self.ahead(ask)) {
            (Ok(at), None) => at,
            (Ok(_), Some((one, share))) => return self.hold_up(ask, one, share),
            (Err(refused), _) => {
                if is_priced(&ask.limited) {
                    self.stand_in_line(ask, &refused);
                }
                return refused;
            }
        };
        self.started(ask, at);
        if let Some((one, share)) = share_of(&ask.limited) {
            let shares = self.shares_mut(one);
            let begins = shares.begins(share, &one.cost, ask.since, now);
            shares.serve(share, &one.cost, begins, now);
        }
        if is_priced(&ask.limited) {
            self.leave_line(&ask.job, &ask.limited);
        }
        Verdict::Started { at }
    }

    /// A job starts at this time, whatever its limits say.
    pub(super) fn started(&mut self, ask: &Claimed, at: Timestamp) {
        let now = self.now;
        let slots = self.each_paid_key(&ask.limited, |state, limits, one| {
            Some(state.take(limits, one.cost.pays.get(), at, now))
        });
        self.insert(Row::started(ask.clone(), at), slots);
    }

    /// The share of a job, if somebody stays for one of another group that has its turn before.
    fn ahead<'c>(&self, ask: &'c Claimed) -> Option<(&'c Limited, &'c Share)> {
        let (one, share) = share_of(&ask.limited)?;
        let state = self.tables.state(one.space, &one.key)?;
        let shares = state.shares()?;
        let begins = shares.begins(share, &one.cost, ask.since, self.now);
        let is_ahead = shares.is_ahead(share, &one.cost, begins, self.now);
        is_ahead.then_some((one, share))
    }

    /// The refusal of a job that may start, and whose group is ahead. It waits, whatever its limit says.
    fn hold_up(&mut self, ask: &Claimed, one: &Limited, share: &Share) -> Verdict {
        let (now, shares) = (self.now, self.shares_mut(one));
        let begins = shares.begins(share, &one.cost, ask.since, now);
        let why = shares.hold_up(share, &one.cost, begins, now);
        let mut all = ask.limited.iter();
        Verdict::Refused {
            which: all.position(|by| by.shares_key(one)).unwrap_or(0),
            at: why.at,
            why,
            action: OnLimit::Wait,
        }
    }

    /// A job was refused. What it needs is kept for it under the key that refused it for longest, if that did so for its
    /// cost alone, and under keys where it is first in line already; else nowhere.
    fn stand_in_line(&mut self, ask: &Claimed, refused: &Verdict) {
        let Some(by) = self.refused_for_cost(ask, refused) else {
            return self.leave_line(&ask.job, &ask.limited);
        };
        for (_, one) in each_key(&ask.limited) {
            let known = self.tables.state(one.space, &one.key);
            if one.shares_key(by) || known.is_some_and(|of| of.is_first(&ask.job, self.now)) {
                let (now, pays) = (self.now, one.cost.pays.get());
                let state = self.tables.state_mut(one.space, &one.key);
                let done = done(state, one, ask, now).unwrap_or(0);
                state.stand_in_line(&ask.job, (pays, done), now);
            }
        }
    }

    /// The limit that refused a job for longest, if it would not refuse one that costs less for as long. Who is to be
    /// dropped or shown as scheduled needs no room, nor does a call that will have gone by then.
    fn refused_for_cost<'c>(&self, ask: &'c Claimed, refused: &Verdict) -> Option<&'c Limited> {
        let Verdict::Refused {
            which,
            why,
            at,
            action: OnLimit::Wait,
        } = refused
        else {
            return None;
        };
        let by = ask.limited.get(*which)?;
        // Nobody knows when slots end: perhaps sooner than another key opens.
        let is_longest = !why.slot || at.is_none_or(|at| at <= self.now.plus(LINE));
        let is_own = !matches!(why.strategy, Strategy::Line | Strategy::Shut);
        let fresh = KeyState::default();
        let state = self.tables.state(by.space, &by.key).unwrap_or(&fresh);
        let one = state.ask(&by.limits, 1, self.now).err();
        // All slots are taken, and of those that end others would take each.
        let is_slots = why.strategy == Strategy::Concurrency && why.limit > 0;
        let is_for_cost = is_slots || one.is_none_or(|one| why.outlasts(&one));
        let may_stand = by.cost.pays.get() > 1 && is_longest && is_own;
        (may_stand && is_for_cost && ask.waits_for(*at, self.now)).then_some(by)
    }

    /// A job is not first in line any more, if it was. Those behind it are told.
    fn leave_line(&mut self, job: &str, limited: &[Limited]) {
        let now = self.now;
        for (_, one) in each_key(limited) {
            let known = self.tables.state(one.space, &one.key);
            if known.is_some_and(|state| state.is_first(job, now)) {
                let state = self.tables.state_mut(one.space, &one.key);
                state.leave_line(job, now);
                self.tables.freed(one.space, &one.key);
            }
        }
    }

    /// What is told of the group of an asked job. Where the key that it shares refused the job, it waits, and others let
    /// it go first as long as somebody stays for it.
    fn tell(&mut self, ask: &Claimed, verdict: &Verdict, stays: Timestamp) -> Option<Served> {
        let (one, share) = share_of(&ask.limited)?;
        let refused = match verdict {
            Verdict::Started { .. } => Some((one, None)),
            Verdict::Refused { which, at, .. } => ask.limited.get(*which).zip(Some(*at)),
            _ => return None,
        };
        let (now, shares) = (self.now, self.shares_mut(one));
        let (served, comes, until) = match refused {
            None => return None,
            // What another key keeps from starting saves nothing.
            Some((by, _)) if !by.shares_key(one) => {
                let served = shares.of(&share.group).max(shares.virtual_time());
                (served, None, now)
            }
            Some((_, at)) => {
                // Where it has started, the next of its group waits.
                let begins = match verdict.is_started() {
                    true => shares.of(&share.group),
                    false => shares.begins(share, &one.cost, ask.since, now),
                };
                let is_in_time = at.is_none_or(|at| at <= stays);
                let until = if is_in_time { stays.max(now) } else { now };
                (begins, at.map(|at| at.minus(EARLY)), until)
            }
        };
        if !verdict.is_started() || until > now {
            shares.wait(share, &one.cost, served, (comes, until));
        }
        Some(Served {
            space: one.space,
            key: one.key.clone(),
            group: Arc::clone(&share.group),
            served,
            virtual_time: shares.virtual_time(),
        })
    }

    /// The shares of a key, of which one was asked for.
    fn shares_mut(&mut self, one: &Limited) -> &mut Shares {
        let shares = self.tables.state_mut(one.space, &one.key).shares_mut();
        shares.asked(self.now);
        shares
    }

    /// Grants starts of a key ahead of their time, and takes back those that were granted and not used.
    pub(super) fn reserve(
        &mut self,
        limited: &Limited,
        want: usize,
        ahead: u64,
        unused: &[Timestamp],
    ) -> Reserved {
        let state = self.tables.state_mut(limited.space, &limited.key);
        state.release(&limited.limits, unused);
        state.reserve(&limited.limits, want, self.now.plus(ahead), self.now)
    }

    /// A job that is out is only held again, and its start is not counted. Says whether we had it out under this claim.
    pub(super) fn back(&mut self, job: &str, claim: Gen) -> bool {
        let me = self.tables.me();
        let is_ours = |entry: &Entry| entry.is_out_under(claim) && entry.owner == *me;
        let is_ours = self.tables.entry(job).is_some_and(is_ours);
        let removed = is_ours.then(|| self.tables.remove(job)).flatten();
        if let Some(entry) = &removed {
            self.each_slot(entry, |state, limits, one, undo| {
                state.back(limits, one.cost.pays.get(), undo);
            });
        }
        removed.is_some()
    }

    /// The row and its slots go, unless the row is of a newer claim than `claim`. Gives the row as it was.
    pub(super) fn end(&mut self, end: &End) -> Option<Row> {
        let Some(known) = self.tables.entry(&end.job) else {
            // It has not started, and may be first in line.
            self.leave_line(&end.job, &end.limited);
            return None;
        };
        let entry = Some(known).filter(|entry| entry.row.ends_with(end.claim))?;
        if !end.used.is_empty() {
            let entry = entry.clone();
            self.settle(&entry, &end.used);
        }
        self.end_row(&end.job)
    }

    /// What the job used in place of what it paid, where its start was counted.
    fn settle(&mut self, entry: &Entry, used: &[Used]) {
        let now = self.now;
        for (one, slot) in entry.taken() {
            let of_key = |used: &&Used| used.space == one.space && used.key == one.key;
            if let (Some(undo), Some(used)) = (&slot.undo, used.iter().find(of_key)) {
                let limits = same(&entry.row.claimed.limited, one);
                let bill = Bill {
                    paid: one.cost.pays.get(),
                    used: used.amount,
                    counts_now: used.counts_now,
                };
                let state = self.tables.state_mut(one.space, &one.key);
                state.settle(limits, bill, undo, now);
            }
        }
    }

    /// Changes a row or a key; says whether there was anything to change.
    pub(super) fn set(&mut self, change: &Change) -> bool {
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => {
                let entry = self.entry_if(job, |entry| entry.is_out_under(*generation));
                entry.is_some_and(|entry| entry.row.renew(*generation, *until, *visibility))
            }
            Change::Offer { claimed } => self.offer(claimed),
            Change::Shut {
                key,
                until,
                at_least,
            } => self.shut(key, *until, *at_least),
            Change::Unused { key } => self.forget_usage(key),
            Change::Adopt { claimed, until } => self.adopt(claimed, *until),
            Change::Own {
                job,
                generation,
                next,
                until,
            } => self.own(job, *generation, *next, *until),
            // These are of no row and no key.
            Change::Override { .. }
            | Change::Setting { .. }
            | Change::Paused { .. }
            | Change::Doubt { .. }
            | Change::Came { .. }
            | Change::Moved { .. }
            | Change::Holds { .. }
            | Change::Clear => false,
        }
    }

    fn shut(&mut self, key: &Key, until: Timestamp, at_least: bool) -> bool {
        let unused = KeyState::default();
        let known = self.tables.state(Space::Job, key).unwrap_or(&unused);
        let (is, wanted) = (
            known.shut_until(self.now),
            Some(until).filter(|at| *at > self.now),
        );
        if is == wanted || (at_least && is > wanted) {
            return false;
        }
        let opens_sooner = is > Some(until);
        self.tables.state_mut(Space::Job, key).shut(until, self.now);
        if opens_sooner {
            self.tables.freed(Space::Job, key);
        }
        true
    }

    /// Forgets what a job key has used but its slots; says whether it had used anything.
    fn forget_usage(&mut self, key: &Key) -> bool {
        let Some(known) = self.tables.state(Space::Job, key) else {
            return false;
        };
        let used = !known.is_unused(self.now);
        let now = self.now;
        self.tables.state_mut(Space::Job, key).clear(now);
        self.tables.freed(Space::Job, key);
        used
    }

    /// A job that is out already takes its slots whatever the limits say, and its start is not counted again.
    fn adopt(&mut self, claimed: &Claimed, due: Due) -> bool {
        if let Some(entry) = self.tables.entry(&claimed.job) {
            let order = entry.row.claimed.generation.cmp(&claimed.generation);
            if order.is_gt() || (order.is_eq() && entry.row.is_out()) {
                return false;
            }
            self.remove(&claimed.job);
        }
        let slots = self.each_paid_key(&claimed.limited, |state, _, one| {
            state.occupy(one.cost.pays.get());
            None
        });
        self.insert(Row::of(claimed.clone(), Place::Out(due)), slots);
        true
    }

    /// Siblings may have a job that we hold. Not where it is out, or there is a newer claim.
    fn offer(&mut self, claimed: &Claimed) -> bool {
        if let Some(entry) = self.tables.entry(&claimed.job) {
            let is_held = !entry.row.is_out();
            let is_same = is_held && entry.row.claimed.generation == claimed.generation;
            if !is_same && !entry.gives_way_to(claimed) {
                return false;
            }
            self.end_row(&claimed.job);
        }
        self.insert(Row::of(claimed.clone(), Place::Offered), Slots::new());
        self.tables.offered(claimed);
        true
    }

    /// The offered row goes on as ours, under another claim number.
    fn own(&mut self, job: &str, claim: Gen, next: Gen, until: Timestamp) -> bool {
        let me = self.tables.me().clone();
        let free = self.entry_if(job, |entry| {
            let row = &entry.row;
            let is_offered = row.place == Place::Offered && row.claimed.generation == claim;
            let is_done = entry.is_taken_over(next, &me);
            next > claim && (is_offered || is_done)
        });
        let Some(entry) = free else { return false };
        entry.row.claimed.generation = next;
        entry.row.place = Place::Held(until);
        let former = std::mem::replace(&mut entry.owner, me);
        self.tables.changed(&former, job);
        true
    }

    // The parts of a step.

    fn insert(&mut self, row: Row, slots: Slots) {
        let owner = self.tables.me().clone();
        self.tables.insert(Entry { row, owner, slots });
    }

    /// The row, to be changed, if it is there and `is` the one.
    fn entry_if(&mut self, job: &str, is: impl FnOnce(&Entry) -> bool) -> Option<&mut Entry> {
        self.tables.entry(job).filter(|entry| is(entry))?;
        self.tables.entry_mut(job)
    }

    /// Removes a row with its slots and tells its owner.
    fn end_row(&mut self, job: &str) -> Option<Row> {
        let entry = self.remove(job)?;
        self.tables.changed(&entry.owner, job);
        Some(row_for(entry, self.tables.me()))
    }

    /// Removes a row with its slots.
    fn remove(&mut self, job: &str) -> Option<Entry> {
        let (entry, now) = (self.tables.remove(job)?, self.now);
        self.each_slot(&entry, |state, limits, one, undo| {
            state.completed(limits, one.cost.pays.get(), undo, now);
        });
        Some(entry)
    }

    /// Does one thing to each different key of which a start takes something, with all the limits that the job brings to
    /// it.
    fn each_paid_key<'l>(
        &mut self,
        limited: &'l [Limited],
        mut step: impl FnMut(&mut KeyState, SameKey<'l>, &Limited) -> Option<Undo>,
    ) -> Slots {
        let mut slots = Slots::with_capacity(limited.len());
        for (first, one) in each_paid_key(limited) {
            let state = self.tables.state_mut(one.space, &one.key);
            let undo = step(state, same(limited, one), one);
            slots.push(Slot { first, undo });
        }
        slots
    }

    /// Ends the slots of a row. A start that was counted ends as `counted` says.
    fn each_slot<'e>(
        &mut self,
        entry: &'e Entry,
        counted: impl Fn(&mut KeyState, SameKey<'e>, &Limited, &Undo),
    ) {
        for (one, slot) in entry.taken() {
            let state = self.tables.state_mut(one.space, &one.key);
            match &slot.undo {
                Some(undo) => counted(state, same(&entry.row.claimed.limited, one), one, undo),
                None => state.end(one.cost.pays.get()),
            }
            self.tables.freed(one.space, &one.key);
        }
    }
}

/// The row, as a sidecar is told of it.
pub(super) fn row_for(entry: Entry, me: &str) -> Row {
    Row {
        ours: *entry.owner == *me,
        ..entry.row
    }
}

/// When a job that takes a share of a key is done, in the virtual time of the key.
fn done(state: &KeyState, one: &Limited, ask: &Claimed, now: Timestamp) -> Option<u64> {
    let share = one.share.as_ref()?;
    let begins = |shares: &Shares| shares.begins(share, &one.cost, ask.since, now);
    let begins = state.shares().map_or(0, begins);
    Some(begins.saturating_add(share.price(&one.cost)))
}
