//! Which numbers a limit may have, wherever it is said.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroU64};

use jiff::Span;

use ojs_duration as duration;
use ojs_limit::{MOST_WINDOWS, Measure, Rate, Throttle, Unit, WindowKind, Zone};

/// The largest `limit`, `burst` and `concurrency`.
pub const LARGEST_NUMBER: i64 = 1_000_000_000;
/// The shortest period in microseconds.
pub const SHORTEST: u64 = 1_000;
/// The longest period in microseconds: 366 days.
pub const LONGEST: u64 = 366 * 86_400 * 1_000_000;
/// The shortest period of a fixed window in microseconds: within one, the 5 ms at its edge that count
/// on both sides are little.
pub const SHORTEST_FIXED: u64 = 1_000_000;
/// The most windows that one policy, queue or override has: each is asked at every start.
pub const RATES: usize = MOST_WINDOWS;
/// A day in microseconds.
const DAY: u64 = 86_400_000_000;

/// A number out of range: which member, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// `concurrency`, `limit`, `rate`, `period`, `tz`, `burst` or `interval`.
    pub member: &'static str,
    /// What would be right.
    pub message: String,
    /// What to do about it, where `message` is the whole of what is wrong.
    pub hint: Option<String>,
}

impl Wrong {
    /// What is wrong, and beside it what to do.
    pub fn with_hint(member: &'static str, message: String, hint: impl Into<String>) -> Wrong {
        Wrong {
            member,
            message,
            hint: Some(hint.into()),
        }
    }
}

fn wrong<T>(member: &'static str, message: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong {
        member,
        message: message.into(),
        hint: None,
    })
}

/// Slots: 0 (pause) to [`LARGEST_NUMBER`].
///
/// # Errors
/// Out of range.
pub fn concurrency(slots: i64) -> Result<u32, Wrong> {
    match u32::try_from(slots) {
        Ok(fits) if slots <= LARGEST_NUMBER => Ok(fits),
        _ => {
            let message = format!("must be from 0 (pause) to {LARGEST_NUMBER}, found {slots}");
            Err(Wrong::with_hint("concurrency", message, ""))
        }
    }
}

/// The words of `window`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WindowWord {
    /// Every interval of the period's length.
    #[default]
    Sliding,
    /// One after the other, at multiples of the period.
    Fixed,
    /// Days, weeks, months or years of a time zone.
    Calendar,
}

impl WindowWord {
    /// Each with its word.
    pub const WORDS: [(&str, WindowWord); 3] = [
        ("sliding", WindowWord::Sliding),
        ("fixed", WindowWord::Fixed),
        ("calendar", WindowWord::Calendar),
    ];
}

/// How many windows a list has.
///
/// # Errors
/// More than [`RATES`].
pub fn rates(count: usize) -> Result<(), Wrong> {
    match count {
        0..=RATES => Ok(()),
        _ => {
            let message = format!("has at most {RATES} windows, this one has {count}");
            Err(Wrong::with_hint("rate", message, ""))
        }
    }
}

/// A window of `limit` starts in `period` microseconds, sliding or fixed. [`calendar`] makes the others.
///
/// # Errors
/// The period is out of range, or under [`SHORTEST_FIXED`] in a fixed window.
pub fn rate(limit: NonZeroU32, period: u64, window: WindowWord) -> Result<Rate, Wrong> {
    let micros = checked_period(period)?;
    if window == WindowWord::Fixed && period < SHORTEST_FIXED {
        let found = duration::iso(period);
        let message = format!("must be at least 1s for a fixed window, found {found}");
        return wrong("period", message);
    }
    Ok(Rate {
        limit,
        period: micros,
        window: match window {
            WindowWord::Fixed => WindowKind::Fixed,
            WindowWord::Sliding | WindowWord::Calendar => WindowKind::Sliding,
        },
    })
}

/// A sliding window of enqueues, which a pause does not stop.
///
/// # Errors
/// A number is out of range.
pub fn enqueue_rate(limit: i64, period: u64) -> Result<Rate, Wrong> {
    rate(count("limit", limit)?, period, WindowWord::Sliding)
}

/// A calendar's window of `limit` starts: `period` is a day, a week, a month or a year, `tz` the
/// wall's time zone, UTC if none is given.
///
/// # Errors
/// The period is another, or the time zone is unknown.
pub fn calendar(limit: NonZeroU32, period: &str, tz: Option<&str>) -> Result<Rate, Wrong> {
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

/// Spacing of `limit` starts in `period` microseconds, with `burst` at once.
///
/// # Errors
/// A number is out of range, or starts would be less than a microsecond apart.
pub fn throttle(limit: NonZeroU32, period: u64, burst: NonZeroU32) -> Result<Throttle, Wrong> {
    spaced(limit, checked_period(period)?, burst, "limit")
}

/// Spacing of one start each `interval` microseconds, with `burst` at once.
///
/// # Errors
/// As [`throttle`].
pub fn interval(interval: u64, burst: NonZeroU32) -> Result<Throttle, Wrong> {
    let period = match NonZeroU64::new(interval) {
        Some(micros) if interval <= LONGEST => micros,
        _ => {
            return wrong(
                "interval",
                format!("must be from PT0.000001S to {}", duration::iso(LONGEST)),
            );
        }
    };
    spaced(NonZeroU32::MIN, period, burst, "interval")
}

fn spaced(
    limit: NonZeroU32,
    period: NonZeroU64,
    burst: NonZeroU32,
    member: &'static str,
) -> Result<Throttle, Wrong> {
    if u64::from(limit.get()) > period.get() {
        return wrong(
            member,
            "starts would be less than a microsecond apart; at most one start a microsecond",
        );
    }
    let throttle = Throttle {
        limit,
        period,
        burst,
        measure: Measure::Start,
    };
    if !throttle.fits() {
        return wrong(
            "burst",
            "burst times period / limit is more than 73 years; make burst or period smaller",
        );
    }
    Ok(throttle)
}

/// A limit of starts: 1 to [`LARGEST_NUMBER`].
///
/// # Errors
/// Out of range.
pub fn starts(limit: i64) -> Result<NonZeroU32, Wrong> {
    match limit {
        0 => wrong(
            "limit",
            format!("must be from 1 to {LARGEST_NUMBER}; to pause, use concurrency = 0"),
        ),
        _ => count("limit", limit),
    }
}

/// A number from 1 to [`LARGEST_NUMBER`].
///
/// # Errors
/// Out of range.
pub fn count(member: &'static str, number: i64) -> Result<NonZeroU32, Wrong> {
    match u32::try_from(number).ok().and_then(NonZeroU32::new) {
        Some(fits) if number <= LARGEST_NUMBER => Ok(fits),
        _ => wrong(
            member,
            format!("must be from 1 to {LARGEST_NUMBER}, found {number}"),
        ),
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

/// Bytes of a size such as `8MiB`, `500kB` or `1024`.
pub fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

/// A size as people write it.
pub fn plain_size(bytes: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units
        .iter()
        .find(|(factor, _)| bytes >= *factor && bytes.is_multiple_of(*factor))
    {
        Some((factor, unit)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    fn n(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    #[test]
    fn ranges() {
        assert!(enqueue_rate(1, SHORTEST).is_ok() && enqueue_rate(LARGEST_NUMBER, LONGEST).is_ok());
        for limit in [0, -1, LARGEST_NUMBER + 1] {
            assert_eq!(starts(limit).unwrap_err().member, "limit");
            assert_eq!(enqueue_rate(limit, SHORTEST).unwrap_err().member, "limit");
        }
        for period in [SHORTEST - 1, LONGEST + 1] {
            assert_eq!(enqueue_rate(1, period).unwrap_err().member, "period");
            assert_eq!(throttle(ONE, period, ONE).unwrap_err().member, "period");
        }
        assert_eq!(concurrency(0), Ok(0));
        assert!(concurrency(-1).is_err() && concurrency(LARGEST_NUMBER + 1).is_err());
    }

    #[test]
    fn no_hint_to_pause_starts_where_enqueues_are_limited() {
        let hint = |wrong: Wrong| wrong.message.contains("concurrency = 0");
        assert!(hint(starts(0).unwrap_err()));
        let wrong = enqueue_rate(0, 1_000_000).unwrap_err();
        assert_eq!(wrong.member, "limit");
        assert!(!hint(wrong));
    }

    #[test]
    fn calendar_periods_and_zones() {
        let kind = |period, tz| calendar(ONE, period, tz).map(|rate| rate.window);
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
    }

    #[test]
    fn windows_that_are_not_a_calendar_s() {
        assert!(no_zone(None).is_ok());
        assert_eq!(no_zone(Some("UTC")).unwrap_err().member, "tz");
        assert!(rate(ONE, SHORTEST_FIXED, WindowWord::Fixed).is_ok());
        let short = rate(ONE, SHORTEST_FIXED - 1, WindowWord::Fixed);
        assert_eq!(short.unwrap_err().member, "period");
    }

    #[test]
    fn spacing_can_be_counted() {
        let wrong = |limit, period, burst| {
            let read = throttle(n(limit), period, n(burst));
            read.err().map(|wrong| wrong.member)
        };
        assert_eq!(wrong(1_000_000, 1_000_000, 1), None);
        assert_eq!(wrong(1_000_001, 1_000_000, 1), Some("limit"));
        // An interval may be shorter than the shortest period.
        assert!(interval(100, ONE).is_ok());
        // governor multiplies burst and spacing in 64 bits and lets everything in when that wraps.
        assert_eq!(wrong(1, DAY, 300_000), Some("burst"));
        assert_eq!(wrong(1, DAY, 26_000), None);
        // What a throttle would be held to is refused.
        assert_eq!(wrong(1, DAY, 27_000), Some("burst"));
    }

    #[test]
    fn sizes() {
        let table = [
            ("8MiB", Some(8 << 20)),
            ("64 KiB", Some(64 << 10)),
            ("1kB", Some(1_000)),
            ("7", Some(7)),
            ("MiB", None),
            ("1.5MiB", None),
            ("8 megs", None),
        ];
        for (text, bytes) in table {
            assert_eq!(size(text), bytes, "{text}");
        }
        assert_eq!(
            (plain_size(8 << 20), plain_size(1_000)),
            ("8MiB".into(), "1000B".into())
        );
    }
}
