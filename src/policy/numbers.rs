//! Which numbers a limit may have, the same for the config file and for jobs.

use std::num::{NonZeroU32, NonZeroU64};

use crate::duration;
use crate::limit::{Measure, Rate, Throttle, WindowKind};

/// The largest `limit`, `burst` and `concurrency`.
pub const MOST: i64 = 1_000_000_000;
/// The shortest period in microseconds.
pub const SHORTEST: u64 = 1_000;
/// The longest period in microseconds: 366 days.
pub const LONGEST: u64 = 366 * 86_400 * 1_000_000;
/// What `burst` times the spacing must stay below, in nanoseconds: beyond it the spacing
/// arithmetic could wrap.
const REACH: u128 = 1 << 62;

/// A number out of range: which member, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// `limit`, `period`, `burst` or `interval`.
    pub member: &'static str,
    /// What would be right.
    pub message: String,
}

fn wrong<T>(member: &'static str, message: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong {
        member,
        message: message.into(),
    })
}

/// Slots: 0 (pause) to [`MOST`].
///
/// # Errors
/// Out of range; says what would be right.
pub fn concurrency(slots: i64) -> Result<u32, String> {
    match u32::try_from(slots) {
        Ok(fits) if slots <= MOST => Ok(fits),
        _ => Err(format!("must be from 0 (pause) to {MOST}, found {slots}")),
    }
}

/// A window of `limit` starts in `period` microseconds.
///
/// # Errors
/// A number is out of range.
pub fn rate(limit: i64, period: u64) -> Result<Rate, Wrong> {
    Ok(Rate {
        limit: count("limit", limit)?,
        period: checked_period("period", period)?,
        window: WindowKind::Sliding,
    })
}

/// Spacing of `limit` starts in `period` microseconds, with `burst` at once.
///
/// # Errors
/// A number is out of range, or starts would be less than a microsecond apart.
pub fn throttle(limit: i64, period: u64, burst: i64) -> Result<Throttle, Wrong> {
    let throttle = Throttle {
        limit: count("limit", limit)?,
        period: checked_period("period", period)?,
        burst: count("burst", burst)?,
        measure: Measure::Start,
    };
    spaced(throttle, "limit")
}

/// Spacing of one start each `interval` microseconds, with `burst` at once.
///
/// # Errors
/// As [`throttle`].
pub fn interval(interval: u64, burst: i64) -> Result<Throttle, Wrong> {
    let period = match NonZeroU64::new(interval) {
        Some(micros) if interval <= LONGEST => micros,
        _ => {
            return wrong(
                "interval",
                format!("must be from PT0.000001S to {}", duration::iso(LONGEST)),
            );
        }
    };
    spaced(
        Throttle {
            limit: NonZeroU32::MIN,
            period,
            burst: count("burst", burst)?,
            measure: Measure::Start,
        },
        "interval",
    )
}

fn spaced(throttle: Throttle, member: &'static str) -> Result<Throttle, Wrong> {
    let (limit, period) = (u64::from(throttle.limit.get()), throttle.period.get());
    if limit > period {
        return wrong(
            member,
            "starts would be less than a microsecond apart; at most one start a microsecond",
        );
    }
    let reach = u128::from(period) * 1_000 * u128::from(throttle.burst.get()) / u128::from(limit);
    if reach >= REACH {
        return wrong(
            "burst",
            "burst times period / limit is more than 146 years; make burst or period smaller",
        );
    }
    Ok(throttle)
}

fn count(member: &'static str, number: i64) -> Result<NonZeroU32, Wrong> {
    if number == 0 && member == "limit" {
        return wrong(
            member,
            format!("must be from 1 to {MOST}; to pause, use concurrency = 0"),
        );
    }
    match u32::try_from(number).ok().and_then(NonZeroU32::new) {
        Some(fits) if number <= MOST => Ok(fits),
        _ => wrong(member, format!("must be from 1 to {MOST}, found {number}")),
    }
}

fn checked_period(member: &'static str, period: u64) -> Result<NonZeroU64, Wrong> {
    match NonZeroU64::new(period) {
        Some(micros) if (SHORTEST..=LONGEST).contains(&period) => Ok(micros),
        _ => wrong(
            member,
            format!(
                "must be from 1ms to 366 days, found {}",
                duration::iso(period)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert!(rate(1, SHORTEST).is_ok() && rate(MOST, LONGEST).is_ok());
        assert_eq!(rate(0, 1_000_000).unwrap_err().member, "limit");
        assert_eq!(rate(-1, 1_000_000).unwrap_err().member, "limit");
        assert_eq!(rate(MOST + 1, 1_000_000).unwrap_err().member, "limit");
        assert_eq!(rate(1, SHORTEST - 1).unwrap_err().member, "period");
        assert_eq!(rate(1, LONGEST + 1).unwrap_err().member, "period");
        assert_eq!(concurrency(0), Ok(0));
        assert!(concurrency(-1).is_err() && concurrency(MOST + 1).is_err());
    }

    #[test]
    fn spacing_can_be_counted() {
        assert!(throttle(1_000_000, 1_000_000, 1).is_ok());
        assert_eq!(
            throttle(1_000_001, 1_000_000, 1).unwrap_err().member,
            "limit"
        );
        assert!(
            interval(100, 1).is_ok(),
            "an interval may be shorter than the shortest period"
        );
        // governor multiplies burst and spacing in 64 bits and lets everything in when that wraps.
        assert_eq!(
            throttle(1, 86_400_000_000, 300_000).unwrap_err().member,
            "burst"
        );
        assert!(throttle(1, 86_400_000_000, 50_000).is_ok());
    }
}
