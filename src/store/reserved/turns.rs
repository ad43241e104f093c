//! What one sidecar has reserved of one key, and how much it asks for next. Pure: time is passed in.
//!
//! A turn that nobody used is lost to the whole fleet, so no more are asked for than were used before:
//! twice as many after some batches of which all were used, half as many after one of which some were not,
//! and the more often that went wrong, the longer until it is tried again.

use std::collections::VecDeque;

use super::rules::objection;
use ojs_limit::{EARLY, Limits, OnLimit, Refusal, Reserved, Room, Strategy, Timestamp, Turn};

/// How far ahead turns are asked for, in microseconds: no longer than workers wait.
pub(super) const AHEAD: u64 = 500_000;
/// The most turns that are asked for at once.
const MOST: usize = 16;
/// A sidecar asks at once for at most this part of what the limit allows in [`AHEAD`].
const PART: u64 = 8;
/// So long turns are not asked for again when all of an answer were over when it came, in microseconds.
const TOO_FAR: u64 = 1_000_000;
/// So many whole batches at most until more is tried again.
const PATIENCE: u32 = 64;

/// How many starts of a key under these limits are asked for at once, at most; one or none: it is not
/// worth it, or cannot be done.
pub(super) fn most(limits: &Limits) -> usize {
    if objection(limits, OnLimit::Wait).is_some() {
        return 0;
    }
    let rates = limits.rates.iter().map(|rate| (rate.limit, rate.period));
    let throttle = limits.throttle.iter();
    let all = rates.chain(throttle.map(|throttle| (throttle.limit, throttle.period)));
    let in_part = all.map(|(limit, period)| {
        let in_all = u128::from(limit.get()) * u128::from(AHEAD) / u128::from(period.get());
        usize::try_from(in_all / u128::from(PART)).unwrap_or(MOST)
    });
    in_part.min().unwrap_or(0).min(MOST)
}

/// Whether a limit allows so many starts (32 a second) that there are calls to save. Else each start is asked
/// for: a turn that nobody uses would cost too much.
pub fn is_hot(limits: &Limits) -> bool {
    most(limits) > 1
}

/// A turn of ours, by our idea of the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mine {
    from: Timestamp,
    last: Timestamp,
    /// When it counts, as the store said.
    pub(super) at: Timestamp,
}

/// What is to be done for a job that wants to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It starts in this turn.
    Go(Mine),
    /// Not before this time.
    Wait(Timestamp),
    /// Not now, says the store; it is to be asked again from then on.
    Refused(Refusal, Timestamp),
    /// The store is to be asked for so many turns.
    Ask(usize),
    /// It is being asked.
    Asked,
    /// The store is to be asked for the start itself: it is so far away that turns come when they are over.
    AskForStart,
}

/// The turns of one key.
#[derive(Debug)]
pub(super) struct Turns {
    most: usize,
    /// Whether there are windows, which count what nobody used.
    windows: bool,
    left: VecDeque<Mine>,
    /// How many since the last question nobody used.
    wasted: usize,
    /// Times that are to be given back.
    unused: Vec<Timestamp>,
    size: usize,
    /// Whole batches in a row, and how many of them it takes to ask for more.
    whole: u32,
    patience: u32,
    refused: Option<KnownRefusal>,
    asking: bool,
    /// Until then turns are not asked for, because the last ones were over when they came.
    too_far: Timestamp,
}

/// A refusal that is believed for a while.
#[derive(Debug)]
struct KnownRefusal {
    why: Refusal,
    /// When there may be something to ask for.
    at: Timestamp,
    /// The store is asked again by then in any case.
    again: Timestamp,
}

impl Turns {
    pub(super) fn new(limits: &Limits) -> Turns {
        Turns {
            most: most(limits).max(1),
            windows: !limits.rates.is_empty(),
            left: VecDeque::new(),
            wasted: 0,
            unused: Vec::new(),
            size: 1,
            whole: 0,
            // The first question ends no batch.
            patience: 2,
            refused: None,
            asking: false,
            too_far: Timestamp(0),
        }
    }

    /// What a job does that wants to start, one of `wanted` that could if there were turns.
    pub(super) fn next(&mut self, wanted: usize, now: Timestamp) -> Next {
        match self.known(now) {
            Some(known) => known,
            None if self.asking => Next::Asked,
            None if self.too_far > now => Next::AskForStart,
            None => {
                self.batch_over();
                self.asking = true;
                Next::Ask(self.size.max(wanted).min(self.most))
            }
        }
    }

    /// What a job does that wants to start, as far as it is known without the store.
    pub(super) fn known(&mut self, now: Timestamp) -> Option<Next> {
        self.expire(now);
        if let Some(turn) = self.left.front().copied() {
            return Some(match turn.from <= now {
                true => {
                    self.left.pop_front();
                    Next::Go(turn)
                }
                false => Next::Wait(turn.from),
            });
        }
        let refused = self
            .refused
            .as_ref()
            .filter(|of| !self.asking && of.again > now);
        refused.map(|of| Next::Refused(of.why.clone(), of.at))
    }

    /// What may be claimed for this key: the turns that are left, or as many as would be asked for.
    pub(super) fn room(&mut self, now: Timestamp) -> Room {
        self.expire(now);
        let (starts, at) = match &self.refused {
            _ if !self.left.is_empty() => (self.left.len(), None),
            Some(of) if of.again > now && !self.asking => (0, Some(of.at.plus(EARLY))),
            _ => (self.size, None),
        };
        Room {
            starts: u32::try_from(starts).unwrap_or(u32::MAX),
            at,
            ..Room::OPEN
        }
    }

    /// The store's answer to [`Next::Ask`]; `None`: it gave none. `doubt`: how far its clock may be from the
    /// one that these times are compared with, which narrows each turn on both sides.
    pub(super) fn answered(&mut self, reserved: Option<Reserved>, doubt: u64, now: Timestamp) {
        self.asking = false;
        let Some(reserved) = reserved else { return };
        let mine = |turn: &Turn| Mine {
            from: turn.from.plus(doubt),
            last: turn.last().minus(doubt),
            at: turn.at,
        };
        self.left.extend(reserved.turns.iter().map(mine));
        self.expire(now);
        if self.left.is_empty() && !reserved.turns.is_empty() {
            self.too_far = now.plus(TOO_FAR);
        }
        let refused = reserved.refused.filter(|_| self.left.is_empty());
        self.refused = refused.map(|why| {
            // By then a part of what is reserved now has passed, and there is something to ask for. What is shut has
            // nothing ahead of its time.
            let ahead = match why.strategy {
                Strategy::Shut | Strategy::Line => EARLY,
                _ => AHEAD / 2,
            };
            let at = why.at.unwrap_or(now).0.saturating_sub(ahead);
            let at = Timestamp(at).max(now.plus(1_000));
            // A sibling may open it sooner, and not every word of that comes.
            let again = at.min(now.plus(2 * AHEAD));
            KnownRefusal { why, at, again }
        });
    }

    /// A start did not happen.
    pub(super) fn back(&mut self, turn: Mine) {
        self.left.push_front(turn);
    }

    /// More may start than was known.
    pub(super) fn ask_again(&mut self) {
        self.refused = None;
    }

    /// What is left will not be used.
    pub(super) fn forget(&mut self) {
        self.unused.extend(self.left.drain(..).map(|turn| turn.at));
        (self.refused, self.wasted) = (None, 0);
    }

    /// How many were not used since this was last asked, and which of them are to be given back, once:
    /// spacing is not made up for, so only windows want to know.
    pub(super) fn take_unused(&mut self, now: Timestamp) -> (usize, Vec<Timestamp>) {
        self.expire(now);
        let unused = std::mem::take(&mut self.unused);
        match self.windows {
            true => (unused.len(), unused),
            false => (unused.len(), Vec::new()),
        }
    }

    /// Whether it holds nothing that must not be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.left.is_empty() && self.unused.is_empty() && !self.asking
    }

    /// Turns whose time has passed are lost.
    fn expire(&mut self, now: Timestamp) {
        while let Some(turn) = self.left.front().filter(|turn| turn.last < now) {
            self.unused.push(turn.at);
            self.wasted += 1;
            self.left.pop_front();
        }
    }

    /// All of a batch is used or lost: the next one is larger or smaller.
    fn batch_over(&mut self) {
        if std::mem::take(&mut self.wasted) > 0 {
            self.whole = 0;
            self.size = (self.size / 2).max(1);
            self.patience = (self.patience * 4).min(PATIENCE);
            return;
        }
        self.whole += 1;
        if self.whole >= self.patience && self.size < self.most {
            self.whole = 0;
            self.patience = (self.patience / 2).max(1);
            self.size = (self.size * 2).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;
    use ojs_limit::{Rate, WindowKind};

    const T: Timestamp = Timestamp(1_800_000_000_000_000);

    fn window(limit: u32) -> Limits {
        Limits {
            rates: vec![Rate {
                limit: NonZeroU32::new(limit).unwrap(),
                period: NonZeroU64::new(1_000_000).unwrap(),
                window: WindowKind::Sliding,
            }],
            ..Limits::default()
        }
    }

    /// Asks for one job, is granted as much as was asked for, and uses so many of it in time; says how much it was.
    fn batch(turns: &mut Turns, now: Timestamp, used: usize) -> usize {
        let Next::Ask(asked) = turns.next(1, now) else {
            panic!("{turns:?}");
        };
        assert_eq!(turns.next(1, now), Next::Asked);
        let turn = Turn { from: now, at: now };
        let reserved = Reserved {
            turns: vec![turn; asked],
            refused: None,
        };
        turns.answered(Some(reserved), 0, now);
        for _ in 0..used.min(asked) {
            assert!(matches!(turns.next(1, turn.last()), Next::Go(_)));
        }
        asked
    }

    #[test]
    fn no_more_are_asked_for_than_were_used() {
        let mut turns = Turns::new(&window(128));
        let mut now = T;
        let mut asked = |used| {
            now = now.plus(1_000_000);
            batch(&mut turns, now, used)
        };
        let whole: Vec<usize> = (0..6).map(|_| asked(16)).collect();
        assert_eq!(whole, [1, 2, 4, 8, 8, 8], "twice as many, up to an eighth");
        // Half of it after each of which some were lost, and at least one.
        let lost: Vec<usize> = (0..5).map(|_| asked(0)).collect();
        assert_eq!(lost, [8, 4, 2, 1, 1]);
        // The more often that went wrong, the longer until it is tried again.
        let again: Vec<usize> = (0..150).map(|_| asked(16)).collect();
        let first = |size| again.iter().position(|asked| *asked == size);
        assert_eq!(
            [first(2), first(4), first(8)],
            [Some(64), Some(96), Some(112)]
        );
    }

    #[test]
    fn only_windows_are_given_back_what_nobody_used() {
        let mut turns = Turns::new(&window(128));
        assert_eq!(batch(&mut turns, T, 0), 1);
        assert_eq!(
            turns.take_unused(T.plus(EARLY)),
            (0, vec![]),
            "its last moment"
        );
        assert!(!turns.is_idle());
        assert_eq!(turns.take_unused(T.plus(EARLY + 1)), (1, vec![T]));
        assert_eq!(turns.take_unused(T.plus(EARLY + 1)), (0, vec![]), "once");
        assert!(turns.is_idle());
    }

    #[test]
    fn a_turn_is_used_only_while_it_is_sure_by_the_stores_clock() {
        let mut turns = Turns::new(&window(128));
        let (turn, doubt) = (T.plus(10_000), 2_000);
        let grant = |turns: &mut Turns| {
            assert!(matches!(turns.next(1, T), Next::Ask(_)));
            let one = Turn {
                from: turn,
                at: turn,
            };
            let reserved = Reserved {
                turns: vec![one],
                refused: None,
            };
            turns.answered(Some(reserved), doubt, T);
        };
        grant(&mut turns);
        let from = turn.plus(doubt);
        assert_eq!(turns.next(1, T.plus(11_999)), Next::Wait(from));
        assert!(matches!(turns.next(1, from), Next::Go(mine) if mine.at == turn));
        grant(&mut turns);
        let last = T.plus(10_000 + EARLY - doubt);
        assert_eq!(turns.room(last).starts, 1);
        assert_eq!(turns.take_unused(last), (0, vec![]));
        assert_eq!(turns.take_unused(last.plus(1)), (1, vec![turn]));
    }

    #[test]
    fn a_refusal_is_heeded_until_something_can_be_had() {
        let mut turns = Turns::new(&window(128));
        let refuse = |turns: &mut Turns, granted: Vec<Turn>, at, now| {
            let refused = Some(Refusal {
                strategy: ojs_limit::Strategy::Rate,
                limit: 128,
                current: 128,
                at: Some(at),
                slot: false,
            });
            let turn = Reserved {
                turns: granted,
                refused,
            };
            turns.answered(Some(turn), 0, now);
        };
        // As many as could start now, up to an eighth of the limit in the time ahead.
        assert_eq!(turns.next(5, T), Next::Ask(5));
        let until = T.plus(1_000_000 - AHEAD / 2);
        refuse(&mut turns, vec![], T.plus(1_000_000), T);
        let before = Timestamp(until.0 - 1);
        assert!(matches!(turns.next(5, before), Next::Refused(_, at) if at == until));
        assert_eq!(turns.room(before).starts, 0);
        assert!(turns.room(until).starts > 0);
        assert_eq!(turns.next(50, until), Next::Ask(8));
        // Not at once in any case.
        refuse(&mut turns, vec![], until, until);
        assert!(matches!(turns.next(1, until), Next::Refused(_, at) if at == until.plus(1_000)));
        let now = until.plus(1_000);
        assert!(matches!(turns.next(1, now), Next::Ask(_)));
        // Where some were granted, what ended them is no news for who comes after they are used.
        let one = Turn { from: now, at: now };
        refuse(&mut turns, vec![one], now.plus(9_000_000), now);
        assert!(matches!(turns.next(1, now), Next::Go(_)));
        assert!(matches!(turns.next(1, now), Next::Ask(_)));
        // A sibling may open what is shut for long.
        refuse(&mut turns, vec![], now.plus(9_000_000), now);
        let until = now.plus(2 * AHEAD);
        let at = now.plus(9_000_000 - AHEAD / 2);
        assert!(matches!(turns.next(1, now), Next::Refused(_, until) if until == at));
        assert!(matches!(turns.next(1, until), Next::Ask(_)));
    }
}
