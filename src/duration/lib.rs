//! Durations as people and OJS write them, in microseconds: ISO 8601 (`PT1M`, `PT0.1S`, `P1D`) or
//! with units (`100ms`, `1h30m`, `250us`). Read and printed by `jiff`.

use std::time::Duration;

use jiff::fmt::friendly::SpanPrinter;
use jiff::fmt::temporal::Pieces;
use jiff::{SignedDuration, Span, SpanRelativeTo};

/// A time in microseconds since the Unix epoch as JSON bodies have it: UTC, to the millisecond.
pub fn rfc3339(unix_micros: u64) -> String {
    written(unix_micros, 3)
}

/// The time with its microseconds.
pub fn exactly(unix_micros: u64) -> String {
    written(unix_micros, 6)
}

fn written(unix_micros: u64, digits: usize) -> String {
    let micros = i64::try_from(unix_micros).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(at) => format!("{at:.digits$}"),
        Err(_) => "9999-12-31T23:59:59.999Z".to_owned(),
    }
}

/// The microseconds since the Unix epoch of an RFC 3339 time, which has a zone; 0 before 1970.
/// The end of the year 9999, which many write for "never", is beyond what `jiff` can hold, and
/// read as the last moment that it can.
pub fn moment(text: &str) -> Option<u64> {
    let text = text.trim();
    let at = text.parse().ok().or_else(|| {
        let pieces = Pieces::parse(text).ok()?;
        let never = pieces.date().year() == 9999 && pieces.offset().is_some();
        (never && pieces.time().is_some()).then_some(jiff::Timestamp::MAX)
    })?;
    Some(u64::try_from(at.as_microsecond()).unwrap_or(0))
}

/// A duration for people to read: `1m`, `1h 30m`, `100ms`.
pub fn short(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    SpanPrinter::new().duration_to_string(&SignedDuration::from_micros(micros))
}

/// Why a text is no duration; says what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadDuration {
    /// Neither of the two forms.
    #[error("is not a duration; write one such as \"PT1M\", \"500ms\" or \"1h30m\"")]
    Form,
    /// A number without a unit.
    #[error("is a number without a unit; write \"{0}s\" or \"{0}ms\"")]
    Unit(String),
    /// Years and months have no fixed length.
    #[error(
        "has years or months, whose length differs; write it in weeks, days or hours (only a rate with window = \"calendar\" may have them)"
    )]
    Calendar,
    /// Below zero.
    #[error("is negative; a duration is zero or more")]
    Negative,
    /// Not a whole number of microseconds.
    #[error("is finer than a microsecond")]
    Fine,
    /// More than can be counted.
    #[error("is too long")]
    Long,
}

/// Reads a duration and gives its microseconds. A day is 24 hours.
///
/// # Errors
/// See [`BadDuration`].
pub fn parse(text: &str) -> Result<u64, BadDuration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadDuration::Unit(text.into()));
    }
    let span: Span = text.parse().map_err(|_| BadDuration::Form)?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(BadDuration::Calendar);
    }
    if span.is_negative() {
        return Err(BadDuration::Negative);
    }
    let whole = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| BadDuration::Long)?;
    if whole.subsec_nanos() % 1_000 != 0 {
        return Err(BadDuration::Fine);
    }
    u64::try_from(whole.as_micros()).map_err(|_| BadDuration::Long)
}

/// Reads a limit's period: a duration, or one of the words `second`, `minute`, `hour`, `day` that
/// some producers send.
///
/// # Errors
/// As [`parse`].
pub fn parse_period(text: &str) -> Result<u64, BadDuration> {
    match text {
        "second" => Ok(1_000_000),
        "minute" => Ok(60_000_000),
        "hour" => Ok(3_600_000_000),
        "day" => Ok(86_400_000_000),
        other => parse(other),
    }
}

/// `micros` in ISO 8601, the form of every output: `PT1M`, `PT0.1S`, `PT24H`.
pub fn iso(micros: u64) -> String {
    SignedDuration::from_micros(i64::try_from(micros).unwrap_or(i64::MAX)).to_string()
}

/// `duration` as people write it, for messages and help: `500ms`, `1m30s`.
pub fn plain(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let parts = [
        (micros / 3_600_000_000, "h"),
        (micros / 60_000_000 % 60, "m"),
        (micros / 1_000_000 % 60, "s"),
        (micros / 1_000 % 1_000, "ms"),
        (micros % 1_000, "us"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0);
    let text: String = parts.map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_units() {
        for (micros, text) in [
            (60_000_000, "1m"),
            (5_400_000_000, "1h 30m"),
            (100_000, "100ms"),
            (1_000_000, "1s"),
            (250, "250us"),
        ] {
            assert_eq!(short(micros).replace('µ', "u"), text);
        }
    }

    #[test]
    fn moments_have_a_zone_and_never_is_one() {
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Some(1_500_000));
        assert_eq!(moment(" 1970-01-01T01:00:00+01:00 "), Some(0));
        assert_eq!(moment("1969-12-31T23:59:59Z"), Some(0));
        let never = moment("9999-12-31T23:59:59Z");
        assert!(never.is_some_and(|never| rfc3339(never).starts_with("9999-12-3")));
        for wrong in [
            "",
            "soon",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "9999-12-31",
            "9999-12-31T23:59:59",
            "9999-12-32T00:00:00Z",
        ] {
            assert_eq!(moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn both_forms_are_read() {
        let right = [
            ("PT1M", 60_000_000),
            ("PT0.1S", 100_000),
            ("P1D", 86_400_000_000),
            ("P1W", 604_800_000_000),
            ("P1DT1H", 90_000_000_000),
            ("100ms", 100_000),
            ("1h30m", 5_400_000_000),
            ("250us", 250),
            ("1.5s", 1_500_000),
            ("2d", 172_800_000_000),
            ("0s", 0),
        ];
        for (text, micros) in right {
            assert_eq!(parse(text), Ok(micros), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            ("", BadDuration::Form),
            ("soon", BadDuration::Form),
            ("500", BadDuration::Unit("500".into())),
            ("P1M", BadDuration::Calendar),
            ("1y", BadDuration::Calendar),
            ("-5s", BadDuration::Negative),
            ("5s ago", BadDuration::Negative),
            ("10ns", BadDuration::Fine),
        ];
        for (text, error) in wrong {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn words_are_periods_only() {
        assert_eq!(parse_period("second"), Ok(1_000_000));
        assert_eq!(parse_period("day"), parse("P1D"));
        assert_eq!(parse("second"), Err(BadDuration::Form));
    }

    #[test]
    fn output_is_iso_and_reads_back() {
        assert_eq!(iso(60_000_000), "PT1M");
        assert_eq!(iso(100_000), "PT0.1S");
        assert_eq!(iso(0), "PT0S");
        for micros in [1, 999, 1_000_001, 86_400_000_000, 31_622_400_000_000] {
            assert_eq!(parse(&iso(micros)), Ok(micros));
            assert_eq!(parse(&plain(Duration::from_micros(micros))), Ok(micros));
        }
    }
}
