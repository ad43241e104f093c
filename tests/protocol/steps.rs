//! The steps of the protocol. Each names the function that it stands for. A call to the store is carried out at once or
//! never; its answer is heard in a step of its own where something may happen before that matters. Twice a second, and
//! so with each tick, sidecars say that they live, renew their claims, and tell a store that is back what they know.

use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};

use super::books::{
    Books, Claim, JOBS, KEYS, Limit, Number, Place, Row, Rules, SIDECARS, Step, Time, Verdict,
    keys_of,
};
use super::faults::Fault;
use super::properties;
use super::world::{
    Alone, FORGETS, Held, Job, Left, Life, Offer, Run, Sidecar, Size, Stage, World,
};

/// The model of one size, perhaps with a fault.
#[derive(Debug)]
pub struct Protocol {
    pub size: Size,
    pub rules: Rules,
    /// What has happened somewhere: a bit for each [`Event`].
    pub events: AtomicU32,
}

/// What must happen somewhere, so that nothing holds because nothing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Refused,
    WentBack,
    OlderEnded,
    TakenOver,
    OwnedAgain,
    Reclaimed,
    OfAnother,
    Undone,
    HadRow,
    PutBack,
    OfferPutBack,
    StartedAlone,
    Forgotten,
    Limited,
    DeadReply,
}

pub const EVENTS: [Event; 15] = [
    Event::Refused,
    Event::WentBack,
    Event::OlderEnded,
    Event::TakenOver,
    Event::OwnedAgain,
    Event::Reclaimed,
    Event::OfAnother,
    Event::Undone,
    Event::HadRow,
    Event::PutBack,
    Event::OfferPutBack,
    Event::StartedAlone,
    Event::Forgotten,
    Event::Limited,
    Event::DeadReply,
];

/// What becomes of a call to the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    Whole,
    /// It does not get there.
    Lost,
    /// It is carried out, and nobody hears of it.
    Unheard,
    Twice,
}

/// A step. Sidecars and jobs have numbers; a run is one of the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    Tick,
    Lapse(usize),
    Claim(usize, usize),
    LoseReply(usize),
    Read(usize),
    Ask(usize, usize, Way),
    Hear(usize),
    Ack(usize, usize),
    Nack(usize, usize),
    WorkerDies(usize),
    Tell(usize, Way),
    Sweep(usize),
    Name(usize),
    Offer(usize, usize, Way),
    TakeOver(usize, usize, Way),
    OwnAgain(usize),
    OwnBack(usize, usize, Way),
    Follow(usize, usize),
    Heed(usize, usize),
    Adopt(usize, usize),
    Limit(usize),
    Miss(usize),
    Crash(usize),
    Pause(usize),
    Resume(usize),
    Outage,
    Return,
    Cut(usize),
    Mend,
    Failover,
    Wipe,
}

impl Protocol {
    pub fn new(size: Size, fault: Option<Fault>) -> Protocol {
        let slot = Limit {
            slots: Some(1),
            starts: None,
        };
        let start = Limit {
            slots: None,
            starts: Some(1),
        };
        let rules = Rules {
            limits: [slot, start],
            period: 2,
            visibility: 2,
            silence: 1,
            patience: 1,
            lease: 1,
            fault,
        };
        Protocol {
            size,
            rules,
            events: AtomicU32::new(0),
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.rules.fault == Some(fault)
    }

    fn note(&self, event: Event) {
        self.events.fetch_or(1 << event as u32, Ordering::Relaxed);
    }

    pub fn happened(&self, event: Event) -> bool {
        self.events.load(Ordering::Relaxed) >> event as u32 & 1 == 1
    }

    /// A step on the store by one sidecar. What a failover would go back to is kept.
    fn on_store<T>(
        &self,
        world: &mut World,
        me: usize,
        step: impl FnOnce(&mut Step<'_>) -> T,
    ) -> T {
        let kept = (world.left.failovers > 0).then(|| world.store.clone());
        let (now, moments) = (world.now, world.jobs.map(|job| job.number + 1));
        let done = step(&mut Step {
            books: &mut world.store,
            rules: &self.rules,
            me,
            now,
            moments,
        });
        if let Some(kept) = kept
            .filter(|kept| (&kept.rows, &kept.starts) != (&world.store.rows, &world.store.starts))
        {
            world.before.push(kept);
            if world.before.len() > FORGETS {
                world.before.remove(0);
            }
        }
        done
    }

    /// A call to the store: `Guard::ask` and `Guard::note`. `None`: the sidecar does not know whether it was done.
    fn call<T>(
        &self,
        world: &mut World,
        me: usize,
        way: Way,
        step: impl Fn(&mut Step<'_>) -> T,
    ) -> Option<T> {
        world.left.lost -= u8::from(matches!(way, Way::Lost | Way::Unheard));
        world.left.doubled -= u8::from(way == Way::Twice);
        let is_there = world.reaches(me) && way != Way::Lost;
        if is_there && way == Way::Twice {
            self.on_store(world, me, &step);
        }
        let done = is_there.then(|| self.on_store(world, me, &step));
        let heard = done.filter(|_| way != Way::Unheard);
        world.sidecars[me].is_suspect |= heard.is_none();
        heard
    }

    /// The store is lost: `Lost::new`.
    fn go_alone(&self, world: &mut World, me: usize) {
        let mut had = [0; KEYS];
        let own = world.sidecars[me].own.iter().flatten();
        for row in own.filter(|row| row.is_out()) {
            keys_of(row.claim.keys).for_each(|key| had[key] += 1);
        }
        let others =
            (0..SIDECARS).filter(|other| *other != me && world.sidecars[*other].life != Life::Dead);
        let parts = 1 + others.count() as u8;
        world.spare.was_alone = true;
        world.sidecars[me].alone = Some(Alone {
            had,
            starts: Default::default(),
            parts,
        });
        world.sidecars[me].is_suspect = true;
    }

    /// The store is told what it may have forgotten, and what it did not hear of: `Guard::recover`.
    fn recover(&self, world: &mut World, me: usize) -> bool {
        if !world.reaches(me) {
            return false;
        }
        let known = world.sidecars[me].clone();
        for row in known
            .own
            .iter()
            .flatten()
            .filter(|row| row.is_out() || known.owes_offers)
            .filter(|_| !self.has(Fault::NothingPutBack))
        {
            self.put_back(world, me, row);
        }
        for job in 0..JOBS {
            if let Some(number) =
                known.doubt[job].filter(|_| known.own[job].is_none_or(|own| !own.is_out()))
                && self.on_store(world, me, |store| store.back(job, number))
            {
                self.note(Event::Undone);
            }
            if let Some(number) = known.untold[job] {
                self.on_store(world, me, |store| store.end(job, Some(number)));
            }
        }
        let sidecar = &mut world.sidecars[me];
        (sidecar.doubt, sidecar.untold, sidecar.is_suspect) = Default::default();
        sidecar.owes_offers = false;
        if sidecar.alone.take().is_some() {
            // `name_again`
            sidecar
                .held
                .iter_mut()
                .flatten()
                .for_each(|held| held.is_named = false);
        }
        true
    }

    /// A row is put back: `remote::put_back`.
    fn put_back(&self, world: &mut World, me: usize, row: &Row) {
        let (is_back, event) = match row.place {
            Place::Out(due) => {
                let due = due.min(world.now + 1);
                let adopted = self.on_store(world, me, |store| store.adopt(&row.claim, due));
                (adopted, Event::PutBack)
            }
            _ => {
                let is_told = !self.has(Fault::OfferIsNotPutBack)
                    && self.on_store(world, me, |store| store.offer(&row.claim));
                (is_told, Event::OfferPutBack)
            }
        };
        if is_back {
            self.note(event);
        }
    }

    /// A job is over, or this claim of it: `Guard::end_all`.
    fn end(&self, world: &mut World, me: usize, job: usize, claim: Option<Number>, way: Way) {
        let is_over = |row: &Row| claim.is_none_or(|claim| claim >= row.claim.number);
        let own = world.sidecars[me].own[job].take_if(|row| is_over(row));
        let heard = match world.sidecars[me].alone {
            Some(_) => None,
            None => self.call(world, me, way, |store| store.end(job, claim)),
        };
        if heard.is_none() {
            // A claim that comes is above this.
            let last = Some(world.jobs[job].number).filter(|number| *number > 0);
            let claim = claim
                .or(own.map(|own| own.claim.number))
                .or(last)
                .unwrap_or(Number::MAX);
            let untold = &mut world.sidecars[me].untold[job];
            *untold = (*untold).max(Some(claim));
        }
    }

    /// A start is undone: `Sidecar::back`.
    fn back(&self, world: &mut World, me: usize, job: usize, number: Number) {
        let alone = world.sidecars[me].alone.is_some();
        let heard = if alone {
            None
        } else {
            self.call(world, me, Way::Whole, |store| store.back(job, number))
        };
        let sidecar = &mut world.sidecars[me];
        if heard.is_none() {
            sidecar.doubt[job] = Some(number);
        }
        sidecar.own[job].take_if(|row| row.claim.number == number);
        self.note(Event::WentBack);
    }

    /// A heartbeat for a held job: `prove::confirm`. Says whether the claim stands.
    fn prove(&self, world: &mut World, me: usize, job: usize) -> bool {
        let (now, visibility) = (world.now, self.rules.visibility);
        let Some(held) = world.sidecars[me].held[job] else {
            return false;
        };
        let attempt = match self.has(Fault::ProofOfAnyAttempt) {
            true => world.jobs[job].attempt,
            false => held.claim.attempt,
        };
        let stands = world.is_live(job, attempt);
        if let Some(held) = world.sidecars[me].held[job].as_mut().filter(|_| stands) {
            held.deadline = now + visibility;
            world.jobs[job].stage = Stage::Active(now + visibility);
        }
        stands
    }

    /// A job is picked, proven and asked for: `Proxy::prove`, `Proxy::ask`, `Guard::take_there`, `Lost::take`.
    fn ask(&self, world: &mut World, me: usize, job: usize, way: Way) -> Option<()> {
        let held = world.sidecars[me].held[job]?;
        let is_proven =
            world.now < held.deadline && (self.has(Fault::NoProof) || self.prove(world, me, job));
        if !is_proven {
            // `Sidecar::lose`
            world.sidecars[me].held[job] = None;
            self.end(world, me, job, Some(held.claim.number), Way::Whole);
            return Some(());
        }
        let asks = [held.claim];
        let verdict = if world.sidecars[me].alone.is_some() {
            Some(self.take_alone(world, me, &held.claim))
        } else if world.sidecars[me].is_suspect && !self.recover(world, me) {
            None
        } else {
            let used = world.store.clone();
            let taken = self.call(world, me, way, |store| store.take(&asks, 1));
            self.watch_spending(
                world,
                &used,
                taken.as_ref().map(|(verdicts, _)| verdicts[0]),
            );
            if let Some((_, ended)) = &taken {
                self.older_ended(world, me, ended);
            }
            taken.map(|(verdicts, _)| verdicts[0])
        };
        let sidecar = &mut world.sidecars[me];
        if verdict.is_none() {
            // `Notes::unheard`
            let older = sidecar.own[job].take_if(|row| row.claim.number < held.claim.number);
            sidecar.untold[job] = sidecar.untold[job].max(older.map(|row| row.claim.number));
            if !self.has(Fault::NoDoubt) {
                sidecar.doubt[job] = Some(held.claim.number);
            }
        }
        sidecar.asking = Some((held.claim, verdict, world.now));
        Some(())
    }

    /// What we were told of rows that ended.
    fn older_ended(&self, world: &mut World, me: usize, ended: &[Row]) {
        for row in ended {
            world.sidecars[me].own[row.claim.job]
                .take_if(|own| own.claim.number == row.claim.number);
            self.note(Event::OlderEnded);
        }
    }

    /// A refusal spends nothing but what ended before.
    fn watch_spending(&self, world: &mut World, used: &Books, verdict: Option<Verdict>) {
        if verdict == Some(Verdict::Refused) {
            let more = |key: usize| {
                world.store.slots[key] > used.slots[key]
                    || world.store.starts[key].len() > used.starts[key].len()
            };
            world.wrong.spent |= (0..KEYS).any(more);
        }
    }

    /// Without the store: the slots that it had, and its part of the starts (`on_store_error = "share"`).
    fn take_alone(&self, world: &mut World, me: usize, claim: &Claim) -> Verdict {
        let (now, job) = (world.now, claim.job);
        let sidecar = &mut world.sidecars[me];
        match sidecar.own[job].filter(Row::is_out) {
            Some(row) if row.claim.number < claim.number => {
                sidecar.own[job] = None;
                sidecar.untold[job] = sidecar.untold[job].max(Some(row.claim.number));
            }
            Some(_) => return Verdict::HasRow,
            None => {}
        }
        let Some(alone) = &mut sidecar.alone else {
            return Verdict::Refused;
        };
        let is_free = |key: usize| {
            let limit = &self.rules.limits[key];
            let rows = sidecar.own.iter().flatten();
            let used = rows.filter(|row| row.is_out() && row.claim.has(key));
            let used = used.count();
            let slots = limit
                .slots
                .is_none_or(|most| used < usize::from(most.min(alone.had[key])));
            // Below one it is one start in a longer period.
            let parts = alone.parts;
            let starts = limit.starts.is_none_or(|most| {
                let turns = u16::from(parts.div_ceil(most));
                let period = if most < parts {
                    self.rules.period * turns
                } else {
                    self.rules.period
                };
                let counted = alone.starts[key].iter().filter(|at| **at + period > now);
                counted.count() < usize::from((most / parts).max(1))
            });
            slots && starts
        };
        if !keys_of(claim.keys).all(is_free) {
            return Verdict::Refused;
        }
        let timed = keys_of(claim.keys).filter(|key| self.rules.limits[*key].starts.is_some());
        timed.for_each(|key| alone.starts[key].push(now));
        self.note(Event::StartedAlone);
        Verdict::Started
    }

    /// The answer to a `take`: `Guard::take_guarded`, `Proxy::leave_hold`, `siblings::lost`.
    fn hear(&self, world: &mut World, me: usize) -> Option<()> {
        let (claim, verdict, asked) = world.sidecars[me].asking.take()?;
        let (now, job, number) = (world.now, claim.job, claim.number);
        let is_held = world.sidecars[me].held[job].is_some_and(|held| held.claim.number == number);
        match verdict {
            None => {}
            Some(Verdict::Started) => {
                let place = Place::Out(now + self.rules.visibility);
                world.sidecars[me].own[job] = Some(row_of_ours(me, claim, place));
                let in_time = world.sidecars[me].held[job].is_some_and(|held| now < held.deadline);
                let goes = (is_held || self.has(Fault::ReplacedGoesOut))
                    && (in_time || self.has(Fault::LateGoesOut));
                match goes {
                    true => self.hand_out(world, me, claim, asked),
                    false => self.back(world, me, job, number),
                }
            }
            Some(Verdict::HasRow | Verdict::Outdated) if is_held => self.had_row(world, me, claim),
            Some(_) => self.note(Event::Refused),
        }
        let named = world.sidecars[me].held[job]
            .as_mut()
            .filter(|_| is_held && verdict.is_some());
        named.into_iter().for_each(|held| held.is_named = true);
        Some(())
    }

    /// The job goes out. Its start counts from when the store granted it.
    fn hand_out(&self, world: &mut World, me: usize, claim: Claim, granted: Time) {
        world.sidecars[me].held[claim.job] = None;
        world.wrong.went_dead |= !world.is_live(claim.job, claim.attempt);
        let is_excused = world.sidecars[me].alone.is_some() || world.sidecars[me].is_suspect;
        world.runs.push(Run {
            claim,
            through: me,
            is_silent: false,
            is_excused,
        });
        let counts = granted + self.rules.period > world.now;
        for key in
            keys_of(claim.keys).filter(|key| counts && self.rules.limits[*key].starts.is_some())
        {
            world.handed[key].push(granted);
        }
    }

    /// A picked job that the store does not start, because it has a row: `siblings::lost`.
    fn had_row(&self, world: &mut World, me: usize, claim: Claim) {
        let (job, number) = (claim.job, claim.number);
        self.note(Event::HadRow);
        if self.has(Fault::HasRowGoesOut) {
            return self.hand_out(world, me, claim, world.now);
        }
        if !world.reaches(me) || world.sidecars[me].alone.is_some() {
            return;
        }
        match world.store.rows[job] {
            Some(row) if usize::from(row.owner) == me && row.claim.number == number => {
                match row.place {
                    Place::Out(_) => self.back(world, me, job, number),
                    Place::Offered | Place::Held(_) => {
                        self.end(world, me, job, Some(number), Way::Whole)
                    }
                }
            }
            _ => {
                world.sidecars[me].held[job] = None;
                world.sidecars[me].own[job].take_if(|own| !own.is_out());
            }
        }
    }

    /// The reply to a claim is read, and its job held: `read_reply`, `next_claim`, `Hold::add`. A claim that is over by
    /// then is not ours any more.
    fn read(&self, world: &mut World, me: usize) -> Option<()> {
        let (job, attempt, sent) = world.sidecars[me].claiming.take()?;
        let counts_from = if self.has(Fault::LeaseFromReply) {
            world.now
        } else {
            sent
        };
        let deadline = counts_from + self.rules.visibility;
        world.jobs[job].number += 4;
        if world.now >= deadline && !self.has(Fault::DeadReplyIsHeld) {
            self.note(Event::DeadReply);
            return Some(());
        }
        let keys = self.size.jobs[job];
        let number = world.jobs[job].number;
        let claim = Claim {
            job,
            number,
            attempt,
            made: number,
            keys,
        };
        world.sidecars[me].held[job] = Some(Held {
            claim,
            deadline,
            is_named: false,
            offer: Offer::No,
        });
        Some(())
    }

    /// The row that a request finds: `rows::row_of`, `Guard::row_of`.
    fn row_of(&self, world: &World, me: usize, job: usize) -> Option<Row> {
        let sidecar = &world.sidecars[me];
        let own = sidecar.own[job];
        let asks = sidecar.alone.is_none() && world.reaches(me);
        let there = world.store.rows[job].filter(|_| asks);
        let out = own.filter(Row::is_out);
        // Where the data began anew ours may not be there yet, and what is older was put back.
        let is_anew = asks && (world.is_settling || sidecar.owes_offers);
        let is_older = |row: &Row| own.is_some_and(|own| own.claim.number > row.claim.number);
        let there = there.filter(|row| !(is_anew && is_older(row)));
        out.or(there).or(own.filter(|_| is_anew))
    }

    /// A worker settles its job through some sidecar: `settle_through`, `follow_answer`.
    fn settle(&self, world: &mut World, nth: usize, me: usize, is_ack: bool) -> Option<()> {
        let run = world.runs[nth];
        let (job, row) = (run.claim.job, self.row_of(world, me, run.claim.job));
        if self.has(Fault::EndsBeforeBackend) && is_ack && world.sidecars[me].ending.is_none() {
            world.sidecars[me].ending = Some((job, None));
            return Some(());
        }
        world.runs.remove(nth);
        let is_live = world.is_live(job, run.claim.attempt);
        let claim = match (is_live, is_ack) {
            (true, true) => {
                world.jobs[job] = Job {
                    stage: Stage::Done,
                    attempt: 0,
                    number: 0,
                };
                world.sidecars[me].held[job] = None;
                None
            }
            (true, false) => {
                world.jobs[job].stage = Stage::Waiting;
                world.left.nacks -= 1;
                row.map(|row| row.claim.number)
            }
            // Refused: the backend says whether the claim that is known is over.
            (false, _) => row
                .filter(|row| !world.is_live(job, row.claim.attempt))
                .map(|row| row.claim.number),
        };
        // Where the store cannot say which claim it was, it is none that came later.
        let last = Some(world.jobs[job].number)
            .filter(|_| is_live && !is_ack && world.sidecars[me].is_suspect);
        let claim = claim
            .or(last)
            .filter(|_| !self.has(Fault::NackEndsAnyClaim));
        if claim.is_some() || (is_live && (row.is_some() || world.sidecars[me].is_suspect)) {
            world.sidecars[me].ending = Some((job, claim));
        }
        Some(())
    }

    /// What is due is looked at, and the backend is asked about it: `look_at_due`, `overdue::ask_about`, `end_offers`.
    fn sweep(&self, world: &mut World, me: usize) -> Option<()> {
        if world.sidecars[me].is_suspect && !self.recover(world, me) {
            return None;
        }
        let mut due = self.on_store(world, me, |store| store.due());
        due.retain(|row| !matches!(row.place, Place::Offered if world.sidecars[me].held[row.claim.job].is_some()));
        for row in due {
            let (job, number, later) = (row.claim.job, row.claim.number, world.now + 1);
            let is_mine = usize::from(row.owner) == me;
            if !row.is_out() {
                if world.sidecars[me].held[job].is_none() {
                    self.end(world, me, job, Some(number), Way::Whole);
                }
            } else if world.is_live(job, row.claim.attempt) && !self.has(Fault::TimeAloneEnds) {
                self.on_store(world, me, |store| store.until(job, number, later));
            } else if world.sidecars[me].ending.is_none() {
                let claim = Some(number).filter(|_| !self.has(Fault::ReclaimsAnyClaim));
                world.sidecars[me].ending = Some((job, claim));
                self.note(if is_mine {
                    Event::Reclaimed
                } else {
                    Event::OfAnother
                });
            }
        }
        Some(())
    }

    /// Claims of which the store has not heard are named to it: `name_claims`.
    fn name(&self, world: &mut World, me: usize) -> Option<()> {
        if world.sidecars[me].is_suspect && !self.recover(world, me) {
            return None;
        }
        let is_unnamed = |held: &&Held| !held.is_named && held.offer == Offer::No;
        let held = world.sidecars[me].held.iter().flatten();
        let asks: Vec<Claim> = held.filter(is_unnamed).map(|held| held.claim).collect();
        let (_, ended) = self.call(world, me, Way::Whole, |store| store.take(&asks, 0))?;
        self.older_ended(world, me, &ended);
        let held = world.sidecars[me].held.iter_mut().flatten();
        held.filter(|held| asks.contains(&held.claim))
            .for_each(|held| held.is_named = true);
        Some(())
    }

    /// A held job is offered to siblings: `siblings::offer`. From here on it is ours only if the store says so.
    fn offer(&self, world: &mut World, me: usize, job: usize, way: Way) -> Option<()> {
        let held = world.sidecars[me].held[job].as_mut()?;
        world.left.offers -= u8::from(held.offer == Offer::No);
        held.offer = Offer::Untold;
        let claim = held.claim;
        if world.sidecars[me].is_suspect && !self.recover(world, me) {
            return Some(());
        }
        if self
            .call(world, me, way, |store| store.offer(&claim))
            .is_some()
        {
            world.sidecars[me].held[job].as_mut()?.offer = Offer::Told;
            // `Notes::changed`
            let own = &mut world.sidecars[me].own[job];
            if own.is_none_or(|own| !own.is_out() || own.claim.number < claim.number) {
                *own = Some(row_of_ours(me, claim, Place::Offered));
            }
        }
        Some(())
    }

    /// A job that a sibling offers is taken over, if the backend says that its claim stands: `take_over_row`, `own`.
    fn take_over(
        &self,
        world: &mut World,
        me: usize,
        job: usize,
        number: Number,
        way: Way,
    ) -> Option<()> {
        let row = world.store.rows[job]?;
        if !world.is_live(job, row.claim.attempt) {
            self.end(world, me, job, Some(row.claim.number), Way::Whole);
            return Some(());
        }
        let next = number + 1;
        let until = world.now + self.rules.visibility;
        let owned = self.call(world, me, way, |store| store.own(job, number, next, until));
        world.sidecars[me].owning = owned.is_none().then_some((job, number));
        if owned == Some(true) {
            self.note(Event::TakenOver);
            let claim = Claim {
                number: next,
                ..row.claim
            };
            let held = Held {
                claim,
                deadline: until,
                is_named: false,
                offer: Offer::No,
            };
            world.sidecars[me].held[job] = Some(held);
        }
        Some(())
    }

    /// What we offered we get back as a sibling would: `own_again`.
    fn own_back(&self, world: &mut World, me: usize, job: usize, way: Way) -> Option<()> {
        let held = world.sidecars[me].held[job]?;
        let (number, until) = (held.claim.number, world.now + self.rules.visibility);
        match self.call(world, me, way, |store| {
            store.own(job, number, number + 1, until)
        }) {
            Some(true) => {
                self.note(Event::OwnedAgain);
                let held = world.sidecars[me].held[job].as_mut()?;
                (held.claim.number, held.offer) = (number + 1, Offer::No);
                // `Notes::changed`
                world.sidecars[me].own[job].take_if(|own| !own.is_out());
            }
            Some(false) => return self.follow(world, me, job),
            None => {}
        }
        Some(())
    }

    /// What we offered is forgotten if the store says that it is not ours: `follow_offer`.
    fn follow(&self, world: &mut World, me: usize, job: usize) -> Option<()> {
        let row = self.row_of(world, me, job);
        if !world.reaches(me) || row.is_some_and(|row| usize::from(row.owner) == me) {
            return None;
        }
        let held = world.sidecars[me].held[job].take()?;
        // `Notes::found`
        world.sidecars[me].own[job].take_if(|own| !own.is_out());
        let is_taking = |one: &Sidecar| one.owning.is_some_and(|(taken, _)| taken == job);
        let has =
            |one: &Sidecar| one.held[job].is_some() || one.own[job].is_some() || is_taking(one);
        let is_with = |run: &Run| run.claim.job == job;
        let is_gone = !world.sidecars.iter().any(has) && !world.runs.iter().any(is_with);
        // Who died or stood still may have had it, and what a failover forgot is given up.
        let bad = |left: &Left| [left.crashes, left.pauses, left.failovers];
        let are_all_well = bad(&self.size.left) == bad(&world.left);
        let is_live = world.is_live(job, held.claim.attempt);
        world.wrong.gave_up |= is_gone && are_all_well && is_live;
        Some(())
    }

    /// A job that runs already is found in the backend's list: `adopt_running`. It gets a row without limits, and what
    /// is held is named once more.
    fn adopt(&self, world: &mut World, me: usize, job: usize) -> Option<()> {
        let (attempt, keys) = (world.jobs[job].attempt, self.size.jobs[job]);
        let claim = Claim {
            job,
            number: 0,
            attempt,
            made: world.jobs[job].number,
            keys,
        };
        let until = world.now + self.rules.visibility;
        let free = Claim { keys: 0, ..claim };
        self.on_store(world, me, |store| store.adopt(&free, until));
        world.sidecars[me].adopting = Some(claim);
        let held = world
            .sidecars
            .iter_mut()
            .flat_map(|one| one.held.iter_mut().flatten());
        held.for_each(|held| held.is_named = false);
        Some(())
    }

    /// Nobody named it, so it gets its slots: `limit_unnamed`.
    fn limit(&self, world: &mut World, me: usize) -> Option<()> {
        let claim = world.sidecars[me].adopting.take()?;
        let until = world.now + self.rules.visibility;
        if self
            .on_store(world, me, |store| store.end(claim.job, Some(0)))
            .is_some()
        {
            self.on_store(world, me, |store| store.adopt(&claim, until));
            self.note(Event::Limited);
            // What started before it was known is one too many now (7).
            for (key, limit) in self.rules.limits.iter().enumerate() {
                let over = limit
                    .slots
                    .map_or(0, |most| world.store.slots[key].saturating_sub(most));
                world.spare.slots[key] = world.spare.slots[key].max(over);
            }
            if !world.is_live(claim.job, claim.attempt) {
                self.end(world, me, claim.job, Some(0), Way::Whole);
            }
        }
        Some(())
    }

    /// A while goes by. Whoever can does what must be done in time.
    fn tick(&self, world: &mut World) -> Option<()> {
        world.now += 1;
        (world.is_filling, world.is_settling) = (false, false);
        let (now, until) = (world.now, world.now + self.rules.visibility);
        for me in (0..SIDECARS)
            .filter(|me| world.sidecars[*me].life == Life::Up)
            .collect::<Vec<_>>()
        {
            if world.reaches(me) {
                world.store.seen[me] = now;
                if world.sidecars[me].is_suspect {
                    self.recover(world, me);
                }
            } else if world.sidecars[me].alone.is_none() {
                self.go_alone(world, me);
            }
            // `keep_held`, also of what is offered unless the store is lost.
            for job in 0..JOBS {
                let is_alone = world.sidecars[me].alone.is_some();
                let is_kept = |held: &Held| !is_alone || held.offer == Offer::No;
                if world.sidecars[me].held[job].as_ref().is_some_and(is_kept) {
                    self.prove(world, me, job);
                }
            }
            // `heartbeat`
            let runs = world.runs.clone().into_iter();
            for run in runs.filter(|run| run.through == me && !run.is_silent) {
                let (job, number) = (run.claim.job, run.claim.number);
                if world.is_live(job, run.claim.attempt) {
                    world.jobs[job].stage = Stage::Active(until);
                    if world.reaches(me) {
                        self.on_store(world, me, |store| store.until(job, number, until));
                    }
                    let own = world.sidecars[me].own[job]
                        .as_mut()
                        .filter(|row| row.claim.number == number);
                    own.into_iter()
                        .for_each(|row| row.place = Place::Out(until));
                }
            }
        }
        let period = self.rules.period;
        world
            .store
            .starts
            .iter_mut()
            .for_each(|starts| starts.retain(|at| *at + period > now));
        world
            .handed
            .iter_mut()
            .for_each(|starts| starts.retain(|at| *at + period > now));
        Some(())
    }

    /// The store goes on without its last writes, and all connections to it break.
    fn failover(&self, world: &mut World) -> Option<()> {
        world.left.failovers -= 1;
        let old = world.before.first()?.clone();
        self.forget(world, old);
        Some(())
    }

    /// The store goes on with these books.
    fn forget(&self, world: &mut World, old: Books) {
        world.is_filling = true;
        let seen = world.store.seen;
        let lost = std::mem::replace(&mut world.store, Books { seen, ..old });
        world.before.clear();
        for row in lost.rows.iter().flatten().filter(|row| row.is_out()) {
            let now = world.store.rows[row.claim.job];
            if now.is_none_or(|now| !now.is_out() || now.claim.number != row.claim.number) {
                keys_of(row.claim.keys).for_each(|key| world.spare.slots[key] += 1);
                self.note(Event::Forgotten);
                let runs = world.runs.iter_mut().filter(|run| run.claim == row.claim);
                runs.for_each(|run| run.is_excused = true);
            }
        }
        for key in 0..KEYS {
            let fewer = lost.starts[key]
                .len()
                .saturating_sub(world.store.starts[key].len());
            world.spare.starts[key] += fewer as u8;
        }
        for sidecar in world
            .sidecars
            .iter_mut()
            .filter(|one| one.life != Life::Dead)
        {
            sidecar.is_suspect = true;
            if let Some((claim, answer, _)) = &mut sidecar.asking {
                *answer = None;
                sidecar.doubt[claim.job] = Some(claim.number);
            }
        }
    }

    fn crash(&self, world: &mut World, me: usize) {
        world.left.crashes -= 1;
        world.sidecars[me] = Sidecar {
            life: Life::Dead,
            ..Default::default()
        };
        // Nobody beats for these.
        world
            .runs
            .iter_mut()
            .filter(|run| run.through == me)
            .for_each(|run| run.is_silent = true);
    }

    /// Does a step. `None`: nothing came of it.
    fn apply(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Tick => self.tick(world),
            Action::Read(me) => self.read(world, me),
            Action::Ask(me, job, way) => self.ask(world, me, job, way),
            Action::Hear(me) => self.hear(world, me),
            Action::Ack(run, me) => self.settle(world, run, me, true),
            Action::Nack(run, me) => self.settle(world, run, me, false),
            Action::Sweep(me) => self.sweep(world, me),
            Action::Name(me) => self.name(world, me),
            Action::Offer(me, job, way) => self.offer(world, me, job, way),
            Action::TakeOver(me, job, way) => {
                let number = world.store.rows[job]?.claim.number;
                self.take_over(world, me, job, number, way)
            }
            Action::OwnAgain(me) => {
                let (job, number) = world.sidecars[me].owning.take()?;
                self.take_over(world, me, job, number, Way::Whole)
            }
            Action::OwnBack(me, job, way) => self.own_back(world, me, job, way),
            Action::Follow(me, job) => self.follow(world, me, job),
            Action::Adopt(me, job) => self.adopt(world, me, job),
            Action::Limit(me) => self.limit(world, me),
            Action::Failover => self.failover(world),
            _ => {
                self.happen(world, action);
                Some(())
            }
        }
    }

    /// What always comes to something.
    fn happen(&self, world: &mut World, action: Action) {
        match action {
            Action::Lapse(job) => world.jobs[job].stage = Stage::Waiting,
            Action::Claim(me, job) => {
                world.jobs[job].attempt += 1;
                world.jobs[job].stage = Stage::Active(world.now + self.rules.visibility);
                world.sidecars[me].claiming = Some((job, world.jobs[job].attempt, world.now));
            }
            Action::LoseReply(me) => {
                world.left.lost -= 1;
                world.sidecars[me].claiming = None;
            }
            Action::WorkerDies(run) => {
                world.left.deaths -= 1;
                world.runs[run].is_silent = true;
            }
            Action::Tell(me, way) => {
                if let Some((job, claim)) = world.sidecars[me].ending.take() {
                    self.end(world, me, job, claim, way);
                }
            }
            Action::Heed(me, job) => world.sidecars[me].own[job] = None,
            Action::Miss(me) => self.go_alone(world, me),
            Action::Wipe => {
                world.left.wipes -= 1;
                world.is_settling = true;
                let living = world.sidecars.iter_mut();
                let living = living.filter(|one| one.life != Life::Dead);
                living.for_each(|one| one.owes_offers = true);
                self.forget(world, Books::default());
            }
            Action::Crash(me) => self.crash(world, me),
            Action::Pause(me) => {
                world.left.pauses -= 1;
                world.sidecars[me].life = Life::Paused;
            }
            Action::Resume(me) => world.sidecars[me].life = Life::Up,
            Action::Outage => {
                world.left.outages -= 1;
                world.is_out = true;
            }
            Action::Return => world.is_out = false,
            Action::Cut(me) => {
                world.left.cuts -= 1;
                world.cut = Some(me);
            }
            Action::Mend => world.cut = None,
            other => unreachable!("{other:?}"),
        }
    }

    /// How a call of this sidecar may go.
    fn ways(world: &World, me: usize, mut push: impl FnMut(Way)) {
        push(Way::Whole);
        if world.reaches(me) && world.sidecars[me].alone.is_none() {
            if world.left.lost > 0 {
                push(Way::Lost);
                push(Way::Unheard);
            }
            if world.left.doubled > 0 {
                push(Way::Twice);
            }
        }
    }

    /// What may happen around the sidecars.
    fn around(&self, world: &World, actions: &mut Vec<Action>) {
        // What is under way is there long before, unless who waits for it stands still.
        let is_waiting = |one: &Sidecar| {
            one.life == Life::Up
                && (one.claiming.is_some() || one.asking.is_some() || one.ending.is_some())
        };
        if world.now < self.size.ticks && !world.sidecars.iter().any(is_waiting) {
            actions.push(Action::Tick);
        }
        let is_over = |job: &usize| matches!(world.jobs[*job].stage, Stage::Active(until) if until <= world.now);
        actions.extend((0..JOBS).filter(is_over).map(Action::Lapse));
        if world.left.deaths > 0 {
            let dies = |nth: &usize| !world.runs[*nth].is_silent;
            actions.extend((0..world.runs.len()).filter(dies).map(Action::WorkerDies));
        }
        if world.is_out {
            actions.push(Action::Return);
        } else if world.left.outages > 0 {
            actions.push(Action::Outage);
        }
        if world.cut.is_some() {
            actions.push(Action::Mend);
        }
        if !world.before.is_empty() && world.left.failovers > 0 {
            actions.push(Action::Failover);
        }
        if world.left.wipes > 0 && world.store.rows.iter().any(Option::is_some) {
            actions.push(Action::Wipe);
        }
    }

    /// What may happen to a sidecar, and what it may do for workers.
    fn of_sidecar(&self, world: &World, me: usize, actions: &mut Vec<Action>) {
        let (sidecar, left) = (&world.sidecars[me], &world.left);
        if left.crashes > 0 {
            actions.push(Action::Crash(me));
        }
        if left.pauses > 0 {
            actions.push(Action::Pause(me));
        }
        if left.cuts > 0 && world.cut.is_none() {
            actions.push(Action::Cut(me));
        }
        if !world.reaches(me) && sidecar.alone.is_none() {
            actions.push(Action::Miss(me));
        }
        match sidecar.claiming {
            None => {
                let waits = |job: &usize| world.jobs[*job].stage == Stage::Waiting;
                actions.extend((0..JOBS).filter(waits).map(|job| Action::Claim(me, job)));
            }
            Some(_) => {
                actions.push(Action::Read(me));
                actions.extend((left.lost > 0).then_some(Action::LoseReply(me)));
            }
        }
        if sidecar.asking.is_some() {
            actions.push(Action::Hear(me));
        }
        match sidecar.ending {
            Some(_) => Protocol::ways(world, me, |way| actions.push(Action::Tell(me, way))),
            None => {
                let runs = (0..world.runs.len()).filter(|nth| {
                    let run = &world.runs[*nth];
                    // A worker that is dead says nothing, but that of a sidecar that is gone goes to another one.
                    !run.is_silent || world.sidecars[run.through].life == Life::Dead
                });
                for nth in runs {
                    actions.push(Action::Ack(nth, me));
                    actions.extend((left.nacks > 0).then_some(Action::Nack(nth, me)));
                }
            }
        }
    }

    /// What a sidecar may do with a job.
    fn with_job(&self, world: &World, me: usize, job: usize, actions: &mut Vec<Action>) {
        let sidecar = &world.sidecars[me];
        let (is_alone, row) = (sidecar.alone.is_some(), world.store.rows[job]);
        let is_asked = sidecar.asking.is_some_and(|(claim, ..)| claim.job == job);
        if let Some(held) = sidecar.held[job] {
            let may_ask = held.offer == Offer::No || self.has(Fault::OfferedGoesOut);
            let may_ask = may_ask && (is_alone || !world.is_settling);
            if may_ask && sidecar.asking.is_none() {
                Protocol::ways(world, me, |way| actions.push(Action::Ask(me, job, way)));
            }
            if !is_alone && !is_asked {
                let may_own = !world.is_filling || self.has(Fault::OwnsTooSoon);
                let is_told = match held.offer {
                    Offer::No => world.left.offers > 0,
                    Offer::Untold => true,
                    Offer::Told => false,
                };
                if is_told {
                    Protocol::ways(world, me, |way| actions.push(Action::Offer(me, job, way)));
                }
                if held.offer == Offer::Told {
                    if may_own {
                        let own_back = |way| actions.push(Action::OwnBack(me, job, way));
                        Protocol::ways(world, me, own_back);
                    }
                    actions.push(Action::Follow(me, job));
                }
            }
        }
        let is_offered =
            row.is_some_and(|row| row.place == Place::Offered && usize::from(row.owner) != me);
        let may_own = !world.is_filling || self.has(Fault::OwnsTooSoon);
        let is_free =
            sidecar.held[job].is_none() && sidecar.owning.is_none() && !is_alone && may_own;
        if is_offered && is_free && world.reaches(me) {
            Protocol::ways(world, me, |way| {
                actions.push(Action::TakeOver(me, job, way))
            });
        }
        if let Some(own) = sidecar.own[job] {
            let is_newer =
                own.is_out() && row.is_some_and(|row| row.claim.number > own.claim.number);
            let is_known = world.reaches(me) && !sidecar.is_suspect;
            let is_theirs =
                |row: &Row| usize::from(row.owner) != me && row.claim.number >= own.claim.number;
            let is_theirs = is_known && !own.is_out() && row.as_ref().is_none_or(is_theirs);
            if is_newer || is_theirs || !world.is_live(job, own.claim.attempt) {
                actions.push(Action::Heed(me, job));
            }
        }
        let runs = matches!(world.jobs[job].stage, Stage::Active(_));
        let is_found = self.size.one_runs && runs && row.is_none() && sidecar.held[job].is_none();
        if is_found && sidecar.adopting.is_none() && world.reaches(me) {
            actions.push(Action::Adopt(me, job));
        }
    }

    /// What a sidecar may do that nobody asks for.
    fn unasked(&self, world: &World, me: usize, actions: &mut Vec<Action>) {
        let sidecar = &world.sidecars[me];
        if sidecar.alone.is_some() || !world.reaches(me) {
            return;
        }
        let mut books = world.store.clone();
        let mut look = Step {
            books: &mut books,
            rules: &self.rules,
            me,
            now: world.now,
            moments: [0; JOBS],
        };
        if sidecar.is_suspect || !look.due().is_empty() {
            actions.push(Action::Sweep(me));
        }
        let is_unnamed = |held: &Held| !held.is_named && held.offer == Offer::No;
        if !world.is_settling && sidecar.held.iter().flatten().any(is_unnamed) {
            actions.push(Action::Name(me));
        }
        if sidecar.owning.is_some() && !world.is_filling {
            actions.push(Action::OwnAgain(me));
        }
        // By then whoever lives has named what it holds.
        let have_named = world.sidecars.iter().filter(|one| one.life == Life::Up);
        let mut held = have_named.flat_map(|one| one.held.iter().flatten());
        if sidecar.adopting.is_some() && held.all(|held| held.is_named) {
            actions.push(Action::Limit(me));
        }
    }
}

/// A row of a job that has not started.
fn row_of_ours(me: usize, claim: Claim, place: Place) -> Row {
    Row {
        claim,
        owner: me as u8,
        place,
        started: None,
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.size)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.around(world, actions);
        for me in 0..SIDECARS {
            match world.sidecars[me].life {
                Life::Dead => {}
                Life::Paused => actions.push(Action::Resume(me)),
                Life::Up => {
                    self.of_sidecar(world, me, actions);
                    (0..JOBS).for_each(|job| self.with_job(world, me, job, actions));
                    self.unasked(world, me, actions);
                }
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        self.apply(&mut world, action)?;
        let silent = world.now.saturating_sub(self.rules.silence);
        world
            .store
            .seen
            .iter_mut()
            .for_each(|seen| *seen = silent.max(*seen));
        Some(world.canonical())
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        properties::all()
    }
}
