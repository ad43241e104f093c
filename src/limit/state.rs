//! Everything that is known of one key, and the two steps of a start: ask, then take.

use super::limits::{Limits, Measure, Rate, Throttle};
use super::pace::Pace;
use super::packed::{PackedReader, Writer};
use super::refusal::{Refusal, Room, Strategy};
use super::shares::Shares;
use super::time::{EARLY, Timestamp};
use super::windows::Windows;
use std::sync::Arc;

/// How long a job that needs more room than there is stays first in line, in microseconds: workers poll every second
/// or two, and each of them that asks for it keeps its place.
pub const LINE: u64 = 5_000_000;

/// The longest job id that stands in line, in bytes.
const LONGEST_IN_LINE: usize = 256;

/// What a start paid, and what it used in truth.
#[derive(Clone, Copy, Debug)]
pub struct Bill {
    /// What its windows count.
    pub paid: u32,
    /// What they shall count.
    pub used: u32,
    /// Whether all of that counts from now on, and not from the start on.
    pub counts_now: bool,
}

/// The usage of one key. Limits are not part of it; every question brings them.
///
/// Times that are passed in do not go back; if they do nothing breaks, but windows may have
/// forgotten what a later question has seen leave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyState {
    pace: Pace,
    pub(super) windows: Windows,
    active: u32,
    /// What few keys have, so that a million of them weigh little.
    rare: Option<Box<Rare>>,
}

/// What few keys have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Rare {
    /// No starts before this. Kept until something else is done with it.
    shut: Option<Timestamp>,
    /// Who starts next.
    line: Option<FirstInLine>,
    /// What its groups were served, where it is shared by weight.
    shares: Option<Shares>,
    /// When it was cleared while jobs were out: windows count nothing that was granted until then.
    cleared: Option<Timestamp>,
}

/// The place of a job that needs more room than there is. What it needs is kept for it, and what is beside that is for
/// others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct FirstInLine {
    /// The job; empty: there is none any more.
    first: Arc<str>,
    /// Its cost.
    pays: u32,
    /// When it is done in the virtual time of the key, if it takes a share: whose turn is before passes it. 0: nobody's is.
    done: u64,
    /// Until when the place is its.
    until: Timestamp,
    /// When it was first asked for, if it was not asked for again since.
    stood: Timestamp,
    /// How long it took, the last time, until the first in line was asked for again: until then others may use a sliding
    /// window, as far as they leave it again.
    gap: u64,
}

impl FirstInLine {
    /// From when on its room is kept.
    fn kept_from(&self) -> Timestamp {
        match self.stood {
            Timestamp(0) => Timestamp(0),
            stood => stood.plus(self.gap),
        }
    }

    /// It is asked for again.
    fn comes(&mut self, now: Timestamp) {
        if self.stood > Timestamp(0) {
            self.gap = now.since(self.stood);
            self.stood = Timestamp(0);
        }
    }
}

impl Rare {
    const NONE: Rare = Rare {
        shut: None,
        line: None,
        shares: None,
        cleared: None,
    };

    fn is_idle(&self, now: Timestamp) -> bool {
        self.line.as_ref().is_none_or(|line| line.until <= now)
            && self.shares.as_ref().is_none_or(|shares| shares.idle(now))
    }
}

/// What one start changed in a key, beyond its slot: what [`KeyState::back`] needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undo {
    at: Timestamp,
    /// When it was decided.
    then: Timestamp,
    before: Pace,
    after: Pace,
}

impl Undo {
    /// When the start was granted, which is at most [`EARLY`] before it counts.
    pub fn granted(&self) -> Timestamp {
        self.then
    }

    /// All of it as bytes.
    pub fn pack(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.time(self.at);
        to.time(self.then);
        self.before.pack(&mut to);
        self.after.pack(&mut to);
        to.0
    }

    /// What [`Undo::pack`] wrote; `None`: somebody else did.
    pub fn unpack(bytes: &[u8]) -> Option<Undo> {
        let from = &mut PackedReader(bytes);
        let undo = Undo {
            at: from.time()?,
            then: from.time()?,
            before: Pace::unpack(from)?,
            after: Pace::unpack(from)?,
        };
        from.0.is_empty().then_some(undo)
    }
}

impl KeyState {
    /// A copy of this state in which no job is out.
    pub fn without_slots(&self) -> KeyState {
        KeyState {
            active: 0,
            ..self.clone()
        }
    }

    /// Whether a start that costs so much is allowed, and if so the time at which it counts: `now`, or up to
    /// [`EARLY`] later if spacing says so. Each limit must have room for the cost, or for all of itself where
    /// that is less. Changes nothing.
    ///
    /// # Errors
    /// The refusal that lets go last.
    pub fn ask(&self, limits: &Limits, pays: u32, now: Timestamp) -> Result<Timestamp, Refusal> {
        let mut worst: Option<Refusal> = None;
        let mut opens: Option<Timestamp> = None;
        let mut refuse = |strategy, limit, current, at| {
            let refusal = Refusal {
                strategy,
                limit,
                current,
                at,
                slot: at.is_none(),
            };
            opens = opens.max(at);
            if worst.as_ref().is_none_or(|worst| refusal.outlasts(worst)) {
                worst = Some(refusal);
            }
        };
        if let Some(opens) = self.shut_until(now) {
            refuse(Strategy::Shut, 0, 0, Some(granted_from(opens)));
        }
        let is_full = |most: &u32| *most == 0 || self.active > most.saturating_sub(pays);
        if let Some(most) = limits.concurrency.filter(is_full) {
            refuse(Strategy::Concurrency, most, self.active, None);
        }
        for rate in &limits.rates {
            if let Some((count, opens)) = self.windows.opens(rate, pays, now) {
                let limit = rate.limit.get();
                refuse(Strategy::Rate, limit, count, Some(granted_from(opens)));
            }
        }
        let throttle = limits.throttle.as_ref();
        let at = throttle.map_or(now, |throttle| self.pace.next(throttle, pays, now));
        if at > now.plus(EARLY) {
            let limit = limits.throttle.map_or(0, |throttle| throttle.limit.get());
            refuse(Strategy::Throttle, limit, limit, Some(at));
        }
        match worst {
            // A slot alone does not help a key that is shut as well.
            Some(worst) => Err(Refusal { at: opens, ..worst }),
            None => Ok(at),
        }
    }

    /// Takes slots and counts a start at `at`, the latest time that [`KeyState::ask`] gave for
    /// any of the job's limits. A job may bring several sets of limits to one key: that is still one
    /// cost in slots, in each period, and in steps of the slowest spacing.
    pub fn take<'a>(
        &mut self,
        limits: impl Iterator<Item = &'a Limits> + Clone,
        pays: u32,
        at: Timestamp,
        now: Timestamp,
    ) -> Undo {
        let before = self.pace;
        self.active = self.active.saturating_add(pays);
        for throttle in limits.clone().filter_map(|limits| limits.throttle.as_ref()) {
            self.pace = self.pace.and(before.after(throttle, pays, at));
        }
        for rate in each_window(limits) {
            self.windows.add(rate, at, pays, now);
        }
        Undo {
            at,
            then: now,
            before,
            after: self.pace,
        }
    }

    /// Takes slots and counts no start: the job started before this state was made.
    pub fn occupy(&mut self, pays: u32) {
        self.active = self.active.saturating_add(pays);
    }

    /// Undoes a start that did not happen: its slots end, no window counts it, and spacing is as before
    /// if no other has started since. `limits` and cost are those with which it was taken.
    pub fn back<'a>(
        &mut self,
        limits: impl Iterator<Item = &'a Limits> + Clone,
        pays: u32,
        undo: &Undo,
    ) {
        self.end(pays);
        if self.pace == undo.after {
            self.pace = undo.before;
        }
        if self.counts(undo) {
            for rate in each_window(limits) {
                self.windows.remove(rate, undo.at, pays, undo.then);
            }
        }
    }

    /// Whether its windows may count this start still.
    fn counts(&self, undo: &Undo) -> bool {
        let cleared = self.rare.as_ref().and_then(|rare| rare.cleared);
        cleared.is_none_or(|cleared| undo.then > cleared)
    }

    /// The slots end that a start took.
    pub fn end(&mut self, pays: u32) {
        self.active = self.active.saturating_sub(pays);
    }

    /// Puts windows right that count a start which paid so much and used another amount. What was not used leaves the
    /// place of the start; what was used besides counts from now on, and nobody is asked. No window counts more of that
    /// than all of its limit, so one wrong number closes it for one period at most.
    pub fn settle<'a>(
        &mut self,
        limits: impl Iterator<Item = &'a Limits> + Clone,
        bill: Bill,
        undo: &Undo,
        now: Timestamp,
    ) {
        let paid = if self.counts(undo) { bill.paid } else { 0 };
        let (less, more) = match bill.counts_now {
            true => (paid, bill.used),
            false => (
                paid.saturating_sub(bill.used),
                bill.used.saturating_sub(paid),
            ),
        };
        for rate in each_window(limits) {
            if less > 0 {
                self.windows.remove(rate, undo.at, less, undo.then);
            }
            if more > 0 {
                self.windows.add(rate, now, more.min(rate.limit.get()), now);
            }
        }
    }

    /// The slots end that a counted start took with `limits`: its running time counts towards
    /// the next start's wait if every spacing among them measures so.
    pub fn completed<'a>(
        &mut self,
        limits: impl Iterator<Item = &'a Limits>,
        pays: u32,
        undo: &Undo,
        now: Timestamp,
    ) {
        self.end(pays);
        let mut measures = limits.filter_map(|limits| Some(limits.throttle?.measure));
        if measures.next() == Some(Measure::Completion)
            && measures.all(|measure| measure == Measure::Completion)
        {
            self.pace = self.pace.ended(now.since(undo.at));
        }
    }

    /// Asks for one job among others: it starts only beside what the first in line needs, if that is another one. With its
    /// cost comes when it is done in the virtual time of the key.
    ///
    /// # Errors
    /// As [`KeyState::ask`], and [`Strategy::Line`] where there is room, and it is kept.
    pub fn ask_for(
        &self,
        job: &str,
        limits: &Limits,
        (pays, done): (u32, u64),
        now: Timestamp,
    ) -> Result<Timestamp, Refusal> {
        let at = self.ask(limits, pays, now)?;
        let line = self
            .line(now)
            .filter(|line| *line.first != *job && line.done <= done);
        let kept = line.and_then(|line| Some((line, self.is_kept(line, limits, pays, now)?)));
        match kept {
            None => Ok(at),
            // The first in line may come no more.
            Some((line, opens)) => Err(Refusal::of_line(opens.min(granted_from(line.until)))),
        }
    }

    /// When the next one starts if the first in line stays: that one, or one of this cost beside it.
    /// [`Timestamp::NEVER`]: when a slot ends.
    pub fn next_with_line(&self, limits: &Limits, pays: u32, now: Timestamp) -> Timestamp {
        let line = self.line(now);
        let opens = line.and_then(|line| self.is_kept(line, limits, pays, now));
        opens.unwrap_or(now)
    }

    /// When there may be room for a start of this cost beside what the first in line needs, if there is none now.
    fn is_kept(
        &self,
        line: &FirstInLine,
        limits: &Limits,
        pays: u32,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut opens: Option<Timestamp> = None;
        // No time brings a slot, and no time makes a limit larger.
        let both = |limit: u32| u64::from(pays.min(limit)) + u64::from(line.pays.min(limit));
        if let Some(most) = limits.concurrency
            && u64::from(self.active) + both(most) > u64::from(most)
        {
            opens = Some(Timestamp::NEVER);
        }
        for rate in &limits.rates {
            let fits = self
                .windows
                .fits(rate, (pays, line.pays), line.kept_from(), now);
            opens = opens.max(fits.map(granted_from));
        }
        // Without a burst it waits for no more than others.
        for throttle in limits.throttle.iter().filter(|of| of.burst.get() > 1) {
            let burst = throttle.burst.get();
            let cells = u32::try_from(both(burst)).unwrap_or(u32::MAX);
            let at = match cells > burst {
                true => Timestamp::NEVER,
                false => self.pace.next(throttle, cells, now),
            };
            opens = opens.max(Some(at).filter(|at| *at > now.plus(EARLY)));
        }
        // It is asked for when the first may start, and others after it.
        let first = self.ask(limits, line.pays, now).err();
        let first = first.and_then(|first| first.at);
        Some(opens?.min(first.unwrap_or(Timestamp::NEVER)))
    }

    fn line(&self, now: Timestamp) -> Option<&FirstInLine> {
        let line = self.rare.as_ref()?.line.as_ref()?;
        (line.until > now && !line.first.is_empty()).then_some(line)
    }

    /// Whether somebody is first in line.
    pub fn has_line(&self, now: Timestamp) -> bool {
        self.line(now).is_some()
    }

    /// Whether this job is first in line.
    pub fn is_first(&self, job: &str, now: Timestamp) -> bool {
        self.line(now).is_some_and(|line| *line.first == *job)
    }

    /// What this job needs is kept for [`LINE`], if it is first in line, or nobody is whose turn is not after its.
    pub fn stand_in_line(&mut self, job: &Arc<str>, (pays, done): (u32, u64), now: Timestamp) {
        let is_first = self.is_first(job, now);
        let is_behind = self.line(now).is_some_and(|line| line.done <= done);
        if job.len() > LONGEST_IN_LINE || is_behind && !is_first {
            return;
        }
        let line = self.rare_mut().line.get_or_insert_default();
        match is_first {
            true => line.comes(now),
            false => (line.first, line.stood) = (Arc::clone(job), now),
        }
        (line.pays, line.done, line.until) = (pays, done, now.plus(LINE));
    }

    /// The job stands in line no longer; says whether it did.
    pub fn leave_line(&mut self, job: &str, now: Timestamp) -> bool {
        let is_first = self.is_first(job, now);
        if let Some(line) = self.rare.as_mut().and_then(|rare| rare.line.as_mut())
            && is_first
        {
            line.comes(now);
            line.first = Arc::default();
        }
        is_first
    }

    /// What the key's groups were served.
    pub fn shares(&self) -> Option<&Shares> {
        self.rare.as_ref()?.shares.as_ref()
    }

    /// What the key's groups were served, for its caller to change; nothing yet if none was kept.
    pub fn shares_mut(&mut self) -> &mut Shares {
        self.rare_mut().shares.get_or_insert_default()
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Allows no start before a time; one that is over opens the key.
    pub fn shut(&mut self, until: Timestamp, now: Timestamp) {
        let until = Some(until).filter(|until| *until > now);
        if until.is_some() || self.rare.is_some() {
            self.rare_mut().shut = until;
        }
    }

    /// Forgets all but the slots: a job that is out is out.
    pub fn clear(&mut self, now: Timestamp) {
        *self = KeyState {
            active: self.active,
            ..KeyState::default()
        };
        if self.active > 0 {
            self.rare_mut().cleared = Some(now);
        }
    }

    /// How many starts the limits allow at `now`.
    pub fn room(&self, limits: &Limits, now: Timestamp) -> Room {
        let mut room = Room::OPEN;
        if let Some(until) = self.shut_until(now) {
            room = room.and(Room {
                starts: 0,
                at: Some(granted_from(until)),
                ..Room::OPEN
            });
        }
        if let Some(most) = limits.concurrency {
            room = room.and(Room {
                starts: most.saturating_sub(self.active),
                slot: true,
                ..Room::OPEN
            });
        }
        for rate in &limits.rates {
            room = room.and(self.rate_room(rate, now));
        }
        match &limits.throttle {
            Some(throttle) => room.and(self.pace.room(throttle, now)),
            None => room,
        }
    }

    /// Slots taken.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// How many starts count in the window of `rate`, and when the oldest leaves.
    pub fn counted(&self, rate: &Rate, now: Timestamp) -> (u32, Option<Timestamp>) {
        match self.windows.get(rate) {
            Some(window) => (window.count(now), window.leaves(now)),
            None => (0, None),
        }
    }

    /// The next start's time under `throttle`, if it is in the future.
    pub fn next_start(&self, throttle: &Throttle, now: Timestamp) -> Option<Timestamp> {
        Some(self.pace.next(throttle, 1, now)).filter(|at| *at > now)
    }

    /// Until when the key is shut, if it is.
    pub fn shut_until(&self, now: Timestamp) -> Option<Timestamp> {
        let shut = self.rare.as_ref()?.shut;
        shut.filter(|until| *until > now)
    }

    /// Whether nothing is used.
    pub fn is_unused(&self, now: Timestamp) -> bool {
        self.active == 0
            && self.shut_until(now).is_none()
            && self.pace.idle(now)
            && self.windows.iter().all(|window| window.count(now) == 0)
    }

    /// Whether forgetting the key would change no decision: nothing is used, nobody is first in line, and no group was
    /// asked for lately, nor a start spaced.
    pub fn idle(&self, now: Timestamp) -> bool {
        self.is_unused(now)
            && self.pace.is_over(now)
            && self.rare.as_ref().is_none_or(|rare| rare.is_idle(now))
    }

    /// All of it as bytes, with the latest time at which it was looked at.
    pub fn pack(&self, seen: Timestamp) -> Vec<u8> {
        let mut to = Writer::default();
        to.u32(self.active);
        to.time(seen);
        self.pace.pack(&mut to);
        let rare = self.rare.as_deref().unwrap_or(&Rare::NONE);
        let Rare {
            shut,
            line,
            shares,
            cleared,
        } = rare;
        let has = [shut.is_some(), line.is_some(), shares.is_some()].map(u8::from);
        to.byte(has[0] | has[1] << 1 | has[2] << 2 | u8::from(cleared.is_some()) << 3);
        if let Some(until) = shut {
            to.time(*until);
        }
        if let Some(line) = line {
            to.text(&line.first);
            to.u32(line.pays);
            to.long(line.done);
            to.time(line.until);
            to.time(line.stood);
            to.long(line.gap);
        }
        if let Some(shares) = shares {
            shares.pack(&mut to);
        }
        if let Some(at) = cleared {
            to.time(*at);
        }
        self.windows.pack(&mut to);
        to.0
    }

    /// What [`KeyState::pack`] wrote; `None`: somebody else did.
    pub fn unpack(bytes: &[u8]) -> Option<(KeyState, Timestamp)> {
        let from = &mut PackedReader(bytes);
        let (active, seen, pace) = (from.u32()?, from.time()?, Pace::unpack(from)?);
        let has = from.byte()?;
        let mut state = KeyState {
            pace,
            active,
            ..KeyState::default()
        };
        if has & 1 > 0 {
            state.rare_mut().shut = Some(from.time()?);
        }
        if has & 2 > 0 {
            state.rare_mut().line = Some(FirstInLine {
                first: Arc::from(from.text()?),
                pays: from.u32()?,
                done: from.long()?,
                until: from.time()?,
                stood: from.time()?,
                gap: from.long()?,
            });
        }
        if has & 4 > 0 {
            state.rare_mut().shares = Some(Shares::unpack(from)?);
        }
        if has & 8 > 0 {
            state.rare_mut().cleared = Some(from.time()?);
        }
        state.windows = Windows::unpack(from)?;
        from.0.is_empty().then_some((state, seen))
    }

    fn rate_room(&self, rate: &Rate, now: Timestamp) -> Room {
        let limit = rate.limit.get();
        let window = self.windows.get(rate);
        if let Some(until) = self.windows.has_place_at(rate, now) {
            return Room {
                starts: 0,
                at: Some(granted_from(until)),
                ..Room::OPEN
            };
        }
        Room {
            starts: limit.saturating_sub(window.map_or(0, |window| window.count(now))),
            at: window
                .and_then(|window| window.grows(limit, now))
                .map(granted_from),
            ..Room::OPEN
        }
    }
}

/// The time to name in a refusal so that [`EARLY`] before it is `first`: what must not come early
/// is named later instead, and whoever waits has one rule for all limits.
fn granted_from(first: Timestamp) -> Timestamp {
    first.plus(EARLY)
}

/// Each window of these limits once.
pub fn each_window<'a>(
    limits: impl Iterator<Item = &'a Limits> + Clone,
) -> impl Iterator<Item = &'a Rate> {
    let all = limits.flat_map(|limits| limits.rates.iter());
    let earlier = all.clone();
    all.enumerate()
        .filter(move |(n, rate)| !earlier.clone().take(*n).any(|other| other.is_like(rate)))
        .map(|(_, rate)| rate)
}

#[cfg(test)]
mod tests;
