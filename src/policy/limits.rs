//! The one reader of `concurrency`, `rate` and `throttle`: of the config file, of a job's policy, and of what
//! is set over HTTP. Which numbers are allowed is said in [`super::numbers`].

use std::num::NonZeroU32;

use super::fields::{FieldError, Fields, JsonObject, Strangers};
use super::numbers::{self, MEASURES, WindowWord, Wrong};
use super::words::THROTTLE;
use ojs_json::Kind;
use ojs_limit::{Limits, Measure, Rate, Throttle};

/// The period of a window or of a throttle.
const PERIOD: (&str, &str) = ("period", "period = \"PT1M\"");

/// Reads all three.
///
/// # Errors
/// Something of them is wrong.
pub fn limits<'v, F: Fields<'v>>(from: &mut F) -> Result<Limits, F::Error> {
    let concurrency = concurrency(from);
    let rates = rates(from);
    let throttle = from.inside(&THROTTLE);
    let throttle = throttle.and_then(|inside| inside.map(throttle_in).transpose());
    Ok(Limits {
        concurrency: concurrency?,
        rates: rates?,
        throttle: throttle?,
    })
}

/// Reads `concurrency`.
///
/// # Errors
/// It is no number of slots.
pub fn concurrency<'v, F: Fields<'v>>(from: &mut F) -> Result<Option<u32>, F::Error> {
    let Some(slots) = from.int("concurrency")? else {
        return Ok(None);
    };
    let slots = numbers::concurrency(slots).map_err(|wrong| from.wrong(wrong))?;
    Ok(Some(slots))
}

/// Reads `rate`.
///
/// # Errors
/// A window of it is wrong.
pub fn rates<'v, F: Fields<'v>>(from: &mut F) -> Result<Vec<Rate>, F::Error> {
    let windows = from.windows()?.into_iter();
    let rates: Vec<_> = windows.map(rate_in).collect();
    rates.into_iter().collect()
}

fn rate_in<'v, F: Fields<'v>>(mut table: F) -> Result<Rate, F::Error> {
    let from = &mut table;
    let limit = starts(from);
    let (window, tz) = (from.word("window", &WindowWord::WORDS), from.text("tz"));
    let read = if matches!(window, Ok(Some(WindowWord::Calendar))) {
        let period = required(from, PERIOD, |from| from.period_text("period"));
        numbers::calendar(limit?, &period?, tz?.as_deref())
    } else {
        let period = required(from, PERIOD, |from| from.period("period"));
        let (limit, window, tz, period) = (limit?, window?, tz?, period?);
        numbers::no_zone(tz.as_deref())
            .and_then(|()| numbers::rate(limit, period, window.unwrap_or_default()))
    };
    read.map_err(|wrong| from.wrong(wrong))
}

fn throttle_in<'v, F: Fields<'v>>(mut table: F) -> Result<Throttle, F::Error> {
    let from = &mut table;
    let burst = from.int("burst");
    let burst = burst.and_then(|burst| {
        let burst = numbers::count("burst", burst.unwrap_or(1));
        burst.map_err(|wrong| from.wrong(wrong))
    });
    let measure = from.word("measure", &MEASURES);
    let interval = from.has("interval");
    let spacing = if interval {
        let interval = from.period("interval");
        let beside = ["limit", "period"].map(|name| match from.has(name) {
            true => {
                let message = "stands beside `interval`".to_owned();
                let hint = "write either interval, or limit and period";
                Err(from.wrong(Wrong::with_hint(name, message, hint)))
            }
            false => Ok(()),
        });
        let interval = interval?.unwrap_or_default();
        for clash in beside {
            clash?;
        }
        numbers::interval(interval, burst?)
    } else {
        let limit = starts(from);
        let period = required(from, PERIOD, |from| from.period("period"));
        numbers::throttle(limit?, period?, burst?)
    };
    let spacing = spacing.map_err(|wrong| from.wrong(wrong))?;
    Ok(Throttle {
        measure: measure?.unwrap_or(Measure::Start),
        ..spacing
    })
}

fn starts<'v, F: Fields<'v>>(from: &mut F) -> Result<NonZeroU32, F::Error> {
    let limit = required(from, ("limit", "limit = 100"), |from| from.amount("limit"))?;
    numbers::starts(limit).map_err(|wrong| from.wrong(wrong))
}

/// A field that must be there, with an example of how it is written in the file.
///
/// # Errors
/// It is not there, or wrong.
pub fn required<'v, F: Fields<'v>, T>(
    from: &mut F,
    (name, example): (&'static str, &str),
    read: impl FnOnce(&mut F) -> Result<Option<T>, F::Error>,
) -> Result<T, F::Error> {
    match read(from)? {
        Some(value) => Ok(value),
        None => Err(from.missing(name, example)),
    }
}

/// Reads limits in any of the spellings that JSON has beside those of the file: `limit` and `period` flat,
/// `rate` as a number, and `max_per_second`.
///
/// # Errors
/// The first member that is wrong.
pub fn limits_in_json(from: &mut JsonObject<'_>) -> Result<Limits, FieldError> {
    if from.strangers != Strangers::Pass {
        one_rate(from)?;
    }
    let mut limits = limits(from)?;
    if let Some(most) = from.int("max_per_second")? {
        let spacing = numbers::starts(most)
            .and_then(|most| numbers::throttle(most, 1_000_000, NonZeroU32::MIN))
            .map_err(|wrong| from.error("max_per_second", wrong.message))?;
        // Two spacings of one key would be one state asked twice: the slower one says both.
        let both = limits
            .throttle
            .map_or(spacing, |other| slower(other, spacing));
        limits.throttle = Some(both);
    }
    Ok(limits)
}

/// Refuses an empty list of windows, a `limit` beside `rate`, which says the same, and a period without either.
fn one_rate(from: &mut JsonObject<'_>) -> Result<(), FieldError> {
    // First: what stands beside a wrong one is not what is wrong.
    let windows = from.windows()?.len();
    let rate = from.get("rate").map(|rate| rate.kind());
    if rate.is_some() && windows == 0 {
        return Err(from.error("rate", "is an empty list: leave it out"));
    }
    let flat = from.get("limit").is_some();
    if rate.is_some() && flat {
        return Err(from.error("limit", "says the same as rate: leave one of them out"));
    }
    let has_limit = flat || rate == Some(Kind::Number);
    let mut beside = ["period", "window", "tz"].into_iter();
    match beside.find(|name| !has_limit && from.get(name).is_some()) {
        Some(name) => Err(from.error(name, "needs a limit beside it")),
        None => Ok(()),
    }
}

/// A spacing that passes neither of two: the longer step, the smaller burst, and from start to start
/// unless both are measured otherwise.
pub(super) fn slower(one: Throttle, other: Throttle) -> Throttle {
    let starts_a_period = |t: &Throttle| (u128::from(t.period.get()), u128::from(t.limit.get()));
    let ((p1, l1), (p2, l2)) = (starts_a_period(&one), starts_a_period(&other));
    let step = if p1 * l2 >= p2 * l1 { one } else { other };
    let measure = match one.measure == other.measure {
        true => one.measure,
        false => Measure::Start,
    };
    Throttle {
        burst: one.burst.min(other.burst),
        measure,
        ..step
    }
}

/// Both together: the smaller number of slots, every window, the slower spacing.
pub fn strictest(one: Limits, other: Limits) -> Limits {
    let mut rates = one.rates;
    for rate in other.rates {
        // Starts are counted once for each period and kind of window.
        match rates.iter_mut().find(|known| known.is_like(&rate)) {
            Some(known) => known.limit = known.limit.min(rate.limit),
            None => rates.push(rate),
        }
    }
    Limits {
        concurrency: match (one.concurrency, other.concurrency) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        rates,
        throttle: match (one.throttle, other.throttle) {
            (Some(a), Some(b)) => Some(slower(a, b)),
            (a, b) => a.or(b),
        },
    }
}
