//! Starts of a key that are granted ahead of their time, so that one question serves many.

use super::{EARLY, KeyState, Limits, Refusal, Strategy, Timestamp};

/// A start that was granted ahead. It is counted already; one that is not used is given back
/// ([`KeyState::release`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Turn {
    /// It may leave from then on, and not sooner.
    pub from: Timestamp,
    /// It counts then, and leaves at most [`EARLY`] later.
    pub at: Timestamp,
}

impl Turn {
    /// The last moment at which it may leave.
    pub fn last(&self) -> Timestamp {
        self.at.plus(EARLY)
    }
}

/// What was granted, and why no more than that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// In the order of their times.
    pub turns: Vec<Turn>,
    /// The refusal that ended it; `None`: as many as were wanted.
    pub refused: Option<Refusal>,
}

impl KeyState {
    /// Grants up to `want` starts, each as soon as the limits allow, as far as that is not after `until`:
    /// what [`KeyState::ask`] and [`KeyState::take`] would do at those times, if nothing else started. A
    /// start that is granted ahead counts from now on, so whoever asks later comes after it.
    ///
    /// Windows must be sliding ones: those with edges know only the window of now. No slots are taken, so
    /// a limit on them refuses what is over it and counts nothing. A shut key grants what it would grant
    /// now.
    pub fn reserve(
        &mut self,
        limits: &Limits,
        want: usize,
        until: Timestamp,
        now: Timestamp,
    ) -> Reserved {
        let mut reserved = Reserved::default();
        let is_shut = self.is_shut(now).is_some();
        let mut from = now;
        while reserved.turns.len() < want {
            match self.ask(limits, from) {
                Ok(at) => {
                    self.take(std::iter::once(limits), at, now);
                    self.end();
                    reserved.turns.push(Turn { from, at });
                }
                Err(refusal) => {
                    let next = refusal.at.map(|at| Timestamp(at.0.saturating_sub(EARLY)));
                    let soon = next.filter(|next| *next > from && *next <= until);
                    let waits = refusal.slot || refusal.strategy == Strategy::Shut || is_shut;
                    match soon.filter(|_| !waits) {
                        Some(next) => from = next,
                        None => {
                            reserved.refused = Some(refusal);
                            break;
                        }
                    }
                }
            }
        }
        reserved
    }

    /// Gives starts back that were granted ahead with these limits and not used: windows do not count them
    /// any more. Spacing is not made up for, for its time has passed.
    pub fn release(&mut self, limits: &Limits, unused: &[Timestamp]) {
        for rate in &limits.rates {
            for at in unused {
                self.uncount(rate, *at);
            }
        }
    }
}
