//! Which numbers a limit may have, the same for the config file and for jobs.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroU64};

use jiff::Span;

use crate::duration;
use crate::limit::{Measure, Rate, Throttle, Unit, WindowKind, Zone};

/// The largest `limit`, `burst` and `concurrency`.
pub const MOST: i64 = 1_000_000_000;
/// The shortest period in microseconds.
pub const SHORTEST: u64 = 1_000;
/// The longest period in microseconds: 366 days.
pub const LONGEST: u64 = 366 * 86_400 * 1_000_000;
/// The shortest period of a fixed window in microseconds: within one, the 5 ms at its edge that count
/// on both sides are little.
pub const SHORTEST_FIXED: u64 = 1_000_000;
/// The most windows that one policy, queue or override has: each is asked at every start.
pub const RATES: usize = 8;
/// A day in microseconds.
const DAY: u64 = 86_400_000_000;

/// A number out of range: which member, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// `limit`, `rate`, `period`, `window`, `tz`, `burst`, `interval` or `measure`.
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

/// The words of `window`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Window {
    /// Every interval of the period's length.
    #[default]
    Sliding,
    /// One after the other, at multiples of the period.
    Fixed,
    /// Days, weeks, months or years of a time zone.
    Calendar,
}

impl Window {
    /// Each with its word.
    pub const WORDS: [(&str, Window); 3] = [
        ("sliding", Window::Sliding),
        ("fixed", Window::Fixed),
        ("calendar", Window::Calendar),
    ];

    /// Reads the word; none is a sliding window.
    ///
    /// # Errors
    /// Another word.
    pub fn read(word: Option<&str>) -> Result<Window, Wrong> {
        let Some(word) = word else {
            return Ok(Window::Sliding);
        };
        match Window::WORDS.iter().find(|(known, _)| *known == word) {
            Some((_, window)) => Ok(*window),
            None => wrong(
                "window",
                format!("must be \"sliding\", \"fixed\" or \"calendar\", found {word:?}"),
            ),
        }
    }
}

/// How many windows a list has.
///
/// # Errors
/// More than [`RATES`].
pub fn rates(count: usize) -> Result<(), Wrong> {
    match count {
        0..=RATES => Ok(()),
        _ => wrong(
            "rate",
            format!("has at most {RATES} windows, this one has {count}"),
        ),
    }
}

/// A sliding window of `limit` starts in `period` microseconds.
///
/// # Errors
/// A number is out of range.
pub fn rate(limit: i64, period: u64) -> Result<Rate, Wrong> {
    Ok(Rate {
        limit: starts(limit)?,
        ..enqueue_rate(limit, period)?
    })
}

/// The same of enqueues, which a pause does not stop.
///
/// # Errors
/// As [`rate`].
pub fn enqueue_rate(limit: i64, period: u64) -> Result<Rate, Wrong> {
    Ok(Rate {
        limit: count("limit", limit)?,
        period: checked_period(period)?,
        window: WindowKind::Sliding,
    })
}

/// A window of `limit` starts at multiples of `period` microseconds.
///
/// # Errors
/// A number is out of range, or the period is under [`SHORTEST_FIXED`].
pub fn fixed(limit: i64, period: u64) -> Result<Rate, Wrong> {
    let rate = rate(limit, period)?;
    if period < SHORTEST_FIXED {
        let found = duration::iso(period);
        let message = format!("must be at least 1s for a fixed window, found {found}");
        return wrong("period", message);
    }
    Ok(Rate {
        window: WindowKind::Fixed,
        ..rate
    })
}

/// A calendar's window of `limit` starts: `period` is a day, a week, a month or a year, `tz` the
/// wall's time zone, UTC if none is given.
///
/// # Errors
/// The limit is out of range, the period another, or the time zone unknown.
pub fn calendar(limit: i64, period: &str, tz: Option<&str>) -> Result<Rate, Wrong> {
    let limit = starts(limit)?;
    let Some(unit) = unit(period) else {
        let message = format!(
            "must be \"P1D\", \"P1W\", \"P1M\" or \"P1Y\" for a calendar window, found {period:?}; \
             shorter ones are fixed windows"
        );
        return wrong("period", message);
    };
    let zone =
        Zone::new(tz.unwrap_or("UTC")).or_else(|unknown| wrong("tz", unknown.to_string()))?;
    let micros = NonZeroU64::new(unit.days() * DAY).unwrap_or(NonZeroU64::MIN);
    Ok(Rate {
        limit,
        period: micros,
        window: WindowKind::Calendar(unit, zone),
    })
}

/// A rate's period in ISO 8601, the form of every output: `PT1M`, and `P1M` for a calendar's month.
pub fn period(rate: &Rate) -> Cow<'static, str> {
    match rate.window {
        WindowKind::Calendar(unit, _) => unit.iso().into(),
        WindowKind::Sliding | WindowKind::Fixed => duration::iso(rate.period.get()).into(),
    }
}

/// A `tz` that stands beside another window than a calendar's.
///
/// # Errors
/// There is one.
pub fn no_zone(tz: Option<&str>) -> Result<(), Wrong> {
    match tz {
        None => Ok(()),
        Some(_) => wrong(
            "tz",
            "stands only beside window = \"calendar\"; leave it out",
        ),
    }
}

/// `P1D`, `24h` or `day`, and so on.
fn unit(text: &str) -> Option<Unit> {
    match text.trim() {
        "day" => return Some(Unit::Day),
        "week" => return Some(Unit::Week),
        "month" => return Some(Unit::Month),
        "year" => return Some(Unit::Year),
        _ => {}
    }
    let span: Span = text.trim().parse().ok()?;
    let none = Span::new();
    let units = [
        (none.days(1), Unit::Day),
        (none.hours(24), Unit::Day),
        (none.weeks(1), Unit::Week),
        (none.days(7), Unit::Week),
        (none.months(1), Unit::Month),
        (none.years(1), Unit::Year),
    ];
    let same = units
        .iter()
        .find(|(known, _)| span.fieldwise() == known.fieldwise());
    same.map(|(_, unit)| *unit)
}

/// The words of `throttle.measure`.
pub const MEASURES: [(&str, Measure); 2] = [
    ("start", Measure::Start),
    ("completion", Measure::Completion),
];

/// Reads `throttle.measure`; none is from start to start.
///
/// # Errors
/// Another word.
pub fn measure(word: Option<&str>) -> Result<Measure, Wrong> {
    let Some(word) = word else {
        return Ok(Measure::Start);
    };
    match MEASURES.iter().find(|(known, _)| *known == word) {
        Some((_, measure)) => Ok(*measure),
        None => wrong(
            "measure",
            format!("must be \"start\" or \"completion\", found {word:?}"),
        ),
    }
}

/// Spacing of `limit` starts in `period` microseconds, with `burst` at once.
///
/// # Errors
/// A number is out of range, or starts would be less than a microsecond apart.
pub fn throttle(limit: i64, period: u64, burst: i64) -> Result<Throttle, Wrong> {
    let throttle = Throttle {
        limit: starts(limit)?,
        period: checked_period(period)?,
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
    if !throttle.fits() {
        return wrong(
            "burst",
            "burst times period / limit is more than 73 years; make burst or period smaller",
        );
    }
    Ok(throttle)
}

/// A limit of starts: 1 to [`MOST`].
///
/// # Errors
/// Out of range.
pub fn starts(limit: i64) -> Result<NonZeroU32, Wrong> {
    match limit {
        0 => wrong(
            "limit",
            format!("must be from 1 to {MOST}; to pause, use concurrency = 0"),
        ),
        _ => count("limit", limit),
    }
}

/// A number from 1 to [`MOST`].
///
/// # Errors
/// Out of range.
pub fn count(member: &'static str, number: i64) -> Result<NonZeroU32, Wrong> {
    match u32::try_from(number).ok().and_then(NonZeroU32::new) {
        Some(fits) if number <= MOST => Ok(fits),
        _ => wrong(member, format!("must be from 1 to {MOST}, found {number}")),
    }
}

fn checked_period(period: u64) -> Result<NonZeroU64, Wrong> {
    match NonZeroU64::new(period) {
        Some(micros) if (SHORTEST..=LONGEST).contains(&period) => Ok(micros),
        _ => wrong(
            "period",
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
    fn no_hint_to_pause_starts_where_enqueues_are_limited() {
        let hint = |wrong: Wrong| wrong.message.contains("concurrency = 0");
        assert!(hint(rate(0, 1_000_000).unwrap_err()));
        assert!(hint(throttle(0, 1_000_000, 1).unwrap_err()));
        let wrong = enqueue_rate(0, 1_000_000).unwrap_err();
        assert_eq!(wrong.member, "limit");
        assert!(!hint(wrong));
        assert_eq!(rate(5, 1_000_000), enqueue_rate(5, 1_000_000));
    }

    #[test]
    fn calendar_periods_and_zones() {
        let kind = |period, tz| calendar(5, period, tz).map(|rate| rate.window);
        let oslo = Zone::new("Europe/Oslo").unwrap();
        let (utc, some) = (Zone::new("UTC").unwrap(), Some("europe/oslo"));
        let table = [
            (Unit::Day, ["P1D", "1d", "24h", "PT24H", "day"]),
            (Unit::Week, ["P1W", "1w", "7d", "P7D", "week"]),
            (Unit::Month, ["P1M", "1mo", "month", "1 month", " P1M "]),
            (Unit::Year, ["P1Y", "1y", "year", "1 year", "1yr"]),
        ];
        for (unit, spellings) in table {
            for text in spellings {
                let (is, there) = (kind(text, None), kind(text, some));
                assert_eq!(is, Ok(WindowKind::Calendar(unit, utc.clone())), "{text}");
                assert_eq!(
                    there,
                    Ok(WindowKind::Calendar(unit, oslo.clone())),
                    "{text}"
                );
            }
        }
        for text in ["", "PT1H", "P2D", "P3M", "P1DT1S", "-P1D", "fortnight", "1"] {
            assert_eq!(kind(text, None).unwrap_err().member, "period", "{text}");
        }
        assert_eq!(kind("P1D", Some("Mars/Base")).unwrap_err().member, "tz");
        assert_eq!(calendar(0, "P1D", None).unwrap_err().member, "limit");
        assert_eq!(calendar(MOST + 1, "P1D", None).unwrap_err().member, "limit");
        assert!(calendar(MOST, "P1Y", None).is_ok());
    }

    #[test]
    fn words_of_windows_and_measures() {
        assert_eq!(Window::read(None), Ok(Window::Sliding));
        assert_eq!(Window::read(Some("calendar")), Ok(Window::Calendar));
        assert_eq!(Window::read(Some("Fixed")).unwrap_err().member, "window");
        assert_eq!(measure(Some("completion")), Ok(Measure::Completion));
        assert_eq!(measure(Some("")).unwrap_err().member, "measure");
        assert!(no_zone(None).is_ok());
        assert_eq!(no_zone(Some("UTC")).unwrap_err().member, "tz");
        assert!(fixed(1, SHORTEST_FIXED).is_ok());
        assert_eq!(fixed(1, SHORTEST_FIXED - 1).unwrap_err().member, "period");
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
        assert!(throttle(1, 86_400_000_000, 26_000).is_ok());
        assert_eq!(
            throttle(1, 86_400_000_000, 27_000).unwrap_err().member,
            "burst",
            "what a throttle would be held to is refused"
        );
    }
}
