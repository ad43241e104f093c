//! What answers while the store is lost: this sidecar's part of everything, from memory.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use parking_lot::Mutex;

use super::mode::{Declared, LostMode, OnStoreError};
use crate::memory::MemoryStore;
use crate::{Change, Claimed, Clock, Ledger, LedgerExt, Room, Row, StoreError, Taken, Verdict};
use ojs_limit::{
    Key, Limited, Limits, OnLimit, Rate, Refusal, Space, Strategy, Throttle, Timestamp, WindowKind,
    each_paid_key, is_priced,
};

/// When a job is asked for again of which a limit is closed, in microseconds.
const AGAIN: u64 = 500_000;

/// What answers while the store is lost.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) local: MemoryStore,
    /// What that goes by.
    pub(super) clock: Clock,
    /// How many sidecars share the limits.
    pub(super) sidecars: u32,
    /// How many slots of each key we had.
    slots: HashMap<(Space, Key), u32>,
    /// Whether no other sidecar was there: our part is the whole.
    is_alone: bool,
    mode: OnStoreError,
    /// What single policies declare; `None`: nobody is asked, all is closed.
    declared: Option<Arc<Mutex<Declared>>>,
}

impl Lost {
    /// Begins with the rows that are out here, the slots that these have, the keys that are shut through us, and what was
    /// counted `before`. `least` siblings share the limits, even if fewer are heard.
    pub(super) fn new<'r>(
        store: &dyn Ledger,
        least: usize,
        before: Option<&MemoryStore>,
        own: impl Iterator<Item = &'r Row>,
        shuts: Vec<Change>,
        mode: OnStoreError,
        declared: Option<Arc<Mutex<Declared>>>,
    ) -> Lost {
        let mut slots: HashMap<(Space, Key), u32> = HashMap::new();
        let clock = Clock::new(store.now().0);
        let local = match before {
            Some(before) => before.emptied(clock.clone()),
            None => MemoryStore::on(clock.clone()),
        };
        for row in own.filter(|row| row.is_out()) {
            for (_, limited) in each_paid_key(&row.claimed.limited) {
                let had = slots.entry((limited.space, limited.key.clone()));
                let had = had.or_default();
                *had = had.saturating_add(limited.cost.pays.get());
            }
            let claimed = row.claimed.clone();
            let adopt = row.due().map(|until| Change::Adopt { claimed, until });
            // The memory store answers at once and does not fail.
            drop(local.set_all(adopt.into_iter().collect()));
        }
        drop(local.set_all(shuts));
        let siblings = store.siblings().max(least);
        Lost {
            local,
            clock,
            sidecars: u32::try_from(siblings).unwrap_or(u32::MAX - 1) + 1,
            slots,
            is_alone: store.facts().was_alone,
            mode,
            declared,
        }
    }

    /// Says that the store is lost, and what that means here. `left_out`: so many losses before it were not logged.
    pub(super) fn tell(&self, error: &StoreError, left_out: u32) {
        let Some(declared) = &self.declared else {
            tracing::error!(
                id = %"store_never_answered",
                %error,
                "the store has not answered since the start: nothing that is limited starts before it does, \
                 whatever on_store_error says"
            );
            return;
        };
        let other_modes = {
            let declared = declared.lock();
            let others = declared.values().filter(|mode| **mode != self.mode);
            others.count()
        };
        let effect = match self.mode {
            OnStoreError::Share if self.is_alone => {
                "no other sidecar was there, so this one goes on with all of each limit"
            }
            OnStoreError::Share => {
                "this sidecar goes on with its part of each limit, and of slots with those that it has now"
            }
            OnStoreError::Closed => "nothing that is limited starts until it is back",
            OnStoreError::Open => "everything starts, as if there were no limits",
        };
        tracing::error!(
            id = %"store_lost",
            %error,
            on_store_error = self.mode.as_str(),
            policies_that_say_otherwise = other_modes,
            sidecars = self.sidecars,
            slots = self.slots.values().sum::<u32>(),
            not_logged_before = (left_out > 0).then_some(left_out),
            "the store is lost: {effect}"
        );
    }

    /// What is kept for others too cannot be changed.
    pub(super) fn keeps_nothing<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Unavailable(
            "it is lost, and nothing can be changed in it until it is back".to_owned(),
        ))
    }

    /// Nobody is asked.
    pub(super) fn closed<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Unavailable(
            "nothing starts while it is lost".to_owned(),
        ))
    }

    /// What happens under a limit, for people.
    pub(super) fn what_happens(&self, limited: &Limited) -> LostMode {
        match self.declared {
            None => LostMode::NeverThere,
            Some(_) => LostMode::As(self.mode_of(limited)),
        }
    }

    /// This sidecar's part of a limit, and of how many parts.
    pub(super) fn part_of(&self, limited: &Limited) -> (Limits, u32) {
        let part = self.limits(std::slice::from_ref(limited)).pop();
        (
            part.map(|one| one.limits).unwrap_or_default(),
            self.sidecars,
        )
    }

    /// What happens under the limits of a policy.
    fn mode_of(&self, limited: &Limited) -> OnStoreError {
        let Some(declared) = &self.declared else {
            return self.mode;
        };
        let declared = declared.lock();
        declared.get(&limited.policy).copied().unwrap_or(self.mode)
    }

    /// Which of a job's limits lets nothing start.
    fn closing(&self, limited: &[Limited]) -> Option<usize> {
        let closed = |one: &Limited| self.mode_of(one) == OnStoreError::Closed;
        limited.iter().position(closed)
    }

    /// Which of a job's limits has a part that the job's cost does not fit in, though it fits in the whole.
    fn beyond(&self, limited: &[Limited]) -> Option<usize> {
        if !is_priced(limited) {
            return None;
        }
        let parts = self.limits(limited);
        let mut each = limited.iter().zip(&parts);
        each.position(|(whole, part)| {
            let (cost, whole, part) = (&whole.cost, &whole.limits, &part.limits);
            let slots = whole.concurrency.zip(part.concurrency);
            let rates = whole.rates.iter().zip(&part.rates);
            let rates = rates.map(|(whole, part)| (whole.limit.get(), part.limit.get()));
            let spacing = whole.throttle.zip(part.throttle);
            let spacing = spacing.map(|(whole, part)| (whole.burst.get(), part.burst.get()));
            let mut all = rates.chain(slots).chain(spacing);
            all.any(|(whole, part)| cost.asks(whole) > part)
        })
    }

    pub(super) async fn take(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let later = self.clock.now().plus(AGAIN);
        let stays = |ask: &&Claimed| {
            let which = self.closing(&ask.limited);
            let which = which.or_else(|| self.beyond(&ask.limited))?;
            Some(refused(which, later))
        };
        let stay: Vec<Option<Verdict>> = asks.iter().map(stays).collect();
        let is_closed = |ask: &&Claimed| self.closing(&ask.limited).is_some();
        if asks.iter().all(is_closed) {
            return self.closed();
        }
        let open: Vec<Claimed> = (asks.iter().zip(&stay))
            .filter(|(_, stay)| stay.is_none())
            .map(|(ask, _)| {
                let mut open = Claimed::clone(ask);
                open.limited = self.limits(&ask.limited).into();
                open
            })
            .collect();
        let open: Vec<&Claimed> = open.iter().collect();
        let mut taken = self.local.take(&open, want).await?;
        let closed = asks.iter().zip(&stay).filter(|(_, stay)| stay.is_some());
        let closed: Vec<&Claimed> = closed.map(|(ask, _)| *ask).collect();
        let ended = self.local.take(&closed, 0).await?.ended;
        taken.ended.extend(ended);
        let mut told = taken.verdicts.into_iter();
        // There is one for each that was asked.
        let mut asked = || told.next().unwrap_or(Verdict::Unasked);
        let each = stay.into_iter().map(|stay| stay.unwrap_or_else(&mut asked));
        let verdicts = each.collect();
        Ok(Taken { verdicts, ..taken })
    }

    pub(super) async fn room(&self, limited: &[Limited]) -> Result<Room, StoreError> {
        match self.closing(limited) {
            Some(_) => self.closed(),
            None => {
                let local: &dyn Ledger = &self.local;
                local.room(&self.limits(limited)).await
            }
        }
    }

    /// Our part of the limits.
    fn limits(&self, limited: &[Limited]) -> Vec<Limited> {
        let part = |one: &Limited| match self.mode_of(one) {
            OnStoreError::Open => Limits::default(),
            _ if self.is_alone => one.limits.clone(),
            _ => {
                let key = (one.space, one.key.clone());
                let had = self.slots.get(&key).copied().unwrap_or(0);
                part(&one.limits, self.sidecars, had)
            }
        };
        let parts = limited.iter().map(|one| {
            let limits = part(one);
            let on_limit = match limits == one.limits {
                true => one.on_limit,
                // The whole limit may have room: what the part has no room for is not lost for that.
                false => OnLimit::Wait,
            };
            Limited {
                limits,
                on_limit,
                ..one.clone()
            }
        });
        parts.collect()
    }
}

/// A limit of this job is closed; others may start meanwhile.
fn refused(which: usize, later: Timestamp) -> Verdict {
    Verdict::Refused {
        which,
        why: Refusal {
            strategy: Strategy::Shut,
            limit: 0,
            current: 0,
            at: Some(later),
            slot: false,
        },
        at: Some(later),
        action: OnLimit::Wait,
    }
}

/// One sidecar's part of limits that `sidecars` share, of which it had `slots`.
fn part(limits: &Limits, sidecars: u32, slots: u32) -> Limits {
    Limits {
        concurrency: limits.concurrency.map(|most| most.min(slots)),
        rates: limits
            .rates
            .iter()
            .map(|rate| match divided(rate.limit, rate.period, sidecars) {
                (limit, period) if period == rate.period => Rate {
                    limit,
                    ..rate.clone()
                },
                (limit, period) => Rate {
                    limit,
                    period,
                    window: WindowKind::Sliding,
                },
            })
            .collect(),
        throttle: limits.throttle.map(|throttle| {
            let (limit, period) = divided(throttle.limit, throttle.period, sidecars);
            let burst = NonZeroU32::new(throttle.burst.get() / sidecars);
            Throttle {
                limit,
                period,
                burst: burst.unwrap_or(NonZeroU32::MIN),
                ..throttle
            }
        }),
    }
}

/// A part of `limit` in `period`, rounded down; where that is less than one, one in a longer period.
fn divided(limit: NonZeroU32, period: NonZeroU64, sidecars: u32) -> (NonZeroU32, NonZeroU64) {
    match NonZeroU32::new(limit.get() / sidecars.max(1)) {
        // What only counts has no parts.
        _ if limit == NonZeroU32::MAX => (limit, period),
        Some(part) => (part, period),
        None => {
            let turns = u64::from(sidecars.div_ceil(limit.get()));
            let longer = period.get().saturating_mul(turns);
            (NonZeroU32::MIN, NonZeroU64::new(longer).unwrap_or(period))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_down_and_below_one_take_turns() {
        let limits = |limit, period| {
            let (limit, period) = divided(
                NonZeroU32::new(limit).unwrap(),
                NonZeroU64::new(period).unwrap(),
                8,
            );
            (limit.get(), period.get())
        };
        assert_eq!(limits(100, 1_000), (12, 1_000));
        assert_eq!(limits(8, 1_000), (1, 1_000));
        assert_eq!(limits(3, 1_000), (1, 3_000));
        assert_eq!(limits(1, 1_000), (1, 8_000));
    }

    #[test]
    fn a_part_in_a_longer_period_has_no_edges() {
        let part_of = |limit| {
            let limits = Limits {
                rates: vec![Rate {
                    limit: NonZeroU32::new(limit).unwrap(),
                    period: NonZeroU64::new(1_000).unwrap(),
                    window: WindowKind::Fixed,
                }],
                ..Limits::default()
            };
            let rate = part(&limits, 8, 0).rates.remove(0);
            (rate.limit.get(), rate.period.get(), rate.window)
        };
        assert_eq!(part_of(16), (2, 1_000, WindowKind::Fixed));
        assert_eq!(part_of(3), (1, 3_000, WindowKind::Sliding));
    }
}
