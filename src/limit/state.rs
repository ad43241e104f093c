//! Everything that is known of one key, and the two steps of a start: ask, then take.

use super::windows::Windows;
use super::{EARLY, Limits, Pace, Rate, Refusal, Room, Strategy, Throttle, Timestamp};

/// The usage of one key. Limits are not part of it; every question brings them.
///
/// Times that are passed in do not go back; if they do nothing breaks, but windows may have
/// forgotten what a later question has seen leave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyState {
    pace: Pace,
    shut: Timestamp,
    windows: Windows,
    active: u32,
}

/// What one start changed in a key, beyond its slot: what [`KeyState::back`] needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undo {
    at: Timestamp,
    before: Pace,
    after: Pace,
}

impl KeyState {
    /// Whether a start is allowed, and if so the time at which it counts: `now`, or up to
    /// [`EARLY`] later if spacing says so. Changes nothing.
    ///
    /// # Errors
    /// The refusal that lets go last.
    pub fn ask(&self, limits: &Limits, now: Timestamp) -> Result<Timestamp, Refusal> {
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
        if self.shut > now {
            refuse(Strategy::Shut, 0, 0, Some(granted_from(self.shut)));
        }
        if let Some(most) = limits.concurrency.filter(|most| self.active >= *most) {
            refuse(Strategy::Concurrency, most, self.active, None);
        }
        for rate in &limits.rates {
            let window = self.windows.get(rate.period.get());
            if let Some((window, opens)) =
                window.and_then(|w| Some((w, w.opens(rate.limit.get(), now)?)))
            {
                refuse(
                    Strategy::Rate,
                    rate.limit.get(),
                    window.count(now),
                    Some(granted_from(opens)),
                );
            }
        }
        let at = limits
            .throttle
            .as_ref()
            .map_or(now, |throttle| self.pace.next(throttle, now));
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

    /// Takes a slot and counts a start at `at`, the latest time that [`KeyState::ask`] gave for
    /// any of the job's limits. A job may bring several sets of limits to one key: that is still one
    /// slot, one start in each period, and one step of the slowest spacing.
    pub fn take<'a>(
        &mut self,
        limits: impl Iterator<Item = &'a Limits> + Clone,
        at: Timestamp,
        now: Timestamp,
    ) -> Undo {
        let before = self.pace;
        self.active = self.active.saturating_add(1);
        for throttle in limits.clone().filter_map(|limits| limits.throttle.as_ref()) {
            self.pace = self.pace.and(before.after(throttle, at));
        }
        for period in periods(limits) {
            self.windows.add(period, at, now);
        }
        Undo {
            at,
            before,
            after: self.pace,
        }
    }

    /// Takes a slot and counts no start: the job started before this state was made.
    pub fn occupy(&mut self) {
        self.active = self.active.saturating_add(1);
    }

    /// Undoes a start that did not happen: its slot ends, and it is uncounted wherever it is still
    /// the newest. `limits` are those with which it was taken.
    pub fn back<'a>(&mut self, limits: impl Iterator<Item = &'a Limits> + Clone, undo: &Undo) {
        self.end();
        if self.pace == undo.after {
            self.pace = undo.before;
        }
        for period in periods(limits) {
            if let Some(window) = self.windows.get_mut(period) {
                window.remove(undo.at);
            }
        }
    }

    /// A slot ends.
    pub fn end(&mut self) {
        self.active = self.active.saturating_sub(1);
    }

    /// Allows no start before `until`; an earlier time than now opens the key.
    pub fn shut(&mut self, until: Timestamp) {
        self.shut = until;
    }

    /// How many starts the limits allow at `now`.
    pub fn room(&self, limits: &Limits, now: Timestamp) -> Room {
        let mut room = Room::OPEN;
        if self.shut > now {
            room = room.and(Room {
                starts: 0,
                at: Some(granted_from(self.shut)),
                slot: false,
            });
        }
        if let Some(most) = limits.concurrency {
            room = room.and(Room {
                starts: most.saturating_sub(self.active),
                at: None,
                slot: true,
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

    /// How many starts of the last `period` microseconds count, and when the oldest leaves.
    pub fn counted(&self, period: u64, now: Timestamp) -> (u32, Option<Timestamp>) {
        let window = self.windows.get(period);
        window.map_or((0, None), |window| {
            (window.count(now), window.leaves(0, now))
        })
    }

    /// The next start's time under `throttle`, if it is in the future.
    pub fn next_start(&self, throttle: &Throttle, now: Timestamp) -> Option<Timestamp> {
        Some(self.pace.next(throttle, now)).filter(|at| *at > now)
    }

    /// Until when the key is shut, if it is.
    pub fn shut_until(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.shut).filter(|until| *until > now)
    }

    /// Whether nothing is used, so that forgetting the key would change no decision.
    pub fn idle(&self, now: Timestamp) -> bool {
        self.active == 0
            && self.shut <= now
            && self.pace.idle(now)
            && self.windows.iter().all(|window| window.count(now) == 0)
    }

    /// The memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<KeyState>() + self.windows.heap()
    }

    fn rate_room(&self, rate: &Rate, now: Timestamp) -> Room {
        let limit = rate.limit.get();
        let Some(window) = self.windows.get(rate.period.get()) else {
            return Room {
                starts: limit,
                at: None,
                slot: false,
            };
        };
        let count = window.count(now);
        let more = window.leaves(count.saturating_sub(limit), now);
        Room {
            starts: limit.saturating_sub(count),
            at: more.map(granted_from),
            slot: false,
        }
    }
}

/// The time to name in a refusal so that [`EARLY`] before it is `first`: what must not come early
/// is named later instead, and whoever waits has one rule for all limits.
fn granted_from(first: Timestamp) -> Timestamp {
    first.plus(EARLY)
}

/// Each period once.
fn periods<'a>(limits: impl Iterator<Item = &'a Limits> + Clone) -> impl Iterator<Item = u64> {
    let all = limits
        .flat_map(|limits| limits.rates.iter())
        .map(|rate| rate.period.get());
    let earlier = all.clone();
    all.enumerate()
        .filter(move |(n, period)| !earlier.clone().take(*n).any(|other| other == *period))
        .map(|(_, period)| period)
}
