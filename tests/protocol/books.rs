//! What a store keeps, and its operations: the part of the model that stands for `src/store/engine.rs` and for who
//! looks after whose rows (`sql/steps.rs`, `due.lua`). The traces of the real stores are held against it.

use smallvec::SmallVec;

use super::faults::Fault;

pub const JOBS: usize = 3;
pub const KEYS: usize = 2;
pub const SIDECARS: usize = 3;

/// In ticks of the store's clock.
pub type Time = u16;
/// Which claim of a job; a higher one is newer. Zero: the job was only seen to run.
pub type Number = u16;
/// Some moments, the earliest first.
pub type Times = SmallVec<[Time; 4]>;

/// Where the job of a row is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    Offered,
    Held(Time),
    Out(Time),
}

/// A claim, as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim {
    pub job: usize,
    pub number: Number,
    /// The backend's number of the claim.
    pub attempt: u8,
    /// When its reply came, in the order of [`Step::moments`].
    pub made: Number,
    /// A bit for each key that limits it.
    pub keys: u8,
}

impl Claim {
    pub fn has(&self, key: usize) -> bool {
        self.keys >> key & 1 == 1
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Row {
    pub claim: Claim,
    pub owner: u8,
    pub place: Place,
    /// When its start counts, and when it was granted; `None`: it has not started, or was put back.
    pub started: Option<(Time, Number)>,
}

impl Row {
    pub fn is_out(&self) -> bool {
        matches!(self.place, Place::Out(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    Started,
    Refused,
    Unasked,
    HasRow,
    Outdated,
}

/// What a key allows.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub slots: Option<u8>,
    pub starts: Option<u8>,
}

/// What does not change.
#[derive(Clone, Debug)]
pub struct Rules {
    pub limits: [Limit; KEYS],
    /// How long a start counts.
    pub period: Time,
    /// How long a claim, and a row, lasts from a heartbeat.
    pub visibility: Time,
    /// Who says nothing for so long is gone, how late an owner may be, and how long whoever is handed a row has for it.
    pub silence: Time,
    pub patience: Time,
    pub lease: Time,
    pub fault: Option<Fault>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Books {
    pub rows: [Option<Row>; JOBS],
    pub slots: [u8; KEYS],
    pub starts: [Times; KEYS],
    /// When each sidecar was last heard of.
    pub seen: [Time; SIDECARS],
}

/// The keys of a claim.
pub fn keys_of(bits: u8) -> impl Iterator<Item = usize> {
    (0..KEYS).filter(move |key| bits >> key & 1 == 1)
}

/// One step of one sidecar on the books: `Engine`.
pub struct Step<'a> {
    pub books: &'a mut Books,
    pub rules: &'a Rules,
    pub me: usize,
    pub now: Time,
    /// Now, as finely as starts and claims of each job must be told apart.
    pub moments: [Number; JOBS],
}

impl Step<'_> {
    fn has(&self, fault: Fault) -> bool {
        self.rules.fault == Some(fault)
    }

    /// `Engine::take`: rows of older claims end, then what is asked starts in order until enough have.
    pub fn take(&mut self, asks: &[Claim], want: usize) -> (Vec<Verdict>, Vec<Row>) {
        let mut ended = Vec::new();
        for ask in asks {
            ended.extend(self.end_older(ask));
        }
        let mut started = 0;
        let mut answer = |ask: &Claim| {
            let row = self.books.rows[ask.job];
            let row = row.filter(|row| !(row.is_out() && self.has(Fault::OutStartsAgain)));
            let verdict = match row {
                Some(row) if row.claim.number > ask.number => Verdict::Outdated,
                Some(_) => Verdict::HasRow,
                None if started >= want => Verdict::Unasked,
                None => self.start(ask),
            };
            started += usize::from(verdict == Verdict::Started);
            verdict
        };
        (asks.iter().map(&mut answer).collect(), ended)
    }

    /// `Engine::end_older`. What we took over from a sibling is ours alone from here on, and has no row.
    fn end_older(&mut self, ask: &Claim) -> Option<Row> {
        let row = self.books.rows[ask.job]?;
        if self.gives_way(&row, ask) {
            if self.has(Fault::OlderKeepsSlot) {
                return self.books.rows[ask.job].take();
            }
            return self.remove(ask.job);
        }
        if self.is_taken_over(&row, ask.number) {
            self.books.rows[ask.job] = None;
        }
        None
    }

    /// `Entry::gives_way_to`: the backend gave the job out again, and the row's start was not granted after that.
    fn gives_way(&self, row: &Row, ask: &Claim) -> bool {
        let is_later = row.started.is_some_and(|(_, granted)| granted > ask.made);
        let is_older = match self.rules.fault {
            Some(Fault::AdoptedStays) => row.claim.number < ask.number && row.claim.number > 0,
            _ => row.claim.number < ask.number,
        };
        is_older && !is_later
    }

    /// `Entry::is_taken_over`
    fn is_taken_over(&self, row: &Row, number: Number) -> bool {
        row.claim.number == number
            && usize::from(row.owner) == self.me
            && matches!(row.place, Place::Held(_))
    }

    /// `Engine::start`: all keys are asked before any is taken from.
    fn start(&mut self, ask: &Claim) -> Verdict {
        let mut asked: Vec<usize> = keys_of(ask.keys).collect();
        if self.has(Fault::OneKeyIsAsked) {
            asked.truncate(1);
        }
        for (nth, key) in asked.iter().enumerate() {
            if !self.allows(*key) {
                if self.has(Fault::RefusalSpends) {
                    asked[..nth].iter().for_each(|key| self.occupy(*key, true));
                }
                return Verdict::Refused;
            }
        }
        keys_of(ask.keys).for_each(|key| self.occupy(key, true));
        let started = Some((self.now, self.moments[ask.job]));
        let place = Place::Out(self.now + self.rules.visibility);
        self.insert(*ask, place, started);
        Verdict::Started
    }

    fn allows(&self, key: usize) -> bool {
        let limit = &self.rules.limits[key];
        let slots = limit.slots.is_none_or(|most| self.books.slots[key] < most);
        let starts = limit
            .starts
            .is_none_or(|most| self.counted(key) < usize::from(most));
        slots && starts
    }

    /// How many starts of a key count still.
    fn counted(&self, key: usize) -> usize {
        let short = Time::from(self.has(Fault::ShortWindow));
        let counts = |at: &&Time| **at + self.rules.period - short > self.now;
        self.books.starts[key].iter().filter(counts).count()
    }

    fn occupy(&mut self, key: usize, counts: bool) {
        self.books.slots[key] += 1;
        let (now, period) = (self.now, self.rules.period);
        let starts = &mut self.books.starts[key];
        starts.retain(|at| *at + period > now);
        if counts && self.rules.limits[key].starts.is_some() {
            starts.push(now);
        }
    }

    fn insert(&mut self, claim: Claim, place: Place, started: Option<(Time, Number)>) {
        let owner = self.me as u8;
        self.books.rows[claim.job] = Some(Row {
            claim,
            owner,
            place,
            started,
        });
    }

    /// `Engine::remove`: the row goes with its slots.
    fn remove(&mut self, job: usize) -> Option<Row> {
        let row = self.books.rows[job].take()?;
        let times = 1 + u8::from(self.has(Fault::EndFreesTwice));
        for key in keys_of(row.claim.keys).filter(|_| row.is_out()) {
            self.books.slots[key] = self.books.slots[key].saturating_sub(times);
            if self.has(Fault::EndUncounts) {
                self.books.starts[key].pop();
            }
        }
        Some(row)
    }

    /// `Engine::back`: the hand-out did not happen, so the start is uncounted too.
    pub fn back(&mut self, job: usize, number: Number) -> bool {
        let is_ours = |row: &Row| {
            let is_mine = usize::from(row.owner) == self.me || self.has(Fault::BackOfAnother);
            (row.claim.number == number && is_mine) || self.has(Fault::BackAnyClaim)
        };
        let known = self.books.rows[job].filter(|row| row.is_out() && is_ours(row));
        let Some(row) = known else { return false };
        self.books.rows[job] = None;
        for key in keys_of(row.claim.keys) {
            if !self.has(Fault::BackKeepsSlot) {
                self.books.slots[key] -= 1;
            }
            let starts = &mut self.books.starts[key];
            if let Some(nth) = starts
                .iter()
                .position(|at| row.started.is_some_and(|(start, _)| start == *at))
            {
                starts.remove(nth);
            }
        }
        true
    }

    /// `Engine::end`: unless the row is of a newer claim. No claim means any.
    pub fn end(&mut self, job: usize, claim: Option<Number>) -> Option<Row> {
        let row = self.books.rows[job]?;
        let is_over = claim.is_none_or(|claim| claim >= row.claim.number);
        (is_over || self.has(Fault::EndAnyClaim))
            .then(|| self.remove(job))
            .flatten()
    }

    /// `Change::Until`
    pub fn until(&mut self, job: usize, number: Number, until: Time) -> bool {
        let row = self.books.rows[job].as_mut();
        let row = row.filter(|row| row.is_out() && row.claim.number == number);
        row.map(|row| row.place = Place::Out(until)).is_some()
    }

    /// `Engine::offer`: not where the job is out, or there is a newer claim.
    pub fn offer(&mut self, claim: &Claim) -> bool {
        if let Some(row) = self.books.rows[claim.job] {
            let is_same = !row.is_out() && row.claim.number == claim.number;
            let stays = !is_same && !self.gives_way(&row, claim);
            if stays && !self.has(Fault::OfferReplacesAny) {
                return false;
            }
            self.remove(claim.job);
        }
        self.insert(*claim, Place::Offered, None);
        true
    }

    /// `Engine::own`: the offered row goes on as ours, under another claim number.
    pub fn own(&mut self, job: usize, number: Number, next: Number, until: Time) -> bool {
        let me = self.me as u8;
        let Some(row) = self.books.rows[job] else {
            return false;
        };
        let is_offered = row.place == Place::Offered && row.claim.number == number;
        let is_held = !row.is_out() && self.has(Fault::OwnWithoutCompare);
        let may_own = next > number && (is_offered || self.is_taken_over(&row, next));
        if may_own || is_held {
            let claim = Claim {
                number: next,
                ..row.claim
            };
            self.books.rows[job] = Some(Row {
                claim,
                owner: me,
                place: Place::Held(until),
                ..row
            });
        }
        may_own || is_held
    }

    /// `Engine::adopt`: what is out already takes its slots whatever the limits say, and its start is not counted again.
    pub fn adopt(&mut self, claim: &Claim, until: Time) -> bool {
        if let Some(row) = self.books.rows[claim.job] {
            let is_newer = row.claim.number > claim.number && !self.has(Fault::AdoptOverNewer);
            let is_same = row.claim.number == claim.number && row.is_out();
            if is_newer || (is_same && !self.has(Fault::AdoptTakesTwice)) {
                return false;
            }
            match self.has(Fault::AdoptTakesTwice) {
                true => self.books.rows[claim.job] = None,
                false => drop(self.remove(claim.job)),
            }
        }
        keys_of(claim.keys).for_each(|key| self.occupy(key, false));
        self.insert(*claim, Place::Out(until), None);
        true
    }

    /// `due`: this sidecar lives. Its rows that are due, and those of others who have not looked in time; nobody else
    /// is handed these for a while.
    pub fn due(&mut self) -> Vec<Row> {
        self.books.seen[self.me] = self.now;
        let mut due = Vec::new();
        for row in self.books.rows.into_iter().flatten() {
            let is_mine = usize::from(row.owner) == self.me;
            let is_due = match row.place {
                Place::Offered => is_mine,
                Place::Held(until) => is_mine && until <= self.now,
                Place::Out(until) if is_mine => until <= self.now,
                Place::Out(until) => until + self.patience(row.owner) <= self.now,
            };
            if is_due {
                due.push(row);
            }
            if let Some(lent) = self.books.rows[row.claim.job]
                .as_mut()
                .filter(|_| is_due && !is_mine)
            {
                lent.place = Place::Out(self.now + self.rules.lease);
            }
        }
        due
    }

    fn patience(&self, owner: u8) -> Time {
        match self.books.seen[usize::from(owner)] + self.rules.silence > self.now {
            true => self.rules.patience,
            false => 0,
        }
    }
}
