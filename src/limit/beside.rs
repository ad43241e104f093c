//! What a start counts in beside its own limits: the windows and the spacing that other jobs of its key name.

use std::num::{NonZeroU32, NonZeroU64};

use super::limits::{Limits, Measure, Rate, Throttle};
use super::windows::MOST;

/// The most windows of other jobs in which a start counts. As many again are left for its own.
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
    fn has_limit(&self) -> bool {
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

    /// A job names the key with these.
    pub fn see<'a>(&mut self, limits: impl Iterator<Item = &'a Limits>) {
        for limits in limits {
            self.is_spaced |= limits.throttle.is_some();
            for rate in &limits.rates {
                if self.rates.len() < MOST_BESIDE && !self.rates.iter().any(|of| of.is_like(rate)) {
                    self.rates.push(rate.counted_alone());
                }
            }
        }
    }

    /// In what a start counts besides, whose own limits of the key are these; `None`: in nothing.
    pub fn of<'a>(&self, own: impl Iterator<Item = &'a Limits> + Clone) -> Option<Limits> {
        let has = |rate: &Rate| {
            own.clone()
                .flat_map(|own| &own.rates)
                .any(|of| of.is_like(rate))
        };
        let is_spaced = own.clone().any(|own| own.throttle.is_some());
        let limits = Limits {
            concurrency: None,
            rates: self
                .rates
                .iter()
                .filter(|rate| !has(rate))
                .cloned()
                .collect(),
            throttle: (self.is_spaced && !is_spaced).then_some(Throttle::COUNTED_ALONE),
        };
        limits.counts_time().then_some(limits)
    }
}
