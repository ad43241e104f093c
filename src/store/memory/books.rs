//! Rows and keys together: every store operation as one step, at a time that is passed in.

use crate::limit::{Key, Limited, Limits, Reserved, Room, Shut, Space, Timestamp};
use crate::store::{Change, Claimed, Gen, Place, Row, Usage, Verdict, Wish};

use super::keys::{AllTaken, Keys};
use super::slab::{Id, Slab};
use crate::store::step::ask_all;

/// How many keys the sweep looks at for each job that is asked. With more than one, it goes round
/// faster than new keys can come.
const SWEPT: usize = 2;

/// All that the memory store keeps.
#[derive(Debug)]
pub(in crate::store) struct Books {
    keys: Keys,
    rows: Slab<Entry>,
    /// How many rows are out.
    out: usize,
    /// No row is due before this. The rows are few (what workers and the hold have between them),
    /// `until` moves with every heartbeat and is looked at once a second: a scan when this time has
    /// come costs less than an order that every heartbeat must keep.
    due_from: Timestamp,
    /// The latest time seen: the clock of these books does not go back.
    seen: Timestamp,
}

#[derive(Debug)]
struct Entry {
    row: Row,
    /// Empty unless it is out.
    taken: AllTaken,
}

impl Books {
    pub(in crate::store) fn new() -> Books {
        Books {
            keys: Keys::new(),
            rows: Slab::new(),
            out: 0,
            due_from: Timestamp::NEVER,
            seen: Timestamp::default(),
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
    ) -> Vec<Verdict> {
        let now = self.forward(now);
        let mut started = 0;
        let mut verdicts = Vec::with_capacity(asks.len());
        for ask in asks {
            let verdict = match self.hold(ask, now) {
                None => Verdict::Lost,
                Some(_) if started >= want => Verdict::Unasked,
                Some(id) => self.start(id, ask, now),
            };
            started += usize::from(matches!(verdict, Verdict::Started { .. }));
            verdicts.push(verdict);
            self.keys.sweep(SWEPT, now);
        }
        verdicts
    }

    /// Grants starts of a key ahead of their time.
    pub(in crate::store) fn reserve(&mut self, wish: &Wish<'_>, now: Timestamp) -> Reserved {
        let now = self.forward(now);
        let Wish { limited, want, .. } = *wish;
        let reserved = self.keys.state(limited.space, &limited.key).map(|state| {
            state.release(&limited.limits, wish.unused);
            state.reserve(&limited.limits, want, now.plus(wish.ahead), now)
        });
        self.keys.sweep(SWEPT, now);
        reserved.unwrap_or_default()
    }

    /// Rows of older claims of these jobs go with their slots. Mostly there are none, and nobody need know the
    /// time.
    pub(in crate::store) fn claimed(
        &mut self,
        claims: &[&Claimed],
        now: impl Fn() -> Timestamp,
    ) -> Vec<Row> {
        let older = claims.iter().filter_map(|claim| {
            let known = self.row(&claim.job)?.claimed.generation;
            (known < claim.generation)
                .then(|| self.end(&claim.job, None, now()))
                .flatten()
        });
        older.collect()
    }

    /// Out becomes held again, and the start is uncounted.
    pub(in crate::store) fn back(&mut self, job: &str, generation: Gen, now: Timestamp) -> bool {
        let now = self.forward(now);
        let found = self.find(job).and_then(|id| self.rows.get_mut(id));
        let Some(entry) =
            found.filter(|e| e.row.claimed.generation == generation && e.row.place == Place::Out)
        else {
            return false;
        };
        let taken = std::mem::take(&mut entry.taken);
        entry.row.place = Place::Held;
        entry.row.started = None;
        entry.row.until = entry.row.claimed.look_again(now);
        self.due_from = self.due_from.min(entry.row.until);
        self.out -= 1;
        self.keys.back(&entry.row.claimed.limited, &taken);
        true
    }

    /// The row and its slots go, unless the row is of a newer claim than `generation`.
    pub(in crate::store) fn end(
        &mut self,
        job: &str,
        generation: Option<Gen>,
        now: Timestamp,
    ) -> Option<Row> {
        let now = self.forward(now);
        let hash = self.rows.hash(job);
        let id = self
            .rows
            .find(hash, |entry| *entry.row.claimed.job == *job)?;
        let row = &self.rows.get(id)?.row;
        if generation.is_some_and(|generation| generation < row.claimed.generation) {
            return None;
        }
        let entry = self.rows.remove(hash, id)?;
        self.out -= usize::from(entry.row.place == Place::Out);
        self.keys.end(&entry.row.claimed.limited, &entry.taken, now);
        Some(entry.row)
    }

    /// The rows whose time has come, oldest first, at most `max` in each place.
    pub(in crate::store) fn due(&mut self, max: usize, now: Timestamp) -> Vec<Row> {
        let now = self.forward(now);
        if self.due_from > now {
            return Vec::new();
        }
        self.due_from = self
            .rows
            .iter()
            .map(|entry| entry.row.until)
            .min()
            .unwrap_or(Timestamp::NEVER);
        let mut due: Vec<&Row> = self
            .rows
            .iter()
            .map(|entry| &entry.row)
            .filter(|row| row.until <= now)
            .collect();
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
    pub(in crate::store) fn set(&mut self, change: Change, now: Timestamp) -> bool {
        let now = self.forward(now);
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => {
                let row = self
                    .row_mut(&job)
                    .filter(|row| row.claimed.generation == generation);
                let Some(row) = row else { return false };
                (row.until, row.claimed.visibility) = (until, visibility);
                self.due_from = self.due_from.min(until);
                true
            }
            Change::Hidden { job, hidden } => {
                let held = self
                    .row_mut(&job)
                    .filter(|row| row.place == Place::Held && row.hidden != hidden);
                let Some(row) = held else { return false };
                row.hidden = hidden;
                true
            }
            Change::Shut {
                key,
                until,
                at_least,
                probe,
            } => self.keys.shut(&key, Shut::new(now, until, probe), at_least),
            Change::Open { key, started } => self.keys.open(&key, started, now),
            Change::Unused { key } => self.keys.clear(&key, now),
            Change::Adopt { claimed, until } => self.adopt(claimed, until, now),
            Change::Own {
                job,
                generation,
                next,
                until,
            } => self.own(&job, generation, next, until),
            // Kept beside the books.
            Change::Override { .. } | Change::Setting { .. } => false,
            Change::Clear => {
                let empty = self.keys.len() == 0 && self.rows.len() == 0;
                *self = Books {
                    seen: self.seen,
                    ..Books::new()
                };
                !empty
            }
        }
    }

    pub(in crate::store) fn row(&self, job: &str) -> Option<&Row> {
        self.rows.get(self.find(job)?).map(|entry| &entry.row)
    }

    pub(in crate::store) fn room(&self, limited: &[Limited], now: Timestamp) -> Room {
        let now = now.max(self.seen);
        let unused = crate::limit::KeyState::default();
        Room::of_all(limited.iter().map(|one| {
            let state = self.keys.get(one.space, &one.key).unwrap_or(&unused);
            state.room(&one.limits, now)
        }))
    }

    pub(in crate::store) fn usage(
        &self,
        space: Space,
        key: &Key,
        limits: &Limits,
        now: Timestamp,
    ) -> Option<Usage> {
        let now = now.max(self.seen);
        Usage::of(self.keys.get(space, key)?, limits, now)
    }

    pub(in crate::store) fn active(&self, space: Space, key: &Key) -> u32 {
        let state = self.keys.get(space, key);
        state.map_or(0, crate::limit::KeyState::active)
    }

    pub(in crate::store) fn count(&self, place: Place) -> usize {
        match place {
            Place::Out => self.out,
            Place::Held => self.rows.len() - self.out,
        }
    }

    /// How many keys are kept.
    pub(in crate::store) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The held row of this claim, made or put in the place of an older claim's. `None`: the claim
    /// is not the one that may start.
    fn hold(&mut self, ask: &Claimed, now: Timestamp) -> Option<Id> {
        let hash = self.rows.hash(&*ask.job);
        let known = self
            .rows
            .find(hash, |entry| entry.row.claimed.job == ask.job);
        let Some(id) = known else {
            return Some(self.insert(hash, ask, now));
        };
        let row = &self.rows.get(id)?.row;
        if row.claimed.generation < ask.generation {
            self.end(&ask.job, None, now);
            return Some(self.insert(hash, ask, now));
        }
        let ours =
            row.claimed.generation == ask.generation && row.place == Place::Held && !row.hidden;
        ours.then_some(id)
    }

    fn insert(&mut self, hash: u32, ask: &Claimed, now: Timestamp) -> Id {
        let until = ask.look_again(now);
        self.due_from = self.due_from.min(until);
        let row = Row::of(ask.clone(), Place::Held, until);
        self.rows.insert(
            hash,
            Entry {
                row,
                taken: AllTaken::new(),
            },
        )
    }

    /// Starts a held job if every key allows it. All are asked before any is taken from.
    fn start(&mut self, id: Id, ask: &Claimed, now: Timestamp) -> Verdict {
        let at = match ask_all(&ask.limited, now, |one| self.keys.ask(one, now)) {
            Ok(at) => at,
            Err(refused) => return refused,
        };
        let taken = self.keys.take(&ask.limited, at, now);
        let Some(entry) = self.rows.get_mut(id) else {
            return Verdict::Lost;
        };
        entry.taken = taken;
        let row = &mut entry.row;
        // What comes with the question is newer than what came with the claim.
        if !row.claimed.is(ask) {
            row.claimed = ask.clone();
        }
        row.place = Place::Out;
        row.started = Some(at);
        row.until = at.plus(ask.visibility);
        self.due_from = self.due_from.min(row.until);
        self.out += 1;
        Verdict::Started { at }
    }

    fn adopt(&mut self, claimed: Claimed, until: Timestamp, now: Timestamp) -> bool {
        let known = self
            .row(&claimed.job)
            .map(|row| (row.claimed.generation, row.place));
        match known {
            Some((generation, _)) if generation > claimed.generation => return false,
            Some((generation, Place::Out)) if generation == claimed.generation => return false,
            _ => {}
        }
        self.end(&claimed.job, None, now);
        let taken = self.keys.occupy(&claimed.limited);
        let hash = self.rows.hash(&*claimed.job);
        let row = Row::of(claimed, Place::Out, until);
        self.rows.insert(hash, Entry { row, taken });
        self.due_from = self.due_from.min(until);
        self.out += 1;
        true
    }

    /// The held row goes on under another claim number.
    fn own(&mut self, job: &str, generation: Gen, next: Gen, until: Timestamp) -> bool {
        let held = self.row_mut(job).filter(|row| {
            row.place == Place::Held && !row.hidden && row.claimed.generation == generation
        });
        let Some(row) = held.filter(|_| next > generation) else {
            return false;
        };
        row.claimed.generation = next;
        row.until = until;
        row.ours = true;
        self.due_from = self.due_from.min(until);
        true
    }

    fn find(&self, job: &str) -> Option<Id> {
        self.rows
            .find(self.rows.hash(job), |entry| *entry.row.claimed.job == *job)
    }

    fn row_mut(&mut self, job: &str) -> Option<&mut Row> {
        let id = self.find(job)?;
        self.rows.get_mut(id).map(|entry| &mut entry.row)
    }

    fn forward(&mut self, now: Timestamp) -> Timestamp {
        self.seen = self.seen.max(now);
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let mut books = Books::new();
        let limits = Limits {
            throttle: None,
            concurrency: None,
            rates: Vec::new(),
        };
        let key = Key::new("k").unwrap();
        let shut = |until| Change::Shut {
            key: key.clone(),
            until,
            at_least: false,
            probe: None,
        };
        assert!(books.set(shut(Timestamp(2_000)), Timestamp(1_000)));
        assert!(books.due(1, Timestamp(2_000)).is_empty());
        assert_eq!(
            books.usage(Space::Job, &key, &limits, Timestamp(1_500)),
            None,
            "open at the latest time seen"
        );
        assert!(
            !books.set(shut(Timestamp(1_900)), Timestamp(1_600)),
            "in the past"
        );
    }
}
