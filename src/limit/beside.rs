//! What a start counts in beside its own limits: the windows and the spacing that other jobs of its key name.

use std::borrow::Borrow;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::limited::{Limited, each_job_key};
use super::limits::{Limits, Measure, Rate, Throttle};
use super::windows::MOST;

/// The most windows of a key that are remembered here.
const MOST_BESIDE: usize = MOST / 2;

impl Rate {
    /// This window as one that counts a start and refuses none.
    fn counted_alone(&self) -> Rate {
        Rate {
            limit: NonZeroU32::MAX,
            ..self.clone()
        }
    }

    /// Whether it limits something: no number that people set is so large as that of one which counts alone.
    pub(super) fn has_limit(&self) -> bool {
        self.limit != NonZeroU32::MAX
    }
}

impl Throttle {
    /// A spacing that a start moves and hardly fills, and that refuses none: the next start is spaced from this one.
    const COUNTED_ALONE: Throttle = Throttle {
        limit: NonZeroU32::MIN.saturating_add(999_999),
        period: NonZeroU64::MIN.saturating_add(999_999),
        burst: NonZeroU32::MAX,
        measure: Measure::Start,
    };
}

impl Limits {
    /// These without what only counts.
    #[must_use]
    pub fn without_counted(mut self) -> Limits {
        self.rates.retain(Rate::has_limit);
        self.throttle = self.throttle.filter(|of| *of != Throttle::COUNTED_ALONE);
        self
    }
}

/// The windows of one key that its jobs name, and whether one of them names a spacing: all jobs of a key share its
/// counters (rate-limiting text, section 6.2), also those that do not name them.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    rates: Vec<Rate>,
    is_spaced: bool,
}

impl Beside {
    /// Whether starts of two jobs, each with these limits of one key, count in different windows.
    pub fn differ<'a>(
        one: impl Iterator<Item = &'a Limits> + Clone,
        other: impl Iterator<Item = &'a Limits> + Clone,
    ) -> bool {
        // Nearly all jobs of a key name the same.
        if one.clone().eq(other.clone()) {
            return false;
        }
        let mut both = Beside::default();
        both.see(one.clone());
        both.see(other.clone());
        both.of(one).is_some() || both.of(other).is_some()
    }

    /// What the limits of one job name of the key, where others stand in place of them.
    pub fn written<'a>(limits: impl Iterator<Item = &'a Limits>) -> Beside {
        let mut written = Beside::default();
        written.remember(limits, MOST);
        written
    }

    /// A job names the key with these.
    pub fn see<'a>(&mut self, limits: impl Iterator<Item = &'a Limits>) {
        self.remember(limits, MOST_BESIDE);
    }

    fn remember<'a>(&mut self, limits: impl Iterator<Item = &'a Limits>, most: usize) {
        for limits in limits {
            self.is_spaced |= limits.throttle.is_some();
            for rate in &limits.rates {
                if self.rates.len() < most && !self.rates.iter().any(|of| of.is_like(rate)) {
                    self.rates.push(rate.counted_alone());
                }
            }
        }
    }

    /// What a start with these own limits of the key counts in besides; `None`: nothing. Both together have no more windows
    /// than a key has, or the start would wait for a place.
    pub fn of<'a>(&self, own: impl Iterator<Item = &'a Limits> + Clone) -> Option<Limits> {
        let rates = own.clone().flat_map(|own| &own.rates);
        let left = MOST.saturating_sub(rates.clone().count());
        let missing = |rate: &&Rate| !rates.clone().any(|own| own.is_like(rate));
        let is_spaced = own.clone().any(|own| own.throttle.is_some());
        let limits = Limits {
            concurrency: None,
            rates: self
                .rates
                .iter()
                .filter(missing)
                .take(left)
                .cloned()
                .collect(),
            throttle: (self.is_spaced && !is_spaced).then_some(Throttle::COUNTED_ALONE),
        };
        limits.counts_time().then_some(limits)
    }
}

/// These limits with what a start of each job key counts in besides, by its first limit; `None`: nothing.
pub fn counted_beside<B: Borrow<Beside>>(
    limited: &[Limited],
    beside: impl Fn(&Limited) -> Option<B>,
) -> Option<Arc<[Limited]>> {
    let mut all = None;
    for (nth, one) in each_job_key(limited) {
        let own = limited.iter().filter(|other| other.shares_key(one));
        let own = own.map(|own| &own.limits);
        let Some(missing) = beside(one).and_then(|of| of.borrow().of(own)) else {
            continue;
        };
        let all = all.get_or_insert_with(|| limited.to_vec());
        if let Some(one) = all.get_mut(nth) {
            one.limits.rates.extend(missing.rates);
            one.limits.throttle = one.limits.throttle.or(missing.throttle);
        }
    }
    all.map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(seconds: std::ops::Range<u64>) -> Limits {
        let rates = seconds.map(|period| Rate {
            limit: NonZeroU32::MIN,
            period: NonZeroU64::new(period).unwrap(),
            window: Default::default(),
        });
        Limits {
            rates: rates.collect(),
            ..Limits::default()
        }
    }

    #[test]
    fn windows_of_others_leave_places_for_a_start_s_own() {
        let mut beside = Beside::default();
        beside.see([windows(1..7)].iter());
        for (own, counted) in [(0, 4), (3, 4), (6, 2), (8, 0)] {
            let own = windows(100..100 + own);
            let others = beside.of(std::iter::once(&own)).unwrap_or_default();
            assert_eq!(others.rates.len(), counted, "{own:?}");
            assert_eq!(others.without_counted(), Limits::default());
        }
        let like = windows(1..3);
        assert_eq!(beside.of(std::iter::once(&like)).unwrap().rates.len(), 2);
    }
}
